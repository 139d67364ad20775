"""Text files: read and written as a whole, or appended to."""

import errno
import json
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ERRATA_VARIABLE = "TORCH_CUDNN_EXT_ERRATA"  # the environment variable for the file of local errata
STORE_VARIABLE = "TORCH_CUDNN_EXT_STORE"  # the same for the folder of the tuning store
_OPEN_FILES = ("/dev/std", "/dev/fd/", "/proc/")  # links to files that are open


def cache_folder() -> Path | None:
    """The user's folder for what this package keeps; ``None`` if there is no home folder.

    It is ``torch_cudnn_ext`` in ``$XDG_CACHE_HOME``, which is ``~/.cache`` by default.
    """
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):  # the specification of XDG ignores such
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        cache = os.path.join(home, ".cache")
    return Path(cache, "torch_cudnn_ext")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of `read_text`, which raises."""
    return read_text(path).splitlines()


def read_text(path: str | os.PathLike[str]) -> str:
    """A text file, less a byte order mark.

    Raises:
        TypeError: ``path`` is no path.
        OSError: The file cannot be read, or is a device, which may never end.
        ValueError: It is not UTF-8.
    """
    check_path(path)
    try:
        with Path(path).open(encoding="utf-8-sig") as file:
            here = os.fstat(file.fileno())
            ends = file.isatty() or here.st_rdev == os.stat(os.devnull).st_rdev
            if stat.S_ISCHR(here.st_mode) and not ends:
                raise not_regular(path)
            return file.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"got {os.fspath(path)!r}, which holds no text: {error}") from error


def check_path(path: object) -> None:
    """Raise ``TypeError`` if it is no path."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: got {path!r:.60} ({type(path).__name__}), wanted a path")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Replace a file by a text; the file is whole or, on an error, as before.

    What is no regular file, such as a pipe, is written to instead, and so is ``/dev/stdout``.

    Raises:
        TypeError: ``path`` is no path.
        OSError: The file cannot be written.
        ValueError: UTF-8 cannot encode the text.
    """
    check_path(path)
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file, as `write_text`; raises OSError."""
    place = Path(path)
    if place.exists() and (not place.is_file() or os.fspath(path).startswith(_OPEN_FILES)):
        print(end="", flush=True)  # standard output may be closed
        with naming(path), place.open("ab") as file:  # the output before it stays
            file.write(data)
        return
    target = resolved(path)  # so that a link stays one
    # This thread's own file, with the permissions of the one that it replaces.
    temporary = target.parent / f".{target.name}.{os.getpid()}.{threading.get_ident()}"
    try:
        with naming(path):
            with temporary.open("wb") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def append_lines(path: str | os.PathLike[str], lines: bytes) -> None:
    """Append lines with their ends to a file, to which others may append too.

    Raises:
        OSError: It cannot be written, or is no regular file.
    """
    place = Path(path)
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise not_regular(path)
    while not append_once(place, lines):
        continue


def append_once(path: Path, lines: bytes) -> bool:
    """Append lines by one write; False if the file meanwhile lost its name.

    They begin on a new line if the last one was cut off. OSError if the file cannot be written.
    """
    with naming(path), path.open("a+b", buffering=0) as opened_file:
        file = opened_file.fileno()
        size = os.fstat(file).st_size
        if lines and size and os.pread(file, 1, size - 1) != b"\n":
            lines = b"\n" + lines
        while os.write(file, lines) < len(lines):  # again, so that the system says why
            lines = b"\n" + lines
        opened = os.fstat(file)
        try:
            there = os.stat(path)
        except FileNotFoundError:
            return False
        return (there.st_ino, there.st_dev) == (opened.st_ino, opened.st_dev)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Where links lead; OSError if they lead in a circle."""
    with suppress(FileNotFoundError):
        os.stat(path)
    return Path(path).resolve()


def not_regular(path: str | os.PathLike[str]) -> OSError:
    """The error for a device or a pipe if only a file will do."""
    return OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors name the path as it was given, and not a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def toml_string(text: str) -> str:
    """A text as a string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
