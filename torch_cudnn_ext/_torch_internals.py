"""Every private interface of PyTorch 2.11 to 2.15 and of CPython that the package uses.

A new version of PyTorch is checked against this module. `_libraries`, which comes before it, has
its own. The methods of ``torch.nn`` that `nn` overrides by name stay there: ``_apply``,
``_conv_forward``, ``__prepare_scriptable__``.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import partial, wraps
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch import _ops as operators
from torch import distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C._dynamo import eval_frame
from torch._subclasses import fake_impls, fake_tensor
from torch.compiler import _cache as compiler_caches
from torch.nn import _reduction as reductions
from torch.nn import functional as F
from torch.utils import _python_dispatch as dispatch
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

P = ParamSpec("P")
R = TypeVar("R")

PrefixStore = c10d.PrefixStore  # the keys of a store that begin with a word
Store: TypeAlias = c10d.Store  # by which processes find each other
OpOverload = operators.OpOverload  # one overload of an operator, as torch.ops gives it
OpOverloadPacket = operators.OpOverloadPacket  # all overloads of an operator
TorchDispatchMode = dispatch.TorchDispatchMode  # a mode that sees operators below autograd
# Context managers that suspend all modes of Python, all modes and subclasses that have a
# __torch_function__, and the transforms of torch.func.
disable_current_modes = dispatch._disable_current_modes
DisableTorchFunction = torch._C.DisableTorchFunction
DisableFuncTorch = torch._C._DisableFuncTorch

# Nested containers, those included that are registered with PyTorch.
tree_leaves, tree_map, tree_map_only = pytree.tree_leaves, pytree.tree_map, pytree.tree_map_only
is_traceable_wrapper_subclass = dispatch.is_traceable_wrapper_subclass  # whether others are inside

FakeTensor = fake_tensor.FakeTensor  # a tensor without data, as torch.compile uses it
FakeTensorMode = fake_tensor.FakeTensorMode
register_op_impl = fake_impls.register_op_impl  # how an operator runs on fake tensors

_unchecked: set[Any] = set()  # what Inductor lowers without a check of the results' sizes

current_graph_task = torch._C._current_graph_task_id  # -1 if autograd does not run
next_sequence_number = torch._C._autograd._get_sequence_nr  # of this thread's next autograd node
profiler_is_on = torch._C._autograd._profiler_enabled
jit_tracing_state = torch._C._get_tracing_state  # None if torch.jit.trace does not run
set_jit_tracing_state = torch._C._set_tracing_state  # type: ignore[attr-defined]
# Whether hooks on saved tensors are allowed, which is not so inside of torch.func's transforms.
saved_tensors_hooks_work: Callable[[], bool] = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]

reduction_index: Callable[[Any], int] = reductions.get_enum  # of none, mean and sum
legacy_reduction = reductions.legacy_get_string  # the name for size_average and reduce
implicit_softmax_dim = F._get_softmax_dim  # type: ignore[attr-defined]  # warns, too
occupy_gpu: Callable[[int], None] = torch.cuda._sleep  # for so many cycles, on the current stream
current_frame = sys._getframe


def schema_of(operator: OpOverload) -> torch.FunctionSchema:
    """The schema of an operator: its name, its arguments, and which of them it writes to."""
    return operator._schema


def is_functorch_wrapped(value: object) -> bool:
    """Whether it is a tensor that a transform of ``torch.func`` wraps."""
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


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
    """Set the count by which a backward sees that a saved tensor was written to."""
    torch._C._autograd._unsafe_set_version_counter((t,), (version,))


def sequence_number(node: Any) -> int:
    """The number of an autograd node: nodes that a thread makes later have larger ones."""
    return int(node._sequence_nr())


@contextmanager
def without_accumulate_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Call no hook on the accumulation of leaves' gradients inside the block."""
    hooks = [(leaf, found) for leaf in leaves if (found := leaf._post_accumulate_grad_hooks)]
    try:
        for leaf, _ in hooks:
            leaf._post_accumulate_grad_hooks = {}
        yield
    finally:
        for leaf, found in hooks:
            leaf._post_accumulate_grad_hooks = found


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


def forget_compiled(overridden: Iterable[OpOverload]) -> None:
    """Drop what the operators found in the dispatcher, and what ``torch.compile`` compiled."""
    for operator in overridden:
        operator._dispatch_cache.clear()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


class _AfterImport:
    """A finder of modules that finds one, and runs a function after the import of it."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        self.remove()
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def load(module: ModuleType) -> None:
                execute(module)
                self.then(module)

            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


@contextmanager
def around_compiled_graphs(set_running: Callable[[bool], bool]) -> Iterator[None]:
    """Inside the block, tell when a thread runs the code of Inductor's graphs, cached ones too.

    Inductor is not imported for that.

    Args:
        set_running: Takes whether the thread runs such code, and returns what held before.
    """
    name = "torch._inductor.output_code"
    with ExitStack() as undo:

        def follow(module: Any) -> None:
            graph = module.CompiledFxGraph
            run = graph.__call__

            @wraps(run)
            def call(self: Any, inputs: Sequence[Any]) -> Any:
                before = set_running(True)
                try:
                    return run(self, inputs)
                finally:
                    set_running(before)

            graph.__call__ = call
            undo.callback(setattr, graph, "__call__", run)

        if name in sys.modules:
            follow(sys.modules[name])
        else:
            finder = _AfterImport(name, follow)
            sys.meta_path.insert(0, finder)
            undo.callback(finder.remove)
        yield


@contextmanager
def decomposed_in_traces(overridden: Iterable[OpOverload]) -> Iterator[None]:
    """Inside the block, traces decompose overridden operators as they do without the overrides.

    PyTorch takes a decomposition in Python for a composite only if no kernel is registered at the
    keys of the backends and of their autograd.
    """
    key = torch._C.DispatchKey
    overridden_at = [key.AutogradCPU, key.AutogradCUDA, key.CPU, key.CUDA]
    composite = key.CompositeImplicitAutograd
    with ExitStack() as undo:
        for operator in overridden:
            kernels = operator.py_kernels
            for place in overridden_at if composite in kernels else ():
                kernels[place] = kernels[composite]
                undo.callback(kernels.pop, place)
        yield


def carry_in_compiler_caches(
    kind: str, load: Callable[[bytes], None]
) -> Callable[[str, bytes], None]:
    """Let ``torch.compiler.save_cache_artifacts`` carry contents of a kind of one's own.

    PyTorch loads none of the saved artifacts in a process that does not know the kind.

    Args:
        kind: The name of the kind, which no other may have.
        load: Gets each content that ``torch.compiler.load_cache_artifacts`` loads.

    Returns:
        A function that takes a key and a content to carry.
    """

    class Carried(compiler_caches.CacheArtifact):
        def populate_cache(self) -> None:
            load(self.content)

        @staticmethod
        def type() -> str:
            return kind

    compiler_caches.CacheArtifactFactory.register(Carried)
    return partial(compiler_caches.CacheArtifactManager.record_artifact, kind)


def assume_constant_result(function: Callable[P, R]) -> Callable[P, R]:
    """``torch.compiler.assume_constant_result``, which imports all of Dynamo to set this mark."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def disable_dynamo(reason: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``torch.compiler.disable`` as a decorator, which does not import all of Dynamo.

    Dynamo reads the marks when it meets the function in code that it compiles. The interpreter
    runs the function's own frame, and all that it calls, without Dynamo.
    """
    skip = eval_frame._FrameAction.SKIP

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
        return function

    return decorate


def guard_or_false(condition: bool | torch.SymBool) -> bool:
    """A condition that may be symbolic; False if it is unknown."""
    # The import takes as long as that of SymPy, which a plain truth value does not need. Dynamo
    # takes its symbolic values for bool.
    if not torch.compiler.is_compiling() and isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def describe_to_compiler(
    random: Sequence[OpOverloadPacket], any_size: Sequence[OpOverload]
) -> None:
    """Tell ``torch.compile`` of operators, as soon as it traces one of them.

    It runs operators on fake tensors first, without a cache for operators that are not PyTorch's.

    Args:
        random: Operators of which equal calls stay apart. It reads no tags for that.
        any_size: Operators with results whose sizes only the kernels know; their fake ones are
            empty. Inductor 2.15 checks the sizes of all results of an operator unless its lowering
            says otherwise.
    """
    names: Any = operators.OpOverloadPacket.overloads
    overloads = [getattr(packet, name) for packet in random for name in names(packet)]

    @register_op_impl([*{*overloads, *any_size}])
    def describe(mode: FakeTensorMode, op: OpOverload, *more: Any, **keywords: Any) -> Any:
        # What reads these was imported before it traces. Nothing else that traces needs them.
        merging = sys.modules.get("torch._functorch.compile_utils")
        if merging is not None and op.overloadpacket not in merging.rand_ops and op in overloads:
            merging.rand_ops.append(op.overloadpacket)
        lowering = sys.modules.get("torch._inductor.lowering")
        if lowering is not None and op not in lowering.lowerings and op in any_size:
            _lower_without_size_checks(lowering, op)
        return NotImplemented  # the operator's meta function follows


def _lower_without_size_checks(lowering: Any, op: OpOverload) -> None:
    from torch._library.utils import get_layout_constraint_tag
    from torch._prims import rng_prims

    layout = lowering.tag_to_layout_constraint(get_layout_constraint_tag(op, with_default=True))
    lowering.make_fallback(op, layout)
    # A checkpoint calls random operators by way of these.
    by_way = [rng_prims.run_and_save_rng_state, rng_prims.run_with_rng_state]
    for lowered in {op, *by_way} - _unchecked:
        _unchecked.add(lowered)
        lowering.lowerings[lowered] = _without_size_checks(lowering.lowerings[lowered])


def _without_size_checks(fallback: Callable[..., Any]) -> Callable[..., Any]:
    from torch._inductor import ir

    @wraps(fallback)
    def lower(*arguments: Any, **keywords: Any) -> Any:
        results = fallback(*arguments, **keywords)
        for result in tree_leaves(results):
            buffer = getattr(getattr(result, "data", None), "data", None)
            if isinstance(buffer, ir.MultiOutput) and 0 in buffer.get_size():
                buffer.skip_size_stride_alignment_checks = True
        return results

    return lower


def keep_gradient_buffers() -> AbstractContextManager[object]:
    """Let a compiled backward keep its buffers, so that it can run again."""
    from torch._functorch import config

    patch: AbstractContextManager[object] = config.patch(donated_buffer=False)
    return patch


def backends_may_change() -> AbstractContextManager[object]:
    """Let the switches of ``torch.backends`` be set after ``disable_global_flags``."""
    allowed = getattr(torch.backends, "__allow_nonbracketed_mutation")  # noqa: B009
    context: AbstractContextManager[object] = allowed()
    return context


def compiled_original(module: nn.Module) -> nn.Module | None:
    """The module that ``torch.compile`` wrapped, if this is what it made."""
    return module._modules["_orig_mod"] if "_orig_mod" in module._modules else None


def registered_names(module: nn.Module) -> set[str]:
    """The names of a module's parameters, buffers and children."""
    return {*module._parameters, *module._buffers, *module._modules}


def has_forward_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks of its own on its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks of its own on its forward or its backward."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """The children of a module, by name."""
    return module._modules


def share_tensors(made: nn.Module, module: nn.Module) -> None:
    """Let a module have the parameters and buffers of another, also those that it gets later."""
    made._parameters, made._buffers = module._parameters, module._buffers


def share_children(made: nn.Module, module: nn.Module) -> None:
    """Let a module have the children of another, also those that it gets later."""
    made._modules = module._modules


def registered_buffers(module: nn.Module) -> dict[str, Any]:
    """The dictionary of a module's own buffers, which may be changed."""
    return module._buffers


def layer_with_same_tensors(layer: nn.Module) -> nn.Module:
    """A copy of a layer without children, with its tensors."""
    made = copy.copy(layer)
    made._parameters, made._buffers = dict(layer._parameters), dict(layer._buffers)
    return made


def forget_global_hook(handle: RemovableHandle) -> None:
    """Remove what ``handle.remove()`` leaves of a forward hook of all modules."""
    of_all = torch.nn.modules.module
    of_all._global_forward_hooks_with_kwargs.pop(handle.id, None)
    of_all._global_forward_hooks_always_called.pop(handle.id, None)


def check_input_dim(norm: nn.Module, input: Tensor) -> None:
    """Raise ValueError if a batch norm does not take an input of that many dimensions."""
    norm._check_input_dim(input)  # type: ignore[operator]


def reversed_padding(conv: nn.Module) -> list[int]:
    """A convolution's padding as ``torch.nn.functional.pad`` takes it."""
    return conv._reversed_padding_repeated_twice  # type: ignore[return-value]


def output_padding(conv: Any, input: Tensor, output_size: list[int] | None) -> list[int]:
    """The padding by which a transposed convolution gives an output of that size."""
    kernel = conv.kernel_size
    sizes = (conv.stride, conv.padding, kernel, len(kernel), conv.dilation)
    found: list[int] = conv._output_padding(input, output_size, *sizes)
    return found


def flat_weights(rnn: nn.RNNBase) -> list[Tensor]:
    """A recurrent module's parameters in the order of the operator, brought up to date."""
    rnn._update_flat_weights()
    return rnn._flat_weights  # type: ignore[return-value]


def weight_names(rnn: nn.RNNBase) -> list[list[str]]:
    """The names of a recurrent module's parameters, by layer and direction."""
    return rnn._all_weights


def drop_weights(rnn: nn.RNNBase, names: Iterable[str]) -> None:
    """Delete parameters of a recurrent module."""
    for name in names:
        delattr(rnn, name)
        rnn._flat_weights_names.remove(name)
        next(found for found in rnn._all_weights if name in found).remove(name)
    rnn._init_flat_weights()


def processes_of(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    """The processes that a pool has started."""
    return [*(pool._processes or {}).values()]


def close_results(pool: ProcessPoolExecutor) -> None:
    """Close this process's writing end of the pipe by which a pool gets its results."""
    pool._result_queue._writer.close()  # type: ignore[attr-defined]


def default_store() -> Store:
    """The store of the default process group, which must be there."""
    return dist.distributed_c10d._get_default_store()


def gloo_group(store: Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    """A group of gloo that ``torch.distributed`` does not know of.

    ``new_group`` for a part of the ranks counts groups on these ranks alone, so that a later group
    of all ranks would have another name on them.
    """
    group, kind = dist.ProcessGroup(store, rank, size), dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    backend = c10d.ProcessGroupGloo(store, rank, size, timeout)
    group._register_backend(torch.device("cpu"), kind, backend)
    return group


def gather_bytes(group: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """What all ranks of a `gloo_group` give, in their order.

    ``all_gather_object`` asks ``torch.distributed`` about the group, to report errors and if
    ``TORCH_DISTRIBUTED_DEBUG`` is ``DETAIL``.
    """
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    count = torch.tensor([len(mine)], device="cpu")
    counts = [torch.empty_like(count) for _ in range(group.size())]
    group.allgather([counts], [count]).wait()
    padded = torch.zeros(max(map(int, counts)), dtype=torch.uint8, device="cpu")
    padded[: len(mine)] = mine
    parts = [torch.empty_like(padded) for _ in counts]
    group.allgather([parts], [padded]).wait()
    return [part[: int(n)].numpy().tobytes() for part, n in zip(parts, counts, strict=True)]
