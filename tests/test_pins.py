"""Choices by the name of a layer, in models that stay as they are."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torch_cudnn_ext
from torch_cudnn_ext import (
    Policy,
    apply_pins,
    apply_rules,
    clear_pins,
    enabled,
    load_pins,
    load_rules,
    pinned,
    save_pins,
)
from torch_cudnn_ext import nn as our_nn
from torch_cudnn_ext.pins import pin_of

PIN = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}


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
    choice = torch_cudnn_ext.last_choice("conv_fwd")
    assert choice is not None
    return choice.algorithm


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
    with pinned(net, {r"re:layer1\.[1-9]\.conv\d": {"fwd": pin}}):
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
        assert pin.patterns == ("*.conv1", "*")


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


def test_transposed_convolution(net: Net, device: str) -> None:
    x = images(device)
    plain = net.up(x)
    algorithm = "cpu:im2col" if device == "cpu" else "legacy:algo_0"
    with pinned(net, {"up": f"bwd_data={algorithm}"}):
        torch.testing.assert_close(net.up(x), plain, atol=1e-5, rtol=1e-4)
        assert torch_cudnn_ext.last_choice("conv_bwd_data").algorithm.startswith(algorithm)  # type: ignore[union-attr]
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
    code = {m: type(m) for m in net.modules()}
    with pinned(net, {"*": f"on_unsupported=fallback;conv_fwd={PIN[device]}"}):
        assert repr(net) == before
        assert list(net.state_dict()) == keys
        assert {m: type(m) for m in net.modules()} == code
    for module in net.modules():
        assert not {"_running", "_once"} & vars(module).keys()


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
        "print(torch_cudnn_ext.last_choice().algorithm)\n"
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
        ({"layr1.0.conv1": "autotune"}, "matches no layer.*near misses: .*layer1.0.conv1"),
        ({"layer1": "autotune"}, "'layer1', a Sequential, which has no algorithms"),
        ({"re:(": "autotune"}, "no regular expression"),
        ({"up": Policy(softmax_fwd="accurate")}, "up is a layer of conv: .*softmax_fwd"),
        ({"soft": Policy(fwd="winograd")}, "soft is a layer of softmax: .*conv_fwd"),
        ({"soft": "bwd_filter=autotune"}, "soft is a layer of softmax: .*bwd_filter"),
        ({"*": "fwd=nonsense"}, "fits no layer.*nonsense"),
        ({"up": "autotune", "nowhere": "autotune"}, "'nowhere' matches no layer"),
    ],
)
def test_a_wrong_pin_is_an_error_and_changes_nothing(pins: dict[str, Any], wanted: str) -> None:
    model = Net()
    with pytest.raises(ValueError, match=wanted):
        apply_pins(model, pins)
    assert all(pin_of(m) is None for m in model.modules())


def test_a_layer_that_would_not_see_its_pin_is_an_error() -> None:
    with pytest.raises(ValueError, match="OwnForward.*when"):
        apply_pins(nn.Sequential(OwnForward(2, 3, 3)), {"0": "autotune"})
    with pytest.raises(ValueError, match="policy of its own"):
        apply_pins(nn.Sequential(our_nn.Conv2d(2, 3, 3)), {"0": "autotune"})


# Files.


def test_a_file_holds_pins(tmp_path: Path) -> None:
    path = tmp_path / "pins.toml"
    pins: dict[str, Any] = {
        "layer1.*.conv2": Policy(fwd="winograd_nonfused"),
        'quo"ted\\': "autotune",
        "soft": Policy(family="softmax", fwd="accurate"),
        "re:.*": "max_workspace=64MiB",
    }
    save_pins(path, pins)
    read = load_pins(path)
    assert list(read) == list(pins)
    assert read["layer1.*.conv2"] == "fwd=legacy:winograd_nonfused"
    assert read["soft"] == "softmax_fwd=legacy:accurate"
    save_pins(path, read)
    assert load_pins(path) == read
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
        ('[layers]\n"a" = 3\n', "line 2: 'a' is 3"),
        ("[layers]\n're:(' = 'autotune'\n", r"line 2: 're:\(': .*regular expression"),
        ('[layers]\n"a" = \n', "line 2"),
        (
            '[layers]\n[rules]\n"a" = "autotune"\n',
            r"line 2: got the key 'rules', wanted \[layers\] and \[problems\]",
        ),
        ('conv1 = "autotune"\n', "line 1: got the key 'conv1'"),
        ("layers = 3\n", "line 1: got the key 'layers'"),
        ('[problems]\n"conv_fwd q=1" = "autotune"\n', "line 2: 'conv_fwd q=1': .*no field 'q'"),
        ('[problems]\n"conv_fwd" = "bwd_data=autotune"\n', "line 2: 'conv_fwd': .*bwd_data"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "pins.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=wanted) as caught:
        load_pins(path)
    assert "pins.toml" in str(caught.value)
