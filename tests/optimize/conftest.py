"""What tests of `optimize` share."""

import pytest


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which way is the fastest matters to no test here."""
    monkeypatch.setattr("torch_cudnn_ext.bench.networks.SAMPLE_MS", 1.0)
    monkeypatch.setattr("torch_cudnn_ext._optimize.ways.ROUNDS_S", 0.1)
