"""Infinities, NaN and the largest numbers come out of every algorithm as out of PyTorch's.

An algorithm is compared with PyTorch's own, which is ``aten:default``, on the same device: an
element of the result must be finite where PyTorch's is. Where an operator selects a value or
computes each element alone, it must also be NaN, inf or -inf where PyTorch's is; sums do not tell
these apart, since inf - inf is NaN and the order of the terms is an algorithm's own. An algorithm
that differs has the note ``reduced_range`` and is excluded by default.

PyTorch itself runs several algorithms of convolution, which differ in this: by FFT one NaN fills an
image, also with ``torch.backends.cudnn.benchmark`` off. So a convolution may spread what is not
finite within its image, but must not hide it: where both PyTorch's result and the float64 reference
are not finite, the result is not.

The values stand in tensors of data and of gradients. Parameters stay finite: whether an infinite
weight is multiplied by the zeros of a padding differs among PyTorch's own algorithms, and so does
where a grid of NaN points to. The statistics that a norm saves are not compared, nor is ELU's
gradient at NaN: PyTorch's vectorised kernel gives NaN there, and its others do not.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases import LINES, Line
from conftest import CUDA_MARKS, EVERY_NUMERICS
from torch import Tensor

from torch_cudnn_ext import _C

BASELINE = "aten:default"
DATA = {"x", "z", "dy", "hx", "cx", "dhy", "dcy", "dgrid"}
NOT_COMPARED = {"reserve", "mean", "invstd"}
# These notes exclude an algorithm by default for a reason of their own.
LOWER_NUMERICS = {"down_convert", "low_accuracy", "reduced_range"}
VALUES = {"-inf": -math.inf, "inf": math.inf, "nan": math.nan}
# Fields that tell one kind of computation from another; the sizes of tensors do not.
KINDS = (
    *("kind", "mode", "log", "act", "cell", "lengths", "train", "from_output", "means", "padding"),
    *("gradient", "indices", "stats", "z"),
)


def _kind(problem: str) -> tuple[Any, ...]:
    """What problems of one kind share."""
    op, first, *words = problem.split()
    dtype, _, rest = first.partition("=")[2].partition("[")
    layout = rest.partition("]")[2]
    fields = dict(word.split("=", 1) for word in words)
    kind: list[Any] = [op, dtype, layout, *(fields.get(name) for name in KINDS)]
    if op == "softmax_fwd":
        kind.append(rest.partition("]")[0].endswith(",1"))  # contiguous rows
    if op.startswith("conv"):
        window = fields["w"].partition("]")[0].split(",")[2:]
        kind += [set(window) == {"1"}, fields["groups"] == "1", "bias" in fields]
    return tuple(kind)


def _rows() -> Iterator[Any]:
    """The first small problem of each kind; dropout, whose zeros are drawn, is not compared."""
    seen = set()
    for line in LINES:
        kind = _kind(line.problem)
        if line.size != "small" or line.problem.startswith("dropout") or kind in seen:
            continue
        seen.add(kind)
        yield pytest.param(line, "cpu", id=f"{line.name}-cpu")
        yield pytest.param(line, "cuda", id=f"{line.name}-cuda", marks=CUDA_MARKS)


def _places(tensor: Tensor) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Where to put a value: an index for each, of one element, a whole row, a window, and all."""
    middle = [n // 2 for n in tensor.shape]
    yield "everywhere", (...,)
    if tensor.numel() > 1:
        yield "one element", tuple(middle)
    if tensor.dim() > 1:
        yield "a row", (*middle[:-1], slice(None))
        yield "a column", (*middle[:1], slice(None), *middle[2:])
    if tensor.dim() > 2:
        yield "a plane", (*middle[:2], ...)


def _selects(problem: str) -> bool:
    """Whether each element of the result is one of the input's, or a function of one alone."""
    op, *words = problem.split()
    fields = dict(word.split("=", 1) for word in words)
    if op == "reduce_fwd":
        return fields["kind"] in ("min", "max", "absmax")
    return op in ("softmax_fwd", "activation_fwd") or (op == "pool_fwd" and fields["mode"] == "max")


def _largest(problem: str, dtype: torch.dtype) -> float:
    """The largest number of a type; where it is summed or squared, one that no order overflows."""
    largest = torch.finfo(dtype).max
    if problem.startswith("ctc"):
        return 1e4  # logarithms: exponentials of what rounding leaves of larger ones overflow
    if _selects(problem):
        return largest
    wide = torch.finfo(torch.promote_types(dtype, torch.float32)).max
    if problem.startswith(("batch_norm", "layer_norm", "lrn", "rnn", "reduce")):
        return min(largest / 2**12, math.sqrt(wide) / 2**6)
    return min(largest / 2**12, wide / 2**24)  # transforms sum over an image


def _classes(tensor: Tensor, problem: str) -> Tensor:
    """0 where finite, else 1; where an operator selects, 2 for inf, 3 for -inf."""
    kinds = (~tensor.isfinite()).to(torch.int8)
    if _selects(problem):
        kinds[tensor == math.inf] = 2
        kinds[tensor == -math.inf] = 3
    return kinds


def _copied(bindings: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the strides that the problem says."""
    return {
        role: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)
        for role, t in bindings.items()
    }


class Poisoned:
    """One problem on inputs that hold a value somewhere, and what algorithms make of them."""

    def __init__(self, problem: str, device: str) -> None:
        """Finds what a backward reads of its forward's results."""
        self.problem, self.device = problem, device
        self.info = _C.problem_info(problem)
        self.slots = self.info["slots"]
        self.scratch = _C.scratch(problem, device)
        self.forward: str | None = None
        self.of_forward: set[str] = set()
        if self.info["pass_name"] == "bwd":
            coupled = self.info["coupled"]
            self.forward = coupled[0] if coupled else _forward_of(problem)
        if self.forward is not None:
            results = {r for r, s in _C.problem_info(self.forward)["slots"].items() if s["output"]}
            self.of_forward = results & {r for r, s in self.slots.items() if not s["output"]}

    def inputs(self) -> list[str]:
        """The roles that a value is put into."""
        fields = dict(word.split("=", 1) for word in self.problem.split()[1:])
        roles = DATA - self.of_forward
        if self.problem.startswith("conv_bwd_data"):
            roles = {"y"}
        elif self.problem.startswith("conv_bwd_filter") and fields["pad"] == "0":
            roles = {"x", "y"}
        return [role for role in self.scratch if role in roles and not self.slots[role]["output"]]

    def bindings(self, role: str, index: tuple[Any, ...], value: float) -> dict[str, Tensor]:
        """The inputs, one of which holds the value."""
        bindings = _copied(self.scratch)
        bindings[role][index] = value
        return bindings

    def run(self, algorithm: str, bindings: dict[str, Tensor]) -> dict[str, Tensor]:
        """The results; of a backward, of a forward by the same algorithm or else by PyTorch's."""
        bindings = _copied(bindings)
        if self.forward is not None:
            coupled = bool(self.info["coupled"])
            given = _copied(_C.scratch(self.forward, self.device))
            given |= {role: bindings[role] for role in given.keys() & bindings.keys()}
            by = algorithm if coupled else BASELINE
            left = _C.run(self.forward, by, given, EVERY_NUMERICS)
            wanted = self.of_forward | ({"reserve"} if coupled else set())
            bindings |= {role: left[role] for role in wanted & left.keys()}
        results = _C.run(self.problem, algorithm, bindings, EVERY_NUMERICS)
        return {
            role: result
            for role, result in results.items()
            if role not in NOT_COMPARED and result.is_floating_point()
        }

    def wrong(
        self, ours: Tensor, theirs: Tensor, bindings: dict[str, Tensor], result: str
    ) -> Tensor:
        """The elements of a result that must not be what they are."""
        differs = _classes(ours, self.problem) != _classes(theirs, self.problem)
        if not self.problem.startswith(("conv", "matmul")):
            return differs
        exact = _C.reference(self.problem, bindings)[result].to(ours.dtype)
        if self.problem.startswith("matmul"):
            # PyTorch's bf16 product gives NaN in rows of finite numbers, too, on CPUs with AMX.
            return differs & (_classes(ours, self.problem) != _classes(exact, self.problem))
        hidden = ours.isfinite() & ~theirs.isfinite() & ~exact.isfinite()
        if self.info["pass_name"] == "bwd_filter":  # a sum over all images
            return hidden
        given = bindings["x" if self.info["pass_name"] == "fwd" else "y"]
        clean = given.isfinite().flatten(1).all(1).view(-1, *[1] * (ours.dim() - 1))
        return hidden | (~ours.isfinite() & theirs.isfinite() & exact.isfinite() & clean)


def _forward_of(problem: str) -> str | None:
    """The forward whose results a backward reads, where no algorithm is shared."""
    if problem.startswith(("conv", "grid_sample", "affine_grid")):
        return None
    if problem.startswith("batch_norm") and "train=false" in problem:
        return None
    return problem.replace("_bwd", "_fwd", 1).replace(" from_output=true", "")


def differences(problem: str, device: str) -> dict[str, list[str]]:
    """Where algorithms that do not have the note ``reduced_range`` differ from PyTorch's."""
    candidates = _C.candidates(problem, device, EVERY_NUMERICS, remember=True)
    able = {row["algorithm"]: set(row["notes"]) for row in candidates if row["status"] == "ok"}
    if BASELINE not in able:
        pytest.skip(f"PyTorch has no kernel for this: {problem}")
    compared = [
        algorithm
        for algorithm, notes in able.items()
        if not notes & LOWER_NUMERICS and not algorithm.startswith("aten:")
    ]
    found: dict[str, list[str]] = {}
    poisoned = Poisoned(problem, device)
    elu_gradient = problem.startswith("activation_bwd") and " kind=elu " in problem
    for role in poisoned.inputs():
        largest = _largest(problem, poisoned.scratch[role].dtype)
        for place, index in _places(poisoned.scratch[role]):
            for name, value in {**VALUES, "largest": largest, "-largest": -largest}.items():
                if name == "nan" and role == "x" and elu_gradient:
                    continue
                bindings = poisoned.bindings(role, index, value)
                theirs = poisoned.run(BASELINE, bindings)
                for algorithm in compared:
                    for result, ours in poisoned.run(algorithm, bindings).items():
                        wrong = poisoned.wrong(ours, theirs[result], bindings, result)
                        if bool(wrong.any()):
                            found.setdefault(algorithm, []).append(
                                f"{name} in {role}, {place}: {result} has "
                                f"{ours[wrong].flatten()[0].item()}, and PyTorch "
                                f"{theirs[result][wrong].flatten()[0].item()}"
                            )
    return found


@pytest.mark.parametrize(("line", "device"), list(_rows()))
def test_what_is_not_finite_comes_out_as_with_pytorch(line: Line, device: str) -> None:
    found = differences(line.problem, device)
    report = [f"{a}: {len(rows)} cases, first {rows[0]}" for a, rows in found.items()]
    assert not found, "\n".join([f"{line.problem} on {device}:", *report])
