"""Every algorithm of every problem in the table of cases is right, and keeps to its promises."""

import time
from typing import Any

import pytest
import torch
from cases import CASES, LINES, Line
from conftest import CUDA_MARKS, EVERY_NUMERICS, elements_spanned, left_by_forward
from torch import Tensor

from torch_cudnn_ext import _C, Policy
from torch_cudnn_ext._policy_text import check_pin

# A value that random data never takes: memory around the output must still hold it afterwards.
GUARD = -1024.0
GUARD_ELEMENTS = 256
DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "Long": torch.int64,
}


def _line_devices() -> list[Any]:
    """Every problem on the GPU; the small ones on the CPU as well."""
    rows = []
    for line in LINES:
        marks = [pytest.mark.big] if line.size == "big" else []
        if line.size == "small":
            rows.append(pytest.param(line, "cpu", id=f"{line.name}-cpu"))
        rows.append(pytest.param(line, "cuda", id=f"{line.name}-cuda", marks=[*CUDA_MARKS, *marks]))
    return rows


def _fields(problem: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in problem.split()[1:])


class GuardedOutput:
    """An output tensor of a problem inside guarded storage, aligned as the problem says."""

    def __init__(self, slot: dict[str, Any], align: int, device: str, initial: Tensor | None):
        """Fills the output with ``initial``, or with NaN where there is none."""
        sizes, strides = slot["sizes"], slot["strides"]
        reach = elements_spanned(sizes, strides)
        dtype = DTYPES[slot["dtype"]]
        start = GUARD_ELEMENTS + (align // dtype.itemsize if align < 16 else 0)
        shape = (start + reach + GUARD_ELEMENTS,)
        self.storage = torch.full(shape, GUARD, dtype=dtype, device=device)
        self.tensor = self.storage.as_strided(sizes, strides, start)
        inside = torch.zeros(shape, dtype=torch.bool, device=device)
        inside.as_strided(sizes, strides, start).fill_(True)
        self.outside = ~inside
        self.initial = initial
        self.refill()

    def refill(self) -> None:
        """Makes the output what it was before the run."""
        if self.initial is None:
            self.tensor.fill_(torch.nan if self.tensor.is_floating_point() else GUARD)
        else:
            self.tensor.copy_(self.initial)

    def guards_hold(self) -> bool:
        """Whether nothing outside the output was written."""
        return bool((self.storage[self.outside] == GUARD).all())


def relative_error(output: Tensor, reference: Tensor) -> float:
    """In units of the reference's root mean square.

    The larger of the root mean square difference and a twentieth of the largest difference.
    """
    difference = output.double() - reference
    scale = float(reference.square().mean().sqrt())
    error = max(float(difference.square().mean().sqrt()), float(difference.abs().max()) / 20)
    return error / (scale or 1.0)


def _normalises_in_halves(algorithm: str, problem: str, device: str) -> bool:
    """Whether PyTorch rounds the statistics of an instance norm to float16, as 2.15 does on a CPU.

    Its error is six times that of 2.11 if an instance has two values.
    """
    newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) > (2, 11)
    is_instance = problem.startswith("layer_norm_fwd x=f16[") and "kind=instance" in problem
    return newer and is_instance and device == "cpu" and algorithm == "aten:default"


def _adds_windows_in_halves(algorithm: str, problem: str, device: str) -> bool:
    """Whether PyTorch's data gradient falls back to products whose windows it adds in a half type.

    It does on a CPU for whose half types oneDNN has no kernels.
    """
    if device != "cpu" or algorithm != "aten:default" or not problem.startswith("conv_bwd_data"):
        return False
    supported = {
        "f16": torch.ops.mkldnn._is_mkldnn_fp16_supported,
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported,
    }
    dtype = _fields(problem)["x"].partition("[")[0]
    return dtype in supported and not supported[dtype]()


class Runs:
    """The tensors of one problem, and runs of its algorithms on them."""

    def __init__(self, problem: str, device: str) -> None:
        """Makes scratch inputs, the reference, and guarded outputs."""
        self.problem, self.device = problem, device
        info = _C.problem_info(problem)
        self.slots = info["slots"]
        self.align = int(_fields(problem).get("align", 16))
        self.inputs = _C.scratch(problem, device)
        self.reference = _C.reference(problem, self.inputs)
        self.renew()

    def renew(self) -> None:
        """Makes the guarded outputs, in two places."""
        self.outputs, self.outputs_elsewhere = self._guarded(), self._guarded()

    def _guarded(self) -> dict[str, GuardedOutput]:
        """Those that are read first hold what the scratch holds."""
        return {
            role: GuardedOutput(slot, self.align, self.device, self.inputs.get(role))
            for role, slot in self.slots.items()
            if (slot["output"] or slot["mutated"]) and role in self.reference
        }

    def move(self) -> None:
        """Makes the next runs write into the other outputs."""
        self.outputs, self.outputs_elsewhere = self.outputs_elsewhere, self.outputs

    def guards_hold(self) -> bool:
        """Whether nothing outside any output was written."""
        outputs = [*self.outputs.values(), *self.outputs_elsewhere.values()]
        return all(output.guards_hold() for output in outputs)

    def run(
        self, algorithm: str, into_outputs: bool = True, replay: str = "never"
    ) -> dict[str, Tensor]:
        """What an algorithm computes, in new tensors; without outputs to fill, as it came."""
        for output in self.outputs.values():
            output.refill()
        given = {role: output.tensor for role, output in self.outputs.items()}
        bindings = self.inputs | (given if into_outputs else {})
        bindings |= left_by_forward(self.problem, algorithm, self.device)
        results = _C.run(self.problem, algorithm, bindings, EVERY_NUMERICS, replay=replay)
        return {
            role: results[role].clone() if into_outputs else results[role] for role in self.outputs
        }


@pytest.mark.parametrize(("line", "device"), _line_devices())
def test_every_algorithm_is_right(line: Line, device: str) -> None:
    problem = line.problem
    candidates = _C.candidates(problem, device, EVERY_NUMERICS, remember=True)
    supported = [candidate for candidate in candidates if candidate["status"] == "ok"]
    refused = {candidate["algorithm"]: candidate["reason"] for candidate in candidates}
    if _fields(problem).get("compute") == "f16" and device == "cpu":
        assert not supported, "nothing on the CPU sums in float16"
        return
    assert supported, f"{problem}: no algorithm at all: {refused}"

    runs = Runs(problem, device)
    failures = []
    for candidate in supported:
        algorithm = candidate["algorithm"]
        try:
            results = runs.run(algorithm)
        except (RuntimeError, ValueError) as error:
            failures.append(f"{algorithm}: raised {error}")
            continue
        notes = candidate["notes"]
        if _adds_windows_in_halves(algorithm, problem, device):
            notes = [*notes, "down_convert"]
        tolerance = _C.tolerance(problem, notes)
        if _normalises_in_halves(algorithm, problem, device):
            tolerance *= 2
        for role, result in results.items():
            if not bool(result.isfinite().all()):
                failures.append(f"{algorithm}: {role} is not finite, or not entirely written")
                continue
            off = relative_error(result, runs.reference[role])
            if not off <= tolerance:
                failures.append(
                    f"{algorithm}: relative error {off:.3g} of {role}, > {tolerance:.3g}"
                )
            if not torch.equal(result, runs.outputs[role].tensor):
                failures.append(f"{algorithm}: {role} is not in the output that was given")
        # By its kernels one by one, there and elsewhere, and by a graph that is recorded, and then
        # is there.
        for replay, elsewhere in (
            ("kernels_at_once", False),
            ("kernels_at_once", True),
            ("graphs_at_once", False),
            ("graphs_at_once", False),
        ):
            if elsewhere:
                runs.move()
            again = runs.run(algorithm, replay=replay)
            if candidate["deterministic"]:
                if not all(torch.equal(results[role], again[role]) for role in results):
                    failures.append(f"{algorithm}: claims to be deterministic, and two runs differ")
                continue
            for role, result in again.items():
                if not relative_error(result, runs.reference[role]) <= tolerance:
                    failures.append(f"{algorithm}: {role} is wrong when it runs again")
        if not runs.guards_hold():
            failures.append(f"{algorithm}: wrote outside of its outputs")
            runs.renew()
    assert not failures, "\n".join([f"{problem} on {device}:", *failures])


def test_every_result_is_checked_when_it_is_timed(device: str) -> None:
    first = {}  # of each operator and pass, and of the kinds that differ in their formulas
    for line in LINES:
        fields = _fields(line.problem)
        kind = (line.problem.split()[0], fields.get("kind"), fields.get("means"))
        if line.size == "small" and fields.get("compute") != "f16":
            first.setdefault(kind, line.problem)
    assert len(first) > 30
    for problem in first.values():
        if problem.startswith("dropout"):  # any mask is as good as any other
            continue
        rows = _C.measure(problem, device, EVERY_NUMERICS, record=False, time_budget_s=1)
        checked = [row for row in rows if row["status"] in ("ok", "rejected")]
        assert checked, problem
        assert all(row["error"] is not None for row in checked), problem


def test_every_algorithm_that_is_offered_can_be_pinned() -> None:
    for line in LINES:
        if line.size != "small":
            continue
        info = _C.problem_info(line.problem)
        family, name = info["family"], info["pass_name"]
        for row in _C.candidates(line.problem, "cpu", EVERY_NUMERICS):
            if row["status"] == "ok":
                check_pin(Policy(family=family, **{name: row["algorithm"]}).text, family, name)


def test_no_result_shares_memory_with_an_input() -> None:
    shared = []
    for line in LINES:
        if line.size != "small":
            continue
        runs = Runs(line.problem, "cpu")
        inputs = {tensor.untyped_storage().data_ptr() for tensor in runs.inputs.values()}
        for row in _C.candidates(line.problem, "cpu", EVERY_NUMERICS):
            if row["status"] != "ok":
                continue
            results = runs.run(row["algorithm"], into_outputs=False)
            written = [role for role, slot in runs.slots.items() if slot["mutated"]]
            shared += [
                f"{line.problem}: {role} of {row['algorithm']}"
                for role, result in results.items()
                if role not in runs.inputs.keys() | written
                and result.untyped_storage().data_ptr() in inputs
            ]
    assert not shared, "\n".join(shared)


def test_scratch_is_what_the_problem_says(device: str) -> None:
    for line in LINES:
        if line.size != "small":
            continue
        slots = _C.problem_info(line.problem)["slots"]
        tensors = _C.scratch(line.problem, device)
        align = int(_fields(line.problem).get("align", 16))
        for role, tensor in tensors.items():
            assert list(tensor.shape) == list(slots[role]["sizes"]), (line.name, role)
            for size, got, wanted in zip(
                tensor.shape, tensor.stride(), slots[role]["strides"], strict=True
            ):
                assert size == 1 or got == wanted, (line.name, role)
            assert tensor.data_ptr() % align == 0, (line.name, role)
        if align < 16:
            pointers = [tensor.data_ptr() for tensor in tensors.values()]
            assert any(pointer % (2 * align) for pointer in pointers), line.name


def test_products_of_matrices_are_offered_where_windows_do_not_overlap(device: str) -> None:
    def status(case: str, op: str) -> tuple[str, str]:
        line = next(c for c in CASES if c.name == case).problem(op)
        rows = _C.candidates(line, device, EVERY_NUMERICS)
        return next(
            (row["status"], row["reason"])
            for row in rows
            if row["algorithm"].startswith("aten:matmul")
        )

    for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"):
        for case in (
            "1x1-f32-nchw",
            "1x1_stride32-f64-nhwc",
            "patches-bf16-nhwc",
            "patches_rest-f32-nchw",
            "patches_dilated-f16-nhwc",
            "patches_planes-f16-nhwc",
            "one_window-f32-nhwc",
        ):
            assert status(case, op) == ("ok", ""), case
        for case in (
            "3x3-f32-nchw",
            "1x1_padded-f32-nchw",
            "groups2_1x1-f32-nchw",
            "patches_true-f32-nchw",
        ):
            found, reason = status(case, op)
            assert found == "unsupported" and "do not overlap" in reason, case


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("conv_fwd x=f32[2,8,9,8]:nchw w=f32[8,8,3,3]:nchw stride=2 bias=f32", True),
        ("conv_bwd_filter x=f64[2,8,9]:nchw w=f64[8,8,3]:nchw pad=1 mode=conv", True),
        ("conv_fwd x=f32[2,8,9,8]:nhwc w=f32[8,8,1,1]:nhwc pad=1", True),
        ("conv_fwd x=f16[2,8,9,8]:nchw w=f16[8,8,3,3]:nchw", False),
        ("conv_fwd x=f32[2,8,9,8]:nchw w=f32[8,4,3,3]:nchw groups=2", False),
        ("conv_fwd x=f32[2,8,9,8]:nchw w=f32[8,8,1,1]:nchw", False),  # aten:matmul
        ("conv_fwd x=f32[32,64,224,224]:nchw w=f32[64,64,3,3]:nchw pad=1", False),  # 3.7 GB
        (
            "conv_fwd x=f32[1,1,2,2]:nchw w=f32[1,1,1,1]:nchw pad=10000 stride=10000",
            False,
        ),
    ],
)
def test_copied_windows_are_offered_where_they_may_pay(
    line: str, offered: bool, device: str
) -> None:
    rows = _C.candidates(line, device, EVERY_NUMERICS)
    found = [row for row in rows if row["algorithm"].startswith("aten:im2col")]
    assert [row["status"] for row in found] == ["ok" if offered else "unsupported"]
    assert ("at most 1 GiB" in found[0]["reason"]) == (not offered)


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_filter"])
def test_images_are_offered_folded(op: str, device: str) -> None:
    def row(line: str) -> dict[str, Any]:
        rows = _C.candidates(f"{op} {line}", device, EVERY_NUMERICS)
        return next(row for row in rows if row["algorithm"] == "aten:folded")

    def status(line: str) -> str:
        found = row(line)
        assert (found["status"] == "unsupported") == ("1 to 4 channels" in found["reason"])
        return str(found["status"])

    x, w = "x=f16[2,3,9,8]:nhwc", "w=f16[8,3,5,5]:nhwc"
    assert status(f"{x} {w} pad=2") == "ok"
    assert status("x=f32[2,1,4,9,8]:nhwc w=f32[8,1,1,5,3]:nhwc") == "ok"
    if op == "conv_fwd":
        assert status(f"{x} {w} pad=2 bias=f16") == "ok"
    # Where PyTorch's convolutions may be wrong.
    bfloat16 = row(f"{x} {w} pad=2".replace("f16", "bf16"))
    assert bfloat16["status"] == ("unsupported" if device == "cpu" else "ok")
    for line in (
        "x=f16[2,5,9,8]:nhwc w=f16[8,5,5,5]:nhwc",
        "x=f16[2,3,9,8]:nhwc w=f16[8,3,5,1]:nhwc",
        "x=f16[2,3,9,8]:nchw w=f16[8,3,5,5]:nchw",
        "x=f16[2,3,9]:nhwc w=f16[8,3,5]:nhwc",
        "x=f64[2,3,9,8]:nhwc w=f64[8,3,5,5]:nhwc",
        "x=f16[2,4,9,8]:nhwc w=f16[8,2,5,5]:nhwc groups=2",
        f"{x} {w} pad=2 dilation=1,2",
        f"{x} {w} mode=conv",
    ):
        assert status(line) == "unsupported", line


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        ("x=f16[2,3,9,8]:nhwc w=f16[8,3,5,5]:nhwc pad=2", [2, 3, 4]),
        ("x=f64[2,3,9,8]:nchw w=f64[8,3,5,5]:nchw stride=2 mode=conv", [2, 4]),
        ("x=f32[2,2,9,8]:nchw w=f32[8,2,5,5]:nchw stride=1,2", [2, 4]),
        ("x=f32[2,1,9]:nchw w=f32[8,1,3]:nchw stride=4", [4, 8, 12, 16]),
        ("x=f32[2,8,4,4,4]:nhwc w=f32[8,8,3,3,3]:nhwc", [2]),
        ("x=f32[2,16,4,4]:nhwc w=f32[8,16,3,3]:nhwc stride=2", [2]),
        ("x=f32[2,17,4,4]:nhwc w=f32[8,17,3,3]:nhwc stride=2", []),
        ("x=f32[2,3,9,8]:nchw w=f32[8,3,3,3]:nchw dilation=1,2", []),
        ("x=f32[2,9,9,8]:nchw w=f32[6,3,5,5]:nchw groups=3", [1]),
        ("x=f32[2,9,9,8]:nchw w=f32[9,1,5,5]:nchw stride=2 groups=9", [2]),
        ("x=f32[2,9,9,8]:nhwc w=f32[6,3,5,5]:nhwc stride=1,2 groups=3", [2]),
        ("x=f32[2,9,9,8]:nchw w=f32[9,1,5,5]:nchw stride=2,3 groups=9", []),
        ("x=f32[2,130,3,3]:nchw w=f32[2,65,3,3]:nchw groups=2", [1]),
        ("x=f32[2,34,4,4]:nchw w=f32[2,17,3,3]:nchw stride=2 groups=2", []),
    ],
)
def test_data_gradients_are_offered_turned(line: str, blocks: list[int], device: str) -> None:
    problem = f"conv_bwd_data {line}"
    rows = _C.candidates(problem, device, EVERY_NUMERICS)
    turned = {r["algorithm"]: r for r in rows if r["algorithm"].startswith("aten:turned")}
    assert list(turned) == [f"aten:turned/block={block}" for block in blocks]
    for row in turned.values():
        assert row["status"] == "ok" and "nondeterministic" not in row["notes"]
    with pytest.raises(RuntimeError, match="at most 64 channels of a group in a block"):
        _C.decide(problem, device, "aten:turned/block=5")


def test_turned_gradients_are_refused_in_bfloat16_on_the_cpu(device: str) -> None:
    line = "conv_bwd_data x=bf16[2,2,9]:nhwc w=bf16[8,2,7]:nhwc pad=2"
    rows = {r["algorithm"]: r for r in _C.candidates(line, device)}
    assert rows["aten:turned/block=2"]["status"] == ("unsupported" if device == "cpu" else "ok")


@pytest.mark.parametrize("stride", [2**20 + 1, 2**40])
def test_blocks_of_huge_strides_are_not_searched_for(stride: int, device: str) -> None:
    start = time.perf_counter()
    _C.candidates(f"conv_bwd_data x=f32[1,65,100]:nchw w=f32[1,65,3]:nchw stride={stride}", device)
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    ("line", "corrupts"),
    [
        ("x=f32[2,16,3,3,3]:nchw w=f32[12,16,5,5,5]:nchw pad=4,2,2 stride=3", True),
        ("x=f32[2,16,7,3,3]:nchw w=f32[16,16,7,3,3]:nchw pad=3,0,0 stride=2,1,1", True),
        ("x=f32[2,3,7,9,9]:nhwc w=f32[16,3,7,3,3]:nhwc pad=3,1,1 stride=2,1,1", True),
        ("x=f32[2,16,3,3,3]:nchw w=f32[12,16,5,5,5]:nchw pad=4,2,2 stride=1", False),
        ("x=f32[2,16,8,3,3]:nchw w=f32[16,16,7,3,3]:nchw pad=3,0,0 stride=2,1,1", False),
        ("x=f32[2,16,7,3,3]:nchw w=f32[16,16,7,3,3]:nchw pad=0 stride=2,1,1", False),
    ],
)
def test_heap_is_kept_from_pytorch_s_filter_gradients(
    line: str, corrupts: bool, device: str
) -> None:
    problem = f"conv_bwd_filter {line}"
    wanted = "unsupported" if corrupts and device == "cpu" else "ok"
    rows = {r["algorithm"]: r for r in _C.candidates(problem, device)}
    assert rows["aten:default"]["status"] == wanted
    assert ("out of bounds" in rows["aten:folded"]["reason"]) == (wanted == "unsupported")
    if wanted == "unsupported":
        measured = _C.measure(problem, device, min_samples=1, record=False)
        assert [row for row in measured if row["status"] == "ok"]
    data = _C.candidates(f"conv_bwd_data {line}", device)
    assert {r["algorithm"]: r for r in data}["aten:default"]["status"] == "ok"


@pytest.mark.parametrize(
    ("x", "w", "refused"),
    [
        ("f16[2,6,37]", "f16[6,1,15]", True),
        ("f16[2,6,14,37]", "f16[6,1,3,15]", True),
        ("f32[2,6,37]", "f32[6,1,15]", False),
        ("f16[2,6,37]", "f16[6,1,14]", False),
        ("f16[2,17,37]", "f16[17,1,15]", False),
        ("f16[2,6,37]", "f16[6,6,15]", False),
    ],
)
def test_pytorchs_endless_convolution_on_the_cpu_is_refused(x: str, w: str, refused: bool) -> None:
    groups = 1 if w == "f16[6,6,15]" else int(w[4:].split(",")[0])
    problem = f"conv_fwd x={x}:nchw w={w}:nchw pad=0 groups={groups}"
    rows = {row["algorithm"]: row for row in _C.candidates(problem, "cpu")}
    assert ("may never end" in rows["aten:default"]["reason"]) == refused


@pytest.mark.parametrize(
    ("dtype", "op", "fields", "refused"),
    [
        ("bf16", "conv_fwd", "stride=1,3", True),
        ("bf16", "conv_bwd_filter", "stride=1,3", True),
        ("bf16", "conv_bwd_data", "stride=1,3", False),
        ("f16", "conv_fwd", "stride=1,3", False),
        ("bf16", "conv_fwd", "stride=1,2", False),  # two columns
        ("bf16", "conv_fwd", "stride=3,1", False),
    ],
)
def test_what_pytorch_leaves_unwritten_on_the_cpu_is_refused(
    dtype: str, op: str, fields: str, refused: bool
) -> None:
    problem = f"{op} x={dtype}[1,2,3,4]:nhwc w={dtype}[10,1,2,2]:nchw pad=0 {fields} groups=2"
    rows = {row["algorithm"]: row for row in _C.candidates(problem, "cpu")}
    assert ("unwritten" in rows["aten:default"]["reason"]) == refused
    assert rows["cpu:im2col"]["status"] == "ok"


@pytest.mark.parametrize(
    ("problem", "refused"),
    [
        ("conv_fwd x=bf16[1,3,1,8,8]:nchw w=bf16[8,3,3,3,3]:nchw pad=1", True),
        ("conv_fwd x=f16[1,3,1,8,8]:nchw w=f16[8,3,3,3,3]:nchw pad=1", False),
        ("conv_fwd x=bf16[1,3,2,8,8]:nchw w=bf16[8,3,3,3,3]:nchw pad=1", False),
        ("conv_bwd_filter x=bf16[1,1,1]:nchw w=bf16[1,1,3]:nchw pad=2 stride=2", True),
        ("conv_bwd_filter x=bf16[1,1,2]:nchw w=bf16[1,1,3]:nchw pad=2 stride=2", False),
        ("conv_bwd_filter x=f32[1,1,1]:nchw w=f32[1,1,3]:nchw pad=2 stride=2", False),
        (
            "conv_bwd_filter x=bf16[1,3,2,1,3]:nhwc w=bf16[3,1,1,3,5]:nhwc pad=0,1,2 stride=1,3,1 "
            "dilation=2,1,1 groups=3",
            True,
        ),
    ],
)
def test_what_pytorch_leaves_unwritten_in_flat_and_narrow_images(
    problem: str, refused: bool
) -> None:
    rows = {row["algorithm"]: row for row in _C.candidates(problem, "cpu")}
    assert ("unwritten" in rows["aten:default"]["reason"]) == refused
    assert rows["cpu:im2col"]["status"] == "ok"


@pytest.mark.parametrize(
    ("dtype", "bias", "refused"),
    [("f32", "bias=f32", True), ("f32", "", False), ("f64", "bias=f64", False), ("f16", "", True)],
)
def test_windows_outside_of_the_image_are_not_pytorchs_on_the_cpu(
    dtype: str, bias: str, refused: bool
) -> None:
    problem = f"conv_fwd x={dtype}[2,8,8,1]:nhwc w={dtype}[2,8,3,1]:nhwc pad=2 stride=3 dilation=2"
    rows = {row["algorithm"]: row for row in _C.candidates(f"{problem} {bias}", "cpu")}
    assert ("outside of the image" in rows["aten:default"]["reason"]) == refused
    assert rows["cpu:im2col"]["status"] == "ok"


def test_sizes_that_no_memory_has_are_listed_at_once_and_admitted_by_no_cap() -> None:
    line = "pool_fwd x=f32[1,3,1099511627776,7,6]:nchw window=3,2,3 pad=1,0,1 stride=2,1,2"
    listing = {row["algorithm"]: row for row in _C.candidates(f"{line} mode=max train=true", "cpu")}
    assert listing["aten:default"]["status"] == "ok"
    line = (
        "conv_bwd_data x=bf16[15,32,65535,12]:nchw w=bf16[128,1,1099511627776,3]:nchw "
        "pad=549755813888,1 stride=2,4 groups=32"
    )
    listing = {row["algorithm"]: row for row in _C.candidates(line, "cpu")}
    assert listing["cpu:im2col"]["workspace_bytes"] == 2**63 - 1
    line = "conv_fwd x=f16[1,1,8]:nchw w=f16[1,1,1]:nchw pad=549755813888"
    listing = {row["algorithm"]: row for row in _C.candidates(line, "cpu")}
    assert listing["aten:default"]["status"] == "ok"


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize(
    ("window", "fields", "refused"),
    [
        ("3,1", "pad=1 stride=37,3", True),
        ("3,2", "pad=1,2 stride=1,3", True),
        ("3,1", "pad=1 stride=37,1", False),
        ("3,3", "pad=2 stride=3", False),
        ("3,2", "pad=1,2 stride=1,3 dilation=1,2", False),
    ],
)
def test_windows_that_begin_in_the_padding_alone_are_not_pytorchs_on_the_cpu(
    dtype: str, window: str, fields: str, refused: bool
) -> None:
    line = f"x={dtype}[1,16,40,21]:nchw w={dtype}[16,16,{window}]:nchw {fields}"
    for op in ("conv_fwd", "conv_bwd_data"):
        rows = {row["algorithm"]: row for row in _C.candidates(f"{op} {line}", "cpu")}
        told = "lies in the padding alone" in rows["aten:default"]["reason"]
        assert told == (refused and dtype == "bf16")
        assert rows["cpu:im2col"]["status"] == "ok"


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("conv_fwd x=f32[2,1,7,3]:nhwc w=f32[2,1,3,3]:nhwc pad=0 stride=1,4", "aten:default"),
        (
            "conv_fwd x=f32[2,1,6,5,5]:nhwc w=f32[2,1,1,4,2]:nhwc pad=0,1,0 stride=3,1,4",
            "aten:default",
        ),
        (
            "conv_bwd_data x=f32[2,3,7,4]:nhwc w=f32[1,3,3,3]:nhwc pad=1 stride=4,1",
            "aten:turned/block=4",
        ),
        ("conv_fwd x=f32[2,1,7,3]:nhwc w=f32[2,1,3,3]:nhwc pad=0 stride=4,1", ""),
        ("conv_fwd x=f32[2,1,7,7]:nhwc w=f32[2,1,3,3]:nhwc pad=0 stride=1,4", ""),
        ("conv_fwd x=f32[2,2,7,3]:nhwc w=f32[2,2,3,3]:nhwc pad=0 stride=1,4", ""),
        ("conv_fwd x=f64[2,1,7,3]:nhwc w=f64[2,1,3,3]:nhwc pad=0 stride=1,4", ""),
    ],
)
def test_images_of_one_channel_are_read_inside(line: str, refused: str, device: str) -> None:
    rows = {row["algorithm"]: row for row in _C.candidates(line, device)}
    outside = [name for name, row in rows.items() if "may read out of bounds" in row["reason"]]
    assert (refused in outside) == (bool(refused) and device == "cpu")
    measured = _C.measure(line, device, EVERY_NUMERICS, min_samples=1, record=False)
    statuses = {r["algorithm"]: r["status"] for r in measured if r["algorithm"].startswith("aten")}
    assert set(statuses.values()) <= {"ok", "unsupported"}, statuses
    assert [row for row in measured if row["status"] == "ok"]


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("x=f32[3,3,8,5]:nhwc w=f32[2,3,1,1]:nhwc pad=0 stride=2,1", "aten:default"),
        ("x=f32[3,4,5,8,5]:nchw w=f32[2,4,1,1,1]:nchw pad=0 stride=1,2,1", "aten:default"),
        ("x=f32[3,3,8,5]:nhwc w=f32[2,3,1,3]:nhwc pad=0 stride=2,3", "aten:folded"),
        ("x=f32[3,3,8,5]:nhwc w=f32[2,3,1,1]:nhwc pad=0 stride=2", ""),
        ("x=f64[3,3,8,5]:nhwc w=f64[2,3,1,1]:nhwc pad=0 stride=2,1", ""),
    ],
)
def test_filter_gradients_of_left_out_rows_write_inside(
    line: str, refused: str, device: str
) -> None:
    rows = _C.candidates(f"conv_bwd_filter {line}", device)
    outside = [row["algorithm"] for row in rows if "row stride above 1" in row["reason"]]
    assert bool(outside) == (refused in outside) == (bool(refused) and device == "cpu")
    measured = _C.measure(f"conv_bwd_filter {line}", device, EVERY_NUMERICS, min_samples=1)
    assert [row for row in measured if row["status"] == "ok"]


@pytest.mark.parametrize(
    "problem",
    [
        "conv_fwd x=f32[1,158,1,1]:nchw w=f32[1,158,1,1]:nchw pad=0 bias=f32",
        "layer_norm_fwd x=f32[1,63,3]:nchw kind=group groups=1",  # its mean
    ],
)
def test_one_number_may_be_close_to_zero(problem: str) -> None:
    rows = _C.measure(problem, "cpu", EVERY_NUMERICS, min_samples=1, record=False)
    assert {row["status"] for row in rows if row["algorithm"].startswith("cpu")} == {"ok"}
    assert max(row["error"] or 0 for row in rows) > _C.tolerance(problem, [])


def test_problem_lines_are_canonical_and_distinct() -> None:
    seen: dict[str, str] = {}
    for line in LINES:
        canonical = _C.canonical_problem(line.problem)
        assert _C.canonical_problem(canonical) == canonical
        assert canonical not in seen, f"{line.name} is {seen[canonical]}"
        seen[canonical] = line.name
