"""``optimize``: the fastest version of a whole network for inference that was found."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import Module

from torch_cudnn_ext import _C, nn
from torch_cudnn_ext._optimize.forms import (
    UnknownForm,
    autocast_now,
    content_of,
    form_of,
    reason_of,
    sizes_of,
)
from torch_cudnn_ext._optimize.optimized import OptimizationReport, OptimizedModel
from torch_cudnn_ext._optimize.recipe import LAYOUTS, NEW_SHAPES, Recipe, Way, read_recipe
from torch_cudnn_ext._optimize.rewriting import Facts, Rewrites, facts_of, facts_of_run, rewrite
from torch_cudnn_ext._optimize.tracing import (
    CHANGES,
    Traced,
    change_of,
    same_random_numbers,
    state_of,
    trace_model,
)
from torch_cudnn_ext._policy_text import own_text
from torch_cudnn_ext._torch_internals import has_forward_hooks, version_of
from torch_cudnn_ext._workload.model_state import preserve_model_state
from torch_cudnn_ext._workload.pytree import is_floating, map_tensors, tensors_in
from torch_cudnn_ext.bench.networks import timer_of
from torch_cudnn_ext.bench.rounds import compare_samples, samples
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.convert import conversion_steps, convert
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.measure import Progress, check_constraints_alone
from torch_cudnn_ext.tuning.tune import device_of, problems_met, tune

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
        ValueError: A module has hooks, the model changes its inputs, a lazy layer is not
            initialised, there is no tensor among the inputs, the error is larger than ``max_error``
            or cannot be measured, or an argument is none of its values.
        RuntimeError: As `tuning.tune`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> fast = optimize(model, torch.randn(2, 3, 8, 8))
        >>> fast.report.rewrites.activated
        ['0']
    """
    text = _check(layout, cuda_graph, on_new_shape, max_error, policy)
    given = _as_arguments(inputs)
    plain = _plain_copy("optimize", model)
    with ExitStack() as stack:
        stack.enter_context(same_random_numbers())
        stack.enter_context(preserve_model_state(plain))
        args = map_tensors(lambda t: t.detach().clone(), given)
        form, digest = form_of(args), _digest(plain)
        layouts = ("contiguous", "channels_last") if layout == "search" else (layout,)
        recipes = [
            Recipe(text, one, on_new_shape, cuda_graph, form, digest, autocast_now())
            for one in layouts
        ]
        found = _networks(plain, recipes, args)
        for fast in found:
            stack.enter_context(preserve_model_state(fast))
            fast.report.problems = _tune(fast, args, time_budget_s, knob_search, jobs, progress)
            fast._recipe.shapes = [sizes_of(args)]
        fast = found[0] if len(found) == 1 else _faster(found, args)
        fast.report.cuda_graph = _reason_against_graphs(fast, args)
        if _is_right(fast, args, max_error):
            _choose_way(fast, args)
    fast._forget_graphs()
    return fast


def _networks(plain: Module, recipes: list[Recipe], args: tuple[Any, ...]) -> list[OptimizedModel]:
    """The networks of recipes, but those whose code does not run in the recipe's layout.

    Raises:
        RuntimeError: No network runs.
    """
    with preserve_model_state(plain):
        state = _changed_by_run(plain, args)
    found: list[OptimizedModel] = []
    for recipe in recipes:
        try:
            fast = _made(plain, recipe, facts_of_run(), args, state)
            with preserve_model_state(fast):
                fast.run(Way.optimized, *args)
        except RuntimeError:
            if not found and recipe is recipes[-1]:
                raise
            continue  # such as a view of pixels
        found.append(fast)
    return found


def load_optimized(path: str | os.PathLike[str], model: Module) -> OptimizedModel:
    """Make a network as a recipe says, with the weights of a model; nothing is timed.

    The recipe's rankings are added to the tuning table, as `tuning.import_table` does.

    Args:
        path: What `OptimizedModel.save` wrote.
        model: The model that the recipe was made of, or one with other weights.

    Returns:
        The network. On another kind of GPU than the recipe's it runs untuned.

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
    recipe, fast = file.recipe, None
    if recipe.layers == _digest(plain):
        fast = _made(plain, recipe, facts_of(file.rewrites), (), recipe.untraced)
    if fast is None or fast.report.rewrites != file.rewrites:
        raise ValueError(
            f"load_optimized: {os.fspath(path)} was made of another network than this "
            f"{type(plain).__name__}: of {file.network}, or of other layers"
        )
    _C.table_import(file.rankings)
    fast.report.way = file.way
    fast.report.cuda_graph = _known_reason_against_graphs(fast)
    return fast


def _check(
    layout: object, cuda_graph: object, on_new_shape: object, max_error: object, policy: PolicyLike
) -> str:
    for name, value, wanted in (
        ("layout", layout, (*LAYOUTS, "search")),
        ("on_new_shape", on_new_shape, NEW_SHAPES),
    ):
        if value not in wanted:
            raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(wanted)}")
    if not isinstance(cuda_graph, bool):
        raise ValueError(f"cuda_graph: got {cuda_graph!r}, wanted True or False")
    is_number = isinstance(max_error, int | float) and not isinstance(max_error, bool)
    if max_error is not None and not (is_number and max_error > 0):  # type: ignore[operator]
        raise ValueError(f"max_error: got {max_error!r}, wanted a positive number")
    text = text_for_all(policy)
    check_constraints_alone(text)
    return text


def _as_arguments(inputs: object) -> tuple[Any, ...]:
    args = tuple(inputs) if isinstance(inputs, tuple) else (inputs,)
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
    return _copied(model).eval().requires_grad_(False)


def _copied(module: Module, shared: dict[int, Any] | None = None) -> Module:
    """A deep copy whose modules train or not as before, which some classes do not copy."""
    made = copy.deepcopy(module, shared or {})
    for name, one in module.named_modules():
        made.get_submodule(name).training = one.training
    return made


def _digest(model: Module) -> str:
    """Of the classes of a model's modules and the shapes of its tensors."""
    lines = [
        f"{name} {type(one).__name__} {one.extra_repr()}" for name, one in model.named_modules()
    ]
    lines += [f"{name} {tuple(t.shape)}" for name, t in model.state_dict().items()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _changed_by_run(plain: Module, args: tuple[Any, ...]) -> str:
    """What of a model its forward changes; empty if nothing.

    Raises:
        ValueError: It changes its inputs.
    """
    before, tensors = state_of(plain), tensors_in(args)
    versions, form = [version_of(t) for t in tensors], form_of(args)
    with torch.no_grad():
        plain(*args)
    if form != form_of(args) or versions != [version_of(t) for t in tensors]:
        raise ValueError(
            "model: got one that changes its inputs, wanted one that does not, since a CUDA graph "
            "and another layout read copies"
        )
    changed = change_of(before, state_of(plain))
    return f"{CHANGES} {changed}" if changed else ""


def _made(
    plain: Module, recipe: Recipe, facts: Facts, example: tuple[Any, ...], state: str
) -> OptimizedModel:
    """The network, before anything is tuned; without an example for the facts of a recipe.

    ``state`` says what of the model its forward changes.
    """
    own = _copied(plain)
    traced = Traced(own, {"": state}) if state else trace_model(own)
    if traced.graph is not None and example:
        try:
            with torch.no_grad():
                run_with_shapes: Any = ShapeProp
                run_with_shapes(traced.graph).propagate(*example)
        except Exception as error:  # the graph is not right for an argument that is no tensor
            traced = Traced(_copied(plain), {"": reason_of(error)})
    rewrites = Rewrites() if traced.graph is None else rewrite(traced.graph, facts)
    tuned = traced.module
    for tensor in (*tuned.parameters(), *tuned.buffers()):
        tensor.data = recipe.in_layout(tensor.data)
    convert(tuned, exclude=_is_left)
    shared = {id(t): t for t in (*tuned.parameters(), *tuned.buffers())}
    recipe.untraced = traced.whole.get("", "")
    # A model has one state.
    untuned = tuned if recipe.untraced.startswith(CHANGES) else _copied(tuned, shared)
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
    recipe, place = fast._recipe, device_of("optimize", fast, args)
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
    device = device_of("optimize", sides[0][0], args)

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
    try:
        content_of(args)
    except UnknownForm as error:
        return f"an argument holds a {error}"
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
    report.times_ms = {w: statistics.median(times[w]) for w in ways}
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
    of_plain = fast.run(Way.plain, *args)
    ways = (Way.optimized,) if report.cuda_graph else (Way.optimized, Way.optimized_graph)
    ours = [fast.run(way, *args) for way in ways]
    wide = _in_float64(fast._plain, args, of_plain)
    if wide is None and max_error is not None:
        raise ValueError("max_error: the network does not run in float64, wanted no max_error")
    wanted = tensors_in(of_plain) if wide is None else wide
    error = max(_largest_error(one, of_plain, wanted) for one in ours)
    plain_error = _largest_error(of_plain, of_plain, wanted)
    if wide is not None:
        report.error, report.plain_error = error, plain_error
    if max_error is not None and not error <= max_error:
        raise ValueError(
            f"max_error: the error of the results is {error:.2g}, wanted at most {max_error}"
        )
    floats = [*filter(is_floating, tensors_in(of_plain))]
    coarsest = max((torch.finfo(t.dtype).eps for t in floats), default=0.0)
    if error <= MOST_ERROR_RATIO * plain_error + MOST_EPSILONS * coarsest:
        return True
    report.way = Way.plain
    report.note = (
        f"PyTorch's layers run, since the error of ours was {error:.2g}, and of PyTorch's "
        f"{plain_error:.2g}"
    )
    return False


def _in_float64(plain: Module, args: tuple[Any, ...], of_plain: Any) -> list[Tensor] | None:
    """The tensors of the model's results in float64; None if it has no such results."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.double() if is_floating(tensor) else tensor.clone()

    try:
        with torch.no_grad():
            result = tensors_in(_copied(plain).double()(*map_tensors(wide, args)))
    except Exception:  # an operator or a check that takes no float64, or memory is short
        return None
    shapes = [[t.shape for t in tensors] for tensors in (result, tensors_in(of_plain))]
    return result if shapes[0] == shapes[1] else None


def _largest_error(result: Any, of_plain: Any, wanted: list[Tensor]) -> float:
    """Relative to the largest element; infinite if a result is of another kind than the model's."""
    tensors, plain = tensors_in(result), tensors_in(of_plain)
    kinds = [[(t.shape, t.dtype) for t in those] for those in (tensors, plain)]
    if form_of(result) != form_of(of_plain) or kinds[0] != kinds[1]:
        return math.inf
    largest = 0.0
    for got, other, right in zip(tensors, plain, wanted, strict=True):
        if not is_floating(got):
            largest = largest if torch.equal(got, other) else math.inf
        elif got.numel() > 0:
            right, got = right.double(), got.double()
            scale = float(torch.where(right.isfinite(), right.abs(), 0).max()) or 1.0
            # What is not finite must be as PyTorch's.
            same = (got == right) | (got == other.double()) | (got.isnan() & other.isnan())
            is_finite = right.isfinite() & other.isfinite()
            off = torch.where(same & ~is_finite, 0, (got - right).abs() / scale)
            largest = max(largest, float(off.nan_to_num(math.inf, math.inf).max()))
    return largest
