"""Dry runs: which functions of a network are found, and what they leave unchanged."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from helpers import network_with, policy_fields
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import convert, knobs, ops, pinned, profile_model, trace, tuning, when
from torch_cudnn_ext import nn as layers
from torch_cudnn_ext._workload.network import Workload, network_layers
from torch_cudnn_ext._workload.tracer import is_function
from torch_cudnn_ext.analysis.coverage import coverage


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
    assert "fwd" in policy_fields(result.best(layer="head.1.max_pool2d()"))
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
    assert _functions(network_layers(network_with(function), torch.randn(4, 4))) == {name}


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
    work = network_layers(network_with(function), torch.randn(2, 4))
    assert {name for layer in work.layers for name in layer.names} == {"linear"}


def test_a_network_that_writes_to_what_ours_keep_is_seen_without_functions() -> None:
    def relu6(y: torch.Tensor) -> torch.Tensor:
        return F.relu6(y, inplace=True).add_(1)

    model, x = network_with(relu6), torch.randn(2, 4)
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

    work = network_layers(network_with(again), torch.randn(2, 4))
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

    work = network_layers(network_with(mapped), torch.randn(2, 4))
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


def test_a_network_is_seen_under_knobs_that_leave_no_backend() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 8, 8)
    with knobs.flags(backends="cudnn"):
        assert network_layers(model, x) == network_layers(model, x)
        assert {layer.names for layer in network_layers(model, x).layers} == {("0",), ("1",)}


def test_attention_s_own_products_are_counted() -> None:
    model = nn.MultiheadAttention(4, 2)
    x = torch.randn(3, 2, 4)
    with pytest.raises(ValueError, match="called no operator .* trace.. sees what PyTorch's"):
        network_layers(model, {"query": x, "key": x, "value": x})


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


def test_a_training_step_in_inference_mode_is_refused() -> None:
    model, x = torch.nn.Conv2d(3, 4, 3), torch.randn(1, 3, 5, 5)
    with torch.inference_mode():
        with pytest.raises(ValueError, match="train: nothing has a gradient in inference mode"):
            profile_model(model, x)
        (layer,) = profile_model(model, x, train=False, time_budget_s=0.05).layers
    assert layer.problem.startswith("conv_fwd")
