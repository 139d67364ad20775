"""Dropout: mask rates, gradients through the mask, seeds, and algorithms that share a mask."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import DROPOUT
from conftest import misaligned, needs_cuda, newest
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import _C, Policy, ops, when
from torch_cudnn_ext import nn as ours

ALGORITHMS = {
    "cpu": ("aten:default", "cpu:threshold", "cpu:geometric"),
    "cuda": ("aten:default", "legacy:default"),
}


def _policies(device: str) -> list[str | None]:
    return [None, *(f"fwd={name}" for name in ALGORITHMS[device])]


@pytest.mark.parametrize("p", [0.05, 0.5, 0.8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_masks_have_their_rate_and_their_gradient(
    dtype: torch.dtype, p: float, device: str
) -> None:
    for policy in _policies(device):
        x = (torch.rand(40, 50, 10, device=device) + 0.5).to(dtype).requires_grad_()
        y = ops.dropout(x, p, policy=policy)
        kept = y != 0
        rate = 1 - kept.double().mean().item()
        assert abs(rate - p) < 6 * math.sqrt(p * (1 - p) / x.numel()), policy
        torch.testing.assert_close(y, x * kept / (1 - p))
        grad = torch.randn_like(y)
        (dx,) = torch.autograd.grad(y, x, grad)
        torch.testing.assert_close(dx, grad * kept / (1 - p))


@pytest.mark.parametrize("line", DROPOUT, ids=lambda line: line.name)
def test_every_algorithm_passes_its_check(line: Any, device: str) -> None:
    if device == "cpu" and line.size == "big":
        pytest.skip("GPU only")
    rows = _C.measure(line.problem, device, "")
    statuses = {row["algorithm"]: (row["status"], row["reason"]) for row in rows}
    assert any(status == "ok" for status, _ in statuses.values()), statuses
    assert not any(status in ("rejected", "failed") for status, _ in statuses.values()), statuses


@pytest.mark.parametrize("algorithm", ["aten:default", "cpu:threshold", "cpu:geometric"])
def test_what_is_dropped_is_zero_where_the_rest_overflows(algorithm: str) -> None:
    x = torch.full((1000,), 40000.0, dtype=torch.float16, requires_grad=True)
    y = ops.dropout(x, 0.5, policy=algorithm)
    (dx,) = torch.autograd.grad(y, x, x.detach())
    for result in (y, dx):
        assert not result.isnan().any() and 400 < int((result == 0).sum()) < 600


def test_seeds_repeat_masks_and_masks_differ(device: str) -> None:
    x = torch.ones(1000, device=device)
    for policy in _policies(device):
        torch.manual_seed(7)
        first, second = (ops.dropout(x, 0.5, policy=policy) for _ in range(2))
        torch.manual_seed(7)
        assert torch.equal(ops.dropout(x, 0.5, policy=policy), first), policy
        assert torch.equal(ops.dropout(x, 0.5, policy=policy), second), policy
        assert not torch.equal(first, second), policy
        torch.manual_seed(8)
        assert not torch.equal(ops.dropout(x, 0.5, policy=policy), first), policy


def test_masks_are_pytorchs(device: str) -> None:
    x = torch.randn(7, 11, 13, device=device, requires_grad=True)
    torch.manual_seed(3)
    wanted = F.dropout(x, 0.3)
    torch.manual_seed(3)
    got = ops.dropout(x, 0.3)
    assert torch.equal(got, wanted)
    assert torch.equal(
        torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(wanted.sum(), x)[0]
    )


def test_tuning_does_not_move_the_generator(device: str) -> None:
    x = torch.ones(100, device=device, requires_grad=True)
    torch.manual_seed(1)
    ops.dropout(x, 0.5, policy="fwd=autotune")
    choice = newest("dropout_fwd")
    assert choice.why == "tuned"
    after = torch.rand(5, device=device)
    torch.manual_seed(1)
    ops.dropout(x, 0.5, policy=f"fwd={choice.algorithm}")
    assert torch.equal(torch.rand(5, device=device), after)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(1, 3),
    "sliced": lambda t: t[:, :, ::2],
    "expanded": lambda t: t[:1].expand(3, -1, -1, -1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_layouts(view: str, device: str) -> None:
    x = VIEWS[view](torch.rand(3, 4, 6, 5, device=device) + 1).detach().requires_grad_()
    for policy in _policies(device):
        y = ops.dropout(x, 0.4, policy=policy)
        assert y.stride() == F.dropout(x, 0.4).stride()
        kept = y != 0
        torch.testing.assert_close(y, x * kept / 0.6)
        for grad in (torch.randn_like(y), torch.randn_like(y).contiguous()):
            (dx,) = torch.autograd.grad(y, x, grad, retain_graph=True)
            torch.testing.assert_close(dx, grad * kept / 0.6)


def test_misaligned(device: str) -> None:
    x = misaligned(torch.ones(101, device=device)).requires_grad_()
    dy = misaligned(torch.ones_like(x))
    for policy in _policies(device):
        y = ops.dropout(x, 0.5, policy=policy)
        (dx,) = torch.autograd.grad(y, x, dy)
        torch.testing.assert_close(dx, y.detach())


def test_gradients_of_gradients(device: str) -> None:
    x = torch.randn(5, 4, dtype=torch.float64, device=device, requires_grad=True)
    for policy in _policies(device):

        def seeded(t: Tensor, policy: str | None = policy) -> Tensor:
            torch.manual_seed(0)
            return ops.dropout(t, 0.4, policy=policy)

        assert torch.autograd.gradcheck(seeded, (x,))
        assert torch.autograd.gradgradcheck(seeded, (x,))


def test_nested_transforms(device: str) -> None:
    x = torch.rand(20, dtype=torch.float64, device=device) + 1
    for policy in _policies(device):

        def cubes(t: Tensor, policy: str | None = policy) -> Tensor:
            torch.manual_seed(0)
            return ops.dropout(t, 0.5, policy=policy).pow(3).sum()

        got = torch.func.grad(lambda t, f=cubes: torch.func.grad(f)(t).sum())(x)
        torch.manual_seed(0)
        kept = ops.dropout(x, 0.5, policy=policy) != 0
        torch.testing.assert_close(got, 48 * x * kept)


# Of each sample, where it is dropped; called by vmap over two dimensions.
BATCHED: dict[str, Callable[[Tensor], Tensor]] = {
    "values": lambda t: ops.dropout(t, 0.5),
    "gradients": torch.func.grad(lambda t: ops.dropout(t, 0.5).square().sum()),
    "of_one": lambda t: ops.dropout(torch.ones_like(t), 0.5) * t,
}


@pytest.mark.parametrize("name", BATCHED)
def test_vmap_draws_as_its_randomness_says(name: str, device: str) -> None:
    function = BATCHED[name]
    x = torch.rand(2, 3, 8, 5, device=device).transpose(2, 3) + 1
    kept_value = 2.0 if name != "gradients" else 8.0
    for outer in ("same", "different"):
        for inner in ("same", "different"):
            batched = torch.vmap(torch.vmap(function, randomness=inner), randomness=outer)
            y = batched(x)
            kept = y != 0
            torch.testing.assert_close(y, kept_value * x * kept)
            assert torch.equal(kept[0], kept[1]) == (outer == "same")
            assert torch.equal(kept[:, 0], kept[:, 1]) == (inner == "same")
    with pytest.raises(RuntimeError, match="randomness error mode"):
        torch.vmap(function)(x)


def test_vmap_of_what_is_not_batched(device: str) -> None:
    x, other = torch.ones(50, device=device), torch.zeros(3, 50, device=device)
    for randomness in ("same", "different"):
        y = torch.vmap(lambda t: ops.dropout(x, 0.5) + t, randomness=randomness)(other)
        assert torch.equal(y[0], y[1]) == (randomness == "same")


def test_vmap_repeats_masks_of_a_seed(device: str) -> None:
    x = torch.ones(3, 50, device=device)
    torch.manual_seed(5)
    wanted = ops.dropout(x[0], 0.5)
    torch.manual_seed(5)
    got = torch.vmap(lambda t: ops.dropout(t, 0.5), randomness="same")(x)
    assert torch.equal(got[0], wanted)


def test_checkpoints_repeat_masks(device: str) -> None:
    x = torch.rand(100, device=device, requires_grad=True)
    for policy in _policies(device):
        y = checkpoint(lambda t, p=policy: ops.dropout(t, 0.5, policy=p), x, use_reentrant=False)
        (dx,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(dx, 2.0 * (y != 0))


def test_nothing_to_drop(device: str) -> None:
    x = torch.randn(3, 4, device=device)
    assert ops.dropout(x, 0.5, training=False) is x
    assert ops.dropout(x, 0.0) is x
    assert torch.equal(ops.dropout(x, 1.0), torch.zeros_like(x))
    gaps = torch.randn(0, 6, device=device)[:, ::2]
    operator = torch.ops.torch_cudnn_ext.dropout
    assert operator(gaps, 0.5).stride() == operator(gaps.to("meta"), 0.5).stride()
    empty = torch.randn(0, 3, device=device, requires_grad=True)
    assert ops.dropout(empty, 0.5).shape == (0, 3)
    operator(empty, 0.5).sum().backward()
    assert empty.grad is not None


def test_in_place(device: str) -> None:
    leaf = torch.rand(100, device=device, requires_grad=True)
    x = leaf * 1
    y = ops.dropout(x, 0.5, inplace=True)
    assert y is x
    kept = y != 0
    y.sum().backward()
    torch.testing.assert_close(leaf.grad, 2.0 * kept)


def test_both_passes_run_one_algorithm(device: str) -> None:
    x = torch.rand(30, device=device, requires_grad=True)
    for pin in ALGORITHMS[device]:
        for policy in (f"fwd={pin}", f"bwd={pin}", Policy(family="dropout", fwd=pin, bwd=pin)):
            ops.dropout(x, 0.5, policy=policy).sum().backward()
            coupled = "coupled with its forward"
            for op, why in (("dropout_fwd", "pinned"), ("dropout_bwd", coupled)):
                choice = newest(op)
                assert (choice.algorithm, choice.why) == (pin, why)
    pins = ALGORITHMS[device]
    with pytest.raises(RuntimeError, match="these passes are coupled, wanted the same for both"):
        ops.dropout(x, 0.5, policy=f"fwd={pins[0]};bwd={pins[1]}")


def test_backward_keeps_the_algorithm_when_knobs_change(device: str) -> None:
    x = torch.rand(30, device=device, requires_grad=True)
    first, second = ALGORITHMS[device][:2]
    _C.set_knobs(f"dropout_fwd={first}", False)
    y = ops.dropout(x, 0.5)
    _C.set_knobs(f"dropout_fwd={second}", False)
    y.sum().backward()
    assert newest("dropout_bwd").algorithm == first
    torch.testing.assert_close(x.grad, 2.0 * (y != 0))


def test_compiles_whole(device: str) -> None:
    x = torch.rand(6, 5, device=device) + 1
    for policy in _policies(device):

        def double(x: Tensor, policy: str | None = policy) -> Tensor:
            return ops.dropout(x, 0.5, policy=policy) * 2

        leaf = x.clone().requires_grad_()
        compiled = torch.compile(double, fullgraph=True, backend="aot_eager")
        y = compiled(leaf)
        y.sum().backward()
        torch.testing.assert_close(y, 4 * leaf * (y != 0))
        torch.testing.assert_close(leaf.grad, 4.0 * (y != 0))


def test_opcheck(device: str) -> None:
    x = torch.rand(6, 5, device=device)
    operator = torch.ops.torch_cudnn_ext.dropout.default
    checks = ("test_schema", "test_autograd_registration")
    torch.library.opcheck(operator, (x.clone().requires_grad_(), 0.5), test_utils=checks)
    # Of the reserve, which there is with a gradient alone, Meta does not know the size.
    torch.library.opcheck(operator, (x, 0.5), test_utils=(*checks, "test_faketensor"))


def test_errors_name_the_argument() -> None:
    x = torch.zeros(3)
    with pytest.raises(TypeError, match="argument p: got 'half' .str., wanted a number"):
        ops.dropout(x, "half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="argument p: got 1.5, wanted a probability from 0 to 1"):
        ops.dropout(x, 1.5)
    with pytest.raises(ValueError, match="p is 0, wanted more than 0 and less than 1"):
        torch.ops.torch_cudnn_ext.dropout(x, 0.0)
    with pytest.raises(ValueError, match="input is Long, wanted Float"):
        ops.dropout(x.long(), 0.5)
    with pytest.raises(RuntimeError, match="cuDNN runs on CUDA devices only"):
        ops.dropout(x, 0.5, policy="backends=cudnn")


@pytest.mark.filterwarnings("ignore:.*the pinned algorithm")
@pytest.mark.parametrize("action", ["warn", "fallback"])
def test_where_cudnns_numbers_cannot_be_had_a_pin_may_give_way(action: str, device: str) -> None:
    x = torch.ones(100, dtype=torch.bfloat16, device=device, requires_grad=True)
    y = ops.dropout(x, 0.5, policy=f"fwd=legacy:default;on_unsupported={action}")
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (y != 0).bfloat16())
    choice = newest("dropout_fwd")
    assert choice.algorithm == "aten:default"
    assert choice.why.startswith("fallback: legacy:default cannot run")


@pytest.mark.parametrize("ruled", ["dropout_fwd", "dropout_bwd"])
def test_a_rule_says_of_both_passes_whose_numbers_they_have(ruled: str) -> None:
    x = torch.ones(100, requires_grad=True)
    with when(ruled, use="legacy:default"), torch.autograd.set_multithreading_enabled(False):
        lines = _C.problems_posed_by(lambda: torch.autograd.grad(ops.dropout(x, 0.5).sum(), x))
    assert len(lines) == 2 and all("rng=cudnn" in line for line in lines)


@needs_cuda
@pytest.mark.parametrize("ruled", ["dropout_fwd", "dropout_bwd"])
def test_cudnns_numbers_are_had_by_a_rule(ruled: str) -> None:
    x = torch.ones(100, device="cuda", requires_grad=True)
    with when(ruled, use="legacy:default"):
        for policy, wanted in ((None, "legacy:default"), ("aten:default", "aten:default")):
            ops.dropout(x, 0.5, policy=policy).sum().backward()
            for op in ("dropout_fwd", "dropout_bwd"):
                assert newest(op).algorithm == wanted


@needs_cuda
def test_cudnns_numbers_are_had_by_name_or_by_backend() -> None:
    x = torch.ones(100, device="cuda", requires_grad=True)
    for policy in ("fwd=legacy:default", "bwd=legacy:default", "backends=cudnn"):
        ops.dropout(x, 0.5, policy=policy).sum().backward()
        for op in ("dropout_fwd", "dropout_bwd"):
            choice = newest(op)
            assert choice.algorithm == "legacy:default" and "rng=cudnn" in choice.problem
    with pytest.raises(RuntimeError, match="not bf16"):
        ops.dropout(x.bfloat16(), 0.5, policy="fwd=legacy:default")


def test_module(device: str) -> None:
    mine = ours.Dropout(0.3, policy="fwd=aten:default")
    theirs = torch.nn.Dropout(0.3)
    x = torch.randn(50, device=device)
    for module in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert module.policy == "fwd=aten:default"
        torch.manual_seed(5)
        wanted = theirs(x)
        torch.manual_seed(5)
        assert torch.equal(module(x), wanted)
    assert mine.eval()(x) is x
    mine.load_state_dict(theirs.state_dict())
    assert mine.set_mode("aten:default").policy == "fwd=aten:default"


def test_nothing_to_drop_gives_the_input_itself(device: str) -> None:
    full, empty = torch.randn(2, 3, device=device), torch.randn(0, 3, device=device)
    for x, how in ((full, {"training": False}), (full, {"p": 0.0}), (empty, {}), (empty, {"p": 1})):
        assert ops.dropout(x, **how) is x
