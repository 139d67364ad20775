"""``info --stats``: what the tuning stores hold, and which of it serves this machine."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch

from torch_cudnn_ext import _C, knobs
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.tables import Column, plural
from torch_cudnn_ext.cli import running
from torch_cudnn_ext.tuning.keeping import SERVING, store_paths
from torch_cudnn_ext.tuning.store_files import difference
from torch_cudnn_ext.tuning.store_rows import quoted, software_of, time_text
from torch_cudnn_ext.tuning.store_upkeep import FolderHeads, heads_by_device

_AGES = {"one_day": 1, "7_days": 7, "30_days": 30}  # rows that are no older, in days
_OLDER, _UNKNOWN = "older", "unknown"
_NAMES = ("store", "device", "problems", "rows", *_AGES, _OLDER, _UNKNOWN, "serves")


def print_store_statistics(format: str) -> None:
    """Print a row for each device of each store."""
    roots = store_paths()
    records = [_record(root, one) for root in roots for one in heads_by_device(root)]
    columns = [
        Column("device", lambda r: r["device"]),
        *(_count_column(name) for name in ("problems", "rows", *_AGES, _OLDER, _UNKNOWN)),
        Column("serves here", lambda r: r["serves"]),
    ]
    if len(roots) > 1:
        columns.insert(0, Column("store", lambda r: r["store"]))
    count = plural(sum(one["problems"] for one in records), "problem")
    footer = f"{count} in {', '.join(map(str, roots))}." if roots else "The tuning store is off."
    match = str(knobs._of_process("store_match"))
    data = {"match": match, "stores": [*map(str, roots)], "devices": records}
    title = f"rows by age; store_match is {match}"
    output = formatted(format, data, title, columns, records, _NAMES, footer)
    running.print_output(output if records or format in ("json", "csv") else footer)


def _count_column(name: str) -> Column:
    return Column(name.replace("_", " "), lambda r: str(r[name] or ""), True)


def _record(root: Path, one: FolderHeads) -> dict[str, Any]:
    ages = Counter(_age(head.when.decode()) for head in one.heads)
    return {
        "store": str(root),
        "device": one.device,
        "problems": len({head.key for head in one.heads}),
        "rows": len(one.heads),
        **{name: ages[name] for name in (*_AGES, _OLDER, _UNKNOWN)},
        "serves": _serves(one),
    }


def _age(when: str) -> str:
    if not when:
        return _UNKNOWN
    now = datetime.now(UTC)
    within = (name for name, days in _AGES.items() if when >= time_text(now - timedelta(days=days)))
    return next(within, _OLDER)


def _serves(one: FolderHeads) -> str:
    """The devices of this machine that rows serve, or why they serve none, as a miss has it."""
    match = str(knobs._of_process("store_match"))
    served, reasons = [], []
    for device in ("cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))):
        asked = _C.device_fingerprint(device)
        reason = difference(asked, one.device)
        software = quoted(software_of(asked))
        if reason == "" and match == "strict":
            is_same = any(head.software == software for head in one.heads)
            reason = "" if is_same else "other software"
        if reason == "" or reason in SERVING[match]:
            served.append(device)
        elif reason is not None:
            reasons.append(reason)
    return ", ".join(served) or f"no: {(reasons or ['other device'])[0]}"
