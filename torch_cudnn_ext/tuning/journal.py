"""Finished work on disk, so that a run can go on where an earlier one stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from torch_cudnn_ext._files import append_lines
from torch_cudnn_ext.tuning.store_files import lines_of
from torch_cudnn_ext.tuning.store_rows import Head, Key, heads_of, is_result, key_of, result_line

T = TypeVar("T")

Work: TypeAlias = tuple[str, str, str]  # the device, the problem, and the command with its settings


class Journal:
    """Finished work as rows of the tuning store, found again by what it is about.

    Several processes of one machine may add to one file, which may also hold rankings. A line that
    was cut off while it was written is skipped.

    Raises:
        OSError: The file cannot be read or written.
        ValueError: A line is no row (the message gives its number). The file is left as it was.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read what is in the file, which need not exist."""
        self.path = path
        append_lines(path, b"")  # complains now if it cannot be written
        self._results: dict[Key, tuple[Head, bytes]] = {}
        for _, head, line in heads_of(lines_of(path)):
            if is_result(line):
                one = head, line
                self._results[head.key] = max(self._results.get(head.key, one), one)

    def get(self, work: Work, kind: Callable[..., T]) -> T | None:
        """What ``kind`` makes of the fields of a result, or ``None`` if there is no such result.

        A result with other fields, such as another version's, does not count.
        """
        if (found := self._results.get(key_of(*work))) is None:
            return None
        try:
            return kind(**json.loads(found[1])["result"])
        except TypeError:
            return None

    def add(self, work: Work, result: dict[str, Any]) -> None:
        """Keep a result, in the file at once; raises OSError if it cannot be written."""
        append_lines(self.path, result_line(work, result))
