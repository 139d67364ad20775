"""Depthwise convolutions of different sizes, one after the other on one stream.

The notes of cuDNN 9.24 speak of wrong results "when operations with different spatial sizes run
sequentially".
"""

import pytest
from conftest import EVERY_NUMERICS, needs_cuda
from helpers import OUTPUT_ROLE, PASSES
from torch import Tensor

from torch_cudnn_ext import _C

SIZES = (7, 28, 14, 56, 9, 33)
FORMS = ("f32[{}]:nchw", "f16[{}]:nchw", "f16[{}]:nhwc", "bf16[{}]:nhwc")


def _algorithms(problem: str) -> dict[str, list[str]]:
    """One algorithm of cuDNN for each engine that takes the problem, and the notes of each."""
    engines: dict[str, tuple[str, list[str]]] = {}
    for candidate in _C.candidates(problem, "cuda", EVERY_NUMERICS):
        if candidate["status"] == "ok" and candidate["backend"] in ("graph", "legacy"):
            engine = candidate["algorithm"].partition("/")[0]
            engines.setdefault(engine, (candidate["algorithm"], candidate["notes"]))
    return dict(engines.values())


@needs_cuda
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("form", FORMS, ids=["f32-nchw", "f16-nchw", "f16-nhwc", "bf16-nhwc"])
@pytest.mark.parametrize("op", PASSES)
def test_depthwise_convolutions_of_different_sizes_in_a_row(
    op: str, form: str, stride: int
) -> None:
    w = form.format("32,1,3,3")
    problems = {}
    for size in SIZES:
        x = form.format(f"4,32,{size},{size + 1}")
        problem = f"{op} x={x} w={w} pad=1 stride={stride} groups=32"
        tensors = _C.scratch(problem, "cuda", seed=size)
        reference = _C.reference(problem, {role: t.cpu() for role, t in tensors.items()})
        problems[problem] = (tensors, reference[OUTPUT_ROLE[op]], _algorithms(problem))
    engines = sorted({name for _, _, names in problems.values() for name in names})
    assert engines
    results: list[tuple[str, str, list[str], Tensor]] = []
    for _ in range(2):  # every engine goes through all sizes without a pause
        for engine in engines:
            for problem, (tensors, _, names) in problems.items():
                if engine in names:
                    result = _C.run(problem, engine, dict(tensors), EVERY_NUMERICS)
                    results.append((problem, engine, names[engine], result[OUTPUT_ROLE[op]]))
    for problem, engine, notes, result in results:
        error = _C.relative_error(result.cpu(), problems[problem][1])
        assert error <= _C.tolerance(problem, notes), f"{problem} by {engine}: {error}"
