"""Loads the one cuDNN that PyTorch uses, and raises if the process holds files of two.

cuDNN 9 is a small ``libcudnn.so.9`` that opens its sub-libraries (``libcudnn_graph.so.9``, ...) by
name when they are first needed. The dynamic loader searches ``LD_LIBRARY_PATH`` before the folder
of the file that asks, so a second cuDNN on the machine can supply some of the files. Both may
report the same version; only their folders differ. Therefore this module loads each sub-library by
its absolute path before anything can ask for it by name, and compares the folders of all mapped
files.

It uses the standard library alone, since ``setup.py`` reads it before anything is built.
"""

import ctypes
import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path

_OLDEST_TORCH, _NEXT_TORCH = (2, 11), (2, 16)  # what the C++ code compiles with
TORCH_RANGE = ">={}.{},<{}.{}".format(*_OLDEST_TORCH, *_NEXT_TORCH)
_CUDA_MAJORS = (12, 13)
_BUILT = Path(__file__).parent / "_built"  # a folder for each torch: builds stay side by side
CUDA_HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h", "nv/target")  # which a build needs
CUDA_TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
_CUDNN_FILE = re.compile(r"libcudnn(_\w+)?\.so(\.\d+)*")


def find_in_wheels(pattern: str) -> Path | None:
    """Find a file that one of torch's wheels installed.

    Args:
        pattern: A glob in a folder of installed packages: ``nvidia/cudnn/lib/libcudnn.so.9``.

    Returns:
        The first match in the folder that holds torch, else along ``sys.path``; None if none.
    """
    torch = importlib.util.find_spec("torch")
    of_torch = [Path(torch.origin).parents[1]] if torch and torch.origin else []
    for folder in [*of_torch, *(Path(entry) for entry in sys.path if entry)]:
        for match in sorted(folder.glob(pattern)):
            return match
    return None


def find_cuda_headers(cuda: str, file: str) -> Path | None:
    """The folder of one of `CUDA_HEADERS`: in a wheel of CUDA's, else in a CUDA toolkit.

    Torch depends on most of CUDA's wheels, but not on all whose headers the others include.
    """
    major = int(cuda.split(".")[0])
    wheels = f"nvidia/cu{major}" if major >= 13 else "nvidia/cuda_*"
    if found := find_in_wheels(f"{wheels}/include/{file}"):
        return Path(str(found).removesuffix(f"/{file}"))
    toolkit = CUDA_TOOLKIT / "include"
    return toolkit if (toolkit / file).exists() else None


def mapped_files() -> list[Path]:
    """The libcudnn files in this process's memory, links resolved, in order of address."""
    files: dict[Path, None] = {}
    for line in Path("/proc/self/maps").read_bytes().split(b"\n"):  # names may have any encoding
        columns = line.split(maxsplit=5)
        if len(columns) == 6:
            path = Path(os.fsdecode(columns[5]).removesuffix(" (deleted)"))
            if _CUDNN_FILE.fullmatch(path.name):
                files[path.resolve()] = None
    return list(files)


def check() -> None:
    """Check that all libcudnn files in this process come from one folder.

    A later call finds what other packages have loaded in the meantime.

    Raises:
        ImportError: They come from several folders; the message lists them and says what to do.
    """
    folders: dict[Path, list[str]] = {}
    for file in mapped_files():
        folders.setdefault(file.parent, []).append(file.name)
    if len(folders) > 1:
        listing = "\n".join(f"  {folder}: {', '.join(names)}" for folder, names in folders.items())
        raise ImportError(
            "torch_cudnn_ext: this process holds cuDNN files from more than one folder, which "
            f"computes wrong results or crashes:\n{listing}\n"
            "All must come from the folder that PyTorch uses. Take the other folder out of "
            f"LD_LIBRARY_PATH (now {os.environ.get('LD_LIBRARY_PATH', '')!r}) and LD_PRELOAD, "
            "remove that system cuDNN, or import torch_cudnn_ext before the package that loads it."
        )


def torch_release(version: str) -> tuple[int, int]:
    """Major and minor number of a version: (2, 15) of ``2.15.0+cu132``."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


def torch_tag(version: str) -> str:
    """The name of the folder of an extension that was built for this torch.

    Args:
        version: ``torch.__version__``: ``2.15.0+cu132``.

    Returns:
        ``torch2_15``: extensions work with all patch releases of a minor one.
    """
    return "torch{}_{}".format(*torch_release(version))


def check_torch(version: str, cuda: str | None) -> None:
    """Check that torch is a CUDA build of a version that the extension can be built for.

    Args:
        version: ``torch.__version__``.
        cuda: ``torch.version.cuda``.

    Raises:
        ImportError: The version or the build is another.
    """
    if not _OLDEST_TORCH <= torch_release(version) < _NEXT_TORCH:
        raise ImportError(
            f"torch_cudnn_ext: torch is {version}, wanted {TORCH_RANGE}: "
            f"pip install 'torch{TORCH_RANGE}'"
        )
    if not cuda or int(cuda.split(".")[0]) not in _CUDA_MAJORS:
        raise ImportError(
            f"torch_cudnn_ext: torch {version} is built for CUDA {cuda}, wanted CUDA "
            f"{' or '.join(map(str, _CUDA_MAJORS))}: PyPI's own torch for Linux"
        )


def find_extension(version: str) -> Path:
    """The folder of the extension that was built for this torch and this Python.

    Args:
        version: ``torch.__version__``.

    Raises:
        ImportError: The extension is not built, or built for others; the message names them.
    """
    folder = _BUILT / torch_tag(version)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if (folder / f"_C{suffix}").is_file():
        return folder
    built = sorted(str(path.relative_to(_BUILT)) for path in _BUILT.glob("*/_C*.so"))
    others = f"; it holds {', '.join(built)}" if built else ""
    raise ImportError(
        f"torch_cudnn_ext: {_BUILT} holds no {folder.name}/_C{suffix}: the extension is not built "
        f"for torch {version} and this Python{others}. Build it: tools/bootstrap in a clone, or "
        "pip install --no-build-isolation ."
    )


def load() -> Path:
    """Load every part of the cuDNN that torch has mapped. Call it after ``import torch``.

    Returns:
        The folder that all parts come from.

    Raises:
        ImportError: There is no cuDNN, a part of it cannot be loaded, or two are mixed.
    """
    check()
    cudnn = [file for file in mapped_files() if file.name.startswith("libcudnn.so")]
    if len(cudnn) > 1:
        raise ImportError(
            "torch_cudnn_ext: want exactly one libcudnn.so in the process, found "
            + ", ".join(map(str, cudnn))
        )
    if not cudnn:
        wheel = find_in_wheels("nvidia/cudnn/lib/libcudnn.so.9")
        if wheel is None:
            raise ImportError(
                "torch_cudnn_ext: torch loaded no libcudnn.so.9 and its wheel of cuDNN is not "
                "installed; this needs a CUDA build of torch"
            )
        _open(wheel)
        cudnn = [wheel.resolve()]
    folder = cudnn[0].parent
    for library in _sub_libraries(folder):
        _open(library)
    check()
    return folder


def check_versions(header: int, runtime: int) -> None:
    """Compares the cuDNN that the extension was compiled with and the one that is loaded.

    cuDNN promises that a program runs on any later minor version of the same major version
    (NVIDIA cuDNN documentation, "API compatibility"), and promises nothing the other way.

    Args:
        header: ``CUDNN_VERSION`` of the headers: 91900 is 9.19.0.
        runtime: ``cudnnGetVersion()`` of the loaded library.

    Raises:
        ImportError: The loaded library is older than the headers or of another major version.
    """
    built, loaded = (
        f"{version // 10000}.{version // 100 % 100}.{version % 100}"
        for version in (header, runtime)
    )
    if runtime < header or runtime // 10000 != header // 10000:
        raise ImportError(
            f"torch_cudnn_ext was compiled with cuDNN {built} but {loaded} is loaded; install "
            "the version that torch asks for, or build the extension again: "
            "pip install --no-build-isolation --no-deps ."
        )


def _sub_libraries(folder: Path) -> list[Path]:
    """The sub-libraries, each after those that it needs: graph, ops, the rest."""
    first = ["libcudnn_graph.so.9", "libcudnn_ops.so.9"]
    found = {file.name: file for file in folder.glob("libcudnn_*.so.9")}
    ordered = [name for name in first if name in found]
    return [found[name] for name in ordered + sorted(found.keys() - set(first))]


def _open(library: Path) -> None:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ImportError(f"torch_cudnn_ext: cannot load {library}: {error}") from error
