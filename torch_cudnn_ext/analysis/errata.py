"""Tables of errata, of engine hints and of what was verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext.analysis.tables import Column, Table, plural, version_text
from torch_cudnn_ext.tuning.local_errata import errata_path, read_errata

_ERRATA = ("erratum", "state", "seen in", "fixed in", "algorithms", "problems", "remedy")
_COMPILED = "runtime_compilation"


def version_number(text: str) -> int:
    """The number of a version such as ``9.28.1``.

    Raises:
        ValueError: It is no version of two or three numbers.
    """
    parts = text.split(".")
    if not 2 <= len(parts) <= 3 or not all(p.isdecimal() and len(p) < 3 for p in parts):
        raise ValueError(f"version: got {text!r}, wanted two or three numbers, such as 9.28.1")
    major, minor, patch = [*map(int, parts), 0][:3]
    return major * 10000 + minor * 100 + patch


def capability_text(capability: int) -> str:
    """``9.0`` for 90."""
    return f"{capability // 10}.{capability % 10}"


def errata_tables(cudnn: int = 0, capability: int = 0) -> list[Table]:
    """All errata, a table for each library, with the state of each for this version of cuDNN."""
    rows = _C.errata(cudnn, 0, capability)
    versions = _C.library_versions() | ({"cuDNN": cudnn} if cudnn else {})
    tables = []
    for library, version in versions.items():
        own = [row for row in rows if row["library"] == library]
        on = sum(row["state"] == "on" for row in own)
        title = f"{library} {version_text(version)}: {plural(len(own), 'erratum')}, {on} on"
        columns = [*(Column(heading) for heading in _ERRATA), Column("what happens")]
        columns.append(Column("evidence"))
        tables.append(Table(title.replace("erratums", "errata"), columns, _cells(own)))
    return tables


def local_errata_rows() -> list[dict[str, str]]:
    """The local errata of the user's file, with whether each is on for this PyTorch and device."""
    path = errata_path()
    devices = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    here = {_C.device_fingerprint(device) for device in devices}
    return [
        {
            "id": "local",
            "state": "on" if row.torch == torch.__version__ and row.device in here else "not here",
            **dataclasses.asdict(row),
        }
        for row in (read_errata(path) if path is not None else [])
    ]


def local_errata_table() -> list[Table]:
    """A table of the local errata, unless there are none."""
    rows = local_errata_rows()
    if not rows:
        return []
    headings = ("state", "algorithm", "what", "when", "device", "torch", "problem")
    cells = [[row[heading] for heading in headings] for row in rows]
    title = f"{errata_path()}: {plural(len(rows), 'local erratum')}"
    return [Table(title.replace("erratums", "errata"), [*map(Column, headings)], cells)]


def _cells(rows: Iterable[_C.Erratum]) -> list[list[str]]:
    return [
        [
            row["id"],
            row["state"],
            row["first"] + (f", not {row['last_good']}" if row["last_good"] else ""),
            row["fixed"],
            algorithms_text(row),
            problems_text(row),
            ("note " if row["is_note"] else "") + row["remedy"],
            row["text"],
            row["evidence"],
        ]
        for row in rows
    ]


def algorithms_text(row: _C.Erratum) -> str:
    """The algorithms that a row is about: ``graph eng52, eng53``."""
    text = f"{' and '.join(row['backends'])} {', '.join(row['algorithms'])}".strip()
    marks = [_note_text(note, "") for note in row["with_notes"]]
    marks += [_note_text(note, "not ") for note in row["without_notes"]]
    return ", ".join([text, *marks])


def _note_text(note: str, prefix: str) -> str:
    return prefix + ("compiled at run time" if note == _COMPILED else note)


def problems_text(row: _C.Erratum) -> str:
    """The operators and the place that a row is about: ``conv_fwd, on the GPU``."""
    names = [
        "_".join(filter(None, (family, name)))
        for family in row["families"]
        for name in row["passes"] or [""]
    ]
    places = [capability_text(c) for c in row["architectures"]]
    place = f"compute capability {', '.join(places)}" if places else f"the {row['place']}"
    return f"{', '.join(names)} on {place}"


def hints_table(cudnn: int = 0, capability: int = 0) -> Table:
    """All engine hints, with whether each is on for a version of cuDNN and a GPU."""
    rows = _C.engine_hints(cudnn, capability)
    headings = ("hint", "state", "tried first", "measured with", "which problems, and what for")
    cells = []
    for row in rows:
        measured = [f"cuDNN {v} on {capability_text(c)}" for v, c in row["measured"]]
        state = "on" if row["on"] else "off"
        first = ", ".join(row["algorithms"])
        cells.append([row["id"], state, first, ", ".join(measured), row["text"]])
    on = sum(row["on"] for row in rows)
    where = f"cuDNN {version_text(cudnn or _C.library_versions()['cuDNN'])}"
    if capability:
        where += f" on compute capability {capability_text(capability)}"
    title = f"{where}: {plural(len(rows), 'engine hint')}, {on} on"
    return Table(title, [*map(Column, headings)], cells)


def verified_text(device: str) -> str:
    """In a line, whether a GPU was verified with the loaded cuDNN, and what follows."""
    capability = _C.capability(device)
    platform = f"cuDNN {version_text(_C.library_versions()['cuDNN'])}"
    platform += f" on compute capability {capability_text(capability)}"
    word = "not verified" if _C.caution(0, capability) else "verified"
    return f"{platform} is {word}; {counts_text(capability)}"


def counts_text(capability: int) -> str:
    """How many errata and engine hints are on: ``61 of 63 guards and 12 of 12 hints are on``."""
    guards = [row["state"] == "on" for row in _C.errata(0, 0, capability)]
    hints = [row["on"] for row in _C.engine_hints(0, capability)]
    return f"{_share(guards)} guards and {_share(hints)} engine hints are on"


def _share(states: Sequence[bool]) -> str:
    return f"{sum(states)} of {len(states)}"
