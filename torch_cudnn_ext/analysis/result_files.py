"""Files of results, read as items that can be compared: profiles, benches and tuning tables."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import read_text
from torch_cudnn_ext.analysis.records import SCHEMA
from torch_cudnn_ext.tuning.measure import BASELINE
from torch_cudnn_ext.tuning.store_rows import parse_rows

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry

WANTED = "a profile, a bench or tuning results as JSON, or a tuning table"
RANKINGS, RATIOS = "times", "ratios to PyTorch"
_FENCE = 4  # half interquartile ranges from the median
_FEW_SAMPLES = 7  # fewer do not tell the spread
_FEW_FACTOR = math.sqrt(2)

_Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One result: what a problem takes at best, one algorithm of it, or a ratio of a bench.

    Attributes:
        subject: The problem line, or the module or network with its setting.
        part: The algorithm; empty for the best one. Of a bench, which of several ratios this is.
        algorithm: What the time is of; empty for modules and networks.
        ms: The time in milliseconds; ``None`` if it did not run.
        cost: What is compared: the time, or our time divided by PyTorch's.
        low: The lower end of the cost's interval.
        high: The upper end of it.
        count: How often a network calls it.
        names: The layers that have the problem.
        reason: Why there is no time.
        is_known: Whether a lack of a time means that the algorithm does not work, rather than that
            it was not tried.
    """

    subject: str
    part: str = ""
    algorithm: str = ""
    ms: float | None = None
    cost: float | None = None
    low: float = 0.0
    high: float = 0.0
    count: int = 1
    names: tuple[str, ...] = ()
    reason: str = ""
    is_known: bool = True


@dataclass(frozen=True)
class Results:
    """What a file holds.

    Attributes:
        label: What the file is called.
        kind: ``RANKINGS`` or ``RATIOS``.
        items: By subject and part.
        has_all: Whether all algorithms are there, and not only the best.
        facts: Device, policy and versions, by name.
    """

    label: str
    kind: str
    items: dict[tuple[str, str], Item]
    has_all: bool = True
    facts: dict[str, str] = field(default_factory=dict)


def read_results(path: str | os.PathLike[str]) -> Results:
    """The results that a file holds.

    Args:
        path: A file of ``profile``, ``bench`` or ``tune`` with ``--format json``, or of a tuning
            table.

    Raises:
        TypeError: ``path`` is no path.
        OSError: The file cannot be read.
        ValueError: It holds none of these.
    """
    return parse_results(read_text(path), os.fspath(path))


def parse_results(text: str, label: str) -> Results:
    """The results of a text; ``label`` says where it is from. Raises as `read_results`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(
            f"got {label!r} of schema {value['schema']!r:.20}, wanted schema {SCHEMA}: another "
            "version wrote it"
        )
    try:
        if isinstance(value, dict) and isinstance(value.get("layers"), list):
            return _of_profile(value, label)
        if isinstance(value, dict) and isinstance(value.get("best"), list):
            pairs = [(row["problem"], [row]) for row in value["best"]]
            items = [_best_item(problem, rows) for problem, rows in pairs]
            return Results(label, RANKINGS, _by_key(items), has_all=False)
        for name in ("comparisons", "overhead"):
            if isinstance(value, dict) and isinstance(value.get(name), list):
                return _of_bench(value[name], label)
    except (KeyError, TypeError, AttributeError) as error:
        said = f"the field {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"got {label!r}, which lacks {said}, wanted {WANTED}") from error
    if value is None or (isinstance(value, dict) and "measurements" in value):
        lines = enumerate(text.splitlines(), 1)
        rows = parse_rows((f"{label}, line {n}", one.encode()) for n, one in lines if one.strip())
        return _of_table([row.entry for row in rows], label)
    raise ValueError(f"got {label!r}, which holds another object, wanted {WANTED}")


def _by_key(items: Iterable[Item]) -> dict[tuple[str, str], Item]:
    return {(item.subject, item.part): item for item in items}


# Rankings.


def _of_profile(value: _Row, label: str) -> Results:
    items: list[Item] = []
    devices = sorted({layer["device"] for layer in value["layers"]})
    for layer in value["layers"]:
        if not layer["rows"]:  # listed for a target, and not timed
            continue
        subject = f"{layer['problem']} {layer['note']}".rstrip()
        subject += f" on {layer['device']}" if len(devices) > 1 else ""
        names, count = tuple(layer["names"]), layer["count"]
        items += _ranking(subject, layer["rows"], names, count)
    facts = {"device": ", ".join(devices)}
    if settings := value.get("settings"):
        facts["policy"] = settings["policy"]
    facts |= value.get("versions") or {}
    return Results(label, RANKINGS, _by_key(items), facts=facts)


def _of_table(entries: Sequence[TableEntry], label: str) -> Results:
    if not entries:
        raise ValueError(f"got {label!r}, which is empty, wanted {WANTED}")
    facts = {
        "device": sorted({entry["device"] for entry in entries}),
        "constraints": sorted({entry["constraints"] for entry in entries}),
    }
    items: list[Item] = []
    for entry in entries:
        words = [entry["problem"]]  # with what tells it from others of the file
        words += [f"under {entry['constraints']}"] if len(facts["constraints"]) > 1 else []
        words += [f"on {entry['device']}"] if len(facts["device"]) > 1 else []
        items += _ranking(" ".join(words), entry["measurements"])
    told = {name: "; ".join(texts) for name, texts in facts.items()}
    return Results(label, RANKINGS, _by_key(items), facts=told)


def _ranking(
    subject: str, rows: Sequence[Any], names: tuple[str, ...] = (), count: int = 1
) -> Iterator[Item]:
    """The best algorithm of a problem, and each."""
    yield _best_item(subject, rows, names, count)
    for row in rows:
        works = row["status"] in ("ok", "unstable") or row["algorithm"] == BASELINE
        yield _item_of_row(subject, row["algorithm"], row, works, names, count)


def _best_item(
    subject: str, rows: Sequence[_Row], names: tuple[str, ...] = (), count: int = 1
) -> Item:
    best = next((row for row in rows if row["status"] == "ok"), None)
    if best is None:
        return Item(subject, count=count, names=names, reason="no algorithm works")
    return _item_of_row(subject, "", best, True, names, count)


def _item_of_row(
    subject: str, part: str, row: _Row, works: bool, names: tuple[str, ...], count: int
) -> Item:
    algorithm, ms = str(row["algorithm"]), row["median_ms"]
    if not works or ms is None:
        reason = ": ".join(filter(None, (row["status"], row["reason"])))
        is_known = not str(row["reason"]).startswith(_C.OUT_OF_TIME)
        return Item(
            subject, part, algorithm, count=count, names=names, reason=reason, is_known=is_known
        )
    low, high = _fences(ms, row["spread_ms"] or 0.0, row["samples"])
    return Item(subject, part, algorithm, ms, ms, low, high, count, names)


def _fences(ms: float, spread_ms: float, samples: int) -> tuple[float, float]:
    """The interval outside of which a sample is an outlier (Tukey, 1977), wider for few samples.

    Tukey's fences lie one and a half interquartile ranges outside of the quartiles: four times the
    spread from the median. The lower end is as far by ratio as the upper one. Few samples do
    not tell the spread; two times of few samples each must differ by a factor of 2.
    """
    factor = 1 + _FENCE * spread_ms / ms if ms else 1.0
    if samples < _FEW_SAMPLES:
        factor = max(factor, _FEW_FACTOR)
    return ms / factor, ms * factor


# Benches.

# Each kind of record: a field that it alone has, the fields that tell records apart, and for each
# ratio its part and the fields of our time, of the ratio, and of the ends of its interval.
_Fields: TypeAlias = tuple[str, str, str, str]
_PLAIN: _Fields = ("ours_ms", "ratio", "ratio_low", "ratio_high")
_SETTING = ("network", "batch", "precision", "layout", "mode")
_KINDS: tuple[tuple[str, tuple[str, ...], dict[str, _Fields]], ...] = (
    ("problem", ("problem",), {"": _PLAIN}),
    ("module", ("module", "layout", "dtype", "pass_name"), {"": _PLAIN}),
    (
        "untuned_ratio",
        _SETTING,
        {
            part: (f"{part}_ms", f"{part}_ratio", f"{part}_low", f"{part}_high")
            for part in ("untuned", "tuned")
        },
    ),
    ("network", _SETTING, {"": _PLAIN}),
)
_DOORS = ("ops", "policy", "nn", "enabled")  # of --overhead


def _of_bench(records: Sequence[_Row], label: str) -> Results:
    items = [item for record in records for item in _bench_items(record)]
    devices = sorted({record["device"] for record in records if "device" in record})
    facts = {"device": ", ".join(devices)} if devices else {}
    return Results(label, RATIOS, _by_key(items), facts=facts)


def _bench_items(record: _Row) -> Iterator[Item]:
    if "operator" in record:
        yield from _overhead_items(record)
        return
    for mark, identity, parts in _KINDS:
        if mark in record:
            subject = " ".join(str(record[name]) for name in identity if record[name] is not None)
            for part, (ms, ratio, low, high) in parts.items():
                yield Item(
                    subject,
                    part,
                    record.get("algorithm", ""),
                    record[ms],
                    1 / record[ratio],
                    1 / record[high],
                    1 / record[low],
                    record.get("count", 1),
                    tuple(record.get("names", ())),
                )
            return
    raise KeyError("problem")


def _overhead_items(record: _Row) -> Iterator[Item]:
    """The host's time through each door, by PyTorch's; all share one spread."""
    subject = " ".join(record[name] for name in ("operator", "dtype", "passes"))
    for door in _DOORS:
        us, other = record[f"{door}_us"], record["torch_nn_us" if door == "nn" else "pytorch_us"]
        cost, factor = us / other, 1 + _FENCE * record["spread"]
        yield Item(subject, door, "", us / 1e3, cost, cost / factor, cost * factor)
