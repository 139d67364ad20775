"""Builds ``torch_cudnn_ext._C`` with the host's C++ compiler alone.

No CUDA toolkit is needed: headers and libraries come from the wheels that torch itself depends on,
so that the extension and torch share one cuDNN. ``python setup.py toolchain`` only checks the
compiler and Python's headers and prints the compiler's command; it needs no torch for that.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
BYTES_PER_JOB = 2 * 2**30  # what one compiler takes on a file that includes torch's headers


def fail(message: str) -> NoReturn:
    """Ends with one line on stderr."""
    raise SystemExit(f"torch_cudnn_ext: {message}")


def find_compiler() -> str:
    """The C++ compiler's command: $CXX, else the first of g++, c++ and clang++ on PATH.

    A compiler that has only a static libstdc++ is passed over: its copy inside the extension and
    the shared one that torch uses do not know each other's locale facets, and formatting a number
    into an error message then crashes.
    """
    chosen = os.environ.get("CXX", "").strip()
    try:
        first = shlex.split(chosen)[:1]
    except ValueError as error:
        fail(f"CXX is {chosen!r}, wanted a command: {error}")
    if first and not shutil.which(first[0]):
        fail(f"CXX is {chosen!r}, wanted a compiler's command: there is no {first[0]}")
    static_only = []
    for command in (chosen, "g++", "c++", "clang++"):
        words = shlex.split(command)
        if not words or not shutil.which(words[0]):
            continue
        query = [*words, "-print-file-name=libstdc++.so"]
        answer = subprocess.run(query, capture_output=True, text=True).stdout.strip()
        if os.path.isabs(answer):
            if static_only:
                print(
                    f"torch_cudnn_ext: {', '.join(static_only)} would put its own libstdc++ into "
                    f"the extension; using {command} instead",
                    file=sys.stderr,
                )
            return command
        static_only.append(command)
    if static_only:
        fail(f"{', '.join(static_only)} has no shared libstdc++; install one: apt install g++")
    fail("no C++ compiler found; install one (apt install g++) or set CXX")


def check_python_header() -> None:
    """Sees that Python.h is there."""
    include = sysconfig.get_path("include")
    if not Path(include, "Python.h").is_file():
        fail(f"{include}/Python.h is missing; install Python's headers: apt install python3-dev")


def default_jobs() -> int:
    """Compilers at a time: as many as there are cores, and as the memory allows."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    memory_bytes = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()) != "max":
        memory_bytes = min(memory_bytes, int(text))
    return max(1, min(len(os.sched_getaffinity(0)), memory_bytes // BYTES_PER_JOB))


def set_environment(compiler: str) -> None:
    """Makes setuptools and torch's BuildExtension use this compiler, for linking too."""
    os.environ["CXX"] = compiler
    os.environ["LDSHARED"] = os.environ["LDCXXSHARED"] = f"{compiler} -shared"
    os.environ.setdefault("MAX_JOBS", str(default_jobs()))
    if not shutil.which("ninja"):  # a virtual environment that is used without activating it
        os.environ["PATH"] += os.pathsep + os.path.dirname(sys.executable)
        if not shutil.which("ninja"):
            fail(f"ninja is missing; install it: {sys.executable} -m pip install ninja")


def libraries_module() -> ModuleType:
    """torch_cudnn_ext/_libraries.py, without importing the package that is not built yet."""
    path = ROOT / "torch_cudnn_ext" / "_libraries.py"
    spec = importlib.util.spec_from_file_location("_libraries", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_torch() -> None:
    """Sees that torch is there, and the one that the package wants."""
    libraries = libraries_module()
    try:
        import torch
    except ImportError as error:
        fail(
            f"torch cannot be imported ({error}); install 'torch=={libraries.TORCH_VERSION}.*' and "
            "build with pip install --no-build-isolation --no-deps ."
        )
    try:
        libraries.check_torch(torch.__version__, torch.version.cuda)
    except ImportError as error:
        fail(str(error).removeprefix("torch_cudnn_ext: "))


def find_cuda(find_in_wheels: Callable[[str], Path | None], folder: str, file: str) -> Path:
    """The folder of a CUDA file: in a wheel of CUDA's, else in a CUDA toolkit.

    Torch depends on most of CUDA's wheels, but not on the two whose headers the others include.
    """
    if wheel := find_in_wheels(f"nvidia/cu[0-9]*/{folder}/{file}"):
        return Path(str(wheel).removesuffix(f"/{file}"))
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if (toolkit / folder / file).exists():
        return toolkit / folder
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    requires = project["build-system"]["requires"]
    wheels = shlex.join(word for word in requires if word.startswith("nvidia-"))
    fail(
        f"CUDA's {file} is neither in a wheel nor under {toolkit}; install it: pip install {wheels}"
    )


def extension():
    """The one extension module, from every C++ file under csrc."""
    from torch.utils.cpp_extension import CppExtension

    find_in_wheels = libraries_module().find_in_wheels
    cudnn = find_in_wheels("nvidia/cudnn/lib/libcudnn.so.9")
    cudnn_header = find_in_wheels("nvidia/cudnn/include/cudnn_backend.h")
    if cudnn is None or cudnn_header is None:
        fail("torch's wheel nvidia-cudnn-cu13 is missing: pip install nvidia-cudnn-cu13")
    cudart = find_cuda(find_in_wheels, "lib", "libcudart.so.13")
    cuda_headers = [
        find_cuda(find_in_wheels, "include", header)
        for header in ("cuda_runtime_api.h", "crt/host_defines.h", "nv/target")
    ]
    sources, headers = (
        sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob(pattern))
        for pattern in ("*.cpp", "*.h")
    )
    link = [f"-L{cudnn.parent}", f"-L{cudart}", f"-l:{cudnn.name}", "-l:libcudart.so.13"]
    # A convenience for tools such as ldd: at import, torch and _libraries.py have loaded all of it.
    rpath = [f"-Wl,-rpath,{cudnn.parent}", f"-Wl,-rpath,{cudart}"]
    return CppExtension(
        "torch_cudnn_ext._C",
        sources,
        depends=headers,
        include_dirs=[
            str(ROOT / "csrc"),
            str(cudnn_header.parent),
            *dict.fromkeys(map(str, cuda_headers)),
        ],
        libraries=["c10_cuda", "torch_cuda"],
        # -g0: some Pythons hand down -g, which triples time and size with torch's headers.
        extra_compile_args=["-O2", "-g0", "-std=c++17"],
        extra_link_args=[*link, *rpath, "-Wl,--disable-new-dtags"],
    )


def precompile(include_dirs: list[str], flags: list[str], folder: Path) -> list[str]:
    """Compiles csrc/precompiled.h with the flags of the sources and returns the flags to use it.

    Torch's headers take most of a file's time otherwise. GCC alone; Clang compiles without it.
    """
    import torch

    source = ROOT / "csrc" / "precompiled.h"
    compiler = shlex.split(os.environ["CXX"])
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    if not source.is_file() or "clang" in version.lower():
        return []
    header = folder / source.name
    includes = [f"-I{path}" for path in include_dirs]
    command = [*compiler, *flags, *includes, "-x", "c++-header", str(header)]
    # A change of any of these writes the header anew, and ninja then compiles all files again.
    depends = [version.splitlines()[0], torch.__version__, shlex.join(command)]
    text = "".join(f"// {line}\n" for line in depends) + source.read_text()
    compiled = Path(f"{header}.gch")
    if not (compiled.is_file() and header.is_file() and header.read_text() == text):
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(text)
        subprocess.run([*command, "-o", str(compiled)], check=True)
    return ["-include", str(header)]


def main() -> None:
    """Checks everything that can be missing, then builds."""
    if not sys.platform.startswith("linux"):
        fail(f"this builds on Linux only, not on {sys.platform}")
    compiler = find_compiler()
    check_python_header()
    if sys.argv[1:] == ["toolchain"]:
        print(compiler)
        return
    check_torch()
    set_environment(compiler)
    from setuptools import setup
    from torch.utils.cpp_extension import BuildExtension

    class Build(BuildExtension):
        def build_extension(self, ext):
            include_dirs = [*ext.include_dirs, *self.compiler.include_dirs]
            flags = [*self.compiler.compiler_so[1:], *ext.extra_compile_args]
            ext.extra_compile_args += precompile(
                include_dirs, flags, Path(self.build_temp).resolve()
            )
            super().build_extension(ext)

    os.chdir(ROOT)
    setup(
        ext_modules=[extension()],
        cmdclass={"build_ext": Build.with_options(use_ninja=True)},
    )


main()
