"""The command `profile`."""

import csv
import io
from pathlib import Path
from pkgutil import resolve_name

import pytest
from cli_helpers import Capture, json_of
from helpers import ACTIVATION, LINE, PROBLEM

from torch_cudnn_ext import trace, tuning
from torch_cudnn_ext.cli import main
from torch_cudnn_ext.tuning.store import read_rows


def test_profile_of_one_line(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for text in (LINE, "aten:default", "cpu:im2col", "vs PyTorch", "* what the current policy"):
        assert text in out


def test_profile_rewrites_lines(capsys: Capture) -> None:
    arguments = ["--dtype", "f64", "--batch", "3", "--channels-last", "--passes", "bwd_data,fwd"]
    result = json_of(capsys, "profile", PROBLEM, "--device", "cpu", *arguments)
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
    result = json_of(
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
    result = json_of(capsys, *command)
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
    part = json_of(capsys, *command, "--shard", "2/2")
    assert len(part["layers"]) == 2
    whole = json_of(capsys, *command)
    assert len(whole["layers"]) == 5
    assert [whole["layers"][i]["rows"] for i in (1, 3)] == [r["rows"] for r in part["layers"]]


def test_shards_measure_what_the_whole_measures(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    told, untold = PROBLEM, ACTIVATION
    command = ["profile", "--problems", str(file), "--target", "h200", "--time-budget", "0.01"]
    for lines, scaled in ([told, told.replace("pad=1", "pad=0")], True), ([told, untold], False):
        file.write_text("\n".join(lines))
        whole = json_of(capsys, *command)["layers"]
        assert {layer["measured"] != layer["problem"] for layer in whole} == {scaled}
        for i, layer in enumerate(whole, 1):
            (part,) = json_of(capsys, *command, "--shard", f"{i}/2")["layers"]
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


def test_a_first_profile_without_a_gpu_fits_a_screen(capsys: Capture) -> None:
    command = ["profile", PROBLEM, "--target", "h200", "--time-budget", "0.05"]
    assert main(command) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 40
    tables = short[: short.index("words:")]
    assert tables.count("heuristic A #") == 5 and "more that work (--top 0 shows them)" in tables
    assert "best vs PyTorch" not in short  # the CPU tells nothing of it
    assert "aten:default is PyTorch's own kernel" in short
    assert main([*command, "--top", "7"]) == 0
    longer = capsys.readouterr().out
    assert longer[: longer.index("words:")].count("heuristic A #") == 7
    assert main(["profile", PROBLEM, "--device", "cpu", "--time-budget", "0.05"]) == 0
    measured = capsys.readouterr().out
    assert "best vs PyTorch" in measured and "words:" not in measured


def test_profile_prints_what_was_kept(capsys: Capture, tmp_path: Path) -> None:
    file, other = tmp_path / "table.jsonl", LINE.replace("pad=1", "pad=0")
    tuning.tune([LINE, other], device="cpu", policy="max_workspace=1GiB", time_budget_s=0.1)
    entries = {entry["problem"]: entry for entry in tuning.entries()}
    tuning.export_table(file)
    for row in (rows := read_rows(file)):
        row.entry["device"] = "another device"
    file.write_bytes(b"".join(row.line() for row in rows))
    tuning.clear()
    kept = json_of(capsys, "profile", "--table", str(file))
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
    assert (
        "no more than a problem line, --all, --top, --all-layers, --format"
        in capsys.readouterr().err
    )
    file.write_text("")
    assert main(["profile", "--table", str(file)]) == 2
    assert f"--table: got '{file}', which holds no rankings" in capsys.readouterr().err
    file.write_text("[" * 100_000)
    assert main(["profile", "--table", str(file)]) == 2
    assert f"--table: {file}, line 1: " in (error := capsys.readouterr().err)
    assert error.count("\n") == 1


def test_profile_prints_a_store(capsys: Capture, tmp_path: Path) -> None:
    tuning.tune(LINE, device="cpu", time_budget_s=0.1)
    tuning.merge_table(tmp_path)
    (layer,) = json_of(capsys, "profile", "--table", str(tmp_path))["layers"]
    assert layer["problem"] == LINE


@pytest.mark.parametrize("command", ["profile", "bench"])
def test_jobs_measure_the_same(capsys: Capture, tmp_path: Path, command: str) -> None:
    file = tmp_path / "lines.txt"
    lines = [LINE, LINE.replace("pad=1", "pad=0")]
    file.write_text("\n".join(lines))
    words = [command, "--problems", str(file), "--device", "cpu", "--time-budget", "0.1"]
    resume = str(tmp_path / "finished.jsonl")
    found = json_of(capsys, *words, "--jobs", "2", "--resume", resume)
    key = {"profile": "layers", "bench": "comparisons"}[command]
    assert [row["problem"] for row in found[key]] == lines
    assert json_of(capsys, *words, "--jobs", "2", "--resume", resume) == found  # as kept


def test_the_lines_of_a_trace_are_profiled(capsys: Capture, networks: str, tmp_path: Path) -> None:
    file = tmp_path / "model.txt"
    trace(*resolve_name(f"{networks}:functions")(), file)
    command = ["profile", "--problems", str(file), "--device", "cpu", "--time-budget", "0.05"]
    layers = json_of(capsys, *command)["layers"]
    traced = [line.partition("  #")[0] for line in file.read_text().splitlines()]
    assert [layer["problem"] for layer in layers] == traced
    assert all(layer["rows"] for layer in layers)
