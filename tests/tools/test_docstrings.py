"""The examples in the docstrings of public functions and classes run and give what they say."""

import doctest
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_cudnn_ext
from torch_cudnn_ext import analysis, disable, is_enabled, knobs, models, nn, ops, policy, tuning

HOLDERS = (torch_cudnn_ext, ops, nn, policy, knobs, tuning, models, analysis)
# Their docstrings refer to the function of two dimensions, which has an example.
SIBLINGS = re.compile(r"\w+_pool[13]d")
# Results of functions, which no user makes.
RESULTS = {
    "BatchNormTrained",
    "Decision",
    "OptimizationReport",
    "Recurrent",
    "Statistics",
    "UntunedProblem",
    "Step",
    *analysis.__all__,
}


def documented(holders: Iterable[ModuleType]) -> Iterator[tuple[str, Any]]:
    """The public functions and classes, once each."""
    seen = set()
    for holder in holders:
        for name in holder.__all__:
            value = getattr(holder, name)
            if (inspect.isfunction(value) or inspect.isclass(value)) and id(value) not in seen:
                seen.add(id(value))
                yield f"{holder.__name__}.{name}", value


PUBLIC = dict(documented(HOLDERS))
EXAMPLES = {name: value for name, value in PUBLIC.items() if ">>>" in (value.__doc__ or "")}


def test_every_function_and_class_has_an_example() -> None:
    without = {
        name
        for name in PUBLIC.keys() - EXAMPLES.keys()
        if not SIBLINGS.fullmatch(short := name.rpartition(".")[2]) and short not in RESULTS
    }
    assert without == {
        "torch_cudnn_ext.tuning.reset",  # it forgets what other tests measured
        "torch_cudnn_ext.UnverifiedVersionWarning",  # a category of warnings
    }


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
