"""Process-wide knobs, thread-local flags, and the environment."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from conftest import newest
from torch import Tensor

import torch_cudnn_ext
from torch_cudnn_ext import _C, Policy, enabled, knobs, ops

# Two algorithms for each device that any small float32 problem can run on.
PINS = {"cpu": ("cpu:im2col", "cpu:direct"), "cuda": ("aten:default", "legacy:implicit_gemm")}


def resolved(field: str) -> str | None:
    """A field of the policy that an operator would run under."""
    return Policy.parse(_C.resolved_policy(None)).get(field)


def convolve(device: str) -> Tensor:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    return ops.conv2d(x, w)


def ran() -> str:
    """The algorithm of the newest forward convolution."""
    return newest("conv_fwd").algorithm


def test_every_operator_has_its_knob() -> None:
    for op in _C.operators():
        family, passes = op["family"], op["passes"]
        names = [family] if op["is_always_coupled"] else [f"{family}_{name}" for name in passes]
        for name in names:
            assert getattr(knobs, f"{name}_algo") is None
            assert f"{name}_algo" in dir(knobs)


def test_a_knob_reaches_the_policy_of_every_call() -> None:
    knobs.conv_fwd_algo = "fft"
    torch_cudnn_ext.knobs.conv_bwd_data_algo = 1
    knobs.max_workspace = "64MiB"
    assert resolved("fwd") == "legacy:fft"
    assert resolved("bwd_data") == Policy(bwd_data=1).get("bwd_data")
    assert resolved("bwd_filter") is None
    assert resolved("max_workspace") == "64MiB"
    assert (knobs.conv_fwd_algo, knobs.conv_bwd_data_algo) == ("fft", 1)


def test_each_knob_of_a_pass_reaches_that_pass() -> None:
    """Of every operator, so that no two passes are taken for each other."""
    for op in _C.operators():
        if op["is_always_coupled"]:
            continue
        for name in op["passes"]:
            knob = f"{op['family']}_{name}_algo"
            for word in ("autotune", "heuristic"):
                setattr(knobs, knob, word)
                text = _C.resolved_policy(None, op["family"])
                choices = [field for field in text.split(";") if field.endswith(word)]
                assert choices == [f"{name}={word}"], knob
                setattr(knobs, knob, None)
                with knobs.flags(**{knob: word}):
                    assert _C.resolved_policy(None, op["family"]) == text


@pytest.mark.parametrize(
    "value",
    [0, "0", "0%", "0MiB"],
)
def test_no_reserve_needs_no_gpu(value: Any) -> None:
    knobs.reserve_workspace = value
    assert knobs.reserve_workspace == value
    assert _C.workspace_reserve_info()["held_bytes"] == 0


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (-1, ValueError, "wanted bytes"),
        ("-1MiB", ValueError, "wanted bytes"),
        ("101%", ValueError, "wanted bytes"),
        ("much", ValueError, "wanted bytes"),
        ("1MiB;deterministic", ValueError, "wanted bytes"),
        (2**70, ValueError, "wanted bytes"),
        (1.5, TypeError, "wanted bytes"),
        (True, TypeError, "wanted bytes"),
        (2**62, ValueError, "CUDA device, wanted 0|more than the [0-9]+ bytes of cuda:0"),
    ],
)
def test_a_bad_reserve_changes_nothing(value: Any, kind: type[Exception], wanted: str) -> None:
    before = knobs.reserve_workspace
    with pytest.raises(kind, match=f"reserve_workspace: got {value!r}.*({wanted})") as caught:
        knobs.reserve_workspace = value
    assert "max_workspace" not in str(caught.value)
    assert knobs.reserve_workspace == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_reserve_without_a_gpu_is_an_error(tmp_path: Path) -> None:
    for value in (1, "256MiB", "20%"):
        with pytest.raises(ValueError, match=f"got {value!r}, but PyTorch finds no CUDA device"):
            knobs.reserve_workspace = value
    with pytest.raises(TypeError, match="flags: got the keyword 'reserve_workspace'"):
        knobs.flags(reserve_workspace=0)
    ended = subprocess.run(
        [sys.executable, "-c", "import torch_cudnn_ext"],
        env={
            **os.environ,
            "PYTHONPATH": ":".join(sys.path),
            "TORCH_CUDNN_EXT_RESERVE_WORKSPACE": "1MiB",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TORCH_CUDNN_EXT_RESERVE_WORKSPACE: got '1MiB', but PyTorch finds no" in ended.stderr


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("prefer", "memory", "memory"),
        ("prefer", "gpu_time", "gpu_time"),
        ("deterministic", True, "true"),
        ("allow_tf32", True, "true"),
        ("allow_tf32", False, "false"),
        ("allow_down_convert", True, "true"),
        ("allow_reduced_range", True, "true"),
        ("benchmark", True, "true"),
        ("fastest", True, "true"),
        ("on_unsupported", "warn", "warn"),
        ("backends", ["aten", "cpu"], "aten,cpu"),
        ("backends", "cudnn", "cudnn"),
        ("compute", "f32", "f32"),
    ],
)
def test_constraints_as_knobs(name: str, value: Any, text: str) -> None:
    setattr(knobs, name, value)
    assert getattr(knobs, name) == value
    assert resolved(name) == text
    setattr(knobs, name, None)
    assert getattr(knobs, name) is None


def test_one_integer_for_passes_that_share_their_algorithm() -> None:
    knobs.rnn_algo = 0
    assert knobs.rnn_algo == 0
    assert "fwd=legacy:standard;bwd=legacy:standard" in _C.resolved_policy(None, "rnn")
    with knobs.flags(rnn_algo="1"):  # as an environment variable says it
        assert "fwd=legacy:persist_static;bwd=" in _C.resolved_policy(None, "rnn")


def test_a_knob_is_a_value() -> None:
    backends = ["aten"]
    knobs.backends = backends
    backends.append("cpu")
    knobs.backends.append("cpu")  # type: ignore[union-attr]
    assert knobs.backends == ["aten"]


def test_a_knob_takes_effect_on_a_seen_shape(device: str) -> None:
    for pin in (*PINS[device], *reversed(PINS[device])):
        knobs.conv_fwd_algo = pin
        convolve(device)
        assert ran().startswith(pin)


def test_three_ways_to_unset_an_algorithm() -> None:
    for nothing in (None, -1, ""):
        knobs.conv_fwd_algo = 1
        knobs.conv_fwd_algo = nothing
        assert knobs.conv_fwd_algo is None
        assert resolved("fwd") is None


@pytest.mark.parametrize(
    ("name", "value", "kind", "wanted"),
    [
        ("conv_fwd_algo", "nonsense", ValueError, "algorithm"),
        ("conv_fwd_algo", 99, ValueError, "algorithm"),
        ("conv_fwd_algo", "cpu:nonsense", ValueError, "cpu:im2col"),
        ("pool_fwd_algo", "aten:nonsense", ValueError, "aten:default"),
        ("rnn_algo", "cpu:nonsense", ValueError, "cpu:fused"),
        ("rnn_algo", 99, ValueError, "persist_static"),
        ("dropout_algo", 0, ValueError, "dropout_fwd"),
        ("conv_fwd_algo", 1.5, TypeError, "algorithm"),
        ("conv_fwd_algo", "time_once", ValueError, "module"),
        ("conv_bwd_filter_algo", "large", ValueError, "algorithm"),
        ("max_workspace", "64 elephants", ValueError, "bytes"),
        ("deterministic", 1, TypeError, "True or False"),
        ("prefer", "beauty", ValueError, "'memory'"),
        ("on_unsupported", "ignore", ValueError, "'fallback'"),
        ("backends", "rocm", ValueError, "'cudnn'"),
        ("enabled", "maybe", ValueError, "'auto'"),
        ("enabled", 1.5, TypeError, "'auto'"),
        ("verbose", "loud", TypeError, "True or False"),
        ("replay", "often", ValueError, "'graphs'"),
        ("replay", True, TypeError, "'graphs'"),
    ],
)
def test_a_bad_value_names_the_knob_and_changes_nothing(
    name: str, value: Any, kind: type[Exception], wanted: str
) -> None:
    knobs.conv_fwd_algo = "fft"
    before = _C.resolved_policy(None)
    with pytest.raises(kind) as caught:
        setattr(knobs, name, value)
    for part in (name, repr(value), wanted):
        assert part in str(caught.value)
    assert _C.resolved_policy(None) == before
    assert knobs.conv_fwd_algo == "fft"
    if name != "verbose":
        with pytest.raises(kind, match=name):
            knobs.flags(**{name: value})


def test_an_unknown_knob_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(AttributeError, match="conv_fwd_alg'.*conv_fwd_algo"):
        knobs.conv_fwd_alg = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="conv_fwd_alg"):
        knobs.conv_fwd_alg  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(TypeError, match="conv_fwd_alg'.*conv_fwd_algo"):
        knobs.flags(conv_fwd_alg=1)


def test_reset_and_repr() -> None:
    assert "nothing set" in repr(knobs)
    knobs.conv_fwd_algo = 1
    knobs.max_workspace = "64MiB"
    assert "conv_fwd_algo=1" in repr(knobs)
    assert "max_workspace='64MiB'" in repr(knobs)
    knobs.reset()
    assert "nothing set" in repr(knobs)
    assert resolved("fwd") is None
    assert resolved("max_workspace") is None


def test_enabled() -> None:
    assert knobs.enabled == "auto"
    knobs.enabled = True
    assert resolved("backends") == "cudnn"
    knobs.enabled = False
    assert resolved("backends") == "aten,cpu"
    with pytest.raises(ValueError, match="enabled.*backends"):
        knobs.backends = "cudnn"
    assert (knobs.enabled, knobs.backends) == (False, None)
    with knobs.flags(enabled="auto"):
        assert resolved("backends") == "graph,legacy,aten,cpu"
        with knobs.flags(backends="cpu"):
            assert resolved("backends") == "cpu"
    with knobs.flags(enabled="auto", backends="aten"):
        assert resolved("backends") == "aten"
    knobs.enabled = "auto"
    assert resolved("backends") is None
    knobs.backends = "cpu"
    assert resolved("backends") == "cpu"


@pytest.mark.parametrize("variable", [{"ENABLED": "0"}, {"BACKENDS": "cpu"}])
def test_enabled_is_stronger_than_the_environment(variable: dict[str, str]) -> None:
    code = """
for value in ("auto", True, None):
    knobs.enabled = value
    print(knobs.enabled, Policy.parse(_C.resolved_policy(None)).get("backends"))
"""
    done = run_with_environment(code, **variable)
    enabled, backends = (False, "aten,cpu") if "ENABLED" in variable else ("auto", "cpu")
    assert done.stdout.splitlines() == ["auto None", "True cudnn", f"{enabled} {backends}"]


def test_cudnn_alone_cannot_run_on_the_cpu() -> None:
    knobs.enabled = True
    with pytest.raises(RuntimeError, match="conv_fwd"):
        convolve("cpu")


def test_pytorchs_switches_are_the_defaults() -> None:
    conv: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    for precision, text in (("ieee", "false"), ("tf32", "true")):
        conv.fp32_precision = precision
        assert resolved("allow_tf32") == text
    knobs.allow_tf32 = False
    assert resolved("allow_tf32") == "false"
    torch.backends.cudnn.deterministic = True
    assert resolved("deterministic") == "true"
    knobs.deterministic = False
    assert resolved("deterministic") == "true"


def test_attributes_of_torch_backends_cudnn_can_be_patched() -> None:
    cudnn: Any = torch.backends.cudnn
    with torch_cudnn_ext.enabled():
        for before in (-1, 0):
            cudnn.conv_fwd_algo = before
            with mock.patch.object(cudnn, "conv_fwd_algo", 1):
                assert cudnn.conv_fwd_algo == 1
            assert cudnn.conv_fwd_algo == before
        cudnn.conv_fwd_algo = -1
    assert "conv_fwd_algo" not in vars(cudnn)


def test_verbose_prints_one_line_for_each_decision(
    device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    knobs.verbose = True
    knobs.conv_fwd_algo = PINS[device][0]
    convolve(device)
    lines = [line for line in capfd.readouterr().err.splitlines() if "conv_fwd" in line]
    assert len(lines) == 1
    for part in ("conv_fwd x=f32[1,2,5,5]", PINS[device][0], "pinned", "workspace"):
        assert part in lines[0]
    convolve(device)
    assert "conv_fwd" not in capfd.readouterr().err
    knobs.verbose = False
    knobs.conv_fwd_algo = PINS[device][1]
    convolve(device)
    assert "conv_fwd" not in capfd.readouterr().err
    knobs.verbose = True  # what is known already is told too
    convolve(device)
    assert PINS[device][1] in capfd.readouterr().err


def test_flags_are_stronger_than_knobs_and_leave_the_others() -> None:
    knobs.conv_fwd_algo = "fft"
    knobs.conv_bwd_data_algo = 1
    with knobs.flags(conv_fwd_algo=0, max_workspace=0):
        assert resolved("fwd") == Policy(fwd=0).get("fwd")
        assert resolved("bwd_data") == Policy(bwd_data=1).get("bwd_data")
        assert resolved("max_workspace") == "0"
        assert knobs.conv_fwd_algo == "fft"
    assert resolved("fwd") == "legacy:fft"
    assert resolved("max_workspace") is None


def test_flags_nest_and_survive_exceptions() -> None:
    with knobs.flags(conv_fwd_algo="fft", deterministic=True):
        with pytest.raises(KeyError), knobs.flags(conv_fwd_algo="autotune", deterministic=False):
            assert resolved("fwd") == "autotune"
            assert resolved("deterministic") == "true"
            raise KeyError
        assert resolved("fwd") == "legacy:fft"
    assert resolved("fwd") is None


def test_flags_are_of_one_thread_and_knobs_of_all() -> None:
    seen: dict[str, str | None] = {}

    def look() -> None:
        seen.update(fwd=resolved("fwd"), bwd_data=resolved("bwd_data"))

    knobs.conv_bwd_data_algo = 1
    with knobs.flags(conv_fwd_algo="fft"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == {"fwd": None, "bwd_data": Policy(bwd_data=1).get("bwd_data")}


def test_flags_opened_and_closed_in_hooks_end_there() -> None:
    layer, stack = torch.nn.Linear(2, 2), ExitStack()
    x = torch.randn(1, 2, requires_grad=True)
    seen: list[str | None] = []

    def opens(*_: Any) -> None:
        stack.enter_context(knobs.flags(deterministic=True))

    def closes(*_: Any) -> None:
        stack.close()

    layer.weight.register_hook(lambda _: seen.append(resolved("deterministic")))
    layer.register_full_backward_hook(closes)
    with knobs.flags(prefer="memory"):
        for register in (layer.register_forward_pre_hook, layer.register_full_backward_pre_hook):
            hook = register(opens)
            layer(x).sum().backward()
            hook.remove()
            assert (resolved("prefer"), resolved("deterministic")) == ("memory", None)
    assert seen == ["true", "true"] and resolved("prefer") is None


def test_an_inner_level_takes_back_fastest_alone() -> None:
    with knobs.flags(conv_fwd_algo="cpu:im2col"), knobs.flags(fastest=True):
        assert resolved("fwd") is None and resolved("benchmark") == "true"
        with knobs.flags(fastest=False):
            assert resolved("fwd") == "cpu:im2col" and resolved("benchmark") is None
    with knobs.flags(fastest=True), knobs.flags(benchmark=True), knobs.flags(fastest=False):
        assert resolved("benchmark") == "true"


def test_the_strictest_cap_and_determinism_hold_from_every_level() -> None:
    knobs.max_workspace = "1MiB"
    knobs.deterministic = True
    with knobs.flags(max_workspace="64MiB", deterministic=False):
        assert resolved("max_workspace") == "1MiB"
        assert resolved("deterministic") == "true"
        argument = Policy.parse(_C.resolved_policy("max_workspace=4KiB;deterministic=false"))
        assert argument.max_workspace == 4096
        assert argument.get("deterministic") == "true"


def test_the_argument_is_stronger_than_flags(device: str) -> None:
    weak, strong = PINS[device]
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    with knobs.flags(conv_fwd_algo=weak):
        ops.conv2d(x, w, policy=Policy(fwd=strong))
        assert ran().startswith(strong)
        ops.conv2d(x, w)
        assert ran().startswith(weak)


def test_switches_of_the_process_are_no_flags() -> None:
    with pytest.raises(TypeError, match="verbose"):
        knobs.flags(verbose=True)


def environment_with(variables: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **{f"TORCH_CUDNN_EXT_{name}": v for name, v in variables.items()}}


def run_with_environment(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    program = f"from torch_cudnn_ext import Policy, _C, knobs\n{code}"
    return subprocess.run(
        [sys.executable, "-c", program],
        env=environment_with(variables),
        capture_output=True,
        text=True,
    )


def test_the_environment_sets_knobs_weaker_than_python() -> None:
    code = """
def show(*names):
    policy = Policy.parse(_C.resolved_policy(None))
    print(*(policy.get(name) for name in names))
show("fwd", "bwd_data", "max_workspace", "deterministic", "allow_tf32", "backends")
knobs.conv_fwd_algo = "autotune"
knobs.max_workspace = "4GiB"
show("fwd", "max_workspace")
knobs.conv_fwd_algo = None
knobs.reset()
show("fwd", "max_workspace")
print(knobs.conv_fwd_algo, knobs.verbose, "environment" in repr(knobs))
"""
    done = run_with_environment(
        code,
        CONV_FWD_ALGO="fft",
        CONV_BWD_DATA_ALGO="1",
        MAX_WORKSPACE="64MiB",
        DETERMINISTIC="1",
        ALLOW_TF32="off",
        ENABLED="false",
        VERBOSE="true",
    )
    assert done.returncode == 0, done.stderr
    first, second, third, fourth = done.stdout.splitlines()
    bwd_data = Policy(bwd_data=1).get("bwd_data")
    assert first == f"legacy:fft {bwd_data} 64MiB true false aten,cpu"
    assert second == "autotune 64MiB"
    assert third == "legacy:fft 64MiB"
    assert fourth == "fft True True"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CONV_FWD_ALGO", "nonsense"),
        ("CONV_FWD_ALGO", "cpu:nonsense"),
        ("MAX_WORKSPACE", "64 elephants"),
        ("DETERMINISTIC", "perhaps"),
        ("ENABLED", "sometimes"),
    ],
)
def test_a_bad_environment_variable_is_named(name: str, value: str) -> None:
    done = run_with_environment("", **{name: value})
    assert done.returncode == 1
    said = f"ValueError: environment variable TORCH_CUDNN_EXT_{name}: got '{value}'"
    assert done.stderr.splitlines()[-1].startswith(said)
    assert ", wanted " in done.stderr and done.stderr.count("Traceback") == 1


def test_a_bad_environment_variable_is_one_line_of_the_command_line(tmp_path: Path) -> None:
    command = tmp_path / "torch_cudnn_ext"
    command.write_text("from torch_cudnn_ext.cli import script\nscript()\n")
    one = ({"CONV_FWD_ALGO": "nonsense"}, "variable TORCH_CUDNN_EXT_CONV_FWD_ALGO: got 'nonsense'")
    two = ({"ENABLED": "1", "BACKENDS": "aten"}, "variables TORCH_CUDNN_EXT_*: enabled: got True")
    for started, (variables, said) in (
        (["-m", "torch_cudnn_ext"], one),
        ([str(command)], one),
        (["-mtorch_cudnn_ext"], two),
    ):
        done = subprocess.run(
            [sys.executable, *started, "list", "nonsense"],
            env=environment_with(variables),
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: environment {said}") and ", wanted " in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_knob_s_fastest_leaves_the_environment_no_choice() -> None:
    code = """
import torch
from torch_cudnn_ext import _C, knobs
knobs.fastest = True
print(_C.resolved_policy(None).count("cpu:im2col"))
knobs.fastest = False
print(_C.resolved_policy(None).count("cpu:im2col"), _C.resolved_policy(None).count("benchmark"))
"""
    done = run_with_environment(code, CONV_FWD_ALGO="cpu:im2col", FASTEST="1")
    assert (done.stdout.split(), done.stderr) == (["0", "1", "0"], "")


def test_jobs_obey_what_this_process_says_over_the_environment() -> None:
    code = """
from torch_cudnn_ext import _C, knobs, tuning
knobs.enabled, knobs.replay = "auto", "off"
line = "softmax_fwd x=f32[2,3,%d]:nchw log=false"
for jobs in (1, 2):
    tuning.clear()
    tuning.tune([line % 4, line % 5], device="cpu", jobs=jobs, time_budget_s=0.1)
    print(*(one["constraints"] or "none" for one in tuning.entries()))
    print(all(_C.tuned(line % n, "cpu", "") for n in (4, 5)))
"""
    done = run_with_environment(code, BACKENDS="cpu")
    assert (done.stdout.split("\n"), done.stderr) == (["none none", "True"] * 2 + [""], "")


def test_an_unknown_environment_variable_is_warned_of() -> None:
    done = run_with_environment("", CONV_FWD_ALG="fft", PYTHON="python3")
    assert done.returncode == 0 and done.stderr.count("UserWarning") == 1
    assert "TORCH_CUDNN_EXT_CONV_FWD_ALG sets no knob" in done.stderr
    assert "TORCH_CUDNN_EXT_CONV_FWD_ALGO; all: " in done.stderr


def test_a_knob_that_was_patched_is_as_before() -> None:
    for before in (None, "heuristic"):
        knobs.conv_fwd_algo = before
        with mock.patch.object(knobs, "conv_fwd_algo", "autotune"):
            assert resolved("fwd") == "autotune"
        assert (knobs.conv_fwd_algo, resolved("fwd")) == (before, before)


def test_a_knob_that_was_deleted_is_not_set() -> None:
    knobs.max_workspace = 0
    del knobs.max_workspace
    assert resolved("max_workspace") is None
    with pytest.raises(AttributeError, match="max_workspace was deleted"):
        _ = knobs.max_workspace
    knobs.max_workspace = 4
    assert (knobs.max_workspace, resolved("max_workspace")) == (4, "4")
    with pytest.raises(AttributeError, match="conv_algo"):
        del knobs.conv_algo


def test_users_code_passes_mypy(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    file = tmp_path / "user.py"
    file.write_text(
        "import torch\n"
        "import torch_cudnn_ext as tce\n"
        "from torch_cudnn_ext import knobs\n\n"
        'knobs.rnn_algo = "legacy:standard"\n'
        "knobs.softmax_fwd_algo = None\n"
        "tce.knobs.max_workspace = 0\n"
        'pins: tce.Pins = {"conv*": tce.Policy(fwd="cpu:fft"), "*": "autotune"}\n'
        "with tce.pinned(torch.nn.Conv2d(1, 2, 3), pins):\n"
        "    pass\n"
        "knobs.deterministic = 3  # wrong\n"
    )
    said, _, _ = api.run(["--strict", "--no-error-summary", str(file)])
    # By its name: what mypy's cache holds of an equal file is told with that one's folder.
    assert [Path(line.split(": ")[0]).name for line in said.splitlines()] == ["user.py:11"], said


def test_reset_brings_back_what_was_deleted() -> None:
    knobs.max_workspace = 0
    del knobs.max_workspace
    knobs.reset()
    assert knobs.max_workspace is None


def test_environment_variables_are_read_in_any_case_and_with_blanks_around() -> None:
    code = """
print(knobs.deterministic, knobs.allow_tf32, knobs.conv_fwd_algo, Policy().text)
knobs.conv_fwd_algo = "autotune"
print(knobs)
"""
    done = run_with_environment(
        code, DETERMINISTIC="TRUE", ALLOW_TF32=" Off ", CONV_FWD_ALGO=" fft\t"
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.strip() == "True False fft"
    assert second.count("conv_fwd_algo") == 1 and "conv_fwd_algo='autotune'" in second
    assert "deterministic=True (environment)" in second


def test_verbose_of_the_environment_holds() -> None:
    code = """
import torch
from torch_cudnn_ext import ops
x, w = torch.zeros(1, 2, 5, 5), torch.zeros(3, 2, 3, 3)
ops.conv2d(x, w)
knobs.conv_fwd_algo = "cpu:im2col"  # which leaves it as it is
ops.conv2d(x, w)
"""
    done = run_with_environment(code, VERBOSE="1")
    assert done.returncode == 0 and done.stderr.count("conv_fwd x=f32[1,2,5,5]") == 2


def test_replay_is_off_unless_it_is_asked_for() -> None:
    assert knobs.replay is None and "replay" not in _C.resolved_policy(None)
    knobs.replay = "graphs"
    assert "replay=graphs" in _C.resolved_policy(None)
    with knobs.flags(replay="off"):
        assert "replay=off" in _C.resolved_policy(None)
    assert "replay=kernels" in _C.resolved_policy("replay=kernels")
    knobs.replay = None
    with enabled("replay=graphs", replay="kernels"):
        assert "replay=kernels" in _C.resolved_policy(None)
    done = run_with_environment("print(knobs.replay)", REPLAY="graphs")
    assert done.returncode == 0 and done.stdout.strip() == "graphs"


def test_why_replays_cannot_be_had_is_told() -> None:
    assert _C.replay_obstacle("replay=off", "cpu") == ""
    assert _C.replay_obstacle("replay=graphs", "cpu") == "cpu makes no calls of cuDNN"


def test_what_falls_back_may_pin_what_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3)
    with knobs.flags(conv_fwd_algo="cpu:nonsense", on_unsupported="fallback"):
        ops.conv2d(x, w)
        assert newest().why.startswith("fallback")
    knobs.on_unsupported = "fallback"
    with knobs.flags(conv_fwd_algo="cpu:nonsense"):
        ops.conv2d(x, w)
        assert newest().why.startswith("fallback")
    knobs.conv_fwd_algo = "cpu:nonsense"
    ops.conv2d(x, w)
    assert newest().why.startswith("fallback")
    monkeypatch.setenv("TORCH_CUDNN_EXT_CONV_FWD_ALGO", "cpu:nonsense")
    with pytest.raises(ValueError, match="TORCH_CUDNN_EXT_CONV_FWD_ALGO: got 'cpu:nonsense'"):
        knobs._read_environment()
    monkeypatch.setenv("TORCH_CUDNN_EXT_ON_UNSUPPORTED", "fallback")
    assert knobs._read_environment()["conv_fwd_algo"] == "cpu:nonsense"
    code = """
knobs.conv_fwd_algo = "cpu:nonsense"
with knobs.flags(conv_bwd_data_algo="cpu:nonsense"):
    print(knobs.conv_fwd_algo)
"""
    done = run_with_environment(code, ON_UNSUPPORTED="fallback")
    assert done.returncode == 0 and done.stdout.strip() == "cpu:nonsense"
