"""Running a model and its backward, and the modes of the compiled half in which it runs."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._torch_internals import run_engine
from torch_cudnn_ext._workload.model_state import preserve_gradients
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_requiring_grad

DRY_RUN_POLICY = "heuristic;on_unsupported=fallback"


def dry_run() -> AbstractContextManager[None]:
    """Tune nothing inside the block: the model runs only to show its calls."""
    return _on(_C.set_model_tracing)


def recording() -> AbstractContextManager[None]:
    """Let ``_C.recorded`` tell what this thread runs, and autograd's threads for it."""
    return _on(_C.set_recording)


@contextmanager
def _on(switch: Callable[[bool], None]) -> Iterator[None]:
    switch(True)
    try:
        yield
    finally:
        switch(False)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """A model on a tensor, a tuple of positional arguments, or a mapping of keyword arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    is_packed = isinstance(inputs, nn.utils.rnn.PackedSequence)  # a tuple that is one argument
    if isinstance(inputs, tuple | list) and not is_packed:
        return model(*inputs)
    return model(inputs)


def detached(inputs: Any) -> Any:
    """The inputs as leaves of a graph of their own, so that the caller's get no gradient."""
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    return map_tensors(lambda t: t.detach().requires_grad_(t.requires_grad), inputs)


def check_gradient_mode() -> None:
    """Raise ValueError in inference mode."""
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "train: nothing has a gradient in inference mode, wanted another mode, or train=False"
        )


def run_backward(output: Any) -> bool:
    """Run the backward of a model's output from gradients of ones; False if it has none."""
    outputs = tuple(tensors_requiring_grad(output))
    if outputs:
        with preserve_gradients(leaves_of(outputs)):
            run_engine(outputs, tuple(torch.ones_like(t) for t in outputs))
    return bool(outputs)


def sum_of_outputs(output: Any) -> Tensor:
    """A loss: the sum of the outputs of a model that require a gradient.

    Raises:
        ValueError: There is no such output.
    """
    tensors = tensors_requiring_grad(output)
    if not tensors:
        raise ValueError(
            f"train: no tensor of the model's output ({type(output).__name__}) has a gradient, "
            "wanted at least one, or train=False"
        )
    return torch.stack([t.float().sum() for t in tensors]).sum()


def leaves_of(outputs: Iterable[Tensor]) -> list[Tensor]:
    """The leaves whose gradients a backward of the outputs accumulates."""
    outputs = [*outputs]
    leaves = [t for t in outputs if t.is_leaf]
    nodes: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    known = set(nodes)
    for node in nodes:  # the list grows in the loop
        if type(node).__name__ == "AccumulateGrad":
            leaves.append(node.variable)
        found = {after for after, _ in node.next_functions if after is not None} - known
        nodes += found
        known |= found
    return leaves
