"""The scripted backend, and the tensors of one small convolution."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import BUILD, ROOT
from torch import Tensor
from torch.utils import cpp_extension

from torch_cudnn_ext import _C


@pytest.fixture(scope="session")
def fake_backend() -> Any:
    """The compiled backend; compiled again only where it or a header of the extension changed.

    Times that its algorithms are scripted to take are what the clock shows, exactly.
    """
    folder = BUILD / "fake_backend"
    folder.mkdir(parents=True, exist_ok=True)
    toolchain = [sys.executable, str(ROOT / "setup.py"), "toolchain"]
    compiler = subprocess.run(toolchain, capture_output=True, text=True, check=True).stdout.strip()
    with pytest.MonkeyPatch.context() as patch, (folder / "mutex").open("w") as mutex:
        patch.setenv("CXX", compiler)
        patch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")  # ninja
        fcntl.flock(mutex, fcntl.LOCK_EX)
        # Torch's own lock outlives a process that was killed; with ours held, it is such a one.
        (folder / "lock").unlink(missing_ok=True)
        module = cpp_extension.load(
            "fake_backend",
            [str(ROOT / "tests" / "cpp" / "fake_backend.cpp")],
            extra_cflags=["-O1", "-g0"],
            extra_include_paths=[str(ROOT / "csrc")],
            extra_ldflags=[_C.__file__],  # so that there is one registry of backends
            build_directory=str(folder),
        )
    return module


@pytest.fixture
def fake(fake_backend: Any) -> Iterator[Any]:
    """The backend, without algorithms before and after."""
    yield fake_backend
    fake_backend.reset()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(1, 2, 6, 6)


@pytest.fixture
def w() -> Tensor:
    return torch.randn(3, 2, 3, 3)
