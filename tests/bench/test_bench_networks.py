"""Whole networks compared with PyTorch."""

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import Capture, compare_here_and_briefly, json_of

from torch_cudnn_ext import _C, is_enabled, tuning
from torch_cudnn_ext.bench import networks as whole_networks
from torch_cudnn_ext.cli import main


def test_bench_of_unmodified_networks(capsys: Capture, networks: str) -> None:
    name = f"{networks}:conv"
    command = ["bench", "--networks", name, "--device", "cpu", "--policy", "backends=aten"]
    rows = json_of(capsys, *command, "--dtype", "bf16")["comparisons"]
    settings = [(row["network"], row["precision"], row["mode"]) for row in rows]
    assert settings == [(name, "bf16", mode) for mode in ("train", "infer")]
    for row in rows:
        assert 0 < float(str(row["ratio_low"])) <= float(str(row["ratio"]))
        assert row["pytorch_setting"] in ("benchmark=True", "benchmark=False")
    assert main([*command[:2], f"{networks}:softmax", "--device", "cpu"]) == 1
    error = capsys.readouterr().err
    assert f"{networks}:softmax raised ValueError: train: no tensor of the model's out" in error
    assert main([*command[:2], f"{networks}:failing", "--device", "cpu"]) == 1
    assert capsys.readouterr().err == f"error: {networks}:failing raised KeyError: 'inside'\n"


@pytest.mark.parametrize(("second", "kind"), [("failing", "KeyError"), ("unfit", "RuntimeError")])
def test_bench_of_networks_prints_those_before_one_that_fails(
    capsys: Capture, networks: str, monkeypatch: pytest.MonkeyPatch, second: str, kind: str
) -> None:
    compare_here_and_briefly(monkeypatch)
    names = f"{networks}:conv,{networks}:{second}"
    command = ["bench", "--networks", names, "--device", "cpu", "--policy", "backends=aten"]
    assert main([*command, "--dtype", "f32,bf16", "--format", "csv"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count(f"{networks}:conv,2,") == 4
    assert shown.err.startswith(f"error: {networks}:{second} raised {kind}: ")


def test_bench_of_networks_compares_what_it_says(
    monkeypatch: pytest.MonkeyPatch, networks: str, tmp_path: Path
) -> None:
    seen: list[tuple[bool, bool, torch.dtype | None, bool, str]] = []

    def watched(model: Any, inputs: Any, train: bool, autocast: Callable[[], Any]) -> None:
        conv: Any = torch.backends.cudnn
        with autocast():
            half = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        seen.append((is_enabled(), train, half, conv.benchmark, conv.conv.fp32_precision))

    monkeypatch.setattr(whole_networks, "run_step", watched)
    # Its own inputs are a batch of 2, whatever is asked for.
    settings = whole_networks.NetworkSettings(False, "cpu", "", 64, 8)
    for benchmark in (True, False):
        result = whole_networks._compare(
            benchmark, f"{networks}:softmax", "bf16", "train", settings, tmp_path / "table"
        )
        assert result.pytorch_setting == f"benchmark={benchmark}"
        assert (result.layout, result.mode, result.batch) == ("nchw", "train", 2)
        for side in (True, False):
            assert (side, True, torch.bfloat16, benchmark, "ieee") in seen
    assert not is_enabled()


@pytest.mark.parametrize(("options", "budgets"), [((), []), (("--time-budget", "0.5"), [0.5])])
def test_bench_of_networks_tunes_for_as_long_as_it_may(
    capsys: Capture,
    networks: str,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    budgets: list[float],
) -> None:
    compare_here_and_briefly(monkeypatch)
    tuned: list[float] = []

    def watched(*_: Any, time_budget_s: float, **__: Any) -> None:
        tuned.append(time_budget_s)

    monkeypatch.setattr(tuning, "tune_model", watched)
    command = ["bench", "--networks", f"{networks}:conv", "--device", "cpu"]
    assert len(json_of(capsys, *command, *options)["comparisons"]) == 2
    assert tuned == 2 * budgets  # a training step, and inference


def test_bench_of_networks_keeps_its_choices(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    file = tmp_path / "table.jsonl"
    command = ["bench", "--networks", f"{networks}:conv", "--device", "cpu", "--jobs", "2"]
    command += ["--policy", "autotune;backends=aten,cpu", "--table", str(file)]
    assert len(json_of(capsys, *command)["comparisons"]) == 2
    tuned = file.read_text()
    ops = {json.loads(line)["problem"].split()[0] for line in tuned.splitlines()}
    assert {"conv_fwd", "conv_bwd_data", "conv_bwd_filter"} & ops
    command[command.index("--jobs") + 1] = "1"
    json_of(capsys, *command)
    kept = {json.loads(line)["problem"] for line in tuned.splitlines()}  # not what was unstable
    now = [line for line in file.read_text().splitlines() if json.loads(line)["problem"] in kept]
    assert sorted(now) == sorted(tuned.splitlines())  # none of them anew


def test_bench_of_networks_keeps_what_was_tuned_before_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, networks: str, tmp_path: Path
) -> None:
    def stop(tasks: list[Any], *_: object) -> None:
        _C.measure(tasks[0].problem, tasks[0].device, time_budget_s=0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[tuning.tune.__module__], "measure_tasks", stop)
    settings = whole_networks.NetworkSettings(False, "cpu", "", 2, 8, jobs=2)
    table = tmp_path / "table.jsonl"
    with pytest.raises(KeyboardInterrupt):
        whole_networks._compare(False, f"{networks}:conv", "f32", "infer", settings, table)
    assert '"problem": "conv_fwd' in table.read_text()


def test_bench_of_networks_waits_for_the_gpu_that_it_runs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    sample = whole_networks.timer_of(lambda: None, nullcontext, "cuda:1")
    assert sample() >= 0 and set(waited) == {"cuda:1"}


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_bench_of_networks_runs_each_in_its_mode(
    monkeypatch: pytest.MonkeyPatch, networks: str, tmp_path: Path, mode: str
) -> None:
    seen: set[tuple[bool, bool]] = set()

    def watched(model: Any, inputs: Any, train: bool, autocast: Callable[[], Any]) -> None:
        seen.add((model.training, train))

    monkeypatch.setattr(whole_networks, "run_step", watched)
    settings = whole_networks.NetworkSettings(False, "cpu", "", 2, 8)
    whole_networks._compare(False, f"{networks}:norm", "f32", mode, settings, tmp_path / "table")
    assert seen == {(mode == "train", mode == "train")}


def test_bench_of_networks_compares_with_pytorchs_own(capsys: Capture, networks: str) -> None:
    command = ["bench", "--networks", f"{networks}:converted", "--device", "cpu"]
    assert main([*command, "--policy", "heuristic"]) == 1
    error = capsys.readouterr().err
    assert "of its modules 1 are this package's, such as itself, wanted PyTorch's alone" in error


def test_a_network_that_ends_the_process_is_an_error(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["import sys, torch", "make = sys.exit", "class Leaves(torch.nn.Conv2d):"]
    lines += ["    def forward(self, x): sys.exit(0)"]
    lines += ["def runs(): return Leaves(3, 4, 3)", "def half(): return runs().half()"]
    (tmp_path / "that_leaves.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    compare_here_and_briefly(monkeypatch)
    for name, command in (("make", "list"), ("runs", "list"), ("runs", "explain")):
        assert main([command, "--model", f"that_leaves:{name}", "--device", "cpu"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: that_leaves:{name} raised SystemExit")
    assert main(["bench", "--networks", "that_leaves:half", "--device", "cpu"]) == 1
    assert "its tensors are torch.float16, wanted torch.float32" in capsys.readouterr().err
