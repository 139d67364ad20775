"""The command `help`, and the examples that helps end with."""

import shlex
from typing import Any

import pytest
from cli_helpers import Capture

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands.commands import COMMANDS
from torch_cudnn_ext._commands.examples import EXAMPLES
from torch_cudnn_ext._commands.parsing import make_app, run_app
from torch_cudnn_ext._commands.topics import TOPICS
from torch_cudnn_ext._grammar import ALGORITHMS, CONSTRAINTS, POLICY_TEXT, PROBLEM_LINE, SELECTIONS
from torch_cudnn_ext._workload.problems import read_problems
from torch_cudnn_ext.cli import main

SCREEN = 50  # lines of 80 columns


def _help_of(capsys: Capture, *topic: str) -> str:
    assert main(["help", *topic]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_one_screen(
    topic: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = _help_of(capsys, topic).splitlines()
        assert len(lines) <= SCREEN
        assert max(map(len, lines)) <= min(columns, 100) and "`" not in "".join(lines)


def test_the_topics_have_what_the_grammar_has(capsys: Capture) -> None:
    shown = _help_of(capsys, "policy")
    for name in CONSTRAINTS:
        assert f"\n  {name} " in shown
    for name in (*SELECTIONS, *ALGORITHMS, POLICY_TEXT):
        assert name.replace("`", "") in shown
    assert "which takes less host time: 'off', 'graphs' or" in " ".join(shown.split())
    assert PROBLEM_LINE in " ".join(_help_of(capsys, "problem").split())


def test_the_examples_of_the_grammar_are_right() -> None:
    assert _C.canonical_policy(POLICY_TEXT) == POLICY_TEXT
    assert _C.canonical_problem(PROBLEM_LINE).startswith(PROBLEM_LINE)
    for algorithm in ALGORITHMS:
        assert _C.canonical_algorithm(algorithm) == algorithm


def test_the_topics_are_listed(capsys: Capture) -> None:
    shown = _help_of(capsys)
    for name in (*TOPICS, *COMMANDS):
        assert name in shown


def test_the_help_of_a_command(capsys: Capture) -> None:
    assert main(["tune", "--help"]) == 0
    assert capsys.readouterr().out == _help_of(capsys, "tune")


_EXAMPLES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]


def test_every_command_has_examples() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()
    assert all(1 <= len(examples) <= 3 for examples in EXAMPLES.values())


@pytest.mark.parametrize(("name", "example"), _EXAMPLES, ids=[one for _, one in _EXAMPLES])
def test_an_example_of_a_help_is_right(name: str, example: str, capsys: Capture) -> None:
    assert main([name, "--help"]) == 0
    assert f"  torch_cudnn_ext {example}\n" in capsys.readouterr().out.partition("Examples:")[2]
    taken: list[Any] = []
    parsed = make_app("", lambda name, context, given: taken.append(given))
    assert run_app(parsed, shlex.split(example.partition(" >")[0])) == 0, capsys.readouterr().err
    for given in taken:  # by a command that needs PyTorch
        source, constraints = getattr(given, "source", None), getattr(given, "constraints", None)
        if source is not None and source.problem is not None:
            _C.canonical_problem(source.problem)
        if source is not None and source.problems is not None:
            assert read_problems(source.problems)
        if constraints is not None:
            _C.canonical_policy(constraints.policy)


@pytest.mark.parametrize(
    ("name", "example"),
    [one for one in _EXAMPLES if one[0] in ("help", "info", "list")],
    ids=[one for name, one in _EXAMPLES if name in ("help", "info", "list")],
)
def test_an_example_of_a_help_runs(name: str, example: str, capsys: Capture) -> None:
    if "--model" in example:
        pytest.importorskip("torchvision")
    assert main(shlex.split(example)) == 0
    assert capsys.readouterr().out


def test_no_such_topic(capsys: Capture) -> None:
    assert main(["help", "policies"]) == 2
    assert "topic: got 'policies', wanted one of policy, problem, " in capsys.readouterr().err
