"""The option `--report`: a page of HTML in addition to what is printed."""

import json
from pathlib import Path

import pytest
from cli_helpers import Capture
from helpers import LINE, OTHER

from torch_cudnn_ext.bench import rounds
from torch_cudnn_ext.cli import main


def test_a_report_of_a_profile(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    arguments = ["profile", LINE, "--device", "cpu", "--time-budget", "1", "--report", str(file)]
    assert main(arguments) == 0
    assert "vs PyTorch" in capsys.readouterr().out
    page = file.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert f"torch_cudnn_ext profile &#x27;{LINE}&#x27; --device cpu --time-budget 1" in page


def test_a_report_of_a_table_and_of_a_target(capsys: Capture, tmp_path: Path) -> None:
    table, file = tmp_path / "table.jsonl", tmp_path / "page.html"
    tune = ["tune", OTHER, "--device", "cpu", "--time-budget", "1", "--table", str(table)]
    assert main(tune) == 0
    assert main(["profile", "--table", str(table), "--report", str(file)]) == 0
    assert OTHER in file.read_text()
    assert main(["profile", LINE, "--time-budget", "0.5", "--report", str(file)]) == 0
    assert "accepts" in file.read_text()
    capsys.readouterr()


def test_a_report_of_a_bench(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "ROUNDS", 2)
    file = tmp_path / "page.html"
    assert main(["bench", LINE, "--device", "cpu", "--report", str(file)]) == 0
    assert "ratio" in capsys.readouterr().out
    page = file.read_text()
    assert "by the geometric mean of 1 comparison" in page and "torch_cudnn_ext bench" in page


def test_a_report_of_an_explanation(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reported_network.py").write_text(
        "import torch\n\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 8, 8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "page.html"
    arguments = ["explain", "--model", "reported_network:make", "--device", "cpu"]
    assert main([*arguments, "--format", "json", "--report", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["calls"]
    page = file.read_text()
    assert "What Sequential runs" in page and "explain --model reported_network:make" in page


@pytest.mark.parametrize(
    "command",
    [
        ["profile", LINE],
        ["explain", "--model", "resnet18"],
        ["bench", LINE],
        ["optimize", "--model", "resnet18"],
        ["tune", LINE, "--table", "table.jsonl"],
    ],
)
def test_a_file_that_cannot_be_written_is_an_error_at_once(
    command: list[str], capsys: Capture, tmp_path: Path
) -> None:
    for path, said in (
        (str(tmp_path), "a folder, wanted a file"),
        ("none/page.html", "in 'none', which is no folder, wanted a file"),
    ):
        assert main([*command, "--device", "cpu", "--report", path]) == 2
        assert f"--report: got {path!r}, {said}" in capsys.readouterr().err


def test_the_rest_of_the_layers_is_shown_on_request(capsys: Capture, tmp_path: Path) -> None:
    lines = [f"softmax_fwd x=f32[4,{size},1]:nchw log=false" for size in range(2, 27)]
    problems, table = tmp_path / "problems.txt", tmp_path / "table.jsonl"
    problems.write_text("\n".join(lines))
    file = tmp_path / "page.html"
    command = ["tune", "--problems", str(problems), "--device", "cpu", "--table", str(table)]
    assert main([*command, "--time-budget", "0.01", "--report", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "tuned on cpu" and "problems.txt" in out.splitlines()[0]
    assert "5 problems more, with less to gain (--all-layers)" in out
    assert f"torch_cudnn_ext tune --problems {problems}" in file.read_text()
    assert main([*command, "--all-layers", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.count("| softmax_fwd ") == 25
    show = ["profile", "--table", str(table)]
    assert main(show) == 0
    out = capsys.readouterr().out
    assert out.count("measured on") == 5 and "20 problems more, with less to gain" in out
    assert main([*show, "--all-layers"]) == 0
    assert capsys.readouterr().out.count("measured on") == 25
    for one in (show, command):
        assert main([*one, "--all-layers", "--format", "csv"]) == 2
        assert "--all-layers: given with --format csv" in capsys.readouterr().err
