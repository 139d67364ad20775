"""Two sets of results compared: what is faster, slower, the same, gone or new.

>>> compare("before.json", "after.json").print()
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from torch_cudnn_ext._defaults import TOLERANCE
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.page import Page, Section, facts_table, sorted_table
from torch_cudnn_ext.analysis.records import csv_text, field_names, result_json
from torch_cudnn_ext.analysis.result_files import (
    RANKINGS,
    Item,
    Results,
    parse_results,
    read_results,
)
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.analysis.tables import Column, Table, milliseconds, plural, print_tables

Source: TypeAlias = "str | os.PathLike[str] | Profile"

VERDICTS = ("slower", "gone", "faster", "new", "same")
_WORSE = ("slower", "gone")


@dataclass(frozen=True)
class Change:
    """One result before and after.

    Attributes:
        verdict: ``faster``, ``slower``, ``same``, ``gone`` or ``new``.
        subject: The problem line, or the module or network with its setting.
        part: The algorithm; empty for what a problem takes at best. Of a bench, which of several
            ratios this is.
        names: The layers that have the problem.
        count: How often a network calls it.
        before: The algorithm before; empty for modules and networks.
        after: The algorithm after.
        before_ms: The time before in milliseconds; ``None`` if it did not run.
        after_ms: The time after.
        speedup: The time before divided by the time after, above 1 if it became faster; of a bench,
            the ratio to PyTorch after divided by the one before. ``None`` if it is gone or new.
        low: The lower end of the interval of ``speedup``.
        high: The upper end.
        reason: Why it is gone.
    """

    verdict: str
    subject: str
    part: str
    names: tuple[str, ...]
    count: int
    before: str
    after: str
    before_ms: float | None
    after_ms: float | None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, repr=False)
class Differences:
    """How two sets of results differ. It prints as a sentence and tables.

    Attributes:
        before: What the first set is called.
        after: What the second set is called.
        kind: What is compared: ``times``, or ``ratios to PyTorch`` of a bench.
        changes: Everything that either set has, those of whole problems first.
        facts: Devices, policies and versions that differ, by name.
        tolerance: Smaller relative changes count as none.
    """

    before: str
    after: str
    kind: str
    changes: list[Change]
    facts: dict[str, tuple[str, str]] = field(default_factory=dict)
    tolerance: float = TOLERANCE

    @property
    def whole(self) -> list[Change]:
        """The changes of problems, modules and networks, without single algorithms."""
        return [change for change in self.changes if not self._is_algorithm(change)]

    @property
    def is_worse(self) -> bool:
        """Whether a problem, module or network became slower, or is gone."""
        return any(change.verdict in _WORSE for change in self.whole)

    def _is_algorithm(self, change: Change) -> bool:
        return self.kind == RANKINGS and bool(change.part)

    def sentence(self) -> str:
        """What changed, in one sentence, with the interval of the whole.

        Times are sums over the problems that both sets have, each times its calls. For ratios it is
        their geometric mean.
        """
        both = [change for change in self.whole if change.speedup is not None]
        count = Counter(change.verdict for change in self.whole)
        counts = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS)
        if not both:
            return f"{self.after} has nothing in common with {self.before}: {counts}."
        if self.kind == RANKINGS:
            before_ms, after_ms = (
                sum(c.count * (getattr(c, name) or 0.0) for c in both)
                for name in ("before_ms", "after_ms")
            )
            problems = plural(len(both), "problem")
            of = f"{milliseconds(before_ms)} -> {milliseconds(after_ms)} ms for {problems}"
            factor, low, high = (
                _quotient(before_ms, sum(c.count * _time_after(c, name) for c in both))
                for name in ("speedup", "low", "high")
            )
        else:
            of = f"geometric mean of {plural(len(both), 'ratio')} to PyTorch"
            factor, low, high = (
                statistics.geometric_mean(getattr(c, name) or c.speedup or 1.0 for c in both)
                for name in ("speedup", "low", "high")
            )
        compared = f"{self.after} is {_words(factor, low, high)} {self.before}"
        return f"{compared} ({of}): {counts}."

    def tables(self, show_all: bool = False) -> list[Table]:
        """The changes as tables: of whole problems, and of their algorithms.

        Args:
            show_all: Also what is the same.
        """
        shown = [c for c in self.changes if show_all or c.verdict != "same"]
        whole = [change for change in shown if not self._is_algorithm(change)]
        algorithms = [change for change in shown if self._is_algorithm(change)]
        facts = [(name, [f"{a or '-'} -> {b or '-'}"]) for name, (a, b) in self.facts.items()]
        tables = [_table(self.sentence(), whole, self._note(), facts)]
        return tables + [_table("algorithms", algorithms)] * bool(algorithms)

    def _note(self) -> str:
        limit = f"{100 * self.tolerance:g}%"
        return f"faster and slower: by more than {limit}, and by intervals that do not overlap"

    def print(self, show_all: bool = False) -> None:
        """Print the sentence and the tables.

        Args:
            show_all: Also what is the same.
        """
        print_tables(self.tables(show_all))

    def __repr__(self) -> str:
        """One line with the sentence."""
        return f"<Differences: {self.sentence()}>"

    def __str__(self) -> str:
        """`to_markdown`."""
        return self.to_markdown()

    def to_markdown(self, show_all: bool = False) -> str:
        """The sentence and the tables as Markdown."""
        return tables_markdown(self.tables(show_all))

    def to_csv(self) -> str:
        """All changes as comma-separated values with a header line."""
        return csv_text([dataclasses.asdict(c) for c in self.changes], field_names(Change))

    def to_json(self) -> str:
        """All changes, what differs in devices and versions, and the sentence, as JSON."""
        data = dataclasses.asdict(self) | {"sentence": self.sentence(), "is_worse": self.is_worse}
        return result_json(data)

    def _page(self) -> Page:
        tables = self.tables(show_all=True)
        whole, algorithms = tables[0], tables[1:]
        facts = {name: f"{a or '-'} -> {b or '-'}" for name, (a, b) in self.facts.items()}
        heading = "Problems" if self.kind == RANKINGS else "Ratios to PyTorch"
        sections = [
            Section(heading, sorted_table(dataclasses.replace(whole, lists=()))),
            Section("Algorithms", "".join(map(sorted_table, algorithms))),
            Section("What differs", facts_table(facts)),
        ]
        return Page(f"{self.before} compared with {self.after}", self.sentence(), sections)

    def to_html(self) -> str:
        """A page of HTML that needs no other file and no network."""
        return self._page().html()

    def _repr_html_(self) -> str:
        return self._page().frame()


def compare(before: Source, after: Source, *, tolerance: float = TOLERANCE) -> Differences:
    """Compare two profiles, benches or tuning tables, such as those of two versions of cuDNN.

    A result is faster or slower if the intervals of both do not overlap and the difference is above
    the tolerance. The interval of a time is that outside of which a sample counts as an outlier:
    four times the spread from the median. Of fewer than seven samples it is at least a factor of
    1.4 from the median. The interval of a bench's ratio is its own, of 95 %.

    An algorithm is gone if it worked before and does not now, with the reason. What was not tried
    for lack of time is not compared.

    Args:
        before: A file or a `Profile`. Files are those of ``profile``, ``bench`` and ``tune`` with
            ``--format json``, and of tuning tables.
        after: The same; a profile can be compared with a tuning table, but not with a bench.
        tolerance: The relative difference that counts as none.

    Raises:
        TypeError: An argument is neither a path nor a profile, or the tolerance is no number.
        ValueError: A file holds no results, the two are of different kinds, or the tolerance is
            negative or not finite.
        OSError: A file cannot be read.

    Example:
        >>> line = "softmax_fwd x=f32[4,64,1]:nchw log=false"
        >>> result = profile(line, device="cpu", time_budget_s=1)
        >>> compare(result, result).is_worse
        False
    """
    is_number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    if not is_number:
        kind = type(tolerance).__name__
        raise TypeError(f"tolerance: got {tolerance!r} ({kind}), wanted a number, such as 0.05")
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance: got {tolerance}, wanted 0 or more")
    a, b = _results("before", before), _results("after", after)
    if a.kind != b.kind:
        raise ValueError(
            f"after: got {b.label!r}, which holds {b.kind}, with {a.label!r}, which holds "
            f"{a.kind}, wanted two of one kind"
        )
    changes = sorted(_changes(a, b, tolerance), key=_order)
    facts = _facts_that_differ(a, b)
    return Differences(*_short_labels(a.label, b.label), a.kind, changes, facts, tolerance)


def _results(argument: str, source: Source) -> Results:
    if isinstance(source, Profile):
        return parse_results(source.to_json(), source.title or argument)
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise TypeError(f"{argument}: got {source!r:.60} ({kind}), wanted a path or a Profile")
    try:
        return read_results(source)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from error


def _short_labels(a: str, b: str) -> tuple[str, str]:
    """File names without their folders, unless they are equal."""
    names = Path(a).name, Path(b).name
    if a == b:
        return f"{names[0]} (before)", f"{names[1]} (after)"
    return names if names[0] != names[1] else (a, b)


def _facts_that_differ(a: Results, b: Results) -> dict[str, tuple[str, str]]:
    both = {name: (a.facts.get(name, ""), b.facts.get(name, "")) for name in a.facts | b.facts}
    return {name: (x, y) for name, (x, y) in both.items() if x != y}


def _changes(a: Results, b: Results, tolerance: float) -> Iterator[Change]:
    subjects = {subject for subject, _ in a.items} & {subject for subject, _ in b.items}
    for key in dict.fromkeys([*a.items, *b.items]):
        subject, part = key
        # Of a problem in one file alone, or with its best algorithm alone, no others are told.
        if part and a.kind == RANKINGS and not (subject in subjects and a.has_all and b.has_all):
            continue
        before, after = a.items.get(key), b.items.get(key)
        change = _change(key, before, after, tolerance)
        if change is not None:
            yield change


def _change(
    key: tuple[str, str], before: Item | None, after: Item | None, tolerance: float
) -> Change | None:
    """The change of one result; ``None`` if neither side has it, or a side did not try it."""
    missing = Item(*key, reason="not there")
    a, b = before or missing, after or missing
    if not (a.is_known and b.is_known) or (a.cost is None and b.cost is None):
        return None
    speedup = low = high = None
    if a.cost is None or b.cost is None:
        verdict = "new" if a.cost is None else "gone"
    else:
        speedup = a.cost / b.cost if b.cost else 1.0
        low, high = a.low / b.high if b.high else 1.0, a.high / b.low if b.low else math.inf
        is_faster = low > 1 and speedup > 1 + tolerance
        is_slower = high < 1 and speedup < 1 / (1 + tolerance)
        verdict = "faster" if is_faster else "slower" if is_slower else "same"
    known = b if after is not None else a
    return Change(
        verdict,
        *key,
        names=known.names or a.names,
        count=known.count,
        before=a.algorithm,
        after=b.algorithm,
        before_ms=a.ms,
        after_ms=b.ms,
        speedup=speedup,
        low=low,
        high=high if high is None or math.isfinite(high) else None,
        reason=b.reason if verdict == "gone" else "",
    )


def _order(change: Change) -> tuple[int, float]:
    """Worst first, and the largest difference first; sorting keeps the rest in order."""
    size = abs(math.log(change.speedup)) if change.speedup else 0.0
    return VERDICTS.index(change.verdict), -size


# The sentence.


def _time_after(change: Change, name: str) -> float:
    """The time after by the speed-up or by an end of its interval; 0 for an end at infinity."""
    speedup = getattr(change, name)
    return (change.before_ms or 0.0) / speedup if speedup else 0.0


def _quotient(a: float, b: float) -> float:
    return a / b if b else math.inf


def _words(factor: float, low: float, high: float) -> str:
    """How one set compares with another, of a speed-up and its interval."""
    if low <= 1 <= high:
        return "neither faster nor slower than"
    word = "faster" if factor > 1 else "slower"
    if factor < 1:
        factor, low, high = 1 / factor, 1 / high, _quotient(1, low)
    return f"{factor:.2f}x ({low:.2f} to {high:.2f}) {word} than"


# Cells.


def _interval(change: Change) -> str:
    if change.low is None:
        return ""
    high = "" if change.high is None else f"{change.high:.2f}"
    return f"{change.low:.2f} .. {high}"


def _ran(change: Change) -> str:
    """The algorithm of both, or both algorithms."""
    names = list(dict.fromkeys(filter(None, (change.before, change.after))))
    return " -> ".join(names) or change.part


def _where(change: Change) -> str:
    """The layers with their problem, or the setting."""
    calls = f" x{change.count}" if change.count > 1 else ""
    return f"{', '.join(change.names)}{calls}: {change.subject}" if change.names else change.subject


_COLUMNS = (
    Column("verdict", whole=True, choice=True),
    Column("of"),
    Column("speed-up", right=True),
    Column("interval", right=True),
    Column("ms before", right=True),
    Column("ms after", right=True),
    Column("algorithm"),
    Column("why"),
)


def _table(
    title: str,
    changes: Sequence[Change],
    footer: str = "",
    lists: Sequence[tuple[str, Sequence[str]]] = (),
) -> Table:
    """A table of changes, without columns that have no cell."""
    rows = [
        [
            change.verdict,
            _where(change),
            "" if change.speedup is None else f"{change.speedup:.2f}x",
            _interval(change),
            milliseconds(change.before_ms),
            milliseconds(change.after_ms),
            _ran(change),
            " ".join(change.reason.split()),
        ]
        for change in changes
    ]
    shown = [i for i in range(len(_COLUMNS)) if any(row[i] for row in rows)]
    cells = [[row[i] for i in shown] for row in rows]
    return Table(title, [_COLUMNS[i] for i in shown], cells, footer, lists)
