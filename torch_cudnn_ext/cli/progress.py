"""How far a command is: a bar on a terminal, and otherwise a line a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from torch_cudnn_ext.analysis.tables import Table
from torch_cudnn_ext.tuning.measure import BASELINE

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement

LINE_EVERY_S = 60.0  # where standard error is no terminal
_LEAST, _MOST = 20, 70  # characters of what is next
_OTHERS = 54  # columns of the bar, the counts and the times


@dataclass
class ProgressState:
    """How far the work is, and what it found.

    Attributes:
        begun: When the first problem began, by the monotonic clock; ``None`` before.
        known: How many problems were finished then.
        next: What is done now.
        problems: How many problems are finished, and how many there are.
        algorithms: The same for the algorithms of this problem.
        pytorch_ms: The sum of the times of PyTorch's own kernels.
        best_ms: The sum of the best times of the same problems.
    """

    begun: float | None = None
    known: int = 0
    next: str = ""
    problems: tuple[int, int] = (0, 0)
    algorithms: tuple[int, int] = (0, 0)
    pytorch_ms: float = 0.0
    best_ms: float = 0.0

    def left_s(self, now: float) -> float | None:
        """An estimate of the time left in seconds; ``None`` if nothing is finished."""
        done, total = self.problems
        tried, all_algorithms = self.algorithms
        finished = done - self.known + (tried / all_algorithms if all_algorithms else 0.0)
        if self.begun is None or finished <= 0 or done >= total:
            return None
        return (now - self.begun) / finished * max(0.0, total - self.known - finished)

    def said(self, now: float) -> str:
        """The time left and the gain so far, as far as they are known."""
        left = self.left_s(now)
        words = [] if left is None else [f"about {duration_text(left)} left"]
        if self.best_ms:
            words.append(f"{self.pytorch_ms / self.best_ms:.2f}x so far")
        return ", ".join(words)

    def line(self, now: float) -> str:
        """All of this in one line."""
        counts = [
            f"{done} of {total} {what}"
            for (done, total), what in (
                (self.problems, "problems"),
                (self.algorithms, "algorithms of the next"),
            )
            if total
        ]
        return "; ".join(filter(None, [", ".join(counts), self.said(now), self.next]))


def duration_text(seconds: float) -> str:
    """A time for people: ``45 s``, ``4 min``, ``1 h 20 min``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class ProgressBar(RichProgress):
    """Shows on standard error how far a command is; a `Progress` that is told of results, too.

    A terminal has bars for the problems and for the algorithms of one problem. What is no terminal
    gets a line a minute.
    """

    def __init__(self) -> None:
        """Make the bars; entering shows them."""
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}", markup=False),
            console=Console(stderr=True, emoji=False, highlight=False, markup=False),
            transient=True,
            redirect_stdout=False,
            disable=not is_terminal,
        )
        self._bars = tuple(
            self.add_task("", total=None, said="", visible=is_first) for is_first in (True, False)
        )
        self._state = ProgressState()
        self._ended = Event()
        self._lines: Thread | None = None
        if sys.stderr is not None and not is_terminal:
            self._lines = Thread(target=self._print_lines, daemon=True)
        self._has_heading = False

    def start(self) -> None:
        """Show the bars, or begin to print lines."""
        super().start()
        if self._lines is not None:
            self._lines.start()

    def stop(self) -> None:
        """Hide the bars, or end the lines."""
        super().stop()
        self._ended.set()
        if self._lines is not None and self._lines.is_alive():
            self._lines.join()

    def phase(self, text: str) -> None:
        """What is done before problems are known: ``running resnet50``."""
        self._state.next = text
        self.update(self._bars[0], description=self._cut(text))

    def problem(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` problems are finished; ``text`` is next."""
        state = self._state
        before, all_before = state.problems
        if state.begun is None or done < before or total != all_before:  # other problems
            state.begun, state.known = time.monotonic(), done
        state.problems, state.algorithms, state.next = (done, total), (0, 0), text
        self._update(0, done, total, text)

    def algorithm(self, done: int, total: int, text: str) -> None:
        """``done`` of ``total`` algorithms of one problem are finished; ``text`` is next."""
        self._state.algorithms = done, total
        self._update(1, done, total, text)

    def measured(self, rows: Sequence[Measurement]) -> None:
        """The measurements of one problem, best first; they add to the gain."""
        times = {row["algorithm"]: row["median_ms"] for row in rows if row["median_ms"] is not None}
        if rows and BASELINE in times and rows[0]["algorithm"] in times:
            self._state.pytorch_ms += times[BASELINE]
            self._state.best_ms += times[rows[0]["algorithm"]]

    def print_row(self, tables: str | list[Table]) -> None:
        """Print the rows of a table with one result above the bars, if these are on a terminal.

        If standard output is one, too, it gets the whole table in the end, and no row is printed.
        """
        is_shown = not self.disable and not (sys.stdout is not None and sys.stdout.isatty())
        for table in tables if isinstance(tables, list) and is_shown else []:
            headings = [column.heading for column in table.columns]
            for cells in [*[headings] * (not self._has_heading), *table.rows]:
                self._has_heading = True
                columns = zip(table.columns, headings, cells, strict=True)
                padded = [
                    f"{cell:>{len(heading)}}" if column.right else f"{cell:{len(heading)}}"
                    for column, heading, cell in columns
                ]
                self.console.print("  ".join(padded).rstrip(), soft_wrap=True)

    def _cut(self, text: str) -> str:
        return text[: min(max(self.console.width - _OTHERS, _LEAST), _MOST)]

    def _update(self, bar: int, done: int, total: int, text: str) -> None:
        shown = self._cut(text)
        self.update(self._bars[bar], completed=done, total=total, description=shown, visible=True)
        self.update(self._bars[0], said=self._state.said(time.monotonic()))

    def _print_lines(self) -> None:
        while not self._ended.wait(LINE_EVERY_S):
            if line := self._state.line(time.monotonic()):
                print(line, file=sys.stderr, flush=True)
