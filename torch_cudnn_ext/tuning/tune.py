"""Tuning ahead of use, and keeping the choices that were made.

The table of choices lives in memory. `export_table` writes it as JSON lines, one problem on one
device under one set of constraints a line, and `import_table` reads it in another process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import check_path, naming, not_regular, read_lines, resolved, write_text
from torch_cudnn_ext._policy_text import CONSTRAINTS, fields_of, only_fields
from torch_cudnn_ext._workload import nothing_found, tensors_in
from torch_cudnn_ext.analysis.explain import trace
from torch_cudnn_ext.knobs import pushed
from torch_cudnn_ext.models.checks import eager_model
from torch_cudnn_ext.models.enable import enabled_anew
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.measure import (
    Progress,
    Task,
    check_knob_search,
    check_progress,
    check_time_budget,
    checked_device,
    finite_rows,
    measure_tasks,
    no_algorithm,
)

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement, TableEntry

_ENTRY_FIELDS = {"problem": str, "device": str, "constraints": str, "measurements": list}
_MOST = 2**63 - 1  # of a count
_NUMBER, _NONE = (int, float), type(None)
# In the order in which they are written.
MEASUREMENT_FIELDS: dict[str, tuple[type, ...]] = {
    "algorithm": (str,),
    "backend": (str,),
    "status": (str,),
    "reason": (str,),
    "workspace_bytes": (int, _NONE),
    "notes": (list,),
    "deterministic": (bool, _NONE),
    "source": (str,),
    "median_ms": (*_NUMBER, _NONE),
    "spread_ms": (*_NUMBER, _NONE),
    "host_ms": (*_NUMBER, _NONE),  # which earlier versions did not write
    "samples": (int,),
    "error": (*_NUMBER, _NONE),
    "build_ms": _NUMBER,
}


def tune(
    problems: str | Iterable[str],
    *,
    device: str | torch.device | None = None,
    policy: PolicyLike = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> dict[str, Measurement]:
    """Measure problems and keep the ranking, so that ``autotune`` need not measure them again.

    On a GPU nothing is kept while ``torch.backends.cudnn.enabled`` is False.

    On a GPU most of the time goes into engines that are compiled at run time. Several jobs do that
    side by side, and run and time one at a time. They are processes that import the main module, so
    a script calls this under ``if __name__ == "__main__":``.

    Args:
        problems: A problem line, or several.
        device: See `checked_device`.
        policy: Constraints (``max_workspace``, ``deterministic``, ``backends``, …).
        time_budget_s: Seconds a problem; 0 is no limit.
        knob_search: Also search the knobs of the best engines.
        jobs: How many processes; with 1 it is this one.
        progress: Told of every problem, and with one job of every algorithm.

    Returns:
        The best measurement of each problem, by its canonical line.

    Raises:
        TypeError: A problem is no text, ``policy`` none of what stands for one, or ``progress``
            lacks a method of `Progress`.
        ValueError: A line is no problem, the policy no policy, the device none, ``time_budget_s``
            no number of seconds, ``knob_search`` no bool, or ``jobs`` less than 1.
        RuntimeError: A problem has no algorithm under the policy, which is told when all others are
            tuned; or PyTorch finds no such device.
    """
    place = checked_device(device)
    text = text_for_all(policy)
    check_constraints_alone(text)
    check_time_budget(time_budget_s)
    check_knob_search(knob_search, place)
    if not isinstance(problems, Iterable):
        kind = type(problems).__name__
        raise TypeError(f"problems: got {problems!r} ({kind}), wanted problem lines")
    lines = [problems] if isinstance(problems, str) else list(problems)
    for line in lines:
        if not isinstance(line, str):
            raise TypeError(f"problems: got {line!r} ({type(line).__name__}), wanted problem lines")
    problems = [*dict.fromkeys(_C.canonical_problem(line) for line in lines)]
    tasks = [Task(problem, place, text, time_budget_s, knob_search) for problem in problems]
    best, failed = {}, []
    for problem, rows in zip(problems, measure_tasks(tasks, jobs, progress), strict=True):
        if rows and rows[0]["status"] == "ok":
            best[problem] = rows[0]
        else:
            failed.append((problem, rows))
    if failed:
        raise no_algorithm("tune", text, failed)
    return best


def tune_model(
    model: nn.Module,
    inputs: Any,
    *,
    train: bool = True,
    policy: PolicyLike = None,
    time_budget_s: float = 0.0,
    knob_search: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> dict[str, Measurement]:
    """Tune what an unmodified network meets under ``enable("autotune")``, ahead of its first run.

    The network runs once to see its problems, as in `trace`: call this inside ``torch.autocast``
    for what holds there. Where `enable` was called, its constraints hold for the measurements too,
    and it stays enabled as it was. What is in the table already is neither measured nor searched
    again, unless autotune, or a smaller time budget, left algorithms out.

    Args:
        model: Any module, on one device.
        inputs: A tensor, a tuple of positional arguments, or a mapping of keyword arguments.
        train: Also the problems of the backward.
        policy: As for `tune`, like all that follow.
        time_budget_s: Seconds a problem; 0 is no limit.
        knob_search: Also search the knobs of the best engines.
        jobs: How many processes.
        progress: As for `tune`.

    Returns:
        The best measurement of each problem that was measured.

    Raises:
        TypeError: ``model`` is no module, or as `tune`.
        ValueError: There is no tensor among inputs and parameters, the model calls no operator of
            this package, a lazy layer is not initialised, or as `tune`.
        RuntimeError: As `tune`.
    """
    check_progress(progress)
    model = eager_model("tune_model", model)
    # Some inputs, such as lengths, may be on the CPU where the network is on a GPU.
    tensors = [*model.parameters(), *tensors_in(inputs)]
    if not tensors:
        raise ValueError("tune_model: got a model and inputs without a tensor, wanted at least one")
    place = checked_device(tensors[0].device)
    text = text_for_all(policy)
    problems = problems_met(model, inputs, train=train, policy=text)
    if not problems:
        raise ValueError(nothing_found(model))
    return tune(
        [p for p in problems if _C.tuned(p, place, text, time_budget_s) is None],
        device=place,
        policy=text,
        time_budget_s=time_budget_s,
        knob_search=knob_search,
        jobs=jobs,
        progress=progress,
    )


def check_constraints_alone(policy: str, argument: str = "policy") -> None:
    """ValueError where a policy text chooses an algorithm: tuning measures all that it admits."""
    for part in fields_of(policy):
        is_choice = part.partition("=")[0] not in CONSTRAINTS
        if is_choice and not part.endswith(("autotune", "time_on_shape_change")):
            raise ValueError(
                f"{argument}: got the choice {part!r}, wanted constraints alone, or autotune"
            )


def problems_met(
    model: nn.Module, inputs: Any, *, train: bool = True, policy: str = ""
) -> list[str]:
    """The problems of `tune_model`: those of `trace`, without backwards that their forward leads.

    Of the policy text the field ``compute`` is part of them.

    Raises:
        TypeError: ``model`` is no module.
        ValueError: A lazy layer is not initialised; or, with ``train``, no output of the model
            has a gradient.
    """
    with enabled_anew("heuristic"), pushed(only_fields(policy, ("compute",))):
        lines = trace(model, inputs, train=train)
    infos = [_C.problem_info(line) for line in lines]
    return [info["text"] for info in infos if info["pass_name"] == "fwd" or not info["coupled"]]


def entries() -> list[TableEntry]:
    """Everything that was measured: problem, device, constraints, ranked measurements."""
    return _C.table_export()


def export_table(path: str | os.PathLike[str]) -> int:
    """Write the table of choices as JSON lines; the file is whole or, on an error, as before.

    Returns:
        The number of entries.

    Raises:
        OSError: The file cannot be written, or is no regular file.
    """
    _check_replaceable(path)
    measured = entries()
    lines = _lines(measured)
    write_text(path, "".join(f"{line}\n" for line in lines.values()))
    _held[resolved(path)] = lines
    return len(measured)


def merge_table(path: str | os.PathLike[str]) -> int:
    """Bring the table of choices and a file together: afterwards both hold what either held.

    Of a problem that both have, the table's ranking is kept, unless it is what the file held when
    this process last read or wrote it. Processes that add to one file at a time wait for each
    other, so that no problem is lost: they lock a hidden file beside it, which stays.

    Returns:
        The number of entries.

    Raises:
        ValueError: As of `import_table`; the file is left as it was.
        OSError: It cannot be read or written, or is no regular file.
    """
    _check_replaceable(path)
    target = resolved(path)
    with ExitStack() as stack:
        with naming(path):
            file = target.parent / f".{target.name}.lock"
            lock = os.open(file, os.O_RDONLY | os.O_CREAT, 0o666)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            theirs, held = read_table(path), _held.get(target, {})
            measured = entries()  # not before: others may tune while this waits
            lines = _lines(measured)
            _import(target, theirs)
            _C.table_import([e for e in measured if held.get(_key(e)) != lines[_key(e)]])
        return export_table(path)


def _check_replaceable(path: str | os.PathLike[str]) -> None:
    """OSError for what no file can take the place of, such as a device, or a pipe to wait for.

    Raises:
        TypeError: ``path`` is no path.
    """
    check_path(path)
    place = Path(path)
    if place.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if place.exists() and not place.is_file():
        raise not_regular(path)


def import_table(path: str | os.PathLike[str]) -> int:
    """Read what `export_table` wrote and add it to the table.

    Of a problem that both have, the file's ranking replaces the table's. Entries of other devices
    and cuDNN versions are kept but not used here.

    Returns:
        The number of entries that were read.

    Raises:
        ValueError: A line is no entry (the message gives its number); nothing is changed then.
        OSError: The file cannot be read.
    """
    return _import(resolved(path), read_table(path))


def _import(path: Path, read: list[TableEntry]) -> int:
    count = _C.table_import(read)
    now = _lines(entries())  # as the table has them
    _held[path] = {key: now[key] for key in map(_key, read)}
    return count


# By file, the lines of the choices that it held when it was last read or written here.
_held: dict[Path, dict[tuple[str, str, str], str]] = {}


def _key(entry: TableEntry) -> tuple[str, str, str]:
    return entry["problem"], entry["device"], entry["constraints"]


def _lines(entries: Iterable[TableEntry]) -> dict[tuple[str, str, str], str]:
    return {
        _key(one): json.dumps(one | {"measurements": finite_rows(one["measurements"])})
        for one in entries
    }


def read_table(path: str | os.PathLike[str]) -> list[TableEntry]:
    """The entries of a file of `export_table`, of equals the last; raises as `import_table`."""
    entries: dict[tuple[str, str, str], TableEntry] = {}
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            entry = _entry(_parsed(line))
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}, line {number}: {error}") from error
        entries[_key(entry)] = entry
    return list(entries.values())


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:  # of many brackets
        reason = getattr(error, "msg", error)
        raise ValueError(f"got {line[:60]!r}, wanted an entry as JSON ({reason})") from error


def _entry(value: object) -> TableEntry:
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}, wanted an object")
    for name, kind in _ENTRY_FIELDS.items():
        if not isinstance(value.get(name), kind):
            raise ValueError(f"{name} is {value.get(name)!r}, wanted a {kind.__name__}")
    unknown = sorted(value.keys() - _ENTRY_FIELDS.keys())
    if unknown:
        raise ValueError(f"got the unknown {_of_fields(unknown, _ENTRY_FIELDS)}")
    json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates
    value = value | {"problem": _C.canonical_problem(value["problem"])}
    problem = _C.problem_info(value["problem"])
    constraints = _C.canonical_policy(value["constraints"], problem["family"])
    check_constraints_alone(constraints, "constraints")
    value["constraints"] = _C.constraints_text(value["problem"], constraints)
    rows = value["measurements"]
    if not rows:
        raise ValueError("measurements is [], wanted at least one")
    for row in rows:
        if not isinstance(row, dict) or not MEASUREMENT_FIELDS.keys() - {"host_ms"} <= row.keys():
            wanted = ", ".join(MEASUREMENT_FIELDS)
            raise ValueError(f"got the measurement {row!r}, wanted {wanted}")
        if unknown := sorted(row.keys() - MEASUREMENT_FIELDS.keys()):
            fields = _of_fields(unknown, MEASUREMENT_FIELDS)
            raise ValueError(f"got a measurement with the unknown {fields}")
        for name, kinds in MEASUREMENT_FIELDS.items():
            _check_field(name, row.get(name), kinds)
        row["algorithm"] = _C.canonical_algorithm(row["algorithm"], problem["op"])
        if row["backend"] != row["algorithm"].partition(":")[0]:
            raise ValueError(f"backend is {row['backend']!r} of {row['algorithm']}")
        _C.check_measurement(row)
    repeated = [name for name, count in Counter(r["algorithm"] for r in rows).items() if count > 1]
    if repeated:
        raise ValueError(f"got several measurements of {', '.join(repeated)}, wanted one of each")
    return cast("TableEntry", value)


def _of_fields(unknown: list[str], known: Iterable[str]) -> str:
    words = [*known]
    near = [word for name in unknown for word in _C.nearest_words(name, words)]
    hint = f" (the nearest: {', '.join(dict.fromkeys(near))})" if near else ""
    return f"fields {', '.join(unknown)}{hint}, wanted {', '.join(words)}"


def _check_field(name: str, value: object, kinds: tuple[type, ...]) -> None:
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if isinstance(value, list):
        fits = fits and all(isinstance(item, str) for item in value)
    most = sys.float_info.max if float in kinds else _MOST
    if isinstance(value, int | float):
        # The error of what is not finite is not a number.
        of_error = name == "error" and isinstance(value, float) and not math.isfinite(value)
        fits = fits and (of_error or 0 <= value <= most)
    if not fits:
        wanted = ", ".join("null" if kind is _NONE else kind.__name__ for kind in kinds)
        extent = f", from 0 to {most}" if int in kinds else ""
        raise ValueError(f"{name} is {value!r:.60}, wanted one of {wanted}{extent}")


def clear() -> None:
    """Forget every measurement."""
    _C.table_clear()


def reset() -> None:
    """Forget every measurement and every plan, and give cached GPU memory back.

    Another thread's plans, as that of autograd on a GPU, go at its next call.
    """
    _C.table_clear()
    _C.plan_cache_clear()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
