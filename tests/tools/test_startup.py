"""What an import of the package loads, and what the command line answers without PyTorch."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from torch_cudnn_ext._commands.commands import COMMANDS
from torch_cudnn_ext._torch_internals import assume_constant_result, disable_dynamo

ROOT = Path(__file__).parents[2]


def run(*arguments: str, first: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own that finds modules in `first`, then in the checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{first}{os.pathsep}{ROOT}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, cwd=first, capture_output=True, text=True)


# What must not be loaded to run operators eagerly: compilers, and what draws tables.
_IMPORTS = """
import sys
import torch

before = {*sys.modules}
import torch_cudnn_ext
from torch import nn

plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2))
model = torch_cudnn_ext.convert(nn.Sequential(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2)))
with torch_cudnn_ext.pinned(plain, {"0": "fwd=cpu:im2col"}), torch_cudnn_ext.enabled("heuristic"):
    (plain(torch.ones(1, 2, 8, 8)) + model(torch.ones(1, 2, 8, 8))).sum().backward()
torch_cudnn_ext.ops.amax(torch.ones(2, 3), 1)
print(*sorted({*sys.modules} - before))
"""


def test_eager_work_imports_no_compiler() -> None:
    done = run("-c", _IMPORTS)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "torch_cudnn_ext.nn" in loaded
    heavy = {"torch._dynamo", "torch._inductor", "sympy", "pandas", "rich", "typer"}
    assert not heavy & {*loaded}


@pytest.fixture
def without_torch(tmp_path: Path) -> Path:
    """A folder in which the import of PyTorch fails."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    return tmp_path


def test_the_help_needs_no_pytorch(without_torch: Path) -> None:
    for command in ("", *COMMANDS):
        done = run("-m", "torch_cudnn_ext", *[command] * bool(command), "-h", first=without_torch)
        assert (done.returncode, done.stderr) == (0, "") and "Usage: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("--version", 0, "torch_cudnn_ext "),
        ("nonsense", 2, "error: No such command 'nonsense'"),
        ("profile --nonsense", 2, "error: No such option: --nonsense"),
        ("profile", 2, "error: got none of them, wanted one of a problem line, --model"),
        ("tune", 2, "error: got none of them, wanted one of a problem line, --model"),
        ("list x --format y", 2, "error: --format: got 'y', wanted one of 'table', "),
        ("profile x --isolate y", 2, "error: --isolate: got 'y', wanted one of 'auto', "),
        ("bench x --jobs 0", 2, "error: --jobs: got '0', wanted a whole number"),
        ("bench --overhead --jobs 2", 2, "error: --jobs: got 2 with --overhead, which takes no"),
        ("info --cudnn 9.1", 2, "error: --cudnn: got '9.1' with neither --errata nor --hints"),
        ("verify", 2, "error: --errata: not given"),
        ("tune x --train", 2, "error: --train: given without --model, wanted it, or --passes"),
        ("list --model x --inference --passes bwd", 2, "error: --passes: got 'bwd' with --inf"),
        ("list --model x --train --passes fwd,infer", 2, "error: --passes: got 'fwd,infer' with"),
        ("help policy", 0, "A policy says how algorithms are chosen"),
        ("help problem", 0, "A problem line says what is computed"),
    ],
)
def test_what_needs_no_pytorch(arguments: str, code: int, said: str, without_torch: Path) -> None:
    done = run("-m", "torch_cudnn_ext", *arguments.split(), first=without_torch)
    assert done.returncode == code
    assert (done.stdout + done.stderr).startswith(said)


def test_other_arguments_need_pytorch(without_torch: Path) -> None:
    done = run("-m", "torch_cudnn_ext", "list", "nonsense", first=without_torch)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "torch was imported\n")


def test_other_programs_are_not_the_command_line(without_torch: Path) -> None:
    # The last argument is the name of the package.
    program = without_torch / "program.py"
    program.write_text("import sys\ndel sys.argv[1:]\nimport torch_cudnn_ext\n")
    done = run(str(program), "torch_cudnn_ext", first=without_torch)
    assert done.stderr == "torch was imported\n"


# Compiled code obeys pins, policies and modules, and keeps equal random calls apart.
_COMPILED = """
import copy
import torch
from torch import nn
{0}
import torch_cudnn_ext
from torch_cudnn_ext import last_decision, ops
{1}

def run_model(model, wanted):
    torch_cudnn_ext.ops.conv2d(x, net[0].weight.detach(), policy="aten:default")
    compiled(model, backend="aot_eager")(x)
    assert last_decision("conv_fwd").algorithm == wanted, (wanted, last_decision("conv_fwd"))

def compiled(function, backend):
    return torch.compile(function, backend=backend)

def two_masks(x):
    return ops.dropout(x, 0.5) - ops.dropout(x, 0.5)

def two_networks(x):
    return network(x) - network(x)

def network(x):
    return ops.rnn_relu(x, None, [torch.eye(8), torch.zeros(8, 8)] * 2, False, 2, 0.5, True)[0]

x = torch.randn(2, 3, 8, 8)
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
for function in (two_masks, two_networks):
    ones = torch.ones(3, 4, 8, requires_grad=True)
    made = compiled(function, "aot_eager_decomp_partition")(ones)
    assert made.count_nonzero() > 0, function
with torch_cudnn_ext.pinned(net, {{"0": "fwd=cpu:im2col"}}):
    run_model(net, "cpu:im2col")
run_model(torch_cudnn_ext.convert(copy.deepcopy(net), policy="fwd=cpu:im2col"), "cpu:im2col")
with torch_cudnn_ext.enabled("fwd=cpu:im2col"):
    run_model(net, "cpu:im2col")
once = torch_cudnn_ext.convert(copy.deepcopy(net), policy="fwd=guess_once")
compiled(once, "aot_eager")(x)
assert once[0]._once == () and once[0]._settled_for, vars(once[0])
y = torch_cudnn_ext.ops.amax(torch.ones(2, 3), 1)
assert compiled(lambda x: ops.amax(x, 1), "aot_eager")(torch.ones(2, 3)).equal(y)
"""
_ORDERS = {
    "dynamo first": ("import torch._dynamo, torch._inductor.lowering", ""),
    "compiled first": ("torch.compile(lambda x: x + 1, backend='aot_eager')(torch.ones(2))", ""),
    "ours first": ("", ""),
    "enabled first": ("", "with torch_cudnn_ext.enabled(): import torch._dynamo"),
}


@pytest.mark.parametrize("order", _ORDERS)
def test_compiled_code_is_right_in_every_order_of_imports(order: str) -> None:
    done = run("-c", _COMPILED.format(*_ORDERS[order]))
    assert done.returncode == 0, done.stderr


def test_a_constant_result_is_marked_as_pytorch_marks_it() -> None:
    def ours() -> int:
        return 1

    def theirs() -> int:
        return 1

    torch.compiler.assume_constant_result(theirs)  # type: ignore[no-untyped-call]
    assert vars(assume_constant_result(ours)) == vars(theirs) != {}


def test_a_disabled_function_is_not_compiled_nor_what_it_calls() -> None:
    inside: list[bool] = []

    def called(x: torch.Tensor) -> torch.Tensor:
        inside.append(torch.compiler.is_compiling())
        return x.sin()

    @disable_dynamo("it has its reason")
    def disabled(x: torch.Tensor) -> torch.Tensor:
        inside.append(torch.compiler.is_compiling())
        return called(x)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return disabled(x + 1) * 2

    counter = CompileCounter()
    compiled: Any = torch.compile(whole, backend=counter)
    x = torch.ones(2)
    assert compiled(x).equal(2 * torch.sin(x + 1))
    assert inside == [False, False]
    assert (counter.frame_count, counter.op_count) == (2, 2)  # the code before and after it
    with pytest.raises(Exception, match="it has its reason"):
        torch.compile(whole, backend="eager", fullgraph=True)(x)
