"""The command `tune`."""

import os
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from cli_helpers import Capture, json_of
from helpers import LINE, PROBLEM

from torch_cudnn_ext import _C, knobs, ops, tuning
from torch_cudnn_ext._files import STORE_VARIABLE
from torch_cudnn_ext.bench import networks as whole_networks
from torch_cudnn_ext.cli import main
from torch_cudnn_ext.cli.progress import ProgressBar
from torch_cudnn_ext.tuning import keeping


def test_tune_keeps_rankings_in_a_file(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "table.jsonl"
    command = ["tune", "--table", str(file), "--device", "cpu", "--time-budget", "0.1"]
    (best,) = json_of(capsys, *command, PROBLEM)["best"]
    assert best["problem"] == LINE and float(str(best["median_ms"])) > 0
    kept = file.read_text()
    assert main([*command, PROBLEM]) == 0  # as after Ctrl-C: what is there is not measured again
    assert (
        "1 of 1 problems were known before" in capsys.readouterr().out and file.read_text() == kept
    )
    tuning.reset()
    problems = tmp_path / "lines.txt"
    problems.write_text(f"{LINE}\nsoftmax_fwd x=f32[2,3,4]:nchw log=false\n")
    rows = json_of(capsys, *command, "--problems", str(problems), "--jobs", "2", "--deterministic")
    assert [row["problem"] for row in rows["best"]] == problems.read_text().splitlines()
    tuning.reset()
    assert tuning.import_table(file) == 2  # the first ranking serves other constraints, too
    torch.backends.cudnn.deterministic = False  # which the command set in its process
    choice = _C.decide(PROBLEM, "cpu", "autotune")
    assert (choice["algorithm"], choice["why"]) == (best["algorithm"], "cached")


def test_tune_keeps_rankings_in_the_store(capsys: Capture, tmp_path: Path) -> None:
    command = ["tune", "--device", "cpu", "--time-budget", "0.1", PROBLEM]
    assert main(command) == 2
    assert "--table: not given, and the tuning store is off" in capsys.readouterr().err
    knobs.store = tmp_path / "store"
    (best,) = json_of(capsys, *command)["best"]
    tuning.reset()
    assert main(command) == 0
    assert "1 of 1 problems were known before." in " ".join(capsys.readouterr().out.split())
    assert _C.decide(PROBLEM, "cpu", "autotune")["algorithm"] == best["algorithm"]
    tuning.reset()
    before = tuning.statistics().measured
    table = tmp_path / "table.jsonl"
    assert main([*command, "--table", str(table)]) == 0
    assert tuning.statistics().measured == before and table.read_text().count("\n") == 1


def test_shards_share_a_store(capsys: Capture, tmp_path: Path) -> None:
    knobs.store = tmp_path / "store"
    lines = [f"softmax_fwd x=f32[2,{size},4]:nchw log=false" for size in range(3, 8)]
    problems = tmp_path / "lines.txt"
    problems.write_text("\n".join(lines))
    command = ["tune", "--device", "cpu", "--problems", str(problems)]
    tuned = []
    for shard in ("1/2", "2/2"):  # as machines that have one folder
        tuned += [row["problem"] for row in json_of(capsys, *command, "--shard", shard)["best"]]
        tuning.reset()
    assert sorted(tuned) == lines
    before = tuning.statistics().measured
    assert main(command) == 0
    assert "5 of 5 problems were known before." in " ".join(capsys.readouterr().out.split())
    assert tuning.statistics().measured == before


def test_tune_of_a_network_takes_what_enable_meets(
    capsys: Capture, tmp_path: Path, networks: str
) -> None:
    command = ["tune", "--model", f"{networks}:functions", "--device", "cpu"]
    command += ["--table", str(tmp_path / "table"), "--time-budget", "0.05"]

    def ops(*arguments: str) -> list[str]:
        rows = json_of(capsys, *command, *arguments)["best"]
        return [str(row["problem"]).partition(" ")[0] for row in rows]

    forward, backward = ["conv_fwd", "pool_fwd", "softmax_fwd"], ["softmax_bwd", "conv_bwd_filter"]
    assert ops() == [*forward, *backward]  # a pooling's gradient has its forward's algorithm
    network, inputs = resolve_name(f"{networks}:functions")()
    known = tuning.tune_model(network, inputs, policy="autotune", time_budget_s=0.05)
    assert known == {}
    assert ops("--passes", "fwd") == ops("--inference") == forward
    assert ops("--passes", "bwd_filter") == ["conv_bwd_filter"]
    assert ops("--shard", "2/2") == ["pool_fwd", "softmax_bwd"]
    command[2] = f"{networks}:softmax"
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "--train: no tensor of the model's output" in message
    assert "or --inference" in message
    assert ops("--inference") == ["softmax_fwd"]


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
            (Path("/dev/null"), "Not a regular file: '/dev/null'"),
            (tmp_path / "none" / "table", f"No such file or directory: '{tmp_path}/none/tabl"),
        ):
            assert main([*command, "--device", "cpu", "--table", str(path)]) == 2
            error = capsys.readouterr().err
            assert error.startswith("error: --table: ") and text in error
    assert damaged.read_text() == "nonsense"


def test_tune_says_how_much_was_known_before(capsys: Capture, tmp_path: Path) -> None:
    command = ["tune", "--table", str(tmp_path / "c"), "--device", "cpu", "--time-budget", "0.1"]
    assert main([*command, PROBLEM]) == 0
    assert "before" not in capsys.readouterr().out
    assert main([*command, PROBLEM, "--passes", "fwd,bwd"]) == 0
    told = capsys.readouterr().out
    assert "1 of 3 problems were known before" in told and "of 3 are kept" in told


def test_tune_takes_a_converted_network(capsys: Capture, networks: str, tmp_path: Path) -> None:
    command = ["tune", "--model", f"{networks}:converted", "--table", str(tmp_path / "table")]
    rows = json_of(capsys, *command, "--device", "cpu", "--time-budget", "0.05")["best"]
    ops = {str(row["problem"]).split()[0] for row in rows}
    assert ops == {"conv_fwd", "conv_bwd_filter"}  # its images want no gradient


def test_a_backward_is_tuned_with_its_forward(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    command = ["tune", "--model", f"{networks}:functions", "--table", str(tmp_path / "table")]
    rows = json_of(capsys, *command, "--passes", "bwd", "--device", "cpu", "--time-budget", "0.05")[
        "best"
    ]
    assert {str(row["problem"]).split()[0] for row in rows} == {
        "conv_bwd_filter",
        "pool_fwd",
        "softmax_bwd",
    }
    assert main([*command, "--passes", "bwd_data", "--device", "cpu"]) != 0
    assert "meets on these inputs, fwd,bwd,bwd_filter;" in " ".join(capsys.readouterr().err.split())


def test_what_calls_recorded_is_tuned(capsys: Capture, tmp_path: Path) -> None:
    store = tmp_path / "store"
    knobs.store = store
    keeping._warned.clear()
    x = torch.zeros(3, 241)
    ops.softmax(x, 1, policy="autotune;on_miss=record")
    (record,) = store.rglob("*.problems")
    with record.open("a") as file:
        file.write("softmax_fwd x=f32[3,2")  # its process was killed
    assert main(["tune", "--from-record", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert ".taken.problems: 1 line hold no problem" in " ".join(shown.err.split())
    assert "softmax_fwd x=f32[3,241,1]:nchw" in shown.out and "1 of 1 are kept" in shown.out
    assert not record.exists()
    ops.softmax(x, 1, policy="autotune;on_miss=record")
    assert ops.last_decision("softmax_fwd").why == "cached"
    assert not [*store.rglob("*.problems")]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "holds no problems of cpu"),
        (["--model", "resnet18"], "got --model and --from-record"),
        (["--batch", "4"], "options that change or leave out problems"),
        (["--shard", "1/2"], "options that change or leave out problems"),
        (["--passes", "fwd"], "options that change or leave out problems"),
    ],
)
def test_records_that_are_none(capsys: Capture, tmp_path: Path, more: list[str], said: str) -> None:
    knobs.store = tmp_path
    assert main(["tune", "--from-record", "--device", "cpu", *more]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_second_process_says_that_it_times_nothing(tmp_path: Path) -> None:
    problems = tmp_path / "lines.txt"
    problems.write_text(f"{LINE}\nsoftmax_fwd x=f32[4,64,1]:nchw log=false\n")
    code = "import sys; from torch_cudnn_ext import _C; from torch_cudnn_ext.cli import main; "
    code += "_C.ignore_other_work(True); sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "tune", "--problems", str(problems), "--device", "cpu"]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), STORE_VARIABLE: str(tmp_path / "s")}
    said = [
        subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    first = r"Measured 2 problems in [1-9]\d* timed runs, found 0 in the store; misses: 2 nothing"
    assert re.search(first, said[0])
    assert said[1].endswith("\nMeasured 0 problems in 0 timed runs, found 2 in the store.\n")


def test_what_the_store_does_not_take_is_no_success(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    knobs.store = tmp_path / "file"
    arguments = ["tune", "softmax_fwd x=f32[4,65,1]:nchw log=false", "--device", "cpu"]
    with pytest.warns(UserWarning, match="tuning store: cannot read"):
        assert main(arguments) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "0 of 1 are kept in" in said and "1 ranking could not be written" in said
