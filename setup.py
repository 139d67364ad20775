"""Builds ``torch_cudnn_ext._C`` with the host's C++ compiler alone.

No CUDA toolkit is needed: headers and libraries come from the wheels that torch itself depends on,
so that the extension and torch share one cuDNN. ``python setup.py toolchain`` only checks the
compiler and Python's headers and prints the compiler's command; it needs no torch for that.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
BYTES_PER_JOB = 2 * 2**30  # what one compiler takes on a file that includes torch's headers
BYTES_PER_UNIT = 30_000  # of source; another file may follow if there is less in a unit


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
        fail(f"torch cannot be imported ({error}): pip install 'torch{libraries.TORCH_RANGE}'")
    try:
        libraries.check_torch(torch.__version__, torch.version.cuda)
    except ImportError as error:
        fail(str(error).removeprefix("torch_cudnn_ext: "))


def find_cuda_headers(libraries: ModuleType, cuda: str, file: str) -> Path:
    """The folder of one of CUDA's headers."""
    found: Path | None = libraries.find_cuda_headers(cuda, file)
    if found is not None:
        return found
    major = int(cuda.split(".")[0])
    names = ("runtime", "cccl", "crt") if major >= 13 else ("runtime", "cccl", "nvcc")
    suffix = "" if major >= 13 else f"-cu{major}"
    install = shlex.join(f"nvidia-cuda-{name}{suffix}=={cuda}.*" for name in names)
    fail(
        f"CUDA's {file} is neither in a wheel nor under {libraries.CUDA_TOOLKIT}; install it: pip "
        f"install {install}"
    )


def translation_units(folder: Path) -> list[str]:
    """Writes one file a folder of csrc that includes its sources, and returns their paths.

    PyTorch's headers cost a compiler 2.5 s a translation unit, precompiled or not, since their
    templates are instantiated in each. Larger folders become several units.
    """
    units: dict[Path, str] = {}
    source_folders = sorted({path.parent for path in (ROOT / "csrc").rglob("*.cpp")})
    for source_folder in source_folders:
        name = "_".join(source_folder.relative_to(ROOT / "csrc").parts) or "csrc"
        parts: list[list[Path]] = [[]]
        for path in sorted(source_folder.glob("*.cpp")):
            if sum(part.stat().st_size for part in parts[-1]) > BYTES_PER_UNIT:
                parts.append([])
            parts[-1].append(path)
        for number, part in enumerate(parts):
            text = "".join(f'#include "{path}"\n' for path in part)
            units[folder / f"{name}.{number}.cpp"] = text
    folder.mkdir(parents=True, exist_ok=True)
    for old in set(folder.glob("*.cpp")) - units.keys():
        old.unlink()
    for unit, text in units.items():
        if not unit.is_file() or unit.read_text() != text:  # else ninja compiles it again
            unit.write_text(text)
    return [os.path.relpath(unit, ROOT) for unit in units]


def extension(build_folder: Path):
    """The one extension module, from every C++ file under csrc."""
    import torch
    from torch.utils.cpp_extension import CppExtension

    libraries = libraries_module()
    cuda = str(torch.version.cuda)
    cudnn = libraries.find_in_wheels("nvidia/cudnn/lib/libcudnn.so.9")
    cudnn_header = libraries.find_in_wheels("nvidia/cudnn/include/cudnn_backend.h")
    if cudnn is None or cudnn_header is None:
        wheel = f"nvidia-cudnn-cu{cuda.split('.')[0]}"
        fail(f"torch's wheel {wheel} is missing: pip install {wheel}")
    cuda_headers = [find_cuda_headers(libraries, cuda, header) for header in libraries.CUDA_HEADERS]
    return CppExtension(
        f"torch_cudnn_ext._built.{libraries.torch_tag(torch.__version__)}._C",
        translation_units(build_folder / "units"),
        depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.[ch]*")),
        include_dirs=[
            str(ROOT / "csrc"),
            str(cudnn_header.parent),
            *dict.fromkeys(map(str, cuda_headers)),
        ],
        # CUDA's runtime comes with c10_cuda, of whatever major version torch was built for.
        libraries=["c10_cuda", "torch_cuda"],
        # -g0: some Pythons hand down -g, which triples time and size with torch's headers.
        extra_compile_args=["-O2", "-g0", "-std=c++20"],
        # The path is a convenience for tools such as ldd: at import, torch and _libraries.py have
        # loaded all of it.
        extra_link_args=[
            f"-L{cudnn.parent}",
            f"-l:{cudnn.name}",
            f"-Wl,-rpath,{cudnn.parent}",
            "-Wl,--disable-new-dtags",
        ],
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
        print("torch_cudnn_ext: compiling PyTorch's headers once, for all files", flush=True)
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
    import torch
    from setuptools import setup
    from torch.utils.cpp_extension import BuildExtension

    libraries = libraries_module()
    release = "{}.{}".format(*libraries.torch_release(torch.__version__))
    tag = libraries.torch_tag(torch.__version__)
    build_folder = ROOT / "build" / f"{tag}-{sysconfig.get_config_var('SOABI')}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = (ROOT / "torch_cudnn_ext" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.*)"', package, re.M)
    assert version

    class Build(BuildExtension):
        def initialize_options(self):
            super().initialize_options()
            self.build_temp = str(build_folder)

        def build_extension(self, ext):
            include_dirs = [*ext.include_dirs, *self.compiler.include_dirs]
            flags = [*self.compiler.compiler_so[1:], *ext.extra_compile_args]
            ext.extra_compile_args += precompile(include_dirs, flags, build_folder)
            super().build_extension(ext)

        def run(self):
            for ext in self.extensions:
                Path(self.get_ext_fullpath(ext.name)).parent.mkdir(parents=True, exist_ok=True)
            super().run()

    os.chdir(ROOT)
    setup(
        version=f"{version[1]}+torch{release}",
        install_requires=[f"torch=={release}.*", *project["tool"]["torch_cudnn_ext"]["requires"]],
        ext_modules=[extension(build_folder)],
        cmdclass={"build_ext": Build.with_options(use_ninja=True)},
    )


main()
