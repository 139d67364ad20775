"""Complaints about arguments that PyTorch or the extension must see."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import typer

from torch_cudnn_ext import _C
from torch_cudnn_ext.tuning.measure import checked_device


def one_of(option: str, word: str, known: Iterable[str]) -> str:
    """The word, if it is known; else BadParameter with the nearest words."""
    if word not in known:
        words = [*known]
        near = _C.nearest_words(word, words)
        hint = f"; the nearest: {', '.join(near)}" if near else ""
        raise typer.BadParameter(f"{option}: got {word!r}, wanted one of {', '.join(words)}{hint}")
    return word


def words_of(text: str) -> list[str]:
    """The words of a text with commas."""
    return [word.strip() for word in text.split(",")]


@contextmanager
def errors_of(option: str) -> Iterator[None]:
    """Errors raised inside are complaints about this option."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        # The text may begin with a name of its own, which the option replaces.
        text = str(error).removeprefix(f"{option.removeprefix('--')}: ")
        text = re.sub(r"^(path|problem|problem text|policy text|device): ", "", text)
        raise typer.BadParameter(f"{option}: {text}") from error


@contextmanager
def errors_of_arguments(arguments: Collection[str] = ()) -> Iterator[None]:
    """Errors raised inside are complaints about the options named as the arguments they name.

    If arguments are given, an error that names none of them stays as it is.
    """
    try:
        yield
    except (ValueError, RuntimeError) as error:
        name, _, rest = str(error).partition(":")
        if arguments and name not in arguments:
            raise
        rest = re.sub("^ got True ", " given ", rest)  # a flag has no value on the command line
        raise typer.BadParameter(f"--{name.replace('_', '-')}:{rest}") from error


def place_of(device: str | None) -> str:
    """The device of ``--device``."""
    with errors_of_arguments():
        return checked_device(device)
