"""Local errata: algorithms that cost a process that measured them on this machine.

A file of the user keeps them, one JSON object a line: ``torch_cudnn_ext/errata.jsonl`` in
``$XDG_CACHE_HOME``, which is ``~/.cache`` by default. The environment variable
``TORCH_CUDNN_EXT_ERRATA`` names another file; if it is empty, no file is read or written.

The file is read when the package is imported. What it names for this GPU, cuDNN and PyTorch is
unsupported: neither tuning nor the heuristic tries it, and a pin raises. The next process tries an
algorithm again if its line, or the file, was removed.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._files import ERRATA_VARIABLE, append_lines, cache_folder
from torch_cudnn_ext._warning import warn


@dataclass(frozen=True)
class LocalErratum:
    """What happened to one algorithm.

    Attributes:
        device: The fingerprint of the GPU, with the version of cuDNN.
        torch: The version of PyTorch.
        problem: The problem line that was measured.
        algorithm: The algorithm with its options.
        what: What happened: ``context lost``.
        when: The time in ISO 8601, of UTC.
    """

    device: str
    torch: str
    problem: str
    algorithm: str
    what: str
    when: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the erratum is about."""
        return self.device, self.torch, self.problem, self.algorithm


_lock = Lock()  # guards _known
_known: dict[tuple[str, str, str, str], LocalErratum] = {}


def errata_path() -> Path | None:
    """The file that keeps local errata; ``None`` if there is to be none."""
    named = os.environ.get(ERRATA_VARIABLE)
    if named is not None:
        return Path(named) if named.strip() else None
    folder = cache_folder()
    return None if folder is None else folder / "errata.jsonl"


def read_errata(path: Path) -> list[LocalErratum]:
    """The errata of a file; warns of a line that is none, and of a file that cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "Not a regular file")
        lines = path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        warn(f"local errata: cannot read {path}: {error.strerror}; none are known")
        return []
    errata = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            errata.append(_parsed(line))
        except ValueError as error:
            warn(f"local errata: {path}, line {number}: {error}; the line is ignored")
    return errata


def load() -> None:
    """Make the file's errata, and no others, those of this process."""
    path = errata_path()
    errata = read_errata(path) if path is not None else []
    with _lock:
        _known.clear()
        _known.update((erratum.key, erratum) for erratum in errata)
        _C.set_local_errata(_rows())


def add(device: str, problem: str, algorithm: str, what: str) -> None:
    """Remember an erratum in this process, and in the file; warns if the file cannot be written."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    erratum = LocalErratum(device, torch.__version__, problem, algorithm, what, when)
    path = errata_path()
    with _lock:
        if erratum.key in _known:
            return
        _known[erratum.key] = erratum
        _C.set_local_errata(_rows())
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(path, f"{json.dumps(asdict(erratum))}\n".encode())
    except OSError as error:
        warn(f"local errata: {algorithm} is remembered in this process alone: {error}")


def known_rows() -> list[tuple[str, str, str, str]]:
    """The errata of this PyTorch: device, problem, algorithm, and why it is unsupported."""
    with _lock:
        return _rows()


def _rows() -> list[tuple[str, str, str, str]]:
    place = errata_path() or "this process"
    return [
        (
            erratum.device,
            erratum.problem,
            erratum.algorithm,
            f"{erratum.what} when it was measured here (local erratum of {erratum.when[:10]} in "
            f"{place}; without it the algorithm is tried again)",
        )
        for erratum in _known.values()
        if erratum.torch == torch.__version__
    ]


def _parsed(line: bytes) -> LocalErratum:
    """The erratum of a line; raises ValueError if it is none."""
    found: Any = json.loads(line.decode())
    names = [field.name for field in fields(LocalErratum)]
    if not isinstance(found, dict):
        raise ValueError(f"got {found!r:.60}, wanted an object with {', '.join(names)}")
    for name in names:
        if not isinstance(found.get(name), str):
            raise ValueError(f"{name}: got {found.get(name)!r:.60}, wanted a text")
    erratum = LocalErratum(**{name: found[name] for name in names})
    if erratum.torch == torch.__version__:
        _C.canonical_problem(erratum.problem)
    return erratum
