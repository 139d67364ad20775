"""Whole networks under ``torch.compile``, compared with and without `enable`."""

from pathlib import Path

import pytest
from cli_helpers import Capture

from torch_cudnn_ext.bench import compiled, rounds
from torch_cudnn_ext.bench.networks import NetworkSettings
from torch_cudnn_ext.cli import main


def test_bench_of_a_compiled_network(
    monkeypatch: pytest.MonkeyPatch, networks: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")  # no trial compilations
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    settings = NetworkSettings(False, "cpu", "autotune;backends=aten,cpu")
    table = tmp_path / "table.jsonl"
    found = compiled._compare(f"{networks}:conv", "f32", "infer", settings, table)
    assert (found.batch, found.layout, found.mode) == (2, "nchw", "infer")
    for name in ("pytorch", "pytorch_benchmark", "untuned", "tuned"):
        assert getattr(found, f"{name}_ms") > 0
    best = min(found.pytorch_ms, found.pytorch_benchmark_ms)
    assert found.untuned_ratio == pytest.approx(found.pytorch_ms / found.untuned_ms)
    assert found.tuned_ratio == pytest.approx(best / found.tuned_ms)
    kept = table.read_text()  # by the tuned side; nothing while other work takes the cores
    assert not kept or '"problem": "conv_fwd' in kept
    text = str(compiled.comparison_text([found], "table"))
    assert f"tuned {found.tuned_ratio:.3f}" in text and "f32 nchw" in text


def test_bench_of_a_compiled_network_that_fails(capsys: Capture, networks: str) -> None:
    command = ["bench", "--networks", f"{networks}:failing", "--compiled", "--device", "cpu"]
    assert main(command) == 1
    assert f"error: {networks}:failing raised " in capsys.readouterr().err
