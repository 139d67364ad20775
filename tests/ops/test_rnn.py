"""Recurrent networks: PyTorch's values, gradients, batches, states and errors."""

import copy
import itertools
import math
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from conftest import check_compiles, misaligned, needs_cuda, newest
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence
from torch.utils.checkpoint import checkpoint

import torch_cudnn_ext as tce
from torch_cudnn_ext import _C, knobs, ops
from torch_cudnn_ext import nn as ours
from torch_cudnn_ext._workload.network import network_layers

KINDS = ("lstm", "gru", "tanh", "relu")
CPU_ALGORITHMS = ("aten:default", "cpu:fused", "cpu:unrolled")


def _pair(
    kind: str, *args: Any, device: str = "cpu", dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[ours.Recurrent, torch.nn.RNNBase]:
    """Our module and PyTorch's, with the same parameters."""
    options |= {"device": device, "dtype": dtype}
    extra = {k: options.pop(k) for k in ("policy", "remember_states") if k in options}
    mine: ours.Recurrent
    theirs: torch.nn.RNNBase
    if kind == "lstm":
        theirs, mine = torch.nn.LSTM(*args, **options), ours.LSTM(*args, **options, **extra)
    elif kind == "gru":
        theirs, mine = torch.nn.GRU(*args, **options), ours.GRU(*args, **options, **extra)
    else:
        options["nonlinearity"] = kind
        theirs, mine = torch.nn.RNN(*args, **options), ours.RNN(*args, **options, **extra)
    mine.load_state_dict(theirs.state_dict())
    return mine, theirs


def _flat(value: Any) -> list[Tensor]:
    """The tensors of a result or of states, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        return [value.data]
    return [] if value is None else [t for item in value for t in _flat(item)]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_batch_of_vectors(kind: str, device: str) -> None:
    mine, _ = _pair(kind, 3, 4, num_layers=2, device=device)
    x = torch.randn(5, 2, 3, dtype=torch.float64, device=device, requires_grad=True)
    y, states = mine(x)
    inputs = (x, *mine.parameters())
    for result in (y, *_flat(states)):
        basis = torch.randn(3, *result.shape, dtype=torch.float64, device=device)
        batch = torch.autograd.grad(result, inputs, basis, retain_graph=True, is_grads_batched=True)
        for i in range(3):
            one = torch.autograd.grad(result, inputs, basis[i], retain_graph=True)
            torch.testing.assert_close(tuple(t[i] for t in batch), one)
    mine.dropout = 0.5
    y, _ = mine(x)
    with pytest.raises(NotImplementedError, match="a batch of its gradients .* wanted dropout=0"):
        torch.autograd.grad(y, x, torch.ones_like(y).expand(3, *y.shape), is_grads_batched=True)


def _states(module: torch.nn.RNNBase, batch: int | None, like: Tensor) -> Any:
    layers = module.num_layers * (2 if module.bidirectional else 1)
    sizes = [module.proj_size or module.hidden_size, module.hidden_size]
    states = tuple(
        torch.randn(*((layers,) if batch is None else (layers, batch)), size)
        .to(like)
        .requires_grad_()
        for size in sizes[: 2 if module.mode == "LSTM" else 1]
    )
    return states if module.mode == "LSTM" else states[0]


def _check(mine: ours.Recurrent, theirs: torch.nn.RNNBase, input: Any, hx: Any) -> None:
    """Values and all gradients of both."""
    got, wanted = mine(input, hx), theirs(input, hx)
    for a, b in zip(_flat(got), _flat(wanted), strict=True):
        torch.testing.assert_close(a, b)
    weights = [torch.randn_like(t) for t in _flat(wanted)]
    found = []
    for module, result in ((mine, got), (theirs, wanted)):
        leaves = [*_flat(input), *_flat(hx), *module.parameters()]
        found.append(torch.autograd.grad(_flat(result), leaves, weights))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def _grid() -> Iterator[Any]:
    for kind, layers, both, bias, given in itertools.product(
        KINDS, (1, 2), (False, True), (False, True), (False, True)
    ):
        options = {"num_layers": layers, "bidirectional": both, "bias": bias}
        yield pytest.param(kind, options, given, id=f"{kind}-{layers}-{both}-{bias}-{given}")
    for layers, both, bias in itertools.product((1, 2), (False, True), (False, True)):
        options = {"num_layers": layers, "bidirectional": both, "bias": bias, "proj_size": 3}
        yield pytest.param("lstm", options, True, id=f"proj-{layers}-{both}-{bias}")


@pytest.mark.parametrize(("kind", "options", "given"), list(_grid()))
def test_values_and_gradients_are_pytorchs(
    kind: str, options: dict[str, Any], given: bool, device: str
) -> None:
    mine, theirs = _pair(kind, 5, 4, device=device, **options)
    algorithms = CPU_ALGORITHMS if device == "cpu" else (None,)
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    hx = _states(mine, 3, x) if given else None
    for algorithm in algorithms:
        mine.policy = algorithm
        _check(mine, theirs, x, hx)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_first_and_unbatched(kind: str, batch_first: bool, device: str) -> None:
    mine, theirs = _pair(
        kind, 5, 4, num_layers=2, bidirectional=True, batch_first=batch_first, device=device
    )
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    _check(mine, theirs, x, _states(mine, 6 if batch_first else 3, x))
    one = torch.randn(6, 5, dtype=torch.float64, device=device, requires_grad=True)
    _check(mine, theirs, one, _states(mine, None, one))
    _check(mine, theirs, one, None)
    assert mine(x)[0].stride() == theirs(x)[0].stride()


@pytest.mark.parametrize(
    "lengths",
    [(5, 3, 3, 1), (2, 6, 1), (4, 4, 4), (3,)],
    ids=["sorted", "unsorted", "equal", "one"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences(kind: str, lengths: tuple[int, ...], device: str) -> None:
    mine, theirs = _pair(kind, 5, 4, num_layers=2, bidirectional=True, device=device)
    sequences = [torch.randn(n, 5, dtype=torch.float64, device=device) for n in lengths]
    packed = pack_sequence(sequences, enforce_sorted=False)
    packed = PackedSequence(
        packed.data.detach().requires_grad_(),
        packed.batch_sizes,
        packed.sorted_indices,
        packed.unsorted_indices,
    )
    for algorithm in CPU_ALGORITHMS if device == "cpu" else (None,):
        mine.policy = algorithm
        _check(mine, theirs, packed, None)
        _check(mine, theirs, packed, _states(mine, len(lengths), sequences[0]))
    more = _states(mine, len(lengths) + 2, sequences[0])  # of which those in the order are taken
    for got, wanted in zip(_flat(mine(packed, more)), _flat(theirs(packed, more)), strict=True):
        torch.testing.assert_close(got, wanted)
    if len(lengths) > 1:
        with pytest.raises(RuntimeError, match="Expected hidden.* size .*, got "):
            mine(packed, _states(mine, len(lengths) - 1, sequences[0]))
    assert ("lengths=full" in newest("rnn_fwd").problem) == (len(set(lengths)) == 1)


@pytest.mark.parametrize("stride", [3, 0, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_of_one_feature_have_any_stride(
    kind: str, stride: int, device: str
) -> None:
    mine, theirs = _pair(kind, 1, 3, device=device)
    data = torch.empty_strided((3, 1), (1, stride), dtype=torch.float64, device=device)
    packed = PackedSequence(data.normal_().requires_grad_(), torch.tensor([2, 1]))
    for algorithm in CPU_ALGORITHMS if device == "cpu" else (None,):
        mine.policy = algorithm
        _check(mine, theirs, packed, None)


@pytest.mark.parametrize("name", ["skip_input", "remember_states"])
def test_what_a_module_does_besides_is_a_flag(name: str) -> None:
    with pytest.raises(TypeError, match=f"LSTM: argument {name}: got 'no' .str., wanted a bool"):
        ours.LSTM(4, 4, **{name: "no"})


def test_the_problems_of_packed_sequences_are_found_without_running(device: str) -> None:
    packed = pack_sequence([torch.randn(n, 5, device=device) for n in (5, 3)])
    for model in (torch.nn.LSTM(5, 4), ours.GRU(5, 4)):
        work = network_layers(model.to(device), (packed,), ("fwd",))
        (layer,) = work.layers
        assert "x=f32[5,2,5]" in layer.problem and "lengths=packed" in layer.problem
        assert not work.not_profiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_lower_precision(kind: str, dtype: torch.dtype, device: str) -> None:
    mine, theirs = _pair(kind, 16, 16, num_layers=2, dtype=dtype, device=device)
    x = torch.randn(7, 4, 16, device=device).to(dtype)
    for algorithm in CPU_ALGORITHMS if device == "cpu" else (None,):
        mine.policy = algorithm
        for a, b in zip(_flat(mine(x)), _flat(theirs(x)), strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_views_and_empty_batches(device: str) -> None:
    mine, theirs = _pair("lstm", 5, 4, device=device)
    x = torch.randn(5, 3, 6, dtype=torch.float64, device=device).transpose(0, 2)
    _check(mine, theirs, x.detach().requires_grad_(), None)
    empty = torch.zeros(6, 0, 5, dtype=torch.float64, device=device, requires_grad=True)
    y, (hy, cy) = mine(empty)
    assert y.shape == (6, 0, 4)
    assert hy.shape == cy.shape == (1, 0, 4)
    y.sum().backward()
    gradients = [parameter.grad for parameter in mine.parameters()]
    assert all(grad is not None and not bool(grad.count_nonzero()) for grad in gradients)


def test_some_inputs_without_gradients(device: str) -> None:
    mine, theirs = _pair("gru", 5, 4, num_layers=2, device=device)
    for module in (mine, theirs):
        module.requires_grad_(False)
        [*module.parameters()][-1].requires_grad_()
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device)
    weight = torch.randn(2, 3, 4, dtype=torch.float64, device=device)
    grads = [
        torch.autograd.grad(module(x)[1], [*module.parameters()][-1], weight)[0]
        for module in (mine, theirs)
    ]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("algorithm", CPU_ALGORITHMS)
@pytest.mark.parametrize("kind", [*KINDS, "proj"])
def test_gradients_of_gradients(kind: str, algorithm: str) -> None:
    options: dict[str, Any] = {"proj_size": 2} if kind == "proj" else {}
    name = "lstm" if kind == "proj" else kind
    mine, _ = _pair(name, 2, 3, num_layers=2, bidirectional=True, policy=algorithm, **options)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    hx = _flat(_states(mine, 2, x))

    def run(*inputs: Tensor) -> list[Tensor]:
        states = inputs[1 : 1 + len(hx)]
        params = list(inputs[1 + len(hx) :])
        options = (True, 2, 0.0, True, True)
        if mine.mode == "LSTM":
            return list(ops.lstm(inputs[0], states, params, *options, policy=algorithm))
        function = {"gru": ops.gru, "tanh": ops.rnn_tanh, "relu": ops.rnn_relu}[name]
        return list(function(inputs[0], states[0], params, *options, policy=algorithm))

    inputs = [x, *hx, *mine.parameters()]
    assert torch.autograd.gradcheck(run, inputs)
    if algorithm == "cpu:fused":
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


def _reference_of_skip(params: list[Tensor], x: Tensor, gates: int) -> list[Tensor]:
    identity = torch.eye(x.size(-1), dtype=x.dtype, device=x.device).repeat(gates, 1)
    return [identity, *params]


@pytest.mark.parametrize("algorithm", CPU_ALGORITHMS)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_skipped_input_and_single_bias(cell: str, algorithm: str) -> None:
    gates = {"lstm": 4, "gru": 3, "rnn_tanh": 1}[cell]
    x = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(gates * 4, 4, dtype=torch.float64, requires_grad=True)
    b = torch.randn(gates * 4, dtype=torch.float64, requires_grad=True)
    mine, theirs = getattr(ops, cell), getattr(torch._VF, cell)
    zeros = torch.zeros(1, 3, 4, dtype=torch.float64)
    hx = [zeros, zeros] if cell == "lstm" else zeros
    got = mine(x, hx, [w, b], skip_input=True, single_bias=True, policy=algorithm)
    params = _reference_of_skip([w, b, torch.zeros_like(b)], x, gates)
    wanted = theirs(x, hx, params, True, 1, 0.0, True, False, False)
    grad = torch.randn_like(wanted[0])
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(
        torch.autograd.grad(got[0], (x, w, b), grad),
        torch.autograd.grad(wanted[0], (x, w, b), grad),
    )


@pytest.mark.parametrize("function", [ops.lstm, ops.gru], ids=["lstm", "gru"])
@pytest.mark.parametrize("features", [4, 6, 4096])
def test_an_input_that_is_skipped_has_the_hidden_size(
    function: Callable[..., Any], features: int, device: str
) -> None:
    lstm = function is ops.lstm
    x, h = torch.randn(3, 2, features, device=device), torch.zeros(1, 2, 5, device=device)
    gates = 5 * (4 if lstm else 3)
    params = [torch.randn(s, device=device) for s in ((gates, 5), (gates,), (gates,))]
    for t in (x, x.to("meta")):
        moved = [p.to(t.device) for p in params]
        state = h.to(t.device)
        states = [state, state] if lstm else state
        with pytest.raises(ValueError, match="wanted hidden_size=5 features since skip_input"):
            function(t, states, moved, True, 1, 0.0, False, False, False, skip_input=True)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_may_lie_anywhere(kind: str, device: str) -> None:
    mine, theirs = _pair(kind, 3, 5, device=device, dtype=torch.float32)
    x = torch.randn(4, 2, 3, device=device)
    dy = torch.randn(4, 2, 5, device=device)
    x, dy = misaligned(x).requires_grad_(), misaligned(dy)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        got, wanted = mine(x)[0], theirs(x)[0]
        torch.testing.assert_close(got, wanted)
        for one, other in zip(
            torch.autograd.grad(got, (x, *mine.parameters()), dy),
            torch.autograd.grad(wanted, (x, *theirs.parameters()), dy),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert "align=" not in newest("rnn_bwd").problem


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_dropout(kind: str, device: str) -> None:
    mine, _ = _pair(kind, 8, 64, num_layers=2, dropout=0.25, device=device, dtype=torch.float32)
    x = torch.randn(20, 16, 8, device=device, requires_grad=True)
    for algorithm in CPU_ALGORITHMS if device == "cpu" else (None, "legacy:standard"):
        mine.policy = algorithm
        torch.manual_seed(3)
        first = [mine(x)[0] for _ in range(2)]
        assert not torch.equal(*first)
        torch.manual_seed(3)
        again = [mine(x)[0] for _ in range(2)]
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b)
            grad = torch.ones_like(a)
            torch.testing.assert_close(
                torch.autograd.grad(a, x, grad), torch.autograd.grad(b, x, grad)
            )
        # What is dropped comes back scaled: on average the second layer sees the same.
        mine.eval()
        assert torch.equal(mine(x)[0], mine(x)[0])
        mine.train()


@needs_cuda
def test_dropouts_states_are_one_buffer_for_all_lengths() -> None:
    module = ours.LSTM(8, 16, num_layers=2, dropout=0.25, device="cuda", policy="legacy:standard")

    def allocated(steps: int) -> int:
        module(torch.randn(steps, 4, 8, device="cuda"))[0].sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = allocated(3)  # an H200's states are 13 MB
    assert max(allocated(steps) for steps in range(4, 9)) - first < 2**22


@pytest.mark.parametrize("algorithm", CPU_ALGORITHMS)
def test_dropout_drops_its_share(algorithm: str) -> None:
    # Both layers pass on what they are given, so a zero at the end was dropped between them.
    n = 128
    options = (False, 2, 0.25, True)
    eye = torch.eye(n)
    params = [eye, torch.zeros(n, n), eye, torch.zeros(n, n)]
    x = torch.ones(50, 8, n, requires_grad=True)
    y, _ = ops.rnn_relu(x, None, params, *options, policy=algorithm)
    assert abs(float((y == 0).float().mean()) - 0.25) < 0.01
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / 0.75))
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx, y)  # through the same mask
    with torch.no_grad():
        y, _ = ops.rnn_relu(x, None, params, *options, policy=algorithm)
    assert abs(float((y == 0).float().mean()) - 0.25) < 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_pytorchs_algorithm_drops_what_pytorch_drops(kind: str, mode: Any) -> None:
    mine, theirs = _pair(kind, 5, 4, num_layers=3, dropout=0.5, bidirectional=True)
    mine.policy = "aten:default"
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    results = []
    for module in (mine, theirs):
        torch.manual_seed(3)
        with mode():
            results.append(module(x)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("op", ["rnn_fwd", "rnn_bwd"])
def test_training_is_measured_in_any_mode(op: str, mode: Any, device: str) -> None:
    problem = f"{op} cell=lstm x=f32[3,2,4]:nchw hidden=4 layers=1 train=true"
    with mode():
        rows = _C.measure(problem, device)
    assert {row["status"] for row in rows if row["algorithm"] == "aten:default"} == {"ok"}


def test_tuning_leaves_the_random_numbers_alone(device: str) -> None:
    mine, _ = _pair("lstm", 4, 4, num_layers=2, dropout=0.5, device=device, dtype=torch.float32)
    x = torch.randn(3, 2, 4, device=device)
    problem = "rnn_fwd cell=lstm x=f32[3,2,4]:nchw hidden=4 layers=2 dropout=0.5 train=true"
    torch.manual_seed(1)
    wanted = torch.rand(4, device=device)
    torch.manual_seed(1)
    _C.measure(problem, device, "", min_samples=1)
    assert torch.equal(torch.rand(4, device=device), wanted)
    assert mine(x)[0].shape == (3, 2, 4)


def test_pins_are_obeyed_by_both_passes(device: str) -> None:
    mine, _ = _pair("lstm", 16, 16, device=device, dtype=torch.float32)
    x = torch.randn(4, 8, 16, device=device, requires_grad=True)
    mine(x)[0].sum().backward()
    found = [c for c in _C.candidates(newest("rnn_bwd").problem, device, "") if c["status"] == "ok"]
    assert len(found) >= 3
    for candidate in found:
        pin = candidate["algorithm"]
        mine.policy = f"fwd={pin}"
        mine(x)[0].sum().backward()
        for op, why in (("rnn_fwd", "pinned"), ("rnn_bwd", "coupled with its forward")):
            choice = newest(op)
            assert (choice.algorithm, choice.why) == (pin, why)


def test_backward_runs_its_own_forwards_algorithm(device: str) -> None:
    mine, _ = _pair("gru", 4, 4, device="cpu", dtype=torch.float32)
    x = torch.randn(4, 3, 4, requires_grad=True)
    first = mine.set_mode("cpu:fused")(x)[0]
    second = mine.set_mode("cpu:unrolled")(x)[0]
    for result, wanted in ((first, "cpu:fused"), (second, "cpu:unrolled")):
        result.sum().backward()
        assert newest("rnn_bwd").algorithm == wanted


def test_pins_that_disagree_are_an_error() -> None:
    mine, _ = _pair("gru", 4, 4, policy="fwd=cpu:fused;bwd=cpu:unrolled")
    x = torch.randn(4, 3, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="passes are coupled, wanted the same for both"):
        mine(x)
    with torch.no_grad():
        mine(x)  # there is one pass only


def test_tuned_as_a_whole(device: str) -> None:
    mine, theirs = _pair("lstm", 8, 8, num_layers=2, device=device, policy="autotune")
    x = torch.randn(5, 4, 8, dtype=torch.float64, device=device, requires_grad=True)
    _check(mine, theirs, x, None)
    forward, backward = ops.last_decision("rnn_fwd"), ops.last_decision("rnn_bwd")
    assert forward is not None and backward is not None
    assert forward.why == "tuned" and forward.algorithm == backward.algorithm


def test_knob(device: str) -> None:
    mine, _ = _pair("gru", 4, 4, device=device)
    x = torch.randn(4, 3, 4, dtype=torch.float64, device=device)
    with knobs.flags(rnn_algo="aten:default"):
        y = mine(x)[0]
    y.sum().backward()
    for op in ("rnn_fwd", "rnn_bwd"):
        assert newest(op).algorithm == "aten:default"


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gives_pytorchs_dtype(kind: str, device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    mine, _ = _pair(kind, 8, 8, device=device, dtype=torch.float32)
    x = torch.randn(4, 3, 8, device=device, requires_grad=True)
    wanted, _ = mine(x)
    with torch.autocast(device, lower):
        y, _ = mine(x)
    assert y.dtype == lower
    torch.testing.assert_close(y.float(), wanted, rtol=0.05, atol=0.05)
    y.float().sum().backward()
    assert mine.weight_hh_l0.grad is not None and mine.weight_hh_l0.grad.dtype == torch.float32


def test_compiles_whole(device: str) -> None:
    mine, _ = _pair("lstm", 4, 4, num_layers=2, device=device)
    params = list(mine.parameters())

    def loss(x: Tensor, *params: Tensor) -> Tensor:
        y, hy, cy = ops.lstm(x, None, params, True, 2, batch_first=True)
        return y.square().sum() + hy.sum() + cy.square().sum()

    x = torch.randn(3, 5, 4, dtype=torch.float64, device=device, requires_grad=True)
    check_compiles(loss, x, *params)


def test_backward_twice(device: str) -> None:
    mine, _ = _pair("lstm", 16, 16, device=device, dtype=torch.float32)
    x = torch.randn(4, 8, 16, device=device, requires_grad=True)
    y = mine(x)[0].square().sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, x), first)


def _runs_ours(y: Tensor) -> bool:
    """Whether a gradient passes a node of ours."""
    seen, left = set(), [y.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
    return any(node.name().startswith("TorchCudnnExt") for node in seen)


@pytest.mark.parametrize("kind", KINDS)
def test_pytorchs_own_network_on_a_cpu_records_its_own_gradient(kind: str) -> None:
    """From the second call on, so that its backward need not run the forward again."""
    mine, theirs = _pair(kind, 5, 4, num_layers=2, bidirectional=True)
    x = torch.randn(6, 3, 5, dtype=torch.float64)
    expected = torch.autograd.grad(theirs(x)[0].square().sum(), list(theirs.parameters()))
    for name, net in (("ours", mine), ("enabled", theirs)):
        with tce.enabled() if name == "enabled" else nullcontext():
            for call in range(3):
                y = net(x)[0]
                assert call == 0 or not _runs_ours(y), (name, call)
                last = tce.last_decision("rnn_fwd")
                assert last is not None and last.algorithm == "aten:default"
                gradients = torch.autograd.grad(y.square().sum(), list(net.parameters()))
                torch.testing.assert_close(gradients, expected)
            with torch.no_grad():
                net(x)  # another problem
            assert not _runs_ours(net(x)[0])
    with knobs.flags(rnn_algo="cpu:fused"):
        assert _runs_ours(mine(x)[0]) and _runs_ours(mine(x)[0])


def test_who_watches_a_recurrent_network_on_a_cpu_sees_the_same_in_each_call() -> None:
    mine, _ = _pair("lstm", 5, 4)
    x = torch.randn(6, 3, 5, dtype=torch.float64, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        y: Tensor = mine(x)[0]
        return y

    (expected,) = torch.autograd.grad(step(x).square().sum(), x)
    for _ in range(2):  # the forward of the first, and every one that is run again, sees hooks
        y = checkpoint(step, x, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(y.square().sum(), x)[0], expected)
    for _ in range(2):
        explained = tce.explain(mine, x, train=True, measure=False)
        assert [call.op for call in explained.calls] == ["rnn_fwd", "rnn_bwd"]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_output_may_be_changed_in_place(cell: str, device: str) -> None:
    cls = ours.LSTM if cell == "lstm" else ours.GRU
    x = torch.randn(5, 2, 3, device=device)
    for policy in (None, f"fwd={'legacy:standard' if device == 'cuda' else 'cpu:fused'}"):
        net = cls(3, 4, num_layers=2, policy=policy).to(device)
        gradients = []
        for change in (torch.clone, lambda y: y):
            output = change(net(x)[0]).mul_(2)
            gradients.append(torch.autograd.grad(output.square().sum(), list(net.parameters())))
        torch.testing.assert_close(*gradients)
        output = net(x)[0].mul_(2)
        with torch.no_grad():
            net.weight_hh_l0.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
    net = cls(3, 4, num_layers=2, dropout=0.5).to(device)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        net(x)[0].mul_(2).sum().backward()


def test_double_backward_with_dropout_is_refused() -> None:
    mine, _ = _pair("lstm", 4, 4, num_layers=2, dropout=0.5)
    x = torch.randn(4, 3, 4, dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(mine(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradient of its gradient .* wanted dropout=0"):
        torch.autograd.backward(dx.sum())


# --- modules


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_remembered(kind: str, device: str) -> None:
    mine, theirs = _pair(kind, 5, 4, num_layers=2, remember_states=True, device=device)
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device)
    whole, ends = theirs(x)
    parts = [mine(part) for part in torch.split(x, 2)]
    torch.testing.assert_close(torch.cat([y for y, _ in parts]), whole)
    for a, b in zip(_flat(parts[-1][1]), _flat(ends), strict=True):
        torch.testing.assert_close(a, b)
    torch.autograd.backward(parts[-1][0].sum())  # reaches into no earlier call's graph
    assert mine.reset_states() is mine
    torch.testing.assert_close(mine(x)[0], whole)
    said = "remembered are of a batch of 3, the input has {}; call reset_states.. or give hx"
    sequences = pack_sequence([x[:2, 0], x[:3, 1]], enforce_sorted=False)
    for other, batch in ((x[:, :2], 2), (x[:, 0], 1), (sequences, 2)):
        with pytest.raises(RuntimeError, match=said.format(batch)):
            mine(other)
    mine(x[:, :2], _states(mine, 2, x))
    mine(x[:, :2])
    assert not any("states" in name for name in mine.state_dict())


def test_states_of_inference_mode_are_remembered_outside(device: str) -> None:
    module = ours.GRU(4, 4, remember_states=True).to(device)
    x = torch.randn(3, 2, 4, device=device)
    with torch.inference_mode():
        _, states = module(x)
    wanted, _ = module(x, states.clone())
    module.reset_states()
    with torch.inference_mode():
        module(x)
    y, _ = module(x)
    torch.testing.assert_close(y, wanted)
    y.sum().backward()


def test_states_of_foreign_modes_are_not_remembered(device: str) -> None:
    module = ours.LSTM(4, 4, remember_states=True).to(device)
    x = torch.randn(3, 2, 4, device=device)
    wanted, _ = module(x)
    module.reset_states()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module(mode.from_tensor(x))
    torch.func.grad(lambda x: module(x)[0].sum())(x)
    copy.deepcopy(module)
    torch.testing.assert_close(module(x)[0], wanted)
    with torch.autocast(device, torch.bfloat16):
        module(x)
    assert module(x)[0].dtype == torch.float32


def test_remembered_states_of_unsorted_sequences(device: str) -> None:
    mine, theirs = _pair("lstm", 5, 4, remember_states=True, device=device)
    packed = [
        pack_sequence(
            [torch.randn(n, 5, dtype=torch.float64, device=device) for n in lengths],
            enforce_sorted=False,
        )
        for lengths in ((2, 5, 3), (4, 1, 6))
    ]
    _, states = theirs(packed[0])
    wanted, _ = theirs(packed[1], states)
    mine(packed[0])
    torch.testing.assert_close(mine(packed[1])[0].data, wanted.data)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("both_ways", [True, False])
def test_sizes_of_the_parameters(kind: str, biases: bool, both_ways: bool, device: str) -> None:
    network = kind if kind in ("lstm", "gru") else f"rnn_{kind}"
    for projection in (0, 2) if kind == "lstm" else (0,):
        options = {"proj_size": projection} if projection else {}
        module, _ = _pair(
            kind, 3, 5, num_layers=3, bias=biases, bidirectional=both_ways, device=device, **options
        )
        sizes = ops.rnn_parameter_sizes(network, 3, 5, 3, biases, both_ways, projection)
        assert sizes == [tuple(p.shape) for p in module.parameters()]
    # One buffer, cut up, is what the function takes.
    sizes = ops.rnn_parameter_sizes(
        network, 5, 5, 2, biases, both_ways, skip_input=True, single_bias=True
    )
    counts = [math.prod(size) for size in sizes]
    buffer = torch.randn(sum(counts), dtype=torch.float64, device=device)
    parts = buffer.split(counts)
    params = [part.view(size) for part, size in zip(parts, sizes, strict=True)]
    run = getattr(ops, network)
    x = torch.randn(4, 2, 5, dtype=torch.float64, device=device)
    y = run(x, None, params, biases, 2, 0.0, False, both_ways, skip_input=True, single_bias=True)[0]
    assert y.shape == (4, 2, 10 if both_ways else 5)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "wanted"),
    [
        ((["lstm"], 3, 5), {}, TypeError, r"network: got \['lstm'\] \(list\), wanted a text"),
        (("LSTM", 3, 5), {}, ValueError, "network: got 'LSTM', wanted one of lstm, gru"),
        (("lstm", 0, 5), {}, ValueError, "input_size: got 0, wanted at least 1"),
        (("lstm", 3, 5.0), {}, TypeError, "hidden_size: got 5.0"),
        (("lstm", 3, 5, 0), {}, ValueError, "num_layers: got 0, wanted at least 1"),
        (
            ("lstm", 3, 5),
            {"proj_size": 5},
            ValueError,
            "proj_size: got 5, wanted .*less than 5",
        ),
        (("gru", 3, 5), {"proj_size": 2}, ValueError, "proj_size: got 2, wanted 0 for gru"),
        (("gru", 3, 5), {"skip_input": True}, ValueError, "skip_input: got input_size=3"),
        (("gru", 3, 5), {"has_biases": 1}, TypeError, "has_biases: got 1"),
    ],
)
def test_wrong_sizes_of_networks_are_named(
    arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], wanted: str
) -> None:
    with pytest.raises(kind, match=wanted):
        ops.rnn_parameter_sizes(*arguments, **options)


@pytest.mark.parametrize("kind", [*KINDS, "proj"])
def test_views_of_the_parameters(kind: str, device: str) -> None:
    options: dict[str, Any] = {"proj_size": 2} if kind == "proj" else {}
    mine, _ = _pair(
        "lstm" if kind == "proj" else kind, 5, 4, num_layers=2, bidirectional=True, device=device,
        **options,
    )  # fmt: skip
    weights, biases = mine.weight_views(), mine.bias_views()
    gates, parameters = mine.gates, dict(mine.named_parameters())
    assert len(weights) == len(biases) == 4
    assert [len(layer) for layer in weights] == [2 * gates + (kind == "proj")] * 4
    assert [len(layer) for layer in biases] == [2 * gates] * 4
    assert weights[1][gates].data_ptr() == parameters["weight_hh_l0_reverse"].data_ptr()
    weights[2][gates - 1].fill_(7)
    assert bool((parameters["weight_ih_l1"][-4:] == 7).all())
    biases[3][0].fill_(8)
    assert bool((parameters["bias_ih_l1_reverse"][:4] == 8).all())


def test_module_that_skips_its_input(device: str) -> None:
    torch.manual_seed(0)
    mine = ours.GRU(
        4, 4, 2, bidirectional=True, skip_input=True, device=device, dtype=torch.float64
    )
    names = [name for name, _ in mine.named_parameters()]
    assert "weight_ih_l0" not in names and "weight_ih_l0_reverse" not in names
    theirs = torch.nn.GRU(4, 4, 2, bidirectional=True, device=device, dtype=torch.float64)
    theirs.load_state_dict(mine.state_dict(), strict=False)
    for name in ("weight_ih_l0", "weight_ih_l0_reverse"):
        getattr(theirs, name).data.copy_(torch.eye(4).repeat(3, 1))
    x = torch.randn(5, 3, 4, dtype=torch.float64, device=device)
    torch.testing.assert_close(mine(x)[0], theirs(x)[0])
    torch.testing.assert_close(copy.deepcopy(mine)(x)[0], theirs(x)[0])
    assert [len(layer) for layer in mine.weight_views()] == [3, 3, 6, 6]
    with pytest.raises(ValueError, match="skip_input: got input_size=5, wanted hidden_size=4"):
        ours.LSTM(5, 4, skip_input=True)


@pytest.mark.parametrize("kind", KINDS)
def test_modules_are_pytorchs(kind: str, device: str) -> None:
    mine, theirs = _pair(kind, 5, 4, num_layers=2, device=device, policy="autotune")
    assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(mine.state_dict())
    assert "policy='fwd=autotune;bwd=autotune'" in repr(mine)
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device)
    wanted = theirs(x)[0]
    for copied in (copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert copied.policy == mine.policy
        torch.testing.assert_close(copied(x)[0], wanted)
    assert mine.set_mode("aten:default").policy == "fwd=aten:default;bwd=autotune"
    called = torch.func.functional_call(mine.reset_mode(), dict(theirs.named_parameters()), (x,))
    torch.testing.assert_close(called[0], wanted)


def _lstm(**changes: Any) -> Callable[[], object]:
    keywords: dict[str, Any] = {
        "input": torch.zeros(3, 2, 4),
        "hx": None,
        "params": [torch.zeros(12, 4), torch.zeros(12, 3), torch.zeros(12), torch.zeros(12)],
    }
    return lambda: ops.lstm(**(keywords | changes))


def test_one_state_is_one_tensor() -> None:
    state = torch.zeros(1, 2, 3)
    for module in (ours.GRU(4, 3), ours.RNN(4, 3)):
        with pytest.raises(TypeError, match=r"(?s)argument hx: got .* \(tuple\), wanted a Tensor"):
            module(torch.zeros(5, 2, 4), (state, state))


@pytest.mark.parametrize(
    ("cell", "bias", "message"),
    [
        (4, 2, "_rnn: cell is 4, wanted 0 to 3"),
        (-1, 2, "_rnn: cell is -1, wanted 0 to 3"),
        (2, 3, "lstm: bias is 3, wanted 0 to 2"),
    ],
)
def test_kinds_of_the_inner_operator_are_checked(cell: int, bias: int, message: str) -> None:
    inner = torch.ops.torch_cudnn_ext._rnn.default
    params = [torch.zeros(12, 4), torch.zeros(12, 3), torch.zeros(12), torch.zeros(12)]
    for device in ("cpu", "meta"):
        inputs = (torch.zeros(3, 2, 4, device=device), [], None, None)
        moved = [t.to(device) for t in params]
        with pytest.raises(ValueError, match=message):
            inner(*inputs, moved, cell, bias, 1, 0.0, False, False, False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (_lstm(input=torch.zeros(2, 4)), "input has sizes .2, 4., wanted 3 dimensions"),
        (_lstm(input=torch.zeros(0, 2, 4)), "wanted at least one time step"),
        (_lstm(input=torch.zeros(3, 2, 5)), r"params\[0\] has sizes .12, 4., wanted .12, 5."),
        (_lstm(input=torch.zeros(3, 2, 4).int()), "input is Int, wanted Float"),
        (_lstm(params=[torch.zeros(12, 4), torch.zeros(12, 3)]), "holds 2 tensors, wanted 4"),
        (_lstm(params=[]), "params holds 0 tensors, wanted a matrix"),
        (_lstm(input=torch.zeros(3, 2, 4).double()), r"params\[0\] is Float, wanted input's dtype"),
        (_lstm(hx=[torch.zeros(1, 2, 3)]), "hx holds 1 tensors, wanted a hidden and a cell"),
        (_lstm(hx=[torch.zeros(1, 2, 3), torch.zeros(1, 2, 4)]), "cx has sizes .1, 2, 4., wanted"),
        (_lstm(dropout=1.5), "dropout is 1.5, wanted 0 to 1"),
        (_lstm(batch_first=True, batch_sizes=[1]), "batch_first with batch_sizes"),
        (_lstm(batch_sizes=[]), "batch_sizes is empty"),
        (_lstm(input=torch.zeros(3, 4), batch_sizes=[1, 2]), "numbers that do not grow"),
        (_lstm(input=torch.zeros(4, 4), batch_sizes=[2, 1]), "add up to 3, wanted the 4 steps"),
        (_lstm(policy="fwd=persistent"), "'persistent' is not one of rnn_fwd"),
        (_lstm(policy="fwd=standard"), "rnn_fwd: the pinned algorithm legacy:standard cannot run"),
    ],
)
def test_errors_name_the_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


def test_dropouts_backward_leaves_other_threads_random_numbers_alone() -> None:
    mine, _ = _pair("lstm", 4, 4, num_layers=2, dropout=0.5)
    mine.policy = "aten:default"
    x = torch.randn(6, 3, 4, dtype=torch.float64, requires_grad=True)
    done = threading.Event()

    def draw() -> None:
        while not done.is_set():
            torch.rand(4)

    other = threading.Thread(target=draw)
    other.start()
    try:
        for _ in range(20):
            y = mine(x)[0].sum()
            first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
            assert torch.equal(first, second)
    finally:
        done.set()
        other.join()
    torch.manual_seed(1)
    y = mine(x)[0].sum()
    wanted = torch.rand(4)
    torch.manual_seed(1)
    mine(x)[0].sum().backward()
    assert torch.equal(torch.rand(4), wanted)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("how", [{}, {"bidirectional": True}, {"proj_size": 2}])
def test_pytorchs_dropout_has_pytorchs_gradients(packed: bool, how: dict[str, Any]) -> None:
    mine, theirs = _pair("lstm", 5, 4, num_layers=3, dropout=0.5, **how)
    mine.policy = "aten:default"
    x = torch.randn(6, 3, 5, dtype=torch.float64, requires_grad=True)
    results = []
    for module in (mine, theirs):
        torch.manual_seed(3)
        given = pack_padded_sequence(x, [6, 4, 1]) if packed else x
        y, (h, c) = module(given)
        y = y.data if packed else y
        leaves = [x, *module.parameters()]
        results.append([y, h, c, *torch.autograd.grad((y.sin().sum() + h.sum()), leaves)])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_what_is_remembered_is_not_what_was_returned(device: str) -> None:
    module = ours.GRU(4, 4, remember_states=True).to(device)
    plain = nn.GRU(4, 4).to(device)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(3, 2, 4, device=device)
    with torch.no_grad():
        h = module(x)[1]
        wanted = plain(x, h)[0]
        h.zero_()
        torch.testing.assert_close(module(x)[0], wanted)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_remembered_states_are_not_for_calls_that_run_again(use_reentrant: bool) -> None:
    module = ours.GRU(4, 4, remember_states=True)
    x = torch.randn(3, 2, 4, requires_grad=True)
    h = torch.zeros(1, 2, 4)
    y = checkpoint(lambda x: module(x)[0], x, use_reentrant=use_reentrant)
    with pytest.raises(RuntimeError, match="GRU: argument hx: got None in a backward"):
        y.sum().backward()
    checkpoint(lambda x: module(x, h)[0], x, use_reentrant=use_reentrant).sum().backward()


def test_remembered_states_are_not_exported() -> None:
    module, x = ours.GRU(3, 4, remember_states=True).eval(), torch.randn(5, 2, 3)
    with pytest.raises(RuntimeError, match="GRU: argument hx: got None under torch.export"):
        torch.export.export(module, (x,))
    h = torch.zeros(1, 2, 4)
    exported = torch.export.export(module, (x, h)).module()
    torch.testing.assert_close(exported(x, h)[0], module(x, h)[0])


def test_an_input_on_the_meta_device_alone_is_refused(device: str) -> None:
    network, x = ours.LSTM(4, 5).to(device), torch.randn(3, 2, 4, device="meta")
    with pytest.raises(ValueError, match=f" is on {device}.*, wanted input's device meta"):
        network(x)


@pytest.mark.parametrize("which", ["hx", "cx", "params"])
def test_one_tensor_on_the_meta_device_is_refused(which: str, device: str) -> None:
    x, h = torch.randn(3, 2, 4, device=device), torch.zeros(1, 2, 5, device=device)
    sizes = ((20, 4), (20, 5), (20,), (20,))
    weights = [torch.randn(size, device=device) for size in sizes]
    states = [h, h]
    if which == "params":
        weights[1] = weights[1].to("meta")
    else:
        states[which == "cx"] = h.to("meta")
    with pytest.raises(ValueError, match=f"{which} is on meta, wanted input's device {device}"):
        ops.lstm(x, states, weights, True, 1, 0.0, False, False, False)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_batches_of_a_batch_first_module(kind: str, device: str) -> None:
    mine, theirs = _pair(kind, 5, 4, batch_first=True, bidirectional=True, device=device)
    x = torch.randn(3, 6, 5, dtype=torch.float64, device=device)
    packed = pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True)
    torch.testing.assert_close(_flat(mine(packed)), _flat(theirs(packed)))


def test_a_moved_or_cast_module_forgets_its_states() -> None:
    x = torch.randn(3, 2, 4)
    mine = ours.GRU(4, 4, remember_states=True)
    wanted, _ = mine(x)
    y, _ = mine.double()(x.double())
    torch.testing.assert_close(y, wanted.double(), rtol=1e-4, atol=1e-6)
    assert mine.to("meta")(x.double().to("meta"))[0].is_meta


def test_parameters_of_a_functional_call_are_used(device: str) -> None:
    mine, theirs = _pair("lstm", 5, 4, num_layers=2, device=device)
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device)
    others = {name: torch.randn_like(p) for name, p in theirs.named_parameters()}
    wanted = torch.func.functional_call(theirs, others, (x,))
    before, _ = mine(x)
    torch.testing.assert_close(_flat(torch.func.functional_call(mine, others, (x,))), _flat(wanted))
    assert torch.equal(mine(x)[0], before)


def test_a_module_told_to_remember_no_longer_begins_with_zeros(device: str) -> None:
    mine, theirs = _pair("gru", 5, 4, remember_states=True, device=device)
    x = torch.randn(6, 3, 5, dtype=torch.float64, device=device)
    mine(x)
    mine.remember_states = False
    torch.testing.assert_close(mine(x)[0], theirs(x)[0])


@needs_cuda
def test_a_reserve_that_is_dropped_counts_as_workspace() -> None:
    module = ours.LSTM(64, 64, 2, dropout=0.5, policy="legacy:standard").cuda()
    x = torch.randn(50, 8, 64, device="cuda")
    with torch.no_grad():
        module(x)
        torch.cuda.synchronize()
        # Blocks that the allocator keeps may be larger than what is asked for.
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        module(x)
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    choice = newest("rnn_fwd")
    assert choice.workspace_bytes is not None
    own = 4 * (50 * 8 * 64 + 2 * 2 * 8 * 64)  # y, hy and cy
    parameters = sum(p.nbytes for p in module.parameters())  # gathered by the operator
    assert choice.workspace_bytes >= peak - own - parameters - (1 << 16)


@needs_cuda
def test_tuning_leaves_the_random_states_of_pytorchs_own_networks() -> None:
    theirs = torch.nn.LSTM(4, 4, 2, dropout=0.5).cuda()
    x = torch.randn(5, 2, 4, device="cuda")
    theirs(x)
    before = torch.get_rng_state()
    theirs(x)
    assert torch.equal(torch.get_rng_state(), before), "its states are drawn once"
    gpu = torch.cuda.get_rng_state()
    _C.measure("dropout_fwd x=f32[4096]:nchw rng=philox", "cuda", "", min_samples=2)
    assert torch.equal(torch.cuda.get_rng_state(), gpu)
    theirs(x)
    assert torch.equal(torch.get_rng_state(), before)
