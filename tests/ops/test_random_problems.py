"""Problems that nobody chose: every algorithm that takes one computes it right.

The seeds are fixed, so that a failure repeats. Its message holds the problem's line, which
``profile`` and tests/cases.py take.
"""

import math
import random
import re

import pytest
from cases import LINES
from conftest import CUDA_MARKS, EVERY_NUMERICS

from torch_cudnn_ext import _C

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 56, 63, 64, 65, 72, 96, 100)
LARGE_SIZES = (112, 127, 128, 160, 192, 224, 256, 257, 384, 512, 640, 1000, 1024)
EPILOGUES = (
    "bias={0}",
    "bias={0}",
    "act=relu",
    "bias={0} act=relu",
    "bias={0} z={0} act=relu",
    "z={0}",
    "bias={0} act=silu",
    "act=relu6",
    "bias={0} act=gelu",
)
ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
# Of the others the sizes of several tensors hang together, or of what is in them.
FAMILIES = "activation batch_norm layer_norm lrn matmul pool reduce rnn softmax transform".split()
OTHERS: dict[str, list[str]] = {family: [] for family in FAMILIES}
for line in LINES:
    family = line.problem.split()[0].rpartition("_")[0]
    if family in OTHERS and not re.search("f64|compute=f16", line.problem):
        OTHERS[family].append(line.problem)


class Draw:
    """Random problem lines of up to so many elements and products."""

    def __init__(self, seed: int, device: str) -> None:
        self.random = random.Random(seed)
        on_gpu = device == "cuda"
        self.sizes = (*SIZES, *LARGE_SIZES) if on_gpu else SIZES
        self.elements, self.products = (2**21, 2e10) if on_gpu else (2**13, 2e6)

    def size(self, most: int = 2**20) -> int:
        return self.random.choice([size for size in self.sizes if size <= most])

    def line(self) -> str:
        while True:
            text = self.convolution() if self.random.random() < 0.6 else self.other()
            try:
                return str(_C.canonical_problem(text))
            except ValueError:  # such sizes make no problem
                continue

    def convolution(self) -> str:
        choice = self.random.choice
        dims = choice((1, 2, 2, 2, 2, 3))
        window = [choice((1, 1, 2, 3, 3, 4, 5, 7, 11))] * dims
        if choice((True, False)):
            window = [choice((1, 3, 5, 7)) for _ in window]
        kind = choice(("dense", "dense", "dense", "grouped", "depthwise"))
        while True:
            groups, inner, outer = {
                "dense": (1, self.size(), self.size()),
                "grouped": (self.size(32), self.size(32), self.size(32)),
                "depthwise": (self.size(512), 1, choice((1, 1, 2))),
            }[kind]
            space = [self.size(224)] * dims
            if choice((True, False)):
                space = [self.size(224) for _ in space]
            batch = self.size(64)
            pixels = batch * math.prod(space)
            products = 1.0 * pixels * groups * inner * outer * math.prod(window)
            largest = pixels * groups * max(inner, outer)
            if largest <= self.elements and products <= self.products:
                break
        dtype, layout = choice(tuple(ELEMENT_BYTES)), choice(("nchw", "nhwc"))
        padding = [choice((0, (extent - 1) // 2, extent - 1)) for extent in window]
        steps = f"stride={choice((1, 1, 2, 3))} dilation={choice((1, 1, 1, 2))}"
        if choice((True, False, False, False)):  # windows side by side
            padding, steps = [0] * dims, f"stride={_text(window)} dilation=1"
        words = [
            choice(("conv_fwd", "conv_bwd_data", "conv_bwd_filter")),
            f"x={dtype}[{_text([batch, groups * inner, *space])}]:{layout}",
            f"w={dtype}[{_text([groups * outer, inner, *window])}]:{layout}",
            f"pad={_text(padding)} {steps}",
            f"groups={groups}",
        ]
        if choice((True, False, False)):
            words.append(f"align={choice([a for a in (2, 4, 8) if a >= ELEMENT_BYTES[dtype]])}")
        if words[0] == "conv_fwd" and choice((True, False, False)):
            words.append(choice(EPILOGUES).format(dtype))
        elif choice((True, False, False, False)):
            words.append("accumulate=general")
        return " ".join(words)

    def other(self) -> str:
        """A line of the table of cases, of other sizes."""
        family = self.random.choice(FAMILIES)
        line = self.random.choice(OTHERS[family])
        if family == "rnn":
            line = re.sub(r"hidden=\d+", f"hidden={self.size(400)}", line)
        sizes = _sizes(line)
        for _ in range(100):
            drawn = [n if self.random.random() < 0.3 else self.size() for n in sizes]
            if math.prod(drawn) <= self.elements:
                break
        else:
            return line
        if family == "matmul":
            line = _with_sizes("w", [drawn[0], drawn[2], self.size()], line)
        return _with_sizes("x", drawn, line)


def _text(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _sizes(line: str) -> list[int]:
    found = re.search(r" x=\w+\[([\d,]+)\]", line)
    assert found, line
    return [int(n) for n in found[1].split(",")]


def _with_sizes(role: str, sizes: list[int], line: str) -> str:
    return re.sub(rf"( {role}=\w+)\[[\d,]+\]", rf"\1[{_text(sizes)}]", line, count=1)


def _is_ours(row: "_C.Measurement", dtype: str) -> bool:
    """Whether a failure is a defect: PyTorch's own kernels and a lack of memory are none of ours.

    What adds in any order, in half precision, is rounded as often as it adds.
    """
    if row["algorithm"] == "aten:default":
        return False
    if row["status"] == "rejected":
        return "nondeterministic" not in row["notes"] or dtype not in ("f16", "bf16")
    return row["status"] == "failed" and not row["reason"].startswith("out of memory")


SEEDS = {"cpu": 24, "cuda": 30}
PROBLEMS = {"cpu": 5, "cuda": 10}


@pytest.mark.parametrize(
    ("device", "seed"),
    [
        pytest.param(device, seed, marks=CUDA_MARKS if device == "cuda" else [])
        for device, count in SEEDS.items()
        for seed in range(count)
    ],
)
def test_every_algorithm_is_right(device: str, seed: int) -> None:
    draw = Draw(seed, device)
    for problem in (draw.line() for _ in range(PROBLEMS[device])):
        rows = _C.measure(problem, device, EVERY_NUMERICS, min_samples=1, record=False)
        dtype = _C.problem_info(problem)["dtype"]
        failures = [f"{row['algorithm']}: {row['reason']}" for row in rows if _is_ours(row, dtype)]
        assert not failures, "\n".join([problem, *failures])
        assert any(row["status"] == "ok" for row in rows), problem
