"""The command line: what it prints, its formats, and its complaints."""

import csv
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import pytest
import torch
from conftest import ROOT
from rich.console import Console

from torch_cudnn_ext import _C, __version__, is_enabled, nn, trace, tuning
from torch_cudnn_ext.analysis.tables import Column, Table, _print_rows
from torch_cudnn_ext.bench import layers, modules, overhead, rounds
from torch_cudnn_ext.bench import networks as whole_networks  # a fixture has the shorter name
from torch_cudnn_ext.cli import main, script
from torch_cudnn_ext.cli.running import ProgressBar

PROBLEM = "conv_fwd x=f32[2,4,8,8]:nchw w=f32[6,4,3,3]:nchw pad=1 stride=1 dilation=1 groups=1"
LINE = f"{PROBLEM} compute=f32"
ACTIVATION = "activation_fwd x=f32[100]:nchw kind=relu"
SEQUENCE = "conv_fwd x=f32[2,4,8]:nchw w=f32[6,4,3]:nchw"
Capture = pytest.CaptureFixture[str]


def _json(capsys: Capture, *arguments: str) -> dict[str, list[dict[str, object]]]:
    assert main([*arguments, "--format", "json"]) == 0
    result: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
    return result


def test_profile_of_one_line(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for text in (LINE, "aten:default", "cpu:im2col", "vs PyTorch", "* what the current policy"):
        assert text in out


def test_profile_rewrites_lines(capsys: Capture) -> None:
    arguments = ["--dtype", "f64", "--batch", "3", "--channels-last", "--passes", "bwd_data,fwd"]
    result = _json(capsys, "profile", PROBLEM, "--device", "cpu", *arguments)
    assert [layer["problem"] for layer in result["layers"]] == [
        f"{op} x=f64[3,4,8,8]:nhwc w=f64[6,4,3,3]:nhwc pad=1 stride=1 dilation=1 groups=1 "
        "compute=f64"
        for op in ("conv_bwd_data", "conv_fwd")
    ]


def test_formats(capsys: Capture) -> None:
    command = ["profile", PROBLEM, "--device", "cpu", "--format"]
    assert main([*command, "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert "aten:default" in {row["algorithm"] for row in rows}
    assert main([*command, "markdown"]) == 0
    assert "| aten:default |" in capsys.readouterr().out


def test_profile_of_a_model_of_ones_own(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_network.py").write_text(
        "import torch\n\n"
        "def make():\n"
        "    layers = torch.nn.Conv1d(3, 4, 3), torch.nn.ConvTranspose1d(4, 3, 3)\n"
        "    return torch.nn.Sequential(*layers), torch.randn(2, 3, 16)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = _json(
        capsys, "profile", "--model", "own_network:make", "--device", "cpu", "--passes", "fwd"
    )
    first, second = result["layers"]
    assert str(first["problem"]).startswith("conv_fwd x=f32[2,3,16]")
    assert str(second["problem"]).startswith("conv_bwd_data x=f32[2,3,16]")
    assert second["note"] == "fwd of ConvTranspose1d"


def test_profile_of_a_torchvision_model(capsys: Capture) -> None:
    pytest.importorskip("torchvision")
    command = ["profile", "--model", "resnet18", "--batch", "1", "--image-size", "32"]
    command += ["--passes", "fwd", "--device", "cpu", "--time-budget", "0.05"]
    result = _json(capsys, *command)
    counts: dict[str, list[int]] = {}
    for layer in result["layers"]:
        op = str(layer["problem"]).partition(" ")[0]
        counts.setdefault(op, []).append(int(str(layer["count"])))
    assert len(counts["conv_fwd"]) == 11
    totals = {op: sum(of_layers) for op, of_layers in counts.items()}
    assert totals["conv_fwd"] == 20
    assert totals["activation_fwd"] == 17
    assert totals["matmul_fwd"] == 1
    assert sum(totals.values()) == 60


def test_shard_and_resume(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("".join(PROBLEM.replace("x=f32[2", f"x=f32[{n}") + "\n" for n in range(1, 6)))
    finished = tmp_path / "finished.jsonl"
    command = ["profile", "--problems", str(file), "--device", "cpu", "--resume", str(finished)]
    part = _json(capsys, *command, "--shard", "2/2")
    assert len(part["layers"]) == 2
    whole = _json(capsys, *command)
    assert len(whole["layers"]) == 5
    assert [whole["layers"][i]["rows"] for i in (1, 3)] == [r["rows"] for r in part["layers"]]


def test_shards_measure_what_the_whole_measures(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    told, untold = PROBLEM, ACTIVATION
    command = ["profile", "--problems", str(file), "--target", "h200", "--time-budget", "0.01"]
    for lines, scaled in ([told, told.replace("pad=1", "pad=0")], True), ([told, untold], False):
        file.write_text("\n".join(lines))
        whole = _json(capsys, *command)["layers"]
        assert {layer["measured"] != layer["problem"] for layer in whole} == {scaled}
        for i, layer in enumerate(whole, 1):
            (part,) = _json(capsys, *command, "--shard", f"{i}/2")["layers"]
            assert part["measured"] == layer["measured"]


def test_top_and_all(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cpu", "--top", "1"]) == 0
    short = capsys.readouterr().out
    assert main(["profile", PROBLEM, "--device", "cpu", "--all", "--top", "0"]) == 0
    long = capsys.readouterr().out
    assert len(long.splitlines()) > len(short.splitlines())
    assert "more that work (--top 0 shows them); not shown: " in short
    assert "(--all shows them)" in short
    assert main(["profile", PROBLEM, "--device", "cpu", "--format", "markdown"]) == 0
    assert "(--all shows them)" in capsys.readouterr().out
    command = ["profile", PROBLEM, "--device", "cpu", "--format"]
    counts = []
    for top in ("1", "0"):
        assert main([*command, "markdown", "--top", top]) == 0
        counts.append(capsys.readouterr().out.count(" ok |"))
    assert counts[0] < counts[1] == 5
    assert main([*command, "csv"]) == 0  # what does not run too
    states = {row["status"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert {"ok", "excluded"} <= states


def test_a_networks_own_autocast_is_seen(capsys: Capture, networks: str) -> None:
    command = ["list", "--model", f"{networks}:autocast", "--device", "cpu", "--passes", "fwd"]
    (layer,) = _json(capsys, *command)["layers"]
    assert str(layer["problem"]).startswith("conv_fwd x=bf16[2,3,5,5]")


def test_a_network_need_not_take_a_batch_of_one(capsys: Capture, networks: str) -> None:
    command = ["profile", "--model", f"{networks}:pairs", "--target", "h200", "--passes", "fwd"]
    (layer,) = _json(capsys, *command)["layers"]
    assert "x=f32[2,3,5,5]" in str(layer["problem"]) and "x=f32[1,3,5,5]" in str(layer["measured"])


def test_a_proxy_of_another_network_is_not_resumed(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    options = ["--target", "h200", "--passes", "fwd", "--resume", str(tmp_path / "finished.jsonl")]
    results = [
        _json(capsys, "profile", "--model", f"{networks}:{name}", *options)["layers"]
        for name in ("of_8_and_4", "of_4_and_8", "of_8_and_4")
    ]
    assert len({str(layer["problem"]) for (layer,) in results}) == 1
    assert [str(layer["measured"]).split()[1][:12] for (layer,) in results] == [
        "x=f32[1,4,5]",
        "x=f32[1,8,5]",
        "x=f32[1,4,5]",
    ]
    assert results[0] == results[2]


def test_list_of_a_network(capsys: Capture, networks: str) -> None:
    command = ["list", "--model", f"{networks}:conv", "--device", "cpu", "--passes", "fwd"]
    (layer,) = _json(capsys, *command)["layers"]
    assert str(layer["problem"]).startswith("conv_fwd x=f32[2,3,5,5]")
    assert layer["rows"] == [] and layer["listed"]


def test_a_network_keeps_its_dtype(capsys: Capture, networks: str) -> None:
    for name in ("double", "double_of_images"):
        command = ["list", "--device", "cpu", "--passes", "fwd", "--model", f"{networks}:{name}"]
        command += ["--batch", "2"] if name == "double_of_images" else []
        for arguments, dtype in (([], "f64"), (["--dtype", "f16"], "f16")):
            (layer,) = _json(capsys, *command, *arguments)["layers"]
            assert str(layer["problem"]).startswith(f"conv_fwd x={dtype}[2,3,")
    for command in (["explain", "--no-measure"], ["coverage", "--backends", "aten", "--forward"]):
        assert main([*command, "--device", "cpu", "--model", f"{networks}:double"]) == 0


@pytest.mark.parametrize(
    ("network", "arguments", "message"),
    [
        (
            "conv",
            ["--batch", "3"],
            "--batch: got 3 with {}, which gives inputs of its own (2x3x5x5)",
        ),
        (
            "conv",
            ["--image-size", "6"],
            "--image-size: got 6 with {}, which gives inputs of its own",
        ),
        ("softmax", ["--channels-last"], "--channels-last: given with {}, which has no tensor"),
    ],
)
def test_options_that_a_network_does_not_follow_are_refused(
    capsys: Capture, networks: str, network: str, arguments: list[str], message: str
) -> None:
    name = f"{networks}:{network}"
    commands = [[command, "--model", name] for command in ("list", "explain", "coverage")]
    for command in (*commands, ["bench", "--networks", name]):
        assert main([*command, "--device", "cpu", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {message.format(name)}") and error.count("\n") == 1


def test_options_act_where_one_problem_follows_them(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n{ACTIVATION}\n{SEQUENCE}\n")
    command = ["list", "--problems", str(file), "--device", "cpu", "--batch", "3"]
    problems = [str(one["problem"]) for one in _json(capsys, *command, "--channels-last")["layers"]]
    assert ["x=f32[3,4,8,8]:nhwc", ACTIVATION.split()[1], "x=f32[3,4,8]:nchw"] == [
        problem.split()[1] for problem in problems
    ]


def test_a_torchvision_network_is_f32_by_default(capsys: Capture) -> None:
    pytest.importorskip("torchvision")
    command = ["list", "--model", "alexnet", "--device", "cpu", "--passes", "fwd", "--batch", "1"]
    for arguments, dtype in (([], "f32"), (["--dtype", "bf16"], "bf16")):
        layers = _json(capsys, *command, *arguments)["layers"]
        assert {str(layer["problem"]).split()[1].partition("[")[0] for layer in layers} == {
            f"x={dtype}"
        }


def test_passes_that_a_network_has_not_are_named(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    command = ["--device", "cpu", "--model", f"{networks}:conv", "--passes"]
    tune = ["tune", "--table", str(tmp_path / "table"), *command]
    for arguments in (["list", *command, "infer"], ["profile", *command, "infer"]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: --passes: ") and error.count("\n") == 1
        assert "Conv2d" in error and "got 'infer'" in error
    for passes, found in (("infer", "fwd"), ("bwd_data", "fwd,bwd_filter")):
        assert main([*tune, passes]) == 2
        error = (
            f"--passes: got '{passes}', wanted some that Conv2d meets on these inputs, {found}; "
        )
        assert capsys.readouterr().err.startswith(f"error: {error}")
    tune[tune.index(f"{networks}:conv")] = f"{networks}:norm"
    assert [row["problem"] for row in _json(capsys, *tune, "infer")["best"]] == [
        row["problem"] for row in _json(capsys, *tune, "fwd")["best"]
    ]


@pytest.mark.parametrize("command", ["list", "profile", "bench", "tune"])
def test_a_network_s_problems_follow_the_policy(
    capsys: Capture, networks: str, tmp_path: Path, command: str
) -> None:
    arguments = ["--model", f"{networks}:conv", "--device", "cpu", "--dtype", "f16"]
    arguments += ["--passes", "fwd", "--policy", "compute=f16"]
    arguments += ["--table", str(tmp_path / "table")] if command == "tune" else []
    main([command, *arguments])  # no algorithm of the CPU computes so, which some complain of
    said = capsys.readouterr()
    assert "compute=f16 bias=f16" in said.out + said.err


@pytest.mark.parametrize("passes", ["infer", "fwd", "infer,fwd"])
def test_a_network_infers_where_no_other_pass_is_asked_for(
    capsys: Capture, networks: str, passes: str
) -> None:
    command = ["list", "--model", f"{networks}:norm", "--device", "cpu", "--passes", passes]
    (layer,) = _json(capsys, *command)["layers"]
    assert str(layer["problem"]).startswith("batch_norm_infer")


def _compare_here_and_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has ``bench --networks`` start no process, and time one round."""
    monkeypatch.setattr(whole_networks, "_in_fresh_process", whole_networks._compare)
    monkeypatch.setattr(rounds, "ROUNDS", 1)
    monkeypatch.setattr(whole_networks, "SAMPLE_MS", 0.1)


@pytest.mark.parametrize("command", ["list", "coverage", "explain", "bench"])
def test_networks_of_any_rank_are_channels_last(
    capsys: Capture, networks: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{networks}:conv", f"{networks}:conv3d"]
    if command == "bench":
        _compare_here_and_briefly(monkeypatch)
        arguments = ["--networks", ",".join(names), "--policy", "backends=aten"]
        assert main([command, *arguments, "--device", "cpu", "--channels-last"]) == 0
        return
    for name in names:
        assert main([command, "--model", name, "--device", "cpu", "--channels-last"]) == 0
        out = capsys.readouterr().out
        if command != "coverage":
            assert ":nhwc w=f32[" in out and "]:nhwc pad=0" in out and "nchw" not in out


def test_list_times_nothing(capsys: Capture) -> None:
    result = _json(capsys, "list", PROBLEM, "--device", "cpu")
    (layer,) = result["layers"]
    assert layer["rows"] == []
    assert main(["list", PROBLEM, "--device", "cpu", "--policy", "backends=cpu"]) == 0
    out = capsys.readouterr().out
    assert "cpu:im2col" in out and "all 4 of aten" in out and "excluded" in out
    assert "all 32 of legacy" in out
    assert _C.table_export() == []


def test_info(capsys: Capture) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for text in (torch.__version__, "libcudnn.so.9", "target:h200", "graph", "legacy", "cpu"):
        assert text in out
    assert out.startswith(f"torch_cudnn_ext {__version__}\n")
    if not torch.cuda.is_available():  # there several do it by default
        assert main(["info", "--jobs", "2"]) == 0
        assert capsys.readouterr().out == out


def test_the_readme_holds_the_table_of_operators(capsys: Capture) -> None:
    for operator in _C.operators():
        described = [operator[key] for key in ("entry_points", "dtypes", "layouts", "examples")]
        assert all(described), operator["family"]
    assert main(["info", "--operators", "--jobs", "2"]) == 2
    capsys.readouterr()
    assert main(["info", "--operators"]) == 0
    table = capsys.readouterr().out
    readme = (ROOT / "README.md").read_text()
    shown = readme.partition("<!-- operators -->\n")[2].partition("<!-- end of operators -->")[0]
    if torch.cuda.is_available():  # a driver tells more of the engines that want one
        shown, table = (re.sub(r"graph \d+", "graph", text) for text in (shown, table))
    assert shown == table, "copy what `tools/run info --operators` prints into README.md"


def test_coverage(capsys: Capture) -> None:
    pytest.importorskip("torchvision")
    command = ["coverage", "--model", "resnet18", "--device", "cpu", "--batch", "2"]
    assert main([*command, "--image-size", "32", "--backends", "cpu", "--forward"]) == 0
    out = capsys.readouterr().out
    assert "conv 20 20 100.0%" in " ".join(out.split())
    assert "conv, " not in out
    assert out.startswith("calls, forward\n")


def test_bench(capsys: Capture) -> None:
    result = _json(capsys, "bench", PROBLEM, "--device", "cpu", "--time-budget", "0.5")
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
    result = _json(capsys, "bench", line, "--device", "cpu", "--time-budget", "0.1")
    assert result["comparisons"][0]["problem"] == line


def test_bench_refuses_what_pytorch_has_not_before_it_measures(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "measure_tasks", None)
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n{PROBLEM} mode=conv\n")
    assert main(["bench", "--problems", str(file), "--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("error: --problems: got mode in conv_fwd")


@pytest.mark.parametrize("option", ["--resume", "--table"])
def test_what_was_measured_is_printed_where_the_disk_is_full(
    option: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, kept = tmp_path / "lines.txt", tmp_path / "kept"
    smaller = LINE.replace("x=f32[2,", "x=f32[1,")
    file.write_text(f"{LINE}\n{smaller}\n")
    command = "profile" if option == "--resume" else "tune"
    arguments = [command, "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    assert main([*arguments, option, str(kept)]) == 0
    size = kept.stat().st_size
    kept.unlink()
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
        tuning.clear()
        assert main([*arguments, option, str(kept)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    shown = capsys.readouterr()
    assert LINE in shown.out and f"File too large: '{kept}'" in shown.err


def test_list_tells_what_was_not_listed(capsys: Capture, networks: str) -> None:
    assert main(["list", "--model", f"{networks}:followed", "--device", "cpu"]) == 0
    assert "aten.hardsigmoid x1" in capsys.readouterr().out


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_bench_of_layers_keeps_its_tuning_table(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    file, lines = tmp_path / "table.jsonl", tmp_path / "lines.txt"
    lines.write_text(f"{LINE}\n{LINE.replace('pad=1', 'pad=0')}\n")
    command = ["bench", "--problems", str(lines), "--device", "cpu", "--time-budget", "0.05"]
    command += ["--jobs", jobs, "--table", str(file)]
    wanted = [row["algorithm"] for row in _json(capsys, *command)["comparisons"]]
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
    assert [row["algorithm"] for row in _json(capsys, *command)["comparisons"]] == wanted
    assert not measured and file.read_text() == kept
    lines.write_text(f"{lines.read_text()}{LINE.replace('pad=1', 'pad=2')}\n")
    assert len(_json(capsys, *command)["comparisons"]) == 3
    assert [task.problem for task in measured] == [LINE.replace("pad=1", "pad=2")]
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_bench_compares_what_the_policy_chooses(capsys: Capture, tmp_path: Path, jobs: str) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n{LINE.replace('pad=1', 'pad=0')}\n")
    command = ["bench", "--problems", str(file), "--device", "cpu", "--jobs", jobs]
    for policy in ("heuristic", "fwd=cpu:fft", "cpu:direct;prefer=gpu_time"):
        chosen = _C.decide(LINE, "cpu", policy)["algorithm"]
        rows = _json(capsys, *command, "--policy", policy)["comparisons"]
        assert [row["algorithm"] for row in rows] == [chosen, chosen]
    assert tuning.entries() == []  # nothing was tuned
    file.write_text(f"{LINE}\n{LINE.replace('8,8]', '64,64]')}\n")
    assert main([*command, "--policy", "fwd=cpu:im2col;max_workspace=64KiB"]) == 1
    shown = capsys.readouterr()
    assert LINE in shown.out
    assert "error: bench: no algorithm works under" in shown.err
    assert shown.err.count("cpu:im2col: excluded by max_workspace=65536") == 1
    assert "aten:default" not in shown.err


def test_a_policy_is_of_the_family_of_all_problems(capsys: Capture, networks: str) -> None:
    norm = "batch_norm_fwd x=f16[4,8,49]:nhwc"
    assert main(["list", norm, "--device", "cpu", "--policy", "legacy:spatial_persistent"]) == 0
    assert norm in capsys.readouterr().out
    for source in (["softmax_fwd x=f32[2,3,4]:nchw"], ["--model", f"{networks}:softmax"]):
        command = ["profile", *source, "--device", "cpu", "--time-budget", "0.1"]
        layers = _json(capsys, *command, "--policy", "cpu:online")["layers"]
        assert {layer["current"] for layer in layers} == {"cpu:online"}
        assert main([*command, "--policy", "cpu:im2col"]) == 2
        assert "--policy: got 'cpu:im2col' for softmax_fwd, wanted" in capsys.readouterr().err


def test_a_policy_holds_for_problems_of_all_families(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "problems.txt"
    file.write_text(f"{LINE}\npool_fwd x=f32[1,2,4,4]:nchw window=2\n")
    command = ["--problems", str(file), "--device", "cpu", "--policy", "autotune;prefer=gpu_time"]
    layers = _json(capsys, "profile", *command, "--time-budget", "0.1")["layers"]
    assert [str(layer["problem"]).partition(" ")[0] for layer in layers] == ["conv_fwd", "pool_fwd"]
    for layer in layers:
        assert layer["current"] == layer["rows"][0]["algorithm"]  # what tuning puts first
    # Another single word is convolution's.
    command[-1] = "cpu:im2col"
    layers = _json(capsys, "profile", *command, "--time-budget", "0.1")["layers"]
    assert [layer["current"] for layer in layers] == ["cpu:im2col", "aten:default"]
    assert main(["list", *command]) == 0


@pytest.mark.parametrize("case", modules.CASES + modules.MIXED, ids=lambda c: c.text)
def test_modules_of_bench_can_be_made(case: modules.Case) -> None:
    with torch.device("meta"):
        module = getattr(nn, case.module)(**case.arguments)
        assert module(torch.empty(case.sizes)) is not None


def test_bench_of_modules(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    case = modules.Case("softmax", "Softmax", {"dim": 1}, (2, 3, 4, 4))
    monkeypatch.setattr(modules, "CASES", (case,))
    arguments = ("bench", "--modules", "all", "--dtype", "f32", "--device", "cpu")
    rows = _json(capsys, *arguments)["comparisons"]
    assert [row["pass_name"] for row in rows] == ["fwd", "bwd"]
    assert all(row["module"] == case.text and row["ratio"] > 0 for row in rows)  # type: ignore[operator]
    assert main([*arguments, "--channels-last", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count(",nhwc,") == 2
    monkeypatch.setattr(modules, "MIXED", (case, case))
    rows = _json(capsys, "bench", "--modules", "mixed", *arguments[3:])["comparisons"]
    assert len(rows) == 4
    assert main(["bench", "--modules", "Convolutions", "--device", "cpu"]) == 2
    assert main([*arguments[:3], "--dtype", "f8", "--device", "cpu"]) == 2


def test_bench_of_modules_beside_compiled_ones(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    cases = (
        modules.Case("batch_norm", "BatchNorm2d", {"num_features": 3}, (2, 3, 4, 4)),
        modules.Case("layer_norm", "GroupNorm", {"num_groups": 2, "num_channels": 4}, (2, 4, 4, 4)),
        modules.Case("rnn", "GRU", {"input_size": 3, "hidden_size": 2}, (4, 2, 3)),
    )
    monkeypatch.setattr(modules, "CASES", cases)
    arguments = ("bench", "--modules", "all", "--dtype", "f32,f16", "--device", device)
    # All of them are compiled, none runs as it is because of those before.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=2):
        rows = _json(capsys, *arguments, "--compiled")["comparisons"]
    passes = [
        (row["dtype"], row["module"].partition("(")[0], row["pass_name"])  # type: ignore[index]
        for row in rows
    ]
    assert passes == [
        (dtype, module, word)
        for module in ("BatchNorm2d", "GroupNorm", "GRU")
        for dtype in ("f32", "f16")
        for word in ("fwd", "bwd", *(["fwd+bwd"] if module == "GRU" else []))
    ]
    assert all(row["compiled_ms"] > 0 for row in rows)  # type: ignore[operator]


def test_interrupted_bench_of_modules_counts_every_pass(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = (
        modules.Case("softmax", "Softmax", {"dim": 1}, (2, 3)),
        modules.Case("rnn", "GRU", {"input_size": 3, "hidden_size": 2}, (4, 2, 3)),
    )
    monkeypatch.setattr(modules, "CASES", cases)

    def interrupt(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(modules, "_training", interrupt)
    command = ["bench", "--modules", "all", "--dtype", "f32", "--device", "cpu"]
    assert main(command) == 130
    assert "interrupted: 4 of 5 problems were finished" in capsys.readouterr().err


def test_bench_of_modules_keeps_its_constraints(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = modules.Case("softmax", "Softmax", {"dim": 1}, (2, 3, 4, 4))
    monkeypatch.setattr(modules, "CASES", (case,))
    ran: list[str] = []
    backward = modules._backward

    def watched(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
        ran.append(str(getattr(module, "policy", "")))
        return backward(module, x)

    monkeypatch.setattr(modules, "_backward", watched)
    command = ["bench", "--modules", "Soft", "--dtype", "f32", "--device", "cpu"]
    constraints = ["--max-workspace", "1MiB", "--deterministic", "--no-allow-tf32"]
    assert main([*command, *constraints]) == 0, capsys.readouterr().err
    words = "fwd=autotune;bwd=autotune;max_workspace=1MiB;prefer=gpu_time"
    assert ran[0] == f"{words};deterministic;allow_tf32=false"
    switches: Any = torch.backends.cudnn
    assert switches.rnn.fp32_precision == switches.conv.fp32_precision == "ieee"
    # A policy is read for the modules' family.
    assert main([*command, "--policy", "bwd=aten:default"]) == 0, capsys.readouterr().err
    assert main([*command, "--policy", "bwd=guess_once"]) == 2
    assert "--policy: softmax_bwd is guess_once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "option"),
    [
        ("deterministic=false", "--deterministic"),
        ("allow_tf32=false", "--allow-tf32"),
        ("allow_tf32", "--no-allow-tf32"),
    ],
)
def test_a_policy_and_an_option_that_contradict(policy: str, option: str, capsys: Capture) -> None:
    line = "softmax_fwd x=f32[2,3,1]:nchw"
    command = ["list", line, "--device", "cpu", "--policy", policy, option]
    assert main(command) == 2
    name, _, value = policy.partition("=")
    told = f"--policy: got {name}={value or 'true'} together with {option}, wanted one of them"
    assert told in " ".join(capsys.readouterr().err.split())


def test_bench_of_a_network_takes_its_convolutions(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    assert main(["bench", "--model", f"{networks}:softmax", "--device", "cpu"]) == 2
    assert "--model: got softmax_fwd, softmax_bwd, wanted a conv" in capsys.readouterr().err
    file = tmp_path / "lines.txt"
    file.write_text(f"softmax_fwd x=f32[2,3,4]:nchw\n{PROBLEM}\n")
    command = ["bench", "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    assert len(_json(capsys, *command, "--shard", "1/2")["comparisons"]) == 1


def test_bench_of_unmodified_networks(capsys: Capture, networks: str) -> None:
    name = f"{networks}:conv"
    command = ["bench", "--networks", name, "--device", "cpu", "--policy", "backends=aten"]
    rows = _json(capsys, *command, "--dtype", "f32,bf16")["comparisons"]
    settings = [(row["network"], row["precision"], row["mode"]) for row in rows]
    assert settings == [(name, p, mode) for p in ("f32", "bf16") for mode in ("train", "infer")]
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
    _compare_here_and_briefly(monkeypatch)
    names = f"{networks}:conv,{networks}:{second}"
    command = ["bench", "--networks", names, "--device", "cpu", "--policy", "backends=aten"]
    assert main([*command, "--format", "csv"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count(f"{networks}:conv,2,") == 2
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

    monkeypatch.setattr(whole_networks, "_step", watched)
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
    _compare_here_and_briefly(monkeypatch)
    tuned: list[float] = []

    def watched(*_: Any, time_budget_s: float, **__: Any) -> None:
        tuned.append(time_budget_s)

    monkeypatch.setattr(tuning, "tune_model", watched)
    command = ["bench", "--networks", f"{networks}:conv", "--device", "cpu"]
    assert len(_json(capsys, *command, *options)["comparisons"]) == 2
    assert tuned == 2 * budgets  # a training step, and inference


def test_bench_of_networks_keeps_its_choices(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    file = tmp_path / "table.jsonl"
    command = ["bench", "--networks", f"{networks}:conv", "--device", "cpu", "--jobs", "2"]
    command += ["--policy", "autotune;backends=aten,cpu", "--table", str(file)]
    assert len(_json(capsys, *command)["comparisons"]) == 2
    tuned = file.read_text()
    ops = {json.loads(line)["problem"].split()[0] for line in tuned.splitlines()}
    assert {"conv_fwd", "conv_bwd_data", "conv_bwd_filter"} & ops
    command[command.index("--jobs") + 1] = "1"
    _json(capsys, *command)
    assert sorted(file.read_text().splitlines()) == sorted(tuned.splitlines())  # nothing anew


def test_tune_keeps_rankings_in_a_file(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    command = ["tune", "--table", str(file), "--device", "cpu", "--time-budget", "0.1"]
    (best,) = _json(capsys, *command, PROBLEM)["best"]
    assert best["problem"] == LINE and float(str(best["median_ms"])) > 0
    kept = file.read_text()
    assert main([*command, PROBLEM]) == 0  # as after Ctrl-C: what is there is not measured again
    assert "1 of 1 problems were in" in capsys.readouterr().out and file.read_text() == kept
    tuning.reset()
    problems = tmp_path / "lines.txt"
    problems.write_text(f"{LINE}\nsoftmax_fwd x=f32[2,3,4]:nchw log=false\n")
    rows = _json(capsys, *command, "--problems", str(problems), "--jobs", "2", "--deterministic")
    assert [row["problem"] for row in rows["best"]] == problems.read_text().splitlines()
    tuning.reset()
    assert tuning.import_table(file) == 3  # one of them under other constraints
    torch.backends.cudnn.deterministic = False  # which the command set in its process
    choice = _C.decide(PROBLEM, "cpu", "autotune")
    assert (choice["algorithm"], choice["why"]) == (best["algorithm"], "cached")


def test_tune_of_a_network_takes_what_enable_meets(
    capsys: Capture, tmp_path: Path, networks: str
) -> None:
    command = ["tune", "--model", f"{networks}:functions", "--device", "cpu"]
    command += ["--table", str(tmp_path / "table"), "--time-budget", "0.05"]

    def ops(*arguments: str) -> list[str]:
        rows = _json(capsys, *command, *arguments)["best"]
        return [str(row["problem"]).partition(" ")[0] for row in rows]

    forward, backward = ["conv_fwd", "pool_fwd", "softmax_fwd"], ["softmax_bwd", "conv_bwd_filter"]
    assert ops() == [*forward, *backward]  # a pooling's gradient has its forward's algorithm
    network, inputs = resolve_name(f"{networks}:functions")()
    known = tuning.tune_model(network, inputs, policy="autotune", time_budget_s=0.05)
    assert known == {}
    assert ops("--passes", "fwd") == forward
    assert ops("--passes", "bwd_filter") == ["conv_bwd_filter"]
    assert ops("--shard", "2/2") == ["pool_fwd", "softmax_bwd"]
    command[2] = f"{networks}:softmax"
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "--model: no tensor of the model's output" in message
    assert "or --passes fwd" in message
    assert ops("--passes", "fwd") == ["softmax_fwd"]


@pytest.mark.parametrize("command", ["profile", "list", "tune"])
def test_networks_that_do_not_run_on_the_meta_device(
    capsys: Capture, networks: str, tmp_path: Path, command: str
) -> None:
    arguments = ["--device", "cpu", "--passes", "fwd", "--model"]
    arguments[:0] = ["--table", str(tmp_path / "table")] if command == "tune" else []
    for name in ("branching", "lazy"):
        assert main([command, *arguments, f"{networks}:{name}"]) == 0, capsys.readouterr().err
        assert "conv_fwd x=f32[2,3,5,5]" in capsys.readouterr().out
    if command != "tune":
        name = f"{networks}:picky"
        assert main([command, *arguments, name]) == 1
        assert capsys.readouterr().err == (
            f"error: on the meta device {name} raised ValueError: meta; "
            f"then on cpu {name} raised ValueError: cpu\n"
        )


def test_tune_prints_the_same_whatever_is_known(capsys: Capture, tmp_path: Path) -> None:
    command = ["tune", "--table", str(tmp_path / "table"), "--device", "cpu"]
    command += ["--time-budget", "0.1", "softmax_fwd x=f32[2,3,4]:nchw", "--format"]
    assert main([*command, "csv"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("\n") == 2
    assert main([*command, "csv"]) == 0  # now all is known
    assert capsys.readouterr().out == shown
    assert main([*command, "markdown"]) == 0
    assert "\n\n" in (out := capsys.readouterr().out) and not out.endswith("\n\n")


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (layers.comparison_text, "problem,names,count,"),
        (overhead.overhead_text, "problem,algorithm,pinned,"),
        (modules.comparison_text, "family,module,"),
        (whole_networks.comparison_text, "network,batch,"),
    ],
)
def test_bench_without_rows_has_a_header(text: Callable[..., str], fields: str) -> None:
    shown = text([], "csv")
    assert shown.startswith(fields) and shown.count("\n") == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_tune_prints_and_keeps_what_was_finished(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: str
) -> None:
    choices, file = tmp_path / "table.jsonl", tmp_path / "lines.txt"
    lines = [LINE, LINE.replace("pad=1", "pad=0"), LINE.replace("pad=1", "pad=2")]
    file.write_text("\n".join(lines))
    command = ["tune", "--problems", str(file), "--table", str(choices), "--device", "cpu"]
    command += ["--time-budget", "0.1", "--jobs", jobs, "--format", "csv"]

    def stop(bar: object, done: int, total: int, text: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressBar, "problem", stop)
        assert main(command) == 130
    shown = capsys.readouterr()
    finished = "[123]" if jobs == "2" else "1"  # other jobs may have finished meanwhile
    assert re.search(f"interrupted: {finished} of 3 problems were finished", shown.err)
    assert lines[0] in shown.out and (jobs == "2" or lines[1] not in shown.out)
    assert lines[0] in choices.read_text()
    # Nor is it lost to a problem that no algorithm takes.
    small = "softmax_fwd x=f32[2,3,4]:nchw log=false"
    file.write_text(f"{small}\n{LINE.replace('8,8', '64,64')}\n")
    assert main([*command, "--policy", "backends=aten", "--max-workspace", "1KiB"]) == 1
    shown = capsys.readouterr()
    assert small in shown.out and "error: tune: no algorithm works" in shown.err
    assert " and 35 more: excluded by backends=aten" in shown.err


def test_a_file_of_the_tuning_table_is_checked_first(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "tune", None)
    monkeypatch.setattr(whole_networks, "compare_networks", None)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("nonsense")
    for command in (["tune", PROBLEM], ["bench", "--networks", "alexnet"]):
        for path, text in (
            (damaged, "line 1: "),
            (tmp_path, "Is a directory"),
            (Path("/dev/null"), "Not a regular file: '/dev/null'"),
            (tmp_path / "none" / "table", f"No such file or directory: '{tmp_path}/none/tabl"),
        ):
            assert main([*command, "--device", "cpu", "--table", str(path)]) == 2
            error = capsys.readouterr().err
            assert error.startswith("error: --table: ") and text in error
    assert damaged.read_text() == "nonsense"


def test_bench_of_networks_keeps_what_was_tuned_before_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, networks: str, tmp_path: Path
) -> None:
    def stop(problems: list[str], device: str, **_: object) -> None:
        _C.measure(problems[0], device, time_budget_s=0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules[tuning.tune.__module__], "tune", stop)
    settings = whole_networks.NetworkSettings(False, "cpu", "", 2, 8, jobs=2)
    table = tmp_path / "table.jsonl"
    with pytest.raises(KeyboardInterrupt):
        whole_networks._compare(False, f"{networks}:conv", "f32", "infer", settings, table)
    assert table.read_text().startswith('{"problem": "conv_fwd')


def test_profile_prints_what_was_kept(capsys: Capture, tmp_path: Path) -> None:
    file, other = tmp_path / "table.jsonl", LINE.replace("pad=1", "pad=0")
    tuning.tune([LINE, other], device="cpu", policy="max_workspace=1GiB", time_budget_s=0.1)
    entries = {entry["problem"]: entry for entry in tuning.entries()}
    tuning.export_table(file)
    file.write_text(file.read_text().replace(entries[LINE]["device"], "another device"))
    tuning.clear()
    kept = _json(capsys, "profile", "--table", str(file))
    assert (kept["settings"], kept["versions"]) == (None, None)
    layers = kept["layers"]
    assert {str(layer["problem"]): layer["rows"] for layer in layers} == {
        line: entry["measurements"] for line, entry in entries.items()
    }
    assert main(["profile", "--table", str(file), PROBLEM]) == 0
    shown = capsys.readouterr().out
    assert "measured on another device" in shown and "under max_workspace=" in shown
    assert "aten:default" in shown and other not in shown and "heuristic" not in shown
    assert tuning.entries() == []
    assert main(["profile", "--table", str(file), LINE.replace("pad=1", "pad=2")]) == 2
    assert "problem line: got" in capsys.readouterr().err
    assert main(["profile", "--table", str(file), "--batch", "2"]) == 2
    assert "--batch: got 2 with --table, which takes no more than" in capsys.readouterr().err
    assert main(["profile", "--table", str(tmp_path / "none")]) == 2
    assert "--table: " in capsys.readouterr().err
    assert main(["profile", "--table", str(file), "--batch", "3"]) == 2
    assert "no more than a problem line, --all, --top, --format" in capsys.readouterr().err
    file.write_text("")
    assert main(["profile", "--table", str(file)]) == 2
    assert f"--table: got '{file}', which holds no rankings" in capsys.readouterr().err
    file.write_text("[" * 100_000)
    assert main(["profile", "--table", str(file)]) == 2
    assert f"--table: {file}, line 1: " in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


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


def test_a_cap_is_among_the_settings_of_a_list(capsys: Capture) -> None:
    found = _json(capsys, "list", LINE, "--target", "h200", "--max-workspace", "1%")["settings"]
    assert found["policy"] == "max_workspace=1%"
    assert found["max_workspace_bytes"] == _C.workspace_cap("max_workspace=1%", "target:h200")


@pytest.mark.parametrize("command", ["profile", "bench"])
def test_jobs_measure_the_same(capsys: Capture, tmp_path: Path, command: str) -> None:
    file = tmp_path / "lines.txt"
    lines = [LINE, LINE.replace("pad=1", "pad=0")]
    file.write_text("\n".join(lines))
    words = [command, "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    resume = str(tmp_path / "finished.jsonl")
    found = _json(capsys, *words, "--jobs", "2", "--resume", resume)
    key = {"profile": "layers", "bench": "comparisons"}[command]
    assert [row["problem"] for row in found[key]] == lines
    assert _json(capsys, *words, "--jobs", "2", "--resume", resume) == found  # as kept


def test_bench_of_networks_waits_for_the_gpu_that_it_runs_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    sample = whole_networks._timer(lambda: None, nullcontext, "cuda:1")
    assert sample() >= 0 and set(waited) == {"cuda:1"}


def test_bench_overhead(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "ROUNDS", 2)
    monkeypatch.setattr(overhead, "CALLS", 3)
    rows = _json(capsys, "bench", "--overhead", "--device", "cpu")["overhead"]
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile"], "got none of them, wanted one of a problem line, --model, --problems"),
        (["profile", PROBLEM, "--model", "resnet18"], "wanted one of a problem line"),
        (["profile", "nonsense"], "problem line: "),
        (["profile", "--problems", "nothing"], "--problems: got 'nothing', wanted a file"),
        (["profile", "--model", "nothing"], "--model: got 'nothing', wanted module:callable"),
        (["profile", "--model", "nothing:made"], "--model: got 'nothing:made', wanted module"),
        (["profile", PROBLEM, "--dtype", "f8"], "--dtype: got 'f8', wanted one of f64, f32"),
        (["profile", PROBLEM, "--passes", "up"], "--passes: got 'up', wanted some of fwd,"),
        (["profile", PROBLEM, "--shard", "3/2"], "--shard: got '3/2', wanted i/n"),
        (["profile", PROBLEM, "--device", "tpu"], "--device: got 'tpu', wanted 'cpu'"),
        (["profile", PROBLEM, "--target", "z80"], "--target: no target 'z80', wanted one of h2"),
        (["profile", PROBLEM, "--policy", "zork=1"], "--policy: "),
        (
            ["profile", PROBLEM, "--policy", "softmax=cpu:online"],
            "--policy: got a policy for softmax_bwd, softmax_fwd, wanted one for conv_fwd",
        ),
        (
            ["bench", PROBLEM, "--policy", "bwd_data=cpu:im2col"],
            "--policy: got a policy for conv_bwd_data, wanted one for conv_fwd",
        ),
        (["profile", PROBLEM, "--max-workspace", "lots"], "--max-workspace: "),
        (["profile", PROBLEM, "--format", "tex"], "--format: got 'tex', wanted one of 'table', '"),
        (["profile", PROBLEM, "--passes", "infer"], "--passes: conv has fwd,bwd_data,bwd_filter"),
        (
            ["list", "softmax_fwd x=f32[2,3,4]:nchw", "--channels-last"],
            "--channels-last: given with softmax_fwd",
        ),
        (["list", PROBLEM, "--device", "cpu", "--target", "h200"], "--target: got 'h200' with --d"),
        (["profile", PROBLEM, "--policy", "compute=f64"], "--policy: got 'compute=f64' with probl"),
        (["list", "conv_fwd \udcff"], "got the argument 'conv_fwd \\udcff', wanted UTF-8"),
        (["list", "--problems", "/dev/zero"], "--problems: [Errno 22] Not a regular file"),
        (["profile", PROBLEM, "--resume", "/dev/null"], "--resume: [Errno 22] Not a regular file"),
        (["list", PROBLEM + " pad=1"], "the key 'pad' is out of order, or given before"),
        (
            ["list", "rnn_fwd cell=lstm x=f32[2,3,4]:nchw hidden=4 layers=20000"],
            "wanted 1 to 10000",
        ),
        (
            ["list", "conv_fwd x=f32[2,3,8,8]:nchw w=f32[4,3,3,3]:nchw pad=999999999999"],
            "wanted less than 10",
        ),
        (["list", PROBLEM, "--batch", "9" * 20], "--batch: got '99999999999999999999', wanted at "),
        (["list", PROBLEM, "--image-size", "32"], "--image-size: got 32 without --model, wanted"),
        (["profile", PROBLEM, "--max-workspace", "1;deterministic"], "--max-workspace: got '1;d"),
        (["list", PROBLEM, "--max-workspace", "1;deterministic"], "--max-workspace: got '1;d"),
        (["profile", PROBLEM, "--policy", "guess_once"], "--policy: conv_bwd_data is guess_once"),
        (["profile", PROBLEM, "--policy", "cpu:online"], "--policy: got 'cpu:online' for conv_fwd"),
        (
            ["explain", "--model", "x", "--policy", "cpu:x"],
            "--policy: got 'cpu:x' for conv_fwd, wa",
        ),
        (
            ["profile", "--model", "x", "--policy", "compute=x"],
            "--policy: compute is 'x', wanted one of",
        ),
        (
            ["tune", PROBLEM, "--table", "x", "--policy", "fwd=cpu:fft"],
            "--policy: got the choice 'conv_fwd=cpu:fft', wanted constraints alone, or autotune",
        ),
        (
            ["tune", PROBLEM, "--table", "x", "--policy", "heuristic"],
            "--policy: got the choice 'heuristic', wanted constraints alone, or autotune",
        ),
        (["profile", PROBLEM, "--resume", "/nowhere/x"], "--resume: [Errno 2]"),
        (["profile", PROBLEM, "--batch", "few"], "--batch: got 'few', wanted a whole number, 1"),
        (["profile", PROBLEM, "--batch", "0"], "--batch: got '0', wanted a whole number, 1 or m"),
        (["profile", PROBLEM, "--image-size", "0"], "--image-size: got '0', wanted a whole num"),
        (["profile", PROBLEM, "--top", "-1"], "--top: got '-1', wanted a whole number, 0 or more"),
        (
            ["profile", PROBLEM, "--top", "3", "--format", "csv"],
            "--top: got 3 with --format csv, which holds every row",
        ),
        (
            ["profile", PROBLEM, "--all", "--format", "json"],
            "--all: given with --format json, which holds every row",
        ),
        (["profile", "--table", "x", "--top", "3", "--format", "json"], "--top: got 3 with --fo"),
        (["profile", PROBLEM, "--time-budget", "nan"], "--time-budget: got 'nan', wanted a numb"),
        (["profile", PROBLEM, "--time-budget", "inf"], "--time-budget: got 'inf', wanted a numb"),
        (["coverage", "--model", "x", "--backends", "foo"], "--backends: got 'foo', wanted one"),
        (["coverage", "--model", "x", "--backends", ""], "--backends: got '', wanted one of cudnn"),
        (["coverage", "--model", "x", "--device", "gpu"], "--device: got 'gpu', wanted 'cpu'"),
        (["explain", "--model", "x", "--device", "gpu"], "--device: got 'gpu', wanted 'cpu'"),
        (["explain", "--model", "x", "--dtype", "f8"], "--dtype: got 'f8', wanted one of f64"),
        (["explain", "--model", "x", "--policy", "guess_once"], "--policy: conv_bwd_data is guess"),
        (
            ["bench", "softmax_fwd x=f32[2,3,4]:nchw"],
            "problem line: got softmax_fwd, wanted a conv",
        ),
        (["bench", PROBLEM, "--compiled"], "--compiled: got it without --modules"),
        (["bench", PROBLEM, "--resume", "x", "--table", "./x"], "--table: got './x', the file"),
        (["bench", "--overhead", "--table", "x"], "--table: got 'x' with --overhead"),
        (
            ["bench", "--overhead", "--no-allow-tf32"],
            "--no-allow-tf32: given with --overhead, which takes no more than",
        ),
        (["bench", "--overhead", "--allow-tf32"], "--allow-tf32: given with --overhead"),
        (
            ["profile", "--table", "x", "--deterministic"],
            "--deterministic: given with --table, which takes no more than",
        ),
        (["bench", PROBLEM, "--kernels"], "--kernels: given on cpu, which runs no GPU kernels"),
        (["bench", PROBLEM, "--knob-search"], "--knob-search: given on cpu, whose algorithms"),
        (["profile", PROBLEM, "--knob-search"], "--knob-search: given on cpu, whose algorithms"),
        (["tune", PROBLEM, "--table", "x", "--knob-search"], "--knob-search: given on cpu"),
        (["list", ACTIVATION, "--batch", "3"], "--batch: got 3 with activation_fwd, wanted prob"),
        (["bench", f"{PROBLEM} mode=conv"], "problem line: got mode in conv_fwd"),
        (["list", ACTIVATION, "--channels-last"], "--channels-last: given with activation_fwd"),
        (["list", SEQUENCE, "--channels-last"], "--channels-last: given with conv_fwd, none"),
        (["bench", PROBLEM, "--jobs", "0"], "--jobs: got '0', wanted a whole number, 1 or more"),
        (["tune", PROBLEM], "Missing option '--table'"),
        (["bench", "--overhead", "--shard", "9/1"], "--shard: got '9/1' with --overhead, which"),
        (["bench", "--overhead", "--resume", "x"], "--resume: got 'x' with --overhead, which"),
        (["bench", "--overhead", "--modules", "all"], "--modules: got 'all' with --overhead"),
        (["bench", "--networks", "nope"], "--networks: got 'nope', wanted module:callable or one"),
        (["bench", "--networks", "resnet18", "--dtype", "f8"], "--dtype: got 'f8', wanted one of"),
        (
            ["bench", "--networks", "resnet18", "--shard", "1/2"],
            "--shard: got '1/2' with --networks",
        ),
        (["bench", "--modules", "all", PROBLEM], f"a problem line: got '{PROBLEM}' with --mod"),
        (["bench", "--modules", "all", "--shard", "x"], "--shard: got 'x' with --modules, which"),
        (["bench", "--modules", "all", "--problems", "x"], "--problems: got 'x' with --modules"),
        (["bench", "--modules", "all", "--resume", "/x"], "--resume: got '/x' with --modules"),
        (["bench", "--modules", "all", "--knob-search"], "--knob-search: given with --modules"),
        (["bench", "--modules", ""], "--modules: got '', wanted all, mixed or words of"),
        (["bench", "--modules", "Pool,"], "--modules: got 'Pool,', wanted all, mixed or words of"),
        (["bench", "--modules", "Pool,Nope"], "--modules: got 'Pool,Nope', wanted all, mixed or"),
        (["bench", "--modules", "LSTM", "--channels-last"], "--modules: got 'LSTM' with --chan"),
        (["bench", "--modules", "Softmax", "--dtype", "f32,"], "--dtype: got '', wanted one of"),
        (["bench", "--modules", "Softmax", "--policy", "fwd=winograd"], "--policy: algorithm 'w"),
        (["bench", "--modules", "Softmax", "--max-workspace", "1;deterministic"], "got '1;det"),
        (["profile", PROBLEM, "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_input_is_one_clear_line(capsys: Capture, arguments: list[str], message: str) -> None:
    if not {"--device", "--target"} & set(arguments) and arguments[0] != "nonsense":
        arguments = [*arguments, "--device", "cpu"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of networks that give trouble."""
    name = f"networks_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\n\n"
        "class Ending(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.to(next(self.parameters()).dtype)\n\n"
        "def ending():\n"
        "    return Ending(), torch.randn(2, 3)\n\n"
        "class Failing(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise KeyError('inside')\n\n"
        "def without_attribute():\n"
        "    return torch.nn.Nothing()\n\n"
        "def without_module():\n"
        "    import nothing_of_this_name\n\n"
        "number = 3\n\n"
        "def unmade():\n"
        "    raise KeyError('made')\n\n"
        "def failing():\n"
        "    return Failing(), torch.randn(2, 3)\n\n"
        "def foreign():\n"
        "    return torch.nn.Hardsigmoid(), torch.randn(2, 3)\n\n"
        "def conv():\n"
        "    return torch.nn.Conv2d(3, 4, 3), torch.randn(2, 3, 5, 5)\n\n"
        "def followed():\n"
        "    return torch.nn.Sequential(conv()[0], torch.nn.Hardsigmoid()), conv()[1]\n\n"
        "def unfit():\n"
        "    return torch.nn.Conv2d(3, 4, 3), torch.randn(2, 5, 5, 5)\n\n"
        "def converted():\n"
        "    import torch_cudnn_ext\n"
        "    return torch_cudnn_ext.convert(conv()[0], policy='autotune'), conv()[1]\n\n"
        "def scripted():\n"
        "    return torch.jit.script(conv()[0]), conv()[1]\n\n"
        "def double():\n"
        "    return torch.nn.Conv2d(3, 4, 3).double(), torch.randn(2, 3, 5, 5).double()\n\n"
        "def double_of_images():\n"
        "    return double()[0]\n\n"
        "def conv3d():\n"
        "    return torch.nn.Conv3d(3, 4, 3), torch.randn(2, 3, 5, 5, 5)\n\n"
        "def norm():\n"
        "    return torch.nn.BatchNorm2d(3), torch.randn(2, 3, 5, 5)\n\n"
        "def softmax():\n"
        "    return torch.nn.Softmax(1), torch.randn(2, 3)\n\n"
        "class Autocast(torch.nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        with torch.autocast('cpu', torch.bfloat16):\n"
        "            return super().forward(x)\n\n"
        "def autocast():\n"
        "    return Autocast(conv()[0]), conv()[1]\n\n"
        "class Pairs(torch.nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        assert len(x) % 2 == 0\n"
        "        return super().forward(x)\n\n"
        "def pairs():\n"
        "    return Pairs(conv()[0]), conv()[1]\n\n"
        "def of_8_and_4():\n"
        "    return torch.nn.Linear(5, 5), torch.randn(8, 4, 5)\n\n"
        "def of_4_and_8():\n"
        "    return torch.nn.Linear(5, 5), torch.randn(4, 8, 5)\n\n"
        "class Functions(torch.nn.Conv2d):\n"
        "    def forward(self, x):\n"
        "        x = torch.nn.functional.conv2d(x, self.weight)\n"
        "        return torch.softmax(torch.nn.functional.max_pool2d(x, 2), 1)\n\n"
        "def functions():\n"
        "    return Functions(3, 4, 2, bias=False), torch.randn(2, 3, 5, 5)\n\n"
        "class Branching(torch.nn.Sequential):\n"
        "    def forward(self, x):\n"
        "        return super().forward(x if x.sum() > 0 else -x)\n\n"
        "def branching():\n"
        "    return Branching(torch.nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 5, 5)\n\n"
        "def lazy():\n"
        "    return torch.nn.LazyConv2d(4, 3), torch.randn(2, 3, 5, 5)\n\n"
        "class Picky(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise ValueError(x.device.type)\n\n"
        "def picky():\n"
        "    return Picky(), torch.randn(2, 3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("command", ["profile", "bench", "coverage", "explain"])
def test_what_a_network_raises_is_one_line(capsys: Capture, networks: str, command: str) -> None:
    arguments = [command, "--device", "cpu", "--model"]
    assert main([*arguments, f"{networks}:unmade"]) == 1
    assert capsys.readouterr().err == f"error: {networks}:unmade raised KeyError: 'made'\n"
    for name, kind in (("attribute", "AttributeError"), ("module", "ModuleNotFoundError")):
        assert main([*arguments, f"{networks}:without_{name}"]) == 1
        assert f"{networks}:without_{name} raised {kind}: " in capsys.readouterr().err
    for name in (f"{networks}:number", f"{networks}:absent", f".{networks}:conv", ":conv"):
        assert main([*arguments, name]) == 2
        assert f"--model: got '{name}', " in (said := capsys.readouterr().err)
        assert "wanted module:callable" in said
    assert main([*arguments, f"{networks}:failing"]) == 1
    assert capsys.readouterr().err == f"error: {networks}:failing raised KeyError: 'inside'\n"
    assert main([*arguments, f"{networks}:ending"]) == 1
    assert capsys.readouterr().err == f"error: {networks}:ending raised StopIteration\n"
    if command != "explain":  # which tells that too
        assert main([*arguments, f"{networks}:foreign"]) == 2
        assert "--model: Hardsigmoid called no operator" in capsys.readouterr().err


def test_problems_may_come_through_a_pipe(capsys: Capture) -> None:
    read, write = os.pipe()
    os.write(write, f"{LINE}\n".encode())
    os.close(write)
    assert main(["list", "--problems", f"/dev/fd/{read}", "--device", "cpu"]) == 0
    os.close(read)
    assert LINE in capsys.readouterr().out
    command = [
        sys.executable,
        "-m",
        "torch_cudnn_ext",
        "list",
        "--device",
        "cpu",
        "--problems",
        "-",
    ]
    done = subprocess.run(command, input=PROBLEM, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and LINE in done.stdout, done.stderr


def test_a_file_may_begin_with_a_byte_order_mark(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n", encoding="utf-8-sig")
    assert main(["list", "--problems", str(file), "--device", "cpu"]) == 0
    assert LINE in capsys.readouterr().out


def test_a_part_of_no_problems_says_so(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cpu", "--shard", "2/2"]) == 0
    assert "shard 2/2 holds none of 1 problems" in capsys.readouterr().err


def test_a_file_without_problems_is_refused(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("# none\n\n")
    for command in ("profile", "list", "bench"):
        assert main([command, "--problems", str(file), "--device", "cpu"]) == 2
        assert f"--problems: got '{file}', wanted at least one" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cuda"]) == 2
    assert "--device: got 'cuda', but PyTorch finds no CUDA device" in capsys.readouterr().err
    for arguments in (["bench", "--overhead"], ["explain", "--model", "x"]):
        assert main([*arguments, "--device", "cuda"]) == 2
        assert "--device: got 'cuda', but PyTorch finds no CUDA" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["nonsense\n", "notes of mine", '{"key": 1}'])
def test_a_damaged_resume_file_is_refused(capsys: Capture, tmp_path: Path, text: str) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text(text)
    assert main(["profile", PROBLEM, "--device", "cpu", "--resume", str(path)]) == 2
    assert "--resume: " in (error := capsys.readouterr().err) and "line 1" in error
    assert path.read_text() == text


def test_a_file_that_is_no_text_is_named(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"\x7fELF\xff")
    for command in (["list", "--problems"], ["profile", "--table"]):
        assert main([*command, str(path)]) == 2
        error = f"error: {command[1]}: got '{path}', which holds no text: "
        assert capsys.readouterr().err.startswith(error)


def test_output_that_cannot_hold_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_cudnn_ext", "profile", PROBLEM, "--device", "cpu"]
    command += ["--time-budget", "0.1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    closed = ["bash", "-c", '"$@" >&-', "bash", *command]
    done = subprocess.run(closed, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr


def test_no_command_is_the_help(capsys: Capture) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert "\nCommands:\n" in shown.out and shown.err == ""
    assert main(["-h"]) == 0
    assert capsys.readouterr() == shown


def test_the_version_is_an_option(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"torch_cudnn_ext {__version__}\n"


def test_the_command_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert resolve_name(project["project"]["scripts"]["torch_cudnn_ext"]) is script
    monkeypatch.setattr(sys, "argv", ["torch_cudnn_ext", "nonsense"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        script()


def test_the_command_that_is_installed_finds_networks_of_the_folder(
    tmp_path: Path, networks: str
) -> None:
    code = "from torch_cudnn_ext.cli import script; script()"
    command = [sys.executable, "-P", "-c", code, "profile", "--device", "cpu"]
    process = subprocess.run(
        [*command, "--passes", "fwd", "--time-budget", "0.01", "--model", f"{networks}:conv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "conv_fwd" in process.stdout


def test_interrupted_where_nothing_is_kept(
    capsys: Capture, networks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("torch_cudnn_ext.cli.explain.explain", interrupt)
    assert main(["explain", "--model", f"{networks}:conv", "--device", "cpu"]) == 130
    shown = capsys.readouterr()
    assert (shown.out, shown.err.strip()) == ("", "interrupted")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_prints_what_was_finished(sent: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    lines = [PROBLEM.replace("x=f32[2", f"x=f32[{n}") for n in range(1, 400)]
    file.write_text("\n".join(lines))
    finished = tmp_path / "finished.jsonl"
    command = [sys.executable, "-m", "torch_cudnn_ext", "profile", "--problems", str(file)]
    command += ["--device", "cpu", "--resume", str(finished)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Shells start what runs in the background with the signal ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if finished.exists() and finished.read_text().count("\n") >= 2:
                break
            time.sleep(0.05)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: " in err and "of 399 problems were finished" in err
    assert "Traceback" not in err
    assert lines[0] in out and "best vs PyTorch" in out


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_bench_of_networks_runs_each_in_its_mode(
    monkeypatch: pytest.MonkeyPatch, networks: str, tmp_path: Path, mode: str
) -> None:
    seen: set[tuple[bool, bool]] = set()

    def watched(model: Any, inputs: Any, train: bool, autocast: Callable[[], Any]) -> None:
        seen.add((model.training, train))

    monkeypatch.setattr(whole_networks, "_step", watched)
    settings = whole_networks.NetworkSettings(False, "cpu", "", 2, 8)
    whole_networks._compare(False, f"{networks}:norm", "f32", mode, settings, tmp_path / "table")
    assert seen == {(mode == "train", mode == "train")}


def test_tune_says_how_much_was_known_before(capsys: Capture, tmp_path: Path) -> None:
    command = ["tune", "--table", str(tmp_path / "c"), "--device", "cpu", "--time-budget", "0.1"]
    assert main([*command, PROBLEM]) == 0
    assert "before" not in capsys.readouterr().out
    assert main([*command, PROBLEM, "--passes", "fwd,bwd"]) == 0
    assert "1 of 3 problems were in" in capsys.readouterr().out


def test_networks_infer_or_train_as_documented(capsys: Capture, networks: str) -> None:
    model = ["--model", f"{networks}:norm", "--device", "cpu"]
    explained: dict[str, set[str]] = {}
    for option in ("", "--train"):
        given = [option] if option else []
        assert main(["explain", *model, "--no-measure", "--format", "json", *given]) == 0
        explained[option] = {call["op"] for call in json.loads(capsys.readouterr().out)}
    assert explained == {
        "": {"batch_norm_infer"},
        "--train": {"batch_norm_fwd", "batch_norm_bwd"},
    }
    assert main(["coverage", *model, "--backends", "aten"]) == 0
    assert capsys.readouterr().out.startswith("calls, forward and backward\n")
    assert main(["coverage", *model, "--backends", "aten", "--forward"]) == 0
    assert capsys.readouterr().out.startswith("calls, forward\n")


@pytest.mark.parametrize("command", ["list", "profile", "bench", "tune", "explain"])
def test_every_format_tells_the_same_problem(
    capsys: Capture, networks: str, tmp_path: Path, command: str
) -> None:
    words = [command, "--model", f"{networks}:conv", "--device", "cpu"]
    words += {
        "explain": ["--no-measure"],
        "tune": [
            "--table",
            str(tmp_path / "table"),
            "--time-budget",
            "0.05",
            "--passes",
            "fwd",
        ],
        "list": ["--passes", "fwd"],
    }.get(command, ["--time-budget", "0.05", "--passes", "fwd"])
    problem = "x=f32[2,3,5,5]:nchw w=f32[4,3,3,3]:nchw pad=0"
    shown = {}
    for kind in ("table", "json", "csv", "markdown"):
        assert main([*words, "--format", kind]) == 0
        shown[kind] = capsys.readouterr().out
        assert problem in shown[kind]
    assert json.loads(shown["json"])
    rows = list(csv.DictReader(io.StringIO(shown["csv"])))
    assert {problem in row["problem"] for row in rows} == {True}
    assert {row["algorithm"] for row in rows} >= {"aten:default"} or command in ("bench", "tune")
    assert "| --- |" in shown["markdown"] and "| --- |" not in shown["table"]
    assert "****" not in shown["markdown"]


def test_tune_takes_a_converted_network(capsys: Capture, networks: str, tmp_path: Path) -> None:
    command = ["tune", "--model", f"{networks}:converted", "--table", str(tmp_path / "table")]
    rows = _json(capsys, *command, "--device", "cpu", "--time-budget", "0.05")["best"]
    ops = {str(row["problem"]).split()[0] for row in rows}
    assert ops == {"conv_fwd", "conv_bwd_filter"}  # its images want no gradient


def test_coverage_counts_what_is_left_to_pytorch_by_reason(capsys: Capture, networks: str) -> None:
    command = ["coverage", "--model", f"{networks}:functions", "--device", "cpu", "--forward"]
    assert main([*command, "--backends", "legacy"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith(("conv ", "all "))] == [
        ["conv", "1", "0", "0.0%"],
        ["all", "3", "0", "0.0%"],
    ]
    assert "conv, 1 call:\n    cuDNN runs on CUDA devices only\n" in shown


def test_the_lines_of_a_trace_are_profiled(capsys: Capture, networks: str, tmp_path: Path) -> None:
    file = tmp_path / "model.txt"
    trace(*resolve_name(f"{networks}:functions")(), file)
    command = ["profile", "--problems", str(file), "--device", "cpu", "--time-budget", "0.05"]
    layers = _json(capsys, *command)["layers"]
    traced = [line.partition("  #")[0] for line in file.read_text().splitlines()]
    assert [layer["problem"] for layer in layers] == traced
    assert all(layer["rows"] for layer in layers)


def test_modules_of_bench_are_taken_by_words_of_their_names(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def watched(cases: list[modules.Case], *_: object) -> list[object]:
        seen.extend(case.module for case in cases)
        return []

    monkeypatch.setattr(modules, "compare_modules", watched)
    assert main(["bench", "--modules", "Pool,BatchNorm2d", "--device", "cpu"]) == 0
    listed = {case.module for case in modules.CASES}
    wanted = {name for name in listed if "Pool" in name or name == "BatchNorm2d"}
    assert set(seen) == wanted and 1 < len(wanted) < len(listed)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_numbers_are_whole_on_narrow_terminals(width: int) -> None:
    columns = [Column("", right=False, whole=True)]
    columns += [Column(h, right=True) for h in ("PyTorch", "heuristic's first", "best")]
    table = Table("", columns, [["max pooling", "12345 (86%)", "1", "123.45"]])
    out = io.StringIO()
    _print_rows(table, Console(width=width, file=out))
    shown = out.getvalue()
    for word in ("max pooling", "12345 (86%)", "123.45", "heuristic's first"):
        assert word in shown


def test_a_backward_is_tuned_with_its_forward(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    command = ["tune", "--model", f"{networks}:functions", "--table", str(tmp_path / "table")]
    rows = _json(capsys, *command, "--passes", "bwd", "--device", "cpu", "--time-budget", "0.05")[
        "best"
    ]
    assert {str(row["problem"]).split()[0] for row in rows} == {
        "conv_bwd_filter",
        "pool_fwd",
        "softmax_bwd",
    }
    assert main([*command, "--passes", "bwd_data", "--device", "cpu"]) != 0
    assert "meets on these inputs, fwd,bwd,bwd_filter;" in " ".join(capsys.readouterr().err.split())


def test_bench_of_networks_compares_with_pytorchs_own(capsys: Capture, networks: str) -> None:
    command = ["bench", "--networks", f"{networks}:converted", "--device", "cpu"]
    assert main([*command, "--policy", "heuristic"]) == 1
    error = capsys.readouterr().err
    assert "of its modules 1 are this package's, such as itself, wanted PyTorch's alone" in error


@pytest.mark.parametrize("command", ["profile", "explain", "tune", "coverage"])
def test_torchscript_is_refused(
    capsys: Capture, networks: str, tmp_path: Path, command: str
) -> None:
    more = ["--table", str(tmp_path / "table.jsonl")] if command == "tune" else []
    assert main([command, "--model", f"{networks}:scripted", "--device", "cpu", *more]) == 2
    error = capsys.readouterr().err
    assert "error: --model: got a model compiled by TorchScript, wanted " in error


def test_comparing_modules_leaves_random_numbers_alone() -> None:
    case = modules.Case("softmax", "Softmax", {"dim": 1}, (2, 3))
    torch.manual_seed(1)
    wanted = torch.rand(2)
    torch.manual_seed(1)
    compared = list(modules.compare_modules([case], ["f32"], False, "cpu", "aten:default"))
    assert [one.pass_name for one in compared] == ["fwd", "bwd"]
    assert torch.equal(torch.rand(2), wanted)


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


@pytest.mark.parametrize(
    ("lines", "unknown"),
    [
        ((LINE, "softmax_fwd x=f32[24,3,4]:nchw"), "softmax_fwd"),
        ((LINE, "matmul_fwd x=f32[1,2,4]:nchw w=f32[1,4,3]:nchw"), "matmul_fwd"),
        (("softmax_fwd x=f32[24,3,4]:nchw", "layer_norm_fwd x=f32[24,3]:nchw kind=layer"), ""),
    ],
)
def test_what_tells_no_batch_is_left_and_named(
    capsys: Capture, tmp_path: Path, lines: tuple[str, ...], unknown: str
) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(lines))
    command = ["list", "--problems", str(file), "--batch", "7", "--device", "cpu"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert ("sizes tell none" in shown.err) == bool(unknown)
    assert f"as it is: {unknown}" in shown.err or not unknown
    for line in lines:
        changed = line.split()[0] != unknown
        assert ((line.split()[1] in shown.out) != changed) and ("x=f32[7," in shown.out)


def test_the_stricter_cap_holds(capsys: Capture) -> None:
    command = ["list", PROBLEM, "--device", "cpu", "--max-workspace", "20KiB", "--policy"]
    for policy, count in (("", 5), ("max_workspace=1KiB", 0), ("max_workspace=1MiB", 5)):
        assert main([*command, f"deterministic=false;{policy}"]) == 0
        assert f"cpu accepts {count} algorithms" in capsys.readouterr().out


def test_a_network_that_ends_the_process_is_an_error(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["import sys, torch", "make = sys.exit", "class Leaves(torch.nn.Conv2d):"]
    lines += ["    def forward(self, x): sys.exit(0)"]
    lines += ["def runs(): return Leaves(3, 4, 3)", "def half(): return runs().half()"]
    (tmp_path / "that_leaves.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    _compare_here_and_briefly(monkeypatch)
    for name, command in (("make", "list"), ("runs", "list"), ("runs", "explain")):
        assert main([command, "--model", f"that_leaves:{name}", "--device", "cpu"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"error: that_leaves:{name} raised SystemExit")
    assert main(["bench", "--networks", "that_leaves:half", "--device", "cpu"]) == 1
    assert "its tensors are torch.float16, wanted torch.float32" in capsys.readouterr().err


def test_a_network_may_read_its_own_arguments(tmp_path: Path) -> None:
    lines = ["import argparse, torch", "argparse.ArgumentParser().parse_args()"]
    lines += ["def make(): return torch.nn.Conv2d(3, 4, 3)"]
    (tmp_path / "that_parses.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "torch_cudnn_ext", "list", "--model", "that_parses:make"]
    done = subprocess.run(
        [*command, "--device", "cpu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "cpu accepts" in done.stdout, done.stderr
