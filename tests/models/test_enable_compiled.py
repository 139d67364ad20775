"""Compiled, exported and traced models under `enable`."""

import copy
import warnings
from typing import Any

import pytest
import torch
from conftest import newest
from enable_helpers import KINDS, OTHER, AllKinds, Net, check_equal, images, passes_of, ran, run
from torch import Tensor, nn
from torch.nn import functional as F

import torch_cudnn_ext
from torch_cudnn_ext import declined, enabled

pytestmark = pytest.mark.usefixtures("off")


@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_model_of_all_kinds(device: str, training: bool) -> None:
    model, x = AllKinds(recurrent=False).to(device).train(training), images(device, 16)
    other = copy.deepcopy(model)
    compiled: Any = torch.compile(other, backend="aot_eager", fullgraph=True)
    found: list[Tensor] = []
    with enabled(compiled="all"):
        ran = passes_of(lambda: found.extend(run(compiled, x)))
    forward = "batch_norm_fwd" if training else "batch_norm_infer"
    wanted = {*KINDS.values(), "batch_norm_bwd", "pool_bwd", "layer_norm_bwd", "softmax_bwd"}
    assert (wanted - {"rnn_fwd", "batch_norm_fwd"}) | {forward} <= set(ran)
    check_equal(found, run(model, x), 1e-3)
    check_equal(list(other.buffers()), list(model.buffers()))


@pytest.mark.parametrize("first", ["enable", "compile"])
def test_compiled_before_or_after(net: Net, device: str, first: str) -> None:
    x = images(device)
    plain = run(net, x)
    compiled: Any = torch.compile(net, backend="aot_eager", fullgraph=True)
    if first == "compile":
        check_equal(run(compiled, x), plain)
    pin = OTHER[device]
    with enabled(f"fwd={pin}"):
        check_equal(run(compiled, x), plain)
        assert ran().startswith(pin)
    torch_cudnn_ext.ops.conv2d(x, net.first.weight.detach(), policy="aten:default")
    check_equal(run(compiled, x), plain)
    assert ran() == "aten:default"  # no call since was ours


def test_what_our_operators_refuse_is_declined_in_compiled_models_too() -> None:
    # On the CPU: PyTorch's CUDA kernel refuses such a stride as well.
    def convolve(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w, stride=2**31)

    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    w = torch.randn(4, 4, 3, 3)
    wanted = convolve(x, w)
    (gradient,) = torch.autograd.grad(wanted.sum(), x)
    with enabled(compiled="all"):
        y = torch.compile(convolve, fullgraph=True, backend="aot_eager")(x, w)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], gradient)
        (reason,) = declined()
        assert "stride is [2147483648, 2147483648], wanted at least 1" in reason


def test_operators_stay_whole_in_a_compiled_graph(net: Net, device: str) -> None:
    from torch._dynamo.backends.common import aot_autograd

    seen: list[str] = []

    def collect(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    with enabled(compiled="all"):
        compiled: Any = torch.compile(
            net, backend=aot_autograd(fw_compiler=collect), fullgraph=True
        )
        compiled(images(device)).sum().backward()
    for name in ("convolution", "convolution_backward_input", "convolution_backward_weight"):
        assert f"torch_cudnn_ext.{name}.default" in seen
    assert not any(name.startswith("aten.convolution") for name in seen)


@pytest.mark.parametrize("policy", [None, "backends=cpu"])
def test_traces_are_pytorchs(device: str, policy: str | None) -> None:
    model = Net().to(device)
    x, other = images(device), images(device)
    plain, trace = model(other), torch.jit.trace(model, x)
    kinds = [node.kind() for node in trace.inlined_graph.nodes()]
    with enabled(policy if device == "cpu" else None):
        ours = torch.jit.trace(model, x, check_trace=False)
        assert [node.kind() for node in ours.inlined_graph.nodes()] == kinds
        found = ours(other)
    check_equal([found, ours(other)], [plain, plain])


def _operators_of(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_while_enabled_says_that_it_holds_no_pins(strict: bool) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    plain = torch.export.export
    with enabled("conv=cpu:im2col"):
        inside = torch.export.export
        with pytest.warns(UserWarning, match=r"torch.export: .*enabled.*convert\(model, policy="):
            program = torch.export.export(model, (x,), strict=strict)
        assert _operators_of(program)[0] == "aten.conv2d.default"
    assert torch.export.export is plain
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        inside(model, (x,), strict=strict)  # nothing is enabled any more
        ours_model = torch_cudnn_ext.convert(model, policy="conv=cpu:im2col")
        program = torch.export.export(ours_model, (x,), strict=strict)
    assert _operators_of(program)[0] == "torch_cudnn_ext.conv2d.default"
    program.module()(x)
    assert newest("conv_fwd").algorithm == "cpu:im2col" and newest("conv_fwd").why == "pinned"


def test_a_trace_while_enabled_says_that_it_holds_no_pins() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(1, 3, 8, 8)
    with (
        enabled("conv=cpu:im2col"),
        pytest.warns(UserWarning, match=r"torch.jit.trace: .*enabled.*convert\(model, policy="),
    ):
        traced = torch.jit.trace(model, x)
    assert "torch_cudnn_ext" not in str(traced.inlined_graph)
