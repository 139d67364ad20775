"""Memory that runs out."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import newest
from selector_helpers import OPS, TUNE, conv_decision, conv_problem, convolve
from torch import Tensor

from torch_cudnn_ext import _C


def _script_by_size(fake: Any, no_memory_above: float = math.inf) -> None:
    """By speed: 300, 400, 200 and 0 bytes."""
    for rank, size in enumerate((300, 400, 200, 0)):
        kind = "out_of_memory" if size > no_memory_above else ""
        fake.script(f"fake:b{size}", milliseconds=rank / 2, workspace_bytes=size, run_raises=kind)


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_without_memory_the_next_smaller_runs_and_says_so(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    assert convolve(x, w, TUNE) == "fake:b300"
    # Of what is left only the smaller ones are tried, in the order of their ranks.
    for no_memory_above, algorithm in ((250, "fake:b200"), (0, "fake:b0")):
        runs = fake.counts("fake:b400")[1]
        _script_by_size(fake, no_memory_above)
        assert convolve(x, w, TUNE) == algorithm
        why = conv_decision().why
        assert why.startswith("fallback: no memory for the workspace of fake:b300 (300 bytes)")
        assert fake.counts("fake:b400")[1] == runs
    _script_by_size(fake)
    assert convolve(x, w, TUNE) == "fake:b300"
    assert conv_decision().why == "tuned"
    choice = _C.decide(conv_problem(x, w), "cpu", TUNE)
    assert choice["algorithm"] == "fake:b300", "a lack of memory is not a decision"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
@pytest.mark.parametrize("policy", [TUNE, "heuristic;backends=fake"])
def test_what_runs_without_memory_is_built_once(
    fake: Any, x: Tensor, w: Tensor, policy: str
) -> None:
    _script_by_size(fake)
    # Where it is not tuned, in the order of their names.
    fake.script("fake:a", milliseconds=9, workspace_bytes=300)
    first = convolve(x, w, policy)
    _script_by_size(fake, 100)
    fake.script("fake:a", workspace_bytes=300, run_raises="out_of_memory")
    builds = []
    for _ in range(3):
        assert convolve(x, w, policy) == "fake:b0"
        builds.append([fake.counts(f"fake:b{size}")[0] for size in (300, 400, 200, 0)])
    assert first == ("fake:b300" if policy == TUNE else "fake:a")
    assert builds[0] == builds[1] == builds[2]


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_without_memory_pytorch_itself_may_be_the_smaller_one(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    policy = "autotune;backends=aten,fake"
    fake.script("fake:a", workspace_bytes=1 << 20)
    convolve(x, w, policy)
    (entry,) = _C.table_export()
    best_first = sorted(entry["measurements"], key=lambda m: m["algorithm"] != "fake:a")
    _C.table_import([{**entry, "measurements": best_first}])
    assert convolve(x, w, policy) == "fake:a"
    fake.script("fake:a", workspace_bytes=1 << 20, run_raises="out_of_memory")
    assert convolve(x, w, policy) == "aten:default"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_without_memory_the_sum_is_still_right(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    arguments = (x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    z = torch.randn(1, 3, 4, 4)
    for no_memory_above in (math.inf, 250):
        _script_by_size(fake, no_memory_above)
        out = z.clone()
        OPS.convolution_out.default(*arguments, out=out, beta=1.0, policy=TUNE)
        torch.testing.assert_close(out, F.conv2d(x, w) + z)


def test_without_memory_for_any_it_is_an_error(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    convolve(x, w, TUNE)
    _script_by_size(fake, -1)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        convolve(x, w, TUNE)
    for part in ("fake:b300", "no algorithm with a smaller workspace", conv_problem(x, w)):
        assert part in str(caught.value)
    _script_by_size(fake)
    assert convolve(x, w, TUNE) == "fake:b300"


def test_a_pin_without_memory_is_an_error(fake: Any, x: Tensor, w: Tensor) -> None:
    _script_by_size(fake)
    assert convolve(x, w, "fwd=fake:b400") == "fake:b400"
    _script_by_size(fake, 250)
    runs = fake.counts("fake:b200")[1]
    with pytest.raises(torch.OutOfMemoryError, match="fake:b400"):
        convolve(x, w, "fwd=fake:b400")
    assert fake.counts("fake:b200")[1] == runs
    _script_by_size(fake)
    assert convolve(x, w, "fwd=fake:b400") == "fake:b400"


def test_a_pin_whose_memory_cannot_be_told_is_an_error_that_is_kept(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    fake.script("fake:a", states_workspace=False, run_raises="error")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="pinned algorithm fake:a cannot run"):
            convolve(x, w, "fwd=fake:a;max_workspace=1MiB")
        assert fake.counts("fake:a")[1] == 1


def test_a_known_plan_is_no_way_around_what_its_backward_is_refused_for(fake: Any) -> None:
    fake.script("fake:d", notes=["nondeterministic"])
    x = torch.randn(5, requires_grad=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="dropout_bwd: excluded by deterministic"):
            OPS.dropout.default(x, 0.5, policy="fake:d;deterministic")
        OPS.dropout.default(x, 0.5, policy="fake:d").sum().backward()


def test_without_memory_for_its_result_nothing_else_is_built(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    _script_by_size(fake)
    policy = "autotune;backends=fake;max_workspace=0"
    assert convolve(x, w, policy) == "fake:b0"
    _script_by_size(fake, -1)
    builds = fake.counts("fake:b200")[0]
    with pytest.raises(torch.OutOfMemoryError):
        convolve(x, w, policy)
    assert fake.counts("fake:b200")[0] == builds


@pytest.mark.filterwarnings("ignore:.*so the heuristic's algorithm runs")
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("out_of_memory", "no memory to tune in"),
        ("error", "every algorithm failed while tuning"),
    ],
)
def test_a_tuning_in_which_all_failed_is_not_for_good(
    fake: Any, x: Tensor, w: Tensor, kind: str, why: str
) -> None:
    fake.script("fake:a", run_raises=kind, raises_at=1)
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == f"heuristic: {why}"
    assert _C.table_export() == []
    _C.plan_cache_clear()
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "tuned"
    assert len(_C.table_export()) == 1
    # A table of another process may hold such a ranking.
    (entry,) = _C.table_export()
    for row in entry["measurements"]:
        row.update(status="failed", reason="CUDA error: an illegal memory access", median_ms=None)
    _C.table_clear()
    _C.table_import([entry])
    _C.plan_cache_clear()
    assert convolve(x, w, TUNE) == "fake:a"
    assert conv_decision().why == "tuned"


@pytest.mark.filterwarnings("ignore:.*no memory for the workspace")
def test_a_pin_without_memory_is_an_error_or_falls_back(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", workspace_bytes=300, run_raises="out_of_memory")
    fake.script("fake:b", workspace_bytes=200)
    policy = "fwd=fake:a;backends=fake"
    with pytest.raises(
        torch.OutOfMemoryError, match="fake:a cannot run: no memory .workspace: 300"
    ):
        convolve(x, w, policy)
    for action in ("warn", "fallback"):
        assert convolve(x, w, f"{policy};on_unsupported={action}") == "fake:b"


def test_what_tuning_measured_of_memory_is_told(x: Tensor, w: Tensor) -> None:
    OPS.conv2d.default(x, w, policy="autotune;backends=aten")
    (entry,) = _C.table_export()
    assert (
        conv_decision().workspace_bytes == entry["measurements"][0]["workspace_bytes"] is not None
    )


def test_a_list_holds_to_the_cap_that_a_pin_holds_to(x: Tensor, w: Tensor) -> None:
    policy = "backends=aten;max_workspace=0"
    (row,) = (
        row
        for row in _C.candidates(conv_problem(x, w), "cpu", policy)
        if row["algorithm"] == "aten:default"
    )
    assert row["status"] == "excluded" and row["workspace_bytes"] > 0
    with pytest.raises(RuntimeError) as caught:
        OPS.conv2d.default(x, w, policy=policy)
    assert row["reason"] in str(caught.value)


def test_a_shortage_of_memory_is_not_kept(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", states_workspace=False, run_raises="out_of_memory", raises_at=1)
    with pytest.raises(RuntimeError, match="pinned algorithm fake:a cannot run"):
        convolve(x, w, "fwd=fake:a;max_workspace=1MiB")
    assert convolve(x, w, "fwd=fake:a;max_workspace=1MiB") == "fake:a"


def test_what_a_first_run_alone_allocates_is_no_workspace(fake: Any, x: Tensor, w: Tensor) -> None:
    fake.script("fake:a", states_workspace=False, workspace_bytes=1 << 12, first_bytes=1 << 24)
    assert convolve(x, w, "fwd=fake:a;max_workspace=64KiB") == "fake:a"
    assert 1 << 12 <= newest("conv_fwd").workspace_bytes <= 1 << 16
    with pytest.raises(RuntimeError, match="excluded by max_workspace=1024"):
        convolve(x, w, "fwd=fake:a;max_workspace=1KiB")
    fake.script("fake:b", states_workspace=False, workspace_bytes=1 << 12, first_bytes=1 << 24)
    for row in _C.measure(conv_problem(x, w), "cpu", "backends=fake;max_workspace=64KiB"):
        assert row["backend"] != "fake" or row["status"] == "ok", row["reason"]
