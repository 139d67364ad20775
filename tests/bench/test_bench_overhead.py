"""The overhead of a call."""

import pytest
from cli_helpers import Capture, json_of

from torch_cudnn_ext.bench import overhead
from torch_cudnn_ext.cli import main


def test_bench_overhead(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "CALLS", 3)
    rows = json_of(capsys, "bench", "--overhead", "--device", "cpu")["overhead"]
    assert [row["problem"] for row in rows] == overhead.overhead_problems("cpu")
    for row in rows:
        times = [
            f"{side}{part}_us"
            for side in ("ours", "pytorch", "enabled")
            for part in ("", "_training", "_one_thread")
        ]
        assert all(float(str(row[key])) > 0 for key in ("bare_us", *times))
    assert main(["bench", "--overhead", "--device", "cpu"]) == 0
    assert "medians of the ratios" in capsys.readouterr().out
