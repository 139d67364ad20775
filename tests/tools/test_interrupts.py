"""Ctrl-C and SIGTERM at any moment: the process ends soon, and leaves nothing half done."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from torch_cudnn_ext import _C
from torch_cudnn_ext.tuning.store import read_rows

LONGEST_S = 2.0
SLOW_LINE = (
    "conv_bwd_filter x=f32[4,32,64,64]:nchw w=f32[32,32,5,5]:nchw pad=2 stride=1 dilation=1 "
    "groups=1 compute=f32"
)

FIRST_CALL = """
import threading, time
import torch, torch.nn.functional as F
import torch_cudnn_ext

counted = 0
def count():
    global counted
    while True:
        counted += 1
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
x, w = torch.randn(4, 64, 56, 56), torch.randn(64, 64, 3, 3, requires_grad=True)
torch_cudnn_ext.enable("autotune")
print("begun", flush=True)
try:
    while True:
        F.conv2d(x, w, padding=1).sum().backward()
        torch_cudnn_ext.tuning.reset()
except KeyboardInterrupt:
    before = counted
    time.sleep(0.1)
    print("other threads go on", counted > before)
    # What was interrupted is free, and is tuned from the beginning.
    F.conv2d(torch.randn(1, 2, 5, 5), torch.randn(2, 2, 3, 3))
    print(torch_cudnn_ext.last_decision().why)
    raise
"""
IN_JOBS = """
import sys
from torch_cudnn_ext import tuning

LINE = "conv_fwd x=f32[%d,64,56,56]:nchw w=f32[64,64,3,3]:nchw pad=1 stride=1 dilation=1 groups=1"
if __name__ == "__main__":
    print("begun", flush=True)
    try:
        tuning.tune([LINE % n + " compute=f32" for n in range(1, 33)], device="cpu", jobs=2)
    finally:
        tuning.merge_table(sys.argv[1])
"""
# What PyTorch and NumPy make of an interrupt while they are imported is theirs.
IMPORT = """
import torch
print("begun", flush=True)
import torch_cudnn_ext
"""


def _ended(code: str, file: Path, wait_s: float, sent: signal.Signals) -> tuple[int, str, float]:
    """A process's exit code and output, and how long it took to end.

    Ctrl-C ends what it began with it; after SIGTERM, which it does not handle, these end by
    themselves once they have imported their modules.
    """
    script = file.with_name("script.py")
    script.write_text(code)
    process = subprocess.Popen(
        [sys.executable, str(script), str(file)],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(wait_s)
    start = time.monotonic()
    process.send_signal(sent)
    if sent == signal.SIGTERM:
        process.wait(60)
    else:
        output, _ = process.communicate(timeout=60)  # until none has its pipes
    took_s = time.monotonic() - start
    if sent == signal.SIGTERM:
        output, _ = process.communicate(timeout=60)
    return process.returncode, output, took_s


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("code", "wait_s"),
    [
        (FIRST_CALL, 0.4),
        (FIRST_CALL, 1.1),
        (IN_JOBS, 0.7),
        (IN_JOBS, 5.0),
        (IMPORT, 0.3),
        (IMPORT, 0.6),
    ],
)
def test_a_signal_ends_the_process(
    code: str, wait_s: float, sent: signal.Signals, tmp_path: Path
) -> None:
    file = tmp_path / "choices.jsonl"
    status, output, took_s = _ended(code, file, wait_s, sent)
    if status != 0 or code is not IMPORT:  # which may be over by then
        assert status in (-sent, 128 + sent), output
        # An interpreter that is about to end says nothing.
        says = sent == signal.SIGINT and code is not IMPORT
        assert not says or "KeyboardInterrupt" in output, output
    if code is FIRST_CALL and sent == signal.SIGINT:
        assert "other threads go on True\ntuned\n" in output
    if file.exists():
        read_rows(file)  # raises where it is not whole
    slower = 1 + os.getloadavg()[0] / (os.cpu_count() or 1)  # than on an idle machine
    assert took_s < LONGEST_S * slower, output


def test_the_wait_for_another_thread_that_tunes_can_be_interrupted() -> None:
    begun = threading.Event()

    def tune() -> None:
        begun.set()
        _C.decide(SLOW_LINE, "cpu", "autotune")

    other = threading.Thread(target=tune)
    other.start()
    begun.wait()
    time.sleep(0.2)  # until it has the problem
    sent: list[float] = []

    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.2, send)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        _C.decide(SLOW_LINE, "cpu", "autotune")
    took_s = time.monotonic() - sent[0]
    is_tuning = other.is_alive()
    other.join()
    assert is_tuning and took_s < 1
    assert _C.decide(SLOW_LINE, "cpu", "autotune")["why"] == "tuned"  # as the other thread decided
