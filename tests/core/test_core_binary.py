"""``csrc/core`` and ``csrc/problems`` work without operators, backends, CUDA and cuDNN."""

import fcntl
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
import torch
from cases import LINES
from conftest import BUILD, ROOT
from torch.utils import cpp_extension

from torch_cudnn_ext import _C

TEST = ROOT / "tests" / "cpp" / "core_test.cpp"
FOLDER = BUILD / "core_test"
LIBRARIES = Path(torch.__file__).parent / "lib"


@cache
def last_change(source: Path) -> float:
    """When a C++ file, or one of the project's files that it includes, changed last."""
    seen: set[Path] = set()
    left = [source]
    while left:
        file = left.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        includes = re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE)
        left += [ROOT / "csrc" / include for include in includes]
    return max(file.stat().st_mtime for file in seen)


def compile_to_object(source: Path, compiler: list[str]) -> Path:
    """The object file of a C++ file: the build's or an earlier one if up to date, else a new one.

    Neither Python's headers nor those of CUDA and cuDNN are on the compiler's path.
    """
    name = f"{source.stem}.o"
    for known in [*BUILD.rglob(f"units/{name}"), FOLDER / name]:
        if known.is_file() and known.stat().st_mtime > last_change(source):
            return known
    made = FOLDER / name
    includes = [f"-I{path}" for path in [ROOT / "csrc", *cpp_extension.include_paths("cpu")]]
    flags = ["-O1", "-g0", "-std=c++20", "-fPIC"]
    command = [*compiler, *flags, *includes, "-c", str(source), "-o", f"{made}.new"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    os.replace(f"{made}.new", made)
    return made


@pytest.fixture(scope="module")
def core_test() -> Path:
    """The linked program."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    toolchain = [sys.executable, str(ROOT / "setup.py"), "toolchain"]
    answer = subprocess.run(toolchain, capture_output=True, text=True, check=True).stdout
    compiler = answer.split()
    units = [unit for name in ("core", "problems") for unit in sorted(BUILD.glob(f"units/{name}*"))]
    assert units, f"{BUILD}/units, which setup.py makes, holds none of core and problems"
    sources = [TEST, *units]
    program = FOLDER / "core_test"
    with (FOLDER / "mutex").open("w") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = list(pool.map(lambda source: compile_to_object(source, compiler), sources))
        if not program.is_file() or any(
            file.stat().st_mtime > program.stat().st_mtime for file in objects
        ):
            link = [f"-L{LIBRARIES}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{LIBRARIES}"]
            command = [*compiler, *map(str, objects), *link, "-o", str(program)]
            result = subprocess.run(command, capture_output=True, text=True)
            assert result.returncode == 0, result.stderr
    return program


def test_checks_hold(core_test: Path) -> None:
    problems = dict.fromkeys(_C.canonical_problem(line.problem) for line in LINES)
    text = "".join(f"{problem}\n" for problem in problems)
    result = subprocess.run([core_test], input=text, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == "all checks hold\n"


def test_needs_no_cuda_library(core_test: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", core_test], capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    assert {name.split(".")[0] for name in needed} >= {"libc10", "libtorch_cpu"}
    assert not [name for name in needed if re.search("cuda|cudnn|cudart|python", name)]
    # PyTorch's CPU library needs cudart itself, for its profiler.
    loaded = subprocess.run(["ldd", core_test], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in loaded
    assert not re.search("libcudnn|torch_cuda|torch_python", loaded)
