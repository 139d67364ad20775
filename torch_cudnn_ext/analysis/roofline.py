"""A device's peaks, measured with PyTorch: its arithmetic and its memory bandwidth."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._timing import current, event_ms, host_ms
from torch_cudnn_ext._workload.problems import DTYPES

_REPEATS = 5
_ENOUGH_S = 1.0  # no repetition starts later: some dtypes are slow on a CPU


ARITHMETIC, MEMORY, HOST = "arithmetic", "memory", "host"


@dataclass(frozen=True)
class Peaks:
    """The rates of a large matrix product and of a large copy."""

    flops_per_second: float
    bytes_per_second: float

    def floor_ms(self, flops: float, bytes_moved: float) -> float:
        """The roofline's bound on a time: the longer of the arithmetic and the memory traffic.

        See Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
        2009. Algorithms that do less arithmetic than the direct one (FFT, Winograd) may be faster.
        """
        return 1e3 * max(flops / self.flops_per_second, bytes_moved / self.bytes_per_second)

    def limiter(self, flops: float, bytes_moved: float) -> str:
        """Which of both bounds the time: ``arithmetic`` or ``memory``."""
        by_flops = flops / self.flops_per_second >= bytes_moved / self.bytes_per_second
        return ARITHMETIC if by_flops else MEMORY


def measured_peaks(device: str, dtype: str, allow_tf32: bool) -> Peaks:
    """The peaks of a device for a dtype, measured at the first call of the process.

    Args:
        device: ``cpu`` or ``cuda[:i]``.
        dtype: ``f64``, ``f32``, ``f16`` or ``bf16``.
        allow_tf32: Whether f32 may be multiplied in TF32 (CUDA).
    """
    with current(device):
        return _measured_peaks(_C.device_fingerprint(device), device, dtype, allow_tf32)


@cache
def _measured_peaks(fingerprint: str, device: str, dtype: str, allow_tf32: bool) -> Peaks:
    on_gpu = device.startswith("cuda")
    size = 8192 if on_gpu else 1024
    own = torch.Generator(device).manual_seed(0)  # the caller's random state stays as it is
    matrix = torch.randn(size, size, device=device, generator=own).to(DTYPES[dtype])
    has_tf32 = on_gpu and dtype == "f32"
    with torch.no_grad(), _products_in_tf32(allow_tf32) if has_tf32 else nullcontext():
        product_s = _product_seconds(matrix)
        if not on_gpu and dtype in ("f16", "bf16"):  # a CPU may have units for f32 only
            product_s = min(product_s, _product_seconds(matrix.float()))
    source = torch.zeros(2**28 if on_gpu else 2**25, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = _best_seconds(lambda: target.copy_(source), on_gpu)
    return Peaks(2.0 * size**3 / product_s, 2.0 * source.numel() / copy_s)


def _product_seconds(matrix: torch.Tensor) -> float:
    product = torch.empty_like(matrix)
    return _best_seconds(lambda: torch.mm(matrix, matrix, out=product), matrix.is_cuda)


@contextmanager
def _products_in_tf32(allowed: bool) -> Iterator[None]:
    backends: Any = torch.backends
    products = backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        # "none" follows the switch for all backends.
        products.fp32_precision = "none" if before == backends.fp32_precision else before


def _best_seconds(work: Callable[[], object], on_gpu: bool) -> float:
    timer = event_ms if on_gpu else host_ms
    work()
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _ENOUGH_S * 1e3:
        times.append(timer(work))
    return min(times) / 1e3
