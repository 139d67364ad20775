"""Whether errata are still there: each row that a single run can show, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch_cudnn_ext import _C
from torch_cudnn_ext._defaults import VERIFY_TIME_LIMIT_S
from torch_cudnn_ext._files import ERRATA_VARIABLE
from torch_cudnn_ext.analysis import reproduce
from torch_cudnn_ext.analysis.reproduce import CANNOT_RUN, NOT_SEEN, Outcome, Run
from torch_cudnn_ext.analysis.tables import Column, Table, plural, version_text
from torch_cudnn_ext.tuning.measure import Progress

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Erratum, ErratumRun

NEEDS_GPU = "needs a GPU"
AGREES, DISAGREES = "agrees", "disagrees"
CANDIDATE = "candidate for fixed"
UNKNOWN = "unknown"
# Of a row's runs, what one that shows the erratum came to counts most, and "not seen" least.
_WEIGHTS = {CANNOT_RUN: 1, NOT_SEEN: 2}
_KILLED_S = 10  # a killed process may wait for its GPU for longer


@dataclass(frozen=True)
class Finding:
    """What a row's run showed.

    Attributes:
        id: The erratum.
        state: Whether its guard is on.
        outcome: What the run came to.
        verdict: Whether the state and the outcome agree.
        seconds: How long its processes took.
        run: The run that came to this: its problem, algorithm and inputs.
    """

    id: str
    state: str
    outcome: Outcome
    verdict: str
    seconds: float
    run: str = ""


def verify_errata(
    rows: Sequence[Erratum],
    device: str,
    time_limit_s: float = VERIFY_TIME_LIMIT_S,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Iterator[Finding]:
    """Run the rows that have runs, and tell of each in their order.

    A row's runs follow one another until one shows the erratum. It counts as not seen only if all
    of them run and none shows it.

    Args:
        rows: Rows of ``_C.errata()``.
        device: The GPU; ``cpu`` if there is none.
        time_limit_s: Seconds for each process, in which it also imports PyTorch.
        progress: Told of every row.
        jobs: How many processes run at a time. They share the GPU's memory.
    """
    with_runs = [row for row in rows if row["runs"]]
    pool = ThreadPoolExecutor(jobs)
    try:
        left = [pool.submit(_finding_of, row, rows, device, time_limit_s) for row in with_runs]
        for done, (row, future) in enumerate(zip(with_runs, left, strict=True)):
            if progress is not None:
                progress.problem(done, len(with_runs), row["id"])
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _finding_of(row: Erratum, rows: Sequence[Erratum], device: str, time_limit_s: float) -> Finding:
    start = time.monotonic()
    found: dict[str, Outcome] = {}
    for shown in row["runs"]:
        text = " ".join(filter(None, [shown["problem"], shown["algorithm"], shown["inputs"]]))
        found[text] = _outcome_of_run(row, shown, rows, device, time_limit_s)
        if found[text].word not in (NOT_SEEN, CANNOT_RUN):
            break
    text, outcome = min(found.items(), key=lambda item: _WEIGHTS.get(item[1].word, 0))
    seconds = time.monotonic() - start
    verdict = verdict_of(row["state"], outcome)
    return Finding(row["id"], row["state"], outcome, verdict, seconds, text)


def _outcome_of_run(
    row: Erratum, shown: ErratumRun, rows: Sequence[Erratum], device: str, time_limit_s: float
) -> Outcome:
    if row["place"] == "GPU" and device == "cpu":
        return Outcome(NEEDS_GPU)
    place = "cpu" if row["place"] == "CPU" else device
    outcome = outcome_of(command_for(run_of(row, shown, place, rows)), time_limit_s)
    if outcome.word == reproduce.HANGS and not row["evidence"].startswith("hangs"):
        return Outcome(CANNOT_RUN, outcome.detail)  # it may only be slow
    return outcome


def run_of(row: Erratum, shown: ErratumRun, device: str, rows: Sequence[Erratum]) -> Run:
    """A run of a row. Other guards that could make its algorithm unsupported are lifted too."""
    lifted = [
        other["id"]
        for other in rows
        if other["remedy"] == "unsupported"
        and {*other["backends"]} & {*row["backends"]}
        and {*other["families"]} & {*row["families"]}
    ]
    ids = tuple(dict.fromkeys([row["id"], *lifted]))
    return Run(row["id"], **shown, device=device, lifted=ids)


def command_for(run: Run) -> list[str]:
    """The command of the process that makes the run."""
    return [sys.executable, "-m", reproduce.__name__, json.dumps(asdict(run))]


def outcome_of(command: Sequence[str], time_limit_s: float) -> Outcome:
    """What a process prints as its outcome, or how it ended without one."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": path, ERRATA_VARIABLE: ""},  # local ones would hide it
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        return Outcome(reproduce.HANGS, f"no result in {time_limit_s:g} s")
    finally:
        _end(process)
    lines = output.splitlines()
    for line in reversed(lines):
        if line.startswith(reproduce.MARK):
            return Outcome(**json.loads(line.removeprefix(reproduce.MARK)))
    if process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        return Outcome(reproduce.ENDED, f"by {name}")
    said = lines[-1][:300] if lines else "no output"
    return Outcome(CANNOT_RUN, f"exit code {process.returncode}: {said}")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill a process that still runs, with those that it started."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_KILLED_S)


def verdict_of(state: str, outcome: Outcome) -> str:
    """Whether the state of a guard agrees with what is seen."""
    if outcome.word in (NEEDS_GPU, CANNOT_RUN):
        return UNKNOWN
    seen = outcome.word != NOT_SEEN
    if state == "on":
        return AGREES if seen else CANDIDATE
    return DISAGREES if seen else AGREES


def findings_table(findings: Sequence[Finding], rows: Sequence[Erratum]) -> Table:
    """The findings, and the errata that no single run shows."""
    cells = [[f.id, f.state, _outcome_text(f), f.verdict, f"{f.seconds:.1f}"] for f in findings]
    headings = ("erratum", "state", "outcome", "verdict", "s")
    columns = [Column(heading, right=heading == "s") for heading in headings]
    versions = ", ".join(f"{n} {version_text(v)}" for n, v in _C.library_versions().items())
    counts = [
        f"{sum(f.verdict == verdict for f in findings)} {verdict}"
        for verdict in (AGREES, CANDIDATE, DISAGREES, UNKNOWN)
    ]
    without = [row["id"] for row in rows if not row["runs"]]
    lists = [("no single run shows", without)] if without else []
    title = f"{versions}: {plural(len(findings), 'row')} with runs"
    return Table(title, columns, cells, ", ".join(counts), lists)


def _outcome_text(finding: Finding) -> str:
    word, detail = finding.outcome.word, finding.outcome.detail
    words = {NOT_SEEN: "not seen any more", NEEDS_GPU: NEEDS_GPU, CANNOT_RUN: CANNOT_RUN}
    shown = words.get(word, f"still {word}")
    return f"{shown} ({detail})" if detail else shown


def findings_json(findings: Sequence[Finding], device: str) -> str:
    """The findings with what they were made on, as JSON."""
    rows = [{**asdict(finding), **asdict(finding.outcome)} for finding in findings]
    for row in rows:
        del row["outcome"]
        row["outcome"] = row.pop("word")
    data = {
        "versions": {n: version_text(v) for n, v in _C.library_versions().items()},
        "device": _C.device_fingerprint(device),
        "errata": rows,
    }
    return json.dumps(data, indent=1) + "\n"
