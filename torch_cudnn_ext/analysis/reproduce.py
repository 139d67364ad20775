"""One run that shows an erratum, with its guard lifted, in a process of its own.

The run may hang, end the process or cost it its GPU context, so `torch_cudnn_ext.analysis.verify`
starts this module by ``python -m`` with the run as JSON. The last line of its output is what came
out.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext import _C

MARK = "outcome of the run: "  # begins the line that tells what came out
# Algorithms with lower numerics run too, against the tolerance that their notes state.
EVERY_NUMERICS = "allow_tf32;allow_down_convert;allow_reduced_range"
_VALUES = {"-inf": float("-inf"), "inf": float("inf"), "nan": float("nan")}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MARGIN_BYTES = 4096  # around a result
_PATTERN = 0x5A  # each byte there
_NOT_COMPARED = ("reserve", "mean", "invstd")
_ONE = "one "  # the prefix of inputs in which a single element has the value


@dataclass(frozen=True)
class Run:
    """What to run.

    Attributes:
        id: The erratum.
        problem: A problem line.
        algorithm: The algorithm that goes wrong.
        inputs: Random numbers if empty. ``-inf``, ``inf`` or ``nan`` fill the data or, in a
            gradient, the gradient of the result. ``one inf`` is one such element, in the middle of
            random data; ``grid=nan`` fills the tensor of this role.
        device: ``cpu``, ``cuda`` or ``cuda:<index>``.
        lifted: The errata whose guards are off.
    """

    id: str
    problem: str
    algorithm: str
    inputs: str
    device: str
    lifted: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What came out: one of the words below, and the details."""

    word: str
    detail: str = ""


NOT_SEEN = "not seen"
WRONG = "wrong"
OUT_OF_BOUNDS = "out of bounds"
CONTEXT_LOST = "context lost"
FAILED = "fails"
HANGS = "hangs"
ENDED = "process ended"
CANNOT_RUN = "cannot run here"


def reproduce(run: Run) -> Outcome:
    """Run an algorithm on a problem and compare its results, with guards lifted."""
    _C.lift_errata([*run.lifted])
    try:
        if run.inputs:
            return _with_inputs(run)
        measured = _measured(run)
        if measured.word != NOT_SEEN:
            return measured
        return _in_margins(run) or measured
    except RuntimeError as error:
        return _outcome_of_error(str(error))
    finally:
        _C.lift_errata([])


def _measured(run: Run) -> Outcome:
    """The verdict of tuning: results against the float64 reference."""
    (row,) = _C.measure(
        run.problem,
        run.device,
        EVERY_NUMERICS,
        algorithms=[run.algorithm],
        record=False,
        min_samples=1,
        flush_l2=False,
        levels=False,
    )
    if row["status"] == "ok":
        return Outcome(NOT_SEEN, f"error {row['error']:.1e}" if row["error"] is not None else "")
    if row["status"] == "failed":
        return _outcome_of_error(row["reason"])
    if row["status"] != "rejected":
        return Outcome(CANNOT_RUN, f"{row['status']}: {row['reason']}")
    coupled = _C.problem_info(run.problem)["coupled"]
    tolerance = _C.tolerance(run.problem, row["notes"])
    if coupled or row["error"] is None or not row["error"] < float("inf"):  # nor nan
        return Outcome(WRONG, row["reason"])
    return Outcome(WRONG, f"error {row['error'] / tolerance:.2g}x the tolerance")


def _outcome_of_error(text: str) -> Outcome:
    text = " ".join(text.partition("Exception raised from ")[0].split())[:300]
    if _C.OUT_OF_MEMORY in text or "out of memory" in text:
        return Outcome(CANNOT_RUN, "out of memory")
    lost = ("illegal memory access", "misaligned address", "unspecified launch failure")
    return Outcome(CONTEXT_LOST if any(word in text for word in lost) else FAILED, text)


def _in_margins(run: Run) -> Outcome | None:
    """Writes around the results and into the gaps of strided ones; None if there are none."""
    info = _C.problem_info(run.problem)
    tensors = _C.scratch(run.problem, run.device)
    if info["coupled"] and info["pass_name"] != "fwd":
        tensors |= _left_by_forward(info, run)
    margins = []
    for role, slot in info["slots"].items():
        if slot["output"] and role != "reserve":
            margin = Margin(slot["sizes"], slot["strides"], _dtype(slot["dtype"]), run.device)
            if role in tensors:  # it is added to
                margin.tensor.copy_(tensors[role])
            tensors[role] = margin.tensor
            margins.append((role, margin))
    _C.run(run.problem, run.algorithm, tensors, EVERY_NUMERICS)
    _synchronize(run.device)
    for role, margin in margins:
        if count := margin.changed():
            return Outcome(OUT_OF_BOUNDS, f"{count} elements outside of {role} are written")
    return None


def _left_by_forward(info: _C.ProblemInfo, run: Run) -> dict[str, Tensor]:
    """What a backward reads that only the same algorithm's forward leaves."""
    forward = info["coupled"][0]
    left = _C.run(forward, run.algorithm, _C.scratch(forward, run.device), EVERY_NUMERICS)
    return {
        role: tensor
        for role, tensor in left.items()
        if role in info["slots"] and not info["slots"][role]["output"]
    }


class Margin:
    """A tensor amid a pattern that a correct kernel leaves alone."""

    def __init__(
        self, sizes: list[int], strides: list[int], dtype: torch.dtype, device: str
    ) -> None:
        """Lay out the tensor, with its gaps and both margins filled."""
        margin = _MARGIN_BYTES // dtype.itemsize
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        buffer = torch.empty(extent + 2 * margin, dtype=dtype, device=device)
        self._bytes = buffer.view(torch.uint8).fill_(_PATTERN)
        self._integers = buffer.view(_INTEGERS[dtype.itemsize])
        self._outside = torch.ones(buffer.numel(), dtype=torch.bool, device=device)
        self._outside.as_strided(sizes, strides, margin).fill_(False)
        self.tensor = buffer.as_strided(sizes, strides, margin)

    def changed(self) -> int:
        """How many elements of the pattern are different now."""
        wanted = list(accumulate([_PATTERN] * self._integers.itemsize, lambda a, b: a << 8 | b))[-1]
        return int(((self._integers != wanted) & self._outside).sum())


def _with_inputs(run: Run) -> Outcome:
    """Whether results are finite exactly if those of the float64 reference are."""
    slots = _C.problem_info(run.problem)["slots"]
    tensors = _C.scratch(run.problem, run.device)
    role, _, value = run.inputs.rpartition("=")
    filled = role or next(role for role in ("dy", "x", "y", *tensors) if role in tensors)
    place = _middle(tensors[filled]) if value.startswith(_ONE) else ...
    tensors[filled][place] = _VALUES[value.removeprefix(_ONE)]
    reference = _C.reference(run.problem, tensors)
    results = _C.run(run.problem, run.algorithm, tensors, EVERY_NUMERICS)
    _synchronize(run.device)
    for role, wanted in reference.items():
        if role in _NOT_COMPARED or role not in results or not slots[role]["output"]:
            continue
        differ = int((results[role].isfinite() != wanted.isfinite()).sum())
        if differ:
            return Outcome(
                WRONG, f"{differ} of {wanted.numel()} elements of {role} are {_other(wanted)}"
            )
    return Outcome(NOT_SEEN)


def _middle(tensor: Tensor) -> tuple[int, ...]:
    return tuple(n // 2 for n in tensor.shape)


def _other(wanted: Tensor) -> str:
    return "not finite" if wanted.isfinite().all() else "finite though they must not be"


def _dtype(text: str) -> torch.dtype:
    names = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16}
    return names[text] if text in names else torch.bfloat16


def _synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def main(argument: str) -> None:
    """Print the outcome of a run that is given as JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    fields: dict[str, Any] = json.loads(argument)
    run = Run(**{**fields, "lifted": tuple(fields["lifted"])})
    print(MARK + json.dumps(asdict(reproduce(run))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
