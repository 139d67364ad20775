"""``optimize`` for training: a step with our layers, timed and checked next to PyTorch's."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from torch_cudnn_ext._optimize.forms import reason_of, sizes_of
from torch_cudnn_ext._optimize.making import changed_by_run, new_training_report
from torch_cudnn_ext._optimize.memory import peak_bytes, ways_within_peak
from torch_cudnn_ext._optimize.numerics import (
    coarsest_rounding,
    largest_error,
    largest_finite,
    results_in_float64,
)
from torch_cudnn_ext._optimize.options import Loss, Options
from torch_cudnn_ext._optimize.recipe import Recipe, Way
from torch_cudnn_ext._optimize.report import OptimizationReport
from torch_cudnn_ext._optimize.rewriting import DROPOUTS
from torch_cudnn_ext._optimize.search import Search
from torch_cudnn_ext._optimize.tracing import same_random_numbers
from torch_cudnn_ext._optimize.training_model import TrainingModel
from torch_cudnn_ext._optimize.ways import (
    check_errors_known,
    fastest_of,
    samples_of,
    settle_way,
    ways_within,
)
from torch_cudnn_ext._workload.model_state import (
    copied,
    own_tensors,
    preserve_gradients,
    preserve_model_state,
    preserve_values,
)
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in, tensors_requiring_grad
from torch_cudnn_ext._workload.running import (
    check_gradient_mode,
    detached,
    leaves_of,
    sum_of_outputs,
)
from torch_cudnn_ext.tuning.tune import device_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_WITH_DROPOUT = (torch.nn.MultiheadAttention, torch.nn.RNNBase)  # of their own
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
    with same_random_numbers(), torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(preserve_model_state(base, search.args))
        for one in (model, options.loss):  # the loss may read the model
            if isinstance(one, Module):
                stack.enter_context(preserve_model_state(one))
        stack.enter_context(preserve_gradients(_leaves_of_loss(base, step)))
        found, reason = _networks(base, recipes, step)
        for fast in found:
            search.tune(fast, search.note(fast, _WithLoss(fast.untuned, step)))
            fast._recipe.shapes = [sizes_of(search.args)]
        if found:
            fast = found[0] if len(found) == 1 else _fastest_of(found, step)
        else:
            report = new_training_report(model, recipes[0])
            report.way, report.note = Way.plain, f"PyTorch's layers run, since {reason}"
            fast = TrainingModel(base, recipes[0], report)
        search.tell(fast, "checking and timing a training step")
        networks: dict[Way, Module] = {Way.plain: base}
        if found:
            networks[Way.optimized] = fast
        right = _right_ways(fast.report, step, networks, options.max_error)
        if most is not None:
            peaks = {way: _peak(networks[way], step) for way in right}
            right = ways_within_peak(fast.report, peaks, most)
        times = samples_of([partial(step, one) for one in networks.values()], step.device)
        settle_way(fast.report, dict(zip(networks, times, strict=True)), right)
        fast.report.problems = search.rows(fast) if found else []
    if fast.report.way is Way.plain:  # the model's filters stay as they are
        fast._recipe.layout = fast.report.layout = "keep"
    return TrainingModel(model, fast._recipe, fast.report)


def _leaves_of_loss(base: Module, step: _Step) -> list[Tensor]:
    """The tensors that a step gives gradients and that are not the network's, but the loss's.

    Raises:
        ValueError: As `optimize`.
    """
    with preserve_model_state(base):
        leaves = leaves_of([step.loss_of(base(*step.args))])
    own = {id(t) for t in (*own_tensors(base), *tensors_in(step.args))}
    return [t for t in leaves if id(t) not in own]


def _peak(network: Module, step: _Step) -> int:
    forget = partial(step.forget_gradients, network)
    return peak_bytes(partial(step, network), forget, step.device)


def _networks(base: Module, recipes: list[Recipe], step: _Step) -> tuple[list[TrainingModel], str]:
    """The networks of recipes, but those that do not run; why, if there are none.

    Raises:
        ValueError: As `optimize`.
    """
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
            with _preserved(fast):
                step(fast)
        except RuntimeError as error:  # such as of a view of pixels, or a write to what ours saved
            reason = f"ours raised {type(error).__name__}: {reason_of(error)}"
        else:
            found.append(fast)
    return found, reason


@contextmanager
def _preserved(network: Module) -> Iterator[None]:
    """Restore all that steps change, also parameters, which a forward may write to."""
    with preserve_model_state(network), preserve_values(network.parameters()):
        yield


def _fastest_of(found: list[TrainingModel], step: _Step) -> TrainingModel:
    with ExitStack() as stack:
        for fast in found:
            stack.enter_context(_preserved(fast))
        return fastest_of(found, samples_of([partial(step, fast) for fast in found], step.device))


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

    def __call__(self, network: Module) -> None:
        """Run it."""
        self.forget_gradients(network)
        loss = self.loss_of(network(*self.args))
        with torch.autocast(torch.device(self.device).type, enabled=False):
            loss.backward()  # type: ignore[no-untyped-call]

    def forget_gradients(self, network: Module) -> None:
        """Of the parameters and inputs; and what autocast keeps until a step's end."""
        for t in (*network.parameters(), *tensors_in(self.args)):
            t.grad = None
        torch.clear_autocast_cache()

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

    def results(self, network: Module, args: tuple[Any, ...]) -> _Results:
        """What a step gives without dropout.

        Args:
            network: The network.
            args: The arguments.
        """
        with _preserved(network), preserve_values(tensors_in(args)), _without_dropout(network):
            given, before = detached(args), _random_state()
            torch.clear_autocast_cache()
            output = network(*given)
            with torch.autocast(torch.device(self.device).type, enabled=False):
                self.run_backward(output)
            drew = before != _random_state()
            leaves: list[tuple[str, Tensor]] = [*network.named_parameters()]
            # An input is a layer of its own.
            leaves += [(f"input {i}.", t) for i, t in enumerate(tensors_in(given))]
            gradients = {name: t.grad for name, t in leaves if t.grad is not None}
            buffers = dict(network.named_buffers())
            output, buffers = map_tensors(lambda t: t.detach().clone(), (output, buffers))
            return _Results(output, buffers, gradients, drew)


class _Results(NamedTuple):
    """What a step gives: its output, the buffers after it, the gradients; and if it is random."""

    output: Any
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor]
    drew: bool

    @property
    def parts(self) -> tuple[Any, ...]:
        """What is judged apart."""
        return self.output, self.buffers, self.gradients


def _random_state() -> tuple[Any, ...]:
    states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    return random.getstate(), [state.tolist() for state in states]


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
def _without_dropout(network: Module) -> Iterator[None]:
    """Dropout draws nothing. Random numbers may differ between ways and dtypes."""
    twins = network.twins if isinstance(network, TrainingModel) else []
    modules = {m for one in (network, *twins) for m in one.modules()}
    drawing = [m for m in modules if isinstance(m, DROPOUTS) and m.training]
    rates = [(m, m.dropout) for m in modules if isinstance(m, _WITH_DROPOUT)]
    try:
        for module in drawing:
            module.training = False
        for layer, _ in rates:
            layer.dropout = 0.0
        yield
    finally:
        for module in drawing:
            module.training = True
        for layer, rate in rates:
            layer.dropout = rate


def _right_ways(
    report: OptimizationReport, step: _Step, networks: dict[Way, Module], max_error: float | None
) -> list[Way]:
    """Measures the errors of outputs, buffers and gradients; the ways that may run.

    Raises:
        ValueError: As `optimize`.
    """
    results = {way: step.results(network, step.args) for way, network in networks.items()}
    of_plain = results[Way.plain]
    wide = results_in_float64(networks[Way.plain], step.args, of_plain, step.results)
    unknown = wide if isinstance(wide, str) else ""
    wanted = iter(tensors_in(of_plain) if isinstance(wide, str) else wide)
    parts = [[*islice(wanted, len(tensors_in(part)))] for part in of_plain.parts]
    scales = [(), (), _scales(of_plain.gradients, parts[2])]
    errors = {
        way: [*map(largest_error, found.parts, of_plain.parts, parts, scales)]
        for way, found in results.items()
    }
    roundings = [*map(coarsest_rounding, of_plain.parts)]
    plain = zip(errors[Way.plain], roundings, strict=True)
    if of_plain.drew and any(error > math.sqrt(rounding) for error, rounding in plain):
        unknown = "its forward draws random numbers"
        check_errors_known(unknown, max_error)
        report.add_note(f"the errors are not known, since {unknown}")
        return [*networks]
    return ways_within(report, errors, roundings, unknown, max_error)


def _scales(names: Iterable[str], gradients: Iterable[Tensor]) -> list[float]:
    """What the error of each parameter's gradient is relative to at least."""
    layers = [name.rpartition(".")[0] for name in names]
    largest = dict.fromkeys(layers, 0.0)
    for layer, gradient in zip(layers, gradients, strict=True):
        largest[layer] = max(largest[layer], largest_finite(gradient))
    least = _LEAST_PART * max(largest.values(), default=0.0)
    return [max(largest[layer], least) for layer in layers]
