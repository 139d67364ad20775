"""Calls of cuDNN that are made again without it: what they compute, and when they are not."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import LINES
from conftest import (
    CUDA_MARKS,
    EVERY_NUMERICS,
    elements_spanned,
    learnt,
    left_by_forward,
    made_again,
    replays_kernels,
)
from torch import Tensor

from torch_cudnn_ext import _C, knobs, nn, ops

pytestmark = [*CUDA_MARKS]

CALLS = 16  # enough that the last ones are replays, also of results that lie in two places by turns
GRAPH = "backends=graph"


def _replayed(call: Callable[[], Any], times: int = CALLS) -> int:
    """How many calls of cuDNN were made again without it."""
    before = made_again()
    for _ in range(times):
        call()
    return made_again() - before


def _check(result: Tensor, x: Tensor, w: Tensor) -> None:
    wanted = F.conv2d(x.double(), w.double())
    torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4)


def _operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 16, 12, 12, device="cuda", dtype=dtype)
    return x, torch.randn(24, 16, 3, 3, device="cuda", dtype=dtype)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("policy", [GRAPH, "backends=legacy"])
def test_a_replay_reads_what_the_tensors_hold_now(policy: str) -> None:
    x, w = _operands(torch.float64)
    results = []

    def call() -> None:
        x.normal_()
        results[:] = [ops.conv2d(x, w, padding=1, policy=policy)]
        torch.testing.assert_close(results[0], F.conv2d(x, w, padding=1))

    assert _replayed(call) > 0


def test_calls_with_tensors_elsewhere(each_way: str) -> None:
    x, w = _operands()
    assert _replayed(lambda: ops.conv2d(x, w, policy=GRAPH)) > 0
    others = [_operands() for _ in range(CALLS)]
    kept = []

    def call() -> None:
        image, filters = others[len(kept)]
        kept.append(ops.conv2d(image, filters, policy=GRAPH))

    assert _replayed(call) == (0 if each_way == "graphs" else CALLS)
    for (image, filters), result in zip(others, kept, strict=True):
        _check(result, image, filters)


@pytest.mark.usefixtures("each_way")
def test_many_layers_of_one_problem_are_all_replayed() -> None:
    layers = [_operands() for _ in range(20)]
    kept: list[Tensor] = []

    def step() -> None:
        kept[:] = []
        kept.extend(ops.conv2d(x, w, policy=GRAPH) for x, w in layers)

    assert _replayed(step) >= len(layers)
    for (x, w), result in zip(layers, kept, strict=True):
        _check(result, x, w)


@pytest.mark.usefixtures("each_way")
def test_nothing_is_recorded_or_replayed_if_the_policy_says_off() -> None:
    x, w = _operands()
    before = learnt()
    assert _replayed(lambda: ops.conv2d(x, w, policy=f"{GRAPH};replay=off")) == 0
    assert learnt() == before
    assert _replayed(lambda: ops.conv2d(x, w, policy=GRAPH)) > 0


def test_nothing_is_recorded_or_replayed_by_default() -> None:
    x, w = _operands()
    before = learnt()
    assert _replayed(lambda: ops.conv2d(x, w, policy=GRAPH)) == 0
    _C.measure("conv_fwd x=f16[4,16,9,9]:nhwc w=f16[16,16,3,3]:nhwc pad=1", "cuda", GRAPH)
    assert learnt() == before


@pytest.mark.parametrize("replay", ["graphs", "kernels"])
def test_one_call_asks_for_replays(replay: str) -> None:
    x, w = _operands()
    before = _C.replay_info()
    assert _replayed(lambda: ops.conv2d(x, w, policy=f"{GRAPH};replay={replay}")) > 0
    if replay == "graphs":
        assert _C.replay_info()["relaunched"] == before["relaunched"]


def _convolve_into(out: Tensor, x: Tensor, w: Tensor, beta: float, policy: str) -> None:
    torch.ops.torch_cudnn_ext.convolution_out.default(
        x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, out=out, beta=beta, policy=policy
    )


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("policy", [GRAPH, "backends=legacy"])
def test_every_replay_accumulates_once(policy: str) -> None:
    x, w = _operands(torch.float64)
    out = torch.zeros_like(F.conv2d(x, w))
    assert _replayed(lambda: _convolve_into(out, x, w, 1, policy)) > 0
    torch.testing.assert_close(out, CALLS * F.conv2d(x, w))


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("policy", [GRAPH, "backends=legacy"])
def test_running_statistics_move_once_a_call(policy: str) -> None:
    x = torch.randn(8, 16, 10, 10, device="cuda").to(memory_format=torch.channels_last)
    if policy != GRAPH:
        x = x.contiguous()
    ours, theirs = nn.BatchNorm2d(16, policy=policy).cuda(), torch.nn.BatchNorm2d(16).cuda()
    with torch.no_grad():
        assert _replayed(lambda: (x.normal_(1), ours(x), theirs(x))) > 0
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        # Another momentum is another call.
        ours.momentum = theirs.momentum = 0.5
        assert _replayed(lambda: (ours(x), theirs(x)), 2) == 0
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)


@pytest.mark.usefixtures("each_way")
def test_backward_is_replayed_on_autograds_thread() -> None:
    x, w = (t.double().requires_grad_() for t in _operands())
    gradient = torch.ones_like(F.conv2d(x, w))
    found: list[Tensor] = []

    def call() -> None:
        found[:] = torch.autograd.grad(ops.conv2d(x, w, policy=GRAPH), (x, w), gradient)

    assert _replayed(call, 2 * CALLS) > 2 * CALLS  # more than the forwards
    torch.testing.assert_close(tuple(found), torch.autograd.grad(F.conv2d(x, w), (x, w), gradient))


@pytest.mark.usefixtures("each_way")
def test_a_captured_call_is_cudnns_own() -> None:
    pin = "fwd=graph:eng0"  # without a workspace, whose address is another while capturing
    x, w = _operands()
    out = torch.empty_like(F.conv2d(x, w))
    assert _replayed(lambda: _convolve_into(out, x, w, 0, pin)) > 0
    graph, before = torch.cuda.CUDAGraph(), _C.replay_info()
    with torch.cuda.graph(graph):
        _convolve_into(out, x, w, 0, pin)
    assert _C.replay_info() == before
    x.normal_()
    out.zero_()
    graph.replay()
    _check(out, x, w)


@pytest.mark.usefixtures("each_way")
def test_a_recording_does_not_disturb_a_thread_that_waits_for_the_device() -> None:
    errors: list[Exception] = []
    ends = threading.Event()

    def wait() -> None:
        while not ends.is_set():
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                errors.append(error)

    other = threading.Thread(target=wait)
    other.start()
    before = learnt()
    try:
        for size in range(12, 20):
            w = torch.randn(24, 16, 3, 3, device="cuda")
            for _ in range(16):
                x = torch.randn(4, 16, size, size, device="cuda")
                out = torch.empty(4, 24, size - 2, size - 2, device="cuda")
                for _ in range(6):
                    _convolve_into(out, x, w, 0, "fwd=graph:eng0")
    finally:
        ends.set()
        other.join()
    assert not errors and learnt() > before


@pytest.mark.usefixtures("each_way")
def test_a_recording_leaves_another_streams_capture_alone() -> None:
    pin = "fwd=graph:eng0"  # without a workspace: nothing is allocated while the other captures
    x, w = _operands()
    out = torch.empty_like(F.conv2d(x, w))
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        _convolve_into(out, x, w, 0, pin)
    torch.cuda.synchronize()
    out.zero_()
    image = torch.zeros_like(x)
    graph, before = torch.cuda.CUDAGraph(), learnt()
    with torch.cuda.graph(graph):  # in the strictest mode: nothing unsafe on any thread
        result = image + 1
        with torch.cuda.stream(aside):
            assert _replayed(lambda: _convolve_into(out, x, w, 0, pin)) > 0
    assert learnt() > before
    image.fill_(2)
    graph.replay()
    torch.testing.assert_close(result, torch.full_like(x, 3))
    _check(out, x, w)


def _network(**arguments: Any) -> nn.LSTM:
    network: nn.LSTM = nn.LSTM(32, 32, policy="legacy:standard/math=fma", **arguments).cuda()
    return network


@pytest.mark.usefixtures("each_way")
def test_recurrent_networks_are_replayed() -> None:
    network = _network(num_layers=2)
    x = torch.randn(6, 4, 32, device="cuda")

    def results() -> list[Tensor]:
        network.zero_grad()
        y, (h, c) = network(x)
        (y.square().sum() + h.sum() + c.sum()).backward()
        return [y.detach(), *(p.grad.clone() for p in network.parameters() if p.grad is not None)]

    assert _replayed(lambda: [t.zero_() for t in results()]) > 0
    x.normal_()
    tries, replayed, before = 0, list[Tensor](), -1
    while made_again() != before + 2:  # a graph serves the addresses that it was captured with
        replayed.clear()
        before, tries = made_again(), tries + 1
        replayed = results()
        assert tries < 9, "never were both passes replayed"
    assert len(replayed) == 9
    knobs.replay = "off"
    for mine, plain in zip(replayed, results(), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=0)


@pytest.mark.usefixtures("graphs")
def test_what_is_evicted_gives_its_kernels_back() -> None:
    x, w = _operands()
    before = _C.replay_info()["kernels"]
    assert _replayed(lambda: ops.conv2d(x, w, policy=GRAPH)) > 0
    assert _C.replay_info()["kernels"] > before
    _C.plan_cache_clear()
    assert _C.replay_info()["kernels"] == before


def test_tuning_keeps_no_replays() -> None:
    before = _C.replay_info()
    problem = "conv_fwd x=f16[4,16,9,9]:nhwc w=f16[16,16,3,3]:nhwc pad=1"
    rows = _C.measure(problem, "cuda", f"{GRAPH};replay=kernels", time_budget_s=20)
    assert any(row["status"] == "ok" for row in rows)
    after = _C.replay_info()
    assert after["recorded"] > before["recorded"] and after["kernels"] == before["kernels"]


def _kinds() -> list[str]:
    """A small problem of each kind: of each operator, with each set of fields and kind of value."""
    kinds = {}
    for line in LINES:
        op, *fields = line.problem.split()
        words = dict(field.split("=") for field in fields)
        kind = (op, *words, words.get("kind"), words.get("cell"), words.get("mode"))
        if line.size == "small" and words.get("compute") != "f16":
            kinds.setdefault(kind, line.problem)
    return list(kinds.values())


def _elsewhere(tensor: Tensor) -> Tensor:
    """A copy that is aligned as the tensor is."""
    offset = tensor.data_ptr() % 512 // tensor.element_size()
    count = offset + elements_spanned(tensor.shape, tensor.stride())
    flat = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
    return flat.as_strided(tensor.shape, tensor.stride(), offset).copy_(tensor)


@pytest.mark.parametrize("backend", ["graph", "legacy"])
@pytest.mark.parametrize("problem", _kinds())
def test_each_tensor_of_a_call_tells_calls_apart(problem: str, backend: str) -> None:
    if "dropout" in problem:
        pytest.skip("its results are random")
    try:
        choice = _C.decide(problem, "cuda", f"{EVERY_NUMERICS};backends={backend}")
    except RuntimeError as error:
        pytest.skip(f"{backend} does not take it: {str(error).splitlines()[0]}")
    algorithm, taken = choice["algorithm"], choice["workspace_bytes"] or 0
    slots = _C.problem_info(problem)["slots"]
    inputs = _C.scratch(problem, "cuda") | left_by_forward(problem, algorithm, "cuda")
    tensors = dict(inputs)
    for role, result in _C.run(problem, algorithm, dict(inputs), EVERY_NUMERICS).items():
        if slots[role]["output"] and role not in inputs:
            tensors[role] = torch.zeros_like(result)
    written = [role for role in tensors if slots[role]["output"] or slots[role]["mutated"]]
    used_up = [*written, *({"reserve"} & tensors.keys())]  # a backward may use its forward's
    initial = {role: tensors[role].clone() for role in used_up}

    def run(bindings: dict[str, Tensor], replay: str) -> dict[str, Tensor]:
        for role in used_up:
            bindings[role].copy_(initial[role])
        results = _C.run(problem, algorithm, dict(bindings), EVERY_NUMERICS, replay=replay)
        return {role: results[role].clone() for role in written}

    for role, tensor in tensors.items():
        if role == "reserve" or not tensor.is_cuda or tensor.numel() == 0:
            continue
        other = _elsewhere(tensor)
        if role not in written and tensor.is_floating_point():
            other.mul_(0.75)
        changed = tensors | {role: other}
        plain = run(changed, "never")
        for replay in ("kernels_at_once", "graphs_at_once"):
            relaunched = [_C.replay_info()["relaunched"]]
            run(tensors, replay)  # what a key without this tensor would find
            relaunched.append(_C.replay_info()["relaunched"])
            was_workspace = torch.full((taken,), 0x55, dtype=torch.uint8, device="cuda")
            mine = run(changed, replay)
            assert bool((was_workspace == 0x55).all()), "wrote into memory that is another's"
            del was_workspace
            first, second = relaunched[1] - relaunched[0], _C.replay_info()["relaunched"]
            assert first == second - relaunched[1], "not launched for tensors that lie elsewhere"
            for result in written:
                torch.testing.assert_close(
                    mine[result], plain[result], rtol=1e-2, atol=1e-2, equal_nan=True, msg=role
                )


def test_shared_memory_for_a_kernel_launched_anew_leaves_cudnns_launches_alone() -> None:
    """This kernel takes as much as a channel's data, and cuDNN limits it to that each time."""
    if not replays_kernels():
        pytest.skip("single kernels of this cuDNN are not launched again on this GPU")
    weight, bias = torch.ones(32, device="cuda"), torch.zeros(32, device="cuda")

    def images(width: int) -> Tensor:
        return torch.randn(4, 32, 16, width, device="cuda", dtype=torch.half)

    def ours(x: Tensor) -> Tensor:
        policy = "fwd=legacy:spatial_persistent"
        return ops.batch_norm(x, None, None, weight, bias, training=True, policy=policy)

    def theirs(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, weight, bias, training=True)

    def check(y: Tensor, x: Tensor) -> None:
        variance, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0, keepdim=True)
        wanted = (x.double() - mean) / (variance + 1e-5).sqrt()
        torch.testing.assert_close(y.double(), wanted, rtol=1e-2, atol=1e-2)

    narrow, middle, wide = images(16), images(32), images(64)
    knobs.replay = "kernels"
    for _ in range(CALLS):
        ours(middle)
    for x in (narrow, middle, wide):
        check(theirs(narrow), narrow)
        before = _C.replay_info()["relaunched"]
        y = ours(middle)
        assert _C.replay_info()["relaunched"] == before + 1
        check(y, middle)
        check(theirs(x), x)


@pytest.mark.usefixtures("each_way")
def test_no_dropout_and_no_packed_batch_is_replayed() -> None:
    x = torch.randn(6, 4, 32, device="cuda")
    network = _network(num_layers=2, dropout=0.5)
    assert _replayed(lambda: network(x)) == 0
    assert not torch.equal(network(x)[0], network(x)[0])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 5, 3, 1]))
    network = _network()
    with torch.no_grad():
        assert _replayed(lambda: network(packed)) == 0


@pytest.mark.usefixtures("each_way")
def test_kernels_of_replays_are_seen_by_the_profiler() -> None:
    x, w = _operands()

    def names() -> list[str]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            ops.conv2d(x, w, policy="fwd=graph:eng0")
            torch.cuda.synchronize()
        return [event.name for event in profile.events() if "CUDA" in str(event.device_type)]

    first = names()
    assert _replayed(lambda: ops.conv2d(x, w, policy="fwd=graph:eng0")) > 0
    before = made_again()
    kernels = [name for name in first if "Memset" not in name]
    assert kernels and [name for name in names() if "Memset" not in name] == kernels
    assert made_again() == before + 1
