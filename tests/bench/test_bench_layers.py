"""Layers compared with PyTorch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Capture, json_of
from helpers import LINE, PASSES, PROBLEM

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._workload.problems import Layer, with_passes
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.bench import layers, modules, overhead
from torch_cudnn_ext.bench import networks as whole_networks
from torch_cudnn_ext.bench.layers import (
    Comparison,
    compare_layers,
    comparison_text,
    geometric_means,
)
from torch_cudnn_ext.bench.rounds import bootstrap_interval
from torch_cudnn_ext.cli import main


def test_bench_compares_with_both_of_pytorch_s_settings(device: str) -> None:
    layers = with_passes([Layer(LINE, ("a",), 2)], ["fwd", "bwd_data", "bwd_filter"])
    layers.append(Layer(LINE + " bias=f32", ("a",), 2))
    results = list(compare_layers(layers, make_settings(device, time_budget_s=1), kernels=True))
    assert [result.problem.split()[0] for result in results] == [*PASSES, PASSES[0]]
    for result in results:
        assert result.ratio_low <= result.ratio <= result.ratio_high
        both = (result.pytorch_default_ms, result.pytorch_benchmark_ms)
        assert result.pytorch_ms == min(both)
        assert result.count == 2 and result.algorithm
        assert bool(result.pytorch_kernels) == bool(result.kernels) == (device == "cuda")
        assert not result.pytorch_reason


def test_bench_says_why_pytorchs_own_call_is_no_candidate(device: str) -> None:
    backends = "backends=graph,legacy" if device == "cuda" else "backends=cpu"
    settings = make_settings(device, policy=backends, time_budget_s=10)
    results = list(compare_layers([Layer(LINE, ("a",), 1)], settings))
    assert results[0].pytorch_reason == f"excluded by {backends}"
    (table,) = comparison_text(results, "table")
    assert not isinstance(table, str)
    assert table.lists[0][1] == [results[0].pytorch_reason]
    means = geometric_means(results)
    assert means["all"] == pytest.approx(means["filters 3x3 and larger"])


def test_the_bootstrap_interval_holds_the_median() -> None:
    assert bootstrap_interval([2.0] * 5) == (2.0, 2.0)
    low, high = bootstrap_interval([1.0, 1.1, 0.9, 1.05, 0.95] * 6)
    assert 0.9 <= low <= 1.0 <= high <= 1.1


def test_geometric_means_tell_large_filters_apart() -> None:
    def result(line: str, ratio: float) -> Comparison:
        return Comparison(line, [], 1, "", "", [], 1, 1, 1, 1, "", [], ratio, ratio, ratio, "")

    small = LINE.replace("3,3]", "1,1]")
    means = geometric_means([result(LINE, 4.0), result(small, 1.0)])
    assert means == {
        "all": pytest.approx(2.0),
        "filters 3x3 and larger": pytest.approx(4.0),
    }


def test_bench(capsys: Capture) -> None:
    result = json_of(capsys, "bench", PROBLEM, "--device", "cpu", "--time-budget", "0.5")
    (comparison,) = result["comparisons"]
    assert comparison["problem"] == LINE
    assert main(["bench", PROBLEM, "--device", "cpu", "--time-budget", "0.5"]) == 0
    assert "geometric mean over all" in capsys.readouterr().out
    assert {"prefer=gpu_time" in entry["constraints"] for entry in tuning.entries()} == {True}
    tuning.clear()
    command = ["bench", PROBLEM, "--device", "cpu", "--time-budget", "0.1"]
    assert main([*command, "--policy", "autotune"]) == 0
    assert [entry for entry in tuning.entries() if "prefer" in entry["constraints"]] == []


def test_bench_of_lines_with_a_compute_of_their_own(capsys: Capture) -> None:
    line = LINE.replace("compute=f32", "compute=f64")
    result = json_of(capsys, "bench", line, "--device", "cpu", "--time-budget", "0.1")
    assert result["comparisons"][0]["problem"] == line


def test_bench_refuses_what_pytorch_has_not_before_it_measures(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "measure_tasks", None)
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n{PROBLEM} mode=conv\n")
    assert main(["bench", "--problems", str(file), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("error: --problems: got mode in conv_fwd")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_bench_of_layers_keeps_its_tuning_table(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    file, lines = tmp_path / "table.jsonl", tmp_path / "lines.txt"
    lines.write_text(f"{LINE}\n{LINE.replace('pad=1', 'pad=0')}\n")
    command = ["bench", "--problems", str(lines), "--device", "cpu", "--time-budget", "0.05"]
    command += ["--jobs", jobs, "--table", str(file)]
    wanted = [row["algorithm"] for row in json_of(capsys, *command)["comparisons"]]
    kept = file.read_text()
    assert sorted(json.loads(line)["problem"] for line in kept.splitlines()) == sorted(
        lines.read_text().splitlines()
    )
    tuning.clear()
    measure = layers.measure_tasks
    measured: list[Any] = []

    def watched(tasks: Any, *rest: Any) -> Any:
        measured.extend(tasks)
        return measure(tasks, *rest)

    monkeypatch.setattr(layers, "measure_tasks", watched)
    assert [row["algorithm"] for row in json_of(capsys, *command)["comparisons"]] == wanted
    assert not measured and file.read_text() == kept
    lines.write_text(f"{lines.read_text()}{LINE.replace('pad=1', 'pad=2')}\n")
    assert len(json_of(capsys, *command)["comparisons"]) == 3
    assert [task.problem for task in measured] == [LINE.replace("pad=1", "pad=2")]
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_bench_compares_what_the_policy_chooses(capsys: Capture, tmp_path: Path, jobs: str) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n{LINE.replace('pad=1', 'pad=0')}\n")
    command = ["bench", "--problems", str(file), "--device", "cpu", "--jobs", jobs]
    for policy in ("heuristic", "fwd=cpu:fft", "cpu:direct;prefer=gpu_time"):
        chosen = _C.decide(LINE, "cpu", policy)["algorithm"]
        rows = json_of(capsys, *command, "--policy", policy)["comparisons"]
        assert [row["algorithm"] for row in rows] == [chosen, chosen]
    assert tuning.entries() == []  # nothing was tuned
    file.write_text(f"{LINE}\n{LINE.replace('8,8]', '64,64]')}\n")
    assert main([*command, "--policy", "fwd=cpu:im2col;max_workspace=64KiB"]) == 1
    shown = capsys.readouterr()
    assert LINE in shown.out
    assert "error: bench: no algorithm works under" in shown.err
    assert shown.err.count("cpu:im2col: excluded by max_workspace=65536") == 1
    assert "aten:default" not in shown.err


def test_bench_of_a_network_takes_its_convolutions(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    assert main(["bench", "--model", f"{networks}:softmax", "--device", "cpu"]) == 2
    assert "--model: got softmax_fwd, softmax_bwd, wanted a conv" in capsys.readouterr().err
    file = tmp_path / "lines.txt"
    file.write_text(f"softmax_fwd x=f32[2,3,4]:nchw\n{PROBLEM}\n")
    command = ["bench", "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    assert len(json_of(capsys, *command, "--shard", "1/2")["comparisons"]) == 1


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (layers.comparison_text, "problem,names,count,"),
        (overhead.overhead_text, "operator,dtype,passes,"),
        (modules.comparison_text, "family,module,"),
        (whole_networks.comparison_text, "network,batch,"),
    ],
)
def test_bench_without_rows_has_a_header(text: Callable[..., str], fields: str) -> None:
    shown = text([], "csv")
    assert shown.startswith(fields) and shown.count("\n") == 1


def test_bench_tells_what_no_algorithm_takes_behind_what_was_compared(
    capsys: Capture, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    large = LINE.replace("8,8]", "64,64]")
    file.write_text(f"{large}\n{LINE}\n")
    words = ["bench", "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    assert main([*words, "--policy", "backends=aten", "--max-workspace", "20KiB"]) == 1
    shown = capsys.readouterr()
    assert LINE in shown.out and large not in shown.out
    assert "error: bench: no algorithm works under" in shown.err
    assert f"for {large}: aten:default: excluded by max_workspace=20480" in shown.err
    file.write_text(f"{large}\n")
    assert main([*words, "--policy", "backends=aten", "--max-workspace", "20KiB"]) == 1
    assert not capsys.readouterr().out


def test_of_a_file_bench_says_what_it_leaves_out(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(
        f"softmax_fwd x=f32[2,3,4]:nchw\n{LINE}\npool_fwd x=f32[1,2,4,4]:nchw window=2\n"
    )
    command = ["bench", "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    assert main([*command, "--format", "csv"]) == 0
    shown = capsys.readouterr()
    assert "left out 2 of 3 problems, which are no convolutions: softmax_fwd, pool_fwd" in shown.err
    assert LINE in shown.out and "softmax" not in shown.out
