"""Networks given to a command with `--model`."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import Capture, compare_here_and_briefly, json_of

from torch_cudnn_ext.cli import main


def _on_cpu(command: str) -> list[str]:
    """A command on the CPU. Of `coverage` it asks for PyTorch's own kernels."""
    backends = ["--backends", "aten"] if command == "coverage" else []
    return [command, "--device", "cpu", *backends]


def test_a_networks_own_autocast_is_seen(capsys: Capture, networks: str) -> None:
    command = ["list", "--model", f"{networks}:autocast", "--device", "cpu", "--passes", "fwd"]
    (layer,) = json_of(capsys, *command)["layers"]
    assert str(layer["problem"]).startswith("conv_fwd x=bf16[2,3,5,5]")


def test_a_network_need_not_take_a_batch_of_one(capsys: Capture, networks: str) -> None:
    command = ["profile", "--model", f"{networks}:pairs", "--target", "h200", "--passes", "fwd"]
    (layer,) = json_of(capsys, *command)["layers"]
    assert "x=f32[2,3,5,5]" in str(layer["problem"]) and "x=f32[1,3,5,5]" in str(layer["measured"])


def test_a_proxy_of_another_network_is_not_resumed(
    capsys: Capture, networks: str, tmp_path: Path
) -> None:
    options = ["--target", "h200", "--passes", "fwd", "--resume", str(tmp_path / "finished.jsonl")]
    results = [
        json_of(capsys, "profile", "--model", f"{networks}:{name}", *options)["layers"]
        for name in ("of_8_and_4", "of_4_and_8", "of_8_and_4")
    ]
    assert len({str(layer["problem"]) for (layer,) in results}) == 1
    assert [str(layer["measured"]).split()[1][:12] for (layer,) in results] == [
        "x=f32[1,4,5]",
        "x=f32[1,8,5]",
        "x=f32[1,4,5]",
    ]
    assert results[0] == results[2]


def test_a_network_keeps_its_dtype(capsys: Capture, networks: str) -> None:
    for name in ("double", "double_of_images"):
        command = ["list", "--device", "cpu", "--passes", "fwd", "--model", f"{networks}:{name}"]
        command += ["--batch", "2"] if name == "double_of_images" else []
        for arguments, dtype in (([], "f64"), (["--dtype", "f16"], "f16")):
            (layer,) = json_of(capsys, *command, *arguments)["layers"]
            assert str(layer["problem"]).startswith(f"conv_fwd x={dtype}[2,3,")
    for command in (["explain", "--no-measure"], ["coverage", "--backends", "aten", "--inference"]):
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
    commands = [[*_on_cpu(one), "--model", name] for one in ("list", "explain", "coverage")]
    for command in (*commands, [*_on_cpu("bench"), "--networks", name]):
        assert main([*command, *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {message.format(name)}") and error.count("\n") == 1


def test_a_torchvision_network_is_f32_by_default(capsys: Capture) -> None:
    pytest.importorskip("torchvision")
    command = ["list", "--model", "alexnet", "--device", "cpu", "--passes", "fwd", "--batch", "1"]
    for arguments, dtype in (([], "f32"), (["--dtype", "bf16"], "bf16")):
        layers = json_of(capsys, *command, *arguments)["layers"]
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
    assert [row["problem"] for row in json_of(capsys, *tune, "infer")["best"]] == [
        row["problem"] for row in json_of(capsys, *tune, "fwd")["best"]
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
    (layer,) = json_of(capsys, *command)["layers"]
    assert str(layer["problem"]).startswith("batch_norm_infer")


@pytest.mark.parametrize("command", ["list", "coverage", "explain", "bench"])
def test_networks_of_any_rank_are_channels_last(
    capsys: Capture, networks: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{networks}:conv", f"{networks}:conv3d"]
    if command == "bench":
        compare_here_and_briefly(monkeypatch)
        arguments = ["--networks", ",".join(names), "--policy", "backends=aten"]
        assert main([command, *arguments, "--device", "cpu", "--channels-last"]) == 0
        return
    for name in names:
        assert main([*_on_cpu(command), "--model", name, "--channels-last"]) == 0
        out = capsys.readouterr().out
        if command != "coverage":
            assert ":nhwc w=f32[" in out and "]:nhwc pad=0" in out and "nchw" not in out


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


@pytest.mark.parametrize("command", ["profile", "bench", "coverage", "explain"])
def test_what_a_network_raises_is_one_line(capsys: Capture, networks: str, command: str) -> None:
    arguments = [*_on_cpu(command), "--model"]
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


def test_networks_infer_or_train_as_documented(capsys: Capture, networks: str) -> None:
    model = ["--model", f"{networks}:norm", "--device", "cpu"]
    explained: dict[str, set[str]] = {}
    listed: dict[str, set[str]] = {}
    for option in ("", "--train", "--inference"):
        given = [*model, option] if option else model
        calls = json_of(capsys, "explain", *given, "--no-measure")["calls"]
        explained[option] = {str(call["op"]) for call in calls}
        layers = json_of(capsys, "list", *given)["layers"]
        listed[option] = {str(layer["problem"]).split()[0] for layer in layers}
    training, inference = {"batch_norm_fwd", "batch_norm_bwd"}, {"batch_norm_infer"}
    assert explained == {"": training, "--train": training, "--inference": inference}
    assert listed == explained
    assert main(["coverage", *model, "--backends", "aten"]) == 0
    assert capsys.readouterr().out.startswith("calls, forward and backward\n")
    assert main(["coverage", *model, "--backends", "aten", "--inference"]) == 0
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


@pytest.mark.parametrize("command", ["profile", "explain", "tune", "coverage"])
def test_torchscript_is_refused(
    capsys: Capture, networks: str, tmp_path: Path, command: str
) -> None:
    more = ["--table", str(tmp_path / "table.jsonl")] if command == "tune" else []
    assert main([*_on_cpu(command), "--model", f"{networks}:scripted", *more]) == 2
    error = capsys.readouterr().err
    assert "error: --model: got a model compiled by TorchScript, wanted " in error


def test_a_network_may_read_its_own_arguments(tmp_path: Path) -> None:
    lines = ["import argparse, torch", "argparse.ArgumentParser().parse_args()"]
    lines += ["def make(): return torch.nn.Conv2d(3, 4, 3)"]
    (tmp_path / "that_parses.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "torch_cudnn_ext", "list", "--model", "that_parses:make"]
    done = subprocess.run(
        [*command, "--device", "cpu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "cpu accepts" in done.stdout, done.stderr
