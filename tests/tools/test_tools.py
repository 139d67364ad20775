"""tools/bootstrap decides well: which Python, when to build, and what it says when it cannot."""

import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from helpers import TORCH_RELEASE

from torch_cudnn_ext import __version__

# An extension that compiles in a moment stands for the real one.
MODULE = """
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C"};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&definition); }
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh checkout with a tiny extension."""
    root = tmp_path / "checkout"
    package = root / "torch_cudnn_ext"
    package.mkdir(parents=True)
    shutil.copytree(ROOT / "tools", root / "tools")
    for name in ("setup.py", "pyproject.toml", "torch_cudnn_ext/_libraries.py"):
        shutil.copy(ROOT / name, root / name)
    (root / "README.md").touch()
    (package / "__init__.py").write_text('__version__ = "0"\n')
    (root / "csrc").mkdir()
    (root / "csrc" / "module.cpp").write_text(MODULE)
    return root


def bootstrap(checkout: Path, *extras: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs tools/bootstrap, by default for this interpreter."""
    own = {"TORCH_CUDNN_EXT_PYTHON": sys.executable, "TORCH_VERSION": "", "CXX": ""}
    return subprocess.run(
        [shutil.which("bash") or "bash", str(checkout / "tools" / "bootstrap"), *extras],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
    )


def assert_stops(process: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that holds the words."""
    assert (process.returncode, process.stdout) == (2, ""), process.stderr
    assert process.stderr.count("\n") == 1, process.stderr
    for word in words:
        assert word in process.stderr


def folder_of_commands(folder: Path, *commands: str) -> str:
    """A PATH that holds these commands and no other."""
    folder.mkdir()
    for command in commands:
        (folder / command).symlink_to(shutil.which(command) or command)
    return str(folder)


def fake_torch(folder: Path, version: str, cuda: str | None) -> str:
    """A PYTHONPATH on which a torch of this version is found before any other."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text(
        f"__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n"
    )
    return str(folder)


def empty_python(folder: Path) -> Path:
    """An interpreter without any package."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def test_builds_once_and_again_after_a_change(checkout: Path) -> None:
    first = bootstrap(checkout)
    assert (first.returncode, first.stdout) == (0, f"{sys.executable}\n"), first.stderr
    assert "[1/1] csrc.0, 0:" in first.stderr and "left" in first.stderr
    (built,) = (checkout / "torch_cudnn_ext").rglob("_C*.so")

    start = time.perf_counter()
    second = bootstrap(checkout)
    assert time.perf_counter() - start < 2
    assert (second.stdout, second.stderr) == (first.stdout, "")

    (checkout / "csrc" / "module.cpp").write_text(MODULE + "// changed\n")
    third = bootstrap(checkout)
    assert third.returncode == 0
    assert "building the extension" in third.stderr


def test_builds_for_two_versions_of_torch_stay_side_by_side(checkout: Path, tmp_path: Path) -> None:
    assert bootstrap(checkout).returncode == 0
    (built,) = (checkout / "torch_cudnn_ext").rglob("_C*.so")
    other = built.parent.with_name("torch2_0") / built.name
    other.parent.mkdir()
    other.touch()
    (checkout / "build" / "torch2_0").mkdir()
    again = bootstrap(checkout)
    assert (again.returncode, again.stderr) == (0, "") and other.is_file()


def test_another_version_of_torch_is_asked_for(checkout: Path) -> None:
    release = "{}.{}".format(*TORCH_RELEASE)
    assert bootstrap(checkout, TORCH_VERSION=release).returncode == 0
    wanted = f"has torch {torch.__version__}, wanted 2.10.*"
    assert_stops(bootstrap(checkout, TORCH_VERSION="2.10"), wanted)
    for wrong in ("2", "2.11.0", "newest"):
        process = bootstrap(checkout, TORCH_VERSION=wrong)
        assert_stops(process, f"TORCH_VERSION is '{wrong}', wanted a version such as 2.11")


def test_a_wheel_names_the_torch_that_it_was_built_for(checkout: Path) -> None:
    package = checkout / "torch_cudnn_ext"
    others = shutil.ignore_patterns("_built", "__pycache__")
    shutil.copytree(ROOT / "torch_cudnn_ext", package, ignore=others, dirs_exist_ok=True)
    process = subprocess.run(
        [str(checkout / "tools" / "wheel")],
        env={**os.environ, "TORCH_CUDNN_EXT_PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    release = "{}.{}".format(*TORCH_RELEASE)
    wheel = Path(process.stdout.strip())
    assert wheel.parent == checkout / "dist"
    assert wheel.name.startswith(f"torch_cudnn_ext-{__version__}+torch{release}-cp")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        requires = archive.read(metadata).decode()
    tag = f"torch{release.replace('.', '_')}"
    (extension,) = (name for name in names if name.endswith(".so"))
    assert extension.startswith(f"torch_cudnn_ext/_built/{tag}/_C.")
    assert f"Requires-Dist: torch=={release}.*" in requires


def test_compile_error_is_shown(checkout: Path) -> None:
    (checkout / "csrc" / "module.cpp").write_text("int wrong = undeclared;\n")
    process = bootstrap(checkout)
    assert (process.returncode, process.stdout) == (2, "")
    assert "error: ‘undeclared’" in process.stderr or "error: use of" in process.stderr
    (log,) = checkout.glob("build/*/build.log")
    assert str(log) in process.stderr


def test_the_error_is_found_whatever_language_the_compiler_speaks(
    checkout: Path, tmp_path: Path
) -> None:
    (checkout / "csrc" / "module.cpp").write_text("int wrong = undeclared;\n")
    compiler = tmp_path / "translated"
    compiler.write_text(
        "#!/bin/bash\n"
        '[[ $LC_ALL == C.UTF-8 ]] && exec c++ "$@"\n'
        """c++ "$@" 2> >(sed 's/error:/Fehler:/' >&2)\n"""
    )
    compiler.chmod(0o755)
    process = bootstrap(checkout, CXX=str(compiler), LC_ALL="", LANG="de_DE.UTF-8")
    assert process.returncode == 2
    assert "error: " in process.stderr


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nothing-like-this -O2", "there is no nothing-like-this"),
        ('g++ "', "No closing quotation"),
    ],
)
def test_a_compiler_that_is_none_is_refused(checkout: Path, command: str, message: str) -> None:
    process = bootstrap(checkout, CXX=command)
    assert_stops(process, f"CXX is {command!r}, wanted a", message)


def test_a_checkout_that_cannot_be_written_to_is_refused(checkout: Path) -> None:
    (checkout / "build").write_text("no folder, which keeps root out as well")
    assert_stops(bootstrap(checkout), "cannot be written to", "copy it elsewhere")


def test_tools_may_be_links(checkout: Path, tmp_path: Path) -> None:
    (checkout / "torch_cudnn_ext" / "__main__.py").write_text("print(__file__)\n")
    (tmp_path / "linked").symlink_to(checkout / "tools" / "run")
    process = subprocess.run(
        [str(tmp_path / "linked")],
        env={**os.environ, "TORCH_CUDNN_EXT_PYTHON": sys.executable, "CXX": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == f"{checkout}/torch_cudnn_ext/__main__.py\n"


def test_no_compiler(checkout: Path, tmp_path: Path) -> None:
    path = folder_of_commands(tmp_path / "bin", "cat", "dirname", "flock", "mkdir", "readlink")
    assert_stops(bootstrap(checkout, PATH=path), "no C++ compiler", "apt install g++")


def test_no_python_header(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig; sysconfig.get_path = lambda *_, **__: '/nowhere'\n"
    )
    process = bootstrap(checkout, PYTHONPATH=str(tmp_path))
    assert_stops(process, "/nowhere/Python.h is missing", "apt install python3-dev")


def test_compiler_with_a_libstdcxx_of_its_own_is_passed_over(
    checkout: Path, tmp_path: Path
) -> None:
    """Such a compiler finds no shared libstdc++: it repeats the name that it was asked for."""
    compiler = tmp_path / "static-g++"
    compiler.write_text("#!/bin/sh\necho libstdc++.so\n")
    compiler.chmod(0o755)
    process = subprocess.run(
        [sys.executable, "setup.py", "toolchain"],
        cwd=checkout,
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0
    assert f"{compiler} would put its own libstdc++ into the extension" in process.stderr


@pytest.mark.parametrize(
    ("version", "cuda", "reason"),
    [
        ("2.10.0+cu130", "13.0", "torch is 2.10.0+cu130, wanted >=2.11,<2.16"),
        ("2.11.0+cpu", None, "torch 2.11.0+cpu is built for CUDA None, wanted CUDA 12 or 13"),
        ("2.11.0+cu118", "11.8", "torch 2.11.0+cu118 is built for CUDA 11.8, wanted CUDA 12 or 13"),
    ],
)
def test_unsuitable_torch(
    checkout: Path, tmp_path: Path, version: str, cuda: str | None, reason: str
) -> None:
    process = bootstrap(checkout, PYTHONPATH=fake_torch(tmp_path / "fake", version, cuda))
    assert_stops(process, sys.executable, reason)


def test_missing_packages_are_named(checkout: Path, tmp_path: Path) -> None:
    process = bootstrap(
        checkout,
        "test",
        TORCH_CUDNN_EXT_PYTHON=str(empty_python(tmp_path / "empty")),
        PYTHONPATH=fake_torch(tmp_path / "fake", "2.11.0", "13.0"),
    )
    assert_stops(process, "has torch 2.11.0 but not", "typer", "hypothesis", "torchvision")


def test_another_version_of_a_package_is_none(checkout: Path, tmp_path: Path) -> None:
    for name, version in (("torchvision", "0.25.0"), ("timm", "0.9.31")):
        folder = tmp_path / "packages" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    process = bootstrap(checkout, "test", "models", PYTHONPATH=str(tmp_path / "packages"))
    assert_stops(process, "but not timm==1.0.*\n")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone")
def test_a_source_distribution_holds_what_the_clone_holds(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:  # say of a clone that is someone else's
        pytest.skip(f"git ls-files: {listed.stderr}")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    command += ["sdist", "--formats", "tar", "--dist-dir", str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    (made,) = tmp_path.glob("*.tar")
    with tarfile.open(made) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert set(listed.stdout.splitlines()) - held == {".gitignore"}
    assert not [name for name in held if name.endswith((".so", ".pyc"))]


def test_no_python_at_all(checkout: Path) -> None:
    assert_stops(
        bootstrap(checkout, TORCH_CUDNN_EXT_PYTHON="/bin/false"), "/bin/false is no Python"
    )


def test_environment_of_someone_else_is_left_alone(checkout: Path, tmp_path: Path) -> None:
    empty_python(checkout / ".venv")
    path = f"{empty_python(tmp_path / 'empty').parent}{os.pathsep}{os.environ['PATH']}"
    before = sorted((checkout / ".venv").rglob("*"))
    process = bootstrap(checkout, PATH=path, TORCH_CUDNN_EXT_PYTHON="", PYTHONPATH="")
    assert process.returncode == 2
    assert "has no torch, wanted >=2.11,<2.16" in process.stderr
    assert f"{checkout}/.venv is not one that tools/bootstrap made" in process.stderr
    assert sorted((checkout / ".venv").rglob("*")) == before


def test_an_extra_that_is_none_is_refused(checkout: Path) -> None:
    assert_stops(bootstrap(checkout, "tests"), "got tests, wanted test, models, ci or docs")


def test_ship_measures_networks_and_keeps_one_file_a_device(checkout: Path, tmp_path: Path) -> None:
    rankings = checkout / "torch_cudnn_ext" / "tuning" / "rankings"
    device = rankings / "gpu" / "cudnn-1"
    device.mkdir(parents=True)
    (device / "host-1-2.jsonl").write_text("rows\n")
    run = checkout / "tools" / "run"
    run.write_text(f'#!/bin/sh\necho "$TORCH_CUDNN_EXT_STORE $*" >> {tmp_path}/log\n')

    def ship(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [checkout / "tools" / "ship", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert_stops(ship(), "got no folder, wanted a tuning store")
    assert ship("measured", "inception_v3").returncode == 0
    *measured, merged, compacted = (tmp_path / "log").read_text().splitlines()
    assert all(line.startswith(f"{tmp_path}/measured ") for line in measured)
    assert sum(" tune --model inception_v3 --image-size 299 --dtype " in m for m in measured) == 14
    assert sum(" optimize --model inception_v3 " in line for line in measured) == 7
    assert f"store merge --winners {tmp_path}/measured --store {rankings}" in merged
    assert f"store compact --store {rankings}" in compacted
    (file,) = device.iterdir()
    assert file.name == "rankings.jsonl.gz" and gzip.decompress(file.read_bytes()) == b"rows\n"
