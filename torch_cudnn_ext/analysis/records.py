"""Measurements as flat records, and records as comma-separated values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_cudnn_ext.analysis.results import LayerProfile

RECORD_FIELDS = (
    *("problem", "names", "count", "device", "measured", "rank", "algorithm", "backend", "current"),
    *("median_ms", "spread_ms", "host_ms", "samples", "workspace_bytes", "tflops"),
    *("clock_low_mhz", "clock_high_mhz", "throttled", "energy_mj", "energy_spread_mj"),
    *("percent_of_peak", "vs_pytorch", "deterministic", "notes", "error", "status", "reason"),
    *("source", "build_ms", "note"),
)

Record = dict[str, Any]

SCHEMA = 1  # grows when fields of a result's JSON change their meaning or go


def result_json(data: dict[str, Any], allow_nan: bool = True) -> str:
    """A result as JSON, with the version of its schema."""
    return json.dumps({"schema": SCHEMA, **data}, indent=1, allow_nan=allow_nan)


def layer_records(profile: LayerProfile) -> list[Record]:
    """A flat dict for every measurement and for every listed algorithm of a layer."""
    return [*measured_records(profile), *listed_records(profile)]


def measured_records(profile: LayerProfile) -> list[Record]:
    """A flat dict for every measurement of a layer."""
    baseline = profile.pytorch
    baseline_ms = baseline["median_ms"] if baseline is not None else None
    records = []
    rank = 0
    for row in profile.rows:
        record = _base_record(profile, row)
        record.update(device=profile.device, measured=profile.measured)
        record["current"] = row["algorithm"] == profile.current
        if row["status"] == "ok":
            rank += 1
            record["rank"] = rank
        median_ms = row["median_ms"]
        if median_ms:
            record["tflops"] = profile.flops / median_ms / 1e9
            if profile.floor_ms is not None:
                record["percent_of_peak"] = 100 * profile.floor_ms / median_ms
            if baseline_ms is not None:
                record["vs_pytorch"] = baseline_ms / median_ms
        records.append(record)
    return records


def listed_records(profile: LayerProfile) -> list[Record]:
    """A flat dict for every algorithm of a layer that is listed without measuring."""
    there = {"device": profile.listed_for, "measured": profile.problem, "current": False}
    return [_base_record(profile, row) | there for row in profile.listed]


def _base_record(profile: LayerProfile, row: Any) -> Record:
    record: Record = {key: row.get(key) for key in RECORD_FIELDS}
    record.update(problem=profile.problem, names=list(profile.names), count=profile.count)
    record["note"] = profile.note
    return record


def field_names(kind: Any) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in fields(kind)]


def csv_text(records: Sequence[Record], names: Sequence[str]) -> str:
    """Records as CSV: a header line with the fields' names, and lists joined by "; "."""
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: _cell(value) for name, value in record.items()})
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return "; ".join("" if part is None else str(part) for part in value)
