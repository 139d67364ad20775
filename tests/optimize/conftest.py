"""What tests of `optimize` share."""

import functools
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way is the fastest matters to no test here."""
    monkeypatch.setattr("torch_cudnn_ext.bench.networks.SAMPLE_MS", 1.0)
    monkeypatch.setattr("torch_cudnn_ext._optimize.ways.ROUNDS_S", 0.1)


@pytest.fixture
def dynamo_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without Inductor, whose C++ takes a minute."""
    eager = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr("torch.compile", eager)
    yield
    torch._dynamo.reset()
