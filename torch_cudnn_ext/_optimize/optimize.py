"""``optimize``: the fastest version of a whole network for inference that was found."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module

from torch_cudnn_ext import _C
from torch_cudnn_ext._optimize.compiled import LayerChoice, choices_of
from torch_cudnn_ext._optimize.forms import autocast_now, form_of, sizes_of
from torch_cudnn_ext._optimize.making import (
    changed_by_run,
    digest_of,
    make_mixed_network,
    make_network,
    plain_copy,
)
from torch_cudnn_ext._optimize.optimized import OptimizedModel
from torch_cudnn_ext._optimize.recipe import LAYOUTS, NEW_SHAPES, Recipe, Way, read_recipe
from torch_cudnn_ext._optimize.report import ProblemRow
from torch_cudnn_ext._optimize.rewriting import facts_of, facts_of_run
from torch_cudnn_ext._optimize.tracing import same_random_numbers
from torch_cudnn_ext._optimize.ways import (
    choose_way,
    faster_of,
    known_reason_against_graphs,
    reason_against_graphs,
    right_ways,
)
from torch_cudnn_ext._workload.model_state import preserve_model_state
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in
from torch_cudnn_ext.ops.family import family_of
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.measure import Progress, check_constraints_alone
from torch_cudnn_ext.tuning.tune import device_of, problems_met, tune

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement

Layout = Literal["keep", "contiguous", "channels_last", "search"]
NewShape = Literal["heuristic", "autotune"]
PYTORCHS = "aten:default"  # the algorithm that is PyTorch's own kernel


def optimize(
    model: Module,
    inputs: Tensor | tuple[Any, ...],
    *,
    policy: PolicyLike = None,
    layout: Layout = "keep",
    cuda_graph: bool = True,
    torch_compile: bool | None = None,
    on_new_shape: NewShape = "heuristic",
    max_error: float | None = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> OptimizedModel:
    """Make the fastest version of a network for inference that was found.

    The model is not changed: a copy of it is traced by ``torch.fx`` and rewritten. Batch norm is
    folded into the layer before it. A convolution and the sum and activation after it become one
    problem, as do a linear layer and an activation. All problems are tuned. ``torch.compile`` makes
    another version, in which a layer is ours if tuning found something faster, and the rest is
    Inductor's. Both versions are timed by turns with PyTorch's layers, as they are and compiled,
    with and without a CUDA graph; the fastest runs. What cannot be traced keeps its own code.

    Args:
        model: Any module without hooks, on one device.
        inputs: An example: a tensor or a tuple of positional arguments. Other sizes run too.
        policy: Constraints (``max_workspace``, ``deterministic``, ``backends``, …).
        layout: Of images and filters: ``keep`` leaves them as they are; ``contiguous`` and
            ``channels_last`` convert them; ``search`` takes the faster of these two.
        cuda_graph: Whether calls may replay CUDA graphs.
        torch_compile: Whether ``torch.compile`` may compile the network; ``None``: on a GPU.
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
            initialised, there is no tensor among the inputs, all errors are larger than
            ``max_error`` or cannot be measured, or an argument is none of its values.
        RuntimeError: As `tuning.tune`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> fast = optimize(model, torch.randn(2, 3, 8, 8))
        >>> fast.report.rewrites.activated
        ['0']
    """
    text = _check(layout, cuda_graph, torch_compile, on_new_shape, max_error, policy)
    given = _as_arguments(inputs)
    compiles = any(t.is_cuda for t in tensors_in(given)) if torch_compile is None else torch_compile
    plain = plain_copy("optimize", model)
    with same_random_numbers(), ExitStack() as stack:
        stack.enter_context(preserve_model_state(plain))
        args = map_tensors(lambda t: t.detach().clone(), given)
        recipe = Recipe(
            text, "keep", on_new_shape, cuda_graph, compiles, form_of(args), digest_of(plain),
            autocast_now(),
        )  # fmt: skip
        layouts = ("contiguous", "channels_last") if layout == "search" else (layout,)
        found = _networks(plain, [replace(recipe, layout=one) for one in layouts], args)
        search = _Search(args, time_budget_s, knob_search, jobs, progress)
        for one in found:
            stack.enter_context(preserve_model_state(one))
            search.tune(one, search.count(one))
            one._recipe.shapes = [sizes_of(args)]
        fast = found[0] if len(found) == 1 else faster_of(found, args)
        _finish(fast, search, max_error)
    fast._forget_graphs()
    return fast


def _finish(fast: OptimizedModel, search: _Search, max_error: float | None) -> None:
    """Let the fastest way run.

    Raises:
        ValueError: As `optimize`.
    """
    fast.report.cuda_graph = reason_against_graphs(fast, search.args)
    if not fast.report.torch_compile:
        _mix(fast, search)
    elif not fast._recipe.torch_compile and not any(t.is_cuda for t in tensors_in(search.args)):
        fast.report.torch_compile = "the inputs are not on a GPU"
    choose_way(fast, search.args, right_ways(fast, search.args, max_error))
    fast.report.problems = _rows(fast, search)


def _networks(plain: Module, recipes: list[Recipe], args: tuple[Any, ...]) -> list[OptimizedModel]:
    """The networks of recipes, but those whose code does not run in the recipe's layout.

    Raises:
        RuntimeError: No network runs.
    """
    with preserve_model_state(plain):
        state = changed_by_run(plain, args)
    found: list[OptimizedModel] = []
    for recipe in recipes:
        try:
            fast = make_network(plain, recipe, facts_of_run(), args, state)
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
    plain = plain_copy("load_optimized", model)
    recipe, fast = file.recipe, None
    if recipe.layers == digest_of(plain):
        facts = facts_of(file.rewrites)
        fast = make_network(plain, recipe, facts, (), recipe.untraced)
    if fast is None or fast.report.rewrites != file.rewrites:
        raise ValueError(
            f"load_optimized: {os.fspath(path)} was made of another network than this "
            f"{type(plain).__name__}: of {file.network}, or of other layers"
        )
    _C.table_import(file.rankings)
    if not fast.report.torch_compile:
        fast._compiled[Way.mixed].module = make_mixed_network(fast, facts)
    fast.report.way, fast.report.left = file.way, recipe.left
    fast.report.cuda_graph = known_reason_against_graphs(fast)
    return fast


def _check(
    layout: object,
    cuda_graph: object,
    torch_compile: object,
    on_new_shape: object,
    max_error: object,
    policy: PolicyLike,
) -> str:
    for name, value, wanted in (
        ("layout", layout, (*LAYOUTS, "search")),
        ("on_new_shape", on_new_shape, NEW_SHAPES),
    ):
        if value not in wanted:
            raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(wanted)}")
    if not isinstance(cuda_graph, bool):
        raise ValueError(f"cuda_graph: got {cuda_graph!r}, wanted True or False")
    if torch_compile is not None and not isinstance(torch_compile, bool):
        raise ValueError(f"torch_compile: got {torch_compile!r}, wanted True, False or None")
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


@dataclass(frozen=True)
class _Search:
    """How problems are tuned, for the example's arguments."""

    args: tuple[Any, ...]
    time_budget_s: float
    knob_search: bool
    jobs: int
    progress: Progress | None
    not_kept: dict[str, Measurement] = field(default_factory=dict)
    calls: dict[str, dict[str, int]] = field(default_factory=dict)  # by layout and problem

    def options(self, fast: OptimizedModel) -> tuple[str, str, float]:
        """The device, the constraints and the time budget."""
        place = device_of("optimize", fast, self.args)
        return place, fast._recipe.policy, self.time_budget_s

    def count(self, fast: OptimizedModel) -> dict[str, int]:
        """The problems of the network that is not compiled, with the number of calls of each."""
        layout = fast._recipe.layout
        if layout not in self.calls:
            self.calls[layout] = self.problems(fast, fast._untuned)
        return self.calls[layout]

    def problems(self, fast: OptimizedModel, network: Module) -> dict[str, int]:
        """The problems that a network of its layers meets, with the number of calls of each."""
        recipe = fast._recipe
        inputs = map_tensors(recipe.in_layout, self.args)
        return problems_met(network, inputs, train=False, policy=recipe.policy)

    def tune(self, fast: OptimizedModel, problems: Iterable[str]) -> None:
        """Tune those problems that are not tuned, and make them the recipe's."""
        place, policy, budget = options = self.options(fast)
        best = tune(
            [p for p in problems if _C.tuned(p, *options) is None],
            device=place,
            policy=policy,
            time_budget_s=budget,
            knob_search=self.knob_search,
            jobs=self.jobs,
            progress=self.progress,
        )
        self.not_kept.update(best)  # some rankings are too noisy to be kept
        recipe = fast._recipe
        recipe.problems = [*dict.fromkeys((*recipe.problems, *problems))]


def _rows(fast: OptimizedModel, search: _Search) -> list[ProblemRow]:
    """What was found for each problem."""
    calls, rows = search.count(fast), []
    for problem in fast._recipe.problems:
        ranking = _C.tuned(problem, *search.options(fast))
        if ranking is None and problem in search.not_kept:
            ranking = [search.not_kept[problem]]
        times = [
            (row["workspace_bytes"] or 0, row["median_ms"], row["algorithm"])
            for row in ranking or []
            if row["median_ms"] is not None
        ]
        if times:
            plain = next((ms for _, ms, algorithm in times if algorithm == PYTORCHS), None)
            best, count = times[0], calls.get(problem, 0)
            rows.append(ProblemRow(problem, best[2], best[1], plain, count, _by_workspace(times)))
    return rows


def _by_workspace(times: list[tuple[int, float, str]]) -> dict[int, float]:
    """For each workspace, the time of the first in the ranking that needs no more."""
    return {size: next(ms for at, ms, _ in times if at <= size) for size, _, _ in sorted(times)}


def _mix(fast: OptimizedModel, search: _Search) -> None:
    """Make the network that is compiled: our layers where tuning found something faster."""
    recipe, compiled = fast._recipe, fast._compiled[Way.mixed]
    options = search.options(fast)

    def choices(network: Module) -> list[LayerChoice]:
        inputs = map_tensors(recipe.in_layout, search.args)
        with torch.no_grad():
            return choices_of(cast("GraphModule", network), lambda: network(*inputs), options)

    done = fast.report.rewrites
    fused = {choice.layer for choice in choices(fast._tuned) if choice.is_fused}
    recipe.separate = [name for name in (*done.activated, *done.residual) if name not in fused]
    network = make_mixed_network(fast, facts_of_run())
    met = search.problems(fast, network)
    search.tune(fast, [p for p in met if family_of(_C.problem_info(p)).gains_over_compiler])
    found = choices(network)
    ours = {choice.layer for choice in found if choice.algorithm != PYTORCHS}
    fast.report.left = recipe.left = [*dict.fromkeys(c.layer for c in found if c.layer not in ours)]
    compiled.module = make_mixed_network(fast, facts_of_run())
