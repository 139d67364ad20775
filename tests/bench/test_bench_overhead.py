"""The overhead of a call."""

import pytest
from cli_helpers import Capture, json_of

from torch_cudnn_ext.bench import overhead
from torch_cudnn_ext.cli import main


def test_bench_overhead(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "CALLS", 3)
    rows = json_of(capsys, "bench", "--overhead", "--device", "cpu")["overhead"]
    cases = [(row["operator"], row["dtype"], row["passes"]) for row in rows]
    assert cases == overhead.overhead_cases("cpu")
    for row in rows:
        doors = ("pytorch", "ops", "policy", "torch_nn", "nn", "enabled")
        assert all(float(str(row[f"{door}_us"])) > 0 for door in doors)
        ops, nn = row["ops_us"] / row["pytorch_us"], row["nn_us"] / row["torch_nn_us"]
        assert (row["ops_ratio"], row["nn_ratio"]) == (ops, nn)
    assert main(["bench", "--overhead", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    for passes in ("fwd", "fwd+bwd"):
        assert f"geometric means of f32 {passes}: ops/F " in shown
