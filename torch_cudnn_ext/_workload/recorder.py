"""Record what an unchanged model runs: each call with its layer, or the problems alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import write_text
from torch_cudnn_ext._torch_internals import (
    FakeTensor,
    forget_global_hook,
    next_sequence_number,
    sequence_number,
)
from torch_cudnn_ext._workload.model_state import (
    in_mode,
    own_tensors,
    preserve_gradients,
    preserve_model_state,
    preserve_values,
)
from torch_cudnn_ext._workload.problems import Layer, merge
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.running import (
    call_model,
    check_gradient_mode,
    detached,
    dry_run,
    leaves_of,
    recording,
    sum_of_outputs,
)
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.enable import enabled, is_enabled
from torch_cudnn_ext.models.pins import standing_for
from torch_cudnn_ext.ops._arguments import check_flag

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Decision

T = TypeVar("T")

_NODE = "TorchCudnnExt"  # the beginning of the names of our autograd nodes


class RecordedCall(NamedTuple):
    """One call, or a layer that made none.

    Attributes:
        layer: The innermost module that made the call, by name; empty for the model itself.
        module: That module, if there is one.
        event: What ran, or a text that says why PyTorch's own kernel ran.
    """

    layer: str
    module: nn.Module | None
    event: "Decision | str"


def described_calls(
    model: nn.Module, inputs: Any, train: bool, describe: Callable[[RecordedCall], T]
) -> list[T]:
    """What ``describe`` gives for each call of one run of a model under `enable`.

    What the run changed is restored (see `preserve_model_state`), with ``train`` also parameters.

    Args:
        model: A module that is not compiled.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: Run the backward of the sum of the outputs, too, in training mode.
        describe: Called before the model is restored.

    Raises:
        ValueError: With ``train``, no output of the model has a gradient; or the model or its
            inputs have no data.
    """
    if train:
        check_gradient_mode()
    for t in tensors_in(([*model.parameters(), *model.buffers()], inputs)):
        if t.is_meta or isinstance(t, FakeTensor):
            raise ValueError(
                "model: got one that has, or whose inputs have, no data (on the meta device, or "
                "fake), wanted data to run on; profile_model takes the meta device"
            )
    recorder = _Recorder(model)
    with (
        preserve_model_state(model, inputs),
        preserve_values(t for t in own_tensors(model) if train and isinstance(t, nn.Parameter)),
        enabled() if not is_enabled() else nullcontext(),
        torch.compiler.set_stance("force_eager"),  # layers of it may be compiled
        recording(),
    ):
        given = detached(inputs) if train else inputs
        with in_mode(model, train), recorder.hooks(), torch.set_grad_enabled(train):
            output = call_model(model, given)
            if train:
                loss = sum_of_outputs(output)
                with preserve_gradients(leaves_of([loss])):
                    torch.autograd.backward(loss)
        return [describe(call) for call in recorder.calls()]


def problems_of_model(model: nn.Module, inputs: Any, train: bool) -> list[Layer]:
    """What `trace` writes as lines; the arguments and errors are as there."""
    check_flag("trace", "train", train)
    model = eager_model("trace", model)
    with dry_run():
        calls = described_calls(model, inputs, train, lambda call: (call.event, call.layer))
    return merge(
        Layer(event["problem"], (layer or "model",))
        for event, layer in calls
        if not isinstance(event, str)
    )


def trace(
    model: nn.Module, inputs: Any, path: str | Path | None = None, *, train: bool = True
) -> list[str]:
    """The problem lines that a model meets, each with its layers and how often it occurs.

    Args:
        model: As for `explain`, like all that follow.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        path: A file to write them to, as ``profile --problems`` reads it.
        train: Also the problems of the backward.

    Returns:
        The lines, each problem once, in the order in which they are first met.

    Raises:
        TypeError: ``model`` is no module, or ``train`` no bool.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient.
        RuntimeError: A pin cannot run, among other errors of the model.
        OSError: The file cannot be written.

    Example:
        >>> trace(torch.nn.Softmax(1), torch.zeros(1, 4), train=False)
        ['softmax_fwd x=f32[1,4,1]:nchw log=false  # model x1']
    """
    lines = []
    for one in problems_of_model(model, inputs, train):
        # A name may hold line breaks, and the commas that separate names here.
        names = ", ".join("_".join(name.replace(",", " ").split()) for name in one.names)
        lines.append(f"{one.problem}  # {names} x{one.count}")
    if path is not None:
        write_text(path, "\n".join(lines) + "\n")
    return lines


class _Recorder:
    """Records which layer made which call.

    Calls are recorded in order. A layer's own calls are those between its pre-hook and its hook,
    less those of inner layers. Its backward calls are those between the hooks of its autograd
    nodes.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._events: list[Decision | str] = []
        self._owners: dict[int, nn.Module] = {}
        # The calls that run: the module, the first event, the number of the first autograd node.
        self._open: list[tuple[nn.Module, int, int]] = []
        # The nodes that are known. They are kept alive, so that no other has the same identity.
        self._nodes: set[Any] = set()
        self._called: dict[nn.Module, list[int]] = {}  # the event before which each call came
        self._idle: set[nn.Module] = set()  # modules that had nothing to compute

    def _count(self) -> int:
        self._events += _C.recorded(len(self._events))
        return len(self._events)

    def _claim(self, begin: int, module: nn.Module) -> None:
        for i in range(begin, self._count()):
            self._owners.setdefault(i, module)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Record the calls of the model's modules.

        The hooks are those of all modules: a `torch.nn.TransformerEncoderLayer` with a hook of its
        own would not take the fast path that it takes otherwise.
        """
        of_all = torch.nn.modules.module
        before = of_all.register_module_forward_pre_hook(self._before)
        after = of_all.register_module_forward_hook(self._after, with_kwargs=True, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            forget_global_hook(after)
            # Nodes hold their hooks, and the hooks hold the recorder. The garbage collector does
            # not see this circle.
            self._nodes.clear()
            self._open.clear()

    def _before(self, module: nn.Module, args: Any) -> None:
        if module in self._names:
            begin = self._count()
            self._open.append((module, begin, next_sequence_number()))
            self._called.setdefault(module, []).append(begin)

    def _after(self, module: nn.Module, args: Any, *rest: Any) -> None:
        if not self._open or self._open[-1][0] is not module:  # its beginning was not seen
            return
        *kwargs, output = rest  # without keyword arguments after a forward that raised
        _, begin, first_node = self._open.pop()
        self._claim(begin, module)
        tensors = tensors_in((args, kwargs, output))
        passes_on = isinstance(module, nn.Dropout) and not module.training
        if passes_on or any(t.numel() == 0 for t in tensors):
            self._idle.add(module)
        waiting, seen = [t.grad_fn for t in tensors_in(output)], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in seen or sequence_number(node) < first_node:
                continue
            seen.add(node)
            if node not in self._nodes:  # a known node is an inner layer's; its inputs may be new
                self._nodes.add(node)
                if node.name().startswith(_NODE):
                    self._watch_node(node, module)
            waiting += [following for following, _ in node.next_functions]

    def _watch_node(self, node: Any, module: nn.Module) -> None:
        begins: list[int] = []
        node.register_prehook(lambda grads: begins.append(self._count()))
        node.register_hook(lambda results, grads: self._claim(begins.pop(), module))

    def calls(self) -> Iterator[RecordedCall]:
        """One for each event, and one for each call of a layer that should have had an event."""
        count = self._count()
        busy = set(self._owners.values())
        idle: dict[int, list[RecordedCall]] = {}
        for module, places in self._called.items():
            if reason := self._why_idle(module, module in busy):
                for place in places:
                    call = RecordedCall(self._names[module], module, reason)
                    idle.setdefault(place, []).append(call)
        for i in range(count + 1):
            yield from idle.get(i, [])
            if i < count:
                owner = self._owners.get(i)
                name = "" if owner is None else self._names[owner]
                yield RecordedCall(name, owner, self._events[i])

    def _why_idle(self, module: nn.Module, is_busy: bool) -> str:
        """Why a module that was called made none of the calls that it should have made."""
        if isinstance(module, nn.TransformerEncoderLayer):
            called = any(child in self._called for child in module.children())
            return "" if called else "PyTorch's fast path ran, which does not call its layers"
        if is_busy or standing_for(module) is None:
            return ""
        if module in self._idle:
            return "it had nothing to compute"
        if getattr(module, "return_indices", False):
            return "it gives indices, which PyTorch's kernels alone do"
        return "no operator that enable() overrides was called for it in this thread"
