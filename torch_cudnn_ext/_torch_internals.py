"""Every private interface of PyTorch and CPython that the package uses, as of PyTorch 2.11.

An upgrade of PyTorch is checked against this module alone. `_libraries` has its own.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch._functorch import compile_utils

# The operator type that torch.ops gives, and its schema.
from torch._ops import OpOverload as OpOverload

# Tensors without data, as torch.compile and torch.export use them.
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.autograd.graph import Node

# A mode that sees every operator below autograd; the switch that suspends all modes of a thread.
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
)

# Nested containers, those that are registered with PyTorch included.
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils.hooks import RemovableHandle

# The operators of which torch.compile does not merge equal calls: it reads this list, and no tags.
UNMERGED_OPERATORS: list[Any] = compile_utils.rand_ops


def storage_of(t: Tensor) -> int:
    """Which memory holds a tensor; equal for tensors that share it."""
    return int(t.untyped_storage()._cdata)


def base_of_view(t: Tensor) -> Tensor | None:
    """What a tensor is a view of; ``None`` if it is no view to autograd."""
    return t._base if t._is_view() else None


def version_of(t: Tensor) -> int | None:
    """How often a tensor was written to; ``None`` if PyTorch does not count that."""
    return None if t.is_inference() else t._version


def set_version(t: Tensor, version: int) -> None:
    """Set the counter by which a backward sees that a saved tensor was written to."""
    torch._C._autograd._unsafe_set_version_counter((t,), (version,))


def post_accumulate_hooks(t: Tensor) -> Any:
    """The hooks that hear that a leaf's gradient was accumulated; ``None`` without any."""
    return t._post_accumulate_grad_hooks


def set_post_accumulate_hooks(t: Tensor, hooks: Any) -> None:
    """Replace the hooks that `post_accumulate_hooks` gives."""
    t._post_accumulate_grad_hooks = hooks


def run_engine(outputs: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
    """``torch.autograd.backward``, which itself hides recomputed operators from modes."""
    torch.autograd.Variable._execution_engine.run_backward(
        outputs,
        gradients,
        False,  # retain_graph
        False,  # create_graph
        (),  # inputs: all leaves
        allow_unreachable=True,
        accumulate_grad=True,
    )


def next_sequence_number() -> int:
    """The number of the autograd node that this thread makes next."""
    return torch._C._autograd._get_sequence_nr()


def sequence_number(node: Node) -> int:
    """The number of an autograd node; nodes that a thread makes later have larger ones."""
    return int(node._sequence_nr())


def profiler_is_on() -> bool:
    """Whether a profiler of PyTorch records."""
    return torch._C._autograd._profiler_enabled()


def is_functorch_wrapped(value: object) -> bool:
    """Whether it is a tensor that a transform of ``torch.func`` wraps."""
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def schema_of(operator: OpOverload) -> torch.FunctionSchema:
    """The schema of an operator: its name, its arguments, and which of them it writes to."""
    return operator._schema


def forget_global_hook(handle: RemovableHandle) -> None:
    """Remove what ``handle.remove()`` leaves of a forward hook of all modules."""
    of_all = torch.nn.modules.module
    of_all._global_forward_hooks_with_kwargs.pop(handle.id, None)
    of_all._global_forward_hooks_always_called.pop(handle.id, None)


def processes_of(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    """The processes that a pool of CPython has started."""
    return [*(pool._processes or {}).values()]


def close_results(pool: ProcessPoolExecutor) -> None:
    """Close this process's end of the pipe by which a pool of CPython gets its results."""
    pool._result_queue._writer.close()  # type: ignore[attr-defined]
