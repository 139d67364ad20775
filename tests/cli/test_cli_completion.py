"""Completion of command lines by shells."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_helpers import Capture

from torch_cudnn_ext import _C
from torch_cudnn_ext._commands.commands import COMMANDS
from torch_cudnn_ext._commands.help import Shell
from torch_cudnn_ext._defaults import DEFAULT_TARGET
from torch_cudnn_ext._grammar import BACKENDS, DTYPE_WORDS, PASS_WORDS
from torch_cudnn_ext._workload.problems import DTYPES, PASSES
from torch_cudnn_ext.cli import main

ROOT = Path(__file__).parents[2]
WORDS = [
    ("", [*COMMANDS]),
    ("comp", ["compare", "completion"]),
    ("list --dev", ["--device"]),
    ("tune --inf", ["--inference"]),
    ("list --format ", ["table", "json", "csv", "markdown"]),
    ("profile --dtype f", ["f64", "f32", "f16"]),
    ("profile --target ", ["h100", DEFAULT_TARGET]),
    ("bench --problems resnet", ["resnet50"]),
    ("optimize --layout c", ["contiguous", "channels_last"]),
    ("tune --isolate a", ["auto", "always"]),
    ("coverage --backends c", ["cudnn", "cpu"]),
    ("explain --policy deter", ["deterministic"]),
    ("store d", ["diff", "drift"]),
    ("help pol", ["policy"]),
    ("completion ", ["bash", "zsh", "fish"]),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with the installed command, in a process that fails if it imports PyTorch."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    file = tmp_path / "torch_cudnn_ext"
    code = "from torch_cudnn_ext.cli import script\n\nscript()\n"
    file.write_text(f"#!{sys.executable}\n{code}")
    file.chmod(0o755)
    return tmp_path


def _environment(program: Path) -> dict[str, str]:
    path = f"{program}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": f"{program}{os.pathsep}{ROOT}"}


def _words(program: Path, shell: str, line: str) -> list[str]:
    """What the program tells a shell, which has the line up to the cursor."""
    asked = {
        "_TORCH_CUDNN_EXT_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    done = subprocess.run(
        ["torch_cudnn_ext"],
        env={**_environment(program), **asked},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(("line", "wanted"), WORDS, ids=[line for line, _ in WORDS])
def test_a_shell_completes_commands_options_and_words(
    program: Path, line: str, wanted: list[str]
) -> None:
    assert _words(program, "bash", f"torch_cudnn_ext {line}") == wanted


def test_other_shells_complete(program: Path) -> None:
    line = "torch_cudnn_ext profile --dtype b"
    assert _words(program, "fish", line) == ["bf16"]
    assert '"bf16"' in "\n".join(_words(program, "zsh", line))


def test_bash_completes_by_the_script(program: Path, capsys: Capture) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = "COMP_WORDS=(torch_cudnn_ext store co); COMP_CWORD=2\n"
    asked += "_torch_cudnn_ext_completion torch_cudnn_ext; echo ${COMPREPLY[@]}\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", script + asked],
        env=_environment(program),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("compact\n", "")


@pytest.mark.parametrize("shell", Shell)
def test_every_shell_has_a_script(shell: Shell, capsys: Capture) -> None:
    assert main(["completion", shell.value]) == 0
    assert f"_TORCH_CUDNN_EXT_COMPLETE=complete_{shell.value}" in capsys.readouterr().out


def test_the_words_are_those_that_are_taken() -> None:
    assert [*DTYPES] == [*DTYPE_WORDS]
    every = {name for operator in _C.operators() for name in operator["passes"]}
    assert {*PASS_WORDS} == every | {*PASSES}
    assert {*BACKENDS} == {b for op in _C.operators() for b in op["backends"]} | {"cudnn"}
