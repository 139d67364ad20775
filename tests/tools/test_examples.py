"""The examples do what they say."""

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

from torch_cudnn_ext.tuning.store import read_rows

EXAMPLES = ROOT / "examples"
# Runs a script; what else the machine does is not to decide what it prints.
RUN = (
    "import runpy, sys; from torch_cudnn_ext import _C; _C.ignore_other_work(True); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


def _run(*arguments: str) -> str:
    # A table is as wide as the terminal: here, wide enough for all columns.
    environment = {**os.environ, "COLUMNS": "240", "NO_COLOR": "1"}
    completed = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_train_digits(device: str) -> None:
    output = _run(str(EXAMPLES / "train_digits.py"), "--device", device)
    epochs = re.findall(r"^epoch \d+: .*? fwd=(\S+)", output, re.MULTILINE)
    assert len(epochs) == 16
    assert len(set(epochs)) == 4, "the pins did not change"
    accuracy = re.search(r"^test accuracy: ([\d.]+) %$", output, re.MULTILINE)
    assert accuracy is not None, output
    assert float(accuracy[1]) >= 97.0
    table = output[accuracy.end() :]
    for words in (
        ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"),
        ("conv1", "conv2", "conv3"),
        ("aten:default", "workspace"),
        ("cpu:im2col", "cpu:fft", "cpu:direct") if device == "cpu" else ("graph:eng", "legacy:"),
    ):
        for word in words:
            assert word in table, f"{word} is not in the table:\n{table}"


def test_profile_a_layer(device: str) -> None:
    arguments = ("--device", device, "--batch", "1", "--channels", "8", "--size", "8")
    output = _run(str(EXAMPLES / "profile_a_layer.py"), *arguments)
    assert "conv_fwd x=f32[1,8,8,8]:nchw w=f32[8,8,3,3]:nchw pad=1" in output
    caps = re.findall(r"^at most (\S+): (?:no algorithm|\w+:\S+, [\d.]+ ms)$", output, re.M)
    assert caps == ["0", "1MiB", "64MiB", "4GiB"]
    assert "at most 4GiB: no algorithm" not in output


def test_tune_and_ship(device: str, tmp_path: Path) -> None:
    table = tmp_path / "tuning.jsonl"
    script = str(EXAMPLES / "tune_and_ship.py")
    output = _run(script, "--device", device, "--table", str(table))
    assert re.search(r"^tuned \d+ problems in [\d.]+ s$", output, re.M)
    used = output[output.index("first step") :].splitlines()[1:]
    assert len(used) == 4 and all(line.endswith(" cached") for line in used), output
    assert len(read_rows(table)) >= 6


def test_explain_a_network(device: str) -> None:
    output = _run(str(EXAMPLES / "explain_a_network.py"), "--device", device)
    pinned = re.findall(
        r"^(1\.conv\d) +conv_fwd +aten:default +pinned by '1\.conv\?'$", output, re.M
    )
    assert pinned == ["1.conv1", "1.conv2"]
    ruled = re.findall(r"^\d\.conv\d +conv_bwd_filter +aten:default +pinned by when", output, re.M)
    assert len(ruled) == 4, output
    assert re.search(r"^\d+% of the calls ran", output, re.M)


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    scripts = {file.stem for file in EXAMPLES.glob("*.py")}
    assert len(scripts) == 4 and scripts <= tested
