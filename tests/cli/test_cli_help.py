"""The command `help`, and the examples that helps end with."""

import pytest
from cli_helpers import Capture

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands.commands import COMMANDS
from torch_cudnn_ext._commands.topics import TOPICS
from torch_cudnn_ext._grammar import ALGORITHMS, CONSTRAINTS, POLICY_TEXT, PROBLEM_LINE, SELECTIONS
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


def test_no_such_topic(capsys: Capture) -> None:
    assert main(["help", "policies"]) == 2
    assert "topic: got 'policies', wanted one of policy, problem, " in capsys.readouterr().err
