"""Fixtures of the tests of models."""

from collections.abc import Iterator

import pytest
from enable_helpers import Net

from torch_cudnn_ext import declined, disable, is_enabled


@pytest.fixture
def off() -> Iterator[None]:
    """Whatever a test does, PyTorch is itself again afterwards."""
    declined(reset=True)
    yield
    if is_enabled():
        disable()


@pytest.fixture
def net(device: str) -> Net:
    """A small model."""
    return Net().to(device)
