"""Modules compared with those of PyTorch."""

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from cli_helpers import Capture, json_of

from torch_cudnn_ext import nn
from torch_cudnn_ext.bench import modules
from torch_cudnn_ext.cli import main


@pytest.mark.parametrize("case", modules.CASES + modules.MIXED, ids=lambda c: c.text)
def test_modules_of_bench_can_be_made(case: modules.Case) -> None:
    with torch.device("meta"):
        module = getattr(nn, case.module)(**case.arguments)
        assert module(torch.empty(case.sizes)) is not None


def test_bench_of_modules(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    case = modules.Case("Softmax", {"dim": 1}, (2, 3, 4, 4), kind="channels")
    monkeypatch.setattr(modules, "CASES", (case,))
    arguments = ("bench", "--modules", "all", "--dtype", "f32", "--device", "cpu")
    compared = json_of(capsys, *arguments)
    rows = compared["comparisons"]
    assert [row["pass_name"] for row in rows] == ["fwd", "bwd"]
    groups = {"softmax channels fwd nchw", "softmax channels bwd nchw"}
    assert set(compared["geometric_means"]) == groups
    assert all(row["module"] == case.text and row["ratio"] > 0 for row in rows)  # type: ignore[operator]
    assert main([*arguments, "--channels-last", "--format", "csv"]) == 0
    assert capsys.readouterr().out.count(",nhwc,") == 2
    monkeypatch.setattr(modules, "MIXED", (case, case))
    rows = json_of(capsys, "bench", "--modules", "mixed", *arguments[3:])["comparisons"]
    assert len(rows) == 4
    assert main(["bench", "--modules", "Convolutions", "--device", "cpu"]) == 2
    assert main([*arguments[:3], "--dtype", "f8", "--device", "cpu"]) == 2


def test_bench_of_modules_beside_compiled_ones(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    cases = (
        modules.Case("BatchNorm2d", {"num_features": 3}, (2, 3, 4, 4)),
        modules.Case("GroupNorm", {"num_groups": 2, "num_channels": 4}, (2, 4, 4, 4)),
        modules.Case("GRU", {"input_size": 3, "hidden_size": 2}, (4, 2, 3)),
    )
    monkeypatch.setattr(modules, "CASES", cases)
    arguments = ("bench", "--modules", "all", "--dtype", "f32,f16", "--device", device)
    # All of them are compiled, none runs as it is because of those before.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=2):
        rows = json_of(capsys, *arguments, "--compiled")["comparisons"]
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
        modules.Case("Softmax", {"dim": 1}, (2, 3)),
        modules.Case("GRU", {"input_size": 3, "hidden_size": 2}, (4, 2, 3)),
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
    case = modules.Case("Softmax", {"dim": 1}, (2, 3, 4, 4))
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


def test_comparing_modules_leaves_random_numbers_alone() -> None:
    case = modules.Case("Softmax", {"dim": 1}, (2, 3))
    torch.manual_seed(1)
    wanted = torch.rand(2)
    torch.manual_seed(1)
    compared = list(modules.compare_modules([case], ["f32"], False, "cpu", "aten:default"))
    assert [one.pass_name for one in compared] == ["fwd", "bwd"]
    assert torch.equal(torch.rand(2), wanted)
