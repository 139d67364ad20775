"""The measurements of problems and networks, to be asked, printed and exported."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import field_text, only_fields
from torch_cudnn_ext._workload.problems import coupled_problems
from torch_cudnn_ext._workload.tracer import is_function
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.lint import Hint, profile_hints
from torch_cudnn_ext.analysis.page import Page
from torch_cudnn_ext.analysis.profile_page import environment_of, profile_page
from torch_cudnn_ext.analysis.records import RECORD_FIELDS, csv_text, layer_records, result_json
from torch_cudnn_ext.analysis.settings import Settings
from torch_cudnn_ext.analysis.summary import SHOWN_LAYERS, profile_tables, sentence_of
from torch_cudnn_ext.analysis.tables import LISTED_ROWS, Extent, print_tables
from torch_cudnn_ext.ops._arguments import check_flag
from torch_cudnn_ext.policy import Policy
from torch_cudnn_ext.tuning.measure import BASELINE, finite_rows

if TYPE_CHECKING:
    import pandas

    from torch_cudnn_ext._C import Candidate, Measurement

_NUMERICS = ("allow_tf32", "allow_down_convert", "allow_reduced_range", "compute")
_PAGE_ROWS = 20  # of a table of algorithms on a page
_TIMES = ("pytorch", "heuristic", "best", "capped")


@dataclass
class LayerProfile:
    """The measurements of one problem, for all layers that have it."""

    problem: str
    names: list[str]
    count: int
    note: str
    device: str  # where it was measured
    measured: str  # the proxy if the CPU measured a smaller batch for a target, else the problem
    flops: float
    floor_ms: float | None = None  # the roofline's bound for `measured`; None if nothing was timed
    bytes_moved: float = 0.0  # by `measured`: every tensor once
    # The device's peaks for the problem's type, a second; None if nothing was timed.
    peak_flops: float | None = None
    peak_bytes: float | None = None
    # Ranked best first, then those that are not ok.
    rows: list[Measurement] = field(default_factory=list)
    current: str | None = None  # the algorithm that the policy would run now
    heuristic: str | None = None  # the algorithm that would run without any measuring
    current_error: str = ""  # why the policy would run none
    # By rule of lint: the time with its change made, of what would run without tuning.
    changed_ms: dict[str, float] = field(default_factory=dict)
    recorded: str = ""  # the day when the rows were measured, if they are from a tuning store
    # What another device accepts, listed without measuring.
    listed_for: str | None = None
    listed: list[Candidate] = field(default_factory=list)

    @property
    def op(self) -> str:
        """The first word of the problem, such as ``conv_fwd``."""
        return self.problem.split()[0]

    @property
    def family(self) -> str:
        """The kind of operator, such as ``conv``."""
        return str(_C.problem_info(self.problem)["family"])

    @property
    def ranked(self) -> list[Measurement]:
        """The measurements that are ok, best first."""
        return [row for row in self.rows if row["status"] == "ok"]

    @property
    def pytorch(self) -> Measurement | None:
        """The baseline, whether or not the policy admits it; ``None`` if it cannot run."""
        return self.find(BASELINE)

    def find(self, algorithm: str | None) -> Measurement | None:
        """The timed measurement of an algorithm."""
        rows = (row for row in self.rows if row["algorithm"] == algorithm)
        return next((row for row in rows if row["median_ms"] is not None), None)

    def best(
        self, max_workspace_bytes: int | None = None, deterministic: bool = False
    ) -> Measurement | None:
        """The first in rank order that keeps the constraints; unknown does not keep them."""
        for row in self.ranked:
            workspace = row["workspace_bytes"]
            too_large = max_workspace_bytes is not None and (
                workspace is None or workspace > max_workspace_bytes
            )
            if not too_large and not (deterministic and row["deterministic"] is not True):
                return row
        return None


@dataclass(frozen=True)
class Totals:
    """Milliseconds summed over layers, each weighted by how often it occurs.

    A sum is ``None`` if some layer lacks that measurement; ``missing`` counts these layers.
    ``shares`` is the part of the whole time, from 0 to 1, that one kind of operator takes; it is
    empty if there is one kind only.
    """

    label: str
    pytorch_ms: float | None
    heuristic_ms: float | None
    best_ms: float | None
    capped_ms: float | None
    missing: dict[str, int]
    shares: dict[str, float] = field(default_factory=dict)


@dataclass(repr=False)
class Profile:
    """The measurements of one problem or of a whole network, to be asked, printed and exported."""

    layers: list[LayerProfile]
    settings: Settings
    title: str = ""
    # How often operators were called that neither a layer nor a function of ours took, by name.
    not_profiled: dict[str, int] = field(default_factory=dict)
    without_functions: str = ""  # why no function of ours is among the layers
    is_kept: bool = False  # read from a tuning table, which holds no settings and no versions

    def best(
        self,
        max_workspace: int | str | None = None,
        deterministic: bool = False,
        layer: str | None = None,
    ) -> Policy:
        """The policy that pins the best algorithm of each pass: the first in rank order.

        The policy is for the layers. No pin reaches what was called by function, which therefore
        counts only if there are no layers, or if `layer` names it.

        Args:
            max_workspace: Only algorithms within this workspace (bytes, ``64MiB``, ``20%``).
            deterministic: Only algorithms known to be deterministic.
            layer: One of `names`; needed if no one policy fits all that was measured.

        Raises:
            ValueError: There are several kinds of operators, or problems of one pass whose best
                algorithms differ; or no algorithm keeps the constraints.
            KeyError: No layer has this name.
        """
        check_flag("best", "deterministic", deterministic)
        hint = "ask for one layer with best(layer=...), or all with best_by_layer()"
        chosen = [p for p in self.layers if not (p.names and all(map(is_function, p.names)))]
        chosen = chosen or self.layers
        if layer is not None:
            hint = "autotune fits them"
            chosen = [profile for profile in self.layers if layer in profile.names]
            if not chosen:
                names = ", ".join(self.names())
                wanted = f"one of {names}" if names else "none: these layers have no names"
                raise KeyError(f"layer: got {layer!r}, wanted {wanted}")
        found = self._policy(chosen, max_workspace, deterministic, hint)
        if isinstance(found, str):
            raise ValueError(f"best: {found}")
        return found

    def _policy(
        self,
        profiles: Sequence[LayerProfile],
        max_workspace: int | str | None,
        deterministic: bool,
        hint: str = "",
    ) -> Policy | str:
        """The one policy that is the best on all their problems, or why there is none."""
        cap = None
        if max_workspace is not None:
            text = field_text("max_workspace", "max_workspace", max_workspace)
            if self.is_kept and text.endswith("%"):
                raise ValueError(
                    f"max_workspace: got {max_workspace!r} for what a file kept, which tells no "
                    "device's memory; wanted bytes, or a text such as '64MiB'"
                )
            cap = _C.workspace_cap(text, self.settings.device)
        fits = len({profile.family for profile in profiles}) <= 1
        pins: dict[str, str] = {}
        for profile in profiles if fits else ():
            row = profile.best(cap, deterministic)
            if row is None:
                return (
                    f"no algorithm for max_workspace={max_workspace}, "
                    f"deterministic={deterministic} of {profile.problem}"
                )
            pass_name = _C.problem_info(profile.problem)["pass_name"]
            fits = pins.setdefault(pass_name, row["algorithm"]) == row["algorithm"]
            if not fits:
                break
        if not fits:
            return (
                f"the profile holds several problems of {profiles[0].op} or several kinds "
                f"of operators, so one policy does not fit: {hint}"
            )
        numerics = only_fields(self.settings.policy, _NUMERICS)
        words = [f"{name}={algorithm}" for name, algorithm in pins.items()]
        family = profiles[0].family if profiles else "conv"
        return Policy.parse(";".join(words + [numerics] * bool(numerics)), family)

    def best_by_layer(
        self, max_workspace: int | str | None = None, deterministic: bool = False
    ) -> dict[str, Policy]:
        """`best` for every module name of a network that one pin fits.

        A module is left out if it calls several kinds of operators, or if it has several problems
        of one pass whose best algorithms differ; `autotune` fits it. Such a module is called on
        several shapes, or it is a linear layer, whose gradients are two more forward problems. A
        module is also left out if no algorithm keeps the constraints on one of its problems. What
        was called by function is left out, since no pin reaches it; rules of `when` do.
        """
        check_flag("best_by_layer", "deterministic", deterministic)
        policies = {}
        for name in self.names():
            if is_function(name):
                continue
            of_module = [profile for profile in self.layers if name in profile.names]
            found = self._policy(of_module, max_workspace, deterministic)
            if isinstance(found, Policy):
                policies[name] = found
        return policies

    @property
    def is_recorded(self) -> bool:
        """Whether times are those that a tuning store has of a target."""
        return any(profile.recorded for profile in self.layers)

    @property
    def is_mixed(self) -> bool:
        """Whether the times are of several devices, or of one problem under several constraints."""
        devices = {profile.device for profile in self.layers if profile.rows}
        problems = {profile.problem for profile in self.layers}
        return len(devices) > 1 or len(problems) < len(self.layers)

    def names(self) -> list[str]:
        """The names of all modules, in order of their first call.

        What they called by function is among them: ``features.relu()``.
        """
        return list(dict.fromkeys(name for profile in self.layers for name in profile.names))

    def totals(self) -> list[Totals]:
        """A line for each pass; of several passes, also for each kind of operator and for all.

        The time of a coupled forward includes its backward, whose own line does not count towards
        the sums of several passes. There are no totals over several devices, or over one problem
        under several constraints, as a tuning table may hold. If times are recorded, the sums are
        over those layers alone.
        """
        if self.is_mixed:
            return []
        layers = [p for p in self.layers if p.recorded or not self.is_recorded]
        led = {line for profile in layers for line in coupled_problems(profile.problem)}
        counted = [profile for profile in layers if profile.problem not in led]
        ops = list(dict.fromkeys(profile.op for profile in layers))
        lines = [self._totals(op, [p for p in layers if p.op == op]) for op in ops]
        whole = self._totals("all passes", counted)
        families = list(dict.fromkeys(profile.family for profile in layers))
        for family in families if len(families) > 1 else []:
            line = self._totals(f"all {family}", [p for p in counted if p.family == family])
            lines.append(dataclasses.replace(line, shares=_shares(line, whole)))
        return lines + ([whole] if len(ops) > 1 else [])

    def _totals(self, label: str, profiles: Sequence[LayerProfile]) -> Totals:
        cap = self.settings.max_workspace_bytes
        columns = {
            "pytorch": [(p.count, p.pytorch) for p in profiles],
            "heuristic": [(p.count, p.find(p.heuristic)) for p in profiles],
            "best": [(p.count, p.best()) for p in profiles],
            "capped": [(p.count, p.best(cap)) for p in profiles],
        }
        sums: dict[str, Any] = {}
        missing = {}
        for name, pairs in columns.items():
            times = [n * ms for n, row in pairs if row and (ms := row["median_ms"]) is not None]
            missing[name] = len(pairs) - len(times)
            sums[f"{name}_ms"] = None if missing[name] else sum(times)
        return Totals(label, missing=missing, **sums)

    def records(self) -> list[dict[str, Any]]:
        """Every measurement and every listed algorithm as one flat dict.

        ``median_ms`` is the device's time, ``host_ms`` the host's time of a call, ``None`` on the
        CPU. ``tflops`` is 1e12 floating-point operations of the direct algorithm a second.
        ``percent_of_peak`` relates the roofline's bound to the time, ``vs_pytorch`` PyTorch's time
        to the algorithm's (above 1: faster than PyTorch).
        """
        return [record for profile in self.layers for record in layer_records(profile)]

    def print(
        self, show_all: bool = False, top: int | None = None, all_layers: bool = False
    ) -> None:
        """Print the sentence, the summary, and the tables of the problems with most to gain.

        Args:
            show_all: Also what is excluded, unsupported, failed or rejected, with the reasons.
            top: At most so many algorithms a table, in addition to PyTorch's and the current one;
                0 is all. ``None`` is 5 of what a target accepts, and all others.
            all_layers: All problems, in the order of their calls, and not only five.

        Raises:
            TypeError: ``top`` is no integer.
            ValueError: It is negative.
        """
        listed_top = LISTED_ROWS if top is None and not show_all else None
        shown = Extent(
            show_all, top or 0, listed_top=listed_top, layers=0 if all_layers else SHOWN_LAYERS
        )
        print_tables(profile_tables(self, shown))

    def __repr__(self) -> str:
        """One line with the title or the first problem."""
        of = self.title or ", ".join(layer.problem for layer in self.layers[:1])
        devices = ", ".join(dict.fromkeys(layer.device for layer in self.layers))
        return f"<Profile of {len(self.layers)} problems on {devices}: {of}>"

    def __str__(self) -> str:
        """`to_markdown`."""
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self._page(Extent(top=_PAGE_ROWS)).frame()

    def _page(self, extent: Extent, replay: str = "") -> Page:
        return profile_page(self, extent, environment_of(self), replay)

    def to_html(self, show_all: bool = False, top: int = _PAGE_ROWS, replay: str = "") -> str:
        """A report as one page of HTML that needs no other file, no network and no script to read.

        It has the sentence, the layers with most to gain and the code that pins their best
        algorithms, bars by layer and kind, a table of layers, a roofline, for each problem its
        algorithms with time against workspace, and the environment.

        Args:
            show_all: Also what is excluded, unsupported, failed or rejected, with the reasons.
            top: At most so many algorithms a table, in addition to PyTorch's and the current one;
                0 is all.
            replay: The command or code that measures again, for the reader to copy.

        Raises:
            TypeError: ``top`` is no integer.
            ValueError: It is negative.
        """
        return self._page(Extent(show_all, top), replay).html()

    def hints(self) -> list[Hint]:
        """What costs time and can be changed, most to gain first, then what has no number.

        Each hint has the layers, the gain, whether that is measured or an estimate, and the code
        that changes it.
        """
        return profile_hints(self)

    def sentence(self) -> str:
        """What the best algorithms gain over PyTorch's own, with the interval of the speed-up.

        A gain counts if it is above two standard errors, and so wide is the interval. The sentence
        names the layers that bring most of it. If a target was listed, the sentence tells how many
        algorithms that accepts.
        """
        return sentence_of(self)

    def to_markdown(self, show_all: bool = False, top: int = 0) -> str:
        """The sentence, the summary and all tables as Markdown."""
        return tables_markdown(profile_tables(self, Extent(show_all, top)))

    def to_pandas(self) -> pandas.DataFrame:
        """`records` as a data frame.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self.records(), columns=list(RECORD_FIELDS))

    def to_csv(self) -> str:
        """`records` as comma-separated values with a header line."""
        return csv_text(self.records(), RECORD_FIELDS)

    def to_json(self) -> str:
        """Everything as one JSON object.

        It holds the settings, the versions, the layers, the operators that are not profiled, and
        the totals. An error that is not finite is null. Settings and versions are null if the
        measurements were read from a tuning table, and versions if they are recorded ones.
        """
        layers = [dataclasses.asdict(profile) for profile in self.layers]
        for layer in layers:
            layer["rows"] = finite_rows(layer["rows"])
        return result_json(
            {
                "title": self.title,
                "settings": None if self.is_kept else dataclasses.asdict(self.settings),
                "versions": None if self.is_kept or self.is_recorded else _C.versions(),
                "layers": layers,
                "not_profiled": self.not_profiled,
                "without_functions": self.without_functions,
                "totals": [dataclasses.asdict(line) for line in self.totals()],
            },
            allow_nan=False,
        )


def _shares(part: Totals, whole: Totals) -> dict[str, float]:
    times = {name: (getattr(part, f"{name}_ms"), getattr(whole, f"{name}_ms")) for name in _TIMES}
    return {name: a / b for name, (a, b) in times.items() if a is not None and b}
