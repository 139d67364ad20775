"""``optimize``: the fastest version of a whole network for inference that was found."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import Module

from torch_cudnn_ext import _C, nn
from torch_cudnn_ext._optimize.optimized import OptimizationReport, OptimizedModel
from torch_cudnn_ext._optimize.recipe import LAYOUTS, NEW_SHAPES, Recipe, Way, read_recipe
from torch_cudnn_ext._optimize.rewriting import Facts, Rewrites, facts_of, facts_of_run, rewrite
from torch_cudnn_ext._optimize.tracing import trace_model
from torch_cudnn_ext._policy_text import own_text
from torch_cudnn_ext._torch_internals import has_forward_hooks
from torch_cudnn_ext._workload.pytree import is_floating, map_tensors, tensors_in
from torch_cudnn_ext.bench.networks import timer_of
from torch_cudnn_ext.bench.rounds import compare_samples, samples
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.convert import conversion_steps, convert
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.measure import Progress, check_constraints_alone
from torch_cudnn_ext.tuning.tune import problems_met, tune

Layout = Literal["keep", "contiguous", "channels_last", "search"]
NewShape = Literal["heuristic", "autotune"]
LEFT_TO_PYTORCH = ("activation", "dropout")  # cuDNN's kernels of these are not faster
ROUNDS = 31
ROUNDS_S = 5.0
# Results are not used if their error is larger than so many times PyTorch's and so many roundings.
MOST_ERROR_RATIO, MOST_EPSILONS = 10.0, 64.0


def optimize(
    model: Module,
    inputs: Tensor | tuple[Any, ...],
    *,
    policy: PolicyLike = None,
    layout: Layout = "keep",
    cuda_graph: bool = True,
    on_new_shape: NewShape = "heuristic",
    max_error: float | None = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> OptimizedModel:
    """Make the fastest version of a network for inference that was found.

    The model is not changed: a copy of it is traced by ``torch.fx`` and rewritten. Batch norm is
    folded into the convolution, transposed convolution or linear layer before it; layers that do
    nothing in inference are removed; a convolution followed by ReLU, or by a sum and ReLU, becomes
    one problem. The problems are tuned, and all of it is captured in a CUDA graph. The result is
    timed by turns with PyTorch's layers, with and without a CUDA graph, and the fastest of these
    runs. What cannot be traced keeps its own code; its layers are exchanged one by one.

    Args:
        model: Any module without hooks, on one device.
        inputs: An example: a tensor or a tuple of positional arguments. Other sizes run too.
        policy: Constraints (``max_workspace``, ``deterministic``, ``backends``, …).
        layout: Of images and filters: ``keep`` leaves them as they are; ``contiguous`` and
            ``channels_last`` convert them; ``search`` takes the faster of these two.
        cuda_graph: Whether calls may replay CUDA graphs.
        on_new_shape: What layers do for inputs of other sizes than the example's: ``heuristic``
            runs untuned; ``autotune`` tunes in the first such call.
        max_error: The largest error of the results that is allowed, relative to the largest element
            of the results in float64.
        time_budget_s: Seconds of tuning for a problem; 0 is no limit.
        knob_search: Also search the knobs of the best engines.
        jobs: How many processes tune; see `tuning.tune`.
        progress: As for `tuning.tune`.

    Returns:
        The network. Its ``report`` says what was done, and how fast it is.

    Raises:
        TypeError: ``model`` is no module, TorchScript compiled a part of it, or ``inputs`` are
            neither a tensor nor a tuple.
        ValueError: A module has hooks, a lazy layer is not initialised, there is no tensor among
            the inputs, the error is larger than ``max_error`` or cannot be measured, or an argument
            is none of its values.
        RuntimeError: As `tuning.tune`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> fast = optimize(model, torch.randn(2, 3, 8, 8))
        >>> fast.report.rewrites.activated
        ['0']
    """
    text = _check(layout, on_new_shape, max_error, policy)
    args = _as_arguments(inputs)
    plain = _plain_copy("optimize", model)
    found = []
    for one in ("contiguous", "channels_last") if layout == "search" else (layout,):
        recipe = Recipe(text, one, on_new_shape, cuda_graph)
        fast = _made(plain, recipe, facts_of_run(), args)
        fast.report.problems = _tune(fast, args, time_budget_s, knob_search, jobs, progress)
        fast.tuned_for(args)
        found.append(fast)
    fast = found[0] if len(found) == 1 else _faster(found, args)
    fast.report.cuda_graph = _reason_against_graphs(fast, args)
    if _is_right(fast, args, max_error):
        _choose_way(fast, args)
    return fast


def load_optimized(path: str | os.PathLike[str], model: Module) -> OptimizedModel:
    """Make a network as a recipe says, with the weights of a model; nothing is timed.

    The recipe's rankings are added to the tuning table, as `tuning.import_table` does.

    Args:
        path: What `OptimizedModel.save` wrote.
        model: The model that the recipe was made of, or one with other weights.

    Returns:
        The network. It may be used for other devices, which run untuned.

    Raises:
        TypeError: ``path`` is no path, or as `optimize`.
        OSError: The file cannot be read.
        ValueError: It is no recipe, or it was made of another network; or as `optimize`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> optimize(model, torch.randn(2, 3, 8, 8)).save("small.tce")
        >>> load_optimized("small.tce", model).report.rewrites.activated
        ['0']
    """
    file = read_recipe(path)
    plain = _plain_copy("load_optimized", model)
    fast = _made(plain, file.recipe, facts_of(file.rewrites), ())
    if (fast.report.network, fast.report.rewrites) != (file.network, file.rewrites):
        raise ValueError(
            f"load_optimized: {os.fspath(path)} was made of another network than this "
            f"{fast.report.network}: of {file.network}, or of other layers"
        )
    _C.table_import(file.rankings)
    fast.report.way = file.recipe.way
    fast.report.cuda_graph = _known_reason_against_graphs(fast)
    return fast


def _check(layout: object, on_new_shape: object, max_error: object, policy: PolicyLike) -> str:
    for name, value, wanted in (
        ("layout", layout, (*LAYOUTS, "search")),
        ("on_new_shape", on_new_shape, NEW_SHAPES),
    ):
        if value not in wanted:
            raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(wanted)}")
    if max_error is not None and not (isinstance(max_error, int | float) and max_error > 0):
        raise ValueError(f"max_error: got {max_error!r}, wanted a positive number")
    text = text_for_all(policy)
    check_constraints_alone(text)
    return text


def _as_arguments(inputs: object) -> tuple[Any, ...]:
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    if not isinstance(inputs, Tensor | tuple):
        raise TypeError(
            f"optimize: argument inputs: got {type(inputs).__name__}, wanted a tensor or a tuple "
            "of positional arguments"
        )
    if not tensors_in(args):
        raise ValueError("optimize: argument inputs: got no tensor, wanted at least one")
    return args


def _plain_copy(function: str, model: Module) -> Module:
    """A copy of the model for inference.

    Raises:
        TypeError: As `optimize`.
        ValueError: As `optimize`.
    """
    model = eager_model(function, model)
    for name, module in model.named_modules():
        if has_forward_hooks(module):
            raise ValueError(
                f"model: got hooks of {name or 'the model'}, which a rewritten "
                "network would not call as before; wanted a model without hooks"
            )
    return copy.deepcopy(model).eval().requires_grad_(False)


def _made(plain: Module, recipe: Recipe, facts: Facts, example: tuple[Any, ...]) -> OptimizedModel:
    """The network, before anything is tuned; without an example for the facts of a recipe."""
    traced = trace_model(copy.deepcopy(plain))
    rewrites = Rewrites()
    if traced.graph is not None:
        if example:
            with torch.no_grad():
                shapes = ShapeProp(traced.graph)  # type: ignore[no-untyped-call]
                shapes.propagate(*map_tensors(Tensor.clone, example))  # type: ignore[no-untyped-call]
        rewrites = rewrite(traced.graph, facts)
    tuned = traced.module
    for tensor in (*tuned.parameters(), *tuned.buffers()):
        tensor.data = recipe.in_layout(tensor.data)
    convert(tuned, exclude=_is_left)
    untuned = _sharing_copy(tuned)
    _set_policies(tuned, f"autotune;{recipe.policy}")
    _set_policies(untuned, f"{recipe.on_new_shape};{recipe.policy}")
    report = OptimizationReport(type(plain).__name__, rewrites, traced.whole, recipe.layout)
    return OptimizedModel(plain, tuned, untuned, recipe, report)


def _is_left(_name: str, module: Module) -> bool:
    """Whether a layer stays PyTorch's."""
    if any(not t.is_floating_point() for t in module.parameters(recurse=False)):
        return True  # complex or quantised
    steps = conversion_steps(module) if next(module.children(), None) is None else []
    families = [s.becomes.family for s in steps if s.becomes and issubclass(s.becomes, nn.Tunable)]
    return any(family in LEFT_TO_PYTORCH for family in families)


def _sharing_copy(module: Module) -> Module:
    """A copy with the same tensors."""
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, shared)


def _set_policies(module: Module, text: str) -> None:
    """Set the policy of all layers that have none of their own."""
    for layer in module.modules():
        if isinstance(layer, nn.Tunable) and not layer._draws and layer.policy is None:
            layer.policy = own_text(text_for_all(text), layer.family)


def _tune(
    fast: OptimizedModel,
    args: tuple[Any, ...],
    time_budget_s: float,
    knob_search: bool,
    jobs: int,
    progress: Progress | None,
) -> list[tuple[str, str, float | None, float | None]]:
    """Tune the problems of the network, and tell what was found."""
    recipe, place = fast._recipe, str(tensors_in(args)[0].device)
    inputs = map_tensors(recipe.in_layout, args)
    recipe.problems = problems_met(fast._untuned, inputs, train=False, policy=recipe.policy)
    options = (place, recipe.policy, time_budget_s)
    best = tune(
        [p for p in recipe.problems if _C.tuned(p, *options) is None],
        device=place,
        policy=recipe.policy,
        time_budget_s=time_budget_s,
        knob_search=knob_search,
        jobs=jobs,
        progress=progress,
    )
    rows = []
    for problem in recipe.problems:
        ranking = _C.tuned(problem, *options) or [best[problem]]
        baseline = next((r for r in ranking if r["algorithm"] == "aten:default"), None)
        plain_ms = baseline["median_ms"] if baseline else None
        rows.append((problem, ranking[0]["algorithm"], ranking[0]["median_ms"], plain_ms))
    return rows


def _faster(found: list[OptimizedModel], args: tuple[Any, ...]) -> OptimizedModel:
    times = _samples([(fast, Way.optimized) for fast in found], args)
    return found[0] if sum(times[0]) <= sum(times[1]) else found[1]


def _samples(sides: list[tuple[OptimizedModel, Way]], args: tuple[Any, ...]) -> list[list[float]]:
    device = str(tensors_in(args)[0].device)

    def timer(fast: OptimizedModel, way: Way) -> Callable[[], float]:
        return timer_of(lambda: fast.run(way, *args), nullcontext, device)

    return samples([timer(fast, way) for fast, way in sides], ROUNDS, ROUNDS_S)


def _known_reason_against_graphs(fast: OptimizedModel) -> str:
    """Why calls replay no CUDA graphs, as far as that is known without a call."""
    if not fast._recipe.cuda_graph:
        return "cuda_graph=False"
    if fast.report.whole:
        names = ", ".join(name or "the model" for name in fast.report.whole)
        return f"the code of {names} may do something else in each call"
    return ""


def _reason_against_graphs(fast: OptimizedModel, args: tuple[Any, ...]) -> str:
    if reason := _known_reason_against_graphs(fast):
        return reason
    if not all(t.is_cuda for t in tensors_in(args)):
        return "the inputs are not on a GPU"
    for way in (Way.plain_graph, Way.optimized_graph):
        fast.run(way, *args)
    return fast.report.cuda_graph


def _choose_way(fast: OptimizedModel, args: tuple[Any, ...]) -> None:
    """Times the ways and lets the fastest run; PyTorch's if ours is not faster."""
    report = fast.report
    ways = [w for w in Way if not (w.in_graph and report.cuda_graph)]
    plain = [w for w in ways if w in (Way.plain, Way.plain_graph)]
    ours = [w for w in ways if w not in plain]
    times = dict(zip(ways, _samples([(fast, w) for w in ways], args), strict=True))
    report.times_ms = {w: sorted(times[w])[len(times[w]) // 2] for w in ways}
    best = min(ours, key=report.times_ms.__getitem__)
    result = compare_samples([times[best], *(times[w] for w in plain)])
    if result.ratio < 1:
        report.way = min(plain, key=report.times_ms.__getitem__)
        report.note = f"PyTorch's layers run, since ours were slower: {result.ratio:.3f}"
        return
    report.way, report.ratio, report.interval = best, result.ratio, (result.low, result.high)


def _is_right(fast: OptimizedModel, args: tuple[Any, ...], max_error: float | None) -> bool:
    """Measures the errors of the results; PyTorch's layers run if ours are far less accurate.

    Raises:
        ValueError: As `optimize`.
    """
    report = fast.report
    wide = _in_float64(fast._plain, args)
    if wide is None and max_error is not None:
        raise ValueError("max_error: the network does not run in float64, wanted no max_error")
    of_plain = [*filter(is_floating, tensors_in(fast.run(Way.plain, *args)))]
    wanted = [t.double() for t in of_plain] if wide is None else wide
    ways = (Way.optimized,) if report.cuda_graph else (Way.optimized, Way.optimized_graph)
    error = max(_largest_error(fast.run(way, *args), wanted) for way in ways)
    plain_error = _largest_error(of_plain, wanted)
    if wide is not None:
        report.error, report.plain_error = error, plain_error
    if max_error is not None and not error <= max_error:
        raise ValueError(
            f"max_error: the error of the results is {error:.2g}, wanted at most {max_error}"
        )
    coarsest = max((torch.finfo(t.dtype).eps for t in of_plain), default=0.0)
    if error <= MOST_ERROR_RATIO * plain_error + MOST_EPSILONS * coarsest:
        return True
    report.way = Way.plain if report.cuda_graph else Way.plain_graph
    report.note = (
        f"PyTorch's layers run, since the error of ours was {error:.2g}, and of PyTorch's "
        f"{plain_error:.2g}"
    )
    return False


def _in_float64(plain: Module, args: tuple[Any, ...]) -> list[Tensor] | None:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.double() if is_floating(tensor) else tensor.clone()

    try:
        with torch.no_grad():
            result = copy.deepcopy(plain).double()(*map_tensors(wide, args))
    except RuntimeError:  # an operator that has no float64, or memory is short
        return None
    return [*filter(is_floating, tensors_in(result))]


def _largest_error(result: Any, wanted: list[Tensor]) -> float:
    """Of floating-point results, relative to the largest element."""
    largest = 0.0
    for got, right in zip(filter(is_floating, tensors_in(result)), wanted, strict=True):
        if got.numel() == 0:
            continue
        scale = max(float(right.abs().max()), 1e-300)
        largest = max(largest, float((got.double() - right).abs().max()) / scale)
    return largest
