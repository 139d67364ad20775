"""What only a GPU can show: kernels behind pins, memory, CUDA graphs and streams."""

import gc
import re
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cases import CASES, PASSES, Case
from conftest import (
    CUDA_MARKS,
    EVERY_NUMERICS,
    left_by_forward,
    made_again,
    newest,
    refused_capture,
)
from torch import Tensor
from torch.autograd import DeviceType

from torch_cudnn_ext import _C, enabled, knobs, ops, tuning
from torch_cudnn_ext.analysis.roofline import measured_peaks
from torch_cudnn_ext.bench.modules import Case as ModuleCase
from torch_cudnn_ext.bench.modules import compare_modules

pytestmark = [*CUDA_MARKS]

OPS = torch.ops.torch_cudnn_ext
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


F32_NCHW = _case("resnet_3x3_56-f32-nchw")
F16_NHWC = _case("resnet_3x3_56-f16-nhwc")
# Sums of 576 products of standard normal numbers, with 10 bits of each factor.
TF32_ATOL = 0.2


def _leaves(case: Case) -> tuple[Tensor, Tensor]:
    last = torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
    x, w = (
        torch.randn(sizes, device="cuda", dtype=DTYPES[case.dtype]).to(memory_format=last)
        for sizes in (case.x, case.w)
    )
    return x.requires_grad_(), w.requires_grad_()


def _conv(case: Case, x: Tensor, w: Tensor, policy: str | None = None) -> Tensor:
    y: Tensor = OPS.conv2d.default(
        x, w, None, case.stride, case.padding, case.dilation, case.groups, policy=policy
    )
    return y


# A pin is obeyed: kernel names.

# What the names of the kernels that an algorithm launches look like: at least one must match.
KERNELS = {
    "fft": "fft|cgemm",
    "fft_tiling": "fft|cgemm",
    "winograd_nonfused": "winograd|wino",
    "gemm": "im2col|gemm|grouped_direct",
    "implicit_gemm": "implicit|convolve|fprop|xmma|cutlass|cudnn",
    "implicit_precomp_gemm": "implicit|convolve|fprop|xmma|cutlass|cudnn",
    "algo_0": "dgrad|wgrad|xmma|cutlass|cudnn",
    "algo_1": "dgrad|wgrad|xmma|cutlass|cudnn",
    "algo_3": "wgrad|xmma|cutlass|cudnn",
}
NUMBERS = {
    "conv_fwd": (0, 1, 2, 4, 5, 7),
    "conv_bwd_data": (0, 1, 2, 3, 5),
    "conv_bwd_filter": (0, 1, 2, 3, 5),
}


def _kernels(problem: str, algorithm: str) -> tuple[str, ...]:
    """Names of the kernels of one run, in order."""
    tensors = _C.scratch(problem, "cuda")
    policy = "allow_tf32;allow_down_convert"
    _C.run(problem, algorithm, tensors, policy)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        _C.run(problem, algorithm, tensors, policy)
        torch.cuda.synchronize()
    events = [
        event
        for event in profile.events()
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Memset", "Memcpy"))
    ]
    return tuple(event.name for event in sorted(events, key=lambda e: e.time_range.start))


def test_a_common_layer_has_the_algorithms_that_it_should() -> None:
    knobs.allow_reduced_range = True

    def names(problem: str, backend: str) -> set[str]:
        return {
            candidate["algorithm"]
            for candidate in _C.candidates(problem, "cuda", "allow_tf32;allow_down_convert")
            if candidate["status"] == "ok" and candidate["backend"] == backend
        }

    legacy = names(F32_NCHW.problem("conv_fwd"), "legacy")
    wanted = {_C.canonical_algorithm(str(n), "conv_fwd") for n in NUMBERS["conv_fwd"]}
    assert wanted <= {name.split("/")[0] for name in legacy}
    graph = names(F16_NHWC.problem("conv_fwd"), "graph")
    assert len({name.split("/")[0] for name in graph}) >= 16


@pytest.mark.parametrize("op", PASSES)
def test_legacy_pins_launch_their_own_kernels(op: str) -> None:
    knobs.allow_reduced_range = True
    problem = F32_NCHW.problem(op)
    supported = {
        candidate["algorithm"]
        for candidate in _C.candidates(problem, "cuda")
        if candidate["status"] == "ok"
    }
    seen: dict[str, tuple[str, ...]] = {}
    failures = []
    for number in NUMBERS[op]:
        name = _C.canonical_algorithm(str(number), op).split("/")[0]
        algorithms = sorted(a for a in supported if a.split("/")[0] == name)
        if not algorithms:
            failures.append(f"{name} (algorithm {number}) is not supported")
            continue
        fma = [a for a in algorithms if a.endswith("math=fma")]
        kernels = _kernels(problem, (fma or algorithms)[0])
        seen[name] = kernels
        pattern = KERNELS[name.removeprefix("legacy:")]
        if not any(re.search(pattern, kernel, re.IGNORECASE) for kernel in kernels):
            failures.append(f"{name} ran {kernels}, none of which matches {pattern!r}")
    for name, kernels in seen.items():
        same = [
            other
            for other in seen
            if other < name
            and seen[other] == kernels
            # cuDNN 9 answers both of these atomic algorithms with one kernel.
            and (other, name) != ("legacy:algo_0", "legacy:algo_3")
        ]
        failures += [f"{name} and {other} both ran {kernels}" for other in same]
    for name, kernels in seen.items():
        for word, pattern in (("fft", "fft"), ("winograd", "wino")):
            if word not in name and any(re.search(pattern, k, re.IGNORECASE) for k in kernels):
                failures.append(f"{name} ran {kernels}")
    assert not failures, "\n".join([problem, *failures])


@pytest.mark.parametrize("op", PASSES)
def test_engine_pins_launch_their_own_kernels(op: str) -> None:
    problem = F16_NHWC.problem(op)
    engines: dict[str, str] = {}
    for candidate in _C.candidates(problem, "cuda", "backends=graph"):
        if candidate["status"] == "ok":
            engines.setdefault(candidate["algorithm"].split("/")[0], candidate["algorithm"])
    assert len(engines) >= 6
    chosen = list(engines.values())[:: max(1, len(engines) // 6)][:6]
    kernels = {algorithm: _kernels(problem, algorithm) for algorithm in chosen}
    assert all(kernels.values()), kernels
    # Two engines may hold one kernel between them; most must not.
    assert len(set(kernels.values())) >= 4, kernels


def test_pins_reach_the_kernels_through_the_operator() -> None:
    x, w = _leaves(F32_NCHW)
    pins = "fwd=legacy:fft_tiling;bwd_data=legacy:winograd_nonfused;bwd_filter=legacy:fft"
    pins += ";allow_reduced_range"
    y = _conv(F32_NCHW, x, w, pins)
    y.sum().backward()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        y = _conv(F32_NCHW, x, w, pins)
        torch.cuda.synchronize()
    names = " ".join(event.name for event in profile.events())
    assert re.search("fft", names, re.IGNORECASE), names
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        y.sum().backward()
        torch.cuda.synchronize()
    names = " ".join(event.name for event in profile.events())
    assert re.search("wino", names, re.IGNORECASE), names
    assert re.search("fft", names, re.IGNORECASE), names
    for pass_name, name in (("bwd_data", "winograd_nonfused"), ("bwd_filter", "fft")):
        assert newest(f"conv_{pass_name}").algorithm.startswith(f"legacy:{name}")


def test_repinning_a_seen_shape_takes_effect() -> None:
    x, w = _leaves(F32_NCHW)
    pins = ("legacy:implicit_gemm", "legacy:fft_tiling", "legacy:winograd_nonfused")
    expected = F.conv2d(x.double(), w.double(), padding=1)
    for _ in range(2):
        for pin in pins:
            _C.set_knobs(f"fwd={pin};allow_reduced_range", False)
            with torch.no_grad():
                y = _conv(F32_NCHW, x, w)
            assert newest("conv_fwd").algorithm.split("/")[0] == pin
            torch.testing.assert_close(y.double(), expected, rtol=1e-3, atol=1e-2)
    _C.set_knobs("", False)
    with torch.no_grad():
        _conv(F32_NCHW, x, w)
    assert newest("conv_fwd").why != "pinned"


# Memory.


def _peak_beyond(output_bytes: int, call: Callable[[], object]) -> int:
    """Bytes that a call asked the allocator for at its peak, beyond its output."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    kept = call()
    torch.cuda.synchronize()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
    del kept
    return int(peak - before - output_bytes)


def _tensors_of(case: Case, op: str) -> tuple[tuple[Tensor, ...], int]:
    x, w = (leaf.detach() for leaf in _leaves(case))
    last = torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
    y = torch.randn(case.y, device="cuda", dtype=x.dtype).to(memory_format=last)
    operands, output = {
        "conv_fwd": ((x, w), y),
        "conv_bwd_data": ((y, w), x),
        "conv_bwd_filter": ((y, x), w),
    }[op]
    return operands, output.nbytes


def _primitive(case: Case, op: str, operands: tuple[Tensor, ...], policy: str) -> Tensor:
    options = (case.stride, case.padding, case.dilation)
    result: Tensor
    if op == "conv_fwd":
        result = OPS.convolution.default(
            *operands, None, *options, False, [0, 0], case.groups, policy=policy
        )
    elif op == "conv_bwd_data":
        result = OPS.convolution_backward_input.default(
            *operands, case.x, *options, case.groups, policy=policy
        )
    else:
        result = OPS.convolution_backward_weight.default(
            *operands, case.w, *options, case.groups, policy=policy
        )
    return result


MEMORY_CASES = (
    F32_NCHW,
    F16_NHWC,
    _case("resnet_3x3_56-bf16-nchw"),
    _case("alexnet_5x5-f32-nchw"),
    _case("mobilenet_dw-f32-nchw"),
)


@pytest.mark.parametrize("how", ["heuristic", "autotune"])
@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("case", MEMORY_CASES, ids=lambda case: case.name)
def test_a_cap_of_no_workspace_is_never_exceeded(case: Case, op: str, how: str) -> None:
    operands, output_bytes = _tensors_of(case, op)
    policy = f"{how};max_workspace=0"
    _primitive(case, op, operands, policy)  # chooses, on scratch memory
    beyond = _peak_beyond(output_bytes, lambda: _primitive(case, op, operands, policy))
    choice = newest(op)
    assert beyond == 0, f"{choice.algorithm} took {beyond} bytes"
    assert choice.workspace_bytes == 0


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("case", MEMORY_CASES[:2], ids=lambda case: case.name)
def test_stated_workspaces_are_what_is_taken(case: Case, op: str) -> None:
    problem = case.problem(op)
    operands, output_bytes = _tensors_of(case, op)
    failures = []
    for candidate in _C.candidates(problem, "cuda", "backends=cudnn"):
        stated = candidate["workspace_bytes"]
        if candidate["status"] != "ok" or stated is None:
            continue
        policy = f"{op.removeprefix('conv_')}={candidate['algorithm']}"
        _primitive(case, op, operands, policy)
        beyond = _peak_beyond(output_bytes, partial(_primitive, case, op, operands, policy))
        if beyond > stated:
            failures.append(f"{candidate['algorithm']}: stated {stated}, took {beyond}")
    assert not failures, "\n".join([problem, *failures])


@pytest.mark.parametrize(
    "problem",
    [
        "layer_norm_bwd x=f16[8,256,784]:nchw kind=group groups=32 w=f16 bias=f16",
        "layer_norm_bwd x=f32[8,256,784]:nchw kind=group groups=32 w=f32",
        "rnn_bwd cell=lstm x=f16[6,4,256]:nchw hidden=256 layers=2 bias=single",
        "rnn_bwd cell=lstm x=f16[6,4,256]:nchw hidden=256 layers=1 bias=none",
        "lrn_fwd x=bf16[8,64,784]:nchw kind=cross_channel size=5",
        "lrn_bwd x=bf16[8,64,28,28]:nchw kind=divisive size=5",
    ],
    ids=["group_norm-f16", "group_norm-f32", "rnn-single", "rnn-none", "lrn-bf16", "divisive-bf16"],
)
def test_stated_workspaces_hold_what_plans_make_beside_cudnn(problem: str) -> None:
    knobs.allow_reduced_range = True
    inputs = _C.scratch(problem, "cuda")
    failures, stated_of = [], {}
    for candidate in _C.candidates(problem, "cuda", "backends=cudnn"):
        algorithm, stated = candidate["algorithm"], candidate["workspace_bytes"]
        if candidate["status"] != "ok":
            continue
        assert stated is not None
        left = left_by_forward(problem, algorithm, "cuda")
        run = partial(_C.run, problem, algorithm, inputs | left)
        output_bytes = sum(result.nbytes for result in run().values())
        beyond = _peak_beyond(output_bytes, run)
        stated_of[algorithm] = stated
        if beyond > stated + 2**16:  # vectors of a number a channel
            failures.append(f"{algorithm}: stated {stated}, took {beyond}")
    assert stated_of
    assert not failures, "\n".join([problem, *failures])


def test_a_pin_above_the_cap_is_refused() -> None:
    x, w = _leaves(F32_NCHW)
    with pytest.raises((RuntimeError, ValueError), match="max_workspace"):
        _conv(F32_NCHW, x, w, "fwd=legacy:fft;max_workspace=0")


@pytest.fixture
def little_memory() -> Iterator[Callable[[int], None]]:
    """``little_memory(n)`` leaves ``n`` bytes of the GPU to whoever allocates next."""
    fillers: list[Tensor] = []

    def leave(count: int) -> None:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        reserved = torch.cuda.memory_reserved()
        torch.cuda.set_per_process_memory_fraction(reserved / total)
        size = 1 << 30
        while size >= 1 << 20:  # gaps between what earlier tests have left
            try:
                fillers.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.cuda.OutOfMemoryError:
                size //= 2
        torch.cuda.set_per_process_memory_fraction((reserved + count) / total)

    yield leave
    fillers.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_the_host_s_time_is_measured_beside_the_gpu_s() -> None:
    rows = _C.measure(F32_NCHW.problem("conv_fwd"), "cuda", record=False)
    assert all((row["host_ms"] is None) == (row["median_ms"] is None) for row in rows)
    assert 0 < (rows[0]["host_ms"] or 0) < 5  # a launch, not a wait


def test_memory_goes_back_with_the_turn(tmp_path: Path) -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    _C.set_measurement_lock(str(tmp_path / "turns"))
    try:
        _C.measure(F32_NCHW.problem("conv_fwd"), "cuda", record=False)
    finally:
        _C.set_measurement_lock("")
    assert torch.cuda.memory_reserved() - before < 100 << 20  # flushing the cache took more


def _rank_largest_workspace_first(problem: str) -> tuple[str, int]:
    """Puts the runnable algorithm with the most workspace on top of the choice table."""
    _C.measure(problem, "cuda", "autotune")
    (entry,) = (entry for entry in _C.table_export() if entry["problem"] == problem)
    ok = [m for m in entry["measurements"] if m["status"] == "ok"]
    ok.sort(key=lambda m: -(m["workspace_bytes"] or 0))
    for rank, measurement in enumerate(ok):
        measurement["median_ms"] = 1e-6 * (rank + 1)
    entry["measurements"] = ok
    _C.table_clear()
    assert _C.table_import([entry]) == 1
    return ok[0]["algorithm"], ok[0]["workspace_bytes"] or 0


def test_out_of_memory_for_a_workspace_takes_the_next_plan(
    little_memory: Callable[[int], None],
) -> None:
    x, w = (leaf.detach() for leaf in _leaves(F32_NCHW))
    expected = F.conv2d(x.double(), w.double(), padding=1).float()
    problem = F32_NCHW.problem("conv_fwd")
    hungry, workspace = _rank_largest_workspace_first(problem)
    output_bytes = expected.nbytes
    assert workspace > 4 * output_bytes, f"{hungry} needs too little for this test: {workspace}"

    y = _conv(F32_NCHW, x, w, "autotune")
    assert newest("conv_fwd").algorithm == hungry
    del y
    little_memory(2 * output_bytes)
    y = _conv(F32_NCHW, x, w, "autotune")
    choice = newest("conv_fwd")
    assert choice.algorithm != hungry
    assert choice.why.startswith("fallback") and "memory" in choice.why
    # It is a matter of that moment: with memory again, the first choice is back.
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=TF32_ATOL)
    del y
    _conv(F32_NCHW, x, w, "autotune")
    assert newest("conv_fwd").algorithm == hungry


def test_out_of_memory_under_a_pin_is_an_error(little_memory: Callable[[int], None]) -> None:
    x, w = (leaf.detach() for leaf in _leaves(F32_NCHW))
    problem = F32_NCHW.problem("conv_fwd")
    hungry, _ = _rank_largest_workspace_first(problem)
    policy = f"fwd={hungry}"
    y = _conv(F32_NCHW, x, w, policy)
    output_bytes = y.nbytes
    del y
    little_memory(2 * output_bytes)
    with pytest.raises(torch.OutOfMemoryError):
        _conv(F32_NCHW, x, w, policy)


def test_tuning_survives_candidates_that_do_not_fit(little_memory: Callable[[int], None]) -> None:
    x, w = (leaf.detach() for leaf in _leaves(F32_NCHW))
    expected = F.conv2d(x.double(), w.double(), padding=1).float()
    problem = F32_NCHW.problem("conv_fwd")
    torch.cuda.synchronize()
    little_memory(12 * expected.nbytes)
    measurements = _C.measure(problem, "cuda", "autotune", flush_l2=False)
    assert measurements[0]["status"] == "ok"
    failed = [m for m in measurements if m["status"] == "failed"]
    assert failed and all("memory" in m["reason"] for m in failed), failed
    y = _conv(F32_NCHW, x, w, "autotune")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(y, expected, rtol=1e-3, atol=TF32_ATOL)


# CUDA graphs.

SMALL_CASE = replace(F32_NCHW, x=(4, 16, 16, 16), w=(16, 16, 3, 3))


def _step(case: Case, x: Tensor, w: Tensor, policy: str | None) -> Tensor:
    x.grad = w.grad = None
    y = _conv(case, x, w, policy)
    y.square().sum().backward()
    return y


@pytest.mark.parametrize(
    "policy", [None, "autotune", "aten:default", "fwd=1;bwd_data=1;bwd_filter=1"]
)
def test_capture_and_replay(policy: str | None) -> None:
    x, w = _leaves(SMALL_CASE)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            _step(SMALL_CASE, x, w, policy)
    torch.cuda.current_stream().wait_stream(stream)
    x.grad = w.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = _step(SMALL_CASE, x, w, policy)
    for _ in range(3):
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
            w.copy_(torch.randn_like(w))
        graph.replay()
        x_double = x.detach().double().requires_grad_()
        w_double = w.detach().double().requires_grad_()
        expected = F.conv2d(x_double, w_double, padding=1)
        expected.square().sum().backward()
        torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)
        for got, wanted in ((x.grad, x_double.grad), (w.grad, w_double.grad)):
            assert got is not None and wanted is not None
            scale = float(wanted.abs().max())
            torch.testing.assert_close(got.double() / scale, wanted / scale, rtol=1e-2, atol=1e-2)


def test_the_first_call_on_a_problem_may_be_under_capture() -> None:
    x, w = (leaf.detach() for leaf in _leaves(SMALL_CASE))
    _conv(SMALL_CASE, x[:1], w)  # cuDNN itself is ready, this problem is not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = _conv(SMALL_CASE, x, w)
    graph.replay()
    expected = F.conv2d(x.double(), w.double(), padding=1)
    torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)


def _compiled_at_run_time(problem: str) -> str:
    """The first algorithm of a problem whose plan holds code that was compiled for it."""
    for candidate in _C.candidates(problem, "cuda", "backends=graph"):
        if candidate["status"] == "ok" and "runtime_compilation" in candidate["notes"]:
            return candidate["algorithm"]
    raise AssertionError(f"no run-time compiled engine takes {problem}")


def test_plans_of_a_listing_need_not_be_built_again() -> None:
    line, policy = "matmul_fwd x=f16[7,64,72]:nchw w=f16[7,72,64]:nchw", "backends=graph"
    tensors = _C.scratch(line, "cuda")
    start = time.perf_counter()
    rows = _C.candidates(line, "cuda", policy, remember=True)
    listed = time.perf_counter()
    compiled = [row["algorithm"] for row in rows if "runtime_compilation" in row["notes"]]
    for algorithm in compiled:
        _C.run(line, algorithm, tensors, policy)
    torch.cuda.synchronize()
    assert compiled and time.perf_counter() - listed < (listed - start) / 2


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "new thread"])
def test_what_is_compiled_at_run_time_may_be_met_under_capture(elsewhere: bool) -> None:
    sizes = 3 if elsewhere else 5  # of a problem each
    a, b = (torch.randn(sizes, 64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    line = _C.problems_posed_by(lambda: OPS.matmul.default(a, b, policy="aten:default"))[0]
    pin = _compiled_at_run_time(line)
    _C.plan_cache_clear()
    if elsewhere:
        OPS.matmul.default(a, b, policy=pin)  # decided for all threads, built for this one
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()

    def capture() -> Tensor:
        with torch.cuda.graph(graph):
            return OPS.matmul.default(a, b, policy=pin)

    if elsewhere:
        with ThreadPoolExecutor(1) as thread:
            y = thread.submit(capture).result()
    else:
        y = capture()
    graph.replay()
    torch.testing.assert_close(y.double(), a.double() @ b.double(), rtol=1e-2, atol=5e-2)


def _compiled_product() -> tuple[Tensor, Tensor, str]:
    """Two factors, and what was compiled for their product and ran."""
    a, b = (torch.randn(8, 64, 64, device="cuda", dtype=torch.float16) for _ in range(2))
    posed = _C.problems_posed_by(lambda: OPS.matmul.default(a, b))[0]
    pin = _compiled_at_run_time(posed)
    OPS.matmul.default(a, b, policy=pin)
    torch.cuda.synchronize()
    return a, b, pin


def test_a_graph_outlives_the_plans_that_it_runs() -> None:
    a, b, pin = _compiled_product()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = OPS.matmul.default(a, b, policy=pin)
    _C.plan_cache_clear()
    gc.collect()
    for size in range(16, 80, 8):  # other code where that of the plan was
        OPS.matmul.default(a[:, :size].contiguous(), b, policy="backends=graph")
    a.normal_()
    graph.replay()
    torch.testing.assert_close(y.double(), a.double() @ b.double(), rtol=1e-2, atol=5e-2)


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("calls", [0, 16], ids=["called", "made again"])
def test_a_plan_may_be_forgotten_while_its_kernel_waits(calls: int) -> None:
    a, b, pin = _compiled_product()
    for _ in range(calls):
        OPS.matmul.default(a, b, policy=pin)
    before = made_again()
    torch.cuda._sleep(500_000_000)  # some 0.3 s
    y = OPS.matmul.default(a, b, policy=pin)
    assert made_again() - before == (1 if calls else 0)
    _C.plan_cache_clear()
    gc.collect()
    torch.testing.assert_close(y.double(), a.double() @ b.double(), rtol=1e-2, atol=5e-2)


def test_explicit_autotune_on_a_miss_under_capture_is_an_error() -> None:
    x, w = (leaf.detach() for leaf in _leaves(SMALL_CASE))
    _conv(SMALL_CASE, x, w)
    with refused_capture("captur"):
        _conv(SMALL_CASE, x, w, "autotune")
    # The device is as it was, and outside of a capture the same call tunes.
    _conv(SMALL_CASE, x, w, "autotune")
    assert newest("conv_fwd").why == "tuned"


def test_benchmark_under_capture_takes_the_heuristic_with_one_warning() -> None:
    x, w = (leaf.detach() for leaf in _leaves(SMALL_CASE))
    y = _conv(SMALL_CASE, x, w, "heuristic")
    heuristic = _C.decide(_problem(x, w), "cuda", "heuristic")["algorithm"]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            captured = _conv(SMALL_CASE, x, w, "benchmark")
            choice = _C.last_decision("conv_fwd")
            _conv(SMALL_CASE, x, w, "benchmark")
    messages = [str(warning.message) for warning in caught]
    assert len([message for message in messages if "captur" in message]) == 1, messages
    assert choice is not None and choice["algorithm"] == heuristic
    graph.replay()
    torch.testing.assert_close(captured, y)
    assert _C.table_export() == []
    _conv(SMALL_CASE, x, w, "benchmark")
    assert newest("conv_fwd").why == "tuned"
    assert len(_C.table_export()) == 1


def _problem(x: Tensor, w: Tensor) -> str:
    return _C.convolution_problem("conv_fwd", x, w, [1, 1], [1, 1], [1, 1], 1)


# Streams.


def test_work_runs_on_the_current_stream() -> None:
    x, w = _leaves(SMALL_CASE)
    side = torch.cuda.Stream()
    for policy in (None, "autotune", "fwd=legacy:implicit_gemm", "aten:default"):
        _step(SMALL_CASE, x, w, policy)
        torch.cuda.synchronize()
        with torch.cuda.stream(side), torch.no_grad():
            # The convolution must wait for what its stream has to do first.
            torch.cuda._sleep(50_000_000)
            late = torch.randn_like(x)
            y = _conv(SMALL_CASE, late, w, policy)
            assert not side.query(), "the convolution waited on the host"
        torch.cuda.default_stream().synchronize()
        side.synchronize()
        expected = F.conv2d(late.double(), w.double(), padding=1)
        torch.testing.assert_close(y.double(), expected, rtol=1e-2, atol=1e-2)


def test_backward_runs_on_the_stream_of_forward() -> None:
    x, w = _leaves(SMALL_CASE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = _conv(SMALL_CASE, x, w)
        torch.cuda._sleep(50_000_000)
        loss = y.square().sum()
    loss.backward()
    torch.cuda.synchronize()
    doubles = [leaf.detach().double().requires_grad_() for leaf in (x, w)]
    F.conv2d(doubles[0], doubles[1], padding=1).square().sum().backward()
    for leaf, double in zip((x, w), doubles, strict=True):
        assert leaf.grad is not None and double.grad is not None
        scale = float(double.grad.abs().max())
        torch.testing.assert_close(
            leaf.grad.double() / scale, double.grad / scale, rtol=1e-2, atol=1e-2
        )


@pytest.mark.skipif(_C.versions()["cudnn"][:3] != "919", reason="engine numbers of cuDNN 9.19")
@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        ("conv_fwd x=bf16[8,32,28,28]:nhwc w=bf16[32,1,3,3]:nhwc pad=1 groups=32", "graph:eng5"),
        ("conv_bwd_data x=f16[8,32,28,28]:nhwc w=f16[32,1,5,5]:nhwc groups=32", "graph:eng6"),
        ("conv_bwd_filter x=f16[8,32,28,28]:nhwc w=f16[32,1,3,3]:nhwc groups=32", "graph:eng16"),
        ("conv_fwd x=f32[8,32,28,28]:nchw w=f32[32,1,3,3]:nchw groups=32", "graph:eng0"),
        ("conv_fwd x=f32[8,32,28,28]:nchw w=f32[32,1,5,5]:nchw groups=32", "aten:default"),
        ("conv_fwd x=f32[8,32,28,28]:nhwc w=f32[32,1,3,3]:nhwc groups=32", "aten:default"),
        ("conv_fwd x=f32[8,32,28,28]:nchw w=f32[64,1,3,3]:nchw groups=32", "aten:default"),
        ("conv_bwd_filter x=f32[8,32,28,28]:nchw w=f32[32,1,3,3]:nchw groups=32", "graph:"),
        (
            "conv_bwd_filter x=f32[8,32,28,28]:nchw w=f32[32,1,3,3]:nchw stride=2 groups=32",
            "aten:default",
        ),
        ("conv_fwd x=bf16[8,3,32,32]:nhwc w=bf16[96,3,4,4]:nhwc stride=4 bias=bf16", "aten:matmul"),
        ("conv_bwd_data x=f16[8,3,32,32]:nhwc w=f16[96,3,4,4]:nhwc stride=4", "aten:matmul"),
        ("conv_bwd_filter x=f16[8,3,32,32]:nhwc w=f16[96,3,4,4]:nhwc stride=4", "aten:matmul"),
        ("conv_fwd x=bf16[8,3,32,32]:nhwc w=bf16[96,3,4,4]:nhwc stride=2", "graph:"),
        ("conv_fwd x=bf16[8,96,32,32]:nhwc w=bf16[192,96,2,2]:nhwc stride=2", "graph:"),
        ("softmax_fwd x=f16[16,512,784]:nchw", "aten:transposed"),
        ("softmax_bwd x=f32[4,128,1024]:nchw log=true", "aten:transposed"),
        ("softmax_fwd x=f32[2,1024,16]:nchw", "aten:transposed"),
        ("softmax_bwd x=f16[4,128,2049]:nchw", "legacy:accurate"),
        ("softmax_fwd x=f16[64,21,65536]:nchw", "legacy:accurate"),
        ("softmax_fwd x=f16[2,21,4]:nchw", "legacy:accurate"),
        ("softmax_bwd x=f32[8,8192,8]:nchw", "aten:default"),
        ("softmax_fwd x=f32[64,1000,1]:nchw", "aten:default"),
        ("lrn_fwd x=f32[32,96,3025]:nchw kind=cross_channel size=5", "legacy:cross_channel"),
        ("lrn_fwd x=f32[8,512,49]:nchw kind=cross_channel size=5", "aten:default"),
        ("lrn_bwd x=f16[2,64,4]:nchw kind=cross_channel size=5", "legacy:cross_channel"),
        (
            "grid_sample_bwd x=f32[8,16,28,28]:nchw grid=f32[8,28,28,2]:nchw align_corners=true",
            "legacy:bilinear",
        ),
        (
            "grid_sample_fwd x=f32[4,3,8,8]:nchw grid=f32[4,91,91,2]:nchw align_corners=true",
            "aten:default",
        ),
        ("layer_norm_bwd x=f16[8,64,16383]:nchw kind=instance w=f16", "aten:default"),
        ("layer_norm_bwd x=f32[8,64,16384]:nchw kind=instance w=f32", "legacy:spatial"),
        ("batch_norm_infer x=bf16[64,128,3136]:nhwc", "graph:eng1"),
        ("batch_norm_infer x=bf16[64,128,49]:nhwc", "legacy:spatial"),
        ("batch_norm_infer x=f16[64,128,3136]:nchw", "legacy:spatial"),
        ("batch_norm_infer x=f32[64,128,3136]:nhwc", "graph:eng1"),
        ("batch_norm_infer x=f32[64,128,49]:nhwc", "legacy:spatial"),
        ("pool_fwd x=f32[4000,3,7,7]:nhwc window=2,5 pad=1 stride=2,6", "legacy:max"),
        ("pool_fwd x=f16[5000,32,1,7]:nchw window=1,5 pad=0,2", "legacy:max"),
        ("pool_fwd x=f32[2000,8,8,5]:nhwc window=8,5 train=true", "graph:eng2/k24=34"),
        (
            "pool_fwd x=f16[150000,3,3,1]:nchw window=5,1 pad=2,0 stride=1,3 train=true",
            "aten:default",
        ),
        ("pool_fwd x=f32[10000,8,1,7]:nhwc window=1,7 mode=avg_exclude", "graph:eng3"),
        ("pool_fwd x=f32[130,20,8,28]:nhwc window=4,1 stride=1 mode=avg_exclude", "graph:eng2"),
        ("pool_fwd x=f16[3,3,1,5]:nchw window=1,5 mode=avg_exclude", "aten:default"),
        (
            "pool_bwd x=f32[2000,8,5,7]:nhwc window=6,5 pad=1,2 stride=5,3 mode=avg_include",
            "graph:eng2/k24=34",
        ),
        (
            "pool_bwd x=f32[50000,12,1,1]:nhwc window=1,5 pad=0,2 stride=1,2 mode=avg_exclude",
            "legacy:avg",
        ),
        (
            "pool_bwd x=f32[25000,8,1,3]:nchw window=3,5 pad=1,2 stride=1,2 mode=avg_exclude",
            "legacy:avg",
        ),
    ],
)
def test_the_heuristic_leads_with_what_was_measured_faster(problem: str, algorithm: str) -> None:
    # cuDNN's maxima and its LRN are excluded by default.
    policy = "allow_reduced_range" if problem.startswith(("pool_", "lrn_")) else ""
    assert _C.decide(problem, "cuda", policy)["algorithm"].startswith(algorithm)


@pytest.mark.skipif(_C.versions()["cudnn"][:3] != "919", reason="engine numbers of cuDNN 9.19")
@pytest.mark.parametrize(
    ("op", "engine"), [("conv_bwd_data", "graph:eng77"), ("conv_bwd_filter", "graph:eng69")]
)
def test_slices_that_never_end_are_refused(op: str, engine: str) -> None:
    problem = f"{op} x=bf16[32,960,7,7]:nhwc w=bf16[160,960,1,1]:nhwc"
    pins = [f"{engine}/k17={count}" for count in (16, 24, 48)]
    rows = {row["algorithm"]: row for row in _C.measure(problem, "cuda", algorithms=pins)}
    assert [rows[pin]["status"] for pin in pins] == ["ok", "unsupported", "unsupported"]
    assert "k17" in rows[pins[1]]["reason"]
    with pytest.raises(RuntimeError, match="is not a power of 2"):
        _C.decide(problem, "cuda", f"{op.removeprefix('conv_')}={pins[2]}")


@pytest.mark.skipif(_C.versions()["cudnn"][:3] != "919", reason="a defect of cuDNN 9.19")
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("train", ["false", "true"])
def test_a_wrong_recurrence_is_refused_and_does_not_run(cell: str, train: str) -> None:
    problem = f"rnn_fwd cell={cell} x=f16[6,16,128]:nchw hidden=80 layers=1 train={train}"
    rows = _C.measure(problem, "cuda")
    by_name = {row["algorithm"]: row for row in rows}
    refused = by_name["legacy:persist_static_small_h/math=tensor_op"]
    assert refused["status"] == "unsupported"
    assert "wrong results" in refused["reason"]
    assert by_name["legacy:persist_static_small_h/math=fma"]["status"] == "ok"
    assert _C.decide(problem, "cuda")["algorithm"].startswith("legacy:standard")
    assert rows[0]["status"] == "ok"


@pytest.mark.parametrize(
    ("problem", "policy", "algorithm"),
    [
        ("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=add", "backends=graph", "graph:"),
        ("batch_norm_fwd x=f16[8,64,196]:nchw running=true", "backends=graph", "graph:"),
        (
            "pool_fwd x=f32[2,8,16,16]:nchw window=2 stride=2 mode=max train=true",
            "backends=legacy;deterministic;allow_reduced_range",
            "legacy:max_deterministic",
        ),
    ],
)
def test_the_heuristic_finds_what_its_order_leaves_out(
    problem: str, policy: str, algorithm: str
) -> None:
    assert _C.decide(problem, "cuda", policy)["algorithm"].startswith(algorithm)


def test_a_ranking_without_cudnn_is_not_kept() -> None:
    line = "conv_fwd x=f32[2,8,14,14]:nchw w=f32[8,8,3,3]:nchw pad=1"
    with torch.backends.cudnn.flags(enabled=False):
        (best,) = tuning.tune(line, device="cuda").values()
    assert best["algorithm"].startswith("aten:") and tuning.entries() == []
    tuning.tune(line, device="cuda")
    (entry,) = tuning.entries()
    assert any(row["backend"] == "graph" and row["status"] == "ok" for row in entry["measurements"])


# Another GPU than the current one.

TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 CUDA devices")


def assert_within_a_factor(factor: float, value: float, other: float) -> None:
    """Others may be at work on either device."""
    assert other / factor < value < other * factor


@TWO_GPUS
def test_peaks_are_those_of_the_device_that_was_asked_for() -> None:
    first, second = (measured_peaks(f"cuda:{i}", "f32", False) for i in range(2))
    assert_within_a_factor(4, second.flops_per_second, first.flops_per_second)
    assert_within_a_factor(4, second.bytes_per_second, first.bytes_per_second)
    assert torch.cuda.current_device() == 0


@TWO_GPUS
def test_modules_are_timed_on_the_device_that_was_asked_for() -> None:
    case = ModuleCase("ReLU", {}, (32, 256, 56, 56))
    first, second = (
        [c.pytorch_ms for c in compare_modules([case], ["f32"], False, f"cuda:{i}", "aten:default")]
        for i in range(2)
    )
    for ours, theirs in zip(second, first, strict=True):
        assert_within_a_factor(4, ours, theirs)
    assert torch.cuda.current_device() == 0


# --- determinism that PyTorch's switches ask for ------------------------------------------------

SPARED = {
    "adaptive windows of several sizes": lambda x: F.adaptive_avg_pool2d(x, 7),
    "dilated windows": lambda x: F.max_pool2d(x, 2, 1, 0, 2),
    "sampled images": lambda x: ops.grid_sample(
        x, torch.zeros(2, 4, 4, 2, device=x.device), align_corners=False
    ),
}


@pytest.mark.parametrize("name", SPARED)
@pytest.mark.parametrize("warns", [False, True], ids=["cudnn", "warn_only"])
def test_pytorchs_switches_spare_its_own_kernels(name: str, warns: bool) -> None:
    x = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
    (wanted,) = torch.autograd.grad(SPARED[name](x).square().sum(), x)

    def step() -> Tensor:
        with enabled():
            y = SPARED[name](x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTorch says of its own kernel
            return torch.autograd.grad(y.square().sum(), x)[0]

    if warns:
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:
        torch.backends.cudnn.deterministic = True
    torch.testing.assert_close(step(), wanted)
    assert newest().algorithm == "aten:default"
    with knobs.flags(deterministic=True), pytest.raises(RuntimeError, match="by deterministic"):
        step()
    torch.use_deterministic_algorithms(True)
    with pytest.raises(RuntimeError, match="determinis"):
        step()


def test_what_has_deterministic_algorithms_runs_them() -> None:
    torch.backends.cudnn.deterministic = True
    knobs.allow_reduced_range = True
    x = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
    ops.max_pool2d(x, 2).sum().backward()
    assert newest("pool_bwd").algorithm != "aten:default"


# --- what a plan takes and what it cannot do ----------------------------------------------------


def test_cudnns_dropout_cannot_be_captured() -> None:
    x = torch.randn(64, device="cuda")
    for policy in ("legacy:default", "aten:default"):
        ops.dropout(x, policy=policy)
    with refused_capture("legacy:default sets its random states up from"):
        ops.dropout(x, policy="legacy:default")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = ops.dropout(x, policy="aten:default")
    captured.replay()
    assert (y == 0).any()


@pytest.mark.parametrize(
    ("problem", "algorithm", "least"),
    [
        ("layer_norm_fwd x=f32[64,32,9]:nchw kind=instance", "legacy:spatial", 2 * 64 * 32 * 4),
        ("layer_norm_bwd x=f32[64,32,9]:nchw kind=instance", "legacy:spatial", 3 * 64 * 32 * 4),
        (
            "reduce_fwd x=f32[64,32]:nchw first_reduced=false kind=max indices=true",
            "legacy:default",
            64 * 4,
        ),
    ],
)
def test_workspaces_hold_all_that_is_made_beside_results(
    problem: str, algorithm: str, least: int
) -> None:
    rows = {row["algorithm"]: row for row in _C.candidates(problem, "cuda", EVERY_NUMERICS)}
    assert rows[algorithm]["status"] == "ok"
    assert int(rows[algorithm]["workspace_bytes"] or 0) >= least
    rows = {
        row["algorithm"]: row
        for row in _C.candidates(problem, "cuda", f"{EVERY_NUMERICS};max_workspace={least - 1}")
    }
    assert "excluded by max_workspace" in rows[algorithm]["reason"]


# --- more elements than an int counts -----------------------------------------------------------

LARGE_MEMORY = 40 << 30
LARGE_POOLING = [
    f"x=f16[33,64,1024,1024]:{layout} window=2 stride=2 mode={mode}"
    for layout in ("nhwc", "nchw")
    for mode in ("avg_include", "max")
]


@pytest.fixture
def large_memory() -> None:
    """Skips on a GPU that is too small."""
    free, _ = torch.cuda.mem_get_info()
    if free < LARGE_MEMORY:
        pytest.skip(f"wants 40 GiB of free GPU memory, there are {free / 2**30:.0f}")


@pytest.mark.big
@pytest.mark.usefixtures("large_memory")
@pytest.mark.parametrize("line", LARGE_POOLING)
def test_pooling_of_more_elements_than_an_int_counts(line: str) -> None:
    last = torch.channels_last if "nhwc" in line else torch.contiguous_format
    x = torch.empty(33, 64, 1024, 1024, dtype=torch.half, device="cuda", memory_format=last)
    x.normal_()
    average = "avg" in line
    pooled = (F.avg_pool2d if average else F.max_pool2d)(x[-2:], 2)
    ran = ops.avg_pool2d(x, 2) if average else ops.max_pool2d(x, 2)
    torch.testing.assert_close(ran[-2:], pooled)
    for candidate in _C.candidates(f"pool_fwd {line}", "cuda"):
        if candidate["status"] == "ok":
            y = _C.run(f"pool_fwd {line}", candidate["algorithm"], {"x": x})["y"]
            torch.testing.assert_close(y[-2:], pooled)


@pytest.mark.big
@pytest.mark.usefixtures("large_memory")
def test_data_gradients_of_more_elements_than_an_int_counts() -> None:
    line = "conv_bwd_data x=f16[33,64,1024,1024]:nhwc w=f16[32,64,3,3]:nhwc pad=1"
    w = torch.randn(32, 64, 3, 3, dtype=torch.half, device="cuda")
    w = w.to(memory_format=torch.channels_last)
    dy = torch.empty(
        (33, 32, 1024, 1024),
        dtype=torch.half,
        device="cuda",
        memory_format=torch.channels_last,
    ).normal_()
    wanted = torch.nn.grad.conv2d_input((2, 64, 1024, 1024), w, dy[-2:], padding=1)
    firsts: dict[str, str] = {}
    for candidate in _C.candidates(line, "cuda", "backends=graph;max_workspace=8GiB"):
        if candidate["status"] == "ok":
            firsts.setdefault(candidate["algorithm"].partition("/")[0], candidate["algorithm"])
    assert len(firsts) > 5 and not {"graph:eng1", "graph:eng2"} & firsts.keys()
    for algorithm in firsts.values():
        dx = _C.run(line, algorithm, {"y": dy, "w": w})["x"]
        torch.testing.assert_close(dx[-2:], wanted, rtol=1e-2, atol=0.2)


@pytest.mark.big
@pytest.mark.usefixtures("large_memory")
def test_filter_gradients_of_images_that_large() -> None:
    shape = (12, 64, 2048, 2048)
    last = torch.channels_last
    x, dy = (
        torch.empty(shape, dtype=torch.half, device="cuda", memory_format=last).normal_()
        for _ in range(2)
    )
    sizes = (64, 1, 3, 3)
    halves = [
        torch.nn.grad.conv2d_weight(x[part], sizes, dy[part], padding=1, groups=64).float()
        for part in (slice(0, 6), slice(6, 12))
    ]
    dw = OPS.convolution_backward_weight.default(dy, x, sizes, [1, 1], [1, 1], [1, 1], 64)
    torch.testing.assert_close(dw.float(), sum(halves), rtol=1e-2, atol=1e3)


@pytest.mark.big
@pytest.mark.usefixtures("large_memory")
def test_products_of_images_that_large_run_where_pytorchs_convolution_is_refused() -> None:
    line = "conv_bwd_filter x=f16[12,64,2048,2048]:nhwc w=f16[32,64,1,1]:nhwc"
    rows = {row["algorithm"]: row for row in _C.candidates(line, "cuda", "backends=aten")}
    assert "8 images of a larger batch" in rows["aten:default"]["reason"]
    assert rows["aten:matmul"]["status"] == "ok"


# --- memory that is reserved for workspaces -----------------------------------------------------

MIB = 2**20


def _needs_workspace() -> tuple[Tensor, Tensor, str]:
    """A convolution whose pinned algorithm takes between 1 and 128 MiB."""
    x = torch.randn(16, 64, 32, 32, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda")
    problem = _C.convolution_problem("conv_fwd", x, w, [1, 1], [1, 1], [1, 1], 1)
    fitting = [
        row["algorithm"]
        for row in _C.candidates(problem, "cuda", EVERY_NUMERICS)
        if row["status"] == "ok"
        and row["backend"] in ("legacy", "graph")
        and MIB < (row["workspace_bytes"] or 0) < 128 * MIB
    ]
    policy = f"fwd={fitting[0]};{EVERY_NUMERICS}"
    ops.conv2d(x, w, padding=1, policy=policy)
    return x, w, policy


def _served() -> int:
    return _C.workspace_reserve_info()["served"]


def test_a_reserve_is_allocated_once_and_given_back() -> None:
    x, w, policy = _needs_workspace()
    wanted = ops.conv2d(x, w, padding=1, policy=policy)
    torch.cuda.synchronize()
    before, served = torch.cuda.memory_allocated(), _served()
    knobs.reserve_workspace = "256MiB"
    assert _C.workspace_reserve_info()["held_bytes"] == 0, "allocated at the first use"
    for _ in range(20):
        torch.testing.assert_close(ops.conv2d(x, w, padding=1, policy=policy), wanted)
    assert _served() == served + 20
    assert _C.workspace_reserve_info()["held_bytes"] == 256 * MIB
    assert torch.cuda.memory_allocated() == before + 256 * MIB
    peak = torch.cuda.max_memory_allocated
    torch.cuda.reset_peak_memory_stats()
    ops.conv2d(x, w, padding=1, policy=policy)
    assert peak() <= before + 256 * MIB + wanted.nbytes + MIB, "no workspace beside the block"
    knobs.reserve_workspace = 0
    assert torch.cuda.memory_allocated() == before
    ops.conv2d(x, w, padding=1, policy=policy)
    assert _served() == served + 21


def test_a_workspace_larger_than_the_reserve_is_allocated() -> None:
    x, w, policy = _needs_workspace()
    served = _served()
    knobs.reserve_workspace = MIB
    ops.conv2d(x, w, padding=1, policy=policy)
    assert _served() == served


def test_a_reserve_of_a_share_and_one_that_no_gpu_has() -> None:
    x, w, policy = _needs_workspace()
    total = torch.cuda.get_device_properties(0).total_memory
    knobs.reserve_workspace = "1%"
    ops.conv2d(x, w, padding=1, policy=policy)
    held = _C.workspace_reserve_info()["held_bytes"]
    assert abs(held - total / 100) < MIB
    with pytest.raises(ValueError, match=rf"got {2 * total}, which is more than the {total} bytes"):
        knobs.reserve_workspace = 2 * total
    assert knobs.reserve_workspace == "1%"


def test_a_cap_counts_what_lies_in_the_reserve() -> None:
    x, w, policy = _needs_workspace()
    knobs.reserve_workspace = "256MiB"
    ops.conv2d(x, w, padding=1, policy=policy)
    with pytest.raises(RuntimeError, match="excluded by max_workspace"):
        ops.conv2d(x, w, padding=1, policy=f"{policy};max_workspace=0.0001%")


def test_streams_and_threads_share_no_reserve() -> None:
    """Results are right however calls meet; a block is one call's at a time."""
    x, w, policy = _needs_workspace()
    knobs.reserve_workspace = "256MiB"
    inputs = [x + i for i in range(8)]
    wanted = [ops.conv2d(one, w, padding=1, policy=policy) for one in inputs]
    torch.cuda.synchronize()
    served = _served()

    def work(index: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream() if index % 2 else torch.cuda.default_stream()):
            same = [
                torch.allclose(ops.conv2d(inputs[index], w, padding=1, policy=policy), want)
                for want in [wanted[index]] * 50
            ]
            torch.cuda.current_stream().synchronize()
        return all(same)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert served < _served() <= served + 400


def test_another_stream_takes_the_reserve_over_once_the_first_is_done() -> None:
    x, w, policy = _needs_workspace()
    knobs.reserve_workspace = "256MiB"
    ops.conv2d(x, w, padding=1, policy=policy)
    torch.cuda.synchronize()
    served, side = _served(), torch.cuda.Stream()
    torch.cuda._sleep(200_000_000)
    ops.conv2d(x, w, padding=1, policy=policy)
    with torch.cuda.stream(side):
        y = ops.conv2d(x, w, padding=1, policy=policy)
    assert _served() == served + 1, "the first stream is at work still"
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        z = ops.conv2d(x, w, padding=1, policy=policy)
    assert _served() == served + 2
    knobs.reserve_workspace = 0  # waits for the side stream
    torch.cuda.synchronize()
    torch.testing.assert_close(y, z)


def test_a_graph_holds_none_of_the_reserve() -> None:
    x, w, policy = _needs_workspace()
    knobs.reserve_workspace = "256MiB"
    wanted = ops.conv2d(x, w, padding=1, policy=policy)
    torch.cuda.synchronize()
    served, graph = _served(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.conv2d(x, w, padding=1, policy=policy)
    assert _served() == served
    knobs.reserve_workspace = 0
    torch.cuda.empty_cache()
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, wanted)


def test_a_reserve_that_cannot_be_had_is_said_and_calls_go_on() -> None:
    x, w, policy = _needs_workspace()
    wanted = ops.conv2d(x, w, padding=1, policy=policy)
    held = torch.empty(torch.cuda.mem_get_info()[0] // 2, dtype=torch.uint8, device="cuda")
    knobs.reserve_workspace = "90%"
    with pytest.warns(UserWarning, match="reserve_workspace: there is no memory for"):
        torch.testing.assert_close(ops.conv2d(x, w, padding=1, policy=policy), wanted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.conv2d(x, w, padding=1, policy=policy)
    del held


@pytest.mark.parametrize("replay", ["kernels", "graphs"])
def test_replays_find_their_workspace_in_the_reserve(replay: str) -> None:
    knobs.replay = replay
    x, w, policy = _needs_workspace()
    wanted = ops.conv2d(x, w, padding=1, policy=policy)
    for reserve in ("256MiB", 0, "128MiB"):
        knobs.reserve_workspace = reserve
        for _ in range(30):
            torch.testing.assert_close(ops.conv2d(x, w, padding=1, policy=policy), wanted)
