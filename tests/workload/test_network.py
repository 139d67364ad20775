"""The problems of a network: layers, passes, dtypes and layouts."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from helpers import LINE, PASSES, Frozen, Network, convolutions, network_with
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import _C, pinned, profile_model, trace
from torch_cudnn_ext import nn as layers
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import coupled_problems, rewrite
from torch_cudnn_ext._workload.running import recording
from torch_cudnn_ext.models.convert import converted


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


def test_autocast_in_a_network_is_not_missed_on_the_meta_device() -> None:
    def cast(y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(y, y)

    model, x = network_with(cast), torch.randn(4, 4)
    lines = [layer.problem for layer in network_layers(model, x, ["fwd"]).layers]
    assert any("bf16" in line for line in lines)
    with pytest.raises(RuntimeError, match="meta device do not obey autocast"):
        network_layers(model.to("meta"), x.to("meta"), ["fwd"])


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


@pytest.mark.parametrize("passes", [["infer"], ["fwd"], ["fwd", "infer"]])
def test_inference_is_a_pass_of_its_own(passes: list[str]) -> None:
    (layer,) = network_layers(nn.BatchNorm2d(3).eval(), torch.randn(2, 3, 4, 4), passes).layers
    assert layer.problem.startswith("batch_norm_infer")


def test_channels_last_is_the_output_s_layout_too() -> None:
    line = LINE.replace(":nchw w", ":nhwc w") + " y=:nchw"
    assert "y=:nchw" in _C.canonical_problem(line)
    assert rewrite(line, channels_last=True) == rewrite(LINE, channels_last=True)


def test_what_is_a_buffer_has_no_gradient() -> None:
    conv = nn.Conv2d(3, 4, 3, bias=False)
    weight = conv.weight.detach()
    del conv.weight
    conv.register_buffer("weight", weight)
    lines = [layer.problem for layer in convolutions(conv, torch.randn(1, 3, 8, 8))]
    assert [line.split()[0] for line in lines] == ["conv_fwd", "conv_bwd_data"]


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
