"""Choices by the name of a layer, in models that stay as they are."""

import abc
import copy
import os
import pickle
import re
import subprocess
import sys
import threading
import tomllib
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import newest
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

import torch_cudnn_ext
from torch_cudnn_ext import (
    Policy,
    apply_pins,
    apply_rules,
    clear_pins,
    convert,
    enabled,
    load_pins,
    load_rules,
    pinned,
    save_pins,
)
from torch_cudnn_ext import nn as our_nn
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.models import conversion_steps, counterparts
from torch_cudnn_ext.models import pins as pins_module
from torch_cudnn_ext.models.pins import pin_of

PIN = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}


def test_a_parametrized_layer_gets_its_own_class_back() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 8, 3)))
    x, cls = torch.randn(1, 3, 8, 8), type(model[0])
    hidden = set()
    for _ in range(3):
        with pinned(model, {"0": "cpu:direct"}):
            hidden.add(type(model[0]))
            model(x)
            assert newest("conv_fwd").algorithm == "cpu:direct"
        assert type(model[0]) is cls
    assert len(hidden) == 1
    with pinned(model, {"0": "cpu:direct"}):  # what comes and goes inside is there behind it
        parametrize.register_parametrization(model[0], "bias", nn.Identity())
    assert type(model[0]) is cls and parametrize.is_parametrized(model[0], "bias")
    model[0].bias.sum().backward()
    with pinned(model, {"0": "cpu:direct"}):
        parametrize.remove_parametrizations(model[0], "bias")
        assert model(x).shape == (1, 8, 6, 6)
    assert isinstance(model[0].bias, nn.Parameter) and model(x).shape == (1, 8, 6, 6)


def test_methods_that_someone_replaced_in_pytorch_s_class(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = nn.Conv2d._conv_forward
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda *args: 2 * plain(*args))
    reason = "the _conv_forward of torch.nn.Conv2d was replaced"
    with pytest.raises(ValueError, match=reason):
        apply_pins(model, {"*": "cpu:direct"})
    assert [step.reason for step in conversion_steps(model)] == [reason]
    monkeypatch.undo()
    apply_pins(model, {"*": "cpu:direct"})


def test_a_layer_that_refuses_its_pin_leaves_all_without() -> None:
    class Sealed(nn.Conv2d):
        def __setattr__(self, name: str, value: Any) -> None:
            if "sealed" in vars(self):
                raise AttributeError(f"{name}: this layer is sealed")
            super().__setattr__(name, value)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), Sealed(3, 3, 1), nn.Conv2d(3, 3, 1))
    vars(model[1])["sealed"] = True
    before = [(type(layer), dict(vars(layer))) for layer in model]
    with pytest.raises(AttributeError, match="this layer is sealed"):
        apply_pins(model, {"*": "cpu:direct"})
    assert [(type(layer), dict(vars(layer))) for layer in model] == before


def test_an_interrupt_while_a_block_ends_leaves_no_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Conv2d(1, 1, 1) for _ in range(3)))
    exchange = pins_module.exchange
    left = [2]

    def interrupted(module: nn.Module, cls: type[nn.Module]) -> dict[str, Any]:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return exchange(module, cls)

    with pytest.raises(KeyboardInterrupt), pinned(model, {"*": "cpu:direct"}):
        monkeypatch.setattr(pins_module, "exchange", interrupted)
    assert left[0] < 0 and [type(layer) for layer in model] == [nn.Conv2d] * 3


class Block(nn.Module):
    """Two convolutions that pad in ways of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding="same")
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(self.conv1(x).relu())
        return y + x


class Net(nn.Module):
    """Two blocks, a transposed convolution, a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block(), Block())
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)
        self.soft = nn.Softmax(1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.soft(self.up(self.layer1(x)))
        return y


@pytest.fixture
def net(device: str) -> Iterator[Net]:
    """A model; afterwards PyTorch's classes must be its own."""
    plain = {cls: dict(vars(cls)) for cls in (nn.Conv2d, nn.ConvTranspose2d, nn.Softmax)}
    model = Net().to(device)
    yield model
    clear_pins(model)
    for cls, before in plain.items():
        assert dict(vars(cls)) == before


def images(device: str) -> Tensor:
    return torch.randn(2, 4, 6, 6, device=device)


def ran(model: nn.Module, x: Tensor, train: bool = False) -> dict[tuple[str, str], str]:
    """The algorithm, without its options, by layer and operator."""
    calls = torch_cudnn_ext.explain(model, x, train=train, measure=False).calls
    return {(call.layer, call.op): call.algorithm.partition("/")[0] for call in calls}


def last() -> str:
    return newest("conv_fwd").algorithm


def test_patterns_pin_layers_by_name(net: Net, device: str) -> None:
    x, pin = images(device), PIN[device]
    plain = net(x)
    with pinned(net, {"layer1.*.conv2": Policy(fwd=pin), "*": "fwd=aten:default"}):
        found = ran(net, x)
        assert found["layer1.0.conv2", "conv_fwd"] == pin
        assert found["layer1.1.conv2", "conv_fwd"] == pin
        assert found["layer1.0.conv1", "conv_fwd"] == "aten:default"
        assert found["soft", "softmax_fwd"] == "aten:default"
        torch.testing.assert_close(net(x), plain, atol=1e-5, rtol=1e-4)
    with pinned(net, {"layer1.[1-9].conv?": {"fwd": pin}}):
        found = ran(net, x)
        assert found["layer1.1.conv1", "conv_fwd"] == pin
        assert found["layer1.0.conv1", "conv_fwd"] != pin


def test_of_two_patterns_the_earlier_holds_field_by_field(net: Net, device: str) -> None:
    with pinned(net, {"*.conv1": f"fwd={PIN[device]}", "*": "bwd_data=aten:default;fwd=autotune"}):
        pin = pin_of(net.layer1[0].conv1)  # type: ignore[arg-type]
        assert pin is not None
        policy = Policy.parse(pin.text)
        assert policy.get("fwd") == PIN[device]
        assert policy.get("bwd_data") == "aten:default"
        assert pin.patterns == {"fwd": "*.conv1", "bwd_data": "*"}


def test_pins_hold_with_and_without_enable_and_in_backward(net: Net, device: str) -> None:
    x, pin = images(device), "cpu:direct" if device == "cpu" else "legacy:algo_1"
    pins = {"layer1.0.conv1": f"fwd={PIN[device]};bwd_filter={pin};bwd_data={pin}"}
    with pinned(net, pins):
        net.layer1[0].conv1(x)  # type: ignore[operator]
        assert last().startswith(PIN[device])
        found = ran(net, x, train=True)
        for op in ("conv_bwd_filter", "conv_fwd"):
            wanted = PIN[device] if op == "conv_fwd" else pin
            assert found["layer1.0.conv1", op] == wanted
        with enabled("aten:default"):
            found = ran(net, x, train=True)
        assert found["layer1.0.conv1", "conv_fwd"] == PIN[device]
        assert found["layer1.1.conv1", "conv_bwd_filter"] == "aten:default"


@pytest.mark.usefixtures("no_tf32")
def test_transposed_convolution(net: Net, device: str) -> None:
    x = images(device)
    plain = net.up(x)
    algorithm = "cpu:im2col" if device == "cpu" else "legacy:algo_0"
    with pinned(net, {"up": f"bwd_data={algorithm}"}):
        torch.testing.assert_close(net.up(x), plain, atol=1e-5, rtol=1e-4)
        assert newest("conv_bwd_data").algorithm.startswith(algorithm)
        assert net.up(x, output_size=[12, 12]).shape == plain.shape


def test_repinning_and_unpinning(net: Net, device: str) -> None:
    x = images(device)
    for algorithm in (PIN[device], "aten:default", PIN[device]):
        apply_pins(net, {"layer1.0.conv1": f"fwd={algorithm}"})
        assert ran(net, x)["layer1.0.conv1", "conv_fwd"] == algorithm
    with pinned(net, {"layer1.1.conv1": f"fwd={PIN[device]}"}):
        assert pin_of(net.layer1[0].conv1) is None  # type: ignore[arg-type]
    assert pin_of(net.layer1[0].conv1) is not None  # type: ignore[arg-type]
    clear_pins(net)
    assert ran(net, x)["layer1.0.conv1", "conv_fwd"] != PIN[device] or device == "cuda"
    with pytest.raises(KeyError), pinned(net, {"up": "autotune"}):
        raise KeyError
    assert pin_of(net.up) is None


def test_a_layer_that_was_converted_inside_keeps_its_class() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    apply_pins(model, {"*": "cpu:im2col"})
    before = pin_of(model[1])
    with pytest.raises(KeyError, match="mine"), pinned(model, {"0": "cpu:direct"}):
        clear_pins(model)
        convert(model, exclude=lambda name, module: name == "1")
        raise KeyError("mine")
    assert type(model[0]) is our_nn.Conv2d and model[0].policy is None
    assert before is not None and pin_of(model[1]) is before


def test_a_layer_that_was_taken_out_inside_is_unpinned_too() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    apply_pins(model, {"1": "cpu:im2col"})
    layers, other = [*model], nn.Sequential()
    with pinned(model, {"*": "cpu:direct"}):
        for i in range(3):
            model[i] = nn.Conv2d(4, 4, 3)
        other.append(layers[2])
        apply_pins(other, {"0": "cpu:fft"})
    pins = [pin_of(layer) for layer in layers]
    assert [pin and {*pin.patterns.values()} for pin in pins] == [None, {"1"}, {"0"}]
    assert type(layers[0]) is nn.Conv2d and not any(map(pin_of, model))


def test_blocks_may_end_in_any_order() -> None:
    inner = nn.Sequential(nn.Conv2d(4, 4, 3))
    model = nn.Sequential(nn.Conv2d(4, 4, 3), inner)
    apply_pins(model, {"0": "fwd=cpu:im2col"})

    def pins() -> list[str | None]:
        return [pin and pin.text for pin in (pin_of(model[0]), pin_of(inner[0]))]

    before = pins()
    first = pinned(model, {"*": "fwd=cpu:direct"})
    second = pinned(inner, {"0": "fwd=cpu:fft"})
    third = pinned(model, {"1.0": "fwd=aten:default"})
    for block in (first, second, third):
        block.__enter__()
    second.__exit__(None, None, None)
    assert pins() == [None, "fwd=aten:default"]
    first.__exit__(None, None, None)
    assert pins() == [None, "fwd=aten:default"]
    third.__exit__(None, None, None)
    assert pins() == before == ["fwd=cpu:im2col", None]
    first, second = pinned(model, {"*": "fwd=cpu:direct"}), pinned(inner, {"0": "fwd=cpu:fft"})
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert pins() == ["fwd=cpu:im2col", "fwd=cpu:fft"]
    second.__exit__(None, None, None)
    assert pins() == before


@pytest.mark.parametrize("first", ["compile", "pin"])
def test_compiled_models_follow(net: Net, device: str, first: str) -> None:
    x, pin = images(device), PIN[device]
    compiled: Any = torch.compile(net, backend="aot_eager", fullgraph=True)
    plain = net(x)
    if first == "compile":
        compiled(x)
    for algorithm in (pin, "aten:default", pin):
        apply_pins(compiled, {"layer1.*": f"fwd={algorithm}"})
        torch.testing.assert_close(compiled(x), plain, atol=1e-5, rtol=1e-4)
        assert last().startswith(algorithm)
    clear_pins(compiled)
    torch_cudnn_ext.ops.conv2d(x, x[:, :, :3, :3].contiguous(), policy="aten:default")
    torch.testing.assert_close(compiled(x), plain, atol=1e-5, rtol=1e-4)
    assert last() == "aten:default"


def test_the_model_is_as_it_was(net: Net, device: str) -> None:
    before, keys = repr(net), list(net.state_dict())
    looks = {m: (type(m).__name__, type(m).__module__) for m in net.modules()}
    with pinned(net, {"*": f"on_unsupported=fallback;conv_fwd={PIN[device]}"}):
        assert re.sub(r"(?:, )?pinned='[^']*'", "", repr(net)) == before
        assert list(net.state_dict()) == keys
        assert {m: (type(m).__name__, type(m).__module__) for m in net.modules()} == looks
        assert isinstance(net.soft, nn.Softmax)
    for module in net.modules():
        assert not {"_running", "_once"} & vars(module).keys()


def test_what_users_put_on_a_layer_stays() -> None:
    lstm, norm = nn.LSTM(2, 2), nn.BatchNorm2d(2)
    lstm.flatten_parameters = lambda: None  # type: ignore[method-assign]
    model = nn.Sequential(lstm)
    with pinned(model, {"*": "heuristic"}):
        pass
    convert(convert(model), to="torch")
    network_layers(model, torch.randn(3, 1, 2))
    assert "flatten_parameters" in vars(lstm)
    model = nn.Sequential(norm)
    apply_pins(model, {"0": "heuristic"})
    inner = norm.forward
    norm.forward = lambda x: inner(x) + 1  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="its forward was replaced"):
        apply_pins(model, {"0": "autotune"})
    clear_pins(model)
    assert type(norm) is nn.BatchNorm2d
    assert "forward" in vars(norm)


@pytest.mark.parametrize("held", ["a module", "a buffer"])
def test_a_name_that_a_layer_has_for_something_else_keeps_it_as_it_is(held: str) -> None:
    layer = nn.Linear(2, 3)
    if held == "a module":
        layer.policy = nn.Linear(3, 2)
    else:
        layer.register_buffer("policy", torch.zeros(1))
    model = nn.Sequential(layer)
    with pytest.raises(ValueError, match="it has a policy of its own"):
        apply_pins(model, {"0": "heuristic"})
    (reason,) = [step.reason for step in conversion_steps(model) if step.module is layer]
    assert reason == "it has a policy of its own"
    convert(model, policy="heuristic")
    assert type(layer) is nn.Linear


def _pinned_inside(model: nn.Module, x: Tensor) -> Tensor:
    with pinned(model, {"0": "heuristic"}):
        y: Tensor = model(x)
    return y


def _pinned_for_a_call(model: nn.Module, x: Tensor) -> Tensor:
    apply_pins(model, {"0": "heuristic"})
    y: Tensor = model(x)
    clear_pins(model)
    return y


@pytest.mark.parametrize("function", [_pinned_inside, _pinned_for_a_call])
@pytest.mark.parametrize("layer", [nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.Softmax(1)])
def test_compiled_functions_pin_and_unpin(function: Any, layer: nn.Module) -> None:
    torch._dynamo.reset()  # type: ignore[no-untyped-call]
    model, x = nn.Sequential(layer), torch.randn(1, 2, 6, 6)
    before = dict(vars(layer))
    compiled = torch.compile(function, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(model, x), model(x))
        assert vars(layer).keys() == before.keys()
        assert pin_of(layer) is None


def test_a_layer_that_is_made_like_a_pinned_one_has_no_pin() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3))
    apply_pins(model, {"0": "heuristic"})
    made = type(model[0])(2, 3, 1)
    assert type(made) is nn.Conv2d
    assert made(torch.zeros(1, 2, 4, 4)).shape == (1, 3, 4, 4)


class Remade(nn.Conv2d):
    """Says itself how it is made again."""

    def __reduce__(self) -> Any:  # noqa: D105
        return _remade, (self.in_channels, self.out_channels, dict(self.state_dict()))


def _remade(channels: int, filters: int, state: dict[str, Tensor]) -> Remade:
    made = Remade(channels, filters, 3)
    made.load_state_dict(state)
    return made


class WithArguments(nn.Conv2d):
    """Wants arguments when it is made again."""

    def __new__(cls, channels: int, *rest: int) -> "WithArguments":  # noqa: ARG004
        return super().__new__(cls)

    def __getnewargs__(self) -> tuple[int, ...]:  # noqa: D105
        return (self.in_channels,)


@pytest.mark.parametrize("cls", [Remade, WithArguments])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_layers_with_a_way_of_their_own_to_be_copied_keep_their_pins(cls: Any, copied: Any) -> None:
    model, x = nn.Sequential(cls(2, 2, 3)), torch.randn(1, 2, 5, 5)
    apply_pins(model, {"0": "heuristic"})
    other = copied(model)
    assert type(other[0]) is type(model[0])
    assert pin_of(other[0]) == pin_of(model[0])
    torch.testing.assert_close(other(x), model(x))


def test_copies_and_pickles_keep_their_pins(net: Net, device: str) -> None:
    x, pin = images(device), PIN[device]
    with pinned(net, {"layer1.0.conv1": f"fwd={pin}"}):
        copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    for made in copies:
        assert ran(made, x)["layer1.0.conv1", "conv_fwd"] == pin
        made(x)
    assert ran(net, x)["layer1.0.conv1", "conv_fwd"] != pin or device == "cuda"
    for made in copies:
        clear_pins(made)


def test_a_pickle_keeps_its_pins_in_another_process(tmp_path: Path) -> None:
    layer = nn.Conv2d(2, 3, 3)
    with pinned(nn.Sequential(layer), {"0": "fwd=cpu:im2col"}):
        (tmp_path / "layer.pkl").write_bytes(pickle.dumps(layer))
    code = (
        "import pickle, sys, torch\n"
        "layer = pickle.load(open(sys.argv[1], 'rb'))\n"
        "layer(torch.randn(1, 2, 5, 5))\n"
        "import torch_cudnn_ext\n"
        "print(torch_cudnn_ext.last_decision().algorithm)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "layer.pkl")], capture_output=True, text=True
    )
    assert done.stdout.strip() == "cpu:im2col", done.stderr


def test_once_is_kept_by_a_pinned_layer(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3)).to(device)
    with pinned(model, {"0": "guess_once"}):
        model(torch.randn(1, 2, 5, 5, device=device))
        frozen = model[0]._running
        assert "fwd=heuristic" not in str(frozen)
        model(torch.randn(1, 2, 9, 9, device=device))
        assert model[0]._running == frozen


class OwnForward(nn.Conv2d):
    """A layer that calls the operator itself."""

    def forward(self, input: Tensor) -> Tensor:
        return F.conv2d(input, self.weight * 2)


@pytest.mark.parametrize(
    ("pins", "wanted"),
    [
        ({"layr1.0.conv1": "autotune"}, "matches no layer.*the nearest: layer1.0.conv1"),
        (
            {"layer1": "autotune"},
            "'layer1', a torch.nn.modules.container.Sequential, which has no algorithms",
        ),
        ({"re:(": "autotune"}, "is a regular expression, wanted a glob"),
        ({"up": Policy(softmax_fwd="accurate")}, "up is a layer of conv: .*softmax_fwd"),
        ({"soft": Policy(fwd="winograd")}, "soft is a layer of softmax: .*conv_fwd"),
        ({"soft": "bwd_filter=autotune"}, "soft is a layer of softmax: .*bwd_filter"),
        ({"*": "fwd=nonsense"}, "fits no layer.*nonsense"),
        ({"up": "autotune", "nowhere": "autotune"}, "'nowhere' matches no layer"),
        ({"up": "cpu:im2cool"}, "cpu:im2cool' for conv_fwd, wanted one of .*cpu:im2col"),
        (
            {"soft": "cpu:im2col"},
            "softmax_fwd, wanted .*; it is an algorithm of conv .conv=cpu:im2col.$",
        ),
        ({"*": "conv_fwd=cpu:im2cool;softmax_fwd=cpu:online"}, "cpu:im2cool' for conv_fwd, wanted"),
        ({"*": "softmax_fwd=cpu:fft"}, "cpu:fft' for softmax_fwd, wanted .*cpu:online"),
        ({"*": {"softmax_bwd": "cpu:fft"}}, "cpu:fft' for softmax_bwd, wanted"),
    ],
)
def test_a_wrong_pin_is_an_error_and_changes_nothing(pins: dict[str, Any], wanted: str) -> None:
    model = Net()
    with pytest.raises(ValueError, match=wanted):
        apply_pins(model, pins)
    assert all(pin_of(m) is None for m in model.modules())


def test_a_pattern_pins_the_layers_that_have_its_algorithm(net: Net, device: str) -> None:
    apply_pins(net, {"*": "aten:matmul"})
    assert pin_of(net.up) is not None and pin_of(net.soft) is None


@pytest.mark.parametrize("first", [True, False])
def test_a_policy_pins_all_layers_of_which_it_speaks(first: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LogSoftmax(1))
    parts = ["fwd=cpu:fft", "softmax_fwd=cpu:online"]
    with pinned(model, {"*": ";".join(parts if first else parts[::-1])}):
        model(torch.randn(1, 3, 5, 5))
        assert newest("conv_fwd").algorithm == "cpu:fft"
        assert newest("softmax_fwd").algorithm == "cpu:online"


def test_fastest_of_an_earlier_pattern_leaves_the_later_no_choice() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pinned(model, {"0": "fastest;backends=aten", "*": "fwd=cpu:im2col"}):
        model(torch.randn(1, 3, 5, 5))
        assert newest("conv_fwd").why == "tuned"


def test_a_shared_layer_is_pinned_by_each_of_its_names() -> None:
    layer = nn.Conv2d(3, 3, 3, padding=1)
    model = nn.ModuleDict({"enc": nn.Sequential(layer), "dec": nn.Sequential(layer)})
    for pattern in ("enc.0", "dec.*", "*"):
        with pinned(model, {pattern: "cpu:im2col"}):
            pin = pin_of(layer)
            assert pin is not None and {*pin.patterns.values()} == {pattern}


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_what_profiling_finds_best_can_be_pinned(wrap: Any) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    wrapped = wrap(model)
    device = next(wrapped.parameters()).device  # nn.DataParallel moves it to a GPU
    best = torch_cudnn_ext.profile_model(
        wrapped,
        torch.randn(2, 3, 8, 8, device=device),
        passes=["fwd"],
        device=device,
        time_budget_s=0.5,
    ).best_by_layer()
    assert list(best) == ["0", "1"]
    with pinned(wrapped, best):
        assert pin_of(model[0]) is not None
    (outer,) = (name for name, module in wrapped.named_modules() if module is model[0])
    for pattern in (outer, f"*{outer}", "*.0", "0"):
        with pinned(wrapped, {pattern: "autotune"}):
            assert pin_of(model[0]) is not None and pin_of(model[1]) is None, pattern


def test_blanks_in_a_pin_change_nothing() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1))
    apply_pins(net, {"1": "softmax_fwd = cpu:nothere ; on_unsupported = fallback"})
    for pin in ("softmax_fwd = cpu:nothere", "conv_fwd= cpu:nothere;softmax=cpu:online"):
        with pytest.raises(ValueError, match="got 'cpu:nothere' for .*, wanted one of"):
            apply_pins(net, {"*": pin})
    torch_cudnn_ext.tuning.measure.check_constraints_alone("max_workspace = 1MiB ; prefer = memory")


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_names_of_a_wrapped_model_mean_what_they_mean_without(wrap: Any) -> None:
    model = nn.Sequential(OrderedDict(module=nn.Sequential(nn.Conv2d(3, 4, 3)), head=nn.ReLU()))
    model.append(nn.Conv2d(4, 4, 3))
    layers = [model.module[0], model.head, model[2]]
    for pattern in ("[!h]*", "module.*", "module.0", "2", "module.[0-9]"):
        found = []
        for whole in (model, wrap(model)):
            with pinned(whole, {pattern: "autotune"}):
                found.append([pin_of(layer) is not None for layer in layers])
        assert found[0] == found[1], pattern


def test_a_layer_that_would_not_see_its_pin_is_an_error() -> None:
    with pytest.raises(ValueError, match="OwnForward.*when"):
        apply_pins(nn.Sequential(OwnForward(2, 3, 3)), {"0": "autotune"})
    with pytest.raises(ValueError, match="policy of its own"):
        apply_pins(nn.Sequential(our_nn.Conv2d(2, 3, 3)), {"0": "autotune"})


def test_a_pattern_leaves_out_layers_that_would_not_see_their_pins_and_says_so() -> None:
    model = nn.Sequential(OwnForward(2, 3, 3), nn.Conv2d(3, 3, 1), our_nn.Conv2d(3, 3, 1))
    x = torch.randn(1, 2, 5, 5)
    expected = model(x)
    said = (
        r"'\*' leaves out 2 of 3 layers: '0' is a OwnForward .*forward is of OwnForward.*when\(\)"
    )
    with pytest.warns(UserWarning, match=said) as caught:
        apply_pins(model, {"*": "cpu:im2col"})
        clear_pins(model)
        with pinned(model, {"*": "cpu:im2col"}):
            pass
    assert {warning.filename for warning in caught} == {__file__}
    with pytest.warns(UserWarning, match=said), pinned(model, {"*": "cpu:im2col"}):
        assert [pin_of(layer) is not None for layer in model] == [False, True, False]
        torch.testing.assert_close(model(x), expected)
    assert type(model[0]) is OwnForward and type(model[1]) is nn.Conv2d


# Files.


def test_a_file_holds_pins(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    pins: dict[str, Any] = {
        "layer1.*.conv2": Policy(fwd="winograd_nonfused"),
        'quo"ted\\': "autotune",
        "soft": Policy(family="softmax", fwd="accurate"),
        "[!a-k]*": "max_workspace=64MiB",
    }
    save_pins(path, pins)
    read = load_pins(path)
    assert list(read) == list(pins)
    assert read["layer1.*.conv2"] == "fwd=legacy:winograd_nonfused"
    assert read["soft"] == "softmax_fwd=legacy:accurate"
    save_pins(path, read)
    assert load_pins(path) == read
    with pytest.raises(OSError, match="'/dev/full'"):
        save_pins("/dev/full", pins)
    path.write_text("# none\n")
    assert load_pins(path) == {}


def test_a_file_holds_rules(net: Net, device: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    softmax = {"cpu": "cpu:online", "cuda": "legacy:accurate"}[device]
    rules: dict[str, Any] = {
        "conv_fwd w=*[4,4,3,3]*": PIN[device],
        "conv_fwd": {"fwd": "aten:default", "max_workspace": "1GiB"},
        "softmax_fwd": Policy(family="softmax", fwd=softmax),
    }
    save_pins(path, {"*": "deterministic"}, rules)
    assert load_pins(path) == {"*": "deterministic"}
    read = load_rules(path)
    assert list(read) == list(rules)
    with apply_rules(read), enabled():
        found = ran(net, images(device))
    assert found["layer1.0.conv1", "conv_fwd"] == PIN[device]  # the upper one holds
    assert found["soft", "softmax_fwd"] == softmax
    with enabled():
        net(images(device))
        before = last()
        with pytest.raises(ValueError, match="no field"):
            apply_rules({"conv_fwd": "aten:default", "conv_fwd q=1": "autotune"})
        net(images(device))
        assert last() == before
    with apply_rules({}):
        pass


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('[layers]\n"a" = "autotune"\n"b" = "fwd=nonsense"\n', "line 3: 'b': .*nonsense"),
        ('[layers]\n"a" = 3\n', "line 2: 'a': got 3"),
        ("[layers]\n're:(' = 'autotune'\n", r"line 2: 're:\(': .*regular expression"),
        ('[layers]\n"a" = \n', "line 2: got '\"a\" =', wanted TOML: Invalid value"),
        ('[layers]\n"a" = ', "line 2: got '\"a\" =', wanted TOML: Invalid value"),
        (
            '[layers]\n"a" = "autotune"\n"a" = "heuristic"\n"b" = "autotune"\n',
            'line 3: got \'"a" = "heuristic"\', wanted TOML: Cannot overwrite',
        ),
        ('[layers]\n"a" = "autotune"\n[layer]\n"b" = "autotune"\n', "line 3: got the key 'layer'"),
        (
            '[problems]\n"conv_fwd" = "autotune"\n[problem]\n"conv_fwd" = "autotune"\n',
            "line 3: got the key 'problem'",
        ),
        ('[layers]\nconv1 = "autotune"\nconv = "foo"\n', "line 3: 'conv': .*foo"),
        ('[layers]\n"x" = "autotune"\nlayer = "foo"\n', "line 3: 'layer': .*foo"),
        (
            '[layers]\n"conv_fwd x=1" = "autotune"\n[problems]\n"conv_fwd x=1" = "foo"\n',
            "line 4: 'conv_fwd x=1': ",
        ),
        ('# "b" = 1\n\n[layers]\r\n"a" = "autotune"\r\n\r\n"\\u0062" = "foo"', "line 6: 'b': "),
        ('[layers]\n"a" = [\n  1,\n]\n"b" = "autotune"\n', r"line 2: 'a': got \[1\]"),
        (
            '[layers]\n[rules]\n"a" = "autotune"\n',
            r"line 2: got the key 'rules', wanted \[layers\] and \[problems\]",
        ),
        ('conv1 = "autotune"\n', "line 1: got the key 'conv1'"),
        ("layers = 3\n", "line 1: got the key 'layers'"),
        ('[problems]\n"conv_fwd q=1" = "autotune"\n', "line 2: 'conv_fwd q=1': .*no field 'q'"),
        ('[problems]\n"conv_fwd" = "bwd_data=autotune"\n', "line 2: 'conv_fwd': .*bwd_data"),
        ('[layers]\n\n"a" = "cpu:im2cool"\n', "line 3: 'a': .*cpu:im2cool"),
        ('[layers]\n"a" = "rnn_fwd=cpu:im2col"\n', "cpu:im2col' for rnn_fwd, wanted .*cpu:fused"),
        (
            '[layers]\n"a" = "conv_fwd=cpu:im2cool;softmax_fwd=cpu:online"\n',
            "line 2: 'a': .*cpu:im2cool",
        ),
        ('[problems]\n"conv_fwd pad=1" = "cpu:im2cool"\n', "line 2: .*cpu:im2cool.*cpu:im2col"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "pins.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=wanted) as caught:
        load_pins(path)
    assert "pins.toml" in str(caught.value)


def test_a_file_that_nests_too_deep_is_told(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    path.write_text("[layers]\na = " + "[" * sys.getrecursionlimit())
    with pytest.raises(ValueError, match=r"pins.toml: .*too deep to be read, wanted TOML"):
        load_pins(path)


# What a pinned layer is.


@pytest.mark.parametrize("plain", counterparts(), ids=lambda cls: cls.__name__)
def test_every_class_can_be_pinned(plain: type[nn.Module]) -> None:
    arguments, inputs = call_of(plain)
    model = nn.Sequential(plain(*arguments))
    keys, attributes = list(model.state_dict()), set(vars(model[0]))
    expected = plain.forward(model[0], *inputs)
    with pinned(model, {"*": "heuristic"}):
        for module in (model[0], copy.deepcopy(model[0]), pickle.loads(pickle.dumps(model[0]))):
            assert isinstance(module, plain) and list(model.state_dict()) == keys
            assert pin_of(module) == pin_of(model[0])
            torch.manual_seed(0)
            result = module(*inputs)
            if not isinstance(module, nn.Dropout):  # its masks are its own
                torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-4)
    assert type(model[0]) is plain and set(vars(model[0])) == attributes


def call_of(plain: type[nn.Module]) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Arguments for a layer of a class, and for its call."""
    name = plain.__name__
    sizes = (2, 4, *(6,) * int(name[-2])) if name[-2:] in ("1d", "2d", "3d") else (5, 4)
    x = torch.randn(sizes)
    if plain is nn.CTCLoss:
        lengths = torch.tensor([6, 6]), torch.tensor([2, 3])
        return (), (
            torch.randn(6, 2, 5).log_softmax(2),
            torch.tensor([[1, 2, 2], [3, 1, 2]]),
            *lengths,
        )
    if plain is nn.CrossEntropyLoss:
        return (), (x, torch.arange(5) % 4)
    if plain is nn.LocalResponseNorm:
        return (2,), (torch.randn(2, 4, 6, 6),)
    if name.startswith("Conv"):
        return (4, 3, 2), (x,)
    if issubclass(plain, nn.RNNBase) or plain is nn.Linear:
        return (4, 3), (x,)
    if plain is nn.GroupNorm:
        return (2, 4), (x,)
    if "Norm" in name:
        return (4,), (x,)
    if name.startswith("LPPool"):
        return (2, 2), (x,)
    if "Pool" in name:
        return (2,), (x,)
    return ((1,) if name in ("Softmax", "LogSoftmax") else ()), (x,)


def test_the_rest_of_the_process_is_left_alone() -> None:
    x = torch.randn(2, 3, 6, 6)
    other = nn.Conv2d(3, 4, 3)
    before = dict(vars(nn.Conv2d))
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    with pinned(model, {"*": "cpu:im2col"}):
        assert dict(vars(nn.Conv2d)) == before
        assert torch.equal(torch.jit.script(other)(x), other(x))


def test_parametrized_layers_are_pinned_and_go_on() -> None:
    x = torch.randn(1, 3, 6, 6)

    def doubled() -> nn.Sequential:
        model = nn.Sequential(nn.Conv2d(3, 4, 3))
        parametrize.register_parametrization(model[0], "weight", Doubled())
        return model

    model = doubled()
    expected = model(x)
    with pinned(model, {"0": "cpu:im2col"}):
        torch.testing.assert_close(model(x), expected)
        assert last() == "cpu:im2col"
        parametrize.remove_parametrizations(model[0], "weight")
        model(x)
        assert last() == "cpu:im2col"
    assert type(model[0]) is nn.Conv2d
    model = doubled()
    with pinned(model, {"0": "cpu:im2col"}):
        pass
    parametrize.remove_parametrizations(model[0], "weight")
    assert type(model[0]) is nn.Conv2d
    with pinned(model, {"0": "cpu:im2col"}):
        parametrize.register_parametrization(model[0], "weight", Doubled())
        apply_pins(model, {"0": "cpu:direct"})
        parametrize.register_parametrization(model[0], "bias", Doubled())
        expected = model(x)
        assert last() == "cpu:direct"
    assert not isinstance(model[0], our_nn.Tunable)
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-4)
    parametrize.remove_parametrizations(model[0], "weight")
    parametrize.remove_parametrizations(model[0], "bias")
    assert type(model[0]) is nn.Conv2d


class Abstract(nn.Conv2d, abc.ABC):
    """Its class, and each made of it, has attributes that nobody wrote."""


def test_a_subclass_is_pinned_again() -> None:
    model = nn.Sequential(Abstract(3, 4, 3))
    apply_pins(model, {"0": "autotune"})
    apply_pins(model, {"0": "cpu:im2col"})
    model(torch.randn(1, 3, 6, 6))
    assert last() == "cpu:im2col"
    clear_pins(model)
    assert type(model[0]) is Abstract


class Sealed(type):
    """Classes of it have no subclasses."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **keywords: Any
    ) -> "Sealed":
        """Refuse the second."""
        if any(isinstance(base, cls) for base in bases):
            raise TypeError("sealed")
        return super().__new__(cls, name, bases, namespace)


class SealedLinear(nn.Linear, metaclass=Sealed):
    """A class of which none can be made."""


class Counting(type):
    """Counts classes, and takes no keywords."""

    known: ClassVar[list[str]] = []

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> None:
        """Add one."""
        super().__init__(name, bases, namespace)
        cls.known.append(name)


class CountedConv(nn.Conv2d, metaclass=Counting):
    """A class of a user's metaclass."""


class Keyed(nn.Conv2d):
    """Its subclasses are to be told by a key, and are counted."""

    known: ClassVar[list[type]] = []

    def __init_subclass__(cls, *, key: int) -> None:
        """Wants a keyword."""
        super().__init_subclass__()
        cls.known.append(cls)


class OneKey(Keyed, key=1):
    """The only one of the user's."""


def test_hidden_classes_are_no_users_subclasses() -> None:
    model, x = nn.Sequential(OneKey(3, 4, 3)), torch.randn(1, 3, 8, 8)
    apply_pins(model, {"0": "fwd=cpu:fft"})
    model(x)
    assert newest("conv_fwd").algorithm == "cpu:fft"
    clear_pins(model)
    network_layers(model, x)
    assert Keyed.known == [OneKey] and type(model[0]) is OneKey


def test_layers_of_a_metaclass_without_keywords_are_pinned() -> None:
    model = nn.Sequential(CountedConv(3, 4, 3))
    apply_pins(model, {"0": "fwd=cpu:fft"})
    assert pin_of(model[0]) is not None
    network_layers(model, torch.randn(1, 3, 8, 8))


def test_a_layers_very_name_means_it_alone() -> None:
    model = nn.Sequential()
    for name in ("conv[1x1]", "c*", "ca"):
        model.add_module(name, nn.Conv2d(3, 3, 1))
    apply_pins(model, {"conv[1x1]": "cpu:fft", "c*": "cpu:direct"})
    assert [pin_of(layer) is None for layer in model] == [False, False, True]


def test_a_layer_that_cannot_be_pinned_leaves_the_others_as_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(6, 6), SealedLinear(6, 6))
    apply_pins(model, {"0": "autotune", "1": "autotune"})
    before = [pin_of(layer) for layer in model]
    with pytest.raises(TypeError, match="sealed"):
        apply_pins(model, {"0": "heuristic", "2": "autotune"})
    assert [pin_of(layer) for layer in model] == before


@pytest.mark.parametrize("parametrized", [False, True], ids=["plain", "parametrized"])
@pytest.mark.parametrize("first", ["pin", "shard"])
def test_sharded_layers_are_pinned_and_go_on(
    first: str, parametrized: bool, tmp_path: Path
) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    x = torch.randn(2, 3, 6, 6)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    if parametrized:
        for layer in model:
            parametrize.register_parametrization(layer, "weight", Doubled())
    expected = model(x)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        if first == "pin":
            apply_pins(model, {"*": "cpu:fft"})
        mesh = init_device_mesh("cpu", (1,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        for algorithm in ("cpu:fft", "cpu:im2col"):
            apply_pins(model, {"*": algorithm})
            torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-4)
            assert last() == algorithm
        clear_pins(model)
        for layer in model:
            assert isinstance(layer, FSDPModule) and not isinstance(layer, our_nn.Tunable)
            assert type(layer).__name__ == (
                "FSDPParametrizedConv2d" if parametrized else "FSDPConv2d"
            )
        torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-4)
        with pinned(model, {"*": "cpu:im2col"}):
            model(x).sum().backward()
            assert last() == "cpu:im2col"
        assert all(p.grad is not None for p in model.parameters())
    finally:
        dist.destroy_process_group()


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize(
    "other",
    [copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)), nn.Module.double],
    ids=["deepcopy", "copy", "pickle", "double"],
)
def test_a_pin_of_once_chooses_anew_like_a_module(other: Any) -> None:
    layer = nn.Conv2d(2, 3, 3)
    apply_pins(nn.Sequential(layer), {"0": "fwd=guess_once"})
    layer(torch.randn(1, 2, 5, 5))
    assert layer._once == ()
    made = other(layer)
    assert made._once == ("fwd",) and "heuristic" in made._running
    made(torch.randn(1, 2, 5, 5, dtype=made.weight.dtype))
    assert made._once == ()


def test_a_pinned_layer_has_no_policy_but_its_pins() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3))
    with pinned(model, {"0": "fwd=cpu:im2col"}), pytest.raises(AttributeError, match="clear_pins"):
        model[0].policy = "autotune"  # type: ignore[assignment]
    assert not hasattr(model[0], "policy")


def test_profiling_and_coverage_leave_pins_as_they_were() -> None:
    x = torch.randn(2, 4, 6, 6)
    net = Net()
    apply_pins(net, {"layer1.*": "fwd=cpu:im2col", "up": "guess_once"})
    net(x)
    before = [dict(vars(module)) for module in net.modules()]
    types = [type(module) for module in net.modules()]
    coverage(net, x, backends="cpu")
    assert len(network_layers(net, x).layers) > 4  # of pinned layers too
    assert [dict(vars(module)) for module in net.modules()] == before
    assert [type(module) for module in net.modules()] == types
    assert ran(net, x)["layer1.0.conv1", "conv_fwd"] == "cpu:im2col"


@pytest.mark.parametrize("to", ["cudnn", "torch"])
def test_conversion_leaves_pinned_layers_alone(to: Any) -> None:
    x = torch.randn(2, 4, 6, 6)
    net = Net()
    with pinned(net, {"layer1.*": "fwd=cpu:im2col"}):
        step = next(s for s in conversion_steps(net, to) if s.name == "layer1.0.conv1")
        assert step.becomes is None and "clear_pins" in step.reason
        convert(net, to, policy="backends=aten" if to == "cudnn" else None)
        assert ran(net, x)["layer1.0.conv1", "conv_fwd"] == "cpu:im2col"
        assert type(net.up) is (our_nn.ConvTranspose2d if to == "cudnn" else nn.ConvTranspose2d)
    assert type(net.get_submodule("layer1.0.conv1")) is nn.Conv2d
    if to == "cudnn":
        assert net.up.policy == "backends=aten"
        convert(net, policy="fwd=cpu:direct")
        assert ran(net, x)["layer1.0.conv1", "conv_fwd"] == "cpu:direct"


# Layers that nobody calls.


def test_a_projection_that_attention_reads_cannot_be_pinned() -> None:
    attention = nn.MultiheadAttention(8, 2)
    with pytest.raises(ValueError, match="out_proj.*does not call it"):
        apply_pins(attention, {"out_proj": "cpu:dot"})
    model = nn.ModuleList([attention, nn.Linear(8, 8)])
    with pinned(model, {"*": "cpu:dot"}):
        assert pin_of(model[1]) is not None and pin_of(attention.out_proj) is None


@pytest.mark.parametrize("way", ["pin", "convert"])
def test_transformers_call_their_layers_while_these_are_chosen_for(way: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    attributes = [dict(vars(m)) for m in model.modules()]
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        if way == "pin":
            apply_pins(model, {"*.linear1": "cpu:dot"})
        else:
            convert(model, policy="backends=cpu", exclude=lambda name, m: isinstance(m, nn.Dropout))
        result = model(x, src_key_padding_mask=padding)
        assert newest("matmul_fwd").algorithm.startswith("cpu:")
    torch.testing.assert_close(result[~padding], expected[~padding])
    assert ran(model, x)["layers.0.linear1", "matmul_fwd"].startswith("cpu:")
    clear_pins(model)
    convert(model, to="torch")
    assert [dict(vars(m)) for m in model.modules()] == attributes
    calls = torch_cudnn_ext.explain(model, x, measure=False).calls
    assert [call.layer for call in calls if "fast path" in call.why] == ["layers.0", "layers.1"]
    assert not any(call.layer.endswith("linear1") for call in calls)


# Arguments.


def test_layers_that_would_not_obey_are_an_error() -> None:
    layer = nn.Conv2d(2, 3, 3)
    layer.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="'0' is a Conv2d.*forward was replaced.*when"):
        apply_pins(nn.Sequential(layer), {"0": "autotune"})
    with pytest.raises(ValueError, match="first call"):
        apply_pins(nn.Sequential(nn.LazyConv2d(3, 3)), {"0": "autotune"})


@pytest.mark.parametrize("pins", [["0"], {0: "autotune"}, "0"])
def test_pins_are_a_mapping_of_texts(pins: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3))
    with pytest.raises(TypeError, match="argument pins: got"):
        apply_pins(model, pins)
    with pytest.raises(TypeError, match="argument pins: got"):
        save_pins(tmp_path / "x.toml", pins)
    with pytest.raises(TypeError, match="argument model: got"):
        apply_pins([model], {"0": "autotune"})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [3.5, True, 1, {"fwd": 3.5}, [1]])
def test_a_policy_of_a_wrong_type_is_named_with_its_pattern(policy: Any, tmp_path: Path) -> None:
    wanted = f"^pins: '0' is {re.escape(repr(policy))}: "
    with pytest.raises((TypeError, ValueError), match=wanted):
        apply_pins(nn.Sequential(nn.Conv2d(2, 3, 3)), {"0": policy})
    with pytest.raises((TypeError, ValueError), match=wanted):
        save_pins(tmp_path / "x.toml", {"0": policy})


def test_a_rule_of_a_wrong_type_is_named_with_its_matcher(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="^rules: 'conv_fwd' is 3.5: policy: got 3.5"):
        save_pins(tmp_path / "x.toml", {}, {"conv_fwd": 3.5})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="^rules: 'conv_fwd' is 3.5: policy: got 3.5"):
        apply_rules({"conv_fwd": 3.5})  # type: ignore[dict-item]


def test_what_cannot_be_loaded_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    with pytest.raises(ValueError, match="pins: 'a': .*nonsense"):
        save_pins(path, {"a": "nonsense"})
    with pytest.raises(ValueError, match=r"pins: 're:\(': .*regular"):
        save_pins(path, {"re:(": "autotune"})
    with pytest.raises(ValueError, match="rules: 'conv_fwd q=1': .*no field"):
        save_pins(path, {}, {"conv_fwd q=1": "autotune"})
    assert not path.exists()


@pytest.mark.parametrize("pattern", ["*", "\udc80"])
def test_what_cannot_be_written_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    path = tmp_path / "pins.toml"
    save_pins(path, {"old": "autotune"})

    def full(descriptor: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", full)
    wanted = (OSError, "no space") if pattern == "*" else (ValueError, "pins: .*surrogates")
    with pytest.raises(wanted[0], match=wanted[1]):
        save_pins(path, {pattern: "autotune"})
    assert load_pins(path) == {"old": "autotune"}
    assert [file.name for file in tmp_path.iterdir()] == ["pins.toml"]


def test_pins_are_saved_to_what_is_open_too(tmp_path: Path) -> None:
    read, write = os.pipe()
    for file in (write, os.open(tmp_path / "open", os.O_RDWR | os.O_CREAT)):
        save_pins(f"/dev/fd/{file}", {"0": "autotune"})
        assert b'"0" = "autotune"' in os.read(read if file == write else file, 1000)
        os.close(file)
    os.close(read)


def test_files_say_what_to_mend(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    path.write_text('[layers]\n"a" = "softmax_fwd=nonsense"\n')
    with pytest.raises(ValueError, match="line 2: 'a': .*not one of softmax_fwd"):
        load_pins(path)
    path.write_text('[layers]\n"a" = "infer=nonsense"\n')
    with pytest.raises(ValueError, match="for batch_norm: .*nonsense"):
        load_pins(path)
    path.write_text('[layers]\nlayer1.0.conv = "autotune"\n')
    with pytest.raises(ValueError, match="line 2: .* dots quotes around it: 'layer1.0.conv'"):
        load_pins(path)
    path.write_text('[layers]\n"a" = {fwd = "cpu:fft"}\n')
    with pytest.raises(ValueError, match="line 2: 'a': got a table, wanted a policy text in"):
        load_pins(path)
    path.write_bytes(b'[layers]\n"\xff" = "autotune"\n')
    with pytest.raises(ValueError, match="pins.toml.*, which holds no text: .*utf-8"):
        load_pins(path)
    for encoding in ("utf-8", "utf-8-sig"):  # the latter begins with a byte order mark
        path.write_text('[layers]\n"\u00fc*" = "autotune"\n', encoding=encoding)
        assert load_pins(path) == {"\u00fc*": "autotune"}


def test_a_file_of_many_pins_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pins.toml"
    save_pins(file, {f"layer{i}": "autotune" for i in range(200)})
    read: list[str] = []
    loads = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: read.append(text) or loads(text))
    assert len(load_pins(file)) == 200 and len(read) == 1


def test_an_interrupted_save_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_pins(tmp_path / "pins.toml", {"*": "autotune"})
    assert not [*tmp_path.iterdir()]


def test_threads_that_save_to_one_file_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, both = tmp_path / "pins.toml", threading.Barrier(2, timeout=20)
    monkeypatch.setattr("os.fsync", lambda descriptor: both.wait())
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(save_pins, path, {name: "autotune"}) for name in "ab"]:
            done.result()
    assert list(load_pins(path)) in (["a"], ["b"])
    assert [file.name for file in tmp_path.iterdir()] == ["pins.toml"]
