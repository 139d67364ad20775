"""Profiles: measured rows, ranks, totals, and the policies made from them."""

import json
from typing import Any

import pytest
import torch
from conftest import newest
from helpers import LINE, OTHER, PASSES, Network, network_with, only_layer, policy_fields
from torch import nn
from torch.nn import functional as F

from torch_cudnn_ext import (
    _C,
    Policy,
    enabled,
    explain,
    knobs,
    profile,
    profile_model,
    tuning,
    when,
)
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import Layer, merge, rewrite
from torch_cudnn_ext.analysis.profile import list_layer, measure_layers, profile_of_table
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.analysis.settings import make_settings


def test_the_aten_row_and_two_algorithms_of_the_cpu_are_timed(measured: Profile) -> None:
    layer = only_layer(measured)
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
        layer = only_layer(profile(LINE, device="cpu", policy=policy, time_budget_s=0.2))
        (entry,) = tuning.entries()
        assert (policy is not None) == ("prefer=memory" in entry["constraints"])
        kept = [row["algorithm"] for row in entry["measurements"] if row["status"] == "ok"]
        assert [row["algorithm"] for row in layer.ranked] == kept


def test_columns_agree_with_each_other(measured: Profile) -> None:
    layer = only_layer(measured)
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
    good = [r for r in only_layer(measured).rows if r["status"] in ("ok", "unstable")]
    assert len(good) >= 3
    for row in good:
        assert row["error"] is not None
        assert 1e-9 < row["error"] < 1e-6  # sums of at most 128 products in float32
        assert row["error"] <= _C.tolerance(only_layer(measured).problem, row["notes"])


def test_the_current_choice_is_marked_once(measured: Profile) -> None:
    marked = [record["algorithm"] for record in measured.records() if record["current"]]
    layer = only_layer(measured)
    assert marked == [_C.decide(layer.problem, "cpu")["algorithm"]]


def test_a_pinned_choice_is_the_current_one() -> None:
    result = profile(LINE, device="cpu", policy=Policy(fwd="cpu:im2col"))
    assert [r["algorithm"] for r in result.records() if r["current"]] == ["cpu:im2col"]
    assert len(only_layer(result).ranked) > 1  # a pin keeps nothing from being measured


def test_aten_is_timed_where_the_policy_does_not_admit_it() -> None:
    result = profile(LINE, device="cpu", policy="backends=cpu")
    layer = only_layer(result)
    assert layer.pytorch is not None and layer.pytorch["median_ms"] is not None
    assert layer.pytorch["status"] == "excluded"
    assert layer.pytorch["reason"].startswith("baseline only")
    assert all(row["backend"] == "cpu" for row in layer.ranked)
    assert policy_fields(result.best())["fwd"] != "aten:default"


def test_best_pins_the_first_rank_and_runs(measured: Profile) -> None:
    layer = only_layer(measured)
    policy = measured.best()
    pass_name = layer.op.removeprefix("conv_")
    assert policy_fields(policy)[pass_name] == layer.ranked[0]["algorithm"]
    assert (
        _C.decide(layer.problem, "cpu", str(policy))["algorithm"]
        == policy_fields(policy)[pass_name]
    )
    with pytest.raises(KeyError, match="got 'zz', wanted none: these layers have no names"):
        measured.best(layer="zz")


def test_best_keeps_its_constraints() -> None:
    result = profile(LINE, device="cpu")
    layer = only_layer(result)
    for row in layer.ranked:
        cap = row["workspace_bytes"]
        if cap is None:
            continue
        chosen = layer.find(policy_fields(result.best(max_workspace=cap))["fwd"])
        assert chosen is not None and chosen["workspace_bytes"] is not None
        assert chosen["workspace_bytes"] <= cap
    chosen = layer.find(policy_fields(result.best(deterministic=True))["fwd"])
    assert chosen is not None and chosen["deterministic"] is True


def test_best_carries_the_numerics_that_were_allowed() -> None:
    result = profile(LINE, device="cpu", policy="allow_reduced_range")
    assert policy_fields(result.best())["allow_reduced_range"] is True


def test_best_takes_caps_as_policies_do() -> None:
    result = profile(LINE, device="cpu")
    for cap in (2**40, "1024GiB", "1000000MB", "100%"):
        assert result.best(max_workspace=cap).text == result.best().text
        assert make_settings("cpu", policy=f"max_workspace={cap}").max_workspace_bytes is not None


@pytest.mark.parametrize("cap", ["64 elephants", "x%", "-1"])
def test_a_bad_cap_is_refused(cap: str) -> None:
    result = Profile([], make_settings("cpu"))
    with pytest.raises(ValueError, match=f"max_workspace: got '{cap}', wanted"):
        result.best(max_workspace=cap)


def test_a_cap_of_the_policy_is_the_summary_s() -> None:
    result = profile(LINE, device="cpu", policy="max_workspace=0")
    (total,) = result.totals()
    rows = [row for row in only_layer(result).ranked if row["workspace_bytes"] == 0]
    assert total.capped_ms == (rows[0]["median_ms"] if rows else None)
    assert total.missing["capped"] == (0 if rows else 1)
    assert any(row["workspace_bytes"] for row in only_layer(result).ranked)
    layer = only_layer(result)
    assert (layer.current is None) == bool(layer.current_error) == (not rows)
    assert ("the current policy runs none of them" in result.to_markdown()) == (not rows)


def test_totals_weigh_layers_by_their_count() -> None:
    settings = make_settings("cpu")
    layers = [Layer(LINE, ("a", "b"), 2), Layer(OTHER, ("c",), 1)]
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
    layers = list(measure_layers([Layer(line) for line in [*problems, LINE]], settings))
    totals = {total.label: total.best_ms for total in Profile(layers, settings).totals()}
    forward, backward, other = (layer.ranked[0]["median_ms"] for layer in layers)
    assert forward and backward and other
    assert totals["rnn_bwd"] == backward and totals["all rnn"] == forward
    assert totals["all passes"] == pytest.approx(forward + other)
    assert Profile(layers[1:2], settings).totals()[0].best_ms == backward


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


def test_the_best_of_a_network_is_for_its_layers() -> None:
    result = profile_model(
        network_with(lambda y: F.relu(y).mean(1)),
        torch.randn(2, 4),
        train=False,
        device="cpu",
        time_budget_s=0.01,
    )
    assert result.best() == result.best(layer="linear")
    assert {"fwd"} == set(policy_fields(result.best(layer="relu()"))) - {"allow_tf32"}

    twice = profile_model(
        network_with(lambda y: F.relu(F.relu(y).mean(1))),
        torch.randn(2, 4),
        train=False,
        device="cpu",
        time_budget_s=0.01,
    )
    small, large = (layer for layer in twice.layers if layer.names == ["relu()"])
    small.rows.sort(key=lambda row: row["algorithm"] != "aten:default")
    large.rows.sort(key=lambda row: row["algorithm"] == "aten:default")
    large.rows[0]["status"] = "ok"  # on a busy CPU it may be unstable
    with pytest.raises(ValueError, match="one policy does not fit: autotune fits them"):
        twice.best(layer="relu()")


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
        assert {"fwd", "bwd_data", "bwd_filter"} <= set(policy_fields(policy)), name
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
    assert policy_fields(result.best_by_layer()[""]) == {"fwd": first}
    assert result.best(layer="") == result.best_by_layer()[""]
    result.layers[1].rows.sort(key=lambda row: row["algorithm"] != second)
    assert result.best_by_layer() == {}
    with pytest.raises(ValueError, match="several problems of matmul_fwd"):
        result.best(layer="")


def test_a_target_is_listed_and_the_cpu_takes_a_smaller_batch() -> None:
    large = rewrite(LINE, batch=4096).replace("[4096,4,8,8]", "[4096,4,32,32]")
    result = profile(large, target="h200", time_budget_s=0.5)
    layer = only_layer(result)
    assert layer.problem == large
    assert "x=f32[1,4,32,32]" in layer.measured
    assert layer.listed_for == "target:h200"
    assert any(row["status"] == "ok" and row["backend"] == "graph" for row in layer.listed)
    assert "at batch 1" in result.to_markdown()
    listed = [record for record in result.records() if record["device"] == "target:h200"]
    assert listed and all(record["median_ms"] is None for record in listed)


@pytest.mark.parametrize(
    "level",
    [{"max_workspace": "4KiB"}, {"backends": "cudnn,cpu"}, {"deterministic": True}],
    ids=str,
)
def test_pytorchs_own_row_is_there_whatever_knobs_say(level: Any, device: str) -> None:
    problem = LINE.replace("conv_fwd", "conv_bwd_filter")
    with knobs.flags(**level):
        layer = only_layer(profile(problem, device=device, time_budget_s=0.5))
    assert layer.pytorch is not None and layer.pytorch["median_ms"] is not None


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
    assert only_layer(result).current == current


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
        rows = only_layer(profile(OTHER, device="cpu", time_budget_s=0.1)).rows
        (baseline,) = (row for row in rows if row["algorithm"] == "aten:default")
        assert baseline["status"] == "excluded" and baseline["median_ms"] is not None
        with enabled():
            assert explain(model, torch.randn(2, 4, 8, 8), measure=True).calls
    with knobs.flags(backends="cpu"), enabled():
        assert explain(model, torch.randn(2, 4, 8, 8), measure=True).calls


def test_a_baseline_that_cost_a_process_does_not_run_in_this_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _C.measure(LINE, "cpu", record=False, min_samples=1)
    (baseline,) = (row for row in rows if row["algorithm"] == "aten:default")
    baseline.update(status="failed", reason="context lost", median_ms=None)
    module = "torch_cudnn_ext.analysis.profile"
    monkeypatch.setattr(f"{module}.measure_tasks", lambda *_: iter([rows]))
    result = profile(LINE, device="cpu", isolate="always")
    assert only_layer(result).rows == rows
    result.print(show_all=True)
    assert "context lost" in capsys.readouterr().out
    again = only_layer(profile(LINE, device="cpu", isolate="never")).rows
    assert [row["median_ms"] is None for row in again if row["algorithm"] == "aten:default"] == [
        False
    ]


def test_times_under_several_constraints_have_no_totals() -> None:
    for policy in ("allow_tf32", "allow_tf32;deterministic"):
        tuning.tune(LINE, device="cpu", policy=policy, time_budget_s=0.1)
    result = profile_of_table(tuning.entries())
    assert len({layer.note for layer in result.layers}) == 2
    assert result.totals() == [] and "no totals" in result.to_markdown()
    assert "no totals" not in profile_of_table(tuning.entries()[:1]).to_markdown()
    tuning.clear()
    # Of another family other constraints are kept.
    tuning.tune([LINE, "softmax_fwd x=f32[2,3,4]:nchw"], device="cpu", time_budget_s=0.1)
    result = profile_of_table(tuning.entries())
    assert len({layer.note for layer in result.layers}) == 2
    assert [total.label for total in result.totals()][-1] == "all passes"


def test_a_coupled_forward_s_operations_are_those_of_what_was_timed() -> None:
    line = _C.canonical_problem(
        "rnn_fwd cell=lstm x=f32[2,3,3]:nchw hidden=4 layers=1 bidirectional=false train=true"
    )
    (measured,) = profile(line, device="cpu", time_budget_s=0.1).layers
    (kept,) = profile_of_table(tuning.entries()).layers
    listed = list_layer(Layer(line), "cpu", "")
    assert kept.problem == line and kept.flops == listed.flops == measured.flops
    assert measured.flops > _C.problem_info(line)["flops"]


def test_best_takes_a_flag(device: str) -> None:
    found = profile(LINE, device=device, time_budget_s=0.1)
    with pytest.raises(TypeError, match="argument deterministic: got 'yes' .str., wanted a bool"):
        found.best(deterministic="yes")  # type: ignore[arg-type]


def test_layers_of_one_problem_keep_all_their_notes() -> None:
    one, two = Layer(LINE, ("a",), 2, "x"), Layer(LINE, ("b", "a"), 3, "y")
    (merged,) = merge([one, two, one])
    assert (merged.names, merged.count, merged.note) == (("a", "b"), 7, "a: x; b a: y")


def test_best_carries_the_type_of_accumulation() -> None:
    with pytest.raises(ValueError, match="policy: got 'compute=f64' with a problem line, which"):
        profile(LINE, device="cpu", policy="compute=f64")
    found = profile_model(
        nn.Conv2d(2, 3, 3).double(),
        torch.randn(1, 2, 5, 5, dtype=torch.float64),
        passes=["fwd"],
        device="cpu",
        policy="compute=f64",
        time_budget_s=0.01,
    )
    assert found.best().get("compute") == "f64"


def test_a_cap_holds_for_what_a_target_accepts() -> None:
    line = "conv_fwd x=f16[2,64,8,8]:nhwc w=f16[64,64,3,3]:nhwc pad=1"
    policy = "max_workspace=1KiB"
    (layer,) = profile(line, target="h200", policy=policy, time_budget_s=0.01).layers
    wanted = list_layer(Layer(_C.canonical_problem(line)), "target:h200", policy).listed
    assert [(row["algorithm"], row["status"]) for row in layer.listed] == [
        (row["algorithm"], row["status"]) for row in wanted
    ]
    assert {"ok", "excluded"} <= {row["status"] for row in layer.listed}


def test_notes_of_layers_that_share_a_problem_say_whose_they_are(device: str) -> None:
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
    x = torch.randn(2, 4, 8, 8, device=device, requires_grad=True)
    found = profile_model(model.to(device), x, time_budget_s=0.01)
    notes = {layer.note for layer in found.layers if layer.count == 2}
    assert notes >= {"0: fwd of ConvTranspose2d", "0: bwd_filter of ConvTranspose2d"}
