"""``optimize`` for training: a step with our layers, timed and checked next to PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from torch_cudnn_ext._optimize.forms import reason_of, sizes_of
from torch_cudnn_ext._optimize.making import changed_by_run, new_training_report
from torch_cudnn_ext._optimize.memory import peak_bytes, ways_within_peak
from torch_cudnn_ext._optimize.numerics import largest_error, largest_finite, results_in_float64
from torch_cudnn_ext._optimize.options import Loss, Options
from torch_cudnn_ext._optimize.recipe import Recipe, Way
from torch_cudnn_ext._optimize.rewriting import DROPOUTS
from torch_cudnn_ext._optimize.search import Search
from torch_cudnn_ext._optimize.tracing import same_random_numbers
from torch_cudnn_ext._optimize.training_model import TrainingModel
from torch_cudnn_ext._optimize.ways import samples_of, settle_way, ways_within
from torch_cudnn_ext._workload.model_state import copied, preserve_model_state, preserve_values
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in, tensors_requiring_grad
from torch_cudnn_ext._workload.running import check_gradient_mode, detached, sum_of_outputs
from torch_cudnn_ext.tuning.tune import device_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_WAYS = (Way.plain, Way.optimized)
# The error of a gradient is relative to the largest element of its layer's gradients, or to this
# part of the largest of all. A gradient may be zero but for rounding, such as of a bias before a
# batch norm.
_LEAST_PART = 1e-3


def optimize_training(
    model: Module,
    search: Search,
    recipes: list[Recipe],
    options: Options,
) -> TrainingModel:
    """The network for training; what is tried is done with copies of the model.

    Args:
        model: A model without hooks.
        search: How its problems are tuned, with the example's arguments.
        recipes: One a layout, of which the fastest is taken.
        options: What was asked for.

    Raises:
        TypeError: As `optimize`.
        ValueError: As `optimize`.
        RuntimeError: As `optimize`.
    """
    check_gradient_mode()
    base = copied(model)
    if not base.training:
        base.train()
    step = _Step(search.args, options.loss, device_of("optimize", base, search.args))
    most = options.most_bytes(step.device)
    with same_random_numbers(), torch.enable_grad(), preserve_model_state(base, search.args):
        found, reason = _networks(base, recipes, step)
        for fast in found:
            search.tune(fast, search.count(fast, _WithLoss(fast.untuned, step)))
            fast._recipe.shapes = [sizes_of(search.args)]
        if found:
            fast = found[0] if len(found) == 1 else _faster_of(found, step)
        else:
            report = new_training_report(model, recipes[0])
            report.way, report.note = Way.plain, f"PyTorch's layers run, since {reason}"
            fast = TrainingModel(copied(base), recipes[0], report)
        ways = _WAYS if found else (Way.plain,)
        right = _right_ways(fast, step, ways, options.max_error)
        if most is not None:
            right = ways_within_peak(fast.report, _peaks(fast, step, right), most)
        times = samples_of([partial(step, fast, way) for way in ways], step.device)
        settle_way(fast.report, dict(zip(ways, times, strict=True)), right)
        fast.report.problems = search.rows(fast) if found else []
    return TrainingModel(model, fast._recipe, fast.report)


def _peaks(fast: TrainingModel, step: _Step, ways: Iterable[Way]) -> dict[Way, int]:
    forget = partial(step.forget_gradients, fast)
    return {way: peak_bytes(partial(step, fast, way), forget, step.device) for way in ways}


def _networks(base: Module, recipes: list[Recipe], step: _Step) -> tuple[list[TrainingModel], str]:
    """The networks of recipes, but those that do not run; why, if there are none.

    Raises:
        ValueError: As `optimize`.
    """
    with preserve_model_state(base):
        step.loss_of(base(*step.args))
    with preserve_model_state(base):
        if changed := changed_by_run(base, step.args, train=True):
            return [], f"{changed}, which a copy of its code would not keep"
    found: list[TrainingModel] = []
    reason = ""
    for recipe in recipes:
        fast = TrainingModel(copied(base), recipe, new_training_report(base, recipe))
        if not fast.has_layers:
            return [], "no layer of the model is one of this package"
        try:
            with preserve_model_state(fast):
                step(fast, Way.optimized)
        except RuntimeError as error:  # such as of a view of pixels, or a write to what ours saved
            reason = f"ours raised {type(error).__name__}: {reason_of(error)}"
        else:
            found.append(fast)
    return found, reason


def _faster_of(found: list[TrainingModel], step: _Step) -> TrainingModel:
    times = samples_of([partial(step, fast, Way.optimized) for fast in found], step.device)
    return found[0] if sum(times[0]) <= sum(times[1]) else found[1]


@dataclass(frozen=True)
class _Step:
    """A training step, but for the optimizer.

    Attributes:
        args: The example's arguments.
        loss: The user's loss, if one is given.
        device: Where the model is.
    """

    args: tuple[Any, ...]
    loss: Loss | None
    device: str

    def __call__(self, fast: TrainingModel, way: Way) -> None:
        """Run it."""
        self.forget_gradients(fast)
        torch.clear_autocast_cache()  # as at the end of each step's `torch.autocast`
        loss = self.loss_of(fast.run(way, *self.args))
        with torch.autocast(torch.device(self.device).type, enabled=False):
            loss.backward()  # type: ignore[no-untyped-call]

    def forget_gradients(self, fast: TrainingModel) -> None:
        """Of the parameters and inputs."""
        for t in (*fast.parameters(), *tensors_in(self.args)):
            t.grad = None

    def loss_of(self, output: Any) -> Tensor:
        """The loss of an output of the model.

        Raises:
            ValueError: The user's loss is none, or no output has a gradient.
        """
        if self.loss is None:
            return sum_of_outputs(map_tensors(_with_dense_gradient, output))
        value: Any = self.loss(output)
        if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
            return value
        got = type(value).__name__
        if isinstance(value, Tensor):
            gradient = "with" if value.requires_grad else "without"
            got = f"a tensor of sizes {[*value.shape]} {gradient} a gradient"
        raise ValueError(f"loss: gave {got}, wanted a tensor of one element with a gradient")

    def run_backward(self, output: Any) -> None:
        """The backward of a check. Without a loss it begins with all sorts of gradients.

        Those of a sum may be zero, such as after a softmax.
        """
        if self.loss is not None:
            self.loss_of(output).backward()  # type: ignore[no-untyped-call]
            return
        outputs = tensors_requiring_grad(output)
        draw = torch.Generator().manual_seed(0)
        starts = [torch.randn(t.shape, generator=draw, dtype=torch.float64) for t in outputs]
        given = [a.to(device=t.device, dtype=t.dtype) for a, t in zip(starts, outputs, strict=True)]
        torch.autograd.backward(outputs, given)

    def results(
        self, model: Module, run: Callable[..., Any], args: tuple[Any, ...]
    ) -> tuple[Any, Any, dict[str, Tensor]]:
        """What a step gives without dropout: its output, the buffers after it, and the gradients.

        Args:
            model: Has the parameters.
            run: Calls it.
            args: The arguments.
        """
        with (
            preserve_model_state(model, args),
            preserve_values(model.parameters()),  # a forward may write to them
            _without_dropout(model),
        ):
            given = detached(args)
            torch.clear_autocast_cache()
            output = run(*given)
            with torch.autocast(torch.device(self.device).type, enabled=False):
                self.run_backward(output)
            leaves: list[tuple[str, Tensor]] = [*model.named_parameters()]
            leaves += [(f"input {i}", t) for i, t in enumerate(tensors_in(given))]
            gradients = {name: t.grad for name, t in leaves if t.grad is not None}
            buffers = dict(model.named_buffers())
            output, buffers = map_tensors(lambda t: t.detach().clone(), (output, buffers))
            return output, buffers, gradients


def _with_dense_gradient(tensor: Tensor) -> Tensor:
    """The tensor; its gradient has its layout, as of most losses, and not the strides of a sum."""
    return tensor * torch.ones_like(tensor) if tensor.requires_grad else tensor


class _WithLoss(Module):
    """A network with its loss, whose problems are those of a step."""

    def __init__(self, network: Module, step: _Step) -> None:
        super().__init__()
        self.network, self.step = network, step

    def forward(self, *args: Any) -> Tensor:
        """The loss."""
        return self.step.loss_of(self.network(*args))


@contextmanager
def _without_dropout(model: Module) -> Iterator[None]:
    """In evaluation, dropout draws nothing. Random numbers may differ between ways and dtypes."""
    drawing = [m for m in model.modules() if isinstance(m, DROPOUTS) and m.training]
    for module in drawing:
        module.training = False
    try:
        yield
    finally:
        for module in drawing:
            module.training = True


def _right_ways(
    fast: TrainingModel, step: _Step, ways: Iterable[Way], max_error: float | None
) -> list[Way]:
    """Measures the errors of outputs, buffers and gradients; the ways that may run.

    Raises:
        ValueError: As `optimize`.
    """
    results = {way: step.results(fast, partial(fast.run, way), step.args) for way in ways}
    of_plain = results[Way.plain]
    model = fast.model
    wide = results_in_float64(model, step.args, of_plain, lambda m, a: step.results(m, m, a))
    wanted = tensors_in(of_plain) if wide is None else wide
    values = len(tensors_in(of_plain[:2]))
    scales = _scales(of_plain[2], wanted[values:])
    errors = {
        way: max(
            largest_error(found[:2], of_plain[:2], wanted[:values]),
            largest_error(found[2], of_plain[2], wanted[values:], scales),
        )
        for way, found in results.items()
    }
    return ways_within(fast.report, errors, wide is not None, of_plain, max_error)


def _scales(names: Iterable[str], gradients: Iterable[Tensor]) -> list[float]:
    """What the error of each parameter's gradient is relative to at least."""
    layers = [name.rpartition(".")[0] for name in names]
    largest = dict.fromkeys(layers, 0.0)
    for layer, gradient in zip(layers, gradients, strict=True):
        largest[layer] = max(largest[layer], largest_finite(gradient))
    least = _LEAST_PART * max(largest.values(), default=0.0)
    return [max(largest[layer], least) for layer in layers]
