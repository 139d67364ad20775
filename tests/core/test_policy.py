"""The texts of problems, algorithms and policies, and the value that stands for a policy."""

import copy
import itertools
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from conftest import newest
from hypothesis import given
from hypothesis import strategies as st

from torch_cudnn_ext import _C, Policy, enabled, knobs, nn, ops
from torch_cudnn_ext._policy_text import check_pins
from torch_cudnn_ext.policy import (
    PolicyLike,
    as_policy,
    check_named_pins,
    policy_text,
    text_for_all,
)

PASSES = ("fwd", "bwd_data", "bwd_filter")
OPS = tuple(f"conv_{name}" for name in PASSES)
ELEMENT_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


def legacy_names(pass_name: str) -> list[tuple[int, str, str]]:
    """Integer, enum name and short name of each classic algorithm of a pass."""
    conv = next(op for op in _C.operators() if op["family"] == "conv")
    return [(value, enum, short) for value, enum, short in conv["legacy_names"][pass_name]]


def of_pass(pass_name: str, choice: str | int) -> Policy:
    """A policy that chooses for one pass."""
    return Policy().replace(**{pass_name: choice})


# --- strategies --------------------------------------------------------------------------------


def graph_algorithms() -> st.SearchStrategy[str]:
    """Engine texts with knobs in any order."""
    knobs = st.dictionaries(st.integers(0, 60), st.integers(0, 300), max_size=4)
    return st.builds(
        lambda engine, values: (
            f"graph:eng{engine}" + "".join(f"/k{knob}={value}" for knob, value in values.items())
        ),
        st.integers(0, 200),
        knobs,
    )


def legacy_algorithms(pass_name: str) -> st.SearchStrategy[str]:
    """Classic algorithms in each of their spellings, with and without a math type."""
    names = [
        spelling
        for value, enum, short in legacy_names(pass_name)
        for spelling in (str(value), enum, short, f"legacy:{short}")
    ]
    maths = ["", *(f"/math={m}" for m in ("default", "tensor_op", "fma"))]
    return st.builds(lambda name, math: name + math, st.sampled_from(names), st.sampled_from(maths))


def algorithms(pass_name: str) -> st.SearchStrategy[str]:
    """Whatever names an algorithm of a pass."""
    others = st.sampled_from(["aten:default", "cpu:im2col", "cpu:fft", "cpu:direct"])
    return st.one_of(graph_algorithms(), legacy_algorithms(pass_name), others)


def choices(pass_name: str) -> st.SearchStrategy[str | int | None]:
    """Whatever a pass may be set to."""
    words = ["autotune", "heuristic", "time_once", "guess_once", "time_on_shape_change"]
    integers = [value for value, _, _ in legacy_names(pass_name)]
    return st.one_of(
        algorithms(pass_name),
        st.sampled_from(words),
        st.sampled_from(integers),
        st.sampled_from([None, "", -1]),
    )


CAPS = st.one_of(
    st.integers(0, 2**40),
    st.integers(0, 4096).map(lambda count: f"{count}MiB"),
    st.integers(0, 100).map(lambda share: f"{share}%"),
)
FLAGS = st.sampled_from([None, True, False])


@st.composite
def keywords(draw: st.DrawFn) -> dict[str, Any]:
    """Keywords of `Policy`."""
    drawn: dict[str, Any] = {name: draw(choices(name)) for name in PASSES}
    drawn["max_workspace"] = draw(st.one_of(st.none(), CAPS))
    for name in (
        "deterministic",
        "allow_tf32",
        "allow_down_convert",
        "allow_reduced_range",
        "benchmark",
        "fastest",
    ):
        drawn[name] = draw(FLAGS)
    drawn["prefer"] = draw(st.sampled_from([None, "time", "gpu_time", "memory"]))
    drawn["backends"] = draw(
        st.sampled_from(
            [None, "cudnn", "aten,cpu", ["cpu"], ["legacy", "graph"], ["cudnn", "aten"]]
        )
    )
    drawn["on_unsupported"] = draw(st.sampled_from([None, "error", "warn", "fallback"]))
    drawn["compute"] = draw(st.sampled_from([None, "f16", "f32", "f64", "as_input"]))
    return drawn


@st.composite
def layouts(draw: st.DrawFn, sizes: list[int]) -> str:
    """A layout of these sizes: dense in a named or any other order, or with gaps."""
    named = draw(st.sampled_from(["nchw", "nhwc", "strides"]))
    if named != "strides":
        return f":{named}"
    step = draw(st.integers(1, 3))
    strides = [0] * len(sizes)
    for dim in draw(st.permutations(range(len(sizes)))):
        strides[dim] = step
        step *= sizes[dim]
    return f":s({','.join(map(str, strides))})"


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A problem text, and what it says."""
    n = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(n)]
    padding = [draw(st.integers(0, 3)) for _ in range(n)]
    stride = [draw(st.integers(1, 3)) for _ in range(n)]
    dilation = [draw(st.integers(1, 3)) for _ in range(n)]
    space = [(k - 1) * d + draw(st.integers(1, 9)) for k, d in zip(kernel, dilation, strict=True)]
    per_group = draw(st.integers(1, 5))
    x = [draw(st.integers(1, 4)), per_group * groups, *space]
    w = [groups * draw(st.integers(1, 5)), per_group, *kernel]
    dtype = draw(st.sampled_from(sorted(ELEMENT_BYTES)))
    computes = {"f64": ["f64"], "f16": ["f32", "f16"]}.get(dtype, ["f32"])
    compute = draw(st.sampled_from(computes))
    align = draw(st.sampled_from([a for a in (2, 4, 8, 16) if a >= ELEMENT_BYTES[dtype]]))
    op = draw(st.sampled_from(OPS))

    def numbers(values: list[int]) -> str:
        shortest = len(set(values)) == 1 and draw(st.booleans())
        return str(values[0]) if shortest else ",".join(map(str, values))

    words = [
        op,
        f"x={dtype}[{','.join(map(str, x))}]{draw(layouts(x))}",
        f"w={dtype}[{','.join(map(str, w))}]{draw(layouts(w))}",
        f"pad={numbers(padding)}",
        f"stride={numbers(stride)}",
        f"dilation={numbers(dilation)}",
        f"groups={groups}",
        f"compute={compute}",
        *draw(st.sampled_from([[], ["y=:nhwc"], ["y=:nchw"]])),
        *([f"align={align}"] if align != 16 or draw(st.booleans()) else []),
        *draw(st.sampled_from([[], ["mode=cross"], ["mode=conv"]])),
        *draw(st.sampled_from([[], ["accumulate=none"], ["accumulate=add"]])),
    ]
    said = {"op": op, "dtype": dtype, "compute": compute, "x": x, "w": w}
    return " ".join(words), said


# --- problems ----------------------------------------------------------------------------------


@given(problems())
def test_problem_texts_round_trip(problem: tuple[str, dict[str, Any]]) -> None:
    text, said = problem
    canonical = _C.canonical_problem(text)
    assert _C.canonical_problem(canonical) == canonical
    info = _C.problem_info(text)
    assert info["text"] == canonical
    assert info == _C.problem_info(canonical)
    assert (info["op"], info["dtype"]) == (said["op"], said["dtype"])
    assert f" compute={said['compute']}" in canonical
    assert list(info["slots"]["x"]["sizes"]) == said["x"]
    assert list(info["slots"]["w"]["sizes"]) == said["w"]


@given(problems())
def test_the_three_passes_differ_in_the_first_word_only(problem: tuple[str, Any]) -> None:
    rest = problem[0].partition(" ")[2]
    canonical = {op: _C.canonical_problem(f"{op} {rest}") for op in OPS}
    assert [text.partition(" ")[0] for text in canonical.values()] == list(OPS)
    slots = [_C.problem_info(text)["slots"] for text in canonical.values()]
    outputs = [{role for role, slot in slot_map.items() if slot["output"]} for slot_map in slots]
    assert outputs == [{"y"}, {"x"}, {"w"}]


LINE = (
    "conv_fwd x=f16[64,64,56,56]:nhwc w=f16[64,64,3,3]:nhwc "
    "pad=1 stride=1 dilation=1 groups=1 compute=f32"
)


def test_a_canonical_problem_is_as_documented() -> None:
    assert _C.canonical_problem(LINE) == LINE


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("pad=1", "pad=1,1"),
        ("compute=f32", "compute=f32 align=16 mode=cross accumulate=none"),
        ("f16[64,64,3,3]:nhwc", "f16[64,64,3,3]:s(576,1,192,64)"),
        (" pad=1", "\n  pad=1"),
    ],
)
def test_two_spellings_of_a_problem_are_one(written: str, canonical: str) -> None:
    assert _C.canonical_problem(LINE.replace(written, canonical)) == LINE


def test_a_bias_is_one_number_a_channel() -> None:
    info = _C.problem_info(LINE.replace("f16[64,64,3,3]", "f16[96,64,3,3]") + " bias=f16")
    bias = info["slots"]["bias"]
    assert (bias["dtype"], bias["sizes"], bias["output"]) == ("f16", [96], False)
    assert info["text"].endswith("compute=f32 bias=f16")


def test_what_is_added_before_relu_lies_as_the_result() -> None:
    info = _C.problem_info(LINE.replace(":nhwc w", ":nchw w") + " y=:nhwc bias=f16 z=f16 act=relu")
    z, y = info["slots"]["z"], info["slots"]["y"]
    assert {**y, "output": False} == z
    assert info["text"].endswith("compute=f32 bias=f16 z=f16 act=relu")


def test_strides_of_dimensions_of_size_one_do_not_matter() -> None:
    rest = "w=f32[1,1,1,1]:nchw pad=0 stride=1 dilation=1 groups=1 compute=f32"
    plain = _C.canonical_problem(f"conv_fwd x=f32[1,1,1,5]:nchw {rest}")
    assert _C.canonical_problem(f"conv_fwd x=f32[1,1,1,5]:s(7,11,13,1) {rest}") == plain


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("conv_fwd", "conv_sideways"), ("conv_sideways", "conv_fwd")),
        (("x=f16", "x=f17"), ("f17", "f16")),
        ((":nhwc w", ":nwhc w"), ("nwhc", "nhwc")),
        (("pad=1", "pad=one"), ("pad", "one")),
        (("pad=1", "pad=1,1,1"), ("pad", "3")),
        (("stride=1", "stride=0"), ("stride", "0")),
        (("groups=1", "groups=3"), ("groups", "3", "64")),
        ((" w=f16[64,64,3,3]:nhwc", ""), ("w=",)),
        ((LINE, LINE.replace("f16", "f64")), ("compute", "f32", "f64")),
        (("compute=f32", "compute=f32 colour=red"), ("colour",)),
        (("compute=f32", "compute=f32 align=3"), ("align", "3")),
        (("f16[64,64,3,3]", "f16[64,64,99,99]"), ("99", "larger")),
        (("compute=f32", "compute=f32 bias=f32"), ("bias", "f32", "f16")),
        (("compute=f32", "compute=f32 bias=f16 accumulate=add"), ("bias", "accumulate=add")),
        ((LINE, LINE.replace("fwd", "bwd_data") + " bias=f16"), ("bias", "conv_bwd_data")),
        (("compute=f32", "compute=f32 z=f16 accumulate=add"), ("z", "accumulate=add")),
        (("compute=f32", "compute=f32 z=f32 act=relu"), ("z", "f32", "f16")),
        (("compute=f32", "compute=f32 act=elu"), ("act", "elu", "relu")),
        (("compute=f32", "compute=f32 act=relu accumulate=add"), ("act", "accumulate=add")),
        ((LINE, LINE.replace("fwd", "bwd_filter") + " act=relu"), ("act", "conv_bwd_filter")),
        ((":nhwc w", ":s(0,1,64,3584) w"), ("x", "stride 0 over the size 64")),
    ],
)
def test_a_bad_problem_is_told_what_is_wrong(
    change: tuple[str, str], named: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as caught:
        _C.canonical_problem(LINE.replace(*change))
    for part in named:
        assert part in str(caught.value)


# --- algorithms --------------------------------------------------------------------------------


@pytest.mark.parametrize("pass_name", PASSES)
@given(data=st.data())
def test_algorithm_texts_round_trip(pass_name: str, data: st.DataObject) -> None:
    op = f"conv_{pass_name}"
    canonical = _C.canonical_algorithm(data.draw(algorithms(pass_name)), op)
    assert _C.canonical_algorithm(canonical) == canonical
    assert _C.canonical_algorithm(canonical, op) == canonical
    assert str(Policy.parse(f"{pass_name}={canonical}")) == f"{pass_name}={canonical}"


@given(st.permutations(["k2=1", "k13=0", "k0=7"]))
def test_the_order_of_knobs_does_not_matter(knobs: list[str]) -> None:
    written = "/".join(["graph:eng67", *knobs])
    assert _C.canonical_algorithm(written) == "graph:eng67/k0=7/k2=1/k13=0"


def test_numbers_have_one_spelling() -> None:
    assert _C.canonical_algorithm("graph:eng007/k02=01/k3=-0") == "graph:eng7/k2=1/k3=0"
    for wrong in ("graph:eng7/k-2=1", "graph:eng7/k2=", "graph:eng7/k2=1/k02=1", "graph:eng-7"):
        with pytest.raises(ValueError, match=wrong.partition("/")[0]):
            _C.canonical_algorithm(wrong)


def test_an_unset_knob_is_not_one_set_to_zero() -> None:
    assert _C.canonical_algorithm("graph:eng67") != _C.canonical_algorithm("graph:eng67/k2=0")


@pytest.mark.parametrize("pass_name", PASSES)
def test_classic_algorithms_have_four_spellings(pass_name: str) -> None:
    names = legacy_names(pass_name)
    assert len(names) >= 6
    for value, enum, short in names:
        expected = f"{pass_name}=legacy:{short}"
        for spelling in (value, str(value), enum, short, f"legacy:{short}"):
            assert str(of_pass(pass_name, spelling)) == expected
            assert _C.canonical_algorithm(str(spelling), f"conv_{pass_name}") == f"legacy:{short}"


def test_an_enum_name_of_cudnn_is_understood() -> None:
    policy = Policy(fwd="CUDNN_CONVOLUTION_FWD_ALGO_FFT")
    assert policy == Policy(fwd=4) == Policy(fwd="fft") == Policy(fwd="legacy:fft")
    assert str(policy) == "fwd=legacy:fft"


@pytest.mark.parametrize(
    ("pass_name", "theano", "value"),
    [
        ("fwd", "none", 0),
        ("fwd", "small", 1),
        ("fwd", "large", 2),
        ("fwd", "fft", 4),
        ("fwd", "fft_tiling", 5),
        ("fwd", "winograd", 6),
        ("fwd", "winograd_non_fused", 7),
        ("bwd_data", "none", 0),
        ("bwd_data", "deterministic", 1),
        ("bwd_data", "fft", 2),
        ("bwd_data", "fft_tiling", 3),
        ("bwd_data", "winograd", 4),
        ("bwd_data", "winograd_non_fused", 5),
        ("bwd_filter", "none", 0),
        ("bwd_filter", "deterministic", 1),
        ("bwd_filter", "fft", 2),
        ("bwd_filter", "small", 3),
        ("bwd_filter", "winograd_non_fused", 5),
        ("bwd_filter", "fft_tiling", 6),
    ],
)
def test_theanos_names_mean_what_they_meant(pass_name: str, theano: str, value: int) -> None:
    assert of_pass(pass_name, theano) == of_pass(pass_name, value)


def test_small_is_understood_for_the_data_gradient_too() -> None:
    assert of_pass("bwd_data", "small") == of_pass("bwd_data", "deterministic")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense", ("nonsense", "fft")),
        ("99", ("99", "fft")),
        ("rocm:fft", ("rocm", "graph")),
        ("graph:fft", ("fft", "eng")),
        ("graph:eng1/k2", ("k2",)),
        ("graph:eng1/x=1", ("x=1",)),
        ("graph:eng1/k2=1/k2=2", ("k2",)),
        ("legacy:fft/math=double", ("math=double", "fma")),
        ("legacy:nonsense", ("nonsense", "fft")),
        ("cpu:", ("cpu:",)),
    ],
)
def test_a_bad_algorithm_is_told_what_is_wrong(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        _C.canonical_algorithm(text, "conv_fwd")
    for part in named:
        assert part in str(caught.value)


# --- policies ----------------------------------------------------------------------------------


@given(keywords())
def test_policy_texts_round_trip(drawn: dict[str, Any]) -> None:
    policy = Policy(**drawn)
    text = str(policy)
    assert _C.canonical_policy(text) == text
    assert Policy.parse(text) == policy
    assert hash(Policy.parse(text)) == hash(policy)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert copy.deepcopy(policy) == policy
    assert repr(policy) == f"Policy.parse({text!r})"


@given(keywords())
def test_a_policy_says_what_it_was_told(drawn: dict[str, Any]) -> None:
    policy = Policy(**drawn)
    for name in ("deterministic", "allow_tf32", "allow_down_convert", "allow_reduced_range"):
        expected = None if drawn[name] is None else str(drawn[name]).lower()
        assert policy.get(name) == expected
    for name in ("on_unsupported", "compute"):
        assert policy.get(name) == drawn[name]
    for name in PASSES:
        assert (policy.get(name) is None) == (drawn[name] in (None, "", -1))
    if not drawn["fastest"] and isinstance(drawn["max_workspace"], int):
        assert policy.max_workspace == drawn["max_workspace"]


@given(keywords(), st.randoms())
def test_the_order_of_fields_does_not_matter(drawn: dict[str, Any], random: Any) -> None:
    policy = Policy(**drawn)
    parts = str(policy).split(";")
    random.shuffle(parts)
    assert Policy.parse(" ; ".join(parts)) == policy


def test_a_policy_text_is_as_documented() -> None:
    text = (
        "fwd=legacy:fft;bwd_data=autotune;bwd_filter=heuristic;max_workspace=64MiB;deterministic;"
        "on_unsupported=warn"
    )
    policy = Policy(
        fwd=4,
        bwd_data="autotune",
        bwd_filter="heuristic",
        max_workspace="64MiB",
        deterministic=True,
        on_unsupported="warn",
    )
    assert str(policy) == text
    assert Policy.parse(text) == policy
    assert Policy.parse(text.replace("=", " = ").replace(";", " ; ")) == policy
    assert Policy.parse("backends = legacy, graph;benchmark= true").text == (
        "benchmark;backends=cudnn"
    )


def test_one_word_is_for_all_passes() -> None:
    for word in ("autotune", "heuristic", "aten:default", "fft"):
        policy = Policy(word)
        assert policy == Policy.parse(word) == Policy(fwd=word, bwd_data=word, bwd_filter=word)
    assert Policy("autotune", fwd="fft") == Policy(
        fwd="fft", bwd_data="autotune", bwd_filter="autotune"
    )


def test_a_pass_s_own_field_outweighs_single_words_before_it() -> None:
    assert Policy.parse("fwd=cpu:fft;autotune") == Policy.parse("autotune;fwd=cpu:fft")
    assert Policy.parse("fwd=cpu:fft;autotune").get("fwd") == "cpu:fft"


def test_the_last_of_two_switches_holds() -> None:
    assert Policy.parse("deterministic=false;deterministic").get("deterministic") == "true"
    assert Policy.parse("allow_tf32;allow_tf32=false").get("allow_tf32") == "false"


def test_the_largest_integer_is_a_cap() -> None:
    policy = Policy(max_workspace=2**63 - 1)
    assert policy.max_workspace == 2**63 - 1
    assert Policy.parse(str(policy)) == policy


def test_one_word_may_fit_some_passes_alone() -> None:
    assert Policy("large") == Policy(fwd="large")
    with pytest.raises(ValueError, match="integer"):
        Policy.parse("1")


def test_bare_deterministic_is_the_constraint() -> None:
    assert Policy.parse("deterministic") == Policy(deterministic=True)
    assert Policy(bwd_data="deterministic") == Policy(bwd_data=1)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("fwd=legacy:fft;fwd=legacy:gemm", "fwd=legacy:gemm"),
        ("fwd=legacy:fft;fwd=-1", ""),
        ("fwd=legacy:fft;fwd=", ""),
        (
            "autotune;fwd=legacy:fft;fwd=-1",
            "fwd=autotune;bwd_data=autotune;bwd_filter=autotune",
        ),
        (
            "max_workspace=1MiB;max_workspace=2%;max_workspace=2MiB",
            "max_workspace=2MiB;max_workspace=2%",
        ),
        ("deterministic;deterministic=false", "deterministic=false"),
    ],
)
def test_of_a_field_that_stands_twice_the_last_one_holds(written: str, read: str) -> None:
    assert Policy.parse(written) == Policy.parse(read)
    with pytest.raises(ValueError, match="nonsense"):
        Policy.parse("fwd=nonsense;fwd=legacy:fft")


@pytest.mark.parametrize("pass_name", PASSES)
def test_theanos_runtime_choices(pass_name: str) -> None:
    assert of_pass(pass_name, "guess_on_shape_change") == of_pass(pass_name, "heuristic")
    assert of_pass(pass_name, "time_on_shape_change") == of_pass(pass_name, "autotune")
    for once in ("guess_once", "time_once"):
        assert of_pass(pass_name, once).get(pass_name) == once


def test_three_ways_to_say_not_pinned() -> None:
    assert Policy(fwd=-1, bwd_data=None, bwd_filter="") == Policy() == Policy.parse("")
    assert str(Policy()) == ""


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        (0, 0),
        ("0", 0),
        (67108864, 67108864),
        ("64MiB", 67108864),
        ("1.5KiB", 1536),
        ("2GiB", 2**31),
        ("1MB", 10**6),
        ("20%", "20%"),
    ],
)
def test_sizes_of_workspaces(written: int | str, limit: int | str) -> None:
    assert Policy(max_workspace=written).max_workspace == limit


@pytest.mark.parametrize(
    ("keyword", "value", "kind", "wanted"),
    [
        ("fwd", "nonsense", ValueError, "algorithm"),
        ("fwd", 99, ValueError, "algorithm"),
        ("fwd", True, TypeError, "algorithm"),
        ("fwd", 1.5, TypeError, "algorithm"),
        ("fwd", "fft;deterministic", ValueError, "algorithm"),
        ("bwd_filter", "large", ValueError, "algorithm"),
        ("max_workspace", -1, ValueError, "bytes"),
        ("max_workspace", "64 elephants", ValueError, "bytes"),
        ("max_workspace", "120%", ValueError, "bytes"),
        ("max_workspace", True, TypeError, "bytes"),
        ("deterministic", "yes", TypeError, "True or False"),
        ("allow_tf32", 1, TypeError, "True or False"),
        ("prefer", "beauty", ValueError, "'memory'"),
        ("prefer", 3, TypeError, "'memory'"),
        ("backends", "rocm", ValueError, "'cudnn'"),
        ("backends", ["cpu", "rocm"], ValueError, "'cudnn'"),
        ("backends", 5, TypeError, "'cudnn'"),
        ("on_unsupported", "ignore", ValueError, "'fallback'"),
        ("compute", "f8", ValueError, "'f32'"),
    ],
)
def test_a_bad_keyword_names_itself_its_value_and_what_was_wanted(
    keyword: str, value: Any, kind: type[Exception], wanted: str
) -> None:
    with pytest.raises(kind) as caught:
        Policy(**{keyword: value})
    for part in (keyword, repr(value), wanted):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sideways=fft", ("sideways", "docs/reference/policy.md")),
        ("max_workspace", ("max_workspace",)),
        ("deterministic=perhaps", ("deterministic", "perhaps")),
        ("fwd=fft;bwd_data=nonsense", ("nonsense",)),
        ("backends=", ("backends",)),
        ("automatic", ("automatic", "the nearest: autotune")),
        ("fwd=fft\nbwd_data=fft", ("fwd=fft\nbwd_data=fft", "line break", "';'")),
        ("autotune\rdeterministic", ("autotune\rdeterministic", "line break", "';'")),
    ],
)
def test_a_bad_policy_text_is_told_what_is_wrong(text: str, named: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        Policy.parse(text)
    for part in named:
        assert part in str(caught.value)


def test_a_policy_text_may_have_blanks_and_lines_between_its_parts() -> None:
    written = """
        fwd = legacy:fft ;
        \tmax_workspace=64MiB;\r
        backends = legacy, aten;
    """
    assert Policy.parse(written) == Policy.parse(
        "fwd=legacy:fft;max_workspace=64MiB;backends=legacy,aten"
    )
    assert Policy.parse(" \n") == Policy()


def test_an_unknown_family_is_refused() -> None:
    for make in (Policy, partial(Policy, fwd="autotune"), partial(Policy.parse, "")):
        with pytest.raises(ValueError, match="family: got 'zork', wanted one of activation, "):
            make(family="zork")


def test_policies_cannot_be_changed() -> None:
    policy = Policy(fwd="fft")
    with pytest.raises(AttributeError):
        policy.text = ""  # type: ignore[misc]
    assert str(policy) == "fwd=legacy:fft"


def test_replace_sets_and_takes_out() -> None:
    policy = Policy(fwd="fft", max_workspace="64MiB", deterministic=True)
    assert policy.replace(fwd=0, deterministic=None) == Policy(fwd=0, max_workspace="64MiB")
    assert policy.replace() == policy
    assert Policy("autotune").replace(fwd=-1) == Policy(bwd_data="autotune", bwd_filter="autotune")
    assert policy.replace(conv_fwd=None) == policy.replace(conv=None) == policy.replace(fwd=None)
    assert Policy("autotune").replace(conv=None) == Policy()
    assert Policy("autotune").replace(conv="heuristic", conv_fwd=None).get("fwd") == "heuristic"
    both = Policy(fwd="fft", softmax_fwd="legacy:accurate", softmax_bwd="legacy:accurate")
    assert both.replace(softmax=None) == Policy(fwd="fft")
    assert both.replace(softmax_fwd=None, fwd=None) == Policy(softmax_bwd="legacy:accurate")
    with pytest.raises(TypeError, match="sideways"):
        policy.replace(sideways="fft")
    with pytest.raises(
        TypeError, match="got the keyword 'bwd', wanted .* nearest: fwd, bwd_data, bwd"
    ):
        Policy(bwd="autotune")
    with pytest.raises(
        TypeError, match="got the keyword 'bwd_data', wanted .* nearest: conv_bwd_d"
    ):
        Policy(family="softmax", bwd_data=1)
    with pytest.raises(TypeError, match=r"got 5 \(int\), wanted .* or a text or name of an algo"):
        Policy(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fwd.*nonsense"):
        policy.replace(fwd="nonsense")


@given(keywords(), keywords())
def test_merging(left: dict[str, Any], right: dict[str, Any]) -> None:
    a, b = Policy(**left), Policy(**right)
    merged = a | b
    for name in (*PASSES, "allow_tf32", "backends", "on_unsupported", "compute", "prefer"):
        stronger = b.get(name)
        assert merged.get(name) == (a.get(name) if stronger is None else stronger)
    both = (a.get("deterministic"), b.get("deterministic"))
    assert (merged.get("deterministic") == "true") == ("true" in both)
    caps = [cap for cap in (a.max_workspace, b.max_workspace) if isinstance(cap, int)]
    if caps:
        assert merged.max_workspace == min(caps)
    assert a | Policy() == a == Policy() | a == a | a


def test_what_chooses_for_fewer_holds_wherever_it_stands() -> None:
    wanted = Policy.parse("fwd=cpu:im2col;bwd_data=cpu:fft;bwd_filter=autotune", "conv")
    parts = ["conv=autotune", "bwd_data=cpu:fft", "conv_fwd=cpu:im2col", "fwd=cpu:direct"]
    for order in itertools.permutations(parts):
        assert Policy.parse(";".join(order), "conv") == wanted


def test_the_cap_of_one_side_holds_against_fastest_of_the_other() -> None:
    merged = Policy(max_workspace="1MiB") | Policy(fastest=True)
    assert merged.max_workspace == 2**20
    assert merged.get("benchmark") == "true"
    assert Policy(fastest=True, max_workspace="1MiB").max_workspace is None


def test_shares_and_bytes_hold_together() -> None:
    merged = Policy(max_workspace="20%") | Policy(max_workspace="1MiB") | "max_workspace=10%"
    assert merged == Policy.parse("max_workspace=1MiB;max_workspace=10%")


def test_what_stands_for_a_policy() -> None:
    policy = Policy(fwd="fft", max_workspace=0)
    for like in (policy, str(policy), {"fwd": "fft", "max_workspace": 0}):
        assert as_policy(like) == policy
        assert policy_text(like) == str(policy)
    nothings: tuple[PolicyLike, ...] = (None, "", -1, {}, Policy())
    for nothing in nothings:
        assert policy_text(nothing) is None
        assert as_policy(nothing) == Policy()
    with pytest.raises(ValueError, match="fwd=5"):
        policy_text(5)
    for wrong in (1.5, True, ["fft"]):
        with pytest.raises(TypeError, match="policy"):
            policy_text(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="policy"):
        Policy.parse(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("cap", ["0.00001%", "12.3456789%", "33.3%", "1234567", "1.5GiB", "0"])
def test_every_cap_is_read_again_as_it_was_written(cap: str) -> None:
    text = _C.canonical_policy(f"max_workspace={cap}")
    assert _C.canonical_policy(text) == text
    if "%" in cap:
        assert text == f"max_workspace={cap}"


def test_a_cap_beyond_all_memory_is_an_error() -> None:
    with pytest.raises(ValueError, match="10000000000GiB', wanted less than 2\\^63 bytes"):
        _C.canonical_policy("max_workspace=10000000000GiB")


@pytest.mark.parametrize("action", ["warn", "fallback"])
def test_what_falls_back_may_pin_what_there_is_not(action: str) -> None:
    nothing = f"cpu:nonsense;on_unsupported={action}"
    check_pins(Policy.parse(f"fwd={nothing}").text, "conv")
    for policy in (
        f"softmax_fwd={nothing}",
        {"softmax_fwd": "cpu:nonsense", "on_unsupported": action},
        Policy.parse(f"fwd={nothing}", "softmax"),
    ):
        check_named_pins(policy)


@pytest.mark.parametrize(
    "policy", [Policy(fwd="cpu:im2col"), Policy("autotune"), Policy(conv_fwd=1)]
)
def test_a_policy_for_other_families_alone_is_refused(policy: Policy) -> None:
    wanted = r"got a Policy for conv_fwd.*wanted one for softmax \(fwd, bwd\): .*family='softmax'"
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match=wanted):
        ops.softmax(x, 1, policy=policy)
    with pytest.raises(ValueError, match=wanted):
        nn.Softmax(1, policy=policy)
    image, filters = torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3)
    others = Policy(softmax="cpu:online")
    for call in (
        lambda: ops.conv2d(image, filters, policy=others),
        lambda: nn.Conv2d(2, 2, 3, policy=others),
    ):
        with pytest.raises(ValueError, match="got a Policy for softmax_fwd.*wanted one for conv"):
            call()
    with pytest.raises(ValueError, match=wanted):  # as a text, too
        nn.Softmax(1, policy=f"conv_fwd={policy.get('fwd')}")
    # A policy may be for several.
    for other in (
        Policy(max_workspace=0),
        policy | "softmax_fwd=cpu:online",
    ):
        assert nn.Softmax(1, policy=other)(x).shape == x.shape


def test_a_choice_for_one_pass_holds_over_one_for_all() -> None:
    wanted = Policy.parse("conv=cpu:fft;fwd=cpu:direct")
    assert wanted.get("fwd") == "cpu:direct" and wanted.get("bwd_data") == "cpu:fft"
    assert Policy(conv="cpu:fft", fwd="cpu:direct") == wanted
    assert Policy(fwd="cpu:direct", conv="cpu:fft") == wanted
    assert Policy("cpu:fft", conv_fwd="cpu:direct") == wanted
    assert Policy().replace(fwd="cpu:direct", conv="cpu:fft") == wanted


# --- the type of accumulation by the type of the data -------------------------------------------


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("f32", "f32"),
        ("float32", "f32"),
        ("f16:f32", "f16:f32"),
        (" f64 : f64 , bf16:float32,float16:f16 ", "f16:f16,bf16:f32,f64:f64"),
        ("f16:as_input,bf16:as_input_f32", "f16:as_input,bf16:as_input_f32"),
        ("f64:f32,f32:f32,bf16:f32,f16:f32", "f32"),
    ],
)
def test_compute_by_type_round_trips(written: str, canonical: str) -> None:
    policy = Policy.parse(f"compute={written}")
    assert policy.text == f"compute={canonical}"
    assert Policy.parse(policy.text) == policy == Policy(compute=written)
    assert policy.get("compute") == canonical
    assert _C.policy_fields(policy.text)["compute"] == canonical
    assert policy.of("softmax").of("conv") == policy


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("f8:f32", ("'f8'", "f16, bf16, f32, f64")),
        ("f16:int8", ("compute of f16", "'int8'", "as_input")),
        ("f16:f32,f32", ("names 'f32'", "type:type")),
        ("f16:f32,float16:f16", ("float16 twice",)),
        ("f16:f32,", ("''",)),
        (":f32", ("''",)),
        ("f16:", ("''",)),
        ("f16:f32:f32", ("'f32:f32'",)),
    ],
)
def test_compute_by_type_names_what_is_wrong(written: str, named: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:
        Policy(compute=written)
    for part in (f"compute: got {written!r}", *named):
        assert part in str(caught.value)


def test_levels_of_compute_are_merged_type_by_type() -> None:
    merged = Policy(compute="f16:f32,f64:as_input") | Policy(compute="f16:f16,bf16:f32")
    assert merged == Policy(compute="f16:f16,bf16:f32,f64:as_input")
    assert Policy(compute="f16:f16") | Policy(compute="f32") == Policy(compute="f32")
    assert (Policy(compute="f32") | Policy(compute="f16:f16")).get("compute") == (
        "f16:f16,bf16:f32,f32:f32,f64:f32"
    )


@pytest.mark.parametrize("level", ["argument", "knob", "flags"])
def test_data_of_each_type_are_computed_as_it_says(level: str, device: str) -> None:
    text = "f16:f16,bf16:f32,f32:f64"
    wanted = {"float16": "f16", "bfloat16": "f32", "float32": "f64", "float64": "f64"}
    for dtype, compute in wanted.items():
        x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
        x, w = (t.to(getattr(torch, dtype)) for t in (x, w))
        policy = f"compute={text}" if level == "argument" else None
        if level == "knob":
            knobs.compute = text
        with knobs.flags(**({"compute": text} if level == "flags" else {})):
            (problem,) = _C.problems_posed_by(partial(ops.conv2d, x, w, policy=policy))
        assert f" compute={compute}" in problem


# A word alone.


@pytest.mark.parametrize(
    ("word", "family", "fields"),
    [
        ("implicit_gemm", "conv", {"fwd": "legacy:implicit_gemm"}),
        ("cpu:im2col", "conv", dict.fromkeys(PASSES, "cpu:im2col")),
        ("cpu:unfold", "pool", {"fwd": "cpu:unfold", "bwd": "cpu:unfold"}),
        ("tuned", "softmax", {"fwd": "tuned", "bwd": "tuned"}),
    ],
)
def test_a_word_alone_is_for_every_pass_that_has_it(
    word: str, family: str, fields: dict[str, str]
) -> None:
    assert _C.policy_fields(word, family) == fields


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("cpu:online", "softmax_fwd=cpu:online"),
        ("autotune;cpu:im2col", "autotune;conv_fwd=cpu:im2col;conv_bwd_data=cpu:im2col"),
        ("graph:eng3/k2=1", "conv_fwd=graph:eng3/k2=1;conv_bwd_data=graph:eng3/k2=1"),
        ("deterministic;prefer=memory", "prefer=memory;deterministic"),
        ("softmax=heuristic", "softmax_fwd=heuristic;softmax_bwd=heuristic"),
    ],
)
def test_for_all_operators_it_is_for_those_that_have_it(word: str, text: str) -> None:
    assert text_for_all(word).startswith(text)


def test_pytorch_s_own_is_of_every_operator() -> None:
    fields = text_for_all("aten:default").split(";")
    assert len(fields) == sum(len(op["passes"]) for op in _C.operators())


def test_enable_takes_an_algorithm_of_any_operator() -> None:
    with enabled("cpu:online"):
        torch.nn.functional.softmax(torch.zeros(2, 5), 1)
        assert newest("softmax_fwd").algorithm == "cpu:online"


@pytest.mark.parametrize("word", ["cpu:nope", "nope", "autotunes"])
def test_a_word_that_nothing_has_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match=word):
        text_for_all(word)
