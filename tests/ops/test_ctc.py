"""The CTC loss: PyTorch's values, gradients by the logits, and errors."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import check_compiles, misaligned, needs_cuda, newest, refused_capture
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_cudnn_ext import _C, ops
from torch_cudnn_ext import nn as ours

RANGE = "allow_reduced_range"
ALGORITHMS = {
    "cpu": ("aten:default", "cpu:forward_backward", "cpu:rescaled"),
    "cuda": ("aten:default", "legacy:deterministic", "legacy:non_deterministic"),
}


def _policies(device: str, *, irregular: bool) -> list[str | None]:
    names = [n for n in ALGORITHMS[device] if not (irregular and n.startswith("legacy"))]
    return [None, *(f"fwd={name};{RANGE}" for name in names)]


def _batch(kind: str, device: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Logits, padded targets, and lengths."""
    logits = torch.randn(12, 4, 6, dtype=dtype, device=device, requires_grad=True)
    targets = torch.randint(1, 6, (4, 5), device=device)
    targets[0, 1] = targets[0, 0]  # a repetition
    inputs = {"full": [12, 12, 12, 12], "padded": [12, 10, 11, 9], "empty": [12, 10, 0, 0]}
    labels = {"full": [5, 5, 5, 5], "padded": [5, 3, 4, 1], "empty": [0, 3, 0, 2]}
    return logits, targets, torch.tensor(inputs[kind]), torch.tensor(labels[kind])


@pytest.mark.filterwarnings("ignore:reduction='elementwise_mean' is deprecated")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "elementwise_mean"])
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("kind", ["full", "padded", "empty"])
def test_values_and_gradients_are_pytorchs(
    kind: str, zero_infinity: bool, reduction: str, device: str
) -> None:
    logits, targets, inputs, labels = _batch(kind, device)
    flat = torch.cat([row[:n] for row, n in zip(targets, labels, strict=True)])
    for given in (targets, flat, targets.int()):
        arguments = (given, inputs, labels, 0, reduction, zero_infinity)
        with torch.backends.cudnn.flags(enabled=False):
            wanted = F.ctc_loss(logits.log_softmax(2), *arguments)
            (wanted_gradient,) = torch.autograd.grad(wanted.sum(), logits)
        for policy in _policies(device, irregular=kind == "empty"):
            got = ops.ctc_loss(logits.log_softmax(2), *arguments, policy=policy)
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
            (gradient,) = torch.autograd.grad(got.sum(), logits)
            torch.testing.assert_close(
                gradient, wanted_gradient, rtol=1e-4, atol=1e-4, equal_nan=True
            )


@pytest.mark.parametrize("blank", [0, 2, 5])
def test_blanks(blank: int, device: str) -> None:
    logits, targets, inputs, labels = _batch("padded", device, torch.float64)
    targets = targets - 1 + (targets - 1 >= blank).long()
    log_probs = logits.log_softmax(2)
    wanted = F.ctc_loss(log_probs, targets, inputs, labels, blank)
    for policy in ("", *(f"fwd={n};{RANGE}" for n in ALGORITHMS[device] if "legacy" not in n)):
        got = ops.ctc_loss(log_probs, targets, inputs, labels, blank, policy=policy)
        torch.testing.assert_close(got, wanted)


def test_what_lies_behind_a_target_is_not_read(device: str) -> None:
    logits, targets, inputs, labels = _batch("padded", device)
    spoilt = targets.clone()
    for row, length in zip(spoilt, labels, strict=True):
        row[length:] = -1
    for policy in _policies(device, irregular=False):
        got = ops.ctc_loss(logits.log_softmax(2), spoilt, inputs, labels, policy=policy)
        wanted = ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels, policy=policy)
        torch.testing.assert_close(got, wanted)


def test_without_a_batch(device: str) -> None:
    logits, targets, _, _ = _batch("full", device)
    log_probs = logits[:, 0].log_softmax(1)
    for reduction in ("none", "mean", "sum"):
        arguments = (targets[0], torch.tensor(12), torch.tensor(5), 0, reduction)
        with torch.backends.cudnn.flags(enabled=False):
            wanted = F.ctc_loss(log_probs, *arguments)
        torch.testing.assert_close(ops.ctc_loss(log_probs, *arguments), wanted)
        assert ops.ctc_loss(log_probs, targets[0], 12, 5, 0, reduction).shape == wanted.shape


def test_misaligned(device: str) -> None:
    logits, targets, inputs, labels = _batch("full", device)
    shifted = misaligned(logits.detach().log_softmax(2)).requires_grad_()
    aligned = shifted.detach().clone().requires_grad_()
    for policy in _policies(device, irregular=False):
        got = ops.ctc_loss(shifted, targets, inputs, labels, policy=policy)
        wanted = ops.ctc_loss(aligned, targets, inputs, labels, policy=policy)
        torch.testing.assert_close(got, wanted)
        (dx,) = torch.autograd.grad(got, shifted)
        torch.testing.assert_close(dx, torch.autograd.grad(wanted, aligned)[0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_targets_of_any_integer_type(dtype: torch.dtype, device: str) -> None:
    logits, targets, inputs, labels = _batch("full", device)
    log_probs = logits.log_softmax(2)
    got = ops.ctc_loss(log_probs, targets.to(dtype), inputs, labels)
    torch.testing.assert_close(got, ops.ctc_loss(log_probs, targets, inputs, labels))


def test_layouts(device: str) -> None:
    logits, targets, inputs, labels = _batch("padded", device, torch.float64)
    swapped = logits.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    got = ops.ctc_loss(swapped.log_softmax(2), targets.t().contiguous().t(), inputs, labels)
    wanted = F.ctc_loss(logits.log_softmax(2), targets, inputs, labels)
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(
        torch.autograd.grad(got, swapped), torch.autograd.grad(wanted, logits)
    )


def test_gradient_by_the_logits(device: str) -> None:
    logits, targets, inputs, labels = _batch("padded", device, torch.float64)
    for policy in ("", *(f"fwd={n};{RANGE}" for n in ALGORITHMS[device] if "legacy" not in n)):
        assert torch.autograd.gradcheck(
            lambda t, p=policy: ops.ctc_loss(t.log_softmax(2), targets, inputs, labels, policy=p),
            (logits,),
            nondet_tol=1e-9,
        )


def test_second_gradients_are_refused(device: str) -> None:
    logits, targets, inputs, labels = _batch("full", device)
    loss = ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels)
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="ctc_loss's gradient is not implemented"):
        gradient.square().sum().backward()


def test_nested_transforms(device: str) -> None:
    logits, targets, inputs, labels = _batch("full", device)

    def loss(t: Tensor) -> Tensor:
        return ops.ctc_loss(t.log_softmax(2), targets, inputs, labels)

    got = torch.func.grad(loss)(logits.detach())
    torch.testing.assert_close(got, torch.autograd.grad(loss(logits), logits)[0])
    with pytest.raises(NotImplementedError, match="ctc_loss's gradient is not implemented"):
        torch.func.grad(lambda t: torch.func.grad(loss)(t).square().sum())(logits.detach())


def test_pins_are_obeyed(device: str) -> None:
    logits, targets, inputs, labels = _batch("full", device)
    for pin in ALGORITHMS[device]:
        policy = f"fwd={pin};{RANGE}"
        ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels, policy=policy).backward()
        choice = newest("ctc_fwd")
        assert (choice.algorithm, choice.why) == (pin, "pinned")
        assert "gradient=true" in choice.problem
    ops.ctc_loss(logits.detach().log_softmax(2), targets, inputs, labels)
    assert "gradient" not in newest("ctc_fwd").problem


def test_autotune(device: str) -> None:
    logits, targets, inputs, labels = _batch("full", device)
    got = ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels, policy="autotune")
    assert newest("ctc_fwd").why == "tuned"
    wanted = ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels)
    torch.testing.assert_close(got, wanted)


def test_compiles_whole(device: str) -> None:
    logits, targets, inputs, labels = _batch("padded", device, torch.float64)

    def loss(logits: Tensor) -> Tensor:
        return ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels)

    check_compiles(loss, logits)


@pytest.mark.parametrize("on_host", [True, False])
def test_opcheck(device: str, on_host: bool) -> None:
    logits, targets, inputs, labels = _batch("padded", device, torch.float64)
    log_probs = logits.detach().log_softmax(2).requires_grad_()
    lengths = (inputs, labels) if on_host else (inputs.to(device), labels.to(device))
    torch.library.opcheck(
        torch.ops.torch_cudnn_ext.ctc_loss.default, (log_probs, targets, *lengths)
    )


def test_fake_lengths_may_be_on_the_host() -> None:
    with FakeTensorMode():
        log_probs = torch.zeros(5, 2, 3, device="cuda", requires_grad=True)
        targets, lengths = torch.ones(2, 4, dtype=torch.long, device="cuda"), torch.tensor([3, 4])
        loss = ops.ctc_loss(log_probs, targets, lengths, lengths, reduction="none")
        assert loss.device.type == "cuda" and loss.shape == (2,)


def test_autocast(device: str) -> None:
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    logits, targets, inputs, labels = _batch("full", device)
    with torch.autocast(device, lower):
        log_probs = logits.detach().log_softmax(2).to(lower)
        assert ops.ctc_loss(log_probs, targets, inputs, labels).dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"log_probs": torch.zeros(4, 2, 3).half()}, "log_probs is Half, wanted Float or Double"),
        ({"log_probs": torch.zeros(4, 0, 3)}, "wanted none of them empty"),
        ({"log_probs": torch.zeros(4)}, "wanted 3 dimensions"),
        ({"targets": torch.zeros(2, 2)}, "targets is Float, wanted Long or Int"),
        ({"targets": torch.zeros(3, 2).long()}, "targets has sizes .3, 2., wanted one dimension"),
        ({"targets": torch.zeros(3).long()}, "targets has 3 elements, wanted the sum of"),
        ({"targets": torch.zeros(5).long()}, "targets has 5 elements, wanted the sum of"),
        ({"targets": torch.full((2, 2), 3)}, "targets holds 3, wanted .* of classes, 3"),
        ({"targets": torch.tensor([[1, 1], [1, -1]])}, "targets holds -1, wanted at least 0"),
        ({"input_lengths": [4, 5]}, "input_lengths holds 5, wanted at least 0 and at most 4"),
        ({"input_lengths": [4]}, "input_lengths has sizes .1., wanted .2."),
        ({"target_lengths": [2, 3]}, "target_lengths holds 3, wanted at least 0 and at most 2"),
        ({"target_lengths": [2, -1]}, "target_lengths holds -1"),
        ({"blank": 3}, "blank is 3, wanted at least 0 and less than 3"),
        ({"reduction": "meen"}, "reduction: got 'meen', wanted 'none', 'mean' or 'sum'"),
    ],
)
def test_errors_name_the_argument(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "log_probs": torch.zeros(4, 2, 3),
        "targets": torch.ones(2, 2, dtype=torch.int64),
        "input_lengths": [4, 4],
        "target_lengths": [2, 2],
    }
    with pytest.raises(ValueError, match=message):
        ops.ctc_loss(**(arguments | changes))


@needs_cuda
def test_a_capture_is_refused() -> None:
    arguments = _batch("full", "cuda")
    ops.ctc_loss(*arguments)
    with refused_capture("ctc_loss cannot be captured into a CUDA graph"):
        ops.ctc_loss(*arguments)
    assert ops.ctc_loss(*arguments).isfinite()


def test_refusals_say_why() -> None:
    rows = {
        "f64[9,3,5]:nchw target_length=4": "is f32",
        "f32[9,3,5]:nchw target_length=4 blank=1": "blank is class 0",
        "f32[9,3,5]:nchw target_length=4 lengths=irregular": "targets that are not empty",
    }
    for (fields, reason), name in itertools.product(
        rows.items(), ("legacy:deterministic", "legacy:non_deterministic")
    ):
        listed = _C.candidates(f"ctc_fwd log_probs={fields}", "target:h200", "")
        (row,) = (c for c in listed if c["algorithm"] == name)
        assert row["status"] == "unsupported" and reason in row["reason"]


def test_module(device: str) -> None:
    logits, targets, inputs, labels = _batch("padded", device, torch.float64)
    mine = ours.CTCLoss(2, "sum", True, policy="fwd=aten:default")
    theirs = torch.nn.CTCLoss(2, "sum", True)
    log_probs = logits.detach().log_softmax(2)
    for module in (mine, copy.deepcopy(mine), pickle.loads(pickle.dumps(mine))):
        assert module.policy == "fwd=aten:default"
        torch.testing.assert_close(
            module(log_probs, targets, inputs, labels), theirs(log_probs, targets, inputs, labels)
        )
    mine.load_state_dict(theirs.state_dict())


@needs_cuda
def test_tuning_where_pytorchs_own_gradient_refuses_to_run() -> None:
    logits, targets, inputs, labels = _batch("full", "cuda")
    torch.use_deterministic_algorithms(True)
    loss = ops.ctc_loss(logits.log_softmax(2), targets, inputs, labels, policy=f"autotune;{RANGE}")
    loss.backward()
    assert newest("ctc_fwd").algorithm == "legacy:deterministic"


def test_a_loss_is_infinite_unless_asked_for() -> None:
    x, target = torch.randn(2, 1, 4).log_softmax(2), torch.tensor([[1, 2, 3]])  # too long for two
    assert ops.ctc_loss(x, target, (2,), (3,)).isinf()
    assert ours.CTCLoss()(x, target, (2,), (3,)).isinf()
    assert ops.ctc_loss(x, target, (2,), (3,), zero_infinity=True) == 0


@pytest.mark.parametrize("place", [1, 2, 3])
def test_one_tensor_on_the_meta_device_is_refused(place: int, device: str) -> None:
    arguments = list(_batch("full", device))
    arguments[place] = torch.as_tensor(arguments[place]).to("meta")
    with pytest.raises(ValueError, match="is on meta, wanted log_probs's device"):
        ops.ctc_loss(*arguments)


@pytest.mark.parametrize("policy", ["aten:default", "cpu:forward_backward"])
def test_a_blank_among_the_targets_is_as_pytorch_has_it(policy: str) -> None:
    log_probs = torch.randn(6, 1, 4, dtype=torch.float64).log_softmax(2)
    arguments = (torch.tensor([[1, 0, 2]]), (6,), (3,))
    wanted = F.ctc_loss(log_probs, *arguments)
    torch.testing.assert_close(ops.ctc_loss(log_probs, *arguments, policy=policy), wanted)


def test_lengths_without_a_batch(device: str) -> None:
    log_probs = torch.randn(5, 4, device=device).log_softmax(1)
    targets = torch.tensor([1, 2], device=device)
    with pytest.raises(ValueError, match="input_lengths: got sizes .2.* wanted one length"):
        ops.ctc_loss(log_probs, targets, [5, 5], 2)
    with pytest.raises(ValueError, match="targets has 2 elements, wanted the sum of"):
        ops.ctc_loss(log_probs, targets, 5, 1)
    wanted = ops.ctc_loss(log_probs, targets, 5, 2)
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        lengths = torch.tensor(5, dtype=dtype), torch.tensor(2, dtype=dtype)
        torch.testing.assert_close(ops.ctc_loss(log_probs, targets, *lengths), wanted)


def test_targets_of_every_type_that_pytorch_takes(device: str) -> None:
    log_probs = torch.randn(6, 1, 2, device=device).log_softmax(2)
    targets = torch.ones(1, 2, dtype=torch.int64, device=device)
    wanted = ops.ctc_loss(log_probs, targets, (6,), (2,))
    for dtype in (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32):
        torch.testing.assert_close(ops.ctc_loss(log_probs, targets.to(dtype), (6,), (2,)), wanted)
