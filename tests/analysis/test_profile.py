"""Profiles: what their tables hold, what they choose, how they are written and resumed."""

import copy
import csv
import dataclasses
import fcntl
import io
import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import UserDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from conftest import newest
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import (
    _C,
    Policy,
    convert,
    enabled,
    explain,
    knobs,
    ops,
    pinned,
    profile,
    profile_model,
    trace,
    tuning,
    when,
)
from torch_cudnn_ext import nn as layers
from torch_cudnn_ext._timing import host_ms
from torch_cudnn_ext._workload.journal import Journal
from torch_cudnn_ext._workload.models import load_model
from torch_cudnn_ext._workload.network import Workload, network_layers
from torch_cudnn_ext._workload.problems import (
    PROBLEM_FOLDER,
    Layer,
    convolution_arguments,
    coupled_problems,
    merge,
    read_problems,
    rewrite,
    shard,
    with_passes,
)
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.running import detached, recording
from torch_cudnn_ext._workload.tracer import is_function
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.profile import list_layer, measure_layers, profile_of_table
from torch_cudnn_ext.analysis.results import LayerProfile, Profile
from torch_cudnn_ext.analysis.roofline import _measured_peaks, measured_peaks
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.analysis.tables import (
    Extent,
    Table,
    bytes_text,
    layer_tables,
    milliseconds,
    print_tables,
    summary_table,
)
from torch_cudnn_ext.bench.layers import (
    Comparison,
    compare_layers,
    comparison_text,
    geometric_means,
)
from torch_cudnn_ext.bench.modules import compare_modules
from torch_cudnn_ext.bench.networks import NetworkSettings, compare_networks
from torch_cudnn_ext.bench.overhead import measure_overhead
from torch_cudnn_ext.bench.rounds import bootstrap_interval
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.convert import converted
from torch_cudnn_ext.tuning import measure
from torch_cudnn_ext.tuning.measure import Task, checked_device
from torch_cudnn_ext.tuning.store import read_table

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry

PROBLEM = (
    "conv_fwd x=f32[2,4,8,8]:nchw w=f32[6,4,3,3]:nchw pad=1 stride=1 dilation=1 groups=1 "
    "compute=f32"
)
OTHER = PROBLEM.replace("pad=1", "pad=0")
PASSES = ("conv_fwd", "conv_bwd_data", "conv_bwd_filter")


@pytest.fixture(scope="module", params=PASSES)
def measured(request: pytest.FixtureRequest) -> Profile:
    return profile(PROBLEM.replace("conv_fwd", request.param), device="cpu")


def _fields(policy: Policy) -> dict[str, Any]:
    return _C.policy_fields(str(policy))


def _layer(result: Profile) -> LayerProfile:
    (layer,) = result.layers
    return layer


def convolutions(model: nn.Module, inputs: Any, passes: list[str] | None = None) -> list[Layer]:
    work = network_layers(model, inputs, passes or ["fwd", "bwd"])
    return [layer for layer in work.layers if layer.problem.startswith("conv_")]


class Network(nn.Module):
    """Two equal convolutions, a depthwise one, and a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4, 3, padding="same")
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.second(self.first(x)))
        out: torch.Tensor = self.up(self.norm(self.depthwise(input=x)))
        return out


def test_the_aten_row_and_two_algorithms_of_the_cpu_are_timed(measured: Profile) -> None:
    layer = _layer(measured)
    timed = {row["algorithm"] for row in layer.rows if row["median_ms"] is not None}
    assert "aten:default" in timed
    assert len([name for name in timed if name.startswith("cpu:")]) >= 2
    assert layer.pytorch is not None and layer.pytorch["algorithm"] == "aten:default"


def test_ranks_come_first_and_are_those_of_tuning(measured: Profile) -> None:
    records = measured.records()
    ranked = [record for record in records if record["rank"] is not None]
    assert [record["rank"] for record in ranked] == list(range(1, len(ranked) + 1))
    assert records[: len(ranked)] == ranked
    for policy in (None, "prefer=memory"):
        tuning.clear()
        layer = _layer(profile(PROBLEM, device="cpu", policy=policy, time_budget_s=0.2))
        (entry,) = tuning.entries()
        assert (policy is not None) == ("prefer=memory" in entry["constraints"])
        kept = [row["algorithm"] for row in entry["measurements"] if row["status"] == "ok"]
        assert [row["algorithm"] for row in layer.ranked] == kept


def test_columns_agree_with_each_other(measured: Profile) -> None:
    layer = _layer(measured)
    info = _C.problem_info(layer.problem)
    assert layer.floor_ms is not None and layer.pytorch is not None
    for record in measured.records():
        if record["median_ms"] is None:
            assert record["tflops"] is record["vs_pytorch"] is None
            assert record["status"] != "ok" and record["reason"]
            continue
        seconds = record["median_ms"] / 1e3
        assert record["tflops"] * 1e12 * seconds == pytest.approx(info["flops"])
        percent = 100 * layer.floor_ms / record["median_ms"]
        assert record["percent_of_peak"] == pytest.approx(percent)
        product = record["vs_pytorch"] * record["median_ms"]
        assert product == pytest.approx(layer.pytorch["median_ms"])
        assert record["spread_ms"] >= 0
    aten = next(r for r in measured.records() if r["algorithm"] == "aten:default")
    assert aten["vs_pytorch"] == pytest.approx(1)


def test_good_rows_are_within_their_tolerance(measured: Profile) -> None:
    assert len(_layer(measured).ranked) >= 3
    for row in _layer(measured).ranked:
        assert row["error"] is not None
        assert 1e-9 < row["error"] < 1e-6  # sums of at most 128 products in float32
        assert row["error"] <= _C.tolerance(_layer(measured).problem, row["notes"])


def test_the_current_choice_is_marked_once(measured: Profile) -> None:
    marked = [record["algorithm"] for record in measured.records() if record["current"]]
    layer = _layer(measured)
    assert marked == [_C.decide(layer.problem, "cpu")["algorithm"]]


def test_a_pinned_choice_is_the_current_one() -> None:
    result = profile(PROBLEM, device="cpu", policy=Policy(fwd="cpu:im2col"))
    assert [r["algorithm"] for r in result.records() if r["current"]] == ["cpu:im2col"]
    assert len(_layer(result).ranked) > 1  # a pin keeps nothing from being measured


def test_aten_is_timed_where_the_policy_does_not_admit_it() -> None:
    result = profile(PROBLEM, device="cpu", policy="backends=cpu")
    layer = _layer(result)
    assert layer.pytorch is not None and layer.pytorch["median_ms"] is not None
    assert layer.pytorch["status"] == "excluded"
    assert layer.pytorch["reason"].startswith("baseline only")
    assert all(row["backend"] == "cpu" for row in layer.ranked)
    assert _fields(result.best())["fwd"] != "aten:default"


def test_best_pins_the_first_rank_and_runs(measured: Profile) -> None:
    layer = _layer(measured)
    policy = measured.best()
    pass_name = layer.op.removeprefix("conv_")
    assert _fields(policy)[pass_name] == layer.ranked[0]["algorithm"]
    assert _C.decide(layer.problem, "cpu", str(policy))["algorithm"] == _fields(policy)[pass_name]
    with pytest.raises(KeyError, match="got 'zz', wanted none: these layers have no names"):
        measured.best(layer="zz")


def test_best_keeps_its_constraints() -> None:
    result = profile(PROBLEM, device="cpu")
    layer = _layer(result)
    for row in layer.ranked:
        cap = row["workspace_bytes"]
        if cap is None:
            continue
        chosen = layer.find(_fields(result.best(max_workspace=cap))["fwd"])
        assert chosen is not None and chosen["workspace_bytes"] is not None
        assert chosen["workspace_bytes"] <= cap
    chosen = layer.find(_fields(result.best(deterministic=True))["fwd"])
    assert chosen is not None and chosen["deterministic"] is True


def test_best_carries_the_numerics_that_were_allowed() -> None:
    result = profile(PROBLEM, device="cpu", policy="allow_reduced_range")
    assert _fields(result.best())["allow_reduced_range"] is True


@pytest.mark.parametrize("memory", [False, True])
def test_tuning_beside_pytorchs_profiler(memory: bool, device: str) -> None:
    x, w = (torch.randn(*sizes, device=device) for sizes in ((2, 3, 9, 9), (4, 3, 3, 3)))
    with torch.profiler.profile(profile_memory=memory) as profiler:
        y = ops.conv2d(x, w, policy="autotune")
    assert newest("conv_fwd").why == "tuned"
    torch.testing.assert_close(y, torch.conv2d(x, w), rtol=1e-2, atol=1e-2)
    assert "torch_cudnn_ext::conv2d" in {event.key for event in profiler.key_averages()}


def test_best_takes_caps_as_policies_do() -> None:
    result = profile(PROBLEM, device="cpu")
    for cap in (2**40, "1024GiB", "1000000MB", "100%"):
        assert result.best(max_workspace=cap).text == result.best().text
        assert make_settings("cpu", policy=f"max_workspace={cap}").max_workspace_bytes is not None


@pytest.mark.parametrize("cap", ["64 elephants", "x%", "-1"])
def test_a_bad_cap_is_refused(cap: str) -> None:
    result = Profile([], make_settings("cpu"))
    with pytest.raises(ValueError, match=f"max_workspace: got '{cap}', wanted"):
        result.best(max_workspace=cap)


def test_a_cap_of_the_policy_is_the_summary_s() -> None:
    result = profile(PROBLEM, device="cpu", policy="max_workspace=0")
    (total,) = result.totals()
    rows = [row for row in _layer(result).ranked if row["workspace_bytes"] == 0]
    assert total.capped_ms == (rows[0]["median_ms"] if rows else None)
    assert total.missing["capped"] == (0 if rows else 1)
    assert any(row["workspace_bytes"] for row in _layer(result).ranked)
    layer = _layer(result)
    assert (layer.current is None) == bool(layer.current_error) == (not rows)
    assert ("the current policy runs none of them" in result.to_markdown()) == (not rows)


def test_totals_weigh_layers_by_their_count() -> None:
    settings = make_settings("cpu")
    layers = [Layer(PROBLEM, ("a", "b"), 2), Layer(OTHER, ("c",), 1)]
    result = Profile(list(measure_layers(layers, settings)), settings)
    (total,) = result.totals()
    first, second = result.layers
    assert total.best_ms == pytest.approx(
        2 * (first.ranked[0]["median_ms"] or 0) + (second.ranked[0]["median_ms"] or 0)
    )
    assert total.best_ms is not None and total.pytorch_ms is not None
    assert total.best_ms <= 1.01 * total.pytorch_ms + 3 * 0.0005  # ms, as ties are
    assert total.missing == {"pytorch": 0, "heuristic": 0, "best": 0, "capped": 0}


def test_a_backward_is_summed_once() -> None:
    line = "cell=lstm x=f32[2,3,3]:nchw hidden=4 layers=1 bidirectional=false train=true"
    problems = [_C.canonical_problem(f"rnn_{name} {line}") for name in ("fwd", "bwd")]
    settings = make_settings("cpu", time_budget_s=0.1)
    layers = list(measure_layers([Layer(line) for line in [*problems, PROBLEM]], settings))
    totals = {total.label: total.best_ms for total in Profile(layers, settings).totals()}
    forward, backward, other = (layer.ranked[0]["median_ms"] for layer in layers)
    assert forward and backward and other
    assert totals["rnn_bwd"] == backward and totals["all rnn"] == forward
    assert totals["all passes"] == pytest.approx(forward + other)
    assert Profile(layers[1:2], settings).totals()[0].best_ms == backward


def test_json_has_no_nan(measured: Profile) -> None:
    result = dataclasses.replace(measured, layers=[copy.deepcopy(_layer(measured))])
    result.layers[0].rows[0]["error"] = float("nan")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    layer = json.loads(result.to_json(), parse_constant=refuse)["layers"][0]
    assert layer["rows"][0]["error"] is None
    assert math.isnan(result.layers[0].rows[0]["error"])


def test_formats_hold_the_same_rows(measured: Profile) -> None:
    records = measured.records()
    frame = measured.to_pandas()
    assert list(frame["algorithm"]) == [record["algorithm"] for record in records]
    read = list(csv.DictReader(io.StringIO(measured.to_csv())))
    assert [row["algorithm"] for row in read] == list(frame["algorithm"])
    assert float(read[0]["median_ms"]) == records[0]["median_ms"]
    whole = json.loads(measured.to_json())
    assert [row["algorithm"] for row in whole["layers"][0]["rows"]] == list(frame["algorithm"])
    assert whole["versions"]["torch"] == torch.__version__
    for text in (measured.to_markdown(), measured._repr_html_()):
        for row in _layer(measured).ranked:
            assert row["algorithm"] in text


def test_the_host_s_time_has_a_column_where_it_is_known() -> None:
    result = profile(PROBLEM, device="cpu", time_budget_s=0.2)
    assert all(record["host_ms"] is None for record in result.records())
    plain = result.to_markdown()
    assert "host us" not in plain and "ranked by" not in plain
    _layer(result).ranked[0]["host_ms"] = 0.01234
    for text in (result.to_markdown(), result._repr_html_()):
        assert "host us" in text and "12.3" in text
        assert "ranked by the longer of ms and host us" in text
    headings = next(line for line in result.to_markdown().splitlines() if "host us" in line)
    assert "| spread | host us | workspace |" in headings
    assert result.records()[0]["host_ms"] == result.to_pandas()["host_ms"][0] == 0.01234
    assert next(csv.DictReader(io.StringIO(result.to_csv())))["host_ms"] == "0.01234"
    assert json.loads(result.to_json())["layers"][0]["rows"][0]["host_ms"] == 0.01234


def test_titles_and_footers_are_what_they_are_in_every_format(measured: Profile) -> None:
    line, where = _layer(measured).problem, "measured on cpu"
    marked, plain = measured.to_markdown(), measured._repr_html_()
    assert f"<b>{line}<br>{where}</b>" in plain
    assert f"**{line}**  \n**{where}**\n" in marked
    assert "\n\\* what the current policy runs; not shown: " in marked
    assert not re.search(r"(?m)^\*(?!\*)", marked)
    for text in (marked, plain, str(measured)):
        assert "(show_all=True shows them)" in text and "--" not in text.replace("---", "")


def test_print_shows_the_rest_on_request(
    measured: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    measured.print(top=1)
    short = capsys.readouterr().out
    measured.print(show_all=True)
    long = capsys.readouterr().out
    layer = _layer(measured)
    assert layer.problem in short and "aten:default" in short
    for row in layer.rows:
        assert row["reason"] in long
        assert row["algorithm"] in long or f" of {row['backend']}" in long
    refused = [row for row in layer.rows if row["median_ms"] is None]
    assert ("not shown" in short) == bool(refused)
    assert "not shown" not in long


def test_a_profile_reads_as_its_tables(measured: Profile) -> None:
    assert str(measured) == measured.to_markdown()
    assert repr(measured) == f"<Profile of 1 problems on cpu: {_layer(measured).problem}>"


@pytest.mark.parametrize("columns", ["60", "0"])
def test_algorithms_stay_whole_where_a_terminal_is_narrow(
    measured: Profile,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    measured.print()
    lines = capsys.readouterr().out.splitlines()
    for row in _layer(measured).ranked:
        assert any(row["algorithm"] in line.split() for line in lines)


def test_a_model_s_convolutions_are_counted_and_named() -> None:
    model = Network().eval()
    names = {}
    for layer in convolutions(model, torch.randn(2, 4, 8, 8), ["fwd"]):
        names[layer.problem] = (layer.names, layer.count)
    same = (
        "conv_fwd x=f32[2,4,8,8]:nchw w=f32[4,4,3,3]:nchw pad=1 stride=1 dilation=1 groups=1 "
        "compute=f32 bias=f32"
    )
    assert names[same] == (("first", "second"), 3)
    depthwise = same.replace("[4,4,3,3]", "[4,1,3,3]").replace("groups=1", "groups=4")
    assert names[depthwise] == (("depthwise",), 1)
    assert len(names) == 3


@pytest.mark.parametrize(
    ("pass_name", "op"),
    [("fwd", "conv_bwd_data"), ("bwd_data", "conv_fwd"), ("bwd_filter", "conv_bwd_filter")],
)
def test_a_transposed_convolution_s_problem_is_the_primitive_s(pass_name: str, op: str) -> None:
    up = nn.ConvTranspose2d(4, 2, 2, stride=2)
    (layer,) = convolutions(up, torch.randn(2, 4, 8, 8, requires_grad=True), [pass_name])
    assert layer.problem.startswith(
        f"{op} x=f32[2,2,16,16]:nchw w=f32[4,2,2,2]:nchw pad=0 stride=2"
    )
    assert layer.note == f"{pass_name} of ConvTranspose2d"


@pytest.mark.parametrize(
    ("module", "shape", "text"),
    [
        (nn.Conv1d(3, 4, 3), (3, 9), "x=f32[1,3,9]"),
        (nn.Conv2d(3, 4, 2, padding="same"), (1, 3, 6, 6), "x=f32[1,3,7,7]:nchw w=f32[4,3,2,2]"),
        (nn.Conv2d(3, 4, 3, padding="valid"), (1, 3, 6, 6), "pad=0"),
        (nn.Conv2d(3, 4, 3, padding=(1, 2)), (1, 3, 6, 6), "pad=1,2"),
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (1, 3, 6, 6), "x=f32[1,3,8,8]"),
        (nn.Conv3d(3, 4, 3, dilation=2), (1, 3, 9, 9, 9), "dilation=2"),
    ],
)
def test_what_meets_the_convolution(module: nn.Module, shape: tuple[int, ...], text: str) -> None:
    (layer,) = convolutions(module, torch.randn(shape), ["fwd"])
    assert text in layer.problem


def test_running_a_model_leaves_it_as_it_was() -> None:
    model = Network().train()
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    convolutions(model, torch.randn(2, 4, 8, 8))
    assert model.training and model.up.training and not model.norm.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(not module._forward_hooks for module in model.modules())


def test_channels_last_autocast_and_meta_are_seen() -> None:
    conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    (layer,) = convolutions(conv, x, ["fwd"])
    assert "x=f32[2,4,8,8]:nhwc" in layer.problem
    with torch.autocast("cpu", torch.bfloat16):
        (layer,) = convolutions(conv, x, ["fwd"])
    assert "x=bf16[2,4,8,8]:nhwc" in layer.problem and "w=bf16" in layer.problem
    (layer,) = convolutions(conv.to("meta", torch.half), x.to("meta", torch.half), ["fwd"])
    assert "x=f16[2,4,8,8]:nhwc" in layer.problem


def test_a_model_without_convolutions_and_a_wrong_pass_are_refused() -> None:
    wanted = "model: Hardsigmoid called no operator .*; it called aten.hardsigmoid; trace.. sees"
    with pytest.raises(ValueError, match=wanted):
        network_layers(nn.Hardsigmoid(), torch.randn(2, 2))
    with pytest.raises(
        ValueError, match="passes: got 'forward', wanted some of fwd,bwd,infer,bwd_data"
    ):
        convolutions(nn.Conv1d(2, 2, 1), torch.randn(2, 2, 2), ["forward"])
    with pytest.raises(TypeError, match=r"passes: got 'fwd' \(str\), wanted a list"):
        profile_model(nn.Conv1d(2, 2, 1), torch.randn(2, 2, 2), passes="fwd", device="cpu")
    with pytest.raises(TypeError, match=r"passes: got 5 \(int\), wanted a list"):
        profile_model(nn.Conv1d(2, 2, 1), torch.randn(2, 2, 2), passes=5)  # type: ignore[arg-type]


def test_all_kinds_are_profiled_with_their_shares() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1), nn.Hardsigmoid()).train()
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    result = profile_model(model, x, device="cpu", time_budget_s=0.1)
    assert [layer.op for layer in result.layers] == [*PASSES, "softmax_fwd", "softmax_bwd"]
    assert result.not_profiled == {"aten.hardsigmoid": 1}
    assert json.loads(result.to_json())["not_profiled"] == result.not_profiled
    totals = {line.label: line for line in result.totals()}
    kinds, whole = [totals["all conv"], totals["all softmax"]], totals["all passes"]
    assert whole.best_ms is not None and whole.shares == {}
    for name in ("pytorch", "heuristic", "best", "capped"):
        assert sum(kind.shares[name] for kind in kinds) == pytest.approx(1)
    assert kinds[1].shares["best"] == pytest.approx((kinds[1].best_ms or 0) / whole.best_ms)
    text = result.to_markdown()
    assert "all softmax" in text and "%)" in text and "aten.hardsigmoid x1" in text
    assert result.best(layer="1").family == "softmax"


def test_a_model_in_training_is_profiled_in_training() -> None:
    norm = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Dropout()).train()
    x = torch.randn(2, 3, 8, 8)
    state = torch.random.get_rng_state()
    network_layers(model, x)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert norm.num_batches_tracked == 0
    assert norm.running_var is not None and torch.equal(norm.running_var, torch.ones(4))


@pytest.mark.parametrize(
    "layer", [nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.ELU(inplace=True)], ids=str
)
def test_activations_in_place_have_their_backward(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), layer)
    x = torch.randn(2, 3, 8, 8)
    work = network_layers(model, x)
    listed = {line.problem for line in work.layers if line.problem.startswith("activation")}
    with converted(model):
        with recording():
            model(x).sum().backward()
            ran = [call["problem"] for call in _C.recorded() if not isinstance(call, str)]
    assert listed == {line for line in ran if line.startswith("activation")}
    assert any(line.startswith("activation_bwd") for line in listed)


def test_the_gradients_of_a_product_are_its_backward() -> None:
    model, x = nn.Linear(3, 4), torch.randn(2, 3, requires_grad=True)

    def listed(*passes: str) -> list[str]:
        return [layer.problem for layer in network_layers(model, x, passes).layers]

    forward, backward = listed("fwd"), listed("bwd")
    assert (len(forward), len(backward)) == (1, 2)
    assert listed("fwd", "bwd") == forward + backward
    assert listed("fwd", "bwd_data") == forward


class Stem(nn.Module):
    """Patches as a transformer makes them; its first layer gets gradients in another layout."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.LayerNorm(8)
        self.unused = nn.Softmax(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        self.unused(x)
        out: torch.Tensor = self.norm(x)
        return out


class Frozen(nn.Module):
    """Trains its last layers alone, with pooling before and between."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.fixed.requires_grad_(False)
        self.act = nn.ReLU(inplace=True)
        self.trained = nn.Conv2d(4, 4, 3)
        self.trained.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.trained(self.act(F.avg_pool2d(self.trained(self.fixed(x)), 2)))}


@pytest.mark.parametrize("place", ["cpu", "meta"])
@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("kind", [Stem, Frozen, Network])
def test_what_a_backward_meets_is_profiled_and_nothing_else(
    kind: type[nn.Module], wants: bool, place: str
) -> None:
    model, x = kind().train(), torch.randn(2, 4 if kind is Network else 3, 32, 32)
    lines = [line.partition("  # ") for line in trace(model, x.requires_grad_(wants))]
    met = {line: int(rest.rpartition("x")[2]) for line, _, rest in lines}
    led = {line for problem in met for line in coupled_problems(problem)}
    model, x = model.to(place), x.to(place)
    with torch.no_grad():  # as around any other look at a model
        work = network_layers(model, x)
    calls = {layer.problem: layer.count for layer in work.layers}
    kinds = ("conv", "layer_norm", "batch_norm", "softmax")
    assert {p: n for p, n in calls.items() if p.startswith(kinds)} == {
        p: n for p, n in met.items() if p.startswith(kinds) and p not in led
    }


def test_a_pass_that_a_network_does_not_meet_is_refused() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    wanted = (
        "passes: got 'bwd_data', wanted some that Conv2d meets on these inputs, fwd,bwd_filter; "
        "inputs have a gradient if"
    )
    with pytest.raises(ValueError, match=wanted):
        network_layers(model, x, ["bwd_data"])
    (layer,) = network_layers(model, x.requires_grad_(), ["bwd_data"]).layers
    assert layer.problem.startswith("conv_bwd_data")
    assert x.grad is None and model.weight.grad is None


def test_a_network_without_a_gradient_has_the_passes_of_its_layers() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 8, 8)
    ops = [*PASSES, "softmax_fwd", "softmax_bwd"]
    model.requires_grad_(False)
    assert [layer.problem.split()[0] for layer in network_layers(model, x).layers] == ops


class OwnForward(nn.LayerNorm):
    """As libraries have them: it ends in PyTorch's function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def test_functions_are_profiled_by_the_module_that_calls_them() -> None:
    model, x = nn.Sequential(nn.Linear(3, 4), OwnForward(4), OwnForward(4)), torch.randn(2, 3)
    work = network_layers(model, x)
    assert not work.not_profiled
    names = {layer.problem.split()[0]: layer.names for layer in work.layers}
    norms = ("1.layer_norm()", "2.layer_norm()")
    assert names == {"matmul_fwd": ("0",), "layer_norm_fwd": norms, "layer_norm_bwd": norms}


class ByFunction(nn.Module):
    """What `LAYERS` are, without a layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(x, 2), inplace=True)
        x = F.local_response_norm(F.avg_pool2d(torch.relu(x), 3, stride=1, padding=1), 3)
        x = F.adaptive_avg_pool2d(F.silu(F.elu(x, 0.5)), 2).sigmoid()
        x = F.softmax(F.instance_norm(F.group_norm(x, 2)), dim=1)
        return F.log_softmax(F.layer_norm(F.rms_norm(x, (2,)), (2,)), 1).tanh()


LAYERS = nn.Sequential(
    nn.MaxPool2d(2),
    nn.ReLU(inplace=True),
    nn.ReLU(),
    nn.AvgPool2d(3, stride=1, padding=1),
    nn.LocalResponseNorm(3),
    nn.ELU(0.5),
    nn.SiLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Sigmoid(),
    nn.GroupNorm(2, 4, affine=False),
    nn.InstanceNorm2d(4),
    nn.Softmax(1),
    nn.RMSNorm(2, elementwise_affine=False),
    nn.LayerNorm(2, elementwise_affine=False),
    nn.LogSoftmax(1),
    nn.Tanh(),
)


@pytest.mark.parametrize("passes", [["fwd", "bwd"], ["fwd"]])
@pytest.mark.parametrize("meta", [False, True])
def test_functions_and_layers_have_the_same_problems(
    passes: list[str], meta: bool, device: str
) -> None:
    x = torch.randn(2, 4, 8, 8, device="meta" if meta else device, requires_grad=True)

    def calls(model: nn.Module) -> dict[str, int]:
        work = network_layers(model.train(), x, passes)
        assert "aten.native_layer_norm" not in work.not_profiled
        return {layer.problem: layer.count for layer in work.layers}

    expected = calls(LAYERS)
    assert len(expected) >= 12 * len(passes)
    assert calls(ByFunction()) == expected


def test_a_profile_names_functions_and_pins_layers_alone() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.Conv2d(3, 4, 3), ByFunction())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(x)
            out = out.mean((2, 3)) * out.amax(dim=(2, 3)) + out.sum((2, 3), keepdim=True).flatten(1)
            return out @ out.t()

    result = profile_model(Net(), torch.randn(2, 3, 10, 10), device="cpu", time_budget_s=0.01)
    names = result.names()
    assert {"head.0", "head.1.max_pool2d()", "head.1.relu()", "matmul()"} <= set(names)
    assert {"mean()", "amax()", "sum()"} <= set(names)
    assert set(result.best_by_layer()) == {"head.0"}
    assert "fwd" in _fields(result.best(layer="head.1.max_pool2d()"))
    totals = {line.label for line in result.totals()}
    assert {"all conv", "all pool", "all matmul", "all softmax", "all reduce"} <= totals
    assert "head.1.max_pool2d()" in str(result)


def test_a_function_that_ours_does_not_take_is_counted() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.var = nn.Buffer(torch.zeros(4)), nn.Buffer(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out, _ = F.max_pool2d(x, 2, return_indices=True)
            out = torch.ops.aten.elu(out, 1.0, 2.0)
            # In the order of torch's own function, which is another than that of PyTorch's.
            out = torch.batch_norm(out, None, None, self.mean, self.var, True, 0.1, 1e-5, False)
            (index,) = F.adaptive_max_pool2d(x, 1, return_indices=True)[1:]
            wanted: torch.Tensor = F.relu(out) + F.relu(index)
            return wanted

    model = Net().train()
    work = network_layers(model, torch.randn(2, 4, 6, 6))
    assert {layer.problem.split()[0] for layer in work.layers} == {
        "activation_fwd",
        "activation_bwd",
    }
    assert work.not_profiled["aten.max_pool2d_with_indices"] == 1
    assert work.not_profiled["aten.elu"] == work.not_profiled["aten.native_batch_norm"] == 1
    assert not model.mean.any()  # put back


def _with(function: Callable[[torch.Tensor], Any]) -> nn.Module:
    """A network of a linear layer, 4 to 4, and a function."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return function(self.linear(x))

    return Net()


def _functions(work: Workload) -> set[str]:
    return {name for layer in work.layers for name in layer.names if is_function(name)}


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda y: y.mean(axis=1, keepdims=True), "mean()"),
        (lambda y: torch.mm(y, mat2=y), "matmul()"),
        (lambda y: torch.bmm(y[None], mat2=y[None]), "matmul()"),
        (lambda y: y.softmax(-1), "softmax()"),
        (lambda y: F.softmax(y, -1, _stacklevel=5), "softmax()"),
        (lambda y: F.linear(y, weight=y), "linear()"),
    ],
)
def test_functions_are_seen_in_pytorchs_forms(
    function: Callable[[torch.Tensor], torch.Tensor], name: str
) -> None:
    assert _functions(network_layers(_with(function), torch.randn(4, 4))) == {name}


def test_what_our_layers_call_of_pytorchs_is_not_the_network_s() -> None:
    model = nn.Sequential(nn.LPPool2d(2, 2), nn.Flatten(1), nn.LogSoftmax(1))
    work = network_layers(model, torch.randn(2, 4, 8, 8))
    assert {name for layer in work.layers for name in layer.names} == {"0", "2"}

    class Lossy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.loss(x, torch.tensor([0, 1]))
            return loss

    work = network_layers(Lossy(), torch.randn(2, 4), ["fwd"])
    assert [layer.names for layer in work.layers] == [("loss",)]


class _Own(torch.Tensor):
    """Sees to its own functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.mean:
            return "mean"
        return super().__torch_function__(func, types, args, kwargs or {})


def _index_error(y: torch.Tensor) -> torch.Tensor:
    with pytest.raises(IndexError):
        y[:0].argmax(0)
    return y


@pytest.mark.parametrize(
    "function",
    [
        _index_error,
        lambda y: y * len(y.as_subclass(_Own).mean()),
        lambda y: y + torch.tensor([1, 2]).sum() + torch.tensor([True]).sum(),
        lambda y: y + torch.sum(y.detach(), 0, out=torch.empty(4)),
    ],
)
def test_what_is_pytorchs_stays_so(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    work = network_layers(_with(function), torch.randn(2, 4))
    assert {name for layer in work.layers for name in layer.names} == {"linear"}


def test_a_network_that_writes_to_what_ours_keep_is_seen_without_functions() -> None:
    def relu6(y: torch.Tensor) -> torch.Tensor:
        return F.relu6(y, inplace=True).add_(1)

    model, x = _with(relu6), torch.randn(2, 4)
    assert _functions(network_layers(model, x, ["fwd"])) == {"relu6()"}
    work = network_layers(model, x)
    assert not _functions(work) and work.not_profiled["aten.hardtanh_"] == 1
    assert work.without_functions.startswith("RuntimeError: one of the variables needed for")
    told = profile_model(model, x, device="cpu", time_budget_s=0.01)
    assert json.loads(told.to_json())["without_functions"] == work.without_functions
    assert f"since with ours it raised {work.without_functions}" in told.to_markdown()


def test_functions_in_a_checkpoint_are_profiled() -> None:
    def again(y: torch.Tensor) -> Any:
        return checkpoint(F.relu, y, use_reentrant=False).softmax(1)

    work = network_layers(_with(again), torch.randn(2, 4))
    counts = {layer.problem.split()[0]: layer.count for layer in work.layers if layer.names[0]}
    assert counts["activation_fwd"] == 2 and counts["softmax_fwd"] == counts["softmax_bwd"] == 1
    assert not work.without_functions


def test_functions_in_hooks_of_a_layer_are_profiled() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
    model[0].register_forward_pre_hook(lambda module, inputs: (F.softmax(inputs[0], 1),))
    for module in model:
        module.register_forward_hook(lambda module, inputs, output: F.relu(output))
    work = network_layers(model, torch.randn(2, 3, 8, 8), ["fwd"])
    assert _functions(work) == {"0.softmax()", "0.relu()", "1.relu()"}


def test_a_layer_whose_forward_is_called_has_no_name_that_a_pin_may_have() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv.forward(x)

    model = Direct()
    result = profile_model(model, torch.randn(2, 3, 8, 8), device="cpu", time_budget_s=0.01)
    assert result.names() == ["conv2d()"] and result.best_by_layer() == {}


def test_functions_under_vmap_are_pytorchs() -> None:
    def mapped(y: torch.Tensor) -> Any:
        return torch.func.vmap(lambda t: F.softmax(t, 0))(y)

    work = network_layers(_with(mapped), torch.randn(2, 4))
    assert not _functions(work) and work.not_profiled["aten._softmax"] == 1


def test_operators_of_ours_called_by_the_network_do_not_share_a_layer_s_name() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    model[0].register_forward_hook(lambda module, inputs, output: ops.relu(output))
    layers = network_layers(model, torch.randn(2, 3, 8, 8), ["fwd"]).layers
    assert [layer.names for layer in layers] == [("0",), ("0.activation()",)]


def test_inputs_that_cannot_be_compared() -> None:
    class Ignores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(torch.ones(2, 4))
            return out

    assert network_layers(Ignores(), torch.zeros(4, dtype=torch.complex32), ["fwd"]).layers


@pytest.mark.parametrize("look", [network_layers, partial(coverage, backends="cpu")])
def test_what_a_forward_writes_to_is_put_back(look: Callable[..., Any]) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.linear = nn.Embedding(10, 4, max_norm=0.1), nn.Linear(4, 2)

        def forward(self, words: torch.Tensor, scale: torch.Tensor) -> Any:
            with torch.no_grad():
                self.linear.weight.clamp_(-0.01, 0.01)
            return F.relu(self.linear(self.words(words) * scale.mul_(2)))

    model, words, scale = Writes(), torch.arange(3), torch.ones(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    look(model, (words, scale))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert float(scale) == 1


def test_a_network_is_seen_under_knobs_that_leave_no_backend() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 8, 8)
    with knobs.flags(backends="cudnn"):
        assert network_layers(model, x) == network_layers(model, x)
        assert {layer.names for layer in network_layers(model, x).layers} == {("0",), ("1",)}


def test_autocast_in_a_network_is_not_missed_on_the_meta_device() -> None:
    def cast(y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(y, y)

    model, x = _with(cast), torch.randn(4, 4)
    lines = [layer.problem for layer in network_layers(model, x, ["fwd"]).layers]
    assert any("bf16" in line for line in lines)
    with pytest.raises(RuntimeError, match="meta device do not obey autocast"):
        network_layers(model.to("meta"), x.to("meta"), ["fwd"])


def test_proxies_are_of_the_same_calls() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu, self.convs = nn.ReLU(), nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.convs[1](self.relu(self.convs[0](x))))
            return F.relu(self.convs[2](F.max_pool2d(x, 2)).mean((2, 3)))

    layers = network_layers(Net(), torch.randn(4, 4, 16, 16), proxies=True).layers
    sizes = {
        layer.problem: layer.stand_in for layer in layers if layer.problem.startswith("activation")
    }
    numbers = [
        [int(n) for n in re.findall(r"x=f32\[(\d+)", f"{line} {other}")]
        for line, other in sizes.items()
    ]
    assert len(numbers) == 4 and all(whole == 4 * first for whole, first in numbers)


def test_the_best_of_a_network_is_for_its_layers() -> None:
    result = profile_model(
        _with(lambda y: F.relu(y).mean(1)),
        torch.randn(2, 4),
        train=False,
        device="cpu",
        time_budget_s=0.01,
    )
    assert result.best() == result.best(layer="linear")
    assert {"fwd"} == set(_fields(result.best(layer="relu()"))) - {"allow_tf32"}

    twice = profile_model(
        _with(lambda y: F.relu(F.relu(y).mean(1))),
        torch.randn(2, 4),
        train=False,
        device="cpu",
        time_budget_s=0.01,
    )
    small, large = (layer for layer in twice.layers if layer.names == ["relu()"])
    small.rows.sort(key=lambda row: row["algorithm"] != "aten:default")
    large.rows.sort(key=lambda row: row["algorithm"] == "aten:default")
    with pytest.raises(ValueError, match="one policy does not fit: autotune fits them"):
        twice.best(layer="relu()")


def test_attention_s_own_products_are_counted() -> None:
    model = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 2, 4)
    with pytest.raises(ValueError, match="called no operator .* trace.. sees what PyTorch's"):
        network_layers(model, {"query": x, "key": x, "value": x})


def test_a_backward_that_computes_again_is_profiled() -> None:
    conv = nn.Conv2d(3, 3, 3)

    class Again(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(conv, conv(x), use_reentrant=True)

    model, x = Again(), torch.randn(2, 3, 8, 8)
    model.conv = conv
    calls = {layer.problem: layer.count for layer in network_layers(model, x).layers}
    smaller = {p.split()[0]: n for p, n in calls.items() if "[2,3,6,6]" in p}
    assert smaller == {"conv_fwd": 2, "conv_bwd_data": 1, "conv_bwd_filter": 1}


def test_where_the_cpu_stands_in_all_of_a_network_is_measured_at_one_size() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.LayerNorm(6), nn.Flatten(), nn.Linear(144, 5)
    )
    settings = {"target": "h200", "time_budget_s": 0.02, "train": False}
    many = profile_model(model, torch.randn(8, 3, 8, 8), **settings)  # type: ignore[arg-type]
    one = profile_model(model, torch.randn(1, 3, 8, 8), **settings)  # type: ignore[arg-type]
    assert [layer.measured for layer in many.layers] == [layer.problem for layer in one.layers]
    assert all(layer.measured == layer.problem for layer in one.layers)
    assert all(layer.problem != layer.measured for layer in many.layers)


def test_inputs_without_a_batch_in_common() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 2, 1), nn.ReLU()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.relu(self.conv(x)) + y
            return out

    inputs = (torch.randn(4, 3, 2, 2), torch.randn(2, 1, 1))
    result = profile_model(Adds(), inputs, target="h200", time_budget_s=0.02, train=False)
    # The elements of the activation do not tell their batch.
    assert all(layer.measured == layer.problem for layer in result.layers)
    assert "at batch" not in result.to_markdown()
    one_value = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.ReLU())
    result = profile_model(one_value, torch.randn(4, 3, 2, 2), target="h200", time_budget_s=0.02)
    assert all(layer.measured == layer.problem for layer in result.layers)
    lstm = profile_model(
        nn.LSTM(3, 4), torch.randn(5, 6, 3), target="h200", time_budget_s=0.02, train=False
    )
    assert "x=f32[5,1,3]" in lstm.layers[0].measured


def test_proxies_of_a_network_with_a_recurrent_layer() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()
            self.lstm, self.linear = nn.LSTM(32, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.relu(self.conv(x)).permute(0, 3, 1, 2).flatten(2)
            return F.log_softmax(self.linear(self.lstm(y)[0]), -1)

    def lines(batch: int) -> list[Layer]:
        x = torch.randn(batch, 3, 8, 8)
        return network_layers(Reads(), x, proxies=True).layers

    assert [layer.stand_in for layer in lines(4)] == [layer.problem for layer in lines(1)]

    one_step = network_layers(nn.LSTM(5, 6), torch.randn(1, 4, 5), ["fwd"], proxies=True)
    assert "x=f32[1,1,5]" in one_step.layers[0].stand_in

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(5, 6, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return F.relu(self.lstm(packed)[1][0])

    inputs = torch.randn(4, 7, 5), torch.tensor([7, 5, 3, 2])
    packed = network_layers(Packs(), inputs, ["fwd"], proxies=True).layers
    assert [re.findall(r"x=f32\[([\d,]+)", layer.stand_in)[0] for layer in packed] == ["7,1,5", "6"]

    class Rows(nn.Module):  # of images, of which each is a sequence
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 6, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.lstm(x.permute(0, 2, 3, 1).flatten(0, 1))[0])

    rows = network_layers(Rows(), torch.randn(4, 3, 8, 5), ["fwd"], proxies=True).layers
    assert [re.findall(r"x=f32\[([\d,]+)", layer.stand_in)[0] for layer in rows] == ["5,8,3", "240"]


def test_proxies_that_are_equal_over_one_of_the_batch() -> None:
    def elements(problem: str) -> int:
        return int(re.findall(r"x=f32\[(\d+)\]", problem)[0])

    weight = torch.randn(4)
    model = _with(lambda y: torch.cat([torch.tanh(y), torch.tanh(weight)[None]]).tanh())
    layers = network_layers(model, torch.randn(32, 4), ["fwd"], proxies=True).layers
    sizes = {
        elements(layer.problem): elements(layer.stand_in)
        for layer in layers
        if layer.problem.startswith("activation")
    }
    assert sizes == {128: 4, 4: 4, 132: 8}


def test_lengths_are_not_guessed_on_the_meta_device() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        lengths = torch.full((2,), 6, device=y.device), torch.full((2,), 3, device=y.device)
        targets = torch.ones(2, 3, dtype=torch.long, device=y.device)
        return F.ctc_loss(y.log_softmax(-1), targets, *lengths)

    model, x = _with(loss), torch.randn(6, 2, 4)
    lines = [layer.problem for layer in network_layers(model, x).layers]
    assert any(line.startswith("ctc_fwd") and "lengths=full" in line for line in lines)
    with pytest.raises(RuntimeError, match="meta device have no values, which lengths are"):
        network_layers(model.to("meta"), x.to("meta"))


def test_a_model_that_infers_is_profiled_in_eval_mode_without_its_backward() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2))
    x = torch.randn(2, 3, 8, 8)

    def ops(**options: Any) -> list[str]:
        result = profile_model(model, x, device="cpu", time_budget_s=0.02, **options)
        assert all(module.training for module in model.modules())
        return [layer.op for layer in result.layers]

    assert ops(train=False) == ["conv_fwd", "batch_norm_infer", "pool_fwd"]
    assert ops(train=False, passes=["infer"]) == ["batch_norm_infer"]
    assert ops(train=True) == ops() != ops(train=False)
    with pytest.raises(
        ValueError, match="passes: got 'fwd,bwd' with train=False, wanted some of fwd,infer"
    ):
        ops(train=False, passes=["fwd", "bwd"])


@pytest.mark.parametrize("passes", [["infer"], ["fwd"], ["fwd", "infer"]])
def test_inference_is_a_pass_of_its_own(passes: list[str]) -> None:
    (layer,) = network_layers(nn.BatchNorm2d(3).eval(), torch.randn(2, 3, 4, 4), passes).layers
    assert layer.problem.startswith("batch_norm_infer")


def test_rewriting_goes_by_the_tensors_that_a_problem_has() -> None:
    line = "softmax_fwd x=f16[8,64,49]:nchw log=true"
    assert rewrite(line, batch=2, dtype="f32") == "softmax_fwd x=f32[2,64,49]:nchw log=true"
    assert rewrite(line, op="softmax_bwd") == line.replace("_fwd", "_bwd")
    layers = with_passes([Layer(line), Layer(PROBLEM)], ["bwd"])
    ops = [layer.problem.split()[0] for layer in layers]
    assert ops == ["softmax_bwd", "conv_bwd_data", "conv_bwd_filter"]
    with pytest.raises(ValueError, match="passes: softmax has fwd,bwd, got 'bwd_data'"):
        with_passes([Layer(line)], ["bwd_data"])


def test_a_model_s_profile_gives_a_policy_for_each_layer() -> None:
    model = Network()
    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    result = profile_model(model, x, device="cpu", time_budget_s=0.2)
    with pytest.raises(ValueError, match="several problems of conv_"):
        result.best()
    policies = result.best_by_layer()
    names = {"first", "second", "depthwise", "up"}
    assert names <= set(policies)
    for name in names:
        policy = policies[name]
        assert {"fwd", "bwd_data", "bwd_filter"} <= set(_fields(policy)), name
        assert policy == result.best(layer=name)
    with pytest.raises(KeyError, match="nothing"):
        result.best(layer="nothing")


def test_a_layer_that_nothing_keeps_the_cap_of_is_left_out() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Softmax(1))
    result = profile_model(model, torch.randn(2, 3, 4), device="cpu", time_budget_s=0.05)
    assert set(result.best_by_layer(max_workspace="1GiB")) == {"0", "1"}
    for row in next(layer for layer in result.layers if "0" in layer.names).rows:
        row["workspace_bytes"] = 2**31
    assert set(result.best_by_layer(max_workspace="1GiB")) == {"1"}
    with pytest.raises(ValueError, match="no algorithm for max_workspace=1GiB"):
        result.best(max_workspace="1GiB", layer="0")
    with pytest.raises(ValueError, match="max_workspace: got 'lots'"):
        result.best_by_layer(max_workspace="lots")


def test_a_linear_layer_has_a_pin_where_its_three_products_agree() -> None:
    model = nn.Linear(4, 3)
    x = torch.randn(2, 4, requires_grad=True)
    result = profile_model(model, x, device="cpu", time_budget_s=0.05)
    assert [layer.op for layer in result.layers] == ["matmul_fwd"] * 3
    common = {row["algorithm"] for row in result.layers[0].rows if row["status"] == "ok"}
    for layer in result.layers:
        common &= {row["algorithm"] for row in layer.ranked}
    first, second = sorted(common)[:2]
    for layer in result.layers:
        layer.rows.sort(key=lambda row: row["algorithm"] != first)
    assert _fields(result.best_by_layer()[""]) == {"fwd": first}
    assert result.best(layer="") == result.best_by_layer()[""]
    result.layers[1].rows.sort(key=lambda row: row["algorithm"] != second)
    assert result.best_by_layer() == {}
    with pytest.raises(ValueError, match="several problems of matmul_fwd"):
        result.best(layer="")


def test_profiling_leaves_the_random_state_as_it_is() -> None:
    _measured_peaks.cache_clear()  # they are measured once a process
    state = torch.get_rng_state()
    profile(PROBLEM, device="cpu", time_budget_s=0.05)
    assert torch.equal(torch.get_rng_state(), state)


def test_peaks_are_of_the_device_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = measured_peaks("cpu", "f32", allow_tf32=False)
    assert measured_peaks("cpu", "f32", allow_tf32=False) is now
    monkeypatch.setattr(_C, "device_fingerprint", lambda device: f"{device} of more threads")
    assert measured_peaks("cpu", "f32", allow_tf32=False) is not now


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_cpu_s_peak_in_half_types_is_at_least_that_of_float32(dtype: str) -> None:
    _measured_peaks.cache_clear()
    floats = measured_peaks("cpu", "f32", allow_tf32=False)
    halves = measured_peaks("cpu", dtype, allow_tf32=False)
    assert halves.flops_per_second > 0.5 * floats.flops_per_second  # the rest is noise


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="device: got 'tpu', wanted"):
        make_settings("tpu")
    with pytest.raises(ValueError, match="wanted one"):
        make_settings("cuda", "h200")
    with pytest.raises(ValueError, match="time_budget_s: got -1"):
        make_settings("cpu", time_budget_s=-1)
    with pytest.raises(ValueError, match="time_budget_s: got nan"):
        make_settings("cpu", time_budget_s=float("nan"))
    with pytest.raises(ValueError, match="time_budget_s: got '1', wanted seconds"):
        make_settings("cpu", time_budget_s="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time_budget_s: got '1', wanted seconds"):
        tuning.tune(PROBLEM, device="cpu", time_budget_s="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="jobs: got '2', wanted 1 or more"):
        tuning.tune(PROBLEM, device="cpu", jobs="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"problems: got 1 \(int\), wanted problem lines"):
        tuning.tune([1], device="cpu")  # type: ignore[list-item]
    with pytest.raises(ValueError, match="jobs: got True, wanted 1 or more"):
        tuning.tune([PROBLEM], device="cpu", jobs=True)
    with pytest.raises(ValueError, match="jobs: got True, wanted 1 or more"):
        next(compare_networks(["resnet18"], ["f32"], NetworkSettings(False, "cpu", jobs=True)))


def _never_run() -> nn.Module:
    model = nn.Linear(1, 1)

    def fail(*_: object) -> None:
        raise AssertionError("it ran")

    model.register_forward_pre_hook(fail)
    return model


@pytest.mark.parametrize(
    "measure",
    [
        lambda progress: profile(PROBLEM, device="cpu", progress=progress),
        lambda progress: profile_model(_never_run(), torch.ones(1), progress=progress),
        lambda progress: tuning.tune_model(_never_run(), torch.ones(1), progress=progress),
        lambda progress: next(compare_layers([], make_settings(), progress=progress)),
        lambda progress: tuning.tune(PROBLEM, device="cpu", progress=progress),
        lambda progress: next(measure_overhead("cpu", progress)),
        lambda progress: next(compare_modules([], ["f32"], False, "cpu", progress=progress)),
        lambda progress: next(
            compare_networks(["resnet18"], ["f32"], NetworkSettings(False, "cpu"), progress)
        ),
    ],
)
def test_progress_that_cannot_be_told(measure: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"progress: got 3 \(int\), wanted an object with the meth"):
        measure(3)
    with pytest.raises(
        TypeError, match=r"progress: got namespace\(.*\) \(SimpleNamespace\), wanted"
    ):
        measure(SimpleNamespace(problem=1, algorithm=2))


def test_a_problem_is_tuned_once() -> None:
    told = []

    class Told:
        def problem(self, done: int, total: int, text: str) -> None:
            told.append((total, text))

        def algorithm(self, done: int, total: int, text: str) -> None: ...

    lines = [PROBLEM, PROBLEM.replace("pad=1", "pad=1,1"), OTHER, PROBLEM]
    best = tuning.tune(lines, device="cpu", time_budget_s=0.1, progress=Told())
    assert told == [(2, line) for line in best] and [*best] == [PROBLEM, OTHER]
    with pytest.raises(TypeError, match=r"problems: got 5 \(int\), wanted problem lines"):
        tuning.tune(5, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_samples: got 0"):
        make_settings("cpu", min_samples=0)
    with pytest.raises(ValueError, match="min_samples: got 'a', wanted at least 1"):
        profile(PROBLEM, min_samples="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"problem: got \[\] \(list\), wanted a problem line"):
        profile([])  # type: ignore[arg-type]


def test_a_device_is_checked_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert (checked_device(), checked_device("cuda:1")) == ("cuda", "cuda:1")
    assert checked_device(torch.device("cpu")) == "cpu"
    with pytest.raises(RuntimeError, match="device: got 'cuda:2', but PyTorch finds 2 CUDA dev"):
        checked_device("cuda:2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert checked_device() == "cpu"
    with pytest.raises(RuntimeError, match="device: got 'cuda', but PyTorch finds no CUDA device"):
        tuning.tune(PROBLEM, device="cuda")
    with pytest.raises(ValueError, match="device: got 'gpu', wanted 'cpu', 'cuda' or"):
        tuning.tune(PROBLEM, device="gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_cuda_is_refused_and_h200_is_the_target() -> None:
    with pytest.raises(RuntimeError, match="no CUDA device"):
        make_settings("cuda")
    settings = make_settings()
    assert (settings.device, settings.target) == ("cpu", "h200")
    assert make_settings("cpu").target is None


def test_a_target_is_listed_and_the_cpu_takes_a_smaller_batch() -> None:
    large = rewrite(PROBLEM, batch=4096).replace("[4096,4,8,8]", "[4096,4,32,32]")
    result = profile(large, target="h200", time_budget_s=0.5)
    layer = _layer(result)
    assert layer.problem == large
    assert "x=f32[1,4,32,32]" in layer.measured
    assert layer.listed_for == "target:h200"
    assert any(row["status"] == "ok" and row["backend"] == "graph" for row in layer.listed)
    assert "at batch 1" in result.to_markdown()
    listed = [record for record in result.records() if record["device"] == "target:h200"]
    assert listed and all(record["median_ms"] is None for record in listed)


# Problem lines.


@pytest.mark.parametrize("name", sorted(path.stem for path in PROBLEM_FOLDER.glob("*.txt")))
def test_shipped_problems_are_canonical_and_distinct(name: str) -> None:
    layers = read_problems(name)
    text = (PROBLEM_FOLDER / f"{name}.txt").read_text()
    assert all(layer.count == len(layer.names) for layer in layers)
    lines = [line.split("#")[0].strip() for line in text.splitlines() if not line.startswith("#")]
    assert [layer.problem for layer in layers] == lines


@pytest.mark.parametrize(
    ("name", "calls"), [("resnet50", 53), ("vgg16", 13), ("alexnet", 5), ("mobilenet_v2", 52)]
)
def test_shipped_problems_count_every_convolution(name: str, calls: int) -> None:
    assert sum(layer.count for layer in read_problems(name)) == calls


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "alexnet", "mobilenet_v2"])
def test_shipped_problems_are_those_of_the_network(name: str) -> None:
    pytest.importorskip("torchvision")
    layers = network_layers(*load_model(name), ["fwd"]).layers
    found = [layer for layer in layers if layer.problem.startswith("conv_fwd ")]
    shipped = read_problems(name)
    assert sorted(layer.problem for layer in shipped) == sorted(layer.problem for layer in found)


def test_rewrite_changes_what_it_is_asked_for() -> None:
    text = rewrite(PROBLEM, op="conv_bwd_filter", dtype="f64", batch=5, channels_last=True)
    assert text == (
        "conv_bwd_filter x=f64[5,4,8,8]:nhwc w=f64[6,4,3,3]:nhwc pad=1 stride=1 dilation=1 "
        "groups=1 compute=f64"
    )
    assert rewrite(PROBLEM) == PROBLEM
    sequences = _C.canonical_problem("conv_bwd_filter x=f32[2,4,8]:nchw w=f32[6,4,3]:nchw")
    assert rewrite(sequences, channels_last=True) == sequences  # as its operator takes them
    biased = f"{PROBLEM} bias=f32"
    assert rewrite(biased, dtype="bf16") == f"{rewrite(PROBLEM, dtype='bf16')} bias=bf16"
    assert rewrite(biased, op="conv_bwd_data") == rewrite(PROBLEM, op="conv_bwd_data")
    layers = with_passes([Layer(PROBLEM, ("a",), 3)], ["fwd", "bwd_data"])
    assert [layer.problem.split()[0] for layer in layers] == ["conv_fwd", "conv_bwd_data"]
    assert all(layer.count == 3 for layer in layers)


def test_convolution_arguments_expand_and_refuse() -> None:
    arguments = convolution_arguments(PROBLEM.replace("pad=1", "pad=1,2"))
    assert arguments._asdict() == {
        "stride": [1, 1],
        "padding": [1, 2],
        "dilation": [1, 1],
        "groups": 1,
    }
    assert convolution_arguments(PROBLEM + " bias=f32") == convolution_arguments(PROBLEM)
    with pytest.raises(ValueError, match="wanted none of them, .* profile takes them"):
        convolution_arguments(PROBLEM + " mode=conv")


def test_problem_files_are_read_with_names_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(f"# a comment\n\n{PROBLEM}  # a, b x4\n{OTHER}\n{PROBLEM} # c\n")
    layers = read_problems(file)
    assert [(layer.names, layer.count) for layer in layers] == [(("a", "b", "c"), 5), ((), 1)]
    file.write_text(f"{PROBLEM}\nconv_fwd nonsense\n")
    with pytest.raises(ValueError, match="line 2"):
        read_problems(file)
    file.write_text(f"{PROBLEM}  # the first layer of my net\n{OTHER} #x2\n")
    found = [(layer.names, layer.count) for layer in read_problems(file)]
    assert found == [(("the first layer of my net",), 1), ((), 2)]
    file.write_text(f"{PROBLEM}  # a,x2\n{OTHER} # a, b, x3,\n")
    found = [(layer.names, layer.count) for layer in read_problems(file)]
    assert found == [(("a",), 2), (("a", "b"), 3)]
    for count in ("x0", f"x1{'0' * 5000}"):
        file.write_text(f"{PROBLEM}  # a {count}\n")
        with pytest.raises(ValueError, match=f"line 1: got {count:.20}, wanted x1 to x1000000000"):
            read_problems(file)


def test_shipped_problems_are_found_where_no_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = read_problems("vgg16")
    assert len(shipped) > 1
    spellings = ("vgg16.txt", "problems/vgg16.txt", Path("problems/vgg16.txt"))
    assert all(read_problems(spelling) == shipped for spelling in spellings)
    for wrong in ("vgg17.txt", "mine/vgg16.txt", "../problems/vgg16.txt"):
        with pytest.raises(ValueError, match=f"got '{wrong}', wanted a file .* or one of alexnet,"):
            read_problems(wrong)
    (tmp_path / "problems").mkdir()
    for own in ("vgg16.txt", "problems/vgg16.txt"):
        (tmp_path / own).write_text(f"{PROBLEM}\n")
        assert [layer.problem for layer in read_problems(own)] == [PROBLEM]


def test_shards_are_a_partition() -> None:
    layers = read_problems("resnet50")
    parts = [shard(layers, f"{i}/4") for i in range(1, 5)]
    assert sorted(p.problem for part in parts for p in part) == sorted(p.problem for p in layers)
    for wrong in ("0/4", "5/4", "4", "a/b"):
        with pytest.raises(ValueError, match="wanted i/n"):
            shard(layers, wrong)


# Resuming.


def test_finished_problems_are_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    settings = make_settings("cpu")
    first = list(measure_layers([Layer(PROBLEM)], settings, Journal(path)))
    with path.open("a") as file:
        file.write('{"key": "torn in the mid')
    journal = Journal(path)
    again = list(measure_layers([Layer(PROBLEM, ("a",)), Layer(OTHER)], settings, journal))
    assert again[0].rows == first[0].rows
    assert again[0].names == ["a"]
    assert len(path.read_text().splitlines()) == 2
    (third,) = measure_layers([Layer(OTHER)], settings, Journal(path))
    assert third.rows == again[1].rows


@pytest.mark.parametrize(
    "level",
    [{"max_workspace": "4KiB"}, {"backends": "cudnn,cpu"}, {"deterministic": True}],
    ids=str,
)
def test_pytorchs_own_row_is_there_whatever_knobs_say(level: Any, device: str) -> None:
    problem = PROBLEM.replace("conv_fwd", "conv_bwd_filter")
    with knobs.flags(**level):
        layer = _layer(profile(problem, device=device, time_budget_s=0.5))
    assert layer.pytorch is not None and layer.pytorch["median_ms"] is not None


def test_another_time_budget_is_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    for budget_s in (0.0001, 0.5, 0.5):
        settings = make_settings("cpu", time_budget_s=budget_s)
        list(measure_layers([Layer(PROBLEM)], settings, Journal(path)))
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("policy", "written", "current"),
    [
        (" heuristic ; deterministic=true", "heuristic;deterministic", "aten:default"),
        (
            Policy("autotune"),
            "conv_fwd=autotune;conv_bwd_data=autotune;conv_bwd_filter=autotune",
            "aten:default",
        ),
        ({"fwd": "cpu:im2col"}, "conv_fwd=cpu:im2col", "aten:default"),
        (Policy("cpu:taps", family="pool"), "pool_fwd=cpu:taps;pool_bwd=cpu:taps", "cpu:taps"),
    ],
)
def test_a_policy_of_one_family_leaves_others_alone(
    policy: Any, written: str, current: str
) -> None:
    line = "pool_fwd x=f32[1,2,4,4]:nchw window=2"
    result = profile(line, device="cpu", policy=policy, time_budget_s=0.05)
    assert result.settings.policy == written
    assert _layer(result).current == current


def test_another_policy_is_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    list(measure_layers([Layer(PROBLEM)], make_settings("cpu"), Journal(path)))
    list(
        measure_layers([Layer(PROBLEM)], make_settings("cpu", policy="backends=cpu"), Journal(path))
    )
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("deterministic; max_workspace=65536KiB", "max_workspace=64MiB;deterministic"),
        ("deterministic=false", ""),
    ],
)
def test_constraints_of_kept_choices_may_be_spelled_otherwise(
    tmp_path: Path, written: str, read: str
) -> None:
    file = tmp_path / "choices.jsonl"
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.05)
    tuning.export_table(file)
    entry = json.loads(file.read_text()) | {"constraints": written}
    file.write_text(json.dumps(entry) + "\n")
    tuning.clear()
    assert tuning.import_table(file) == tuning.merge_table(file) == 1
    assert [entry["constraints"] for entry in tuning.entries()] == [read]
    file.write_text(json.dumps(entry | {"constraints": "fwd=cpu:fft"}) + "\n")
    with pytest.raises(ValueError, match="line 1: constraints: got the choice 'fwd=cpu:fft'"):
        tuning.import_table(file)


@pytest.mark.parametrize("policy", ["fwd=cpu:fft", "heuristic", Policy("cpu:taps", family="pool")])
def test_tuning_takes_no_choice(policy: Any) -> None:
    with pytest.raises(ValueError, match="policy: got the choice .*, wanted constraints alone"):
        tuning.tune(PROBLEM, device="cpu", policy=policy)


def test_lines_of_a_trace_may_be_profiled_and_tuned() -> None:
    network = torch.nn.Conv2d(2, 3, 3)
    (line,) = trace(network, torch.ones(1, 2, 4, 4), train=False)
    assert "#" in line
    (problem,) = tuning.tune(line, device="cpu", time_budget_s=0.05)
    assert line.startswith(problem)
    assert _layer(profile(line, device="cpu", time_budget_s=0.05)).problem == problem


def test_a_line_of_a_journal_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    list(measure_layers([Layer(PROBLEM)], make_settings("cpu", time_budget_s=0.05), Journal(path)))
    path.write_text(f"\n{path.read_text()}\n")
    kept = path.read_text()
    list(measure_layers([Layer(PROBLEM)], make_settings("cpu", time_budget_s=0.05), Journal(path)))
    assert path.read_text() == kept


def test_a_damaged_line_before_the_last_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text('nonsense\n{"key": "a", "record": {}}\n')
    with pytest.raises(ValueError, match="line 1: got 'nonsense'"):
        Journal(path)


def test_a_record_with_other_fields_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    settings = make_settings("cpu")
    (first,) = measure_layers([Layer(PROBLEM)], settings, Journal(path))
    entry = json.loads(path.read_text())
    path.write_text("")
    Journal(path).add(entry["key"], entry["record"] | {"of_another_version": 1})
    (again,) = measure_layers([Layer(PROBLEM)], settings, Journal(path))
    assert again.rows != first.rows
    (third,) = measure_layers([Layer(PROBLEM)], settings, Journal(path))
    assert third.rows == again.rows
    journal = Journal(tmp_path / "bench.jsonl")
    journal.add("a", {"problem": PROBLEM})
    assert journal.get("a", Comparison) is None


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text('{"key": "a", "record": [1]}\n')
    with pytest.raises(ValueError, match=r"line 1: got .*\(its record is \[1\]\)"):
        Journal(path)


def test_a_record_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("a", {"rows": [{"median_ms": 0.25}], "error": float("nan")})
    whole = path.read_text()
    assert Journal(path).get("a", dict) is not None
    path.write_text(whole.replace("0.25", '"abc"'))
    with pytest.raises(ValueError, match="line 1: got .*it was changed after it was written"):
        Journal(path)
    path.write_text(whole.replace('"key": "a"', '"key": "b"'))
    with pytest.raises(ValueError, match="line 1: got .*it was changed after it was written"):
        Journal(path)
    entry = json.loads(whole)
    del entry["sum"]
    path.write_text(json.dumps(entry) + "\n")  # as earlier versions wrote it
    assert Journal(path).get("a", dict) is None


def test_a_line_cut_off_within_a_character_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("a", {"x": 1})
    whole = path.read_bytes()
    for torn in (b'{"key": "\xc3', b'{"k', b'{"key": "b", "reco'):
        path.write_bytes(whole + torn)
        assert Journal(path).get("a", dict) == {"x": 1}
        assert path.read_bytes() == whole


def test_a_torn_journal_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("one", {"a": 1})
    path.write_text(text := path.read_text() + '{"key": "tw')

    lines = text.splitlines(keepends=True)
    path.write_text("nonsense\n" + text)
    with pytest.raises(ValueError, match="line 1: got 'nonsense'"):
        Journal(path)
    assert path.read_text() == "nonsense\n" + text
    path.write_text(text)
    Journal(path).add("two", {"b": 2})
    assert path.read_text().startswith(lines[0] + '{"key": "two", ')
    assert [file.name for file in tmp_path.iterdir()] == ["finished.jsonl"]


@pytest.mark.parametrize("text", ['{"key": "mine"}', '{"key": "a", "owner": {"b": [1]}}'])
def test_a_foreign_file_of_one_line_is_no_torn_journal(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    wanted = "wanted a finished problem as JSON .it has no 'record'."
    with pytest.raises(ValueError, match=f"line 1: got .*{wanted}"):
        Journal(path)
    assert path.read_text() == text


def test_a_journal_without_its_last_newline_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("one", {"a": 1})
    whole = path.read_text()
    path.write_text(whole.rstrip("\n"))
    journal = Journal(path)
    assert journal.get("one", dict) == {"a": 1}
    journal.add("two", {"a": 2})
    assert path.read_text().startswith(whole)
    path.write_text(whole.rstrip("\n").replace('"a": 1', '"a": 3'))
    with pytest.raises(ValueError, match="changed after it was written"):
        Journal(path)


def test_processes_that_share_a_journal_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    first = Journal(path)
    first.add("one", {"a": 1})
    with path.open("a") as file:
        file.write('{"key": "tw')  # of one that was killed
    second = Journal(path)
    first.add("three", {"a": 3})
    second.add("four", {"a": 4})
    with path.open("a") as file:
        file.write('{"key": "fi')
    first.add("six", {"a": 6})
    whole = Journal(path)
    assert [whole.get(key, dict) for key in ("one", "three", "four", "six")] == [
        {"a": n} for n in (1, 3, 4, 6)
    ]
    assert len(path.read_text().splitlines()) == 4


def test_a_journal_waits_for_who_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    journal = Journal(path)
    with path.open("a") as file, ThreadPoolExecutor() as threads:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = [threads.submit(Journal, path), threads.submit(journal.add, "one", {"a": 1})]
        assert not wait(waiting, timeout=0.3).done
        fcntl.flock(file, fcntl.LOCK_UN)
        assert not wait(waiting, timeout=60).not_done
    assert Journal(path).get("one", dict) == {"a": 1}


def test_a_journal_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        Journal(tmp_path / "missing" / "finished.jsonl")


def test_an_interruption_keeps_what_was_finished(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"

    class Stop:
        def problem(self, done: int, total: int, text: str) -> None:
            self.done = done

        def algorithm(self, done: int, total: int, text: str) -> None:
            if self.done == 1:
                raise KeyboardInterrupt

    finished = []
    with pytest.raises(KeyboardInterrupt):
        for layer in measure_layers(
            [Layer(PROBLEM), Layer(OTHER)], make_settings("cpu"), Journal(path), Stop()
        ):
            finished.append(layer)
    assert [layer.problem for layer in finished] == [PROBLEM]
    assert len(path.read_text().splitlines()) == 1


# Choices in a file.


def test_links_in_a_circle_are_no_file_of_choices(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.symlink_to(other)
    other.symlink_to(one)
    for function in (tuning.export_table, tuning.merge_table):
        with pytest.raises(OSError, match="symbolic links"):
            function(one)
    assert one.is_symlink() and other.is_symlink()


def test_tensors_are_found_and_replaced_in_every_container() -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        a: object

    one = torch.zeros(1)
    itself = Frozen([one])
    itself.a.append(itself)  # type: ignore[attr-defined]
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 1)])
    values = {
        "list": [one, 5, "text", None, Frozen],
        "structure": torch.zeros(1).max(0),
        "packed": packed,
        "namespace": SimpleNamespace(a=UserDict(b=deque([{one}]))),
        "dataclass": itself,
    }
    values["size"], values["numbers"] = one.shape, range(3)
    detached_values = detached(values)
    assert all(detached_values[name] is values[name] for name in ("size", "numbers"))
    assert [*detached_values] == [*values] and detached_values["list"][1:] == values["list"][1:]
    found = tensors_in(values)
    assert len(found) == 7 and len(tensors_in(detached_values)) == 7
    assert not {id(t) for t in found} & {id(t) for t in tensors_in(detached_values)}
    assert type(detached_values["packed"]) is type(packed)
    assert detached_values["dataclass"].a[1] is detached_values["dataclass"]


def test_what_rules_admit_is_what_is_measured() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False)), torch.randn(1, 3, 8, 8)
    with when("conv_fwd", use="backends=cpu"), torch.no_grad():
        (line,) = tuning.tune_model(model, x, train=False, time_budget_s=0.1)
        rows = _C.candidates(line, "cpu")
        assert {row["algorithm"] for row in rows if row["status"] == "excluded"} >= {"aten:default"}
        with enabled("autotune"):
            model(x)
        assert newest("conv_fwd").why == "cached"


def test_pytorchs_own_row_is_timed_whatever_rules_say() -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3))
    with when("conv_fwd", use="backends=cpu"):
        rows = _layer(profile(OTHER, device="cpu", time_budget_s=0.1)).rows
        (baseline,) = (row for row in rows if row["algorithm"] == "aten:default")
        assert baseline["status"] == "excluded" and baseline["median_ms"] is not None
        with enabled():
            assert explain(model, torch.randn(2, 4, 8, 8), measure=True).calls
    with knobs.flags(backends="cpu"), enabled():
        assert explain(model, torch.randn(2, 4, 8, 8), measure=True).calls


def test_callers_graphs_are_left_alone_in_every_container() -> None:
    @dataclasses.dataclass
    class Box:
        x: torch.Tensor

    class Boxed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, box: Any) -> Any:
            found = box.x if isinstance(box, Box) else box["x"]
            return UserDict(y=SimpleNamespace(z={self.conv(found)}))

    model, x = Boxed(), torch.randn(1, 3, 8, 8, requires_grad=True)
    for kind in (Box, lambda x: [UserDict(x=x)]):
        y = 2 * x
        problems = trace(model, kind(y))
        assert any(line.startswith("conv_bwd_filter") for line in problems)
        profile_model(model, kind(y), device="cpu", time_budget_s=0.01)
        assert x.grad is None
        torch.autograd.grad(y.sum(), x)


def test_buffers_that_grow_are_put_back() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("grown", torch.zeros(0))
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("grown").resize_(4).fill_(1)
            self.get_buffer("count").add_(1)
            out: torch.Tensor = self.conv(x)
            return out

    model = Growing()
    profile_model(model, torch.randn(1, 3, 8, 8), device="cpu", time_budget_s=0.01)
    assert model.get_buffer("grown").shape == (0,) and not model.get_buffer("count").any()


def test_names_in_tables_are_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    made = profile(PROBLEM, device="cpu", time_budget_s=0.01)
    dataclasses.replace(made, title="nets:fire").print()
    assert "nets:fire" in capsys.readouterr().out
    for top, kind in ((-1, ValueError), ("x", TypeError)):
        with pytest.raises(kind, match="^top: got"):
            made.print(top=top)  # type: ignore[arg-type]


def test_choices_travel_through_a_file(tmp_path: Path) -> None:
    best = tuning.tune([PROBLEM, OTHER], device="cpu")
    assert set(best) == {PROBLEM, OTHER}
    assert all(row["status"] == "ok" for row in best.values())
    path = tmp_path / "choices.jsonl"
    before = tuning.entries()
    assert tuning.export_table(path) == len(before) == 2
    tuning.clear()
    assert tuning.entries() == []
    assert tuning.import_table(path) == 2
    by_problem = {entry["problem"]: entry for entry in tuning.entries()}
    assert by_problem == {entry["problem"]: entry for entry in before}
    chosen = _C.decide(PROBLEM, "cpu", "autotune")
    assert chosen["algorithm"] == best[PROBLEM]["algorithm"]
    assert chosen["why"] in ("tuned", "cached")
    assert [file.name for file in tmp_path.iterdir()] == ["choices.jsonl"]


def test_a_share_of_no_device_s_memory_is_refused() -> None:
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    kept = profile_of_table(tuning.entries())
    assert kept.best(max_workspace="1GiB") == kept.best()
    with pytest.raises(ValueError, match="max_workspace: got '20%' for what a file kept"):
        kept.best(max_workspace="20%")


def test_what_tunes_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="model: Hardsigmoid called no operator of this package"):
        tuning.tune_model(nn.Hardsigmoid(), torch.ones(2), train=False)
    with pytest.raises(ValueError, match="knob_search: got 'no', wanted True or False"):
        tuning.tune(PROBLEM, device="cpu", knob_search="no")  # type: ignore[arg-type]


def test_times_under_several_constraints_have_no_totals() -> None:
    for policy in ("allow_tf32", "allow_tf32;deterministic"):
        tuning.tune(PROBLEM, device="cpu", policy=policy, time_budget_s=0.1)
    result = profile_of_table(tuning.entries())
    assert len({layer.note for layer in result.layers}) == 2
    assert result.totals() == [] and "no totals" in result.to_markdown()
    assert "no totals" not in profile_of_table(tuning.entries()[:1]).to_markdown()
    tuning.clear()
    # Of another family other constraints are kept.
    tuning.tune([PROBLEM, "softmax_fwd x=f32[2,3,4]:nchw"], device="cpu", time_budget_s=0.1)
    result = profile_of_table(tuning.entries())
    assert len({layer.note for layer in result.layers}) == 2
    assert [total.label for total in result.totals()][-1] == "all passes"


def test_a_link_to_choices_stays_one(tmp_path: Path) -> None:
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    shared, link = tmp_path / "shared" / "choices.jsonl", tmp_path / "link.jsonl"
    shared.parent.mkdir()
    shared.touch()
    link.symlink_to(shared)
    assert tuning.merge_table(link) == tuning.export_table(link) == 1
    assert link.is_symlink() and len(read_table(shared)) == 1


def test_a_coupled_forward_s_operations_are_those_of_what_was_timed() -> None:
    line = _C.canonical_problem(
        "rnn_fwd cell=lstm x=f32[2,3,3]:nchw hidden=4 layers=1 bidirectional=false train=true"
    )
    (measured,) = profile(line, device="cpu", time_budget_s=0.1).layers
    (kept,) = profile_of_table(tuning.entries()).layers
    listed = list_layer(Layer(line), "cpu", "")
    assert kept.problem == line and kept.flops == listed.flops == measured.flops
    assert measured.flops > _C.problem_info(line)["flops"]


def test_choices_are_read_with_and_without_the_host_s_time(tmp_path: Path) -> None:
    tuning.tune(PROBLEM, device="cpu")
    (entry,) = before = tuning.entries()
    path = tmp_path / "choices.jsonl"
    for row in entry["measurements"]:
        del row["host_ms"]  # type: ignore[misc]
    path.write_text(json.dumps(entry))
    tuning.clear()
    assert tuning.import_table(path) == 1
    assert all(row["host_ms"] is None for row in tuning.entries()[0]["measurements"])
    for row in entry["measurements"]:
        row["host_ms"] = 0.25
    path.write_text(json.dumps(entry))
    assert tuning.import_table(path) == 1
    assert tuning.entries() == before
    entry["measurements"][0]["host_ms"] = "fast"  # type: ignore[typeddict-item]
    path.write_text(json.dumps(entry))
    with pytest.raises(ValueError, match="host_ms is 'fast', wanted one of"):
        tuning.import_table(path)


def test_a_kept_ranking_of_which_nothing_runs_is_measured_anew(tmp_path: Path) -> None:
    tuning.tune(PROBLEM, policy="backends=cpu", device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    path = tmp_path / "choices.jsonl"
    for i, row in enumerate(entry["measurements"]):
        row |= {"algorithm": f"cpu:of_another_version{i}", "backend": "cpu"}
    path.write_text(json.dumps(entry))
    tuning.clear()
    assert tuning.import_table(path) == 1
    choice = _C.decide(PROBLEM, "cpu", "autotune;backends=cpu")
    assert choice["why"] == "tuned"
    (again,) = tuning.entries()
    names = {row["algorithm"] for row in again["measurements"] if row["status"] == "ok"}
    assert choice["algorithm"] in names
    assert not any("another_version" in row["algorithm"] for row in again["measurements"])


def test_jobs_tune_what_one_process_would() -> None:
    torch.use_deterministic_algorithms(True)
    with pushed("max_workspace=64MiB"):
        alone = tuning.tune([PROBLEM, OTHER], device="cpu")
        before = tuning.entries()
        tuning.clear()
        together = tuning.tune([PROBLEM, OTHER], device="cpu", jobs=2)
    assert list(together) == list(alone) == [PROBLEM, OTHER]

    def keys(entries: "list[TableEntry]") -> set[tuple[str, str, str]]:
        return {(one["problem"], one["device"], one["constraints"]) for one in entries}

    def measured(entries: "list[TableEntry]") -> set[str]:
        return {f"{m['algorithm']} {m['status']}" for one in entries for m in one["measurements"]}

    assert keys(tuning.entries()) == keys(before)
    assert measured(tuning.entries()) == measured(before)
    with pytest.raises(ValueError, match="jobs: got 0, wanted 1 or more"):
        tuning.tune(PROBLEM, device="cpu", jobs=0)
    with pytest.raises(RuntimeError, match="no algorithm works"):
        tuning.tune([PROBLEM, OTHER], device="cpu", policy="backends=graph", jobs=2)


def test_jobs_keep_a_cap_beside_fastest() -> None:
    knobs.fastest = True
    with pushed("max_workspace=10KiB"):
        for jobs in (1, 2):
            tuning.clear()
            tuning.tune([PROBLEM, OTHER], device="cpu", jobs=jobs, time_budget_s=0.1)
            kept = tuning.entries()
            assert all("max_workspace=10KiB" in one["constraints"] for one in kept)
            for one in kept:
                assert (one["measurements"][0]["workspace_bytes"] or 0) <= 10240
                assert _C.tuned(one["problem"], "cpu", "")


def _short_of_memory_once(task: Task) -> Any:
    """In another process: as if PROBLEM found no memory the first time that it is measured."""
    rows, entries = measure._measure_elsewhere(task)
    with Path(os.environ["MEASURED"]).open("a+") as file:
        file.seek(0)
        first = PROBLEM not in file.read()
        file.write(f"{os.getpid()} {task.problem}\n")
    if first and task.problem == PROBLEM:
        for measured in (rows, *(entry["measurements"] for entry in entries)):
            for row in measured:
                row.update(status="failed", reason="out of memory: 18 GiB", median_ms=None)
    return rows, entries


def test_what_lacks_memory_is_measured_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEASURED", str(tmp_path / "measured"))
    monkeypatch.setattr(measure, "_measure_elsewhere", _short_of_memory_once)
    tasks = [Task(problem, "cpu", "", time_budget_s=0.1) for problem in (PROBLEM, OTHER)]
    lacking, other = measure.measure_tasks(tasks, jobs=2)
    assert lacking[0]["status"] == other[0]["status"] == "ok"
    *together, (pid, problem) = (
        line.split(maxsplit=1) for line in (tmp_path / "measured").read_text().splitlines()
    )
    assert sorted(problem for _, problem in together) == sorted([PROBLEM, OTHER])
    assert problem == PROBLEM and pid not in [before for before, _ in together]
    kept = {entry["problem"]: entry["measurements"] for entry in tuning.entries()}
    assert kept == {PROBLEM: lacking, OTHER: other}


def test_what_lacked_memory_is_not_kept_without_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEASURED", str(tmp_path / "measured"))
    monkeypatch.setattr(measure, "_measure_elsewhere", _short_of_memory_once)
    turns = measure._taking_turns

    def interrupted(count: int) -> Any:
        if count == 1:
            raise KeyboardInterrupt
        return turns(count)

    monkeypatch.setattr(measure, "_taking_turns", interrupted)
    tasks = [Task(problem, "cpu", "", time_budget_s=0.1) for problem in (PROBLEM, OTHER)]
    with pytest.raises(KeyboardInterrupt):
        list(measure.measure_tasks(tasks, jobs=2))
    assert [entry["problem"] for entry in tuning.entries()] == [OTHER]


def test_measuring_takes_turns(tmp_path: Path) -> None:
    turns = tmp_path / "turns"
    _C.set_measurement_lock(str(turns))
    try:
        with turns.open("w") as file, ThreadPoolExecutor(1) as thread:
            fcntl.flock(file, fcntl.LOCK_EX)
            waiting = thread.submit(_C.measure, PROBLEM, "cpu", time_budget_s=1.0)
            with pytest.raises(TimeoutError):
                waiting.result(timeout=1.3)
            fcntl.flock(file, fcntl.LOCK_UN)
            rows = waiting.result(timeout=60)
        # The wait is no part of the budget, nor of building.
        timed = [row for row in rows if row["status"] == "ok"]
        assert len(timed) > 1 and all(row["build_ms"] < 1000 for row in rows)
        with turns.open() as file:
            seen: list[tuple[str, bool]] = []

            def progress(done: int, total: int, algorithm: str) -> None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)
                    seen.append((algorithm, False))
                except BlockingIOError:
                    seen.append((algorithm, True))

            rows = _C.measure(PROBLEM, "cpu", progress=progress)
            # Each is built without a turn first, then all run in one.
            assert [held for _, held in seen[: len(rows)]] == [False] * len(rows)
            assert ("timing:round", False) not in seen and ("timing:round", True) in seen
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back
        _C.set_measurement_lock(str(tmp_path / "no folder" / "turns"))
        with pytest.raises(RuntimeError, match="cannot open the turn file .*: No such file"):
            _C.measure(PROBLEM, "cpu")
    finally:
        _C.set_measurement_lock("")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_an_error_gives_the_turn_back_though_a_forked_process_has_its_file(tmp_path: Path) -> None:
    turns, children = tmp_path / "turns", []

    def progress(done: int, total: int, algorithm: str) -> None:
        if algorithm.startswith("timing:"):
            if (child := os.fork()) == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
            raise KeyError

    _C.set_measurement_lock(str(turns))
    try:
        with pytest.raises(KeyError):
            _C.measure(PROBLEM, "cpu", progress=progress)
        with turns.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        _C.set_measurement_lock("")
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_jobs_measure_on_what_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    there = [measure._as_here(Task(PROBLEM, device, "")).device for device in ("cuda", "cuda:1")]
    assert there == ["cuda:3", "cuda:1"]
    tuning.tune([PROBLEM, OTHER], device="cpu", jobs=2, time_budget_s=0.1)
    (before,) = {entry["device"] for entry in tuning.entries()}
    tuning.clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        tuning.tune([PROBLEM, OTHER], device="cpu", jobs=2, time_budget_s=0.1)
        (device,) = {entry["device"] for entry in tuning.entries()}
        assert before != device == _C.device_fingerprint("cpu")
    finally:
        torch.set_num_threads(threads)


def test_jobs_measure_under_the_same_switches() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    mkldnn: Any = torch.backends.mkldnn
    products: Any = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction
    mkldnn.enabled = False
    products.allow_bf16_reduced_precision_reduction = not before
    try:
        with measure._taking_turns(1) as pool:
            assert pool.submit(measure._switches).result() == measure._switches()
    finally:
        mkldnn.enabled = True
        products.allow_bf16_reduced_precision_reduction = before


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_problem_without_algorithms_keeps_no_other_from_being_tuned(jobs: int) -> None:
    small = [f"softmax_fwd x=f32[2,{n},4]:nchw log=false" for n in (3, 5)]
    lines = [small[0], PROBLEM.replace("8,8", "64,64"), small[1]]
    policy = "max_workspace=1KiB;backends=aten"
    with pytest.raises(RuntimeError, match=f"no algorithm works under '{policy}' for conv_fwd"):
        tuning.tune(lines, device="cpu", policy=policy, jobs=jobs, time_budget_s=0.1)
    tuned = {e["problem"] for e in tuning.entries() if e["measurements"][0]["status"] == "ok"}
    assert tuned == set(small)


class Stopping:
    """A progress that does something when one problem is finished."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def problem(self, done: int, total: int, text: str) -> None:
        if done == 1:
            self.act()

    def algorithm(self, done: int, total: int, text: str) -> None:
        pass


def test_what_stops_jobs_leaves_no_process_behind() -> None:
    lines = [PROBLEM.replace("[2,", f"[{n},") for n in range(1, 60)]

    def send(signal_number: signal.Signals) -> None:
        os.kill(multiprocessing.active_children()[0].pid or 0, signal_number)

    def fail() -> None:
        raise KeyError("of the user's own")

    has_ended = "a process that works for this one has ended"
    acts: list[tuple[Callable[[], None], type[Exception], str]] = [
        (partial(send, signal.SIGKILL), RuntimeError, has_ended),
        # Of one that is between two problems there is no more to tell.
        (partial(send, signal.SIGTERM), RuntimeError, f"was ended by SIGTERM|{has_ended}"),
        (fail, KeyError, "of the user's own"),
    ]
    for act, error, match in acts:
        tuning.clear()
        with pytest.raises(error, match=match):
            tuning.tune(lines, device="cpu", jobs=2, time_budget_s=0.1, progress=Stopping(act))
        assert multiprocessing.active_children() == []
        assert lines[0] in {entry["problem"] for entry in tuning.entries()}
        assert len(tuning.entries()) < len(lines)
    tasks = [Task(line, "cpu", "", time_budget_s=0.1) for line in lines]
    abandoned: Any = measure.measure_tasks(tasks, jobs=2)
    assert next(abandoned)[0]["status"] == "ok"
    abandoned.close()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("victim", ["group", "parent"])
def test_signals_end_all_jobs(tmp_path: Path, victim: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from torch_cudnn_ext import tuning\n"
        f"lines = [{PROBLEM!r}.replace('[2,', f'[{{n}},') for n in range(1, 60)]\n"
        "class Stopping:\n"
        "    def algorithm(self, done, total, text): ...\n"
        "    def problem(self, done, total, text):\n"
        "        if done == 1:\n"
        + (
            "            os.killpg(0, signal.SIGINT)\n"
            if victim == "group"
            else "            os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        + "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    try:\n"
        "        tuning.tune(lines, device='cpu', jobs=2, time_budget_s=0.1, progress=Stopping())\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', 1 <= len(tuning.entries()) < 59)\n"
    )
    done = subprocess.run(  # returns when no process has its pipes
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    if victim == "group":
        assert done.stdout == "interrupted True\n"
    else:
        assert done.returncode == -signal.SIGKILL


def test_a_file_of_choices_keeps_what_others_added(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    assert tuning.merge_table(path) == 1
    (ours,) = tuning.entries()
    tuning.clear()
    tuning.tune([PROBLEM, OTHER], device="cpu", time_budget_s=0.1)
    theirs = {entry["problem"]: entry for entry in tuning.entries()}
    tuning.export_table(path)
    tuning.clear()
    _C.table_import([ours])
    assert tuning.merge_table(path) == 2
    tuning.clear()
    tuning.import_table(path)
    found = {entry["problem"]: entry for entry in tuning.entries()}
    assert found == {PROBLEM: ours, OTHER: theirs[OTHER]}
    path.write_text("nonsense")
    with pytest.raises(ValueError, match="line 1"):
        tuning.merge_table(path)
    assert path.read_text() == "nonsense"


def test_what_is_tuned_while_a_file_is_waited_for_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    (entry,) = tuning.entries()
    newer = entry | {"measurements": entry["measurements"][:1]}

    def waits(*_: Any) -> None:
        _C.table_import([newer])

    monkeypatch.setattr(fcntl, "flock", waits)
    tuning.merge_table(path)
    assert read_table(path) == tuning.entries() == [newer]


def test_a_table_of_lists_alone(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("title", [], [], "", [("head", ["a", "b"])])
    assert tables_markdown([table]).split() == ["**title**", "head:", "a,", "b"]
    print_tables([table])
    assert capsys.readouterr().out.split() == ["title", "head:", "a,", "b"]


def test_best_takes_a_flag(device: str) -> None:
    found = profile(PROBLEM, device=device, time_budget_s=0.1)
    with pytest.raises(TypeError, match="argument deterministic: got 'yes' .str., wanted a bool"):
        found.best(deterministic="yes")  # type: ignore[arg-type]


def test_of_equal_entries_the_last_is_read(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    older = entry | {"measurements": entry["measurements"][:1]}
    path.write_text(f"{json.dumps(older)}\n{json.dumps(entry)}\n")
    assert read_table(path) == [entry]
    for wrong, reason in (
        ([entry["measurements"][0] | {"backend": "graph"}], "backend is 'graph' of "),
        (entry["measurements"][:1] * 2, "several measurements of "),
    ):
        path.write_text(json.dumps(entry | {"measurements": wrong}))
        with pytest.raises(ValueError, match=f"line 1: (got )?{reason}"):
            read_table(path)


def test_a_problem_that_no_memory_holds_fails_alone(device: str) -> None:
    huge = "softmax_fwd x=f32[15000000,15000000,1]:nchw"
    small = "softmax_fwd x=f32[15,15,1]:nchw log=false"
    with pytest.raises(RuntimeError, match="no algorithm works .*: out of memory: "):
        tuning.tune([huge, small], device=device, time_budget_s=0.1)
    assert [entry["problem"] for entry in tuning.entries()] == [small]
    with pytest.warns(UserWarning, match="no memory to tune in"):
        choice = _C.decide(huge, device, "autotune")
    assert choice["why"].startswith("heuristic: no memory")


def test_what_others_measured_anew_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    (entry,) = read_table(path)
    entry["measurements"][0]["median_ms"] = 1e-6  # as another process measured it
    path.write_text(json.dumps(entry) + "\n")
    tuning.tune(OTHER, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    newer = {kept["problem"]: kept for kept in read_table(path)}
    assert newer.keys() == {PROBLEM, OTHER} and newer[PROBLEM] == entry
    _C.table_import([entry | {"measurements": [entry["measurements"][0] | {"error": math.nan}]}])
    tuning.merge_table(path)
    assert "NaN" not in path.read_text()  # which is not JSON
    path.write_text(json.dumps(entry) + "\n")
    tuning.merge_table(path)
    assert entry in read_table(path)  # what is not a number is no other ranking
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    tuning.merge_table(path)
    assert entry not in read_table(path)  # what is measured here is newer still
    (tmp_path / "others.jsonl").write_text(json.dumps(entry) + "\n")
    tuning.import_table(tmp_path / "others.jsonl")
    tuning.merge_table(path)
    assert entry in read_table(path)  # of another file: this table's


def test_processes_that_add_choices_at_once_lose_none(tmp_path: Path) -> None:
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    path = tmp_path / "choices.jsonl"
    children = []
    for number in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            added = 0
            signal.alarm(60)  # rather than to wait for ever
            try:
                mine = [entry | {"device": f"device {number} round {i}"} for i in range(50)]
                _C.table_import(mine)
                added = tuning.merge_table(path)
            finally:
                os._exit(added == 0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    assert len(read_table(path)) == 8 * 51 - 7  # what was there at the fork is one


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2"),
        ("[]", "line 2: got list, wanted an object"),
        ('{"problem": 1}', "line 2: problem is 1, wanted a str"),
        ('{"problem": "x", "device": "", "constraints": "", "measurements": []}', "line 2"),
        (
            json.dumps({"problem": PROBLEM, "device": "", "constraints": "", "measurements": []}),
            r"line 2: measurements is \[\], wanted at least one",
        ),
    ],
)
def test_a_malformed_file_changes_nothing(tmp_path: Path, line: str, message: str) -> None:
    tuning.tune(PROBLEM, device="cpu")
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    path.write_text(path.read_text() + line + "\n")
    tuning.reset()
    with pytest.raises(ValueError, match=message):
        tuning.import_table(path)
    assert tuning.entries() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", 5),
        ("algorithm", None),
        ("backend", [1]),
        ("deterministic", "x"),
        ("samples", -1),
        ("samples", True),
        ("workspace_bytes", -1),
        ("workspace_bytes", 1.5),
        ("median_ms", "1"),
        ("median_ms", 10**400),
        ("spread_ms", float("nan")),
        ("build_ms", -1.0),
        ("notes", None),
        ("notes", [1]),
        ("workspace_bytes", 10**30),
        ("samples", 2**70),
        ("error", 10**400),
        ("status", "weird"),
    ],
)
def test_a_measurement_of_other_types_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    tuning.tune(PROBLEM, device="cpu")
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    entry = json.loads(path.read_text().splitlines()[0])
    entry["measurements"][0][field] = value
    path.write_text(json.dumps(entry) + "\n")
    tuning.reset()
    with pytest.raises(ValueError, match=f"line 1: {field} is .*, wanted one of "):
        tuning.import_table(path)
    assert tuning.entries() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "[" * 100_000, "recursion"),
        (lambda text: text.replace('"constraints": "', '"constraints": "foo=bar;'), "'foo' is unk"),
        (lambda text: text.replace('"source": "', '"source": "\\ud800', 1), "surrogates"),
        (lambda text: re.sub(r'"notes": \[.*?\]', '"notes": ["zork"]', text), "zork"),
        (lambda text: re.sub(r'"median_ms": [\d.e-]+', '"median_ms": null', text), "is null, want"),
    ],
)
def test_a_fault_is_told_with_its_line(
    tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    tuning.tune(PROBLEM, device="cpu", policy="backends=aten", time_budget_s=0.1)
    path = tmp_path / "choices.jsonl"
    tuning.export_table(path)
    path.write_text((text := path.read_text()) + change(text))
    tuning.reset()
    for read in (tuning.import_table, tuning.merge_table, read_table):
        with pytest.raises(ValueError, match=f"choices.jsonl, line 2: .*{message}"):
            read(path)
    assert tuning.entries() == []


def test_a_pipe_or_a_device_is_no_file_of_choices(tmp_path: Path) -> None:
    tuning.tune(PROBLEM, device="cpu", time_budget_s=0.1)
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, Path("/dev/null")):
        for write in (tuning.merge_table, tuning.export_table):
            with pytest.raises(OSError, match=f"Not a regular file: '{path}'"):
                write(path)
    assert pipe.is_fifo() and link.is_symlink() and not Path("/dev/null").is_file()
    assert {file.name for file in tmp_path.iterdir()} == {"pipe", "link"}


def test_an_export_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    tuning.export_table(tmp_path / "choices.jsonl")
    (tmp_path / "other").touch()
    assert (tmp_path / "choices.jsonl").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_is_written_anew_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    path.touch(0o600)
    tuning.export_table(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_unwritable_export_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "choices.jsonl"
    path.write_text("old\n")

    def refuse(source: str, target: Path) -> None:
        raise OSError("no")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no"):
        tuning.export_table(path)
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["choices.jsonl"]


# Against PyTorch.


def test_bench_compares_with_both_of_pytorch_s_settings(device: str) -> None:
    layers = with_passes([Layer(PROBLEM, ("a",), 2)], ["fwd", "bwd_data", "bwd_filter"])
    layers.append(Layer(PROBLEM + " bias=f32", ("a",), 2))
    results = list(compare_layers(layers, make_settings(device, time_budget_s=1), kernels=True))
    assert [result.problem.split()[0] for result in results] == [*PASSES, PASSES[0]]
    for result in results:
        assert result.ratio_low <= result.ratio <= result.ratio_high
        both = (result.pytorch_default_ms, result.pytorch_benchmark_ms)
        assert result.pytorch_ms == min(both)
        assert result.count == 2 and result.algorithm
        assert bool(result.pytorch_kernels) == bool(result.kernels) == (device == "cuda")
        assert not result.pytorch_reason


def test_bench_says_why_pytorchs_own_call_is_no_candidate(device: str) -> None:
    backends = "backends=graph,legacy" if device == "cuda" else "backends=cpu"
    settings = make_settings(device, policy=backends, time_budget_s=10)
    results = list(compare_layers([Layer(PROBLEM, ("a",), 1)], settings))
    assert results[0].pytorch_reason == f"excluded by {backends}"
    (table,) = comparison_text(results, "table")
    assert not isinstance(table, str)
    assert table.lists[0][1] == [results[0].pytorch_reason]
    means = geometric_means(results)
    assert means["all"] == pytest.approx(means["filters 3x3 and larger"])


def test_the_bootstrap_interval_holds_the_median() -> None:
    assert bootstrap_interval([2.0] * 5) == (2.0, 2.0)
    low, high = bootstrap_interval([1.0, 1.1, 0.9, 1.05, 0.95] * 6)
    assert 0.9 <= low <= 1.0 <= high <= 1.1


def test_geometric_means_tell_large_filters_apart() -> None:
    def result(line: str, ratio: float) -> Comparison:
        return Comparison(line, [], 1, "", "", [], 1, 1, 1, 1, "", [], ratio, ratio, ratio, "")

    small = PROBLEM.replace("3,3]", "1,1]")
    means = geometric_means([result(PROBLEM, 4.0), result(small, 1.0)])
    assert means == {
        "all": pytest.approx(2.0),
        "filters 3x3 and larger": pytest.approx(4.0),
    }


def test_the_table_is_cut_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    result = profile(PROBLEM, device="cpu")
    layer = _layer(result)
    names = [row["algorithm"] for row in layer.ranked]
    assert len(names) > 3
    for top in (1, 2, 3):
        table = layer_tables(layer, Extent(top=top))[0]
        shown = [row[2] for row in table.rows]
        # PyTorch's and the current choice always, in the order of their ranks.
        always = {"aten:default", layer.current}
        assert shown == [n for i, n in enumerate(names) if i < top or n in always]
        assert f"{len(names) - len(shown)} more that work (top=0 shows them)" in table.footer
    assert [row[2] for row in layer_tables(layer, Extent())[0].rows] == names
    result.print()
    whole = capsys.readouterr().out
    assert "more that work" not in whole and all(name in whole for name in names)


def test_networks_are_channels_last_themselves() -> None:
    pytest.importorskip("torchvision")
    model, inputs = load_model("resnet18", batch=1, image_size=32, channels_last=True)
    tensors = [inputs, *(p for p in model.parameters() if p.dim() == 4)]
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)


def test_host_time_is_of_the_work() -> None:
    assert host_ms(lambda: time.sleep(0.02)) >= 20


def test_layers_after_one_that_raised_have_their_own_names() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrong, self.right = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                x = self.wrong(x)
            except (RuntimeError, ValueError):
                pass
            return ops.softmax(self.right(x), 1)

    layers = network_layers(Careful(), torch.randn(2, 4, 8, 8), ["fwd"]).layers
    names = {layer.problem.split()[0]: layer.names for layer in layers}
    assert names["softmax_fwd"] == ("softmax()",)  # of the model itself


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "?"),
        (0, "0"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (64 * 2**20, "64 MiB"),
        (5 * 2**40, "5120 GiB"),
    ],
)
def test_bytes_for_people(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize("cap", [None, "max_workspace=1GiB"])
def test_the_summary_has_a_cell_below_each_heading(cap: str | None) -> None:
    result = profile(PROBLEM, device="cpu", policy=cap, time_budget_s=0.1)
    table = summary_table(result)
    headings = [column.heading for column in table.columns]
    assert ("best within 1 GiB" in headings) == (cap is not None)
    assert all(len(row) == len(headings) for row in table.rows)
    if cap is not None:
        (total,) = result.totals()
        assert table.rows[0][-1] == milliseconds(total.capped_ms)


def test_records_say_whose_they_are() -> None:
    settings = make_settings("cpu", time_budget_s=0.1)
    layers = list(measure_layers([Layer(PROBLEM, ("first", "second"), 3)], settings))
    layers.append(list_layer(Layer(OTHER, ("third",)), "target:h200", ""))
    found = {
        (r["problem"], *r["names"], r["count"], r["device"])
        for r in Profile(layers, settings).records()
    }
    assert found == {
        (PROBLEM, "first", "second", 3, "cpu"),
        (OTHER, "third", 1, "target:h200"),
    }


def _converted(model: nn.Module) -> AbstractContextManager[Any]:
    convert(model, policy="autotune")
    return nullcontext()


def _pinned(model: nn.Module) -> AbstractContextManager[Any]:
    return pinned(model, {"*": "autotune"})


def _ruled(model: nn.Module) -> AbstractContextManager[Any]:
    return when("conv_fwd", use="autotune")


@pytest.mark.parametrize("make", [_converted, _pinned, _ruled])
def test_a_look_at_a_network_tunes_nothing(make: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    x = torch.randn(2, 3, 8, 8)
    with make(model):
        tuning.reset()
        assert network_layers(model, x).layers
        coverage(model, x)
        assert tuning.entries() == []
        assert len(tuning.tune_model(model, x, time_budget_s=0.05)) == 5
        assert len(tuning.entries()) == 5


def test_a_look_settles_no_module_that_chooses_once() -> None:
    model = layers.Conv2d(3, 4, 3, policy="time_once")
    network_layers(model, torch.randn(2, 3, 8, 8))
    assert model._once == ("fwd", "bwd_data", "bwd_filter")
    model(torch.randn(2, 3, 8, 8))
    assert model._once == ("bwd_data",)  # its input wants no gradient


def test_records_tell_constraints() -> None:
    tuning.reset()
    for policy in ("", "deterministic"):
        tuning.tune([PROBLEM], device="cpu", policy=policy, time_budget_s=0.05)
    records = profile_of_table(tuning.entries()).records()
    assert {bool(re.search("deterministic", record["note"])) for record in records} == {True, False}


def test_a_look_takes_each_module_s_mode_back() -> None:
    model = Network().train()
    model.norm.eval()
    before = [module.training for module in model.modules()]
    x = torch.randn(2, 4, 8, 8)
    explain(model, x, measure=False)
    trace(model, x, train=False)
    profile_model(model, x, train=False, device="cpu", time_budget_s=0.01)
    assert [module.training for module in model.modules()] == before


def test_layers_of_one_problem_keep_all_their_notes() -> None:
    one, two = Layer(PROBLEM, ("a",), 2, "x"), Layer(PROBLEM, ("b", "a"), 3, "y")
    (merged,) = merge([one, two, one])
    assert (merged.names, merged.count, merged.note) == (("a", "b"), 7, "a: x; b a: y")


def test_channels_last_is_the_output_s_layout_too() -> None:
    line = PROBLEM.replace(":nchw w", ":nhwc w") + " y=:nchw"
    assert "y=:nchw" in _C.canonical_problem(line)
    assert rewrite(line, channels_last=True) == rewrite(PROBLEM, channels_last=True)


def test_what_cannot_run_on_the_first_of_a_batch_is_measured_otherwise() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x.view(3, 6))
            return out

    result = profile_model(Three(), torch.randn(3, 6), target="h200", time_budget_s=0.01)
    assert {layer.op for layer in result.layers} == {"matmul_fwd"}


def test_what_is_a_buffer_has_no_gradient() -> None:
    conv = nn.Conv2d(3, 4, 3, bias=False)
    weight = conv.weight.detach()
    del conv.weight
    conv.register_buffer("weight", weight)
    lines = [layer.problem for layer in convolutions(conv, torch.randn(1, 3, 8, 8))]
    assert [line.split()[0] for line in lines] == ["conv_fwd", "conv_bwd_data"]


def test_a_choice_of_no_such_algorithm_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.reset()
    _C.measure(PROBLEM, "cpu", "", min_samples=1)
    tuning.export_table(path)
    whole = path.read_text()
    for wrong in ("nonsense", "legacy:nonsense", "legacy:fft/k=1"):
        path.write_text(whole.replace('"cpu:direct"', json.dumps(wrong)))
        assert path.read_text() != whole
        with pytest.raises(ValueError, match=r"choices.jsonl, line 1: algorithm "):
            tuning.import_table(path)


def test_a_choice_s_problem_may_be_spelt_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.reset()
    _C.measure(PROBLEM, "cpu", "", min_samples=1)
    tuning.export_table(path)
    path.write_text(path.read_text().replace("pad=1 ", "pad=1,1 "))
    (entry,) = read_table(path)
    assert "pad=1,1" in path.read_text()
    assert entry["problem"] == _C.canonical_problem(PROBLEM)
    (layer,) = profile_of_table([entry]).layers
    assert layer.problem == entry["problem"]


def test_what_a_budget_cut_is_not_tuned_again_within_it() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    tuning.reset()
    found = [
        len(tuning.tune_model(model, x, train=False, time_budget_s=budget))
        for budget in (1e-9, 1e-9, 0.0, 0.0)
    ]
    assert found == [1, 0, 1, 0]


def _made(**changes: Any) -> LayerProfile:
    """A layer of two algorithms, of which the first has these values."""
    row = {
        **dict.fromkeys(("reason", "source"), ""), "backend": "cpu", "status": "ok",
        "median_ms": 2.0, "spread_ms": 0.25, "host_ms": None, "samples": 9, "error": 0.0,
        "workspace_bytes": 0, "notes": [], "deterministic": True, "build_ms": 0.0,
    }  # fmt: skip
    rows: Any = [
        {**row, "algorithm": "cpu:im2col", **changes},
        {**row, "algorithm": "aten:default", "backend": "aten", "median_ms": 4.0},
    ]
    layer = _layer(profile(PROBLEM, device="cpu", time_budget_s=0.01))
    return dataclasses.replace(layer, rows=rows, current=None, heuristic=None)


def test_what_is_not_known_keeps_no_constraint() -> None:
    layer = _made(workspace_bytes=None, deterministic=None)
    best = [layer.best(), layer.best(2**30), layer.best(deterministic=True)]
    assert [row and row["algorithm"] for row in best] == [
        "cpu:im2col", "aten:default", "aten:default",
    ]  # fmt: skip


def test_cells_say_what_was_measured() -> None:
    layer = _made(notes=["a|b"], spread_ms=0.125, deterministic=None)
    result = Profile([layer], make_settings("cpu"))
    (line,) = [line for line in result.to_markdown().splitlines() if "cpu:im2col" in line]
    cells = re.split(r"(?<!\\) \| ", line.removeprefix("| "))
    assert cells[3:5] == ["2", "± 0.12"] and r"a\|b" in cells and "?" in cells
    once = Profile([_made(samples=1, spread_ms=0.125)], make_settings("cpu"))
    assert "0.12" not in once.to_markdown()


def test_a_backend_of_which_one_works_is_not_refused_as_a_whole() -> None:
    layer = _made()
    refused: Any = {
        **layer.rows[0], "status": "excluded", "reason": "so", "median_ms": None,
        "workspace_bytes": None, "error": None,
    }  # fmt: skip
    layer.rows += [{**refused, "algorithm": f"cpu:{name}"} for name in ("direct", "fft")]
    layer.rows += [{**refused, "backend": "legacy", "algorithm": f"legacy:{i}"} for i in range(3)]
    (text,) = [
        line
        for line in Profile([layer], make_settings("cpu")).to_markdown(show_all=True).splitlines()
        if line.startswith("excluded: so")
    ]
    assert text == "excluded: so: all 3 of legacy, cpu:direct, cpu:fft"


@pytest.mark.parametrize(
    "change",
    [{"knob_search": True}, {"min_samples": 3}, {"time_budget_s": 3.0}, {"target": "h200"}],
)
def test_each_setting_makes_another_measurement(change: dict[str, Any]) -> None:
    settings = make_settings("cpu", min_samples=2, time_budget_s=2.0)
    assert settings.key(PROBLEM) == dataclasses.replace(settings).key(PROBLEM)
    assert dataclasses.replace(settings, **change).key(PROBLEM) != settings.key(PROBLEM)


def test_another_device_is_another_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings("cpu")
    before = settings.key(PROBLEM)
    monkeypatch.setattr(_C, "device_fingerprint", lambda device: "another CPU")
    assert settings.key(PROBLEM) != before


def test_best_carries_the_type_of_accumulation() -> None:
    with pytest.raises(ValueError, match="policy: got 'compute=f64' with a problem line, which"):
        profile(PROBLEM, device="cpu", policy="compute=f64")
    found = profile_model(
        nn.Conv2d(2, 3, 3).double(),
        torch.randn(1, 2, 5, 5, dtype=torch.float64),
        passes=["fwd"],
        device="cpu",
        policy="compute=f64",
        time_budget_s=0.01,
    )
    assert found.best().get("compute") == "f64"


def test_what_a_time_budget_leaves_out_is_told() -> None:
    line = "conv_fwd x=f32[8,32,64,64]:nchw w=f32[32,32,3,3]:nchw pad=1"
    text = profile(line, device="cpu", time_budget_s=1e-6).to_markdown()
    told = re.findall(r"(\d+)(?: algorithms?)? not tried, as the time budget was used up", text)
    assert len(told) == 2 and told[0] == told[1] and int(told[0]) >= 3


def test_a_cap_holds_for_what_a_target_accepts() -> None:
    line = "conv_fwd x=f16[2,64,8,8]:nhwc w=f16[64,64,3,3]:nhwc pad=1"
    policy = "max_workspace=1KiB"
    (layer,) = profile(line, target="h200", policy=policy, time_budget_s=0.01).layers
    wanted = list_layer(Layer(_C.canonical_problem(line)), "target:h200", policy).listed
    assert [(row["algorithm"], row["status"]) for row in layer.listed] == [
        (row["algorithm"], row["status"]) for row in wanted
    ]
    assert {"ok", "excluded"} <= {row["status"] for row in layer.listed}


@pytest.mark.parametrize(("batch", "where"), [(1, "CPU"), (2, "CPU at batch 1")])
def test_times_of_the_cpu_are_not_a_target_s(batch: int, where: str) -> None:
    line = f"conv_fwd x=f32[{batch},4,8,8]:nchw w=f32[4,4,3,3]:nchw pad=1"
    text = profile(line, target="h200", time_budget_s=0.01).to_markdown()
    assert f"measured on the {where}: not the target's times" in text


def test_knobs_are_searched_on_a_gpu_alone() -> None:
    for function in (profile, tuning.tune):
        with pytest.raises(ValueError, match=r"knob_search: got True on cpu, .* wanted a GPU"):
            function(PROBLEM, device="cpu", knob_search=True)


def test_notes_of_layers_that_share_a_problem_say_whose_they_are(device: str) -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(2, 4, 8, 8, device=device, requires_grad=True)
    found = profile_model(model.to(device), x, time_budget_s=0.01)
    notes = {layer.note for layer in found.layers if layer.count == 2}
    assert notes >= {"0: fwd of ConvTranspose2d", "0: bwd_filter of ConvTranspose2d"}


@pytest.mark.parametrize(
    "layer",
    [
        lambda: parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
        lambda: parametrizations.spectral_norm(nn.ConvTranspose2d(3, 4, 3)),
        lambda: parametrizations.weight_norm(nn.LSTM(3, 4), "weight_hh_l0"),
    ],
    ids=["weight_norm", "spectral_norm", "lstm"],
)
@pytest.mark.parametrize("pinning", [False, True], ids=["plain", "pinned"])
def test_parametrized_layers_are_profiled(
    layer: Callable[[], nn.Module], pinning: bool, device: str
) -> None:
    model = layer().to(device).eval()
    x = torch.randn(5, 2, 3, device=device)
    if not isinstance(model, nn.LSTM):
        x = torch.randn(2, 3, 8, 8, device=device)
    with pinned(model, {"*": "heuristic"}) if pinning else nullcontext():
        classes, before = [type(module) for module in model.modules()], model(x)
        found = profile_model(model, x, train=False, time_budget_s=0.01)
        assert [layer.count for layer in found.layers] == [1]
        assert [type(module) for module in model.modules()] == classes
        torch.testing.assert_close(model(x), before)
    assert not any(isinstance(module, layers.Tunable) for module in model.modules())


def test_a_pooling_with_indices_is_no_call_of_ours(device: str) -> None:
    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.softmax = nn.Softmax(1)
            self.pool = nn.MaxPool2d(2, return_indices=True)
            self.adaptive = nn.AdaptiveMaxPool2d(2, return_indices=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.adaptive(self.pool(self.softmax(x))[0])[0]
            return out

    found = profile_model(Pools(), torch.randn(1, 3, 12, 12, device=device), time_budget_s=0.01)
    assert {layer.problem.split()[0] for layer in found.layers} == {"softmax_fwd", "softmax_bwd"}
    assert found.not_profiled["aten.max_pool2d_with_indices"] == 1


def _ops(layers: Iterable[Layer]) -> list[str]:
    return [layer.problem.split()[0] for layer in layers]


def test_of_a_network_s_passes_those_that_are_there_are_taken(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    )
    x = torch.randn(2, 3, 8, 8)
    trace(model, x, tmp_path / "train.txt")
    met = read_problems(tmp_path / "train.txt")
    for words, passes in (
        (["fwd"], {"fwd"}),
        (["bwd"], {"bwd", "bwd_filter"}),
        (["bwd_filter"], {"bwd_filter"}),
        (["fwd", "bwd"], {"fwd", "bwd", "bwd_filter"}),
    ):
        taken = with_passes(met, words)
        assert {_C.problem_info(layer.problem)["pass_name"] for layer in taken} == passes
        assert set(taken) <= set(met)
    trace(model, x, tmp_path / "infer.txt", train=False)
    inferred = read_problems(tmp_path / "infer.txt")
    assert with_passes(inferred, ["fwd"]) == inferred
    assert "batch_norm_infer" in _ops(inferred)


@pytest.mark.parametrize(
    ("line", "made"),
    [
        (
            "batch_norm_fwd x=f32[4,8,16]:nchw running=true",
            ["batch_norm_fwd x=f32[4,8,16]:nchw running=true", "batch_norm_bwd x=f32[4,8,16]:nchw"],
        ),
        ("batch_norm_infer x=f32[4,8,16]:nchw", ["batch_norm_infer x=f32[4,8,16]:nchw"]),
        ("rnn_fwd cell=gru x=f32[5,2,4]:nchw hidden=4", None),
    ],
)
def test_a_line_gets_the_passes_of_a_training_step(line: str, made: list[str] | None) -> None:
    passes = with_passes([Layer(_C.canonical_problem(line))], ["fwd", "bwd"])
    if made is None:
        assert _ops(passes) == ["rnn_fwd", "rnn_bwd"] and "train=true" in passes[1].problem
    else:
        assert [layer.problem for layer in passes][: len(made)] == made


@pytest.mark.parametrize(
    ("line", "is_laid_out"),
    [
        ("matmul_fwd x=f32[1,2,512]:nchw w=f32[1,512,10]:nchw", False),
        ("softmax_fwd x=f32[2,10,1]:nchw", False),
        ("layer_norm_fwd x=f32[2,4]:nchw kind=layer", False),
        ("layer_norm_fwd x=f32[2,4,6]:nchw kind=instance", True),
        ("batch_norm_fwd x=f32[2,4,6]:nchw", True),
        ("pool_fwd x=f32[2,4,6,6]:nchw window=2", True),
        ("grid_sample_fwd x=f32[2,4,6,6]:nchw grid=f32[2,5,5,2]:nchw", True),
    ],
)
def test_channels_last_is_of_images(line: str, is_laid_out: bool) -> None:
    before = _C.canonical_problem(line)
    after = rewrite(line, channels_last=True)
    assert after == (before.replace("]:nchw", "]:nhwc", 1) if is_laid_out else before)


def test_a_pin_that_cannot_run_hinders_no_look() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    knobs.conv_fwd_algo = "legacy:fft"
    with pytest.raises(RuntimeError, match="pinned algorithm legacy:fft cannot run"):
        ops.conv2d(x, model.weight)
    (layer,) = profile_model(model, x, train=False, device="cpu", time_budget_s=0.01).layers
    assert layer.current is None and layer.best() is not None
    with pytest.raises(RuntimeError, match="pinned algorithm legacy:fft cannot run"):
        trace(model, x, train=False)
    knobs.dropout_algo = "legacy:default"  # which says of what random numbers the problem is
    drops = network_layers(nn.Dropout(), x.to("meta").requires_grad_()).layers
    assert all("rng=cudnn" in layer.problem for layer in drops)


@pytest.mark.parametrize("policy", ["autotune", "benchmark"])
def test_a_cap_does_not_tune_once_more(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    choose = _C.decide

    def spy(problem: str, device: str, policy: str = "") -> Any:
        seen.append(policy)
        return choose(problem, device, policy)

    monkeypatch.setattr(_C, "decide", spy)
    capped = profile(PROBLEM, device="cpu", policy=f"{policy};max_workspace=0")
    assert not any(policy in word for word in seen)
    (layer,) = capped.layers
    best = layer.best(0)
    assert layer.current == (best["algorithm"] if best else None)
    assert bool(layer.current_error) == (best is None)


def test_a_training_step_in_inference_mode_is_refused() -> None:
    model, x = torch.nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5)
    with torch.inference_mode():
        with pytest.raises(ValueError, match="train: nothing has a gradient in inference mode"):
            profile_model(model, x)
        (layer,) = profile_model(model, x, train=False, time_budget_s=0.05).layers
    assert layer.problem.startswith("conv_fwd")
