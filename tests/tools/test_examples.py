"""The examples do what they say."""

import os
import re
import subprocess
import sys

from conftest import ROOT

EXAMPLES = ROOT / "examples"


def _run(*arguments: str) -> str:
    # A table is as wide as the terminal: here, wide enough for all columns.
    environment = {**os.environ, "COLUMNS": "240", "NO_COLOR": "1"}
    completed = subprocess.run(
        [sys.executable, *arguments],
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
