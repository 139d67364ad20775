"""Save what a run of a model changes, and restore it."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torch_cudnn_ext._torch_internals import (
    FakeTensor,
    base_of_view,
    is_traceable_wrapper_subclass,
    set_version,
    storage_of,
    version_of,
    without_accumulate_hooks,
)
from torch_cudnn_ext._workload.pytree import instances_in, mutable_containers_in, tensors_in
from torch_cudnn_ext.nn import Tunable


@contextmanager
def preserve_model_state(model: nn.Module, inputs: Any = ()) -> Iterator[None]:
    """Restore what a run changes.

    These are restored:

    - the random state;
    - the attributes of the model and of its modules, and what Python's containers in them hold;
    - the values of the inputs, of buffers, and of other tensors in attributes, but not of
      parameters;
    - which tensors require a gradient.

    Inside the block the gradients are absent, and no hook is called when one is accumulated.
    Modules that an attribute holds without registering them are included.
    """
    modules = modules_of(model)
    states = [(module, type(module), dict(vars(module))) for module in modules]
    # The container of parameters is left alone: FSDP exchanges its parameters during a run.
    held = [
        (container, copy.copy(container))
        for container in mutable_containers_in(
            value
            for _, _, before in states
            for name, value in before.items()
            if name != "_parameters"
        )
    ]
    own = own_tensors(model)
    leaves = [t for t in own if t.is_leaf]
    try:
        with (
            preserve_values(t for t in own if not isinstance(t, nn.Parameter)),
            preserve_values(tensors_in(inputs)),
            preserve_gradients([t for t in leaves if t.requires_grad]),
            preserve_requires_grad(leaves),
            torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        ):
            _cut_graphs([*map(vars, modules), *(container for container, _ in held)])
            yield
    finally:
        for module, cls, before in states:
            _restore_attributes(module, cls, before)
        for container, before in held:
            container.clear()
            if isinstance(container, list | deque):
                container.extend(before)
            else:
                container.update(before)


def _restore_attributes(module: nn.Module, cls: type[nn.Module], before: Mapping[str, Any]) -> None:
    is_ours = isinstance(module, Tunable) or issubclass(cls, Tunable)
    if is_ours and type(module) is not cls:  # the run converted it
        object.__setattr__(module, "__class__", cls)
    now = vars(module)
    for name in [name for name in now if name not in before]:
        del now[name]
    now.update(before)


class _GraphStart(torch.autograd.Function):
    """A tensor that begins a new graph. It is no leaf, so that it may be written to."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, needs_gradient: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        return None, None


def _cut_graphs(containers: Iterable[Any]) -> None:
    """Replace tensors in containers by detached ones: their graphs may run a backward later."""
    cut: dict[int, Tensor] = {}
    needs_gradient = torch.zeros((), requires_grad=True)

    def without_graph(value: Any) -> Any:
        if isinstance(value, Tensor) and not value.is_leaf:
            if id(value) not in cut:
                with torch.enable_grad():
                    cut[id(value)] = _GraphStart.apply(  # type: ignore[no-untyped-call, unused-ignore]
                        value.detach(), needs_gradient
                    )
            return cut[id(value)]
        if isinstance(value, tuple):
            items = [without_graph(item) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return value

    for container in containers:
        if isinstance(container, set):
            continue
        items = container.items() if isinstance(container, Mapping) else enumerate(container)
        for key, value in list(items):
            new = without_graph(value)
            if new is not value:
                container[key] = new


@contextmanager
def preserve_values(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the values, sizes and dtypes of tensors that have changed.

    A graph that saved such a tensor before the block can still run its backward.
    """
    with ExitStack() as stack:
        for t in tensors:
            if not (t.is_meta or isinstance(t, FakeTensor) or _is_freed(t)):
                stack.callback(_put_back, t, t.data, _copied(t), version_of(t))
        yield


def is_plain(t: Tensor) -> bool:
    """Whether a tensor is strided and does not wrap other tensors."""
    return not (t.is_nested or t.layout != torch.strided or is_traceable_wrapper_subclass(t))


def _is_freed(t: Tensor) -> bool:
    """Whether the memory of a tensor was freed, as FSDP does between calls."""
    return is_plain(t) and t.numel() > 0 and t.untyped_storage().nbytes() == 0


def _copied(t: Tensor) -> Tensor:
    try:
        return t.detach().clone()
    except torch.OutOfMemoryError:
        return t.detach().cpu()


def _put_back(t: Tensor, data: Tensor, value: Tensor, version: int | None) -> None:
    with torch.inference_mode(t.is_inference()), torch.no_grad():
        _put_value_back(t, data, value, version)
    if version is not None and version_of(t) != version:
        set_version(t, version)


def _put_value_back(t: Tensor, data: Tensor, value: Tensor, version: int | None) -> None:
    was_written = version_of(t) != version
    if not is_plain(t):
        if was_written:  # torch.equal does not take it
            t.copy_(value)
        return
    if _is_freed(t):
        return
    is_other = storage_of(t) != storage_of(data)
    if is_other or t.shape != data.shape or t.dtype != data.dtype:
        t.data = data
    for dim, stride in enumerate(t.stride()):
        if stride == 0 and t.shape[dim] > 1:  # all elements along it share one address
            t, value = t.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
    try:
        differs = t.device != value.device or not torch.equal(t, value)
    except (RuntimeError, TypeError):  # dtypes and subclasses that cannot be compared
        differs = was_written
    if differs:
        t.copy_(value)


@contextmanager
def preserve_requires_grad(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Restore which leaves require a gradient.

    A leaf that an in-place operation gave a graph becomes a leaf again, unless it is a view or has
    a view.
    """
    wanted = [(leaf, leaf.requires_grad) for leaf in leaves if leaf.is_leaf]
    try:
        yield
    finally:
        viewed = {id(base_of_view(leaf)) for leaf, _ in wanted}
        for leaf, requires_grad in wanted:
            if not leaf.is_leaf and base_of_view(leaf) is None and id(leaf) not in viewed:
                leaf.detach_()
            if leaf.is_leaf and leaf.requires_grad != requires_grad:
                leaf.requires_grad_(requires_grad)


@contextmanager
def preserve_gradients(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Remove the gradients of leaves inside the block, and the hooks on accumulating new ones."""
    gradients = [(leaf, leaf.grad) for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.grad = None
        with without_accumulate_hooks(leaves):
            yield
    finally:
        for leaf, gradient in gradients:
            leaf.grad = gradient


@contextmanager
def in_mode(model: nn.Module, train: bool) -> Iterator[None]:
    """Put a model into training mode or eval mode inside the block.

    A model that is already in that mode stays as it is, since some of its layers, such as frozen
    batch norms, may be in the other mode.
    """
    modes = {module: module.training for module in model.modules()}
    if model.training == train:
        yield
        return
    with preserve_requires_grad([*model.parameters()]):  # train() may freeze some
        try:
            model.train(train)
            yield
        finally:
            model.train(modes[model])  # which may do more than set `training`
            for module, mode in modes.items():
                module.training = mode


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The model, its modules, and the modules in the containers among their attributes."""
    modules = {id(model): model}
    left = [model]
    while left:
        module = left.pop()
        for one in (*module.children(), *instances_in(vars(module), nn.Module)):
            if id(one) not in modules:
                modules[id(one)] = one
                left.append(one)
    return [*modules.values()]


def own_tensors(model: nn.Module) -> list[Tensor]:
    """The tensors of a model and those that attributes of its modules hold, each once."""
    return [*{id(t): t for t in tensors_in([vars(one) for one in modules_of(model)])}.values()]


def copied(module: nn.Module, shared: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy whose modules train or not as before, which some classes do not copy.

    Without shared objects, the weights of a recurrent network on a GPU lie next to each other, as
    they did: PyTorch's kernels need that, and otherwise copy them in each call. What a former call
    left in attributes has no graph in the copy.

    Args:
        module: What is copied.
        shared: Objects that the copy holds as they are, by their ``id``.
    """
    without_graph = {id(t): t.detach().clone() for t in own_tensors(module) if not t.is_leaf}
    made = copy.deepcopy(module, shared or without_graph)
    for name, one in module.named_modules():
        made.get_submodule(name).training = one.training
    for one in made.modules() if not shared else ():
        if isinstance(one, nn.RNNBase):
            one.flatten_parameters()
    return made
