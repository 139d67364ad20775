"""The examples in the docstrings of public functions and classes run and give what they say."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_cudnn_ext
from torch_cudnn_ext import analysis, disable, is_enabled, knobs, models, nn, ops, policy, tuning

HOLDERS = (torch_cudnn_ext, ops, nn, policy, knobs, tuning, models, analysis)
# Those that every user meets first; a sibling of one or three dimensions refers to that of two.
FIRST = {
    *("convert", "enable", "enabled", "explain", "profile", "profile_model", "trace", "when"),
    *("apply_pins", "save_pins", "last_decision", "Policy", "conv2d", "softmax", "lstm", "matmul"),
    *("batch_norm", "max_pool2d", "tune", "tune_model", "export_table", "flags", "Tunable"),
}


def documented() -> Iterator[tuple[str, Any]]:
    """The public functions and classes that have examples, once each."""
    seen = set()
    for holder in HOLDERS:
        for name in holder.__all__:
            value = getattr(holder, name)
            is_ours = inspect.isfunction(value) or inspect.isclass(value)
            if is_ours and ">>>" in (value.__doc__ or "") and id(value) not in seen:
                seen.add(id(value))
                yield f"{holder.__name__}.{name}", value


EXAMPLES = dict(documented())


def test_the_functions_that_users_meet_first_have_examples() -> None:
    assert {name.rpartition(".")[2] for name in EXAMPLES} >= FIRST


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names = {"torch": torch, "torch_cudnn_ext": torch_cudnn_ext, "nn": nn}
    for holder in HOLDERS:
        names |= {key: getattr(holder, key) for key in holder.__all__ if key != "nn"}
    names |= {name.rpartition(".")[2]: EXAMPLES[name]}  # `reduce` of ops, `reset` of knobs, ...
    text = inspect.cleandoc(EXAMPLES[name].__doc__)
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    if is_enabled():
        disable()
    tuning.clear()
    assert result.attempted and not result.failed, "".join(report)
