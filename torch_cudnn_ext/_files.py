"""Text files, read and written as a whole."""

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
    data = text.encode()
    place = Path(path)
    if place.exists() and (not place.is_file() or os.fspath(path).startswith(_OPEN_FILES)):
        with naming(path):
            place.write_bytes(data)
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
