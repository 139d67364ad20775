"""Calls of operators that ran before take a short way. It changes nothing that a caller sees."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_cudnn_ext as tce
from torch_cudnn_ext import _C, knobs, ops

SEEDS = (1, 2, 3)  # the first call learns, the others take the short way


def _images(device: str, seed: int, layout: torch.memory_format = torch.channels_last) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    t = torch.randn(2, 4, 6, 6, generator=generator).to(device)
    return t.contiguous(memory_format=layout)


def _rows(device: str, seed: int, rows: int = 3) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def _gates(device: str, seed: int) -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)).to(device)


def _filters(device: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 100)
    w = torch.randn(4, 4, 3, 3, generator=generator).to(device)
    return w.contiguous(memory_format=torch.channels_last)


@dataclass
class Both:
    """A function of ours and PyTorch's, and what makes their arguments on a device by a seed."""

    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    makers: tuple[Callable[[str, int], Tensor], ...]

    def arguments(self, device: str, seed: int) -> list[Tensor]:
        return [make(device, seed + 10 * i) for i, make in enumerate(self.makers)]

    def gradients(self, which: str, device: str, seed: int) -> list[Tensor | None]:
        leaves = [t.clone().requires_grad_() for t in self.arguments(device, seed)]
        getattr(self, which)(*leaves).square().sum().backward()
        return [t.grad for t in leaves]


def _pair(
    ours: Callable[..., Tensor],
    theirs: Callable[..., Tensor],
    *makers: Callable[[str, int], Tensor],
) -> Both:
    return Both(ours, theirs, makers)


CALLS: dict[str, Both] = {
    "softmax": _pair(lambda x: ops.softmax(x, 1), lambda x: x.softmax(1), _rows),
    "softmax of channels": _pair(lambda x: ops.softmax(x, 1), lambda x: x.softmax(1), _images),
    "log_softmax": _pair(lambda x: ops.log_softmax(x, 1), lambda x: x.log_softmax(1), _rows),
    "relu": _pair(ops.relu, F.relu, _images),
    "relu with gaps": _pair(
        lambda x: ops.relu(x[:, ::2]), lambda x: F.relu(x[:, ::2]), _images
    ),
    "tanh": _pair(ops.tanh, torch.tanh, _rows),
    "elu": _pair(ops.elu, F.elu, _rows),
    "max_pool2d": _pair(lambda x: ops.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), _images),
    "max_pool2d of one image": _pair(
        lambda x: ops.max_pool2d(x[0], 2), lambda x: F.max_pool2d(x[0], 2), _images
    ),
    "avg_pool2d": _pair(
        lambda x: ops.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        # PyTorch 2.11's gradient of channels-last averages is wrong on CUDA.
        lambda x: F.avg_pool2d(x.contiguous(), 3, 2, 1, count_include_pad=False).contiguous(
            memory_format=torch.channels_last
        ),
        _images,
    ),
    "adaptive_avg_pool2d": _pair(
        lambda x: ops.adaptive_avg_pool2d(x, 1), lambda x: F.adaptive_avg_pool2d(x, 1), _images
    ),
    "linear": _pair(ops.linear, F.linear, _rows, lambda d, s: _rows(d, s, 5)),
    "linear with bias": _pair(
        ops.linear, F.linear, _rows, lambda d, s: _rows(d, s, 5), lambda d, s: _rows(d, s, 5)[:, 0]
    ),
    "linear of one tensor": _pair(
        lambda x: ops.linear(x, x), lambda x: F.linear(x, x), _rows
    ),
    "conv2d": _pair(
        lambda x, w: ops.conv2d(x, w, padding=1), lambda x, w: F.conv2d(x, w, padding=1),
        _images, _filters,
    ),
    "conv2d with bias": _pair(
        lambda x, w, b: ops.conv2d(x, w, b[0]), lambda x, w, b: F.conv2d(x, w, b[0]),
        _images, _filters, _rows,
    ),
    "conv_transpose2d": _pair(
        lambda x, w: ops.conv_transpose2d(x, w, stride=2, output_padding=1),
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        _images, _filters,
    ),
    "layer_norm": _pair(
        lambda x, w: ops.layer_norm(x, (4,), w[0], w[1]),
        lambda x, w: F.layer_norm(x, (4,), w[0], w[1]),
        _rows, _rows,
    ),
    "batch_norm": _pair(
        lambda x, s: ops.batch_norm(x, s[0].detach(), s[1].detach().abs(), s[2]),
        lambda x, s: F.batch_norm(x, s[0].detach(), s[1].detach().abs(), s[2]),
        _images, _rows,
    ),
    "lstm": _pair(
        lambda x, *w: ops.lstm(x[None], [x[None] * 0] * 2, w)[0],
        lambda x, *w: torch.lstm(
            x[None], [x[None] * 0] * 2, w, True, 1, 0.0, True, False, False
        )[0],
        _rows, *[_gates] * 2, *[lambda d, s: _gates(d, s)[:, 0]] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_later_calls_give_the_results_of_their_own_arguments(name: str, device: str) -> None:
    both = CALLS[name]
    with torch.no_grad():
        for seed in SEEDS:
            arguments = both.arguments(device, seed)
            ours, theirs = both.ours(*arguments), both.theirs(*arguments)
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("name", CALLS)
def test_later_gradients_are_of_their_own_arguments(name: str, device: str) -> None:
    both = CALLS[name]
    for seed in SEEDS:
        pairs = zip(
            *(both.gradients(which, device, seed) for which in ("ours", "theirs")), strict=True
        )
        for ours, theirs in pairs:
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def _runs_bfloat16_lstm() -> bool:
    """Whether oneDNN, which PyTorch's LSTM of bfloat16 runs, has it for this processor."""
    both = CALLS["lstm"]
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            both.theirs(*both.arguments("cpu", SEEDS[0]))
    except RuntimeError as error:
        return "could not create a primitive descriptor" not in str(error)
    return True


@pytest.mark.parametrize("name", CALLS)
def test_later_calls_obey_autocast(name: str, device: str) -> None:
    if name == "lstm" and device == "cpu" and not _runs_bfloat16_lstm():
        pytest.skip("PyTorch has no bfloat16 LSTM on this processor")
    both = CALLS[name]
    with torch.no_grad():
        for seed in SEEDS:
            arguments = both.arguments(device, seed)
            both.ours(*arguments)
            with torch.autocast(device, torch.bfloat16):
                ours, theirs = both.ours(*arguments), both.theirs(*arguments)
            # For recurrent networks on a GPU PyTorch takes float16, whatever is asked for.
            assert ours.dtype == (torch.bfloat16 if name == "lstm" else theirs.dtype)
            torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.1, atol=0.2)


def _decided() -> str:
    decision = tce.last_decision()
    assert decision is not None
    return decision.algorithm


def test_a_pin_between_two_calls_is_obeyed(device: str) -> None:
    x, w = _images(device, 1), _filters(device, 1)
    for _ in range(2):
        ops.conv2d(x, w)
    free = _decided()
    pin = "aten:im2col" if free != "aten:im2col" else "aten:default"
    with knobs.flags(conv_fwd_algo=pin):
        ops.conv2d(x, w)
        assert _decided() == pin
    ops.conv2d(x, w, policy=f"conv_fwd={pin}")
    assert _decided() == pin
    ops.conv2d(x, w)
    assert _decided() == free


def test_a_rule_between_two_calls_is_obeyed(device: str) -> None:
    x, w = _images(device, 1), _filters(device, 1)
    for _ in range(2):
        ops.conv2d(x, w)
    with tce.when("conv_fwd pad=0", use="conv_fwd=aten:im2col"):
        ops.conv2d(x, w)
        assert _decided() == "aten:im2col"


def test_short_calls_are_recorded(device: str) -> None:
    module = torch.nn.Sequential(*[tce.nn.Conv2d(4, 4, 1, bias=False) for _ in range(3)])
    module.to(device)
    x = _images(device, 1)
    for _ in range(2):
        report = tce.explain(module, x)
        assert len(report.calls) == 3
    before = _C.plan_cache_info()["hits"]
    with torch.no_grad():
        module(x)
    assert _C.plan_cache_info()["hits"] > before


def test_tensors_at_other_addresses_are_other_calls(device: str) -> None:
    w = _filters(device, 1)
    memory = torch.randn(2 * 4 * 6 * 6 + 1, device=device)
    for offset in (0, 0, 1, 1, 0):
        x = memory[offset : offset + 288].view(2, 6, 6, 4).permute(0, 3, 1, 2)
        torch.testing.assert_close(ops.conv2d(x, w), F.conv2d(x, w), rtol=1e-3, atol=1e-3)


def test_a_call_after_clear_decides_again(device: str) -> None:
    x = _rows(device, 1)
    for _ in range(2):
        ops.softmax(x, 1)
    _C.plan_cache_clear()
    torch.testing.assert_close(ops.softmax(x, 1), x.softmax(1))
    assert _C.plan_cache_info()["misses"] >= 1


def test_other_threads_learn_for_themselves(device: str) -> None:
    x, w = _images(device, 1), _filters(device, 1)
    ops.conv2d(x, w)
    results: list[Tensor] = []

    def work() -> None:
        with torch.no_grad():
            results.extend(ops.conv2d(x, w) for _ in range(2))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for result in results:
        torch.testing.assert_close(result, F.conv2d(x, w), rtol=1e-3, atol=1e-3)


def test_results_may_be_written_to(device: str) -> None:
    x = _rows(device, 1)
    for _ in range(3):
        y = ops.relu(x)
        y.add_(1)
        torch.testing.assert_close(ops.relu(x), x.clamp_min(0))
