"""What the problems of a network are, how they are tuned, and what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from torch_cudnn_ext import _C
from torch_cudnn_ext._optimize.optimized import OptimizedModel
from torch_cudnn_ext._optimize.report import ProblemRow
from torch_cudnn_ext._optimize.rewriting import ConvolutionAdd
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
    calls: dict[str, dict[str, int]] = field(default_factory=dict)  # by layout and problem

    def options(self, fast: OptimizedModel) -> tuple[str, str, float]:
        """The device, the constraints and the time budget."""
        place = device_of("optimize", fast, self.args)
        return place, fast._recipe.policy, self.time_budget_s

    def count(self, fast: OptimizedModel, network: Module) -> dict[str, int]:
        """`problems` of the network that is not compiled, which `rows` tells."""
        self.calls[fast._recipe.layout] = self.problems(fast, network)
        return self.calls[fast._recipe.layout]

    def problems(self, fast: OptimizedModel, network: Module) -> dict[str, int]:
        """The problems that layers of ours in a network meet, with the number of calls of each.

        A forward's own calls of functions, such as of ``F.conv2d``, are PyTorch's.
        """
        recipe = fast._recipe
        inputs = map_tensors(recipe.in_layout, self.args)
        switches = pushed(only_fields(recipe.policy, ("compute",)))
        with enabled_anew("heuristic"), switches, dry_run():
            found = described_calls(network, inputs, self.train, self._problem_of)
        return dict(Counter(problem for problem in found if problem))

    def _problem_of(self, call: RecordedCall) -> str:
        """The problem that is tuned for a call; empty if there is none."""
        if not isinstance(call.module, Tunable | ConvolutionAdd) or isinstance(call.event, str):
            return ""
        info = _C.problem_info(call.event["problem"])
        # In training nothing is fused, so that the others are PyTorch's.
        is_ours = family_of(info).gains or not self.train
        return info["text"] if is_ours and is_tuned_alone(info) else ""

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

    def tell(self, fast: OptimizedModel, text: str) -> None:
        """Tell what is done after all problems are tuned."""
        if self.progress is not None:
            count = len(fast._recipe.problems)
            self.progress.problem(count, count, text)

    def rows(self, fast: OptimizedModel) -> list[ProblemRow]:
        """What was found for each problem."""
        calls, rows = self.calls[fast._recipe.layout], []
        for problem in fast._recipe.problems:
            ranking = _C.tuned(problem, *self.options(fast))
            if ranking is None and problem in self.not_kept:
                ranking = [self.not_kept[problem]]
            times = [
                (row["workspace_bytes"] or 0, row["median_ms"], row["algorithm"])
                for row in ranking or []
                if row["median_ms"] is not None
            ]
            if times:
                plain = next((ms for _, ms, algorithm in times if algorithm == BASELINE), None)
                best, count = times[0], calls.get(problem, 0)
                rows.append(
                    ProblemRow(problem, best[2], best[1], plain, count, _by_workspace(times))
                )
        return rows


def _by_workspace(times: list[tuple[int, float, str]]) -> dict[int, float]:
    """For each workspace, the time of the first in the ranking that needs no more."""
    return {size: next(ms for at, ms, _ in times if at <= size) for size, _, _ in sorted(times)}
