"""The commands `info` and help, the version, and the installed script."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from cli_helpers import Capture, json_of
from conftest import ROOT
from helpers import LINE, OTHER
from store_helpers import H200, WHEN, entry

from torch_cudnn_ext import _C, __version__, knobs
from torch_cudnn_ext.cli import main, script
from torch_cudnn_ext.tuning.shipped import SHIPPED
from torch_cudnn_ext.tuning.store_files import SegmentWriter
from torch_cudnn_ext.tuning.store_rows import now_text, row_line, software_of


def test_info(capsys: Capture) -> None:
    assert main(["info"]) == 0
    short = capsys.readouterr().out
    for text in (torch.__version__, "libcudnn  ", "target:h200", "cpu", "verified"):
        assert text in short
    assert short.startswith(f"torch_cudnn_ext {__version__}\n")
    assert "libcudnn.so.9" not in short and "algorithms" not in short
    assert len(short.splitlines()) <= 11 + 3 * torch.cuda.device_count()
    assert main(["info", "--all"]) == 0
    out = capsys.readouterr().out
    for text in ("libcudnn.so.9", "graph", "legacy", "target:h100"):
        assert text in out
    if not torch.cuda.is_available():  # there several do it by default
        assert main(["info", "--all", "--jobs", "2"]) == 0
        assert capsys.readouterr().out == out


def test_the_table_of_operators_describes_each(capsys: Capture) -> None:
    for operator in _C.operators():
        described = [operator[key] for key in ("entry_points", "dtypes", "layouts", "examples")]
        assert all(described), operator["family"]
    assert main(["info", "--operators", "--jobs", "2"]) == 2
    capsys.readouterr()
    assert main(["info", "--operators"]) == 0
    table = capsys.readouterr().out
    rows = [line.strip("|\n ").split(" | ") for line in table.splitlines()]
    assert [row[0].strip("`") for row in rows[2:]] == [op["family"] for op in _C.operators()]
    (conv,) = (row for row in rows if row[0] == "`conv`")
    assert "ConvTranspose3d" in conv[1] and "cudnnConvolutionBackwardFilter" in conv[2]
    passes = (
        "fwd: N engines, 8 legacy; bwd_data: N engines, 6 legacy; bwd_filter: N engines, 7 legacy"
    )
    # A driver tells more of the engines that want one.
    assert re.sub(r"\d+ engines", "N engines", conv[3]) == passes
    assert conv[4] == "direct, fft, im2col"


@pytest.mark.parametrize("kind", ["errata", "hints"])
def test_what_is_known_of_versions_is_shown(kind: str, capsys: Capture) -> None:
    rows = _C.errata() if kind == "errata" else _C.engine_hints()
    assert main(["info", f"--{kind}"]) == 0
    shown = capsys.readouterr().out
    assert all(row["id"] in shown and row["text"] in shown for row in rows)
    assert main(["info", f"--{kind}", "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [line for line in lines if line.startswith("| ")]
    assert len(cells) == len(rows) + 2 * sum(line.startswith("| ---") for line in lines)
    assert main(["info", f"--{kind}", "--format", "json", "--cudnn", "9.28.1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    if kind == "errata":
        (row,) = (row for row in found if row["id"] == "pool-max-infinite")
        assert row["state"] == "fixed"
    else:
        assert not any(row["on"] for row in found)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--errata", "--jobs", "2"], "--jobs: got 2 with --errata, which takes no more than"),
        (["--operators", "--errata"], "--errata: given with --operators, which takes no more"),
        (
            ["--hints", "--format", "csv"],
            "--format: got 'csv', wanted one of table, json, markdown",
        ),
        (["--jobs", "2"], "--jobs: got 2 with no --all, which it is for"),
        (["--cudnn", "9.28.1"], "--cudnn: got '9.28.1' with neither --errata nor --hints"),
        (["--errata", "--cudnn", "nine"], "--cudnn: version: got 'nine', wanted two or three"),
    ],
)
def test_options_of_errata_and_hints_go_with_nothing_else(
    arguments: list[str], complaint: str, capsys: Capture
) -> None:
    assert main(["info", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and complaint in shown.err


def test_no_command_is_the_help(capsys: Capture) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert "\nCommands:\n" in shown.out and shown.err == ""
    assert main(["-h"]) == 0
    assert capsys.readouterr() == shown


def test_the_version_is_an_option(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"torch_cudnn_ext {__version__}\n"


def test_the_command_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert resolve_name(project["project"]["scripts"]["torch_cudnn_ext"]) is script
    monkeypatch.setattr(sys, "argv", ["torch_cudnn_ext", "nonsense"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit, match="2"):
        script()


def test_the_command_that_is_installed_finds_networks_of_the_folder(
    tmp_path: Path, networks: str
) -> None:
    code = "from torch_cudnn_ext.cli import script; script()"
    command = [sys.executable, "-P", "-c", code, "profile", "--device", "cpu"]
    process = subprocess.run(
        [*command, "--passes", "fwd", "--time-budget", "0.01", "--model", f"{networks}:conv"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert "conv_fwd" in process.stdout


def store_of(root: Path) -> None:
    """A store with rows of this CPU, of it with other threads, and of an H200."""
    here = _C.device_fingerprint("cpu")
    writer = SegmentWriter(root)
    for device in (here, here.replace(here.rpartition("/")[2], "77 threads"), H200):
        line = row_line(entry(LINE, device), "2020-01-01T00:00:00.000000Z", "torch 2")
        writer.append(device, line)
    writer.append(here, row_line(entry(OTHER, here), now_text(), software_of(here)))
    writer.append(here, row_line(entry(OTHER, here)))


def test_the_statistics_of_stores(capsys: Capture, tmp_path: Path) -> None:
    assert main(["info", "--stats"]) == 0
    assert capsys.readouterr().out == "The tuning store is off.\n"
    store_of(tmp_path)
    knobs.store = tmp_path
    found = json_of(capsys, "info", "--stats")
    fingerprint = _C.device_fingerprint("cpu")
    shipped = [one for one in found["devices"] if one["store"] == str(SHIPPED)]
    assert [one["device"] for one in shipped] == [H200]
    by_device = {one["device"]: one for one in found["devices"] if one not in shipped}
    here, gpu = by_device.pop(fingerprint), by_device.pop(H200)
    (others,) = by_device.values()
    assert (here["problems"], here["rows"]) == (2, 3)
    ages = {"one_day": 1, "7_days": 0, "30_days": 0, "older": 1, "unknown": 1}
    assert {name: here[name] for name in ages} == ages
    assert (here["serves"], others["serves"]) == ("cpu", "no: other threads")
    assert torch.cuda.is_available() or gpu["serves"] == "no: other device"
    assert main(["info", "--stats"]) == 0
    out = capsys.readouterr().out
    assert f" problems in {tmp_path}, {SHIPPED}." in out and "store_match is same_cudnn" in out
    assert gpu["device"] == H200 and "serves here" in out


@pytest.mark.parametrize(
    ("match", "serves"),
    [("strict", "no: other software"), ("same_gpu", "cpu"), ("any", "cpu")],
)
def test_what_serves_depends_on_the_match(
    capsys: Capture, tmp_path: Path, match: str, serves: str
) -> None:
    here = _C.device_fingerprint("cpu")
    SegmentWriter(tmp_path).append(here, row_line(entry(LINE, here), WHEN, "torch 1"))
    knobs.store, knobs.store_match = "", match
    knobs.store_shared = [tmp_path, tmp_path / "missing"]
    (only,) = json_of(capsys, "info", "--stats")["devices"]
    assert only["serves"] == serves
    assert main(["info", "--stats", "--errata"]) == 2
    assert "--errata: given with --stats, which takes no more than --format" in (
        capsys.readouterr().err
    )
