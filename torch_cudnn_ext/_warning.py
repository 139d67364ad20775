"""Warnings that point at a line of the user's code."""

import contextlib
import warnings
from pathlib import Path
from types import FrameType

import torch

from torch_cudnn_ext._torch_internals import current_frame

_NOT_THE_USERS = (
    *(str(Path(file).parent) + "/" for file in (__file__, torch.__file__)),
    contextlib.__file__,
    "<frozen ",
    "<string>",
)


class UnverifiedVersionWarning(UserWarning):
    """The version of cuDNN and the GPU are none on which the test suite ran."""


def warn_of_version(message: str) -> None:
    """Warn of a version of cuDNN that was not verified."""
    warn(message, UnverifiedVersionWarning)


def warn(message: str, category: type[UserWarning] = UserWarning) -> None:
    """Warn at the innermost line that belongs neither to this package nor to PyTorch."""
    frame: FrameType | None = current_frame()
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    if frame is None:  # on autograd's threads and in the command line
        warnings.warn(message, category, stacklevel=2)
        return
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
