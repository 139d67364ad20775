"""What an H200 or H100 accepts, listed from its device properties alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from torch_cudnn_ext import _C

TARGET = "target:h200"
# The shape, in f16 channels-last, whose plans with default knobs were counted on cuDNN 9.19.
PROBLEM = (
    "{op} x=f16[32,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1 stride=1 dilation=1 groups=1 "
    "compute=f32"
)
DEFAULT_PLANS = {"conv_fwd": 17, "conv_bwd_data": 27, "conv_bwd_filter": 26}
RUNS = ("ok", "needs a driver")  # there
EVERYTHING = "allow_down_convert;allow_reduced_range"
OPS = sorted(DEFAULT_PLANS)


def _listing(op: str) -> list[_C.Candidate]:
    return _C.candidates(PROBLEM.format(op=op), TARGET, "")


@pytest.mark.parametrize("op", OPS)
def test_every_default_plan_is_listed_with_its_workspace(op: str) -> None:
    plans = [
        candidate
        for candidate in _C.candidates(PROBLEM.format(op=op), TARGET, EVERYTHING)
        if candidate["status"] == "ok"
        and candidate["backend"] == "graph"
        and "/" not in candidate["algorithm"]
    ]
    assert len(plans) >= DEFAULT_PLANS[op]
    assert all(plan["workspace_bytes"] is not None for plan in plans)
    assert any(plan["workspace_bytes"] == 0 for plan in plans)
    assert any(plan["workspace_bytes"] for plan in plans)


@pytest.mark.parametrize("op", OPS)
def test_heuristic_configurations_are_listed_without_duplicates(op: str) -> None:
    listing = _listing(op)
    algorithms = [candidate["algorithm"] for candidate in listing]
    assert len(algorithms) == len(set(algorithms))
    assert any(candidate["source"].startswith("heuristic A") for candidate in listing)
    assert any("tensor_core" in candidate["notes"] for candidate in listing)


@pytest.mark.parametrize("op", OPS)
def test_whatever_is_not_ok_has_a_reason(op: str) -> None:
    for candidate in _listing(op):
        assert candidate["status"] in ("ok", "unsupported", "excluded", "needs a driver")
        assert bool(candidate["reason"]) == (candidate["status"] != "ok"), candidate


def test_constraints_hold_for_a_target() -> None:
    problem = PROBLEM.format(op="conv_bwd_filter")
    capped = _C.candidates(problem, TARGET, "max_workspace=0")
    good = [candidate for candidate in capped if candidate["status"] == "ok"]
    assert good and all(candidate["workspace_bytes"] == 0 for candidate in good)
    strict, free = (
        [c["deterministic"] for c in _C.candidates(problem, TARGET, policy) if c["status"] == "ok"]
        for policy in (f"{EVERYTHING};deterministic", EVERYTHING)
    )
    assert strict and all(strict) and not all(free)


def test_the_listing_is_the_same_in_two_processes() -> None:
    code = (
        "import json, sys\n"
        "from torch_cudnn_ext import _C\n"
        "print(json.dumps([_C.candidates(line, 'target:h200', '') for line in sys.argv[1:]]))"
    )
    lines = [PROBLEM.format(op=op) for op in OPS]
    outputs = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", code, *lines], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(2)
    ]
    assert outputs[0] == outputs[1] == [_listing(op) for op in OPS]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_an_engine_that_would_keep_gigabytes_is_refused(dtype: str) -> None:
    for channels, groups in ((64, 1), (16, 1), (64, 4), (64, 64)):
        line = (
            f"conv_fwd x={dtype}[8,{channels},28,28]:nhwc "
            f"w={dtype}[64,{channels // groups},3,3]:nhwc pad=1 groups={groups}"
        )
        rows = {row["algorithm"]: row for row in _C.candidates(line, TARGET, "allow_tf32")}
        kept = "for which the driver takes gigabytes" in rows["graph:eng80"]["reason"]
        assert kept == (channels // groups > 16), rows["graph:eng80"]


@pytest.mark.parametrize("op", OPS)
def test_an_h100_accepts_the_same_each_time(op: str) -> None:
    line = PROBLEM.format(op=op)
    first, again = (_C.candidates(line, "target:h100", EVERYTHING) for _ in range(2))
    assert first == again
    assert sum(row["status"] == "ok" for row in first) >= DEFAULT_PLANS[op]


def test_a_target_refuses_to_measure_and_to_run() -> None:
    problem = PROBLEM.format(op="conv_fwd")
    with pytest.raises((RuntimeError, ValueError), match="h200") as refused:
        _C.measure(problem, TARGET)
    assert "target" in str(refused.value)
    with pytest.raises((RuntimeError, ValueError), match="h200"):
        _C.scratch(problem, TARGET)


def test_an_unknown_target_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="z80"):
        _C.candidates(PROBLEM.format(op="conv_fwd"), "target:z80", "")


def test_the_heuristic_that_prefers_memory_takes_the_smallest_workspace() -> None:
    # By default the first of the list, which takes some.
    assert _C.decide(PROBLEM.format(op="conv_fwd"), TARGET)["workspace_bytes"]
    choice = _C.decide(PROBLEM.format(op="conv_fwd"), TARGET, "prefer=memory")
    assert choice["workspace_bytes"] == 0


def test_the_heuristic_answers_for_a_target_within_the_cap() -> None:
    for cap in ("0", "20%"):
        choice = _C.decide(PROBLEM.format(op="conv_fwd"), TARGET, f"max_workspace={cap}")
        assert choice["algorithm"].startswith("graph:") and choice["why"] == "heuristic"
        assert cap != "0" or choice["workspace_bytes"] == 0


def test_the_heuristic_asks_every_backend_that_is_admitted() -> None:
    problem = "reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=add"
    if torch.cuda.is_available():  # the engine wants a driver
        assert _C.decide(problem, TARGET, "backends=graph")["algorithm"].startswith("graph:")
        return
    with pytest.raises(RuntimeError, match="graph:eng0"):
        _C.decide(problem, TARGET, "backends=graph")


@pytest.mark.parametrize(
    ("problem", "algorithm", "reason"),
    [
        (
            "rnn_fwd cell=gru x=f16[6,16,128]:nchw hidden=80",
            "legacy:persist_static_small_h/math=tensor_op",
            "wrong results",
        ),
        (
            "rnn_fwd cell=lstm x=f32[24,56,17]:nchw hidden=112",
            "legacy:persist_static_small_h/math=tensor_op_allow_conversion",
            "wrong results",
        ),
        (
            "rnn_fwd cell=lstm x=f16[64,5,11]:nchw hidden=72 train=true",
            "legacy:persist_static/math=tensor_op",
            "may be NaN",
        ),
        (
            "rnn_bwd cell=lstm x=f16[6,1,128]:nchw hidden=200",
            "legacy:persist_static/math=tensor_op",
            "may be NaN",
        ),
        (
            "rnn_bwd cell=lstm x=f16[6,3,128]:nchw hidden=160",
            "legacy:persist_static_small_h/math=default",
            "no gradient of hidden sizes above 128",
        ),
        (
            "conv_bwd_data x=f32[2,4,8,8]:s(1000,200,20,1) w=f32[6,4,3,3]:nchw pad=1",
            "graph:eng2",
            "between the rows",
        ),
        (
            f"conv_bwd_data x=f32[3,9,8,7]:nchw w=f32[8,9,1,1]:nchw stride=2 dilation={2**31 - 1}",
            "graph:eng0",
            "divide by zero",
        ),
        (
            f"conv_bwd_data x=f32[{2**32},2,8,8]:nchw w=f32[8,2,3,3]:nchw pad=1 stride=2",
            "graph:eng0",
            "divide by zero",
        ),
    ],
)
def test_engines_that_go_wrong_are_refused(problem: str, algorithm: str, reason: str) -> None:
    # Refused even where every relaxation of the numerics is allowed.
    listing = {c["algorithm"]: c for c in _C.candidates(problem, TARGET, EVERYTHING)}
    assert listing[algorithm]["status"] == "unsupported"
    assert reason in listing[algorithm]["reason"]


@pytest.mark.parametrize("policy", ["", "allow_tf32=false", EVERYTHING])
@pytest.mark.parametrize("epilogue", ["bias={0}", "bias={0} act=relu", "bias={0} z={0} act=relu"])
@pytest.mark.parametrize(
    "shape",
    [
        "x=f16[32,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1",
        "x=f32[32,64,56,56]:nchw w=f32[64,64,3,3]:nchw pad=1",
        "x=f64[32,64,56,56]:nchw w=f64[64,64,3,3]:nchw pad=1",
        "x=f16[32,3,224,224]:nhwc w=f16[64,3,7,7]:nhwc pad=3 stride=2",
        "x=f16[2,64,8,28,28]:nhwc w=f16[64,64,3,3,3]:nhwc pad=1",
        "x=bf16[2,64,100]:nchw w=bf16[64,64,3]:nchw pad=1",
        "x=f16[32,64,56,56]:nhwc w=f16[64,1,3,3]:nhwc pad=1 groups=64",
    ],
)
def test_an_epilogue_is_fused_and_takes_nothing_away(
    shape: str, epilogue: str, policy: str
) -> None:
    dtype = shape[2 : shape.index("[")]
    if dtype == "f64":  # whose fused engines all take relu of NaN to be 0
        policy = f"{policy};allow_reduced_range" if policy else "allow_reduced_range"
    plain = _C.candidates(f"conv_fwd {shape}", TARGET, policy)
    more = _C.candidates(f"conv_fwd {shape} {epilogue.format(dtype)}", TARGET, policy)
    algorithms = [candidate["algorithm"] for candidate in more]
    assert len(algorithms) == len(set(algorithms))
    good = {c["algorithm"]: c for c in more if c["status"] == "ok"}
    assert {c["algorithm"] for c in plain if c["status"] == "ok"} <= set(good)
    assert not any("fused" in c["notes"] for c in plain)
    sources = {c["algorithm"]: c["source"] for c in more}
    for candidate in plain:  # what the heuristic names there it names here
        if candidate["status"] == "ok" and candidate["source"].startswith("heuristic"):
            assert sources[candidate["algorithm"]].startswith("heuristic")
    fused = [c for c in good.values() if "fused" in c["notes"]]
    assert fused and len(fused) < len(good)
    first = next(iter(good.values()))
    assert ("fused" in first["notes"]) == ("groups" not in shape)


def test_a_filter_gradient_that_is_rounded_before_it_is_added_says_so() -> None:
    line = "conv_bwd_filter x=f16[16,64,28,28]:nhwc w=f16[64,64,3,3]:nhwc pad=1"
    for accumulate in ("", " accumulate=add"):
        listed = _C.candidates(line + accumulate, TARGET, "allow_down_convert")
        rows = [row for row in listed if row["algorithm"].startswith("graph:eng65")]
        assert rows
        assert all(("down_convert" in row["notes"]) == bool(accumulate) for row in rows)


def test_without_a_bias_relu_is_taken_behind_the_plain_graph() -> None:
    line = "conv_fwd x=f16[32,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1"
    plain = [c for c in _C.candidates(line, TARGET, "") if c["status"] == "ok"]
    for rest in (" act=relu", " z=f16 act=relu"):
        listing = {c["algorithm"]: c for c in _C.candidates(line + rest, TARGET, "")}
        assert not any("fused" in c["notes"] for c in listing.values() if c["status"] == "ok")
        for candidate in plain:  # fused ones that are compiled at run time may take their place
            found = listing[candidate["algorithm"]]
            assert found["status"] in ("ok", "needs a driver")


def test_graph_plans_hold_no_free_scales() -> None:
    listing = _C.candidates(PROBLEM.format(op="conv_fwd") + " accumulate=general", TARGET, "")
    reasons = [c["reason"] for c in listing if c["backend"] == "graph"]
    assert reasons and all("alpha and beta are fixed" in reason for reason in reasons)


@pytest.mark.parametrize("align", [2, 8])
def test_a_bias_is_fused_on_aligned_tensors_alone(align: int) -> None:
    line = f"conv_fwd x=f16[2,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc pad=1 align={align} bias=f16"
    good = [c for c in _C.candidates(line, TARGET, "") if c["status"] == "ok"]
    assert good and not any("fused" in c["notes"] for c in good)
    plain = _C.candidates(line.replace(" bias=f16", ""), TARGET, "")
    assert [c["algorithm"] for c in plain if c["status"] == "ok"] == [c["algorithm"] for c in good]


def test_products_of_planes_are_the_plain_graphs() -> None:
    line = "conv_fwd x=f16[32,96,56,56]:{0} w=f16[24,96,1,1]:{0} bias=f16"
    fused = [
        "fused"
        in next(c for c in _C.candidates(line.format(layout), TARGET, "") if c["status"] == "ok")[
            "notes"
        ]
        for layout in ("nchw", "nhwc")
    ]
    assert fused == [False, True]


@pytest.mark.parametrize(
    ("whole", "too_large", "names"),
    [
        (
            "pool_fwd x=f16[31,64,1024,1024]:nhwc window=2 stride=2 mode=avg_include",
            "pool_fwd x=f16[32,64,1024,1024]:nhwc window=2 stride=2 mode=avg_include",
            {"eng3"},
        ),
        (
            "pool_bwd x=f16[31,64,1024,1024]:nchw window=2 stride=2 mode=max train=true",
            "pool_bwd x=f16[32,64,1024,1024]:nchw window=2 stride=2 mode=max train=true",
            {"eng1"},
        ),
        (
            "pool_fwd x=f32[1,1,32,262144]:nchw window=3,2049 pad=1,1024 stride=1 mode=max",
            "pool_fwd x=f32[1,1,32,262145]:nchw window=3,2049 pad=1,1024 stride=1 mode=max",
            {"eng1"},
        ),
        (
            "conv_bwd_data x=f16[31,64,1024,1024]:nhwc w=f16[32,64,3,3]:nhwc pad=1",
            "conv_bwd_data x=f16[32,64,1024,1024]:nhwc w=f16[32,64,3,3]:nhwc pad=1",
            {"eng1", "eng2"},
        ),
        (
            "conv_bwd_filter x=f16[8,64,2048,2048]:nhwc w=f16[32,64,3,3]:nhwc pad=1",
            "conv_bwd_filter x=f16[9,64,2048,2048]:nhwc w=f16[32,64,3,3]:nhwc pad=1",
            {"eng19"},
        ),
    ],
)
def test_engines_that_count_in_32_bits_are_refused(
    whole: str, too_large: str, names: set[str]
) -> None:
    def offered(problem: str) -> set[str]:
        return {
            candidate["algorithm"].partition("/")[0].removeprefix("graph:")
            for candidate in _C.candidates(problem, TARGET, EVERYTHING)
            if candidate["backend"] == "graph" and candidate["status"] in RUNS
        }

    assert names <= offered(whole) - offered(too_large)


def test_an_engine_that_runs_on_another_stream_is_refused() -> None:
    def reasons(direction: str, parameters: str) -> set[str]:
        problem = f"layer_norm_{direction} x=f16[8,64,256]:nchw {parameters}"
        rows = _C.candidates(problem, "target:h200", "backends=graph")
        return {row["reason"] for row in rows if row["algorithm"].startswith("graph:eng0")}

    # Group norm is one, too; and where there are no parameters, their gradients are added up still.
    for parameters in (
        "kind=instance w=f16 bias=f16",
        "kind=instance",
        "kind=group groups=8 w=f16 bias=f16",
    ):
        (reason,) = reasons("bwd", parameters)
        assert "default stream" in reason
        assert "default stream" not in " ".join(reasons("fwd", parameters))
