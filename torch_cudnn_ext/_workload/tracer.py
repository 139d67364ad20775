"""The calls of this package's operators in one run of a model, and the problems that they pose."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from torch_cudnn_ext import _C
from torch_cudnn_ext._functional_map import our_keywords, replacements
from torch_cudnn_ext._torch_internals import (
    OpOverload,
    TorchDispatchMode,
    is_functorch_wrapped,
    schema_of,
    storage_of,
    tree_leaves,
    tree_map,
)
from torch_cudnn_ext._workload.model_state import is_plain, preserve_model_state, preserve_values
from torch_cudnn_ext._workload.pytree import is_floating, tensors_in, tensors_requiring_grad
from torch_cudnn_ext._workload.running import DRY_RUN_POLICY, call_model, detached, run_backward
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.ops._arguments import is_meta

# What our functions raise for arguments that they do not take.
_ARGUMENT_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)


class MetaError(RuntimeError):
    """A network on the meta device needs autocast or values, which that device lacks."""


def is_function(name: str) -> bool:
    """Whether a layer's name is that of a function, called by a module; no pin reaches it."""
    return name.endswith("()")


def function_name(module: str, function: str) -> str:
    """The name of a function that a module calls."""
    return f"{module}.{function}()".lstrip(".")


@dataclass(frozen=True)
class TensorForm:
    """What describes a tensor without its values.

    Tensors that are not floating-point keep their values, since these may be lengths.
    ``may_need_gradient`` says whether its operator allows a gradient, ``needs_gradient`` whether
    autograd required one at the call.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    may_need_gradient: bool
    needs_gradient: bool
    is_result: bool  # the operator writes its result to it, and returns nothing
    values: tuple[int, ...] | None

    def tensor(self, requires_grad: bool) -> Tensor:
        """A tensor of this form."""
        made = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device)
        if self.values is not None:
            return made.copy_(torch.tensor(self.values, dtype=self.dtype).reshape(self.sizes))
        if not self.dtype.is_floating_point:
            return made.zero_()
        return made.requires_grad_(requires_grad)


class _Writable(torch.autograd.Function):
    """A new tensor that passes its gradient to a leaf, and that may be written in place."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, form: TensorForm) -> Tensor:
        return form.tensor(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass
class TracedCall:
    """Equal calls of one operator, and the modules that made them.

    Attributes:
        function: The operator.
        arguments: Its positional arguments, with a `TensorForm` in the place of each tensor.
        keywords: Its keyword arguments likewise.
        autocast: The device and dtype of autocast, if it was on.
        names: How often each module made the call.
        kind: The class of the first module.
        gradients: The gradients that arrived, by the index of their result; ``None`` without a
            backward.
    """

    function: OpOverload
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    autocast: tuple[str, torch.dtype] | None
    names: Counter[str]
    kind: str
    gradients: dict[int, TensorForm] | None = field(default_factory=dict)

    def problems(self, with_backward: bool) -> tuple[list[str], list[str]]:
        """The problem lines of the call, and of its backward; nothing is computed."""
        leaves: list[Tensor] = []
        results: list[Tensor] = []

        def realised(item: Any) -> Any:
            if not isinstance(item, TensorForm):
                return item
            needed = item.may_need_gradient if self.gradients is None else item.needs_gradient
            leaves.append(item.tensor(with_backward and needed))
            if not item.is_result:
                return leaves[-1]
            results.append(_Writable.apply(leaves[-1], item))  # type: ignore[no-untyped-call, unused-ignore]
            return results[-1]

        def forward() -> None:
            results.extend(tensors_in(self.function(*arguments, **keywords)))

        def backward() -> None:
            outputs = {i: t for i, t in enumerate(results) if t.requires_grad}
            if self.gradients is None:
                gradients = {i: torch.empty_like(t) for i, t in outputs.items()}
            else:
                gradients = {i: form.tensor(False) for i, form in self.gradients.items()}
            arrived = [i for i in outputs if i in gradients]
            inputs = tensors_requiring_grad(leaves)
            if arrived and inputs:
                torch.autograd.grad(
                    [outputs[i] for i in arrived],
                    inputs,
                    [gradients[i] for i in arrived],
                    allow_unused=True,
                )

        device, dtype = self.autocast or ("cpu", None)
        with (
            torch.autocast(device, dtype, enabled=self.autocast is not None),
            torch.set_grad_enabled(with_backward),
            torch.autograd.set_multithreading_enabled(False),  # a dry run belongs to one thread
        ):
            arguments, keywords = tree_map(realised, (self.arguments, self.keywords))
            lines = _C.problems_posed_by(forward)
            return lines, _C.problems_posed_by(backward) if with_backward else []


@dataclass
class _Running:
    """A module or function that is running, and whether it is this package's."""

    name: str
    kind: str
    is_ours: bool = False
    in_forward: bool = True  # False in a hook

    @property
    def runs_ours(self) -> bool:
        """Whether this package makes the next calls."""
        return self.is_ours and self.in_forward


class CallTracer(TorchFunctionMode):
    """Records the calls of this package's operators, before autograd and autocast see them.

    With ``functions``, a function of PyTorch that the network calls is replaced by its counterpart
    in `ops`, if that takes the arguments.

    Attributes:
        calls: The calls in order.
        others: How often each other operator that computes was called.
    """

    def __init__(self, model: nn.Module, *, functions: bool = False) -> None:
        super().__init__()
        self.calls: list[TracedCall] = []
        self.others: Counter[str] = Counter()
        self._model = model
        self._buffers = {id(buffer) for buffer in model.buffers()}
        self._replacements = replacements() if functions else {}
        self._stack = [_Running("", type(model).__name__)]
        self._other_calls = _OtherCalls(self.others, model)

    def run(self, inputs: Any, backward: bool) -> bool:
        """Run the model and its backward, and restore it; False if there is no backward."""
        others = self._other_calls
        with (
            preserve_model_state(self._model, inputs),
            others.written,
            torch.set_grad_enabled(backward),
            self,
            torch.autograd.set_multithreading_enabled(False),  # the modes are of this thread
        ):
            with others:
                output = call_model(self._model, detached(inputs))
            return backward and run_backward(output)

    @contextmanager
    def naming_modules(self) -> Iterator[None]:
        """Record which module makes a call inside the block."""
        handles = []
        for name, module in self._model.named_modules():
            entry = _Running(name, type(module).__name__, isinstance(module, Tunable))

            def enter(*_: Any, entry: _Running = entry) -> None:
                self._stack.append(replace(entry, in_forward=False))

            handles += [
                module.register_forward_pre_hook(enter, prepend=True),
                # Calls that other hooks make count as the network's.
                module.register_forward_pre_hook(lambda *_: self._in_forward(True)),
                module.register_forward_hook(lambda *_: self._in_forward(False), prepend=True),
                module.register_forward_hook(lambda *_: self._leave(), always_call=True),
            ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _in_forward(self, value: bool) -> None:
        self._stack[-1].in_forward = value

    def _leave(self) -> None:
        self._stack.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record a call of our operator, or replace a call of PyTorch's function by ours."""
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and func.namespace == "torch_cudnn_ext":
            return self._traced(func, args, kwargs)
        ours = self._replacements.get(func)
        # What our functions call is not replaced, nor are calls on subclasses of tensors.
        is_replaced = {Tensor, nn.Parameter}.issuperset(types) and not self._stack[-1].runs_ours
        if ours is None or not is_replaced:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        # Under vmap a call has one sample, without the sizes and gradients of all samples.
        if not any(map(is_floating, leaves)) or any(map(is_functorch_wrapped, leaves)):
            return func(*args, **kwargs)
        return self._replaced(func, ours, args, kwargs)

    def _traced(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call, results = self._note(func, args, kwargs)
        with self._other_calls.silent():
            output = func(*args, **kwargs)
        for place, result in enumerate([*results, *tensors_in(output)]):
            if result.requires_grad:
                note = partial(self._note_gradient, call, place)
                result.register_hook(note)  # type: ignore[no-untyped-call]
        return output

    def _replaced(
        self, func: Any, ours: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        known = len(self.calls)
        name = function_name(self._stack[-1].name, ours.__name__)
        self._stack.append(_Running(name, ours.__name__, is_ours=True))
        try:
            with self:
                return ours(*args, **our_keywords(kwargs), policy=DRY_RUN_POLICY)
        except MetaError:
            raise
        except _ARGUMENT_ERRORS:
            del self.calls[known:]
        finally:
            self._stack.pop()
        return func(*args, **kwargs)

    def _note_gradient(self, call: TracedCall, place: int, gradient: Tensor | None) -> None:
        if gradient is not None and call.gradients is not None:
            call.gradients[place] = self._forms(gradient, is_state=False, is_result=False)

    def _note(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[TracedCall, list[Tensor]]:
        """The call that is about to run, and those of its arguments that will be its results."""
        schema = schema_of(func)
        written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
        # If an operator returns results, it writes to a state only, such as running statistics.
        results = set() if schema.returns else written
        named = dict(zip((argument.name for argument in schema.arguments), args, strict=False))
        given = {**named, **kwargs}
        if any(name.endswith("lengths") and is_meta(value) for name, value in given.items()):
            raise MetaError("tensors of the meta device have no values, which lengths are")
        forms = {
            name: self._forms(value, name in written - results, name in results)
            for name, value in given.items()
        }
        running = self._stack[-1]
        name = running.name
        if not running.runs_ours:  # the caller is neither our layer nor our function
            name = function_name(name, schema.name.partition("::")[2])
        call = TracedCall(
            func,
            tuple(forms[name] for name in named),
            {name: forms[name] for name in kwargs},
            self._autocast([*given.values()]),
            Counter([name]),
            running.kind,
        )
        self.calls.append(call)
        return call, tensors_in([value for name, value in given.items() if name in results])

    def _forms(self, value: Any, is_state: bool, is_result: bool) -> Any:
        def form(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            known = not item.is_floating_point() and not item.is_meta
            return TensorForm(
                tuple(item.shape),
                tuple(item.stride()),
                item.dtype,
                torch.device("cpu") if item.is_meta else item.device,
                item.is_floating_point() and not is_state and id(item) not in self._buffers,
                item.requires_grad and torch.is_grad_enabled(),
                is_result,
                tuple(item.flatten().tolist()) if known else None,
            )

        return tree_map(form, value)

    @staticmethod
    def _autocast(arguments: Sequence[Any]) -> tuple[str, torch.dtype] | None:
        for item in tree_leaves(arguments):
            if not isinstance(item, Tensor):
                continue
            if item.is_meta:
                is_on = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
                if is_on and item.is_floating_point():
                    raise MetaError("tensors of the meta device do not obey autocast")
            elif torch.is_autocast_enabled(device := item.device.type):
                return device, torch.get_autocast_dtype(device)
        return None


class _OtherCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the calls that compute and are none of this package's operators.

    Leaving `written` restores the parameters that such calls write to, for example those of an
    embedding with ``max_norm``.
    """

    def __init__(self, counts: Counter[str], model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written = ExitStack()
        self._counts = counts
        self._is_silent = False
        self._parameters: defaultdict[int, list[nn.Parameter]] = defaultdict(list)
        for parameter in model.parameters():
            if not is_lazy(parameter) and is_plain(parameter):
                self._parameters[storage_of(parameter)].append(parameter)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Count no calls inside the block: they belong to an operator of this package."""
        before, self._is_silent = self._is_silent, True
        try:
            yield
        finally:
            self._is_silent = before

    def _preserve_written(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Save the values of parameters that are about to be written for the first time."""
        for place, argument in enumerate(schema_of(func).arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for t in tensors_in(value):
                if is_plain(t) and (written := self._parameters.pop(storage_of(t), [])):
                    self.written.enter_context(preserve_values(written))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        schema = schema_of(func)
        if schema.is_mutable:
            self._preserve_written(func, args, kwargs or {})
        computes = not func.is_view and any(map(is_floating, tree_leaves(args)))
        computes = computes and not schema.name.startswith(("aten::empty", "prim::"))
        if computes and not self._is_silent and func.namespace != "torch_cudnn_ext":
            self._counts[f"{func.namespace}.{schema.name.partition('::')[2]}"] += 1
        return func(*args, **(kwargs or {}))
