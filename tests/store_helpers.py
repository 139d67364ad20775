"""What tests of the tuning store share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import LINE

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext.tuning import keeping
from torch_cudnn_ext.tuning.store_files import FolderRows, device_folders

if TYPE_CHECKING:
    from torch_cudnn_ext._C import TableEntry

H200 = "NVIDIA H200/sm90/132sm/cudnn91900"
_SUM = len('{"sum": "01234567", ')
WHEN = "2026-11-28T12:00:00.000000Z"


def measurement(algorithm: str = "aten:default", ms: float = 1.0, **fields: Any) -> dict[str, Any]:
    """A measurement that ran."""
    return {
        "algorithm": algorithm, "backend": algorithm.partition(":")[0], "status": "ok",
        "reason": "", "workspace_bytes": 0, "notes": [], "deterministic": True,
        "source": "enumeration", "median_ms": ms, "spread_ms": ms / 100, "host_ms": None,
        "samples": 11, "error": 1e-7, "build_ms": 0.1,
        "clock_low_mhz": None, "clock_high_mhz": None, "throttled": [],
        "energy_mj": None, "energy_spread_mj": None, **fields,
    }  # fmt: skip


def entry(
    problem: str = LINE, device: str | None = None, constraints: str = "", *rows: dict[str, Any]
) -> TableEntry:
    """An entry of the tuning table, by default for the CPU."""
    return {
        "problem": problem,
        "device": _C.device_fingerprint("cpu") if device is None else device,
        "constraints": constraints,
        "measurements": [*rows] or [measurement()],  # type: ignore[list-item]
    }


def summed(fields: dict[str, Any]) -> bytes:
    """A line with the checksum of these fields, whatever they are."""
    return _summed(json.dumps(fields).encode()[1:])


def changed(line: str, change: Callable[[str], str]) -> str:
    """A line whose text, less the checksum, is changed, with the checksum of that."""
    return _summed(change(line.rstrip()[_SUM:]).encode()).decode()


def _summed(body: bytes) -> bytes:
    return b'{"sum": "%08x", %s\n' % (zlib.crc32(body), body)


def fields_of(line: bytes) -> dict[str, Any]:
    """The fields of a line, less the checksum."""
    fields: dict[str, Any] = json.loads(line)
    del fields["sum"]
    return fields


def read_all(root: Path) -> tuple[list[bytes], list[str]]:
    """All rows of a store as lines, sorted, and what is said of its damaged lines."""
    lines, damage = [], []
    for folder in device_folders(root):
        rows = FolderRows(folder)
        rows.refresh()
        lines += [place.read() for place in rows.all_places()]
        damage += [str(one.error) for one in rows.damage]
    return sorted(lines), damage


def forget() -> None:
    """What a new process does not know."""
    keeping._store = None
    keeping._warned.clear()
    tuning.clear()
    _C.plan_cache_clear()


def run_process(code: str, store: str | Path, **environment: str) -> Any:
    """What a process that has this store prints; an empty text is no store."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TORCH_CUDNN_EXT_STORE": str(store),
            "TORCH_CUDNN_EXT_ISOLATE": "never",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
