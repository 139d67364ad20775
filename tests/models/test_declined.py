"""What `enable` leaves to PyTorch, and the reasons that `declined` counts."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from enable_helpers import check_equal
from torch import Tensor, nn
from torch.nn import functional as F

from torch_cudnn_ext import declined, enable, enabled, is_enabled

pytestmark = pytest.mark.usefixtures("off")


def refused(call: Callable[[], object]) -> dict[str, int]:
    """What was declined; the result is PyTorch's, bit for bit."""
    plain = call()
    with enabled():
        ours = call()
    torch.testing.assert_close(ours, plain, rtol=0, atol=0)
    return declined(reset=True)


def test_what_the_operators_cannot_express_is_declined(device: str) -> None:
    x = torch.randn(1, 4, device=device)
    reasons = refused(lambda: torch.batch_norm(x, None, None, None, None, True, 0.1, 1e-5, False))
    assert reasons == {"batch_norm: there is one value per channel": 1}
    batch = torch.randn(3, 4, device=device)
    image, w = torch.randn(1, 3, 5, 5, device=device), torch.randn(2, 3, 3, 3, device=device)
    two = [1, 1]
    reasons = refused(lambda: torch.convolution(image, w, None, two, two, two, False, two, 1))
    assert reasons == {"convolution: output_padding of a convolution that is not transposed": 1}
    if device == "cpu":
        one = torch.zeros(1)
        shared = refused(
            lambda: F.batch_norm(batch.cpu(), one.expand(4), one.expand(4), None, None, True)
        )
        assert shared == {"batch_norm: elements of a running statistic share memory": 1}
        integers = torch.arange(16).view(1, 1, 4, 4)
        assert refused(lambda: F.max_pool2d(integers, 2)) == {"max_pool2d: input is Long": 1}
    forward_ad: Any = torch.autograd.forward_ad
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "batch_norm": lambda t: F.batch_norm(t, None, None, training=True),
        "layer_norm": lambda t: F.layer_norm(t, (4,)),
        "group_norm": lambda t: F.group_norm(t, 2),
        "avg_pool2d": lambda t: F.avg_pool2d(t.view(1, 1, 3, 4), 2),
        "max_pool2d": lambda t: F.max_pool2d(t.view(1, 1, 3, 4), 2),
    }
    for name, function in functions.items():

        def tangent(function: Callable[[Tensor], Tensor] = function) -> Tensor:
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(batch, torch.ones_like(batch))
                result: Tensor = forward_ad.unpack_dual(function(dual)).tangent
            return result

        assert refused(tangent) == {f"{name}: input has a tangent (forward-mode AD)": 1}


def test_what_ours_alone_refuse_goes_to_pytorch() -> None:
    # On the CPU: PyTorch's CUDA kernel refuses such a weight as well.
    x, ones = torch.randn(2, 3, 4), torch.ones(3)
    reasons = refused(lambda: F.batch_norm(x, None, None, ones.view(1, 3), training=True))
    assert list(reasons.values()) == [1] and "weight has sizes [1, 3]" in next(iter(reasons))


def test_what_pytorch_refuses_of_all_kinds(device: str) -> None:
    x, w = torch.randn(2, 3, 5, 5, device=device), torch.ones(2, device=device)
    calls: list[Callable[[], object]] = [
        lambda: F.batch_norm(x, None, w, training=False),
        lambda: F.batch_norm(x, w, w, training=False),
        lambda: F.batch_norm(x, None, None, w, training=True),
        lambda: F.max_pool2d(x, 7),
        lambda: F.max_pool2d(x, 2, padding=2),
        lambda: F.avg_pool2d(x, 7),
        lambda: F.avg_pool2d(x, 2, divisor_override=0),
        lambda: F.layer_norm(x, (4,)),
        lambda: F.group_norm(x, 2),
        lambda: nn.LSTM(3, 4).to(device)(x[0, 0]),
    ]
    for call in calls:
        with pytest.raises(Exception) as plain:  # noqa: PT011 - compared below
            call()
        with enabled(), pytest.raises(Exception) as ours:  # noqa: PT011
            call()
        assert str(ours.value).splitlines()[0] == str(plain.value).splitlines()[0]


def test_a_pooling_stride_beyond_32_bits_stays_pytorchs() -> None:
    x = torch.randn(1, 1, 8)
    wanted = F.max_pool1d(x, 2, stride=2**31)
    with enabled():
        torch.testing.assert_close(F.max_pool1d(x, 2, stride=2**31), wanted)
        (reason,) = declined()
        assert "stride is [2147483648], wanted at least 1 and less than 2^31" in reason


def test_what_is_not_ours_is_declined_and_counted(device: str) -> None:
    x = torch.randn(2, 4, device=device)
    tangent = torch.randn(2, 4, device=device)
    with enabled():
        if device == "cpu":
            integers = torch.ones(1, 1, 4, 4, dtype=torch.int64)
            assert F.conv2d(integers, integers[..., :2, :2]).sum() == 36
            assert declined() == {"convolution: input is Long": 1}
        forward_ad: Any = torch.autograd.forward_ad
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            found = forward_ad.unpack_dual(F.softmax(dual, 1)).tangent
    y = x.softmax(1)
    check_equal([found], [y * (tangent - (y * tangent).sum(1, True))])
    counts = declined(reset=True)
    assert counts["_softmax: input has a tangent (forward-mode AD)"] == 1
    assert declined() == {}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_the_tangent_of_a_bias_alone_is_kept(mode: Any, device: str) -> None:
    x, w = torch.randn(1, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    tangent = torch.randn(3, device=device)
    forward_ad: Any = torch.autograd.forward_ad
    with mode(), enabled(), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(3, device=device), tangent)
        found = forward_ad.unpack_dual(F.conv2d(x, w, dual)).tangent
    check_equal([found], [tangent.view(1, 3, 1, 1).expand(1, 3, 3, 3)])


def test_subclasses_that_know_only_pytorchs_operators() -> None:
    from torch.testing._internal import two_tensor

    TwoTensor: Any = two_tensor.TwoTensor
    one, two = torch.randn(1, 2, 5, 5), torch.randn(1, 2, 5, 5)
    w = torch.randn(3, 2, 3, 3)
    with enabled():
        both = F.conv2d(TwoTensor(one, two), TwoTensor(w, w))
    assert isinstance(both, TwoTensor)
    torch.testing.assert_close(both.b, F.conv2d(two, w))
    assert any("__torch_dispatch__" in reason for reason in declined())


@pytest.mark.parametrize(
    ("sizes", "weight"), [((1, 3, 5, 5), (4, 2, 3, 3)), ((1, 2, 2, 2), (4, 2, 3, 3))]
)
def test_what_pytorch_refuses_is_refused_in_its_words(
    device: str, sizes: tuple[int, ...], weight: tuple[int, ...]
) -> None:
    x, w = torch.randn(sizes, device=device), torch.randn(weight, device=device)
    messages = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            F.conv2d(x, w)
        messages.append(str(caught.value).splitlines()[0])
        if not is_enabled():
            enable()
    assert messages[0] == messages[1]


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg2d": lambda x: F.avg_pool2d(x, (2, 2, 2), (2, 2, 2), (0, 0, 0)),  # type: ignore[arg-type]
    "avg3d": lambda x: F.avg_pool3d(x, (2, 2), (2, 2), (0, 0)),  # type: ignore[arg-type]
    "adaptive2d": lambda x: F.adaptive_avg_pool2d(x, (2, 2, 2)),  # type: ignore[arg-type]
    "adaptive3d": lambda x: F.adaptive_avg_pool3d(x, (2, 2)),  # type: ignore[arg-type]
    "max2d": lambda x: torch.max_pool2d(x, (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
    "max3d": lambda x: torch.max_pool3d(x, (2, 2), (2, 2), (0, 0), (1, 1)),
}


@pytest.mark.parametrize("kind", POOLINGS)
def test_pooling_that_pytorch_refuses_is_refused(kind: str, device: str) -> None:
    x = torch.randn(2, 4, 4, 4, device=device)
    with enabled(), pytest.raises(RuntimeError):
        POOLINGS[kind](x)


@pytest.mark.skipif(not hasattr(Tensor, "has_names"), reason="this PyTorch has no named tensors")
def test_named_tensors_are_pytorchs(device: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Named tensors")
        x = torch.randn(2, 8, 16, 16, device=device, names=("N", "C", "H", "W"))
        declined(reset=True)
        with enabled("autotune"):
            assert F.max_pool2d(x, 2).names == F.max_pool2d(x, 3).names == x.names
        assert sum(declined(reset=True).values()) == 2


def test_reasons_with_sizes_in_them_come_to_an_end(device: str) -> None:
    declined(reset=True)
    w = torch.randn(4, 3, 3, 3, device=device)
    with enabled():
        for size in range(300):
            with pytest.raises(RuntimeError):
                F.conv2d(torch.randn(1, 2, 8, 8 + size, device=device), w)
    assert 200 < len(declined()) <= 257
    assert sum(declined(reset=True).values()) == 300
