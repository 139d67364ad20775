"""One cuDNN per process: another's files are refused, and loading needs no GPU."""

import mmap
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import torch_cudnn_ext
from torch_cudnn_ext import _libraries

ROOT = Path(torch_cudnn_ext.__file__).parents[1]
RUN_OPERATOR = """
result = torch.ops.torch_cudnn_ext.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
assert torch.equal(result, torch.full((1, 1, 2, 2), 9.0)), result
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a fresh interpreter that can import the package; a hang fails the test."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def cudnn_folder() -> Path:
    return _libraries.load()


@pytest.fixture
def second_cudnn(cudnn_folder: Path, tmp_path: Path) -> Path:
    """A folder with the same files of the same version: two copied, the large ones linked."""
    for file in cudnn_folder.glob("libcudnn*.so.9"):
        if file.name in ("libcudnn.so.9", "libcudnn_graph.so.9"):
            shutil.copy(file, tmp_path)
        else:
            (tmp_path / file.name).symlink_to(file)
    return tmp_path


def assert_refused(process: subprocess.CompletedProcess[str], *folders: Path) -> None:
    assert process.returncode == 1, process.stderr
    message = process.stderr[process.stderr.index("ImportError: ") :]
    assert "more than one folder" in message
    for folder in folders:
        assert f"  {folder}: libcudnn" in message
    assert "LD_LIBRARY_PATH" in message


def test_library_path_cannot_split_cudnn(cudnn_folder: Path, second_cudnn: Path) -> None:
    code = f"import torch, torch_cudnn_ext as t{RUN_OPERATOR}print(*t._libraries.mapped_files())"
    process = python("-c", code, LD_LIBRARY_PATH=str(second_cudnn))
    assert process.returncode == 0, process.stderr
    assert {Path(file).parent for file in process.stdout.split()} == {cudnn_folder}


def test_mix_of_one_version_is_refused(cudnn_folder: Path, second_cudnn: Path) -> None:
    """Whoever uses cuDNN before the import lets the loader pick: the version cannot tell."""
    opened = second_cudnn / "libcudnn_graph.so.9"  # as other packages open it, by its name
    code = (
        "import ctypes, torch; print(torch.backends.cudnn.version(), flush=True); "
        f"ctypes.CDLL({str(opened)!r}); import torch_cudnn_ext"
    )
    process = python("-c", code, LD_LIBRARY_PATH=str(second_cudnn))
    assert int(process.stdout) == torch.backends.cudnn.version()
    assert_refused(process, cudnn_folder, second_cudnn)


def test_second_main_library_is_refused(cudnn_folder: Path, second_cudnn: Path) -> None:
    process = python("-c", "import torch_cudnn_ext", LD_PRELOAD=str(second_cudnn / "libcudnn.so.9"))
    assert_refused(process, cudnn_folder, second_cudnn)


def test_later_mix_is_found_by_check(cudnn_folder: Path, second_cudnn: Path) -> None:
    library = second_cudnn / "libcudnn_graph.so.9"
    code = f"""
import ctypes
from torch_cudnn_ext import _libraries
_libraries.check()
ctypes.CDLL({str(library)!r})
_libraries.check()
"""
    assert_refused(python("-c", code), cudnn_folder, second_cudnn)


def test_all_files_are_loaded_at_import(cudnn_folder: Path) -> None:
    expected = {file.resolve() for file in cudnn_folder.glob("libcudnn*.so.9")}
    assert set(_libraries.mapped_files()) == expected


def test_import_and_operators_need_no_gpu() -> None:
    code = f"import torch, torch_cudnn_ext{RUN_OPERATOR}assert not torch.cuda.is_available()"
    process = python("-c", code, CUDA_VISIBLE_DEVICES="")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("parent_uses_it", [False, True])
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_child_processes(start_method: str, parent_uses_it: bool, tmp_path: Path) -> None:
    # One thread: OpenMP's pool does not survive a fork, with PyTorch's own operators neither.
    script = tmp_path / "parent.py"
    script.write_text(f"""
import multiprocessing
import sys

import torch

torch.set_num_threads(1)

def use():
    import torch_cudnn_ext
    {RUN_OPERATOR.strip().replace(chr(10), chr(10) + "    ")}

if __name__ == "__main__":
    if {parent_uses_it}:
        use()
    child = multiprocessing.get_context("{start_method}").Process(target=use)
    child.start()
    child.join(timeout=120)
    if child.is_alive():
        child.kill()
        sys.exit("the child hangs")
    sys.exit(child.exitcode)
""")
    process = python(str(script))
    assert process.returncode == 0, process.stderr


def test_mapped_files_may_have_any_name(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    path = Path(os.fsdecode(folder), "libcudnn.so.9")
    path.write_bytes(b"some")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        assert path in _libraries.mapped_files()
    assert path not in _libraries.mapped_files()


@pytest.mark.parametrize(
    ("version", "cuda", "message"),
    [
        ("2.10.0+cu130", "13.0", "torch is 2.10.0+cu130, wanted >=2.11,<2.16: pip install"),
        ("2.110.0", "13.0", "torch is 2.110.0, wanted >=2.11,<2.16"),
        ("2.11.0+cu118", "11.8", "torch 2.11.0+cu118 is built for CUDA 11.8, wanted CUDA 12 or 13"),
        ("2.11.0+cpu", None, "torch 2.11.0+cpu is built for CUDA None, wanted CUDA 12 or 13"),
    ],
)
def test_another_torch_is_refused_before_anything_is_loaded(
    version: str, cuda: str | None, message: str
) -> None:
    code = f"""
import torch
torch.__version__, torch.version.cuda = {version!r}, {cuda!r}
import torch_cudnn_ext
"""
    process = python("-c", code)
    assert process.returncode == 1
    said = process.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: torch_cudnn_ext: {message}")


def test_an_extension_that_is_not_built_is_told_in_one_line(tmp_path: Path) -> None:
    package = tmp_path / "torch_cudnn_ext"
    shutil.copytree(ROOT / "torch_cudnn_ext", package, ignore=shutil.ignore_patterns("*.so"))
    tag = _libraries.torch_tag(torch.__version__)
    for folder in (tag, "torch2_10"):
        (package / "_built" / folder).mkdir(parents=True, exist_ok=True)
    other_python = package / "_built" / tag / "_C.cpython-310.so"
    other_python.touch()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    other_torch = package / "_built" / "torch2_10" / f"_C{suffix}"
    other_torch.touch()
    script = tmp_path / "script.py"  # whose folder is looked through first
    script.write_text("import torch_cudnn_ext\n")
    process = python(str(script))
    assert process.returncode == 1
    said = process.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: torch_cudnn_ext: {package}/_built holds no torch2_")
    assert f"_C{suffix}: the extension is not built for torch {torch.__version__} and" in said
    assert f"it holds torch2_10/_C{suffix}, torch2_" in said and "_C.cpython-310.so. Build" in said
    assert "tools/bootstrap" in said and "pip install --no-build-isolation ." in said


@pytest.mark.parametrize("runtime", [91900, 91901, 92000])
def test_later_minor_versions_are_accepted(runtime: int) -> None:
    _libraries.check_versions(91900, runtime)


@pytest.mark.parametrize(("runtime", "text"), [(91801, "9.18.1"), (100000, "10.0.0")])
def test_older_and_other_major_versions_are_refused(runtime: int, text: str) -> None:
    with pytest.raises(ImportError, match=f"compiled with cuDNN 9.19.0 but {text} is loaded"):
        _libraries.check_versions(91900, runtime)
