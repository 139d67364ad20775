"""The rankings that come with this package, as a store that is read after all others.

They were measured on GPUs of data centres. ``tools/ship`` measures them again, and `winners` leaves
out what no constraints would choose.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch_cudnn_ext.tuning.measure import BASELINE
from torch_cudnn_ext.tuning.store_rows import Row, is_not_tried

if TYPE_CHECKING:
    from torch_cudnn_ext._C import Measurement

SHIPPED = Path(__file__).with_name("rankings")
_DEVICES = Path(__file__).parents[1] / "devices"


@functools.cache
def hardware_of_target(target: str) -> str | None:
    """The hardware of a target as rows have it; ``None`` if its properties are not ours."""
    try:
        properties = json.loads((_DEVICES / f"{target}.json").read_text())
    except FileNotFoundError:
        return None
    capability = properties["deviceVer"] // 10
    return f"{properties['deviceName']}/sm{capability}/{properties['multiProcessorCount']}sm"


def winners(row: Row) -> Row:
    """A row with the measurements that may be chosen, and PyTorch's own.

    Left out is what is no better than one before it in the ranking: of the same backend, with at
    most its workspace, its determinism and its notes. So stricter constraints choose alike.
    """
    kept: list[Measurement] = []
    good: list[Measurement] = []
    for one in row.entry["measurements"]:
        is_good = one["status"] == "ok" and not _is_no_better(one, good)
        good += [one] * is_good
        # One that was not tried tells that the ranking is not of all.
        marks = is_not_tried(one) and not any(map(is_not_tried, kept))
        if is_good or marks or one["algorithm"] == BASELINE:
            kept.append(one)
    return replace(row, entry={**row.entry, "measurements": kept})


def _is_no_better(one: Measurement, before: Sequence[Measurement]) -> bool:
    return any(
        better["backend"] == one["backend"]
        and _at_most(better["workspace_bytes"], one["workspace_bytes"])
        and (better["deterministic"] or not one["deterministic"])
        and {*better["notes"]} <= {*one["notes"]}
        for better in before
    )


def _at_most(first: int | None, second: int | None) -> bool:
    """Whether a workspace is at most another; one that is not known keeps no cap."""
    return second is None or (first is not None and first <= second)
