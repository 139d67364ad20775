"""What the problems of a network are, how they are tuned, and what was found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from torch_cudnn_ext import _C
from torch_cudnn_ext._optimize.layouts import LayerTimes
from torch_cudnn_ext._optimize.optimized import InferenceModel, OptimizedModel
from torch_cudnn_ext._optimize.report import ProblemRow
from torch_cudnn_ext._optimize.rewriting import ConvolutionAdd, names_of_targets
from torch_cudnn_ext._policy_text import only_fields
from torch_cudnn_ext._workload.problems import is_tuned_alone
from torch_cudnn_ext._workload.pytree import map_tensors
from torch_cudnn_ext._workload.recorder import RecordedCall, described_calls
from torch_cudnn_ext._workload.running import dry_run
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.enable import enabled_anew
from torch_cudnn_ext.nn import Tunable
from torch_cudnn_ext.ops.family import family_of
from torch_cudnn_ext.tuning.measure import BASELINE, Progress
from torch_cudnn_ext.tuning.tune import device_of, tune

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement


@dataclass(frozen=True)
class Search:
    """How problems are tuned, for the example's arguments."""

    args: tuple[Any, ...]
    time_budget_s: float
    knob_search: bool
    jobs: int
    progress: Progress | None
    train: bool = False
    not_kept: dict[str, Measurement] = field(default_factory=dict)
    # The module that makes it, and the problem.
    calls: dict[OptimizedModel, list[tuple[str, str]]] = field(default_factory=dict)

    def options(self, fast: OptimizedModel) -> tuple[str, str, float]:
        """The device, the constraints and the time budget."""
        place = device_of("optimize", fast, self.args)
        return place, fast._recipe.policy, self.time_budget_s

    def note(self, fast: OptimizedModel, network: Module) -> list[str]:
        """`problems` of the network that is not compiled, which `rows` tells."""
        self.calls[fast] = self._calls(fast, network)
        return _problems(self.calls[fast])

    def problems(self, fast: OptimizedModel, network: Module) -> list[str]:
        """The problems that layers of ours in a network meet.

        A forward's own calls of functions, such as of ``F.conv2d``, are PyTorch's.
        """
        return _problems(self._calls(fast, network))

    def _calls(self, fast: OptimizedModel, network: Module) -> list[tuple[str, str]]:
        recipe = fast._recipe
        inputs = map_tensors(recipe.in_layout, self.args)
        switches = pushed(only_fields(recipe.policy, ("compute",)))
        with enabled_anew("heuristic"), switches, dry_run():
            found = described_calls(network, inputs, self.train, self._call_of)
        return [call for call in found if call is not None]

    def _call_of(self, call: RecordedCall) -> tuple[str, str] | None:
        """The module and the problem of a call; ``None`` if nothing is tuned for it."""
        if not isinstance(call.module, Tunable | ConvolutionAdd) or isinstance(call.event, str):
            return None
        info = _C.problem_info(call.event["problem"])
        # In training nothing is fused, so that the others are PyTorch's.
        is_ours = family_of(info).gains or not self.train
        return (call.layer, info["text"]) if is_ours and is_tuned_alone(info) else None

    def tune(self, fast: OptimizedModel, problems: Iterable[str]) -> None:
        """Tune those problems that are not tuned, and make them the recipe's."""
        self._tune(self.options(fast), problems)
        recipe = fast._recipe
        recipe.problems = [*dict.fromkeys((*recipe.problems, *problems))]

    def _tune(self, options: tuple[str, str, float], problems: Iterable[str]) -> None:
        place, policy, budget = options
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

    def _ranking(self, options: tuple[str, str, float], problem: str) -> list[Measurement]:
        """The ranking of a problem that was tuned; empty if there is none."""
        ranking = _C.tuned(problem, *options)
        if ranking is None and problem in self.not_kept:
            ranking = [self.not_kept[problem]]
        return ranking or []

    def layer_times(
        self, contiguous: InferenceModel, channels_last: InferenceModel
    ) -> dict[str, LayerTimes]:
        """The times of the layers whose problems depend on the layout, by their names."""
        one, other = self._calls_of_layers(contiguous), self._calls_of_layers(channels_last)
        times = {}
        for name in one.keys() & other.keys():
            first = self._time_of(contiguous, one[name])
            second = self._time_of(channels_last, other[name])
            if one[name] != other[name] and first is not None and second is not None:
                times[name] = LayerTimes(first, second)
        return {name: times[name] for name in one if name in times}

    def _calls_of_layers(self, fast: InferenceModel) -> dict[str, list[str]]:
        """The problems of the calls of each layer of the model."""
        names, found = names_of_targets(fast._untuned), dict[str, list[str]]()
        for module, problem in self.calls[fast]:
            if name := next((names[at] for at in _outwards(module) if at in names), ""):
                found.setdefault(name, []).append(problem)
        return found

    def _time_of(self, fast: OptimizedModel, problems: Iterable[str]) -> float | None:
        options = self.options(fast)
        best = [next(iter(self._ranking(options, problem)), None) for problem in problems]
        times = [row["median_ms"] for row in best if row and row["median_ms"] is not None]
        return sum(times) if len(times) == len(best) else None

    def conversion_ms(self, fast: OptimizedModel, problems: Sequence[str]) -> dict[str, float]:
        """The time that PyTorch takes for each conversion of a tensor to another layout."""
        place, _, budget = self.options(fast)
        options = place, "", budget  # constraints of the network are not PyTorch's
        self._tune(options, problems)
        return {problem: _baseline_ms(self._ranking(options, problem)) for problem in problems}

    def tell(self, fast: OptimizedModel, text: str) -> None:
        """Tell what is done after all problems are tuned."""
        if self.progress is not None:
            count = len(fast._recipe.problems)
            self.progress.problem(count, count, text)

    def rows(self, fast: OptimizedModel) -> list[ProblemRow]:
        """What was found for each problem."""
        calls, rows = Counter(problem for _, problem in self.calls[fast]), []
        options = self.options(fast)
        for problem in fast._recipe.problems:
            times = [
                (row["workspace_bytes"] or 0, row["median_ms"], row["algorithm"])
                for row in self._ranking(options, problem)
                if row["median_ms"] is not None
            ]
            if times:
                plain = next((ms for _, ms, algorithm in times if algorithm == BASELINE), None)
                best, count = times[0], calls[problem]
                rows.append(
                    ProblemRow(problem, best[2], best[1], plain, count, _by_workspace(times))
                )
        return rows


def _baseline_ms(ranking: Iterable[Measurement]) -> float:
    times = [row["median_ms"] for row in ranking if row["algorithm"] == BASELINE]
    return next((ms for ms in times if ms is not None), math.inf)


def _problems(calls: Iterable[tuple[str, str]]) -> list[str]:
    return [*dict.fromkeys(problem for _, problem in calls)]


def _outwards(module: str) -> Iterator[str]:
    """The name of a module, and of those that hold it."""
    while module:
        yield module
        module = module.rpartition(".")[0]


def _by_workspace(times: list[tuple[int, float, str]]) -> dict[int, float]:
    """For each workspace, the time of the first in the ranking that needs no more."""
    return {size: next(ms for at, ms, _ in times if at <= size) for size, _, _ in sorted(times)}
