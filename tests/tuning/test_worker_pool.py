"""Processes that end with the one that started them."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torch_cudnn_ext.tuning.worker_pool import worker_pool

KILLED = """
import os, signal, sys
from pathlib import Path
from test_worker_pool import until_begun, work
from torch_cudnn_ext.tuning.worker_pool import worker_pool

if __name__ == "__main__":
    with worker_pool(1, grace_s=5) as pool:
        pool.submit(work, Path(sys.argv[1]))
        until_begun(Path(sys.argv[1]))
        os.kill(os.getpid(), signal.SIGKILL)
"""


def work(file: Path) -> None:
    try:  # from the start: the one that reads this file may end the work at once
        file.write_text("begun")
        time.sleep(120)
    finally:
        file.write_text("ended")


class Odd(Exception):
    """One that cannot be sent: `pickle` makes it anew of its message alone."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} and {why}")


def fail(error: type[Exception], *arguments: str) -> None:
    raise error(*arguments)


def until_begun(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text() == "begun"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("grace_s", [60.0, 0.0])
def test_an_error_ends_them(tmp_path: Path, grace_s: float) -> None:
    file = tmp_path / "file"
    with pytest.raises(KeyError), worker_pool(1, grace_s=grace_s) as pool:
        pool.submit(work, file)
        until_begun(file)
        start = time.monotonic()
        raise KeyError
    assert time.monotonic() - start < 30
    assert multiprocessing.active_children() == []
    assert file.read_text() == ("ended" if grace_s else "begun")


def test_death_ends_them(tmp_path: Path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "file"
    script.write_text(KILLED)
    done = subprocess.run(  # returns when no process has its pipes
        [sys.executable, str(script), str(file)],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert file.read_text() == "ended"


def test_they_may_end_amid_a_large_result(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from torch_cudnn_ext.tuning.worker_pool import worker_pool\n"
        "if __name__ == '__main__':\n"
        "    with worker_pool(2) as pool:\n"
        "        first, *_ = [pool.submit(bytes, 200_000_000) for _ in range(6)]\n"
        "        first.result()  # while the other one sends\n"
        "        raise KeyError\n"
    )
    ended = subprocess.run(
        [sys.executable, script],
        env={"PYTHONPATH": ":".join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1 and "KeyError" in ended.stderr


def test_what_work_raises_is_all_that_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="^the reason$"), worker_pool(1, grace_s=60) as pool:
        pool.submit(fail, ValueError, "the reason").result()
    with pytest.raises(RuntimeError, match="^Odd: this and that$"), worker_pool(1) as pool:
        pool.submit(fail, Odd, "this", "that").result()
    assert multiprocessing.active_children() == []
    assert capfd.readouterr().err == ""


def test_sigterm_of_one_is_no_ctrl_c_here(tmp_path: Path) -> None:
    with worker_pool(1) as pool:
        future = pool.submit(work, tmp_path / "file")
        until_begun(tmp_path / "file")
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGTERM)
        with pytest.raises(RuntimeError, match="a process that works .* was ended by SIGTERM"):
            future.result(timeout=60)
    assert (tmp_path / "file").read_text() == "ended"


def test_results_come_back_and_nothing_stays() -> None:
    with worker_pool(2) as pool:
        futures = [pool.submit(pow, 2, n) for n in range(5)]
        assert [future.result() for future in futures] == [1, 2, 4, 8, 16]
    assert multiprocessing.active_children() == []
