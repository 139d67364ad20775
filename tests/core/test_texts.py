"""What is read stays linear in its size, and what is refused is told with the nearest words."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from store_helpers import changed

import torch_cudnn_ext
from torch_cudnn_ext import (
    _C,
    Policy,
    apply_pins,
    convert,
    enable,
    enabled,
    knobs,
    load_pins,
    load_rules,
    nn,
    ops,
    pinned,
    save_pins,
    tuning,
    when,
)
from torch_cudnn_ext import _cudnn_flags as backends
from torch_cudnn_ext._policy_text import operators
from torch_cudnn_ext._workload.problems import read_problems
from torch_cudnn_ext.tuning.journal import Journal
from torch_cudnn_ext.tuning.store import read_rows

LINE = "conv_fwd x=f32[1,2,5,5]:nchw w=f32[3,2,3,3]:nchw pad=1"


def seconds(call: Callable[[], Any]) -> float:
    """How long a call takes; what it raises for its input is a part of it."""
    start = time.process_time()
    try:
        call()
    except (ValueError, TypeError):
        pass
    return time.process_time() - start


def check_linear(call: Callable[[int], Any], size: int) -> None:
    """Ten times the input takes less than thirty times as long, or next to no time."""
    few = min(seconds(lambda: call(size)) for _ in range(3))
    many = min(seconds(lambda: call(10 * size)) for _ in range(2))
    assert many < max(30 * few, 0.2), (few, many)


# --- time and space ----------------------------------------------------------------------------


def test_a_rule_of_many_stars_is_looked_up_at_once() -> None:
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    for stars in (12, 16, 200):
        matcher = f"conv_fwd w={'*' * stars}:nhwc x={'*?' * stars}*:nhwc"
        with when(matcher, use="cpu:im2col"):
            assert seconds(lambda: ops.conv2d(x, w)) < 1
            assert ops.last_decision("conv_fwd").algorithm == "aten:default"  # type: ignore[union-attr]
    with when(f"conv_fwd w={'*' * 99}:nchw x={'*' * 99}5,5{'*' * 99}", use="cpu:im2col"):
        ops.conv2d(x, w)
    assert ops.last_decision("conv_fwd").algorithm == "cpu:im2col"  # type: ignore[union-attr]


def test_a_rule_of_200000_stars_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"when: matcher: got 2000\d\d characters .* at most 65536"
    ):
        when(f"conv_fwd w={'*' * 200000}", use="autotune")


@pytest.mark.parametrize(
    "matcher",
    [
        lambda n: "conv_fwd w=" + "*" * n + "z",
        lambda n: "conv_fwd w=" + "*1" * n,
        lambda n: "conv_fwd pad=" + "1," * n + "1",
        lambda n: "conv_fwd " + "pad=1 " * n,
        lambda n: "conv_fwd" + " " * n,
        lambda n: "c" * n,
    ],
)
def test_rules_are_read_in_linear_time(matcher: Callable[[int], str]) -> None:
    check_linear(lambda n: _C.check_rule(matcher(n), "autotune"), 3000)


@pytest.mark.parametrize(
    "policy",
    [
        lambda n: "a=1;" * n,
        lambda n: "fwd=autotune;" * n,
        lambda n: "max_workspace=1MiB;" * n,
        lambda n: "deterministic=" + "1" * n,
        lambda n: "backends=" + "cpu," * n,
        lambda n: "legacy:fft/" + "math=fma/" * n,
        lambda n: "graph:eng1/" + "/".join(f"k{i}=1" for i in range(n)),
        lambda n: "a" * n,
        lambda n: ";" * n,
        lambda n: " " * n + "autotune",
    ],
)
def test_policies_are_read_in_linear_time(policy: Callable[[int], str]) -> None:
    check_linear(lambda n: _C.canonical_policy(policy(n)), 600)


@pytest.mark.parametrize(
    "line",
    [
        lambda n: LINE + " pad=1" * n,
        lambda n: LINE.replace("[1,2,5,5]", f"[{'1,' * n}1]"),
        lambda n: LINE + " " * n + "#" * n,
        lambda n: LINE.replace("pad=1", "pad=" + "1" * n),
        lambda n: "x" * n,
    ],
)
def test_problems_are_read_in_linear_time(line: Callable[[int], str]) -> None:
    check_linear(lambda n: _C.canonical_problem(line(n)), 3000)


def test_what_is_too_long_is_told_and_not_repeated(tmp_path: Path) -> None:
    long = "a" * 70000
    for read in (
        lambda: Policy(long),
        lambda: Policy.parse(f"fwd=cpu:{long}"),
        lambda: _C.canonical_problem(long),
        lambda: _C.canonical_algorithm(f"cpu:{long}"),
        lambda: ops.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1), policy=long),
        lambda: knobs.flags(conv_fwd_algo=f"cpu:{long}"),
        lambda: when(f"conv_fwd w={long}", use="autotune"),
        lambda: save_pins(tmp_path / "pins.toml", {long: "autotune"}),
        lambda: apply_pins(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1)), {long: "autotune"}),
    ):
        with pytest.raises(ValueError, match=r"got 70\d\d\d characters that begin with '.*', want"):
            read()


def test_an_algorithm_of_every_pass_makes_a_text_that_is_read_again() -> None:
    longest = "graph:eng1/" + "/".join(f"k{i}=1" for i in range(140))
    names = operators()
    policy = Policy.parse(";".join(f"{name}={longest}" for name in names))
    assert Policy.parse(str(policy)) == policy and len(str(policy)) > 20000


def test_regular_expressions_are_no_patterns(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match=r"pins: 're:\(a\+\)\+\$' is a regular .*wanted a glob"):
        apply_pins(model, {"re:(a+)+$": "autotune"})
    path = tmp_path / "pins.toml"
    path.write_text("[layers]\n're:(a+)+$' = 'autotune'\n")
    with pytest.raises(ValueError, match="line 2: .*is a regular expression, wanted a glob"):
        load_pins(path)


@pytest.mark.parametrize(
    "pattern",
    [lambda n: "*a" * n, lambda n: "*" * n + "z", lambda n: "?" * n, lambda n: "[ab]" * n],
)
def test_patterns_of_layers_match_in_linear_time(pattern: Callable[[int], str]) -> None:
    model = torch.nn.ModuleDict({"a" * 27: torch.nn.Conv2d(1, 1, 1)})
    check_linear(lambda n: apply_pins(model, {pattern(n): "autotune"}), 1000)


FILES = {
    "one string": lambda n: '[layers]\n"a" = """\n' + "b = 1\n" * n + '"""\n',
    "many lines": lambda n: "[layers]\n" + "".join(f'"a{i}" = "x"\n' for i in range(n)),
    "a key of many parts": lambda n: "a" + ".a" * n + " = 1\n",
    "a table of many parts": lambda n: "[a" + ".a" * n + "]\n" + "b = 1\n" * n,
    "one long key": lambda n: "[layers]\n'" + "a" * n + "' = 'nonsense'\n",
    "digits": lambda n: "[layers]\na = " + "1" * n + "\n",
    "quotes": lambda n: '"' * n,
    "brackets": lambda n: "[layers]\na = " + "[" * n,
    "remarks": lambda n: "#" * n + "\n" + "# a\n" * n + "?",
    "escapes": lambda n: '[layers]\n"' + "\\\\" * n + '" = 1\n',
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_pins_are_read_in_linear_time(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"

    def read(n: int) -> None:
        path.write_text(FILES[kind](n))
        load_pins(path)

    check_linear(read, 1600)


@pytest.mark.parametrize(
    "key", ["a = 'nonsense'", "\"b\\u0041\" = 'nonsense'", "'c' = 3", "d.e = 1"]
)
def test_a_mistake_is_found_on_its_line_after_strings_of_many(key: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    path.write_text(
        '[layers]\n"x" = """autotune"""\n[problems]\n"conv_fwd" = """\\\n  autotune"""\n'
    )
    assert load_rules(path) == {"conv_fwd": "autotune"}
    path.write_text(f'[problems]\n"conv_fwd" = """\\\n  autotune\\\n  """\n[layers]\n{key}\n')
    with pytest.raises(ValueError, match=r"pins.toml, line 6: "):
        load_pins(path)
    path.write_text(f"layers = {{{key}}}\n")  # in one line
    with pytest.raises(ValueError, match=r"pins.toml, line 1: "):
        load_pins(path)


@pytest.mark.parametrize(
    "text",
    [
        lambda n: f"{LINE}\n" * n,
        lambda n: f"{LINE} # a" + ", x1" * n + " b\n",
        lambda n: f"{LINE} # a" + " " * n + "b\n",
        lambda n: f"{LINE} # a x" + "1" * n + "\n",
        lambda n: "".join(f"{LINE} # name{i}\n" for i in range(n)),
        lambda n: "x" * n,
    ],
)
def test_files_of_problems_are_read_in_linear_time(
    text: Callable[[int], str], tmp_path: Path
) -> None:
    path = tmp_path / "problems.txt"

    def read(n: int) -> None:
        path.write_text(text(n))
        read_problems(path)

    check_linear(read, 300)


def test_files_of_choices_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", policy="backends=aten", time_budget_s=0.2)
    tuning.export_table(path)
    line = path.read_text()

    def lines(n: int) -> None:
        path.write_text(line * n)
        read_rows(path)

    def brackets(n: int) -> None:
        path.write_text("[" * n)
        read_rows(path)

    def digits(n: int) -> None:
        path.write_text(
            changed(line, lambda text: text.replace('"samples": ', f'"samples": {"1" * n}'))
        )
        read_rows(path)

    for read in (lines, brackets, digits):
        check_linear(read, 100)


def test_journals_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def records(n: int) -> None:
        path.unlink(missing_ok=True)
        Journal(path).add(("", "", "work"), {"a": 1})
        path.write_bytes(path.read_bytes() * n)
        Journal(path)

    def torn(n: int) -> None:
        path.write_text("\n" * n + '{"sum": "' + "a" * n)
        Journal(path)

    for read in (records, torn):
        check_linear(read, 500)


# --- the nearest words -------------------------------------------------------------------------


def error_of(call: Callable[[], Any]) -> str:
    """What a call is refused with."""
    with pytest.raises((ValueError, TypeError, AttributeError)) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("word", ["autotun", "auto", "AUTOTUNE", "autotnue", "Autotune"])
def test_the_nearest_of_a_word_for_all_passes_is_told(word: str) -> None:
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    for call in (
        lambda: enable(word),
        lambda: ops.conv2d(x, w, policy=word),
        lambda: nn.Conv2d(1, 1, 1, policy=word),
        lambda: Policy(word),
        lambda: Policy(fwd=word),
        lambda: when("conv_fwd", use=word),
        lambda: knobs.flags(conv_fwd_algo=word),
        lambda: convert(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1)), policy=word),
        lambda: apply_pins(torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1)), {"0": word}),
    ):
        said = error_of(call)
        assert "the nearest: autotune" in said and "all: docs/reference/policy.md" in said, said
        assert "gemm)" not in said.partition("the nearest")[2] and said.count("winograd") <= 2, said


def test_words_of_each_kind_are_told_with_the_nearest() -> None:
    for call, near in (
        (lambda: Policy("heuristc"), "heuristic"),
        (lambda: Policy("deterministc"), "deterministic"),
        (lambda: Policy("fftt"), "fft"),
        (lambda: Policy("legacy:winograd_nonfusd"), "legacy:winograd_nonfused"),
        (lambda: Policy(deterministc=True), "deterministic"),
        (lambda: Policy(max_workspce=0), "max_workspace"),
        (lambda: Policy(softmx_fwd="autotune"), "softmax_fwd"),
        (lambda: Policy().replace(allow_tf23=True), "allow_tf32"),
        (lambda: Policy.parse("on_unsuported=warn"), "on_unsupported"),
        (lambda: Policy.parse("prefer=tme"), "time"),
        (lambda: Policy(fwd="cpu:im2cool"), "cpu:im2col"),
        (lambda: Policy(family="sotfmax"), "softmax"),
        (lambda: setattr(knobs, "conv_fwd_alg", 1), "conv_fwd_algo"),
        (lambda: knobs.max_worksapce, "max_workspace"),
        (lambda: knobs.flags(benchmrk=True), "benchmark"),
        (lambda: when("conv_fw", use="autotune"), "conv_fwd"),
        (lambda: when("conv_fwd dilatoin=1", use="autotune"), "dilation"),
        (lambda: _C.canonical_problem("con_fwd x=f32[1]:nchw"), "conv_fwd"),
        (lambda: _C.canonical_problem(f"{LINE} strde=1"), "stride"),
        (lambda: ops.last_decision("conv_bwd_dta"), "conv_bwd_data"),
        (lambda: _C.problem_info(LINE.replace("f32[1", "f23[1")), "f32"),
    ):
        assert near in error_of(call), error_of(call)


def test_at_most_five_words_are_near() -> None:
    words = [f"word{i}" for i in range(40)]
    assert _C.nearest_words("wrod7", words)[0] == "word7"
    assert len(_C.nearest_words("word", words)) == 5
    assert _C.nearest_words("zork", ["activation", "conv"]) == []
    assert _C.nearest_words("a*c", ["abbbbc", "xyz"]) == ["abbbbc"]
    assert _C.nearest_words("", words) == []


def test_the_nearest_layers_of_a_pattern_are_told() -> None:
    model = torch.nn.ModuleDict(
        {
            name: torch.nn.Sequential(*(torch.nn.Conv2d(1, 1, 1) for _ in range(3)))
            for name in ("stem", "layer2", "layer1", "head")
        }
    )
    said = error_of(lambda: apply_pins(model, {"layr1.*": "autotune"}))
    assert "the nearest: layer1.0, layer1.1, layer1.2" in said and "named_modules" in said
    assert "layer2" not in said.partition("layer1.2")[0]


def test_fields_of_files_are_told_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "choices.jsonl"
    tuning.tune(LINE, device="cpu", policy="backends=aten", time_budget_s=0.2)
    tuning.export_table(path)
    field = '"median_ms":'
    line = changed(path.read_text(), lambda text: text.replace(field, f'"median_mss": 1, {field}'))
    path.write_text(line)
    assert "the nearest: median_ms" in error_of(lambda: tuning.import_table(path))


def test_the_command_line_tells_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    from torch_cudnn_ext.cli import main

    for arguments, near in (
        (["list", "--model", "resnt18"], "resnet18"),
        (["list", "--problems", "resnet5"], "resnet50"),
        (["list", LINE, "--policy", "autotun"], "autotune"),
        (["list", "con_fwd x=f32[1]:nchw"], "conv_fwd"),
    ):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert near in said and said.count("\n") == 1 and len(said) < 600, said


def test_only_what_helps_is_proposed() -> None:
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)

    def said(policy: str) -> str:
        with pytest.raises(RuntimeError, match="cannot run") as caught:
            ops.conv2d(x, w, policy=policy)
        return str(caught.value)

    assert "(on_unsupported=" in said("fwd=legacy:fft")
    # The heuristic may leave the backends, and then finds one.
    assert "(on_unsupported=" in said("fwd=legacy:fft;backends=legacy")
    alone = said("fwd=legacy:fft;max_workspace=0;backends=aten,cpu;deterministic")
    named = alone.partition("would work: ")[2].partition("\n")[0]
    assert all(name.startswith(("aten:", "cpu:")) for name in named.split(", ")), alone
    knobs.enabled = False
    torch.backends.cudnn.enabled = False
    softmax = torch.ones(2, 3, 4)
    with pytest.raises(RuntimeError, match="cannot run") as caught:
        ops.grid_sample(
            torch.ones(1, 1, 3, 3),
            torch.zeros(1, 2, 2, 2),
            mode="bicubic",
            align_corners=False,
            policy="fwd=cpu:gather;backends=cpu",
        )
    assert "none under these constraints" in str(caught.value)
    assert softmax.numel()


# --- one kind of exception -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    ["pool_fwd=legacy:max", "pool=autotune", {"pool_fwd": "legacy:max"}, "fwd=cpu:nothere"],
)
def test_what_no_problem_satisfies_is_refused_when_it_is_given(policy: Any) -> None:
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))
    for call in (
        lambda: ops.conv2d(x, w, policy=policy),
        lambda: nn.Conv2d(1, 1, 1, policy=policy),
        lambda: setattr(nn.Conv2d(1, 1, 1), "policy", policy),
        lambda: convert(model, policy=policy),
        lambda: apply_pins(model, {"0": policy}),
        lambda: pinned(model, {"0": policy}).__enter__(),
        lambda: when("conv_fwd", use=policy),
    ):
        with pytest.raises(ValueError):
            call()
    assert type(model[0]) is torch.nn.Conv2d


def test_what_there_is_not_is_refused_by_policies_too() -> None:
    for call in (
        lambda: Policy(fwd="cpu:nothere"),
        lambda: Policy.parse("softmax_fwd=cpu:im2col"),
        lambda: Policy(softmax="legacy:nothere"),
        lambda: Policy().replace(fwd="cpu:nothere"),
        lambda: knobs.flags(conv_fwd_algo="cpu:nothere"),
    ):
        with pytest.raises(ValueError, match="wanted"):
            call()
    assert Policy(fwd="cpu:nothere", on_unsupported="fallback").get("fwd") == "cpu:nothere"
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    knobs.on_unsupported = "fallback"
    assert ops.conv2d(x, w, policy="fwd=cpu:nothere").shape == (1, 1, 3, 3)


def test_layers_get_of_a_policy_what_speaks_of_them() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 1, 1), torch.nn.MaxPool2d(2), torch.nn.Conv2d(1, 1, 1)
    )
    convert(model, policy="conv=cpu:im2col;deterministic")
    assert "cpu:im2col" in str(model[0].policy) and model[1].policy == "deterministic"
    model(torch.ones(1, 1, 4, 4))


# --- nothing is silent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [
        "w=[64,64,3,3]",
        "w=f32[64,64,3,3]",
        "w=*[64;64]*",
        "x=nhwc",
        "x=*:nwhc",
        "pad=one",
        "pad=*x*",
        "stride=",
        "compute=f23",
        "mode=corr",
        "y=nhwc",
        "bias=true",
        "accumulate=??",
        "align=*sixteen",
    ],
)
def test_a_rule_that_can_match_nothing_is_refused(field: str) -> None:
    said = error_of(lambda: when(f"conv_fwd {field}", use="autotune"))
    assert "can match no problem, wanted" in said and field in said


@pytest.mark.parametrize(
    "field",
    [
        "w=*[64,64,3,3]*",
        "w=f??[64,64,3,3]:nchw",
        "w=*",
        "x=*:s(*",
        "x=bf16*",
        "x=*,56]*",
        "pad=1,?",
        "pad=1*",
        "groups=*",
        "bias=",
        "bias=f*",
        "act=relu",
        "y=:n?wc",
        "compute=f32",
    ],
)
def test_a_rule_that_can_match_is_taken(field: str) -> None:
    when(f"conv_fwd {field}", use="autotune").remove()


def test_every_field_of_an_example_makes_a_rule() -> None:
    for op in _C.operators():
        for example in op["examples"]:
            first, *fields = _C.canonical_problem(example).split()
            for field in fields:
                when(f"{first} {field}", use="autotune").remove()


def test_a_misspelt_attribute_of_pytorch_is_refused_while_enabled() -> None:
    cudnn: Any = torch.backends.cudnn
    with enabled():
        for name in ("conv_forward_algo", "conv_fwd_algorithm", "conv_fwd_alg"):
            with pytest.raises(AttributeError, match="nearest: .*conv_fwd_algo"):
                setattr(cudnn, name, 1)
        assert not hasattr(cudnn, "conv_forward_algo")
        cudnn.benchmark = cudnn.benchmark
        cudnn.something_of_the_users = 1
        del cudnn.something_of_the_users
    assert "__setattr__" not in vars(type(cudnn))


def test_values_set_before_enable_are_warned_of_at_the_users_line() -> None:
    cudnn: Any = torch.backends.cudnn
    cudnn.conv_fwd_algo = 0
    cudnn.conv_forward_algo = 1
    try:
        with pytest.warns(UserWarning) as caught:
            enable()
        told = [str(warning.message) for warning in caught]
        assert any("conv_fwd_algo=0 was set before enable()" in text for text in told), told
        assert any("conv_forward_algo is nothing that is read" in text for text in told), told
        assert {warning.filename for warning in caught} == {__file__}
        torch_cudnn_ext.disable()
        del cudnn.conv_forward_algo
        with warnings.catch_warnings():  # what was left by disable() is no news
            warnings.simplefilter("error")
            with enabled():
                assert cudnn.conv_fwd_algo == 0
        with pytest.warns(UserWarning, match="was set before") as caught:
            cudnn.conv_fwd_algo = 1
            with enabled():
                pass
        assert {warning.filename for warning in caught} == {__file__}
    finally:
        for name in ("conv_fwd_algo", "conv_forward_algo"):
            vars(cudnn).pop(name, None)
        backends._left.clear()


def test_a_share_of_memory_on_the_cpu_is_warned_of_at_the_users_line() -> None:
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    with pytest.warns(UserWarning, match="max_workspace=20% is of the machine's memory") as caught:
        ops.conv2d(x, w, policy="max_workspace=20%")
    assert {warning.filename for warning in caught} == {__file__}
    knobs.max_workspace = "30%"
    with pytest.warns(UserWarning, match="max_workspace=30%") as caught:
        nn.Softmax(1)(x)
    assert {warning.filename for warning in caught} == {__file__}


def test_fallbacks_are_warned_of_at_the_users_line() -> None:
    x, w = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1)
    with pytest.warns(UserWarning, match="legacy:fft cannot run") as caught:
        ops.conv2d(x, w, policy="fwd=legacy:fft;on_unsupported=warn")
    with pytest.warns(UserWarning, match="legacy:gemm cannot run") as more:
        nn.Conv2d(1, 1, 1, policy="fwd=legacy:gemm;on_unsupported=warn")(x)
    assert {warning.filename for warning in [*caught, *more]} == {__file__}


def test_fastest_warns_of_what_it_drops_at_the_users_line() -> None:
    layer = nn.Conv2d(1, 1, 1, policy="fwd=cpu:im2col;bwd_data=autotune;max_workspace=64MiB")
    with pytest.warns(UserWarning, match="drops fwd=cpu:im2col;max_workspace=64MiB") as caught:
        layer.fastest()
    assert {warning.filename for warning in caught} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.Conv2d(1, 1, 1, policy="autotune;deterministic").fastest()


def test_a_misspelt_environment_variable_is_warned_of_at_the_users_line(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text("import sys\n\nimport torch_cudnn_ext\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(torch_cudnn_ext.__file__).parents[1]),
            "TORCH_CUDNN_EXT_CONV_FWD_ALG": "fft",
        },
    )
    assert (
        "user.py:3: UserWarning: environment variable TORCH_CUDNN_EXT_CONV_FWD_ALG" in done.stderr
    )
    assert "the nearest: TORCH_CUDNN_EXT_CONV_FWD_ALGO" in done.stderr


# --- sizes and booleans --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "bytes_", "printed"),
    [
        ("64MiB", 64 << 20, "64MiB"),
        ("64mib", 64 << 20, "64MiB"),
        ("64mb", 64_000_000, "64MB"),
        ("64MB", 64_000_000, "64MB"),
        ("1GB", 10**9, "1GB"),
        ("1gb", 10**9, "1GB"),
        ("2 GiB", 2 << 30, "2GiB"),
        ("2048MiB", 2 << 30, "2048MiB"),
        ("1024kB", 1024000, "1024kB"),
        ("1000KiB", 1024000, "1000KiB"),
        ("1TiB", 1 << 40, "1TiB"),
        ("1tb", 10**12, "1TB"),
        ("100b", 100, "100B"),
        ("1048576", 1 << 20, "1MiB"),
        ("1000000000", 10**9, "1GB"),
        ("1234567", 1234567, "1234567"),
        ("0.5GiB", 1 << 29, "512MiB"),
        ("1.5GB", 1_500_000_000, "1500MB"),
        ("0", 0, "0"),
        ("0MiB", 0, "0MiB"),
    ],
)
def test_sizes(written: str, bytes_: int, printed: str) -> None:
    policy = Policy(max_workspace=written)
    assert policy.max_workspace == bytes_
    assert str(policy) == f"max_workspace={printed}"
    assert Policy.parse(str(policy)) == policy
    merged = Policy(max_workspace="2TiB") | policy | Policy(max_workspace="3TiB")
    assert str(merged) == str(policy)
    # One cap has one ranking, however it is spelt.
    keys = {_C.constraints_text(LINE, f"max_workspace={text}") for text in (written, str(bytes_))}
    assert len(keys) == 1


@pytest.mark.parametrize("wrong", ["64M", "64k", "64 g", "MiB", "64MiBs", "64mi", "-1MiB", "1e3MB"])
def test_sizes_that_are_ambiguous_or_none_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"max_workspace.*wanted"):
        Policy(max_workspace=wrong)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((word, "true") for word in ("true", "True", "YES", "yes", "on", "1")),
        *((word, "false") for word in ("false", "FALSE", "No", "off", "0")),
    ],
)
def test_booleans(word: str, value: str) -> None:
    policy = Policy.parse(f"deterministic={word}")
    assert policy.get("deterministic") == value
    with pytest.raises(ValueError, match="deterministic is 'maybe', wanted true or false"):
        Policy.parse("deterministic=maybe")
