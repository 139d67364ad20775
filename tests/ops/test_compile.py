"""torch.compile keeps the operators whole, with their policies, in every pass."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import newest
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import _C, convert, declined, enabled, ops
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.ops.family import families

OPS = torch.ops.torch_cudnn_ext


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled by one test is found by the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _random(sizes: tuple[int, ...], device: str) -> Tensor:
    return torch.randn(sizes, device=device, dtype=torch.float64, requires_grad=True)


def _layer(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    y: Tensor = OPS.conv2d.default(x, w, bias, padding=[1, 1], policy="aten:default")
    return y.relu()


def _expected(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, w, bias, padding=1).relu()


def _assert_same(got: Callable[..., Tensor], wanted: Callable[..., Tensor], *v: Tensor) -> None:
    """Equal values and gradients."""
    ours, theirs = got(*v), wanted(*v)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(
        torch.autograd.grad(ours.square().sum(), v), torch.autograd.grad(theirs.square().sum(), v)
    )


class Graphs:
    """A compiler backend that keeps the graphs of both directions."""

    def __init__(self) -> None:
        self.forward: list[torch.fx.GraphModule] = []
        self.backward: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(
            fw_compiler=self._keep(self.forward), bw_compiler=self._keep(self.backward)
        )

    @staticmethod
    def _keep(graphs: list[torch.fx.GraphModule]) -> Callable[..., Any]:
        def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        return compiler


def _calls(graphs: list[torch.fx.GraphModule]) -> dict[str, str | None]:
    """Operators of ours in the graphs, with their policies."""
    return {
        node.target.name().removeprefix("torch_cudnn_ext::"): node.kwargs.get("policy")
        for graph in graphs
        for node in graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
        and node.target.namespace == "torch_cudnn_ext"
    }


def test_operators_stay_whole_in_both_graphs(device: str) -> None:
    graphs = Graphs()
    x, w, bias = _random((2, 4, 6, 6), device), _random((4, 4, 3, 3), device), _random((4,), device)
    compiled = torch.compile(_layer, fullgraph=True, backend=graphs.backend)
    _assert_same(compiled, _expected, x, w, bias)
    forward, backward = _calls(graphs.forward), _calls(graphs.backward)
    assert set(forward) <= {"conv2d", "convolution"} and len(forward) == 1
    assert set(backward) == {"convolution_backward_input", "convolution_backward_weight"}
    assert {*forward.values(), *backward.values()} == {"aten:default"}
    targets = {
        str(node.target)
        for graph in graphs.forward + graphs.backward
        for node in graph.graph.nodes
        if node.op == "call_function"
    }
    assert not any(target.startswith("aten.convolution") for target in targets), targets


COMPILED = {
    "conv1d": ((2, 4, 9), (6, 4, 3)),
    "conv2d": ((2, 4, 6, 6), (6, 4, 3, 3)),
    "conv3d": ((1, 4, 4, 4, 4), (6, 4, 2, 2, 2)),
    "conv_transpose1d": ((2, 4, 9), (4, 6, 3)),
    "conv_transpose2d": ((2, 4, 6, 6), (4, 6, 3, 3)),
    "conv_transpose3d": ((1, 4, 4, 4, 4), (4, 6, 2, 2, 2)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_aot_eager(name: str, device: str) -> None:
    x_sizes, w_sizes = COMPILED[name]
    x, w, bias = _random(x_sizes, device), _random(w_sizes, device), _random((6,), device)
    op = getattr(OPS, name).default
    compiled = torch.compile(lambda x, w, b: op(x, w, b).sin(), fullgraph=True, backend="aot_eager")
    _assert_same(compiled, lambda x, w, b: getattr(F, name)(x, w, b).sin(), x, w, bias)


def test_a_policy_may_be_a_mapping(device: str) -> None:
    pin = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}[device]
    x, w = _random((2, 4, 7, 7), device), _random((6, 4, 3, 3), device)
    policy = {"fwd": pin}
    torch.compile(lambda a: ops.conv2d(a, w, policy=policy), fullgraph=True, backend="eager")(x)
    assert newest("conv_fwd").algorithm.startswith(pin)


def test_primitives_with_accumulation(device: str) -> None:
    x, w, z = (
        _random((2, 4, 6, 6), device),
        _random((4, 4, 3, 3), device),
        _random((2, 4, 4, 4), device),
    )
    one = ([1, 1], [0, 0], [1, 1])

    def ours(x: Tensor, w: Tensor, z: Tensor) -> Tensor:
        y: Tensor = OPS.convolution.default(
            x, w, None, *one, False, [0, 0], 1, z=z, alpha=0.5, beta=2.0
        )
        return y.sin()

    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    _assert_same(compiled, lambda x, w, z: (0.5 * F.conv2d(x, w) + 2.0 * z).sin(), x, w, z)


def test_out_is_mutated_in_a_compiled_function(device: str) -> None:
    x, w = _random((2, 4, 6, 6), device).detach(), _random((4, 4, 3, 3), device).detach()
    out = torch.ones(2, 4, 4, 4, device=device, dtype=torch.float64)
    one = ([1, 1], [0, 0], [1, 1])

    def ours(x: Tensor, w: Tensor, out: Tensor) -> Tensor:
        OPS.convolution_out.default(x, w, None, *one, False, [0, 0], 1, beta=3.0, out=out)
        return out * 2

    doubled = torch.compile(ours, fullgraph=True, backend="aot_eager")(x, w, out)
    expected = F.conv2d(x, w) + 3.0
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(doubled, 2 * expected)


def test_dynamic_shapes_compile_once(device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(_layer, fullgraph=True, backend=counter, dynamic=True)
    w, bias = _random((4, 4, 3, 3), device), _random((4,), device)
    for batch, height, width in ((2, 6, 7), (3, 9, 5), (5, 8, 6)):
        _assert_same(compiled, _expected, _random((batch, 4, height, width), device), w, bias)
    assert counter.frame_count == 1


def test_pins_take_effect_in_a_compiled_function(device: str) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    x, w = _random((2, 8, 8, 8), device).detach(), _random((8, 8, 3, 3), device).detach()
    problem = _C.convolution_problem("conv_fwd", x, w, [1, 1], [1, 1], [1, 1], 1)
    algorithms = [c["algorithm"] for c in _C.candidates(problem, device) if c["status"] == "ok"][:2]
    assert len(algorithms) == 2

    @torch.compile(fullgraph=True, backend=counter)
    def compiled(x: Tensor, w: Tensor, policy: str | None) -> Tensor:
        y: Tensor = OPS.conv2d.default(x, w, padding=[1, 1], policy=policy)
        return y

    def ran(policy: str | None) -> str:
        torch.testing.assert_close(compiled(x, w, policy), F.conv2d(x, w, padding=1))
        return newest("conv_fwd").algorithm

    # Knobs are read when the graph runs.
    for algorithm in [*algorithms, algorithms[0]]:
        with pushed(f"fwd={algorithm}"):
            assert ran(None) == algorithm
    assert counter.frame_count == 1
    # An argument is part of the graph.
    for algorithm in [*algorithms, algorithms[0]]:
        assert ran(f"fwd={algorithm}") == algorithm
    assert counter.frame_count == 3


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_inductor(dynamic: bool, device: str) -> None:
    w, bias = _random((4, 4, 3, 3), device), _random((4,), device)
    compiled = torch.compile(_layer, fullgraph=True, backend="inductor", dynamic=dynamic)
    for batch in (2, 3) if dynamic else (2,):
        x = _random((batch, 4, 6, 6), device)
        _assert_same(compiled, _expected, x, w, bias)
        if dynamic:
            continue
        # float32: results on float64 data are always contiguous here.
        last = x.detach().float().to(memory_format=torch.channels_last)
        got = compiled(last, w.float(), bias.float())
        assert got.stride() == _expected(last, w.float(), bias.float()).stride()
    assert newest("conv_fwd").algorithm == "aten:default"


def _calls_of_each_node(device: str) -> dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]]:
    """One call of each kind of autograd node, and its inputs."""
    x, vector = _random((2, 4, 8, 8), device), _random((4,), device)
    filters = _random((6, 4, 3, 3), device)
    return {
        "conv": (
            lambda *v: ops.conv2d(*v, padding=1, stride=2),
            (x, filters, _random((6,), device)),
        ),
        "conv_weight": (lambda *v: ops.conv2d(v[0].detach(), v[1]), (x, filters)),
        "conv_transpose": (ops.conv_transpose2d, (x, _random((4, 3, 3, 3), device))),
        "backward_input": (
            lambda y, w: ops.convolution_backward_input(y, w, x.shape, padding=1),
            (_random((2, 6, 8, 8), device), filters),
        ),
        "relu": (ops.relu, (x,)),
        "max_pool": (lambda v: ops.max_pool2d(v, 2), (x,)),
        "avg_pool": (lambda v: ops.avg_pool2d(v, 2), (x,)),
        "batch_norm": (
            lambda *v: ops.batch_norm(v[0], None, None, *v[1:], True),
            (x, vector, vector),
        ),
        "group_norm": (lambda *v: ops.group_norm(v[0], 2, v[1]), (x, vector)),
        "softmax": (lambda v: ops.softmax(v, 1), (x,)),
        "linear": (ops.linear, (x, _random((3, 8), device))),
        "sum": (lambda v: ops.reduce(v, "add", 1), (x,)),
        "prod": (lambda v: ops.prod(v, 1), (x,)),
        "lrn": (lambda v: ops.local_response_norm(v, 3), (x,)),
    }


@pytest.mark.parametrize("call", _calls_of_each_node("cpu"))
def test_compiled_autograd(call: str, device: str) -> None:
    function, inputs = _calls_of_each_node(device)[call]

    def gradients(compiled: bool) -> list[Tensor | None]:
        leaves = [t.detach().requires_grad_() for t in inputs]
        loss = function(*leaves).square().sum()
        compiler = torch.compile(backend="aot_eager")
        with compiled_autograd._enable(compiler) if compiled else nullcontext():
            loss.backward()
        return [leaf.grad for leaf in leaves]

    counters.clear()
    compiled = gradients(True)
    assert counters["compiled_autograd"]["captures"] == 1
    torch.testing.assert_close(compiled, gradients(False))


@torch._dynamo.config.patch(compiled_autograd=True)  # type: ignore[attr-defined]
def test_compiled_autograd_of_an_unmodified_model(device: str) -> None:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 5)).double().to(device)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, device=device)

    def gradients() -> list[Tensor | None]:
        torch._dynamo.reset()
        model.zero_grad()

        @torch.compile(backend="aot_eager")
        def step(x: Tensor) -> Tensor:
            loss: Tensor = F.log_softmax(model(x), 1).square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        step(x)
        return [p.grad for p in model.parameters()]

    plain = gradients()
    _C.reset_declined()
    with enabled(compiled="all"):
        counters.clear()
        torch.testing.assert_close(gradients(), plain)
        assert counters["compiled_autograd"]["captures"] == 1
        assert declined() == {}
        assert _C.last_decision("conv_bwd_filter") is not None
    torch.testing.assert_close((convert(model), gradients())[1], plain)


# --- random operators --------------------------------------------------------------------------


def _two_dropouts(x: Tensor) -> Tensor:
    return ops.dropout(x) - ops.dropout(x)


def _two_networks(x: Tensor) -> Tensor:
    eye = torch.eye(8, dtype=x.dtype, device=x.device)
    params = [eye, torch.zeros_like(eye)] * 2

    def run() -> Tensor:
        return ops.rnn_relu(x, None, params, False, 2, 0.5, True, policy="cpu:unrolled")[0]

    return run() - run()


@pytest.mark.parametrize("function", [_two_dropouts, _two_networks])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_two_masks_stay_two(function: Callable[[Tensor], Tensor], backend: str) -> None:
    x = torch.ones(3, 4, 8, requires_grad=True)
    assert torch.compile(function, backend=backend)(x).count_nonzero() > 0


def test_the_compiler_knows_all_random_operators() -> None:
    prefix = "torch_cudnn_ext::"
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(prefix)]
    packets = {getattr(OPS, name.removeprefix(prefix).partition(".")[0]) for name in names}
    tagged = {
        packet
        for packet in packets
        if torch.Tag.nondeterministic_seeded in getattr(packet, packet.overloads()[0]).tags
    }
    described = {getattr(OPS, name) for family in families() for name in family.random}
    assert tagged == described != set()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_checkpoint_repeats_the_masks_of_a_recurrent_network(backend: str) -> None:
    eye = torch.eye(8)
    params = [eye, torch.zeros_like(eye)] * 2

    def run(x: Tensor) -> Tensor:
        result: Tensor = ops.rnn_relu(x, None, params, False, 2, 0.5, True)[0]
        return result

    def checkpointed(x: Tensor) -> Tensor:
        result: Tensor = checkpoint(run, x, use_reentrant=False)
        return result

    x = torch.ones(3, 4, 8, requires_grad=True)
    y = torch.compile(checkpointed, backend=backend)(x)
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx, y)  # both are what the masks kept, by identities


def _pool(x: Tensor) -> Tensor:
    return ops.max_pool2d(x, 3, 1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    ("around_forward", "around_backward"),
    [("", "pool_bwd=cpu:unfold"), ("pool=cpu:unfold", ""), ("pool=cpu:taps", "")],
)
def test_a_compiled_backward_runs_the_algorithm_of_its_forward(
    backend: str, around_forward: str, around_backward: str
) -> None:
    x = torch.randn(2, 3, 6, 6, requires_grad=True)
    (wanted,) = torch.autograd.grad(F.max_pool2d(x, 3, 1).square().sum(), x)
    compiled = torch.compile(_pool, backend=backend)
    for _ in range(2):
        with pushed(around_forward):
            y = compiled(x).square().sum()
        with pushed(around_backward):
            (got,) = torch.autograd.grad(y, x)
        torch.testing.assert_close(got, wanted)


def test_a_compiled_backward_of_masks_and_states_runs_the_algorithm_of_its_forward() -> None:
    x = torch.randn(4, 5, 6, requires_grad=True)
    weights = [torch.randn(24, 6), torch.randn(24, 6), torch.randn(24), torch.randn(24)]
    states = (torch.zeros(1, 5, 6), torch.zeros(1, 5, 6))

    def masked(x: Tensor) -> Tensor:
        return ops.dropout(x, 0.5)

    def recurrent(x: Tensor) -> Tensor:
        y: Tensor = ops.lstm(x, states, weights, True, 1, 0.0, False, False, False)[0]
        return y

    with pushed("dropout=cpu:threshold"):
        y = torch.compile(masked, backend="aot_eager")(x)
    (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got * x, y)
    (wanted,) = torch.autograd.grad(recurrent(x).sum(), x)
    with pushed("rnn=cpu:fused"):
        y = torch.compile(recurrent, backend="aot_eager")(x)
    with pushed("rnn=cpu:unrolled"):
        (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got, wanted)
