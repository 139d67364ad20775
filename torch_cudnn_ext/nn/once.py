"""The problems of a call and of its backward, for modules that keep their first decision."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_cudnn_ext import _C
from torch_cudnn_ext._torch_internals import (
    DisableFuncTorch,
    DisableTorchFunction,
    FakeTensor,
    disable_current_modes,
    is_functorch_wrapped,
    saved_tensors_hooks_work,
    tree_leaves,
    tree_map_only,
)
from torch_cudnn_ext.ops._arguments import outside_of_traces

_ALIGNMENT = 16  # bytes, the largest alignment that a problem tells


class Call(NamedTuple):
    """Problem lines in the order of execution, and the device that they run on."""

    forward: list[str]
    backward: list[str]
    device: str


def is_computed(tensors: list[Tensor]) -> bool:
    """Whether a call on these computes anything: none does on meta, fake or empty tensors."""
    return bool(tensors) and not any(
        t.is_meta or isinstance(t, FakeTensor) or t.numel() == 0 for t in tensors
    )


def tensors_of(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> list[Tensor]:
    """The tensors among an operator's arguments, and in lists among them."""
    found: list[Tensor] = []
    for value in (*arguments, *keywords.values()):
        items = value if isinstance(value, list | tuple) else [value]
        found += [item for item in items if isinstance(item, Tensor)]
    return found


def pattern_of(training: bool, tensors: list[Tensor]) -> str:
    """What decides which passes a module's call runs; ``torch.compile`` can trace this."""
    grad = torch.is_grad_enabled()
    flags = [training, *(grad and t.requires_grad for t in tensors)]
    return "".join("1" if flag else "0" for flag in flags)


def problems_of(
    operator: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> Call:
    """The problems of a call of an operator, and of its backward; nothing is computed.

    The operator is called in a dry run, on tensors of the same form in place of the caller's. The
    caller's modes and transforms are off meanwhile.
    """
    leaves: list[Tensor] = []
    results: list[Tensor] = []
    device = "cpu"

    def like(t: Tensor) -> Tensor:
        nonlocal device
        if not t.is_floating_point():
            if is_functorch_wrapped(t):
                return torch.zeros(t.shape, dtype=t.dtype, device=t.device)
            return t
        device = str(t.device)
        made = _empty_like(t)
        if not (torch.is_grad_enabled() and t.requires_grad):
            return made
        if any(stride == 0 and n > 1 for n, stride in zip(t.shape, t.stride(), strict=True)):
            leaves.append(made.requires_grad_())  # no operator writes to an expanded tensor
            return made
        # An operator may write to a tensor that is no leaf.
        leaves.append(torch.ones((), dtype=t.dtype, device=t.device, requires_grad=True))
        return made.mul_(leaves[-1])

    def forward() -> None:
        found = operator(*given, **given_by_name)
        results.extend(t for t in tree_leaves(found) if isinstance(t, Tensor) and t.requires_grad)

    def backward() -> None:
        gradients = [torch.empty_like(t) for t in results]
        torch.autograd.grad(results, leaves, gradients, allow_unused=True)

    with (
        outside_of_traces(),
        disable_current_modes(),
        DisableFuncTorch(),
        DisableTorchFunction(),
        # The caller's hooks do not see these tensors. Transforms of torch.func forbid any.
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)
        if saved_tensors_hooks_work()
        else nullcontext(),
        torch.autograd.set_multithreading_enabled(False),  # a dry run is one thread's
    ):
        given = tree_map_only(Tensor, like, arguments)
        given_by_name = tree_map_only(Tensor, like, keywords)
        forward_lines = _C.problems_posed_by(forward)
        backward_lines = _C.problems_posed_by(backward) if results and leaves else []
    return Call(forward_lines, backward_lines, device)


def choose(problem: str, device: str, policy: str) -> str:
    """The algorithm that a policy chooses; the caller's modes are off meanwhile."""
    with outside_of_traces(), disable_current_modes(), DisableFuncTorch():
        algorithm: str = _C.decide(problem, device, policy)["algorithm"]
    return algorithm


def _empty_like(t: Tensor) -> Tensor:
    """A tensor of the same sizes, strides and alignment."""
    offset = 0 if is_functorch_wrapped(t) else t.data_ptr() % _ALIGNMENT // t.element_size()
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    storage = torch.zeros(extent + offset, dtype=t.dtype, device=t.device)
    return storage.as_strided(t.shape, t.stride(), offset)
