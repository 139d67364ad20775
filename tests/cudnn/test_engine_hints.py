"""Engines that untuned calls name by number: for which problems, versions and GPUs."""

from __future__ import annotations

import pytest

from torch_cudnn_ext import _C

TARGET = "target:h200"
DEPTHWISE = "x={0}[8,32,28,28]:{1} w={0}[32,1,3,3]:{1} pad=1 groups=32"
POOL = "window={0} stride={1} mode={2}"

# For each row a problem, and the row that a neighbouring problem has, if it has one.
CASES: dict[str, tuple[str, tuple[str, str | None]]] = {
    "conv-depthwise-half-fwd": (
        f"conv_fwd {DEPTHWISE.format('bf16', 'nhwc')}",
        (f"conv_fwd {DEPTHWISE.format('bf16', 'nhwc')} bias=bf16", None),
    ),
    "conv-depthwise-half-data": (
        f"conv_bwd_data {DEPTHWISE.format('f16', 'nhwc')}",
        (f"conv_bwd_data {DEPTHWISE.format('f16', 'nchw')}", None),
    ),
    "conv-depthwise-half-filter": (
        f"conv_bwd_filter {DEPTHWISE.format('f16', 'nhwc')}",
        (f"conv_bwd_filter {DEPTHWISE.format('f32', 'nhwc')}", None),
    ),
    "conv-depthwise-f32": (
        f"conv_fwd {DEPTHWISE.format('f32', 'nchw')}",
        (f"conv_bwd_filter {DEPTHWISE.format('f32', 'nchw')}", None),
    ),
    "batch-norm-inference": (
        "batch_norm_infer x=bf16[64,128,3136]:nhwc",
        ("batch_norm_infer x=bf16[64,128,49]:nhwc", None),
    ),
    "pool-max-training": (
        f"pool_fwd x=f32[32,64,32,20]:nhwc {POOL.format('2', '2', 'max')} train=true",
        (f"pool_fwd x=f32[32,64,32,20]:nchw {POOL.format('2', '2', 'max')} train=true", None),
    ),
    "pool-max-volume": (
        f"pool_fwd x=f32[8,32,16,32,32]:nhwc {POOL.format('2', '2', 'max')}",
        (f"pool_fwd x=f32[2,8,16,32,32]:nhwc {POOL.format('2', '2', 'max')}", None),
    ),
    "pool-max-separate": (
        f"pool_fwd x=f16[32,64,112,112]:nhwc {POOL.format('2', '2', 'max')}",
        (f"pool_fwd x=f16[32,64,112,112]:nhwc {POOL.format('3', '2', 'max')}", None),
    ),
    "pool-average-gradient": (
        f"pool_bwd x=f32[32,64,24,24]:nhwc {POOL.format('2', '2', 'avg_include')}",
        (f"pool_bwd x=f32[32,64,24,24]:nhwc {POOL.format('2', '2', 'sum')} divisor=3", None),
    ),
    "pool-average-volume": (
        f"pool_fwd x=f32[8,32,16,32,32]:nhwc {POOL.format('2', '2', 'avg_include')}",
        (f"pool_fwd x=f32[8,32,16,32,32]:nhwc {POOL.format('4', '4', 'avg_include')}", None),
    ),
    "pool-average-dense": (
        f"pool_fwd x=f32[32,80,8,28]:nhwc {POOL.format('4,1', '1', 'avg_exclude')}",
        (
            f"pool_fwd x=f32[32,80,8,28]:nhwc {POOL.format('4,1', '2', 'avg_exclude')}",
            "pool-average",
        ),
    ),
    "pool-average": (
        f"pool_fwd x=f32[1024,128,1,7]:nhwc {POOL.format('1,7', '1', 'avg_exclude')}",
        (f"pool_fwd x=f32[64,256,6,6]:nhwc {POOL.format('5', '5', 'avg_exclude')}", None),
    ),
}


def test_every_row_has_a_case() -> None:
    assert [row["id"] for row in _C.engine_hints()] == list(CASES)


@pytest.mark.parametrize("id", CASES)
def test_a_row_is_of_its_problem_and_not_of_its_neighbour(id: str) -> None:
    problem, (neighbour, of_neighbour) = CASES[id]
    assert _C.engine_hint_for(problem) == id
    assert _C.engine_hint_for(neighbour) == of_neighbour


def test_rows_are_on_for_what_they_were_measured_with_alone() -> None:
    for cudnn, capability, on in ((91900, 90, True), (94000, 90, False), (91900, 100, False)):
        rows = _C.engine_hints(cudnn, capability)
        assert [row["on"] for row in rows] == [on] * len(rows)
        assert all(row["measured"] and row["algorithms"] and row["text"] for row in rows)


def _decided(problem: str, cudnn: int) -> str:
    _C.override_library_version("cuDNN", cudnn)
    try:
        return _C.decide(problem, TARGET)["algorithm"]
    finally:
        _C.override_library_version("cuDNN", 0)


def test_elsewhere_no_engine_is_named_by_its_number() -> None:
    problem = f"conv_fwd {DEPTHWISE.format('f32', 'nchw')}"
    assert _decided(problem, 91900) == "graph:eng0"
    # PyTorch's own kernel, which leads the family's order, wants a GPU.
    listed = [row for row in _C.candidates(problem, TARGET) if row["status"] == "ok"]
    assert _decided(problem, 94000) == listed[0]["algorithm"]
    assert listed[0]["source"].startswith("heuristic A")
