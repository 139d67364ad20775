"""Rules by problem: `when`."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import newest
from enable_helpers import OTHER, ran
from torch.nn import functional as F

import torch_cudnn_ext
from torch_cudnn_ext import _C, enabled, knobs, ops, when

pytestmark = pytest.mark.usefixtures("off")


def test_a_rule_chooses_for_the_problems_that_match(device: str) -> None:
    pin = OTHER[device]
    small, large = (torch.randn(1, 2, n, n, device=device) for n in (5, 9))
    w = torch.randn(3, 2, 3, 3, device=device)
    rule = when("conv_fwd x=*[1,2,5,5]* pad=0 align=16", use=pin)
    torch_cudnn_ext.ops.conv2d(small, w)
    choice = newest("conv_fwd")
    assert choice.algorithm.startswith(pin)
    assert choice.why == 'pinned by when("conv_fwd x=*[1,2,5,5]* pad=0 align=16")'
    torch_cudnn_ext.ops.conv2d(large, w, policy="aten:default")
    assert ran() == "aten:default"
    torch_cudnn_ext.ops.conv2d(small, w, policy="fwd=aten:default")  # a call is stronger
    assert ran() == "aten:default"
    knobs.conv_fwd_algo = "aten:default"  # a knob is weaker
    torch_cudnn_ext.ops.conv2d(small, w)
    assert ran().startswith(pin)
    newer = when("conv_fwd", use="aten:default")
    torch_cudnn_ext.ops.conv2d(small, w)
    assert ran() == "aten:default"
    newer.remove()
    rule.remove()
    torch_cudnn_ext.ops.conv2d(small, w)
    assert ran() == "aten:default"  # the knob's
    with pytest.raises(ValueError, match="removed before"):
        rule.remove()


def test_a_rule_matches_however_its_value_is_spelt() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    for value in ("stride=1,1", "pad=0,0", "stride=1"):
        with when(f"conv_fwd {value}", use="cpu:im2col"):
            torch_cudnn_ext.ops.conv2d(x, w)
            assert ran("conv_fwd") == "cpu:im2col"
    elu = "activation_fwd x=f32[64]:nchw kind=elu coefficient=0.5"
    for rule, line, matches in (
        ("activation_fwd coefficient=0.5", elu, True),
        ("activation_fwd coefficient=0.50", elu, True),
        ("activation_fwd coefficient=0.5", "activation_fwd x=f32[64]:nchw kind=relu", False),
        (
            "lrn_fwd window=cudnn",
            "lrn_fwd x=f32[2,8,64]:nchw kind=cross_channel size=4 window=cudnn",
            True,
        ),
        ("lrn_fwd window=cudnn", "lrn_fwd x=f32[2,8,64]:nchw kind=cross_channel size=4", False),
    ):
        with when(rule, use="deterministic"):
            assert ("deterministic" in _C.policy_for(_C.canonical_problem(line), "")) == matches
    with when("lrn_fwd alpha=0.0001", use="cpu:shifted"):
        torch_cudnn_ext.ops.local_response_norm(x, 2, alpha=1e-4)
        assert ran("lrn_fwd") == "cpu:shifted"


def test_a_rule_matches_with_and_without_a_bias(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    bias = torch.randn(3, device=device)
    calls = [lambda: F.conv2d(x, w), lambda: F.conv2d(x, w, bias)]

    def found(matcher: str) -> list[bool]:
        with when(matcher, use=OTHER[device]), enabled("aten:default"):
            return [call() is not None and ran().startswith(OTHER[device]) for call in calls]

    assert found("conv_fwd w=*[3,2,3,3]* pad=0") == [True, True]
    assert found("conv_fwd bias=f32") == [False, True]
    assert found("conv_fwd bias=") == [True, False]


def test_a_rule_reaches_the_backward_that_saved_its_policy(device: str) -> None:
    pin = "cpu:direct" if device == "cpu" else "legacy:algo_0"
    x = torch.randn(1, 2, 5, 5, device=device, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, device=device, requires_grad=True)
    knobs.conv_bwd_filter_algo = "aten:default"
    y: Any = torch_cudnn_ext.ops.conv2d(x, w).sum()
    with when("conv_bwd_filter", use=pin):
        y.backward()
    assert ran("conv_bwd_filter").startswith(pin)
    y = torch_cudnn_ext.ops.conv2d(x, w, policy="bwd_filter=aten:default").sum()
    with when("conv_bwd_filter", use=pin):
        y.backward()
    assert ran("conv_bwd_filter") == "aten:default"


def test_a_rule_costs_nothing_on_warm_calls(device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    with when("conv_fwd", use="aten:default"):
        torch_cudnn_ext.ops.conv2d(x, w)
        misses = _C.plan_cache_info()["misses"]
        torch_cudnn_ext.ops.conv2d(x, w)
        assert _C.plan_cache_info()["misses"] == misses


@pytest.mark.parametrize(
    ("matcher", "use", "wanted"),
    [
        ("", "autotune", "empty"),
        ("conv_forward", "autotune", "conv_fwd"),
        ("conv_fwd widht=3", "autotune", "no field 'widht'.*pad"),
        ("conv_fwd 3x3", "autotune", "key=glob"),
        ("conv_fwd", "nonsense", "nonsense"),
        ("conv_fwd", "bwd_data=autotune", "rule is for conv_fwd"),
        ("conv_fwd", "compute=f64", "compute"),
        ("softmax_fwd", "legacy:fft/math", "math"),
        ("conv_fwd pad=1 pad=2", "autotune", "'pad' twice"),
        ("conv_fwd", "cpu:im2cool", "cpu:im2cool' for conv_fwd, wanted one of .*cpu:im2col"),
        ("softmax_bwd", "bwd=cpu:fft", "softmax_bwd.*it is an algorithm of conv"),
        ("conv_fwd", 99, "99"),
    ],
)
def test_a_wrong_rule_is_an_error(matcher: str, use: str | int, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        when(matcher, use)


def test_a_rule_takes_the_integer_of_its_pass(tmp_path: Path) -> None:
    for op, number in (("conv_fwd", 1), ("conv_bwd_data", 0)):
        with when(op, use=number) as rule, when(op, use=str(number)) as same:
            assert (rule.matcher, rule.use) == (same.matcher, same.use)
    torch_cudnn_ext.save_pins(tmp_path / "pins.toml", {}, {"conv_fwd": 1})
    assert torch_cudnn_ext.load_rules(tmp_path / "pins.toml") == {"conv_fwd": "1"}
    with pytest.raises(TypeError, match=r"got True \(bool\)"):
        when("conv_fwd", use=True)


def test_a_matcher_is_a_text() -> None:
    with pytest.raises(TypeError, match="argument matcher: got 3"):
        when(3, use="autotune")  # type: ignore[arg-type]


def test_a_rule_s_keywords_are_of_its_operator() -> None:
    with when("softmax_fwd", use={"fwd": "accurate"}) as rule:  # no name of convolution's
        assert rule.use == "fwd=legacy:accurate"
    x = torch.randn(2, 3, requires_grad=True)
    with when("softmax_bwd", use={"bwd": "cpu:three_pass"}):  # no pass of convolution's
        torch.autograd.grad(torch_cudnn_ext.ops.softmax(x, 1)[0, 0], x)
    assert newest("softmax_bwd").algorithm == "cpu:three_pass"


def test_every_number_of_a_rule_may_be_spelt_otherwise() -> None:
    tried = 0
    for operator in _C.operators():
        for example in operator["examples"]:
            for name in operator["passes"]:
                line = " ".join([f"{operator['family']}_{name}", *example.split()[1:]])
                try:
                    canonical = _C.canonical_problem(line)
                except ValueError:  # its fields are of the forward alone
                    continue
                for word in canonical.split()[1:]:
                    key, _, value = word.partition("=")
                    if not re.fullmatch(r"[0-9.e+-]+", value):
                        continue
                    spelt = [f"{float(value):.6f}"] if "." in value or "e" in value else []
                    lists = ("pad", "stride", "dilation", "window")
                    spelt += [f"{value},{value}"] if key in lists and "," not in value else []
                    for other in (value, *spelt):
                        with when(f"{canonical.split()[0]} {key}={other}", use="deterministic"):
                            found = "deterministic" in _C.policy_for(canonical, "")
                        one_dimension = (
                            "," in other and len(canonical.split("x=")[1].split(",")) < 4
                        )
                        assert found or one_dimension, (canonical, key, other)
                        tried += 1
    assert tried > 100


def test_of_rules_one_of_which_is_wrong_none_holds() -> None:
    problem = _C.canonical_problem("conv_fwd x=f32[1,2,5,5]:nchw w=f32[3,2,3,3]:nchw")
    before = _C.policy_for(problem, "")
    rules = {"conv_fwd q=1": "autotune", "conv_fwd": "cpu:im2col"}  # the last is the first made
    with pytest.raises(ValueError, match="rules: 'conv_fwd q=1' is 'autotune': .*no field"):
        torch_cudnn_ext.apply_rules(rules)
    assert _C.policy_for(problem, "") == before


def test_a_rule_counts_the_problems_that_it_matches() -> None:
    x = torch.zeros(2, 251)
    with when("softmax_fwd", use="max_workspace=1GiB") as older:
        for _ in range(3):
            ops.softmax(x, 1)
        with when("softmax_fwd log=false", use="cpu:online") as newer:
            ops.softmax(x, 1)
            ops.softmax(x[:, 1:], 1)
            assert (older.problems, newer.problems) == (2, 2)
        ops.softmax(x[:, 2:], 1)
    ops.softmax(x[:, 3:], 1)
    assert (older.problems, newer.problems) == (3, 2)


def test_a_coupled_problem_is_no_match() -> None:
    x = torch.zeros(1, 1, 8, 8, requires_grad=True)
    with when("pool_bwd", use="max_workspace=1GiB") as rule:
        y = ops.max_pool2d(x, 2)
        assert rule.problems == 0
        y.sum().backward()
        assert rule.problems == 1


def test_a_rule_without_a_match_warns_at_its_end() -> None:
    with pytest.warns(UserWarning, match=r"when\('lrn_fwd', .*: it matched no problem"):
        with when("lrn_fwd", use="autotune"):
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with when("softmax_fwd", use="heuristic"):
            ops.softmax(torch.zeros(2, 257), 1)
        with pytest.raises(KeyError), when("lrn_fwd", use="autotune"):
            raise KeyError
