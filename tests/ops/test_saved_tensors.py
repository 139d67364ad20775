"""Gradients are right however what a forward saved for them is kept.

Hooks, checkpoints and compiled graphs give a backward copies: at other addresses, by way of the
host, or from a file. What it must know of its forward comes with the values.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
from conftest import misaligned, needs_cuda, newest
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import _C, knobs, ops
from torch_cudnn_ext.knobs import pushed

OPS = torch.ops.torch_cudnn_ext


class Case(NamedTuple):
    """An operator, and what decides of its algorithms."""

    call: Callable[[Tensor], Tensor]
    sizes: tuple[int, ...]
    family: str
    memory_format: torch.memory_format = torch.contiguous_format

    def input(self, device: str) -> Tensor:
        """Values that are the same at each call."""
        for gates in (3, 4):
            WEIGHTS[gates, device] = _weights(gates, device)
        values = torch.randn(self.sizes, generator=torch.Generator().manual_seed(3))
        x = values.to(device).contiguous(memory_format=self.memory_format)
        return x.requires_grad_()


WEIGHTS: dict[tuple[int, str], list[Tensor]] = {}  # by gates and kind of device


def _weights(gates: int, device: str, layers: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    sizes = [(gates * 8, 8), (gates * 8, 8), (gates * 8,), (gates * 8,)] * layers
    return [torch.randn(s, generator=generator).mul(0.3).to(device) for s in sizes]


def _lstm(x: Tensor, dropout: float = 0.0, batch_sizes: list[int] | None = None) -> Tensor:
    weights = WEIGHTS[4, x.device.type]
    return ops.lstm(x, None, weights, True, 2, dropout, True, batch_sizes=batch_sizes)[0]


def _gru(x: Tensor) -> Tensor:
    return ops.gru(x, None, WEIGHTS[3, x.device.type], True, 2, 0.3, True)[0]


def _ctc(x: Tensor) -> Tensor:
    targets = torch.tensor([[1, 2], [3, 3]], device=x.device)
    return ops.ctc_loss(x.log_softmax(2), targets, [6, 5], [2, 2], reduction="none")


LAST = torch.channels_last
COUPLED = {
    "dropout": Case(lambda x: ops.dropout(x, 0.4), (3, 5, 7), "dropout"),
    "dropout_last": Case(lambda x: ops.dropout(x, 0.4), (3, 5, 7, 2), "dropout", LAST),
    "max_pool": Case(lambda x: ops.max_pool2d(x, 3, 1), (2, 3, 7, 6), "pool"),
    "max_pool_last": Case(lambda x: ops.max_pool2d(x, 3, 2, 1), (2, 16, 7, 6), "pool", LAST),
    "max_pool1d": Case(lambda x: ops.max_pool1d(x, 3), (2, 3, 12), "pool"),
    "lstm": Case(_lstm, (5, 3, 8), "rnn"),
    "lstm_dropout": Case(lambda x: _lstm(x, 0.3), (5, 3, 8), "rnn"),
    "lstm_packed": Case(lambda x: _lstm(x, batch_sizes=[3, 2, 2]), (7, 8), "rnn"),
    "gru_dropout": Case(_gru, (5, 3, 8), "rnn"),
}
OTHERS = {
    "batch_norm": Case(lambda x: ops.batch_norm_train(x)[0], (4, 8, 5, 5), "batch_norm"),
    "batch_norm_last": Case(lambda x: ops.batch_norm_train(x)[0], (4, 8, 5, 5), "batch_norm", LAST),
    "layer_norm": Case(lambda x: ops.layer_norm(x, (8,)), (6, 8), "layer_norm"),
    "rms_norm": Case(lambda x: ops.rms_norm(x, (8,)), (6, 8), "layer_norm"),
    "instance_norm": Case(ops.instance_norm, (2, 8, 4, 4), "layer_norm"),
    "instance_norm_last": Case(ops.instance_norm, (2, 8, 4, 4), "layer_norm", LAST),
    "group_norm": Case(lambda x: ops.group_norm(x, 2), (2, 8, 4, 4), "layer_norm"),
    "avg_pool": Case(lambda x: ops.avg_pool2d(x, 3, 1), (2, 3, 7, 6), "pool"),
    "swish": Case(ops.silu, (6, 8), "activation"),
    "softmax": Case(lambda x: ops.softmax(x, 1), (6, 8), "softmax"),
    "lrn": Case(lambda x: ops.local_response_norm(x, 3), (2, 8, 4, 4), "lrn"),
    "max": Case(lambda x: ops.reduce(x, "max", 1), (6, 8), "reduce"),
    "conv": Case(
        lambda x: ops.conv2d(x, x[:, :, :2, :2].detach().contiguous()), (2, 8, 5, 5), "conv"
    ),
    "matmul": Case(lambda x: ops.gemm(x, x.detach().t()), (8, 8), "matmul"),
    "ctc": Case(_ctc, (6, 2, 5), "ctc"),
}
CASES = COUPLED | OTHERS


# --- ways of keeping a tensor ------------------------------------------------------------------


def _shifted() -> saved_tensors_hooks:
    """At an address that suits no other type than its own."""
    return saved_tensors_hooks(lambda t: misaligned(t.detach()), lambda t: t)


def _offloaded() -> saved_tensors_hooks:
    return saved_tensors_hooks(
        lambda t: (t.device, t.detach().cpu().clone()), lambda kept: kept[1].to(kept[0])
    )


def _pickled() -> saved_tensors_hooks:
    return saved_tensors_hooks(
        lambda t: (t.device, pickle.dumps(t.detach().cpu())),
        lambda kept: pickle.loads(kept[1]).to(kept[0]),
    )


def _halved() -> saved_tensors_hooks:
    """Floating-point numbers in half precision."""
    return saved_tensors_hooks(
        lambda t: (t.dtype, t.detach().to(torch.float16 if t.is_floating_point() else t.dtype)),
        lambda kept: kept[1].to(kept[0]).clone(),
    )


WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "shifted": _shifted,
    "offloaded": _offloaded,
    "pickled": _pickled,
    "halved": _halved,
}


# --- how the forward runs ----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Nothing compiled by one test is found by the next; cuDNN's maxima take part."""
    knobs.allow_reduced_range = True
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(backend: str, call: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if backend == "eager":
        return call
    function: Callable[[Tensor], Tensor] = torch.compile(call, backend=backend, fullgraph=True)
    return function


def _step(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    forward: str,
    backward: str,
    hooks: AbstractContextManager[Any],
) -> tuple[Tensor, Tensor]:
    """The result and the gradient of its squares, under a policy for each pass."""
    torch.manual_seed(1)
    leaf = x.detach().requires_grad_()
    with pushed(forward), hooks:
        y = function(leaf)
    with pushed(backward):
        y.square().sum().backward()
    assert leaf.grad is not None
    return y.detach(), leaf.grad


def _algorithms(op: str, device: str, policy: str = "") -> list[str]:
    """One of each name that can run the newest problem of an operator and pass."""
    if op.startswith("dropout") and device == "cuda":  # whose problems differ in their generator
        return ["aten:default", "legacy:default"]
    listed = _C.candidates(newest(op).problem, device, policy)
    names: dict[str, str] = {}
    for candidate in listed:
        if candidate["status"] == "ok":
            name = str(candidate["algorithm"])
            names.setdefault(name.partition("/")[0], name)
    return list(names.values())


def _tolerance(way: str) -> dict[str, float]:
    return {"rtol": 2e-2, "atol": 2e-2} if way == "halved" else {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("case", COUPLED)
def test_a_reserve_may_be_kept_elsewhere(case: str, backend: str, way: str, device: str) -> None:
    call, _, family, _ = CASES[case]
    x = CASES[case].input(device)
    _step(call, x, "", "", nullcontext())
    algorithms = _algorithms(f"{family}_fwd", device)
    assert len(algorithms) > 1
    function = _compiled(backend, call)
    for algorithm, other in zip(algorithms, algorithms[1:] + algorithms[:1], strict=True):
        pin = f"{family}={algorithm}"
        wanted = _step(call, x, pin, pin, nullcontext())
        # Another pin does not hold for a backward whose forward ran without it.
        got = _step(function, x, pin, f"{family}={other}", WAYS[way]())
        assert newest(f"{family}_bwd").algorithm == algorithm
        torch.testing.assert_close(got[0], wanted[0])
        torch.testing.assert_close(got[1], wanted[1], **_tolerance(way))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("case", OTHERS)
def test_what_else_is_saved_may_be_kept_elsewhere(
    case: str, backend: str, way: str, device: str
) -> None:
    call, _, family, _ = CASES[case]
    x = CASES[case].input(device)
    wanted = _step(call, x, "", "", nullcontext())
    last = "_bwd_filter" if family == "conv" else "_bwd"
    has_backward = family not in ("matmul", "reduce", "ctc")
    backward = f"{family}{last if has_backward else '_fwd'}"
    if family == "conv":
        backward = "conv_bwd_data"
    function = _compiled(backend, call)
    for algorithm in _algorithms(backward, device, "allow_tf32=false"):
        pin = f"{backward}={algorithm};allow_tf32=false"
        got = _step(function, x, pin, pin, WAYS[way]())
        assert newest(backward).algorithm == algorithm
        torch.testing.assert_close(got[0], wanted[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got[1], wanted[1], **_tolerance(way))


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["not_reentrant", "reentrant"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("case", COUPLED)
def test_checkpoints(case: str, backend: str, use_reentrant: bool, device: str) -> None:
    call, _, family, _ = CASES[case]
    x = CASES[case].input(device)
    _step(call, x, "", "", nullcontext())
    function = _compiled(backend, call)

    def checkpointed(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(function, x, use_reentrant=use_reentrant)
        return y

    for algorithm in _algorithms(f"{family}_fwd", device):
        pin = f"{family}={algorithm}"
        wanted = _step(call, x, pin, pin, nullcontext())
        # PyTorch's mask of a dropout depends on how its input is aligned.
        masked_anew = algorithm == "aten:default" and family == "dropout" and device == "cuda"
        hooks = _offloaded() if masked_anew else _shifted()
        torch.testing.assert_close(_step(checkpointed, x, pin, pin, hooks), wanted)


@pytest.mark.parametrize("case", ["dropout", "max_pool_last", "lstm"])
def test_switches_of_pytorchs_may_change_between_the_passes_of_a_checkpoint(
    case: str, device: str
) -> None:
    if case == "lstm" and device == "cuda":
        pytest.skip("PyTorch's own LSTM runs there, which obeys the switch of the moment")
    call = CASES[case].call
    x = CASES[case].input(device)
    wanted = _step(call, x, "", "", nullcontext())
    torch.manual_seed(1)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        y = checkpoint(call, x, use_reentrant=False)
    (dx,) = torch.autograd.grad(y.square().sum(), x)
    torch.testing.assert_close((y.detach(), dx), wanted)


@needs_cuda
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ["max_pool", "max_pool_last", "lstm"])
def test_inductor_s_cuda_graphs(case: str, way: str) -> None:
    call, _, family, _ = CASES[case]
    x = CASES[case].input("cuda")
    _step(call, x, "", "", nullcontext())
    for algorithm in _algorithms(f"{family}_fwd", "cuda"):
        torch._dynamo.reset()
        function = torch.compile(call, mode="reduce-overhead", fullgraph=True)
        pin = f"{family}={algorithm}"
        wanted = _step(call, x, pin, pin, nullcontext())
        for _ in range(4):  # once as it is, once recorded, then from the recording
            torch.compiler.cudagraph_mark_step_begin()
            got = _step(function, x, pin, "", WAYS[way]())
            torch.testing.assert_close(got, wanted, **_tolerance(way))


# --- the writer --------------------------------------------------------------------------------


def test_a_writer_has_no_elements_and_names_the_policy(device: str) -> None:
    x = torch.randn(2, 3, 6, 6, device=device)
    windows = ([2, 2], [2, 2], [0, 0], [1, 1], False, False)
    first, second = _algorithms_of_a_maximum(device)
    writers = [
        OPS._max_pool_train(x, *windows, policy=policy)[2] for policy in (first, second, first)
    ]
    for writer in writers:
        assert writer.numel() == 0 and writer.dim() == 2 and writer.device == x.device
        assert writer.untyped_storage().nbytes() == 0
    assert writers[0].shape == writers[2].shape != writers[1].shape
    nothing = OPS._max_pool_train(x[:0], *windows)[2]
    assert nothing.shape == (0, 0)


def _algorithms_of_a_maximum(device: str) -> tuple[str, str]:
    ops.max_pool2d(torch.randn(2, 3, 6, 6, device=device, requires_grad=True), 2)
    first, second = _algorithms("pool_fwd", device)[:2]
    return first, second


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 12345), "writer has sizes .0, 12345., which names no algorithm .* this process"),
        ((0,), "writer has sizes .0., wanted .0, number."),
        ((0, 3, 4), "writer has sizes .0, 3, 4., wanted .0, number."),
        ((1, 5), "writer has sizes .1, 5., wanted .0, number."),
    ],
)
def test_an_unknown_writer_is_refused(sizes: tuple[int, ...], message: str, device: str) -> None:
    writer = torch.empty(sizes, device=device)
    x = torch.randn(1, 1, 4, 4, device=device)
    windows = ([2, 2], [2, 2], [0, 0], [1, 1], False, False)
    y, reserve, _ = OPS._max_pool_train(x, *windows)
    with pytest.raises(ValueError, match=f"_max_pool_backward: {message}"):
        OPS._max_pool_backward(y, x, y, reserve, writer, False, *windows)
    kept, mask, _ = OPS._dropout(x, 0.5)
    with pytest.raises(ValueError, match=f"dropout_backward: {message}"):
        OPS.dropout_backward(kept, mask, writer, 0.5, list(x.stride()))
    params = _weights(4, device, 1)
    steps = torch.randn(2, 1, 8, device=device)
    rest = (2, 2, 1, 0.0, False, False)
    out, _, _, left, _ = OPS._rnn(steps, [], None, None, params, *rest, True)
    with pytest.raises(ValueError, match=f"_rnn_backward: {message}"):
        OPS._rnn_backward(out, None, None, steps, [], None, None, params, out, left, writer, *rest)


@pytest.mark.parametrize("algorithm", ["aten:default", "cpu:threshold", "legacy:default"])
def test_a_mask_of_another_size_is_refused(algorithm: str, device: str) -> None:
    x = torch.ones(100, device=device)
    if algorithm.startswith("cpu") != (device == "cpu") and algorithm != "aten:default":
        pytest.skip("an algorithm of the other device")
    y, mask, writer = OPS._dropout(x, 0.5, policy=algorithm)
    for wrong in (mask[:1], mask[: mask.numel() // 2], mask[:0]):
        with pytest.raises(ValueError, match="reserve has .* bytes, wanted"):
            OPS.dropout_backward(y, wrong, writer, 0.5, [1])
