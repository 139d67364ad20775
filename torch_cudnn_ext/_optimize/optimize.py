"""``optimize``: the fastest version of a whole network that was found."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module

from torch_cudnn_ext import _C
from torch_cudnn_ext._optimize.compiled import LayerChoice, choices_of
from torch_cudnn_ext._optimize.forms import sizes_of
from torch_cudnn_ext._optimize.layouts import cheapest_layouts, conversions, may_gain, total
from torch_cudnn_ext._optimize.making import (
    changed_by_run,
    digest_of,
    make_mixed_network,
    make_network,
    model_without_hooks,
    new_training_report,
    plain_copy,
)
from torch_cudnn_ext._optimize.optimized import InferenceModel, OptimizedModel
from torch_cudnn_ext._optimize.options import Layout, Loss, NewShape, Options, example_of
from torch_cudnn_ext._optimize.recipe import Recipe, RecipeFile, Way, read_recipe
from torch_cudnn_ext._optimize.rewriting import facts_of, facts_of_run
from torch_cudnn_ext._optimize.search import Search
from torch_cudnn_ext._optimize.tracing import same_random_numbers
from torch_cudnn_ext._optimize.training import optimize_training
from torch_cudnn_ext._optimize.training_model import TrainingModel
from torch_cudnn_ext._optimize.ways import (
    choose_way,
    fastest_of,
    known_reason_against_graphs,
    reason_against_graphs,
    right_ways,
    samples_of_ways,
)
from torch_cudnn_ext._torch_internals import has_hooks
from torch_cudnn_ext._workload.model_state import preserve_model_state
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in
from torch_cudnn_ext.models.enable import is_enabled
from torch_cudnn_ext.ops.family import family_of
from torch_cudnn_ext.policy import PolicyLike
from torch_cudnn_ext.tuning.measure import BASELINE, Progress
from torch_cudnn_ext.tuning.store import take_rows
from torch_cudnn_ext.tuning.tune import device_of


def optimize(
    model: Module,
    inputs: Tensor | tuple[Any, ...],
    *,
    train: bool = False,
    loss: Loss | None = None,
    policy: PolicyLike = None,
    layout: Layout = "keep",
    cuda_graph: bool | None = None,
    torch_compile: bool | None = None,
    on_new_shape: NewShape = "heuristic",
    max_error: float | None = None,
    peak_memory: int | str | None = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> OptimizedModel:
    """Make the fastest version of a network that was found, for inference or for training.

    For inference a copy of the model is traced, folded and fused; all problems are tuned;
    ``torch.compile`` makes another version. For training the model's own code runs with layers of
    this package, which are tuned forward and backward, on the model's parameters. What was made is
    timed by turns with PyTorch's layers, and the fastest runs. The model is not changed, except
    for the strides of its filters in training if ``layout`` converts them.

    Args:
        model: Any module without hooks, on one device.
        inputs: An example: a tensor or a tuple of positional arguments. Other sizes run too.
        train: Whether the network is for training.
        loss: Of the model's output, for the steps that are timed and checked: a function that gives
            a tensor of one element. By default it is the sum of the outputs.
        policy: Constraints (``max_workspace``, ``deterministic``, ``backends``, …).
        layout: Of images and filters: ``keep`` leaves them as they are; ``contiguous`` and
            ``channels_last`` convert them, in training the model's own filters; ``search`` takes
            the faster of these two, or for inference of a traced model the layout that was best for
            each layer, conversions included.
        cuda_graph: Whether calls may replay CUDA graphs; ``None``: in inference.
        torch_compile: Whether ``torch.compile`` may compile the network; ``None``: in inference on
            a GPU.
        on_new_shape: What layers do for inputs of other sizes than the example's: ``heuristic``
            runs untuned; ``autotune`` tunes in the first such call.
        max_error: The largest error that is allowed for a tensor of the results, relative to its
            largest element in float64. In training this includes buffers and gradients; a
            gradient's error is relative to the largest element of its layer's gradients, or to a
            thousandth of the largest of all gradients if that is more.
        peak_memory: The most memory that a call takes for activations and workspaces, in training
            also for gradients: bytes, or a text such as ``4GiB``. It is measured on a GPU, for each
            way to run; a way above it does not run. This resets the peaks that
            ``torch.cuda.max_memory_allocated`` gives.
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
            initialised, there is no tensor among the inputs, no output has a gradient in training,
            all errors are above ``max_error`` or not known, all peaks are above ``peak_memory`` or
            the model is on the CPU, or an argument is none of its values.
        RuntimeError: As `tuning.tune`; or PyTorch's own operators run ours, by `enable`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
        >>> optimize(model, torch.randn(2, 3, 8, 8)).report.rewrites.activated
        ['0']
    """
    options = Options(
        train, loss, policy, layout, cuda_graph, torch_compile, on_new_shape, max_error, peak_memory
    )
    args = example_of(inputs, train)
    _check_baseline()
    search = Search(args, time_budget_s, knob_search, jobs, progress, train)
    return (_for_training if train else _for_inference)(model, options, search)


def _check_baseline() -> None:
    if is_enabled():
        raise RuntimeError(
            "optimize: got PyTorch's operators run by ours, so that there is nothing to compare "
            "with; wanted them as they are: call disable() before"
        )


def _for_training(model: Module, options: Options, search: Search) -> TrainingModel:
    model = model_without_hooks("optimize", model, has_hooks)
    recipes = options.recipes(search.args, digest_of(model))
    return optimize_training(model, search, recipes, options)


def _for_inference(model: Module, options: Options, search: Search) -> InferenceModel:
    plain, args = plain_copy("optimize", model), search.args
    most = options.most_bytes(device_of("optimize", plain, args))
    with same_random_numbers(), ExitStack() as stack:
        stack.enter_context(preserve_model_state(plain))

        with preserve_model_state(plain):
            state = changed_by_run(plain, args)

        found: list[InferenceModel] = []

        def make(recipes: list[Recipe]) -> None:
            for one in _networks(plain, recipes, args, state):
                stack.enter_context(preserve_model_state(one))
                search.tune(one, search.note(one, one._untuned))
                one._recipe.shapes = [sizes_of(args)]
                found.append(one)

        make(options.recipes(args, digest_of(plain)))
        if len(found) == 2:
            make(_of_both_layouts(found, search))
        fast = found[0] if len(found) == 1 else _fastest_of(found, args)
        _finish(fast, search, options.max_error, most)
    fast._forget_graphs()
    return fast


def _fastest_of(found: list[InferenceModel], args: tuple[Any, ...]) -> InferenceModel:
    return fastest_of(found, samples_of_ways([(one, Way.optimized) for one in found], args))


def _of_both_layouts(found: list[InferenceModel], search: Search) -> list[Recipe]:
    """What a network is made by whose layers do not all have one layout; none if none may gain."""
    contiguous, channels_last = found
    times = search.layer_times(contiguous, channels_last)
    if not may_gain(times):
        return []
    whole = total(times)
    base = contiguous if whole.contiguous <= whole.channels_last else channels_last
    network = cast("GraphModule", base._tuned)
    conversion_ms = search.conversion_ms(base, conversions(network))
    layouts = cheapest_layouts(network, base._recipe.layout, times, conversion_ms)
    if len({*layouts.values()}) < 2:
        return []
    return [replace(base._recipe, layouts=layouts, problems=[])]


def _finish(
    fast: InferenceModel, search: Search, max_error: float | None, most: int | None
) -> None:
    """Let the fastest way run.

    Raises:
        ValueError: As `optimize`.
    """
    search.tell(fast, "compiling and timing the whole network")
    fast.report.cuda_graph = reason_against_graphs(fast, search.args)
    if not fast.report.torch_compile:
        _mix(fast, search)
    elif not fast._recipe.torch_compile and not any(t.is_cuda for t in tensors_in(search.args)):
        fast.report.torch_compile = "the inputs are not on a GPU"
    choose_way(fast, search.args, right_ways(fast, search.args, max_error), most)
    fast.report.problems = search.rows(fast)


def _networks(
    plain: Module, recipes: list[Recipe], args: tuple[Any, ...], state: str
) -> list[InferenceModel]:
    """The networks of recipes, but those whose code does not run in the recipe's layout.

    Raises:
        RuntimeError: No network runs. One of several layouts may be left out.
    """
    found: list[InferenceModel] = []
    for recipe in recipes:
        try:
            fast = make_network(plain, recipe, facts_of_run(), args, state)
            with preserve_model_state(fast):
                fast.run(Way.optimized, *args)
        except RuntimeError:
            if not found and recipe is recipes[-1] and not recipe.layouts:
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
    load = _load_training if file.recipe.train else _load_inference
    fast = load(file, model)
    if fast is None:
        raise ValueError(
            f"load_optimized: {os.fspath(path)} was made of another network than this "
            f"{type(model).__name__}: of {file.network}, or of other layers"
        )
    return fast


def _load_training(file: RecipeFile, model: Module) -> TrainingModel | None:
    model = model_without_hooks("load_optimized", model, has_hooks)
    if file.recipe.layers != digest_of(model):
        return None
    take_rows(file.rankings)
    report = new_training_report(model, file.recipe)
    report.way = file.way
    return TrainingModel(model, file.recipe, report)


def _load_inference(file: RecipeFile, model: Module) -> InferenceModel | None:
    plain = plain_copy("load_optimized", model)
    recipe = file.recipe
    if recipe.layers != digest_of(plain):
        return None
    facts = facts_of(file.rewrites)
    fast = make_network(plain, recipe, facts, (), recipe.untraced)
    if fast.report.rewrites != file.rewrites:
        return None
    take_rows(file.rankings)
    if not fast.report.torch_compile:
        fast._compiled[Way.mixed].module = make_mixed_network(fast, facts)
    fast.report.way, fast.report.left = file.way, recipe.left
    fast.report.cuda_graph = known_reason_against_graphs(fast)
    return fast


def _mix(fast: InferenceModel, search: Search) -> None:
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
    ours = {choice.layer for choice in found if choice.algorithm != BASELINE}
    fast.report.left = recipe.left = [*dict.fromkeys(c.layer for c in found if c.layer not in ours)]
    compiled.module = make_mixed_network(fast, facts_of_run())
