"""Options, policies and problem files of all commands: what is accepted and refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli_helpers import Capture, json_of
from helpers import ACTIVATION, LINE, PROBLEM

from torch_cudnn_ext.cli import main

SEQUENCE = "conv_fwd x=f32[2,4,8]:nchw w=f32[6,4,3]:nchw"


def test_options_act_where_one_problem_follows_them(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text(f"{LINE}\n{ACTIVATION}\n{SEQUENCE}\n")
    command = ["list", "--problems", str(file), "--device", "cpu", "--batch", "3"]
    problems = [
        str(one["problem"]) for one in json_of(capsys, *command, "--channels-last")["layers"]
    ]
    assert ["x=f32[3,4,8,8]:nhwc", ACTIVATION.split()[1], "x=f32[3,4,8]:nchw"] == [
        problem.split()[1] for problem in problems
    ]


def test_a_policy_is_of_the_family_of_all_problems(capsys: Capture, networks: str) -> None:
    norm = "batch_norm_fwd x=f16[4,8,49]:nhwc"
    assert main(["list", norm, "--device", "cpu", "--policy", "legacy:spatial_persistent"]) == 0
    assert norm in capsys.readouterr().out
    for source in (["softmax_fwd x=f32[2,3,4]:nchw"], ["--model", f"{networks}:softmax"]):
        command = ["profile", *source, "--device", "cpu", "--time-budget", "0.1"]
        layers = json_of(capsys, *command, "--policy", "cpu:online")["layers"]
        assert {layer["current"] for layer in layers} == {"cpu:online"}
        assert main([*command, "--policy", "cpu:im2col"]) == 2
        assert "wanted one for softmax_" in capsys.readouterr().err


def test_a_policy_holds_for_problems_of_all_families(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "problems.txt"
    file.write_text(f"{LINE}\npool_fwd x=f32[1,2,4,4]:nchw window=2\n")
    command = ["--problems", str(file), "--device", "cpu", "--policy", "autotune;prefer=gpu_time"]
    layers = json_of(capsys, "profile", *command, "--time-budget", "0.1")["layers"]
    assert [str(layer["problem"]).partition(" ")[0] for layer in layers] == ["conv_fwd", "pool_fwd"]
    for layer in layers:
        assert layer["current"] == layer["rows"][0]["algorithm"]  # what tuning puts first
    # Another single word is convolution's.
    command[-1] = "cpu:im2col"
    layers = json_of(capsys, "profile", *command, "--time-budget", "0.1")["layers"]
    assert [layer["current"] for layer in layers] == ["cpu:im2col", "aten:default"]
    assert main(["list", *command]) == 0


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
        (["profile", PROBLEM, "--target", "z80"], "--target: no target 'z80', wanted one of h1"),
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
        (["profile", PROBLEM, "--policy", "cpu:online"], "wanted one for conv_fwd"),
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
            "--policy: got the selection 'conv_fwd=cpu:fft', wanted constraints alone, or autotune",
        ),
        (
            ["tune", PROBLEM, "--table", "x", "--policy", "heuristic"],
            "--policy: got the selection 'heuristic', wanted constraints alone, or autotune",
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
        (["bench", PROBLEM, "--compiled"], "--compiled: got it alone, wanted --modules"),
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
        (["tune", PROBLEM], "--table: not given, and the tuning store is off"),
        (["bench", "--overhead", "--shard", "9/1"], "--shard: got '9/1' with --overhead, which"),
        (["bench", "--overhead", "--resume", "x"], "--resume: got 'x' with --overhead, which"),
        (["bench", "--overhead", "--modules", "all"], "--modules: got 'all' with --overhead"),
        (
            ["bench", "--networks", "nope"],
            "--networks: got 'nope', wanted module:callable, unet or one",
        ),
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
