"""The command line: what it prints, its formats, and its complaints."""

import csv
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from torch_cudnn_ext import _C, bench, bench_modules
from torch_cudnn_ext.__main__ import main

PROBLEM = "conv_fwd x=f32[2,4,8,8]:nchw w=f32[6,4,3,3]:nchw pad=1 stride=1 dilation=1 groups=1"
LINE = f"{PROBLEM} compute=f32"
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


def test_top_and_all(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cpu", "--top", "1"]) == 0
    short = capsys.readouterr().out
    assert main(["profile", PROBLEM, "--device", "cpu", "--all", "--top", "0"]) == 0
    long = capsys.readouterr().out
    assert len(long.splitlines()) > len(short.splitlines())


def test_list_times_nothing(capsys: Capture) -> None:
    result = _json(capsys, "list", PROBLEM, "--device", "cpu")
    (layer,) = result["layers"]
    assert layer["rows"] == []
    assert main(["list", PROBLEM, "--device", "cpu", "--policy", "backends=cpu"]) == 0
    out = capsys.readouterr().out
    assert "cpu:im2col" in out and "aten:default" in out and "excluded" in out
    assert "all 32 of legacy" in out
    assert _C.table_export() == []


def test_info(capsys: Capture) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for text in (torch.__version__, "libcudnn.so.9", "target:h200", "graph", "legacy", "cpu"):
        assert text in out


def test_the_readme_holds_the_table_of_operators(capsys: Capture) -> None:
    for operator in _C.operators():
        described = [operator[key] for key in ("entry_points", "dtypes", "layouts", "examples")]
        assert all(described), operator["family"]
    assert main(["info", "--operators"]) == 0
    table = capsys.readouterr().out
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    shown = readme.partition("<!-- operators -->\n")[2].partition("<!-- end of operators -->")[0]
    assert shown == table, "copy what `tools/run info --operators` prints into README.md"


def test_coverage(capsys: Capture) -> None:
    pytest.importorskip("torchvision")
    command = ["coverage", "--model", "resnet18", "--device", "cpu", "--batch", "2"]
    assert main([*command, "--image-size", "32", "--backends", "cpu", "--forward"]) == 0
    out = capsys.readouterr().out
    assert "conv 20 20 100.0%" in " ".join(out.split())
    assert "conv, " not in out


def test_bench(capsys: Capture) -> None:
    result = _json(capsys, "bench", PROBLEM, "--device", "cpu", "--time-budget", "0.5")
    (comparison,) = result["comparisons"]
    assert comparison["problem"] == LINE
    assert main(["bench", PROBLEM, "--device", "cpu", "--time-budget", "0.5"]) == 0
    assert "geometric mean over all" in capsys.readouterr().out


def test_bench_of_modules(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench_modules.Case("softmax", "Softmax", {"dim": 1}, (2, 3, 4, 4))
    monkeypatch.setattr(bench_modules, "CASES", (case,))
    arguments = ("bench", "--modules", "all", "--dtype", "f32", "--device", "cpu")
    rows = _json(capsys, *arguments)["comparisons"]
    assert [row["pass_name"] for row in rows] == ["fwd", "bwd"]
    assert all(row["module"] == case.text and row["ratio"] > 0 for row in rows)  # type: ignore[operator]
    assert main([*arguments, "--format", "csv"]) == 0
    assert main(["bench", "--modules", "Convolutions", "--device", "cpu"]) == 2
    assert main([*arguments[:3], "--dtype", "f8", "--device", "cpu"]) == 2


def test_bench_overhead(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "OVERHEAD_ROUNDS", 2)
    monkeypatch.setattr(bench, "OVERHEAD_CALLS", 3)
    rows = _json(capsys, "bench", "--overhead", "--device", "cpu")["overhead"]
    assert [row["problem"] for row in rows] == bench.overhead_problems("cpu")
    for row in rows:
        assert all(float(str(row[key])) > 0 for key in ("bare_us", "ours_us", "pytorch_us"))
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
        (["profile", PROBLEM, "--target", "z80"], "--target: "),
        (["profile", PROBLEM, "--policy", "zork=1"], "--policy: "),
        (["profile", PROBLEM, "--max-workspace", "lots"], "--max-workspace: "),
        (["profile", PROBLEM, "--format", "tex"], "--format"),
        (["profile", PROBLEM, "--batch", "few"], "--batch"),
        (["profile", PROBLEM, "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_input_is_one_clear_line(capsys: Capture, arguments: list[str], message: str) -> None:
    if not {"--device", "--target"} & set(arguments) and arguments[0] == "profile":
        arguments = [*arguments, "--device", "cpu"]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused(capsys: Capture) -> None:
    assert main(["profile", PROBLEM, "--device", "cuda"]) == 2
    assert "--device: got 'cuda', but PyTorch finds no CUDA device" in capsys.readouterr().err
    assert main(["bench", "--overhead", "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_a_damaged_resume_file_is_refused(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text("nonsense\n")
    assert main(["profile", PROBLEM, "--device", "cpu", "--resume", str(path)]) == 2
    assert "--resume: " in (error := capsys.readouterr().err) and "line 1" in error


def test_ctrl_c_prints_what_was_finished(tmp_path: Path) -> None:
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
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted: " in err and "of 399 problems were finished" in err
    assert "Traceback" not in err
    assert lines[0] in out and "best vs PyTorch" in out
