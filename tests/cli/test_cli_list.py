"""The command `list`."""

from cli_helpers import Capture, json_of
from helpers import LINE, PROBLEM

from torch_cudnn_ext import _C
from torch_cudnn_ext.cli import main


def test_list_of_a_network(capsys: Capture, networks: str) -> None:
    command = ["list", "--model", f"{networks}:conv", "--device", "cpu", "--passes", "fwd"]
    (layer,) = json_of(capsys, *command)["layers"]
    assert str(layer["problem"]).startswith("conv_fwd x=f32[2,3,5,5]")
    assert layer["rows"] == [] and layer["listed"]


def test_list_times_nothing(capsys: Capture) -> None:
    result = json_of(capsys, "list", PROBLEM, "--device", "cpu")
    (layer,) = result["layers"]
    assert layer["rows"] == []
    assert main(["list", PROBLEM, "--device", "cpu", "--policy", "backends=cpu"]) == 0
    out = capsys.readouterr().out
    assert "cpu:im2col" in out and "all 4 of aten" in out and "excluded" in out
    assert "all 32 of legacy" in out
    assert _C.table_export() == []


def test_list_tells_what_was_not_listed(capsys: Capture, networks: str) -> None:
    assert main(["list", "--model", f"{networks}:followed", "--device", "cpu"]) == 0
    assert "aten.hardsigmoid x1" in capsys.readouterr().out


def test_a_cap_is_among_the_settings_of_a_list(capsys: Capture) -> None:
    found = json_of(capsys, "list", LINE, "--target", "h200", "--max-workspace", "1%")["settings"]
    assert found["policy"] == "max_workspace=1%"
    assert found["max_workspace_bytes"] == _C.workspace_cap("max_workspace=1%", "target:h200")
