"""The modules: drop-in for PyTorch's, with a policy."""

import copy
import inspect
import io
import pickle
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from conftest import newest
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.flop_counter import FlopCounterMode

import torch_cudnn_ext
from torch_cudnn_ext import Policy, apply_pins, clear_pins, convert, enabled, knobs, pinned, tuning
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext._policy_text import passes_of
from torch_cudnn_ext.models import conversion_steps, counterparts

# Two algorithms for each device and pass that any small problem can run on.
PINS = {
    "cpu": {name: ("cpu:im2col", "cpu:direct") for name in ("fwd", "bwd_data", "bwd_filter")},
    "cuda": {
        "fwd": ("aten:default", "legacy:implicit_gemm"),
        "bwd_data": ("aten:default", str(Policy(bwd_data=1).get("bwd_data"))),
        "bwd_filter": ("aten:default", str(Policy(bwd_filter=1).get("bwd_filter"))),
    },
}
# Backends of which a choice may be forced, and another one.
BACKENDS = {"cpu": ("cpu", "aten"), "cuda": ("legacy", "aten")}


@dataclass
class Layer:
    """A module's class name and arguments, and the sizes of an input."""

    name: str
    arguments: tuple[Any, ...]
    sizes: tuple[int, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    output_size: list[int] | None = None

    @property
    def id(self) -> str:
        """A name for the test."""
        words = [f"{key}={value}" for key, value in self.keywords.items()]
        return "-".join([self.name, *words, *(["output_size"] if self.output_size else [])])


LAYERS = [
    Layer("Conv1d", (4, 6, 3), (2, 4, 9)),
    Layer("Conv1d", (4, 6, 4), (2, 4, 9), {"padding": "same", "dilation": 3}),
    Layer("Conv1d", (4, 6, 3), (2, 4, 9), {"padding": 2, "padding_mode": "circular"}),
    Layer("Conv2d", (4, 6, 3), (2, 4, 7, 8)),
    Layer("Conv2d", (4, 6, (3, 2), (2, 1), (1, 0)), (2, 4, 7, 8), {"bias": False}),
    Layer("Conv2d", (4, 6, 3), (2, 4, 7, 8), {"groups": 2, "dilation": 2, "padding": 2}),
    Layer("Conv2d", (4, 8, 3), (2, 4, 7, 8), {"groups": 4}),
    Layer("Conv2d", (4, 6, (4, 3)), (2, 4, 7, 8), {"padding": "same"}),
    Layer("Conv2d", (4, 6, 3), (2, 4, 7, 8), {"padding": "valid"}),
    Layer("Conv2d", (4, 6, 3), (2, 4, 7, 8), {"padding": 1, "padding_mode": "reflect"}),
    Layer("Conv2d", (4, 6, 4), (2, 4, 7, 8), {"padding": "same", "padding_mode": "replicate"}),
    Layer("Conv3d", (2, 4, (1, 2, 3)), (2, 2, 4, 5, 6), {"padding": (0, 1, 1)}),
    Layer("ConvTranspose1d", (4, 6, 3), (2, 4, 5), {"stride": 2, "output_padding": 1}),
    Layer("ConvTranspose1d", (4, 6, 3), (2, 4, 5), {"stride": 3}, [17]),
    Layer("ConvTranspose2d", (4, 6, 3), (2, 4, 5, 6), {"padding": 1, "groups": 2, "bias": False}),
    Layer("ConvTranspose2d", (4, 6, 3, 2, 1), (2, 4, 5, 6), {}, [2, 6, 10, 11]),
    Layer("ConvTranspose2d", (4, 6, 3), (2, 4, 5, 6), {"dilation": 2}),
    Layer("ConvTranspose3d", (2, 4, 2), (1, 2, 3, 4, 5), {"stride": (1, 2, 2)}),
]
CLASSES = sorted({layer.name for layer in LAYERS})
layers = pytest.mark.parametrize("layer", LAYERS, ids=[layer.id for layer in LAYERS])


def pair(layer: Layer, device: str, **keywords: Any) -> tuple[Any, Any]:
    """PyTorch's module and ours, with equal weights, in float64."""
    keywords = {**layer.keywords, "device": device, "dtype": torch.float64, **keywords}
    theirs = getattr(nn, layer.name)(*layer.arguments, **keywords)
    mine = getattr(ours, layer.name)(*layer.arguments, **keywords)
    mine.load_state_dict(theirs.state_dict())
    return theirs, mine


def call(module: Any, x: Tensor, layer: Layer) -> Tensor:
    """The module's output, with the layer's output size where it has one."""
    arguments = () if layer.output_size is None else (layer.output_size,)
    output: Tensor = module(x, *arguments)
    return output


def random_input(layer: Layer, device: str) -> Tensor:
    return torch.randn(layer.sizes, device=device, dtype=torch.float64)


def conv(device: str, policy: Any = None, **keywords: Any) -> ours.Conv2d:
    """A small layer in float32."""
    return ours.Conv2d(4, 6, 3, padding=1, policy=policy, device=device, **keywords)


def images(device: str, size: int = 8) -> Tensor:
    return torch.randn(2, 4, size, size, device=device)


def backward(output: Tensor) -> None:
    output.sum().backward()  # type: ignore[no-untyped-call]


# --- drop-in -----------------------------------------------------------------------------------


def test_forwards_take_their_parents_arguments() -> None:
    for theirs, mine in counterparts().items():
        wanted = [*inspect.signature(theirs.forward).parameters]
        assert [*inspect.signature(mine.forward).parameters][: len(wanted)] == wanted, theirs


@layers
def test_results_and_gradients_are_pytorchs(layer: Layer, device: str) -> None:
    theirs, mine = pair(layer, device)
    x = random_input(layer, device).requires_grad_()
    expected, result = call(theirs, x, layer), call(mine, x, layer)
    torch.testing.assert_close(result, expected)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (x, *theirs.parameters()), gradient)
    got = torch.autograd.grad(result, (x, *mine.parameters()), gradient)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)


@layers
def test_inputs_without_a_batch(layer: Layer, device: str) -> None:
    theirs, mine = pair(layer, device)
    x = random_input(layer, device)[0]
    if layer.output_size is not None:
        layer = replace(layer, output_size=layer.output_size[-(x.dim() - 1) :])
    torch.testing.assert_close(call(mine, x, layer), call(theirs, x, layer))


@layers
def test_state_loads_both_ways_and_holds_no_policy(layer: Layer) -> None:
    theirs, mine = pair(layer, "cpu")
    mine.policy = "autotune"
    assert list(mine.state_dict()) == list(theirs.state_dict())
    file = io.BytesIO()
    torch.save(mine.state_dict(), file)
    file.seek(0)
    theirs.load_state_dict(torch.load(file, weights_only=True))
    assert mine.policy == str(Policy("autotune"))


@pytest.mark.parametrize("name", CLASSES)
def test_classes_name_what_they_replace(name: str) -> None:
    mine, theirs = getattr(ours, name), getattr(nn, name)
    assert mine.replaces is theirs
    assert issubclass(mine, theirs)
    assert mine.__name__ == theirs.__name__


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        ((4, 5, 3), {"groups": 2}),
        ((4, 6, 3), {"padding_mode": "mirror"}),
        ((4, 6), {}),
        ((4, 6, 3), {"colour": "red"}),
    ],
)
def test_constructors_refuse_what_pytorchs_refuse(
    name: str, arguments: tuple[int, ...], keywords: dict[str, Any]
) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        getattr(nn, name)(*arguments, **keywords)
    with pytest.raises(theirs.type):
        getattr(ours, name)(*arguments, **keywords)


def test_wrong_output_sizes_are_refused() -> None:
    module = ours.ConvTranspose2d(4, 6, 3, stride=2)
    with pytest.raises(ValueError, match="output size"):
        module(images("cpu"), [99, 99])
    with pytest.raises(ValueError, match="output_size"):
        module(images("cpu"), [17])


def test_channels_last_is_kept(device: str) -> None:
    module = conv(device)
    x = images(device).to(memory_format=torch.channels_last)
    assert module(x).is_contiguous(memory_format=torch.channels_last)


def test_the_weights_are_shared_not_copied() -> None:
    module = conv("cpu")
    assert {name for name, _ in module.named_parameters()} == {"weight", "bias"}
    assert list(module.children()) == []


# --- policies ----------------------------------------------------------------------------------


def test_a_policy_may_be_given_in_any_form() -> None:
    text = str(Policy(fwd="fft", max_workspace="1MiB"))
    for policy in (text, Policy.parse(text), {"fwd": 4, "max_workspace": 2**20}):
        assert conv("cpu", policy).policy == text
    for nothing in (None, "", Policy(), -1):
        assert conv("cpu", nothing).policy is None


def test_a_bad_policy_is_refused_and_changes_nothing() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        conv("cpu", "fwd=nonsense")
    module = conv("cpu", "fwd=fft")
    with pytest.raises(ValueError, match="nonsense"):
        module.policy = "nonsense"
    with pytest.raises(TypeError, match="policy"):
        module.policy = 1.5  # type: ignore[assignment]
    with pytest.raises(ValueError, match="bwd_data.*nonsense"):
        module.set_mode(fwd=0, bwd_data="nonsense")
    assert module.policy == "fwd=legacy:fft"


def test_copies_and_pickles_keep_the_policy(device: str) -> None:
    module = conv(device, "bwd_data=heuristic;max_workspace=1MiB").set_mode(
        fwd=PINS[device]["fwd"][0]
    )
    x = images(device)
    expected = module(x)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert copied.policy == module.policy
        torch.testing.assert_close(copied(x), expected)
        copied.policy = None
        assert module.policy is not None


def test_the_representation_shows_the_policy() -> None:
    assert repr(conv("cpu")) == repr(nn.Conv2d(4, 6, 3, padding=1))
    assert "policy='fwd=legacy:fft'" in repr(conv("cpu", "fwd=fft"))


def test_set_mode_leaves_slots_that_are_none() -> None:
    module = conv("cpu")
    assert module.set_mode(fwd=4, bwd_filter="autotune") is module
    assert module.policy == str(Policy(fwd="fft", bwd_filter="autotune"))
    module.set_mode(bwd_data=1)
    assert module.policy == str(Policy(fwd="fft", bwd_data=1, bwd_filter="autotune"))
    module.set_mode(fwd=-1, bwd_data="", bwd_filter="CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT")
    assert module.policy == str(Policy(bwd_filter="fft"))


def test_each_pass_runs_its_pin(device: str) -> None:
    module = conv(device)
    for which in (0, 1, 0):
        pins = {name: names[which] for name, names in PINS[device].items()}
        module.set_mode(**pins)
        backward(module(images(device).requires_grad_()))
        for name, pin in pins.items():
            choice = newest(f"conv_{name}")
            assert choice.algorithm.startswith(pin)
            assert choice.why == "pinned"


def one_of_each(device: str) -> dict[str, str]:
    """An algorithm for each pass, no two alike."""
    if device == "cpu":
        return {"fwd": "cpu:im2col", "bwd_data": "cpu:direct", "bwd_filter": "cpu:fft"}
    return {
        "fwd": "legacy:implicit_gemm",
        "bwd_data": PINS["cuda"]["bwd_data"][1],
        "bwd_filter": "aten:default",
    }


def ran_in_each_pass() -> dict[str, str]:
    """The algorithm of each pass's newest call, without options."""
    return {
        name: newest(f"conv_{name}").algorithm.partition("/")[0]
        for name in ("fwd", "bwd_data", "bwd_filter")
    }


@pytest.mark.parametrize("cls", [ours.Conv2d, ours.ConvTranspose2d], ids=["plain", "transposed"])
@pytest.mark.parametrize(
    "choose",
    [
        lambda module, pins: module.set_mode(*pins.values()),
        lambda module, pins: module.set_mode(**pins),
        lambda module, pins: module.set_mode(pins["fwd"], None, pins["bwd_filter"]).set_mode(
            bwd_data=pins["bwd_data"]
        ),
        lambda module, pins: setattr(module, "policy", pins),
        lambda module, pins: setattr(module, "policy", Policy(**pins)),
        lambda module, pins: setattr(
            module, "policy", ";".join(f"{p}={a}" for p, a in pins.items())
        ),
    ],
    ids=["places", "names", "both", "mapping", "Policy", "text"],
)
def test_no_two_passes_are_taken_for_each_other(choose: Any, cls: Any, device: str) -> None:
    pins = one_of_each(device)
    module = cls(4, 6, 3, device=device)
    choose(module, pins)
    assert module.policy == ";".join(f"{name}={pin}" for name, pin in pins.items())
    backward(module(images(device).requires_grad_()))
    assert ran_in_each_pass() == pins


@pytest.mark.parametrize("module", [ours.Conv2d, ours.ConvTranspose2d])
def test_pins_of_layers_reach_the_passes_that_they_name(module: Any, device: str) -> None:
    pins = one_of_each(device)
    model = nn.Sequential(getattr(nn, module.__name__)(4, 6, 3, device=device))
    for policy in (pins, Policy(**pins), {f"conv_{name}": pin for name, pin in pins.items()}):
        with pinned(model, {"0": policy}):
            backward(model(images(device).requires_grad_()))
        assert ran_in_each_pass() == pins


def test_every_other_module_takes_passes_by_place_in_their_order() -> None:
    """Two texts for each pass, no two alike, in the places and by the names."""
    for cls in counterparts().values():
        passes = passes_of(cls.family)
        words = ["heuristic" if index % 2 else "autotune" for index in range(len(passes))]
        module = getattr(ours, cls.__name__).__new__(cls)
        nn.Module.__init__(module)
        for place, name in enumerate(passes):
            module.policy = None
            module.set_mode(*[None] * place, words[place])
            assert module.policy == f"{name}={words[place]}", (cls, name)


def test_pins_of_transposed_convolutions_name_the_primitive(device: str) -> None:
    pins = {name: names[1] for name, names in PINS[device].items()}
    module = ours.ConvTranspose2d(4, 6, 3, device=device).set_mode(bwd_data=pins["bwd_data"])
    output = module(images(device).requires_grad_())
    assert newest("conv_bwd_data").algorithm.startswith(pins["bwd_data"])
    assert newest("conv_bwd_data").why == "pinned"
    assert module.policy == str(Policy(bwd_data=pins["bwd_data"]))
    module.set_mode(fwd=pins["fwd"])
    backward(module(images(device).requires_grad_()))
    assert newest("conv_fwd").algorithm.startswith(pins["fwd"])
    backward(output)  # made before the second pin
    assert newest("conv_fwd").why != "pinned"


def test_an_unsupported_pin_is_an_error_at_the_call(device: str) -> None:
    module = conv(device)
    module.set_mode(fwd="legacy:fft" if device == "cpu" else "cpu:im2col")
    with pytest.raises(RuntimeError, match="cannot run") as caught:
        module(images(device))
    assert "would work" in str(caught.value)
    module.set_mode(fwd="")
    module(images(device))


def assert_runs_without_workspace(module: torch.nn.Module, device: str) -> None:
    if device == "cpu":  # every algorithm there allocates something, and says how much
        with pytest.raises(RuntimeError, match="max_workspace=0"):
            module(images(device))
        return
    module(images(device))
    assert newest("conv_fwd").workspace_bytes == 0


def test_workspace_limit(device: str) -> None:
    module = conv(device, "heuristic")
    assert module.workspace_limit is None
    for limit in (2**20, 2**30, 0):
        module.workspace_limit = limit
        assert module.workspace_limit == limit
    assert module.policy == str(Policy("heuristic", max_workspace=0))
    assert_runs_without_workspace(module, device)
    module.workspace_limit = "20%"
    assert module.workspace_limit == "20%"
    module.workspace_limit = None
    assert module.workspace_limit is None
    for bad, kind in ((-1, ValueError), (True, TypeError), (1.5, TypeError), ("big", ValueError)):
        with pytest.raises(kind, match="max_workspace"):
            module.workspace_limit = bad  # type: ignore[assignment]
    assert module.policy == str(Policy("heuristic"))


def test_fastest_tunes_for_time_and_drops_the_limit(device: str) -> None:
    module = conv(device, Policy(fwd=PINS[device]["fwd"][0], prefer="memory", deterministic=True))
    module.workspace_limit = 0
    assert module.fastest() is module
    assert module.workspace_limit is None
    policy = Policy.parse(module.policy or "")
    assert policy == Policy(fastest=True, deterministic=True)
    module(images(device))
    assert newest("conv_fwd").why in ("tuned", "cached")
    module.workspace_limit = 0  # a limit set later holds again
    assert module.workspace_limit == 0
    assert_runs_without_workspace(module, device)


def test_fastest_is_stronger_than_what_is_said_elsewhere(device: str) -> None:
    module = conv(device).fastest()
    with enabled("heuristic"):
        module(images(device))
    assert newest("conv_fwd").why in ("tuned", "cached")


def test_set_mode_names_the_mistake(device: str) -> None:
    module = conv(device)
    with pytest.raises(TypeError, match="got the keyword 'foo', wanted fwd, bwd_data, bwd_filter$"):
        module.set_mode(foo="autotune")
    with pytest.raises(TypeError, match="got 'fwd' twice, by its place and by its name"):
        module.set_mode("autotune", fwd="heuristic")


def test_reset_mode_takes_back_choices_and_keeps_constraints(device: str) -> None:
    module = conv(device, Policy("autotune", max_workspace="1GiB", on_unsupported="warn"))
    module.set_mode(*(names[0] for names in PINS[device].values()))
    assert module.reset_mode() is module
    assert module.policy == str(Policy(max_workspace="1GiB", on_unsupported="warn"))
    module.fastest().reset_mode()
    assert module.policy == str(Policy(on_unsupported="warn"))
    module(images(device))
    assert newest("conv_fwd").why == "heuristic"


# --- guess_once and time_once ------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["guess_once", "time_once"])
def test_once_keeps_the_first_choice_for_every_shape(choice: str, device: str) -> None:
    once, other = BACKENDS[device]
    module = conv(device).set_mode(choice, choice, choice)
    asked = module.policy
    with knobs.flags(backends=once):
        backward(module(images(device).requires_grad_()))
    first = {name: newest(f"conv_{name}").algorithm for name in PINS[device]}
    assert all(algorithm.startswith(f"{once}:") for algorithm in first.values())
    assert module.policy == asked
    backward(module(images(device, 11).requires_grad_()))
    assert {name: newest(f"conv_{name}").algorithm for name in PINS[device]} == first
    assert newest("conv_fwd").why == "pinned"
    with knobs.flags(backends=other), pytest.raises(RuntimeError, match="cannot run"):
        module(images(device))
    module.reset_mode().set_mode(choice)
    with knobs.flags(backends=other):
        module(images(device))
    assert newest("conv_fwd").algorithm.startswith(f"{other}:")


def test_time_once_tunes_the_problem_that_runs(device: str) -> None:
    for bias in (True, False):
        tuning.clear()
        module = conv(device, "fwd=time_once", bias=bias)
        module(images(device))
        assert [entry["problem"] for entry in tuning.entries()] == [newest("conv_fwd").problem]
    tuning.clear()
    module = ours.ConvTranspose2d(4, 6, 3, device=device, policy="time_once")
    backward(module(images(device)[0].requires_grad_()))
    tuned = {entry["problem"] for entry in tuning.entries()}
    assert tuned == {newest(f"conv_{name}").problem for name in PINS[device]}


def test_once_in_a_transposed_convolution(device: str) -> None:
    once, other = BACKENDS[device]
    module = ours.ConvTranspose2d(
        4, 6, 3, stride=2, device=device, policy="bwd_data=time_once;fwd=guess_once"
    )
    with knobs.flags(backends=once):
        backward(module(images(device)[0].requires_grad_()))
    first = [newest(op).algorithm for op in ("conv_bwd_data", "conv_fwd")]
    assert all(algorithm.startswith(f"{once}:") for algorithm in first)
    backward(module(images(device, 11).requires_grad_(), [24, 23]))
    assert [newest(op).algorithm for op in ("conv_bwd_data", "conv_fwd")] == first


def test_once_waits_with_gradients_until_they_are_wanted(device: str) -> None:
    once, other = BACKENDS[device]
    module = conv(device, "guess_once")
    with torch.no_grad(), knobs.flags(backends=once):
        module(images(device))
    with knobs.flags(backends=other), pytest.raises(RuntimeError, match="conv_fwd.*cannot run"):
        module(images(device))
    module.set_mode(fwd="heuristic")
    with knobs.flags(backends=other):
        backward(module(images(device).requires_grad_()))
    for op in ("conv_bwd_data", "conv_bwd_filter"):
        assert newest(op).algorithm.startswith(f"{other}:")


def test_once_waits_while_nothing_is_computed(device: str) -> None:
    for module in (
        conv(device, "time_once"),
        ours.ConvTranspose2d(4, 6, 3, device=device, policy="time_once"),
    ):
        empty = torch.zeros(0, module.in_channels, 9, 9, device=device, requires_grad=True)
        module(empty).sum().backward()
        assert module(images(device)).shape[0] == len(images(device))
        op = "conv_fwd" if module.weight.shape[0] == 6 else "conv_bwd_data"
        assert newest(op).why == "pinned"
    meta = ours.Conv2d(4, 6, 3, device="meta", policy="guess_once")
    assert meta(torch.empty(1, 4, 9, 9, device="meta")).shape == (1, 6, 7, 7)
    with pytest.raises(TypeError, match="argument 'input'.* must be Tensor, not list"):
        conv(device, "guess_once")([1])


def test_once_measures_outside_the_caller_s_modes(device: str) -> None:
    x = images(device)
    torch.func.vmap(conv(device, "time_once"))(x[:, None])
    counts = []
    module = conv(device, "time_once")
    for _ in range(2):
        with FlopCounterMode(display=False) as counter:
            module(x)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1]


@pytest.mark.parametrize("choice", ["guess_once", "time_once"])
def test_once_chooses_in_traces_and_transforms(choice: str, device: str) -> None:
    x = images(device)
    module = conv(device, choice)
    gradient = torch.func.grad(lambda t: module(t).sum())(x)
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(module(leaf).sum(), leaf)
    torch.testing.assert_close(gradient, wanted)
    module = conv(device, choice)
    traced = torch.jit.trace(module, x)
    torch.testing.assert_close(traced(x), module(x))


def test_copied_pickled_and_moved_modules_choose_anew(device: str) -> None:
    once, other = BACKENDS[device]
    module = conv(device, "fwd=guess_once")
    with knobs.flags(backends=once):
        module(images(device))
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.to(torch.float64)]
    for copied in copies:
        with knobs.flags(backends=other):
            copied(images(device).to(copied.weight.dtype))
        assert newest("conv_fwd").algorithm.startswith(f"{other}:")


def test_a_copy_of_a_parametrized_module_keeps_what_was_chosen(device: str) -> None:
    module = weight_norm(conv(device, "fwd=guess_once"))
    module(images(device))
    chosen = module._running
    assert "heuristic" not in chosen and copy.deepcopy(module)._running == chosen
    assert "heuristic" in module.to(torch.float64)._running


@pytest.mark.parametrize(
    "choice", ["heuristic", "fwd=guess_once", "fwd=time_once;bwd_data=aten:default"]
)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_layer_with_relu(dims: int, choice: str, device: str) -> None:
    mine, theirs = (getattr(module, f"Conv{dims}d") for module in (ours, nn))
    options: dict[str, Any] = {"stride": 2, "padding": 1, "groups": 2, "dtype": torch.float64}
    layer = mine(4, 6, 3, **options, device=device, activation="relu", policy=choice)
    plain = theirs(4, 6, 3, **options, device=device)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 4, *(9, 8, 7)[:dims], device=device, dtype=torch.float64)
    for given in (x, x[0], x.requires_grad_()):
        got, wanted = layer(given), plain(given).relu()
        torch.testing.assert_close(got, wanted)
        assert "act=relu" in newest("conv_fwd").problem
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), (x, layer.weight, layer.bias)),
        torch.autograd.grad(wanted.sum(), (x, plain.weight, plain.bias)),
    )
    assert "once" not in str(layer._running)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(copied(x), wanted)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), wanted)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", ["identity", "relu", "relu6", "silu", "gelu"])
def test_layers_with_activations(name: str, bias: bool, device: str) -> None:
    function = (lambda y: y) if name == "identity" else getattr(F, name)
    options: dict[str, Any] = {"device": device, "dtype": torch.float64, "bias": bias}
    for kind, arguments, x in (("Linear", (6, 4), (3, 6)), ("Conv1d", (6, 4, 3), (2, 6, 9))):
        mine = getattr(ours, kind)(*arguments, activation=name, **options)
        plain = getattr(nn, kind)(*arguments, **options)
        plain.load_state_dict(mine.state_dict())
        one = torch.randn(x, device=device, dtype=torch.float64)
        for given in (one[0], one.requires_grad_()):
            got, wanted = mine(given), function(plain(given))
            torch.testing.assert_close(got, wanted)
        parameters = (given, *mine.parameters())
        theirs = torch.autograd.grad(wanted.sum(), (given, *plain.parameters()))
        torch.testing.assert_close(torch.autograd.grad(got.sum(), parameters), theirs)
        with torch.no_grad():
            torch.testing.assert_close(mine(given), wanted)
        assert copy.deepcopy(mine).activation == name


def test_a_layer_with_relu_stays_when_others_are_converted_back() -> None:
    model = nn.Sequential(ours.Conv2d(3, 4, 3, activation="relu"), ours.Conv2d(4, 4, 3))
    assert str(model[0]).endswith("activation='relu')") and "activation" not in str(model[1])
    first, second = conversion_steps(model, to="torch")
    assert first.becomes is None and first.reason == "torch.nn has no activation='relu'"
    assert second.becomes is not None
    convert(model, to="torch")
    assert type(model[0]) is ours.Conv2d and type(model[1]) is nn.Conv2d
    with pytest.raises(
        ValueError, match="Conv2d: argument activation: got 'elu', wanted one of none"
    ):
        ours.Conv2d(3, 4, 3, activation="elu")  # type: ignore[arg-type]
    for state in (nn.Conv2d(3, 4, 3).state_dict(), ours.Conv2d(3, 4, 3).state_dict()):
        model[0].load_state_dict(state)


# A module of every family that has two algorithms on the CPU, and an input.
ONCE = [
    (lambda: ours.Linear(4, 3), (2, 4)),
    (lambda: ours.Softmax(1), (2, 5)),
    (lambda: ours.LogSoftmax(1), (2, 5)),
    (lambda: ours.MaxPool2d(2), (2, 3, 8, 8)),
    (lambda: ours.AvgPool2d(2), (2, 3, 8, 8)),
    (lambda: ours.AdaptiveAvgPool2d(4), (2, 3, 8, 8)),
    (lambda: ours.LPPool2d(2, 2), (2, 3, 8, 8)),
    (lambda: ours.BatchNorm2d(3), (2, 3, 8, 8)),
    (lambda: ours.LayerNorm(5), (2, 5)),
    (lambda: ours.RMSNorm(5), (2, 5)),
    (lambda: ours.GroupNorm(2, 4), (2, 4, 5)),
    (lambda: ours.InstanceNorm2d(3, affine=True), (2, 3, 8, 8)),
    (lambda: ours.LocalResponseNorm(3), (2, 4, 6, 6)),
    (lambda: ours.DivisiveNorm(3), (2, 4, 6, 6)),
    (lambda: ours.ReLU(), (2, 5)),
    (lambda: ours.ReLU(inplace=True), (2, 5)),
    (lambda: ours.Tanh(), (2, 5)),
    (lambda: ours.ELU(), (2, 5)),
    (lambda: ours.Dropout(0.5), (2, 5)),
    (lambda: ours.LSTM(4, 4), (3, 2, 4)),
    (lambda: ours.GRU(4, 4), (3, 2, 4)),
    (lambda: ours.RNN(4, 4), (3, 2, 4)),
]


def outputs_of(module: Any, x: Tensor) -> Tensor:
    result = module(x)
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first


def test_once_is_tested_on_every_family() -> None:
    families = {make().family for make, _ in ONCE} | {"conv", "ctc"}
    assert families == {cls.family for cls in counterparts().values()}


@pytest.mark.parametrize("choice", ["guess_once", "time_once"])
@pytest.mark.parametrize(("make", "sizes"), ONCE, ids=[type(make()).__name__ for make, _ in ONCE])
def test_once_of_every_family(make: Any, sizes: Any, choice: str, device: str) -> None:
    once, other = BACKENDS[device] if device == "cpu" else ("aten", "cudnn")
    others = ("graph:", "legacy:") if other == "cudnn" else f"{other}:"
    knobs.allow_tf32 = knobs.allow_reduced_range = True  # so that cuDNN takes all families
    module = make().to(device)
    family = module.family
    passes = ("fwd", "bwd") if "bwd" in passes_of(family) else ("fwd",)
    module.policy = choice
    x = torch.randn(sizes, device=device)
    with knobs.flags(backends=once):
        backward(outputs_of(module, x.clone().requires_grad_() * 1))
    chosen = {name: newest(f"{family}_{name}").algorithm for name in passes}
    assert all(algorithm.startswith(f"{once}:") for algorithm in chosen.values())
    assert module.policy == Policy.parse(choice, family).text
    assert not set(passes) & set(module._once)
    # Whatever the shape, the flags and the tuning table say.
    larger = torch.randn(2 * sizes[0], *sizes[1:], device=device)
    backward(outputs_of(module, larger.requires_grad_() * 1))
    for name in passes:
        assert newest(f"{family}_{name}").algorithm == chosen[name]
    assert newest(f"{family}_fwd").why == "pinned"
    with knobs.flags(backends=other), pytest.raises(RuntimeError, match="cannot run"):
        module(larger.detach())
    copied = copy.deepcopy(module)
    with torch.no_grad(), knobs.flags(backends=other):
        copied(x)
    assert newest(f"{family}_fwd").algorithm.startswith(others)


def test_a_first_call_in_inference_settles_what_training_runs(device: str) -> None:
    once, _ = BACKENDS[device] if device == "cpu" else ("aten", "")
    x = torch.randn(3, 2, 4, device=device)
    module = ours.LSTM(4, 4, device=device, policy="time_once")
    with torch.no_grad(), knobs.flags(backends=once):
        module(x)
    kept = newest("rnn_fwd").algorithm
    backward(module(x)[0])
    assert newest("rnn_fwd").algorithm == newest("rnn_bwd").algorithm == kept
    norm = ours.BatchNorm2d(3, device=device, policy="guess_once").eval()
    with knobs.flags(backends=once):
        norm(torch.randn(2, 3, 4, 4, device=device))
    assert norm._once == ("fwd",) and int(norm.num_batches_tracked) == 0


def test_settling_leaves_the_caller_s_tensors_modes_and_numbers_alone(device: str) -> None:
    packed: list[Tensor] = []
    x = torch.randn(2, 3, 4, 4, device=device, requires_grad=True)
    norm = ours.BatchNorm2d(3, device=device, policy="guess_once")
    plain = nn.BatchNorm2d(3, device=device)
    state = torch.get_rng_state()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        norm(x)
        first = len(packed)
        norm(x)
    assert len(packed) == 2 * first
    plain(x), plain(x)
    torch.testing.assert_close(norm.state_dict(), plain.state_dict())
    assert x.grad is None and torch.equal(torch.get_rng_state(), state)
    given = torch.ones(5, device=device)
    ours.ReLU(inplace=True, policy="guess_once").to(device)(given.neg_())
    assert torch.equal(given, torch.zeros(5, device=device))


def test_once_looks_again_at_calls_of_another_kind_alone(monkeypatch: Any) -> None:
    """A pass that no call runs costs nothing at each of them."""
    looks = []
    plain = torch_cudnn_ext.nn.tunable.problems_of
    monkeypatch.setattr(
        torch_cudnn_ext.nn.tunable, "problems_of", lambda *a: (looks.append(1), plain(*a))[1]
    )
    module, x = conv("cpu", "guess_once"), images("cpu")
    for _ in range(3):
        module(x)
    assert len(looks) == 1 and module._once == ("bwd_data",)
    module(x.clone().requires_grad_())
    assert len(looks) == 2 and module._once == ()
    module(x)
    assert len(looks) == 2


# --- TorchScript -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["module", "converted", "pinned"])
def test_scripting_says_what_to_do_instead(way: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    x = torch.randn(1, 3, 8, 8)
    if way == "module":
        model[0] = ours.Conv2d(3, 4, 3)
    elif way == "converted":
        convert(model, policy="heuristic")
    else:
        apply_pins(model, {"0": "heuristic"})
    with pytest.raises(
        RuntimeError, match=r"torch.jit.script: .*jit.trace.*to='torch'.*clear_pins"
    ):
        torch.jit.script(model)
    traced = torch.jit.trace(model, x)
    torch.testing.assert_close(traced(x), model(x))
    assert "torch_cudnn_ext::conv2d" in str(traced.inlined_graph)
    if way == "pinned":
        clear_pins(model)
    else:
        convert(model, to="torch")
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


def test_once_under_autocast(device: str) -> None:
    module = conv(device, "guess_once")
    with torch.autocast(device, torch.bfloat16):
        output = module(images(device))
        assert output.dtype == torch.bfloat16
        assert "bf16" in newest("conv_fwd").problem
        assert newest("conv_fwd").why == "pinned"


# --- torch.compile -----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_tf32")
def test_a_compiled_module_follows_its_policy(device: str) -> None:
    module = conv(device)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x = images(device)
    expected = module(x)
    for pin in (*PINS[device]["fwd"], PINS[device]["fwd"][0]):
        module.set_mode(fwd=pin)
        torch.testing.assert_close(compiled(x), expected)
        assert newest("conv_fwd").algorithm.startswith(pin)
    module.reset_mode()
    compiled(x)
    assert newest("conv_fwd").why == "heuristic"


@layers
def test_every_module_compiles_in_one_graph(layer: Layer, device: str) -> None:
    theirs, mine = pair(layer, device)
    mine.policy = "heuristic"
    x = random_input(layer, device)
    torch.compiler.reset()
    compiled = torch.compile(mine, backend="eager", fullgraph=True)
    torch.testing.assert_close(call(compiled, x, layer), call(theirs, x, layer))


def test_once_is_settled_by_a_first_call_in_eager_mode(device: str) -> None:
    module = conv(device, "guess_once")
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="guess_once and time_once"):
        compiled(images(device))
    with torch.no_grad():
        module(images(device))
        compiled(images(device))
    assert newest("conv_fwd").why == "pinned"


# --- signatures --------------------------------------------------------------------------------


@pytest.mark.parametrize("mine", counterparts().values(), ids=lambda cls: cls.__name__)
def test_a_signature_is_the_parents_and_the_policy(mine: Any) -> None:
    wanted = dict(inspect.signature(mine.replaces).parameters)
    found = dict(inspect.signature(mine).parameters)
    assert found.pop("policy").kind is inspect.Parameter.KEYWORD_ONLY
    for name in ("skip_input", "remember_states"):
        assert (found.pop(name, None) is None) == (mine.family != "rnn")
    assert (found.pop("window", None) is None) == (mine is not ours.LocalResponseNorm)
    activates = mine in (ours.Conv1d, ours.Conv2d, ours.Conv3d, ours.Linear)
    assert (found.pop("activation", None) is None) == (not activates)
    assert found == wanted


def test_skip_init_and_subclasses_with_constructors_of_their_own() -> None:
    layer = nn.utils.skip_init(ours.Conv2d, 3, 4, 3, policy="autotune")
    assert layer.policy == str(Policy("autotune"))

    class Mine(ours.Conv2d):
        def __init__(self, width: int) -> None:
            super().__init__(width, width, 1)

    assert list(inspect.signature(Mine).parameters) == ["width"]
    assert Mine(3)(torch.randn(1, 3, 2, 2)).shape == (1, 3, 2, 2)


# --- every module ------------------------------------------------------------------------------

SPACES = {"1d": (6,), "2d": (6, 5), "3d": (6, 5, 4)}
# The arguments of each module's class, without its number of dimensions, and what it is called on.
CALLS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), ((4, 6, 2), ())),
    **dict.fromkeys(("MaxPool", "AvgPool"), ((2,), ())),
    **dict.fromkeys(("AdaptiveAvgPool", "AdaptiveMaxPool"), ((2,), ())),
    "LPPool": ((2.0, 2), ()),
    **dict.fromkeys(("BatchNorm", "InstanceNorm"), ((4,), ())),
    "GroupNorm": ((2, 4), ()),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), ((5,), ())),
    **dict.fromkeys(("LocalResponseNorm", "DivisiveNorm"), ((3,), ())),
    **dict.fromkeys(("RNN", "GRU", "LSTM"), ((5, 3), (torch.randn(4, 2, 5),))),
    "Linear": ((5, 3), ()),
    "CrossEntropyLoss": ((), (torch.randn(3, 4), torch.tensor([0, 1, 2]))),
    "CTCLoss": (
        (),
        (torch.randn(6, 1, 4).log_softmax(2), torch.ones(1, 2, dtype=torch.int64), (6,), (2,)),
    ),
    "ClippedReLU": ((3.0,), ()),
    "Dropout": ((0.5,), ()),
    **dict.fromkeys(("Softmax", "LogSoftmax"), ((1,), ())),
    "Softmax2d": ((), ()),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", sorted({*ours.__all__} - {"Tunable", "Recurrent"}))
def test_every_module_hands_its_policy_on(name: str, training: bool, device: str) -> None:
    if name == "Dropout" and not training:
        pytest.skip("nothing runs")
    made, called = CALLS.get(name, CALLS.get(name.rstrip("123d"), ((), ())))
    space = SPACES.get(name[-2:], (6, 5))
    called = called or (torch.randn(2, 4, *space),)
    cap = "max_workspace=123456789"
    for policy in (None, cap):
        module = getattr(ours, name)(*made, policy=policy).to(device).train(training)
        module(*(t.to(device) if isinstance(t, Tensor) else t for t in called))
        choice = newest()
        assert choice.op.startswith(module.family)
        assert (cap in choice.policy.split(";")) == (policy is not None)


@pytest.mark.parametrize("name", sorted({*ours.__all__} - {"Tunable", "Recurrent"}))
def test_every_module_refuses_what_is_no_tensor(name: str) -> None:
    made, called = CALLS.get(name, CALLS.get(name.rstrip("123d"), ((), ())))
    with pytest.raises(TypeError, match=r"argument '?\w+'?.* (wanted a|must be) Tensor"):
        getattr(ours, name)(*made)([1.0], *called[1:])


@pytest.mark.parametrize("choice", ["guess_once", "time_once"])
def test_an_export_settles_nothing(choice: str) -> None:
    module = ours.Conv2d(3, 4, 3, policy=choice)
    x = torch.randn(2, 3, 8, 8)
    exported = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.testing.assert_close(exported.module()(x), module(x))
    assert Policy.parse(module._running or "").get("fwd") != choice  # that did


def test_once_leaves_to_later_calls_what_this_one_does_not_run(device: str) -> None:
    once, other = BACKENDS[device]
    x, leaf = images(device), images(device).requires_grad_()
    plain = conv(device, "bwd_data=guess_once;bwd_filter=guess_once")
    back = ours.ConvTranspose2d(4, 6, 3, device=device, policy="fwd=guess_once")
    with knobs.flags(backends=once):
        with torch.no_grad():
            plain(leaf)
        plain(x)  # of which the weight alone has a gradient
        back(x[0])
    assert (plain._once, back._once) == (("bwd_data",), ("fwd",))
    with knobs.flags(backends=other):
        plain(leaf).sum().backward(inputs=[leaf])
        assert newest("conv_bwd_data").algorithm.startswith(f"{other}:")
        back(leaf[0]).sum().backward(inputs=[leaf])
        assert newest("conv_fwd").algorithm.startswith(f"{other}:")
    assert (plain._once, back._once) == ((), ())


IN_PLACE = [
    cls for cls in counterparts().values() if "inplace" in inspect.signature(cls).parameters
]


@pytest.mark.parametrize("mine", IN_PLACE, ids=lambda cls: cls.__name__)
def test_modules_write_in_place_where_they_are_told_to(mine: Any, device: str) -> None:
    x = torch.randn(4, 5, device=device)
    for inplace in (True, False):
        torch.manual_seed(0)
        wanted = mine.replaces(inplace=False)(x)  # dropout in place draws otherwise on a GPU
        given = x.clone()
        torch.manual_seed(0)
        got = mine(inplace=inplace, policy="aten:default")(given)
        torch.testing.assert_close(got, wanted)
        assert (got.data_ptr() == given.data_ptr()) == inplace
        assert torch.equal(given, got if inplace else x)


# Modules whose buffers a forward may change before the backward of an earlier one runs.
TRACKING = [
    name
    for name in ours.__all__
    if "track_running_stats" in inspect.signature(getattr(ours, name)).parameters
]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("way", ["convert", "enable"])
@pytest.mark.parametrize("name", TRACKING)
def test_a_gradient_is_of_the_statistics_of_its_forward(
    name: str, way: str, training: bool, device: str
) -> None:
    sizes = {"1d": (5,), "2d": (4, 3), "3d": (2, 3, 2)}[name[-2:]]
    options: dict[str, Any] = {"affine": True, "track_running_stats": True}
    plain = getattr(nn, name)(3, **options).double().to(device)
    plain.running_mean.normal_()
    plain.running_var.uniform_(0.5, 2)
    module = convert(copy.deepcopy(plain)) if way == "convert" else plain
    x = torch.randn(4, 3, *sizes, dtype=torch.float64, device=device, requires_grad=True)
    with enabled() if way == "enable" else nullcontext():
        module.train(training)
        y = module(x)
        statistics = [module.running_mean, module.running_var]
        before = [t.clone() for t in statistics]
        module.train()
        for _ in range(2):
            module(3 * x.detach() + 1)
        assert not any(map(torch.equal, before, statistics))
        found = torch.autograd.grad(y.square().sum(), (x, module.weight, module.bias))
    for now, then in zip(statistics, before, strict=True):
        now.copy_(then)
    module.train(training)
    wanted = torch.autograd.grad(module(x).square().sum(), (x, module.weight, module.bias))
    torch.testing.assert_close(found, wanted)
