"""Each error says what was wrong: the operator, the argument, what came, and what was wanted."""

import re
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import left_by_forward, needs_cuda, newest
from torch import Tensor
from torch.nn import functional as F

from torch_cudnn_ext import _C, enabled, explain, nn, ops, profile_model, trace, tuning
from torch_cudnn_ext.analysis.coverage import coverage

OPS = torch.ops.torch_cudnn_ext
# PyTorch's dispatcher turns some kinds of error of an operator into RuntimeError.
REFUSED = (RuntimeError, TypeError, ValueError)
PIN_THAT_CANNOT_RUN = {"cpu": "legacy:fft", "cuda": "cpu:im2col"}
PIN_THAT_CAN = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}


def images(device: str = "cpu", **keywords: Any) -> Tensor:
    return torch.randn(2, 4, 8, 8, device=device, **keywords)


def filters(device: str = "cpu", **keywords: Any) -> Tensor:
    return torch.randn(6, 4, 3, 3, device=device, **keywords)


def assert_says(caught: pytest.ExceptionInfo[BaseException], *parts: str) -> None:
    message = str(caught.value)
    for part in parts:
        assert part in message, f"{part!r} is not in: {message}"


# --- the functions' own checks -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "kind", "parts"),
    [
        ({"input": None}, TypeError, ("input", "None", "Tensor")),
        ({"weight": [1.0]}, TypeError, ("weight", "list", "Tensor")),
        ({"input": torch.ones(2, 4)}, ValueError, ("input", "[2, 4]", "4 dimensions")),
        ({"weight": torch.ones(6, 4, 3)}, ValueError, ("weight", "[6, 4, 3]", "4 dimensions")),
        ({"stride": "2"}, TypeError, ("stride", "'2'", "integer")),
        ({"stride": 1.5}, TypeError, ("stride", "1.5", "integer")),
        ({"stride": (1, 2.0)}, TypeError, ("stride", "(1, 2.0)", "integer")),
        ({"stride": (1, 1, 1)}, ValueError, ("stride", "3 numbers", "one or 2")),
        ({"dilation": None}, TypeError, ("dilation", "None", "integer")),
        ({"padding": True}, TypeError, ("padding", "True", "integer")),
        ({"padding": (1, 1, 1, 1)}, ValueError, ("padding", "4 numbers", "one or 2")),
        ({"padding": "some"}, ValueError, ("padding", "'some'", "valid, same, half, full")),
        ({"padding": "same", "stride": 2}, ValueError, ("padding", "'same'", "stride 1")),
        ({"conv_mode": "sideways"}, ValueError, ("conv_mode", "'sideways'", "'cross' or 'conv'")),
    ],
)
def test_a_bad_argument_of_a_function(
    keywords: dict[str, Any], kind: type[Exception], parts: tuple[str, ...]
) -> None:
    arguments = {"input": images(), "weight": filters(), **keywords}
    with pytest.raises(kind) as caught:
        ops.conv2d(**arguments)
    assert_says(caught, "conv2d", *parts)


@pytest.mark.parametrize(
    ("policy", "kind", "parts"),
    [
        (3, ValueError, ("policy", "3", "fwd=3")),
        (1.5, TypeError, ("policy", "1.5", "Policy")),
        ({"fwd": "nonsense"}, ValueError, ("fwd", "'nonsense'", "algorithm")),
        ({"sideways": "fft"}, TypeError, ("sideways",)),
    ],
)
def test_a_bad_policy_argument(policy: Any, kind: type[Exception], parts: tuple[str, ...]) -> None:
    with pytest.raises(kind) as caught:
        ops.conv2d(images(), filters(), policy=policy)
    assert_says(caught, *parts)


STEPS = torch.zeros(4, 2, 3)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: ops.lstm(STEPS, None, cast(Any, [1])), "params"),
        (lambda: ops.lstm(STEPS, None, cast(Any, 1)), "params"),
        (lambda: ops.lstm(STEPS, None, cast(Any, torch.tensor(1.0))), "params"),
        (lambda: ops.lstm(STEPS, cast(Any, 1), []), "hx"),
        (lambda: ops.lstm(STEPS, cast(Any, torch.tensor(1.0)), []), "hx"),
        (lambda: ops.gru(STEPS, cast(Any, 1), []), "hx"),
        (lambda: ops.batch_norm_train(STEPS, cast(Any, 1)), "running_mean"),
        (lambda: ops.batch_norm_train(STEPS, None, cast(Any, 1)), "running_var"),
        (lambda: ops.batch_norm_train(STEPS, weight=cast(Any, 1)), "weight"),
        (lambda: ops.reduce(STEPS, cast(Any, 1), return_indices=True), "kind"),
    ],
)
def test_a_wrong_type_is_told_in_one_line(call: Callable[[], object], argument: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert_says(caught, f"argument '{argument}'")
    assert "\n" not in str(caught.value)


# Calls with an argument of a wrong type; its name, its value's beginning, and what is wanted.
WRONG_TYPES: list[tuple[Callable[..., object], str, str, str]] = [
    (lambda: ops.adaptive_avg_pool2d(images(), cast(Any, 2.5)), "output_size", "2.5", "an integer"),
    (lambda: ops.adaptive_avg_pool2d(images(), b"ab"), "output_size", "b'ab'", "an integer"),
    (lambda: ops.adaptive_max_pool2d(images(), cast(Any, 2.5)), "output_size", "2.5", "an integer"),
    (lambda: ops.lp_pool2d(images(), cast(Any, "a"), 2), "norm_type", "'a' (str)", "a number"),
    (lambda: ops.lp_pool2d(images(), cast(Any, 2j), 2), "norm_type", "2j (complex)", "a number"),
    (
        lambda: ops.batch_norm(images(), None, None, training=True, eps=cast(Any, "a")),
        "eps",
        "'a' (str)",
        "a number",
    ),
    (lambda: ops.batch_norm_train(images(), eps=cast(Any, None)), "eps", "None", "a number"),
    (lambda: ops.group_norm(images(), cast(Any, "a")), "num_groups", "'a' (str)", "an integer"),
    (lambda: ops.layer_norm(images(), cast(Any, 8)), "normalized_shape", "8 (int)", "integers"),
    (lambda: ops.rms_norm(images(), cast(Any, "8")), "normalized_shape", "'8'", "integers"),
    (lambda: ops.clipped_relu(STEPS, cast(Any, "6"), inplace=True), "ceiling", "'6'", "a number"),
    (lambda: ops.elu(STEPS, cast(Any, None)), "alpha", "None (NoneType)", "a number"),
    (lambda: ops.swish(STEPS, cast(Any, 1j)), "beta", "1j (complex)", "a number"),
    (lambda: ops.dropout(images(), cast(Any, torch.ones(2))), "p", "tensor([1., 1.])", "a number"),
    (lambda: ops.dropout(images(), cast(Any, torch.ones((), device="meta"))), "p", "", "a number"),
    (lambda: _ctc_loss("ab", [1]), "input_lengths", "'ab' (str)", "a Tensor or integers"),
    (lambda: _ctc_loss([4], None), "target_lengths", "None", "a Tensor or integers"),
    (lambda: _lstm_packed(torch.tensor([2.0, 2.0])), "batch_sizes", "[2.0, 2.0]", "integers"),
    (lambda: _lstm_packed(torch.ones(2, device="meta").long()), "batch_sizes", "", "integers"),
    (lambda: _lstm_packed(1), "batch_sizes", "1 (int)", "integers"),
    (lambda: _cross_entropy("a"), "label_smoothing", "'a' (str)", "a number"),
    (lambda: _cross_entropy(torch.ones(2)), "label_smoothing", "tensor([1., 1.])", "a number"),
    # An integer would be read as one of the dispatcher's numbers of dtypes.
    (lambda: ops.softmax(STEPS, 1, cast(Any, -1)), "dtype", "-1 (int)", "a torch.dtype"),
    (lambda: ops.log_softmax(STEPS, 1, cast(Any, 6)), "dtype", "6 (int)", "a torch.dtype"),
    (lambda: nn.LSTM(3, 4)(3), "input", "3 (int)", "a Tensor"),
    (lambda: nn.LSTM(3, 4)(STEPS, 3), "hx", "3 (int)", "a hidden and a cell state"),
    (lambda: nn.LSTM(3, 4)(STEPS, STEPS), "hx", "tensor(", "a hidden and a cell state"),
    (lambda: nn.LSTM(3, 4)(STEPS, (STEPS,)), "hx", "(tensor(", "a hidden and a cell state"),
    (lambda: nn.LSTM(3, 4)(STEPS, (3, STEPS)), "hx", "3 (int)", "a Tensor"),
    (lambda: ops.sum(images(), cast(Any, "a")), "dim", "'a' (str)", "integers"),
    (lambda: ops.sum(images(), cast(Any, 1.0)), "dim", "1.0 (float)", "integers"),
    (lambda: ops.layer_norm(images(), cast(Any, b"\x08")), "normalized_shape", "b'", "integers"),
]

# Functions of one argument, by its name.
INTEGERS: list[tuple[str, Callable[[Any], object]]] = [
    ("divisor_override", lambda n: ops.avg_pool2d(images(), 2, divisor_override=n)),
    ("dim", lambda n: ops.softmax(images(), n)),
    ("dim", lambda n: ops.log_softmax(images(), n)),
    ("size", lambda n: ops.local_response_norm(images(), n)),
    ("size", lambda n: ops.divisive_norm(images(), n)),
    ("blank", lambda n: _ctc_loss([4], [1], blank=n)),
    ("num_layers", lambda n: _gru(num_layers=n)),
    ("groups", lambda n: ops.conv2d(images(), filters()[:, :2], groups=n, conv_mode="conv")),
    (
        "groups",
        lambda n: ops.conv_transpose2d(images(), filters()[:4], groups=n, conv_mode="conv"),
    ),
    ("groups", lambda n: ops.conv2d(images(), filters()[:, :2], groups=n)),
    ("groups", lambda n: ops.conv_transpose2d(images(), filters()[:4], groups=n)),
    ("ignore_index", lambda n: ops.cross_entropy(STEPS[0], STEPS[0, :, 0].long(), ignore_index=n)),
    ("groups", lambda n: ops.convolution(images(), filters()[:, :2], groups=n)),
    (
        "groups",
        lambda n: ops.convolution_backward_input(
            images()[..., :6, :6], filters()[:4, :2], (2, 4, 8, 8), groups=n
        ),
    ),
    (
        "groups",
        lambda n: ops.convolution_backward_weight(
            images()[..., :6, :6], images(), (4, 2, 3, 3), groups=n
        ),
    ),
]
NUMBERS: list[tuple[str, Callable[[Any], object]]] = [
    ("alpha", lambda a: ops.elu(STEPS, a)),
    ("alpha", lambda a: ops.gemm(STEPS[0], STEPS[0].T, alpha=a)),
    *(
        (name, lambda a, name=name, norm=norm: norm(images(), 3, **{name: a}))
        for norm in (ops.local_response_norm, ops.divisive_norm)
        for name in ("alpha", "beta", "k")
    ),
    *(
        (
            name,
            lambda a, name=name: ops.batch_norm(images(), None, None, training=True, **{name: a}),
        )
        for name in ("momentum", "eps")
    ),
    *(
        (name, lambda a, name=name: ops.batch_norm_train(images(), **{name: a}))
        for name in ("momentum", "eps")
    ),
    *(
        (name, lambda a, name=name: ops.instance_norm(images(), **{name: a}))
        for name in ("momentum", "eps")
    ),
    ("eps", lambda a: ops.layer_norm(images(), (8,), eps=a)),
    ("eps", lambda a: ops.rms_norm(images(), (8,), eps=a)),
    ("eps", lambda a: ops.group_norm(images(), 2, eps=a)),
    ("dropout", lambda a: _gru(dropout=a)),
]
FLAGS: list[tuple[str, Callable[[Any], object]]] = [
    ("ceil_mode", lambda b: ops.max_pool2d(images(), 2, ceil_mode=b)),
    ("ceil_mode", lambda b: ops.avg_pool2d(images(), 2, ceil_mode=b)),
    ("ceil_mode", lambda b: ops.sum_pool2d(images(), 2, ceil_mode=b)),
    ("ceil_mode", lambda b: ops.lp_pool2d(images(), 2, 2, ceil_mode=b)),
    ("count_include_pad", lambda b: ops.avg_pool2d(images(), 2, count_include_pad=b)),
    ("return_indices", lambda b: ops.max_pool2d(images(), 2, return_indices=b)),
    ("return_indices", lambda b: ops.adaptive_max_pool2d(images(), 2, return_indices=b)),
    ("return_indices", lambda b: ops.reduce(STEPS, "max", 0, return_indices=b)),
    ("inplace", lambda b: ops.relu(images(), b)),
    ("inplace", lambda b: ops.dropout(images(), inplace=b)),
    ("training", lambda b: ops.batch_norm(images(), STEPS[0, 0], STEPS[0, 0], training=b)),
    ("training", lambda b: ops.dropout(images(), training=b)),
    ("use_input_stats", lambda b: ops.instance_norm(images(), use_input_stats=b)),
    ("transposed", lambda b: ops.convolution(images(), filters()[:4], transposed=b)),
    ("keepdim", lambda b: ops.sum(STEPS, 0, b)),
    ("keepdim", lambda b: ops.argmax(STEPS, 0, b)),
    ("align_corners", lambda b: ops.affine_grid(STEPS[:, :2], [5, 1, 2, 2], b)),
    ("align_corners", lambda b: ops.grid_sample(images(), images()[..., :2], align_corners=b)),
    ("transpose_a", lambda b: ops.gemm(STEPS, STEPS, transpose_a=b)),
    ("transpose_b", lambda b: ops.gemm(STEPS, STEPS, transpose_b=b)),
    ("zero_infinity", lambda b: _ctc_loss([4], [1], zero_infinity=b)),
    *(
        (name, lambda b, name=name: _gru(**{name: b}))
        for name in ("has_biases", "train", "bidirectional", "batch_first")
    ),
    *((name, lambda b, name=name: _gru(**{name: b})) for name in ("skip_input", "single_bias")),
]


def _ctc_loss(input_lengths: Any, target_lengths: Any, **options: Any) -> Tensor:
    targets = torch.ones(1, 1).long()
    return ops.ctc_loss(STEPS[:, :1], targets, input_lengths, target_lengths, **options)


def _gru(**options: Any) -> object:
    layers = 2 if "num_layers" in options else 1
    weights = torch.nn.GRU(3, 4, layers).parameters()
    return ops.gru(STEPS, None, list(weights), **options)


def _cross_entropy(label_smoothing: Any) -> Tensor:
    return ops.cross_entropy(STEPS[0], torch.tensor([0, 2]), label_smoothing=label_smoothing)


def _lstm_packed(batch_sizes: Any) -> object:
    return ops.lstm(STEPS[:, 0], None, list(nn.LSTM(3, 4).parameters()), batch_sizes=batch_sizes)


@pytest.mark.parametrize(("call", "argument", "got", "wanted"), WRONG_TYPES)
def test_a_wrong_type_is_told_with_what_came(
    call: Callable[[], object], argument: str, got: str, wanted: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert_says(caught, f": argument {argument}: got {got}", f", wanted {wanted}")


NO_INTEGERS = [np.float32(2.7), torch.tensor(2.7), 2.0, True, "2", 2**70]


@pytest.mark.parametrize("given", NO_INTEGERS, ids=repr)
@pytest.mark.parametrize(("argument", "call"), INTEGERS)
def test_an_integer_is_not_cut_from_something_else(
    argument: str, call: Callable[[Any], object], given: Any
) -> None:
    with pytest.raises(TypeError) as caught:
        call(given)
    assert_says(caught, f": argument {argument}: got {given!r}", "wanted an integer")


@pytest.mark.parametrize("given", [2, np.int64(2), torch.tensor(2)], ids=repr)
@pytest.mark.parametrize(("argument", "call"), INTEGERS)
def test_integers_of_other_kinds_are_taken(
    argument: str, call: Callable[[Any], object], given: Any
) -> None:
    call(given)


@pytest.mark.parametrize(
    "given", [float("nan"), None, 1, "yes", torch.tensor(True)], ids=["nan", "None", "1", "a", "t"]
)
@pytest.mark.parametrize(("argument", "call"), FLAGS)
def test_a_flag_is_a_bool(argument: str, call: Callable[[Any], object], given: Any) -> None:
    if argument == "align_corners" and given is None:
        pytest.skip("None is PyTorch's default here")
    with pytest.raises(TypeError) as caught:
        call(given)
    assert_says(caught, f": argument {argument}: got {given!r}", "wanted a bool")


def test_numpy_s_bools_are_flags() -> None:
    x = images()
    y = ops.max_pool2d(x, 3, 2, ceil_mode=cast(Any, np.bool_(True)))
    torch.testing.assert_close(y, torch.nn.functional.max_pool2d(x, 3, 2, ceil_mode=True))


@pytest.mark.parametrize("function", [profile_model, tuning.tune_model, coverage, explain, trace])
def test_what_is_looked_at_is_a_module(function: Callable[..., object]) -> None:
    with pytest.raises(TypeError) as caught:
        function([torch.nn.ReLU()], torch.randn(3))
    assert_says(caught, f"{function.__name__}: argument model: got [ReLU()] (list)", "Module")


@pytest.mark.parametrize("function", [profile_model, tuning.tune_model, coverage, explain, trace])
def test_a_lazy_layer_must_be_initialised(function: Callable[..., object]) -> None:
    for lazy in (torch.nn.LazyConv2d(4, 3), torch.nn.LazyBatchNorm2d(affine=False)):
        model = torch.nn.Sequential(lazy)
        with pytest.raises(ValueError) as caught:
            function(model, images())
        kind = type(lazy).__name__
        assert_says(caught, f"{function.__name__}: argument model: got 0, a {kind} that is not")
        assert type(model[0]).__name__ == kind


@pytest.mark.parametrize("word", ["average", None, 1.5, ["mean"]])
def test_a_reduction_is_one_of_three_words(word: Any) -> None:
    said = f"argument reduction: got {word!r}, wanted 'none', 'mean' or 'sum'"
    with pytest.raises(ValueError) as caught:
        ops.cross_entropy(STEPS, torch.zeros(4, 3, dtype=torch.long), reduction=word)
    assert str(caught.value) == f"cross_entropy: {said}"
    with pytest.raises(ValueError) as caught:
        ops.ctc_loss(STEPS, torch.ones(2, 1), [4, 4], [1, 1], reduction=word)
    assert str(caught.value) == f"ctc_loss: {said}"


def test_what_transposed_convolutions_refuse() -> None:
    with pytest.raises(ValueError) as caught:
        ops.conv_transpose2d(images(), torch.randn(4, 6, 3, 3), padding="same")
    assert_says(caught, "conv_transpose2d", "padding", "'same'", "valid, half, full")
    with pytest.raises(ValueError) as caught:
        ops.conv_transpose2d(images(), torch.randn(4, 6, 3, 3), output_padding=(1, 1, 1))
    assert_says(caught, "conv_transpose2d", "output_padding", "3 numbers", "one or 2")


def test_what_primitives_refuse() -> None:
    x, w = images(), filters()
    dy = torch.randn(2, 6, 6, 6)
    with pytest.raises(ValueError) as caught:
        ops.convolution(x, w[:, :, :2, :2], padding="same")
    assert_says(caught, "convolution", "padding", "'same'", "(2, 2)")
    with pytest.raises(ValueError) as caught:
        ops.convolution(x, w, z=dy, out=dy)
    assert_says(caught, "convolution", "z", "out")
    with pytest.raises(ValueError) as caught:
        ops.convolution_backward_input(dy, w, (2, 4, 8))
    assert_says(caught, "convolution_backward_input", "input_size", "[2, 4, 8]", "4 sizes")
    with pytest.raises(ValueError) as caught:
        ops.convolution_backward_weight(dy, x, [3])
    assert_says(caught, "convolution_backward_weight", "weight_size", "[3]", "4 sizes")
    with pytest.raises(TypeError) as wrong_type:
        ops.convolution_backward_input(dy, w, 8)  # type: ignore[arg-type]
    assert_says(wrong_type, "convolution_backward_input", "input_size", "8", "4 sizes")
    with pytest.raises(ValueError) as caught:
        ops.convolution_backward_weight(dy, x[0, 0], w.shape)
    assert_says(caught, "convolution_backward_weight", "input", "[8, 8]", "dimensions")


# --- the operators' checks ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"weight": torch.randn(6, 3, 3, 3)}, ("weight", "3", "4")),
        ({"groups": 3}, ("groups", "3")),
        ({"groups": 0}, ("groups", "0")),
        ({"weight": torch.randn(5, 2, 3, 3), "groups": 2}, ("5", "groups")),
        ({"weight": torch.randn(6, 4, 3, 3, dtype=torch.float64)}, ("weight", "dtype")),
        ({"bias": torch.randn(5)}, ("bias", "5", "6")),
        ({"bias": torch.randn(6, 1)}, ("bias", "6")),
        ({"stride": [0, 1]}, ("stride", "0")),
        ({"stride": [1, -1]}, ("stride", "-1")),
        ({"padding": [-1, 0]}, ("padding", "-1")),
        ({"dilation": [1, 0]}, ("dilation", "0")),
        ({"weight": torch.randn(6, 4, 9, 9)}, ("9", "8")),
        ({"weight": torch.randn(6, 4, 3)}, ("torch_cudnn_ext::conv2d", "weight has sizes")),
        ({"input": torch.randn(2, 4, 8)[0, 0]}, ("input",)),
        ({"input": torch.ones(2, 4, 8, 8, dtype=torch.int64)}, ("input",)),
    ],
)
def test_a_bad_argument_of_an_operator(
    arguments: dict[str, Any], parts: tuple[str, ...], device: str
) -> None:
    given: dict[str, Any] = {
        "input": images(),
        "weight": filters(),
        "bias": None,
        "stride": [1, 1],
        "padding": [0, 0],
        "dilation": [1, 1],
        "groups": 1,
        **arguments,
    }
    moved = {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in given.items()
    }
    with pytest.raises(REFUSED) as caught:
        OPS.conv2d.default(*moved.values())
    assert_says(caught, "torch_cudnn_ext::conv", *parts)


def test_a_policy_that_accumulates_in_less_than_the_data(device: str) -> None:
    x, w = (torch.randn(s, device=device).double() for s in ((1, 2, 4, 4), (2, 2, 3, 3)))
    with pytest.raises(ValueError, match="compute is f32 for f64 data, wanted f64"):
        ops.conv2d(x, w, policy="compute=f32")


# (x, w, options): PyTorch refuses each as well.
WITHOUT_ELEMENTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "other_channels": ((0, 3, 4, 4), (2, 5, 3, 3), {}, "weight has sizes [2, 5, 3, 3]"),
    "large_kernel": ((0, 3, 4, 4), (2, 3, 5, 5), {}, "weight has sizes [2, 3, 5, 5]"),
    "stride": ((0, 3, 4, 4), (2, 3, 3, 3), {"stride": [0, 1]}, "stride is [0, 1]"),
    "groups": ((0, 3, 4, 4), (2, 3, 3, 3), {"groups": 0}, "groups is 0"),
    "kernel": ((1, 3, 4, 4), (2, 3, 0, 3), {}, "weight has sizes [2, 3, 0, 3]"),
    "output_channels": ((1, 3, 4, 4), (0, 3, 3, 3), {}, "weight has sizes [0, 3, 3, 3]"),
    "space": ((1, 3, 0, 4), (2, 3, 3, 3), {"padding": [2, 2]}, "input has sizes [1, 3, 0, 4]"),
}
TRANSPOSED_WITHOUT_ELEMENTS: dict[
    str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]
] = {
    "groups": ((1, 3, 4, 4), (3, 2, 3, 3), {"groups": 0}, "groups is 0"),
    "groups_and_batch": ((0, 3, 4, 4), (3, 2, 3, 3), {"groups": 0}, "groups is 0"),
    "other_channels": ((0, 3, 4, 4), (5, 2, 3, 3), {}, "input has sizes [0, 3, 4, 4]"),
    "kernel": ((1, 3, 4, 4), (3, 2, 0, 3), {}, "weight has sizes [3, 2, 0, 3]"),
    "output_channels": ((1, 3, 4, 4), (3, 0, 3, 3), {}, "weight has sizes [3, 0, 3, 3]"),
    "space": ((1, 3, 0, 4), (3, 2, 3, 3), {}, "input has sizes [1, 3, 0, 4]"),
    "padded_space": (
        (1, 3, 0, 4),
        (3, 2, 3, 3),
        {"output_padding": [1, 0], "dilation": [2, 2]},
        "input has sizes [1, 3, 0, 4]",
    ),
    "stride": ((1, 3, 4, 4), (3, 2, 3, 3), {"stride": [0, 1]}, "stride is [0, 1]"),
    "output_padding": ((1, 3, 4, 4), (3, 2, 3, 3), {"output_padding": [-1, 0]}, "[-1, 0]"),
    "large_padding": ((1, 3, 1, 1), (3, 2, 3, 3), {"padding": [2, 2]}, "padding [2, 2]"),
}


@pytest.mark.parametrize("where", ["real", "meta"])
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(("conv2d", case) for case in WITHOUT_ELEMENTS),
        *(("conv_transpose2d", case) for case in TRANSPOSED_WITHOUT_ELEMENTS),
    ],
)
def test_sizes_are_checked_without_elements(name: str, case: str, where: str, device: str) -> None:
    cases = WITHOUT_ELEMENTS if name == "conv2d" else TRANSPOSED_WITHOUT_ELEMENTS
    x_sizes, w_sizes, options, part = cases[case]
    x, w = torch.randn(x_sizes), torch.randn(w_sizes)
    with pytest.raises((RuntimeError, ValueError)):
        getattr(torch.nn.functional, name)(x, w, **options)
    device = device if where == "real" else "meta"
    x, w = x.to(device), w.to(device)
    with pytest.raises(ValueError) as caught:
        getattr(OPS, name)(x, w, **options)
    assert_says(caught, "torch_cudnn_ext::convolution", part, "at least" if "is 0" in part else "")


@pytest.mark.parametrize("where", ["real", "meta"])
def test_lists_are_checked_before_they_are_read(where: str, device: str) -> None:
    device = device if where == "real" else "meta"

    def sized(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device)

    def refuses(name: str, part: str, *arguments: Any) -> None:
        with pytest.raises(ValueError) as caught:
            getattr(OPS, name)(*arguments)
        assert_says(caught, f"torch_cudnn_ext::{name}", part)

    x, w, dy = sized(1, 2, 4, 4), sized(2, 2, 3, 3), sized(1, 2, 2, 2)
    one, none = [1, 1], [0, 0]
    for sizes in ([], [1, 2], [1, 2, 4, 4, 4]):
        part = f"input_size is {sizes}"
        refuses("convolution_backward_input", part, dy, w, sizes, one, none, one, 1)
        part = f"weight_size is {sizes}"
        refuses("convolution_backward_weight", part, dy, x, sizes, one, none, one, 1)
    for batch in (0, 1):
        x = sized(batch, 2, 4, 4)
        for transposed in (False, True):
            fixed = (transposed, [0, 0], 1)
            refuses("convolution", "padding is [0]", x, w, None, one, [0], one, *fixed)
            refuses("convolution", "stride is []", x, w, None, [], none, one, *fixed)
            refuses("convolution", "dilation is [1, 1, 1]", x, w, None, one, none, [1] * 3, *fixed)
    refuses("convolution", "output_padding is [0]", x, w, None, one, none, one, True, [0], 1)
    for added in ([-1, 0], [0, 1]):
        part = f"output_padding is {added}, wanted zeros, as the convolution is not transposed"
        refuses("convolution", part, x, w, None, one, none, one, False, added, 1)
    refuses("convolution_backward_input", "[1, 2, -4, 4]", dy, w, [1, 2, -4, 4], one, none, one, 1)


def test_a_meta_tensor_is_refused_as_a_real_one_is() -> None:
    x, w = images("meta"), filters("meta")
    dy = torch.randn(2, 6, 6, 6, device="meta")
    one, none = [1, 1], [0, 0]
    default = (one, none, one, False, none, 1)
    for name, part, arguments in (
        ("conv2d", "bias has sizes [5], wanted [6]", (x, w, dy.new_empty(5))),
        ("conv2d", "stride is [0, 0], wanted at least 1", (x, w, None, none)),
        ("conv2d", "groups is 0, wanted at least 1", (x, w, None, one, none, one, 0)),
        ("convolution_backward_input", "grad_output", (dy, w, [2, 4, 9, 8], one, none, one, 1)),
        ("convolution_backward_weight", "weight_size", (dy, x, [6, 3, 3, 3], one, none, one, 1)),
    ):
        with pytest.raises(ValueError) as caught:
            getattr(OPS, name)(*arguments)
        assert_says(caught, "torch_cudnn_ext::convolution", part)
    for name, argument in (("convolution", "z"), ("convolution_out", "out")):
        with pytest.raises(ValueError) as caught:
            getattr(OPS, name)(x, w, None, *default, **{argument: dy[:1]})
        assert_says(caught, f"{argument} has sizes [1, 6, 6, 6], wanted [2, 6, 6, 6]")


def test_a_compiled_function_is_refused_stride_zero(device: str) -> None:
    compiled = torch.compile(lambda x, w: OPS.conv2d(x, w, stride=[0, 0]), backend="eager")
    with pytest.raises(REFUSED) as caught:
        compiled(images(device), filters(device))
    assert_says(caught, "stride is [0, 0], wanted at least 1")


def test_a_bad_argument_of_a_primitive(device: str) -> None:
    x, w = images(device), filters(device)
    dy = torch.randn(2, 6, 6, 6, device=device)
    with pytest.raises(REFUSED) as caught:
        ops.convolution_backward_input(dy[:, :5], w, x.shape)
    assert_says(caught, "convolution_backward_input", "grad_output")
    with pytest.raises(REFUSED) as caught:
        ops.convolution_backward_weight(dy[:, :, :5], x, w.shape)
    assert_says(caught, "convolution_backward_weight", "grad_output")
    with pytest.raises(REFUSED) as caught:
        ops.convolution(x, w, z=dy[:, :5], beta=1.0)
    assert_says(caught, "convolution", "z")
    with pytest.raises(REFUSED) as caught:
        ops.convolution(x, w, beta=1.0)
    assert_says(caught, "convolution", "beta", "z")
    with pytest.raises(REFUSED) as caught:
        ops.convolution(x, w, out=dy[:, :5])
    assert_says(caught, "out")
    with pytest.raises(REFUSED) as caught:
        ops.convolution(x, w.requires_grad_(), out=dy)
    assert_says(caught, "requires")


def test_how_a_run_is_made_again_is_a_word_of_five(device: str) -> None:
    problem = "pool_fwd x=f32[1,1,4,4]:nchw window=2 mode=max"
    with pytest.raises(ValueError) as caught:
        _C.run(problem, "aten:default", _C.scratch(problem, device), replay="always")
    assert_says(
        caught, "replay is 'always'", "never, graphs, kernels, graphs_at_once, kernels_at_once"
    )


def test_relu_is_of_plain_forwards() -> None:
    x, w = images(), filters()
    z = torch.zeros(2, 6, 6, 6)
    for hindrance, options in (
        ("transposed=True", {"weight": torch.randn(4, 6, 3, 3), "transposed": True}),
        ("output_padding=[0, 1]", {"output_padding": (0, 1)}),
        ("out", {"out": z}),
        ("alpha=0.5", {"alpha": 0.5}),
        ("beta=0.0 and z", {"z": z}),
        ("beta=1.0 without z", {"beta": 1.0}),
    ):
        with pytest.raises(ValueError) as caught:
            ops.convolution(x, **{"weight": w, "activation": "relu", **options})
        assert_says(caught, "convolution", "activation", f"got 'relu' with {hindrance},", "beta=1")
    with pytest.raises(
        ValueError, match="activation: got 'elu', wanted one of none, identity, relu, relu6"
    ):
        ops.convolution(x, w, activation="elu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"convolution_fused: z has sizes \[1, 6\], wanted \[2, 6"):
        ops.convolution(x, w, z=z[:1, :, 0, 0], beta=1, activation="relu")
    with pytest.raises(ValueError, match="convolution_fused: z is Double, wanted input's dtype"):
        ops.convolution(x, w, z=z.double(), beta=1, activation="relu")


def test_batch_norm_takes_no_other_activation_than_relu() -> None:
    with pytest.raises(ValueError, match="batch_norm: act is silu, wanted none or relu"):
        _C.problem_info("batch_norm_fwd x=f32[2,4,9]:nchw act=silu")
    statistics = torch.zeros(4), torch.ones(4)
    with pytest.raises(ValueError, match="batch_norm: activation.*'silu'"):
        ops.batch_norm(torch.randn(2, 4, 3), *statistics, activation="silu")  # type: ignore[arg-type]


def test_output_padding_must_be_smaller_than_stride_or_dilation(device: str) -> None:
    w = torch.randn(4, 6, 3, 3, device=device)
    with pytest.raises(REFUSED) as caught:
        ops.conv_transpose2d(images(device), w, stride=2, output_padding=2)
    assert_says(caught, "torch_cudnn_ext::conv", "output_padding", "2")


@pytest.mark.parametrize(
    ("policy", "parts"),
    [
        ("fwd=nonsense", ("nonsense", "fft")),
        ("sideways=fft", ("sideways", "docs/reference/policy.md")),
        ("max_workspace=elephants", ("max_workspace", "elephants", "64MiB")),
        ("fwd=graph:eng", ("graph:eng", "engNUMBER")),
        ("1", ("1", "fwd=1")),
        ("fwd=time_once", ("time_once", "conv_fwd", "module")),
        ("guess_once", ("guess_once", "module")),
    ],
)
def test_a_bad_policy_text_of_an_operator(policy: str, parts: tuple[str, ...], device: str) -> None:
    with pytest.raises(REFUSED) as caught:
        OPS.conv2d.default(images(device), filters(device), policy=policy)
    assert_says(caught, *parts)


# --- pins that cannot run ----------------------------------------------------------------------


def test_an_unsupported_pin_gives_reason_problem_and_alternatives(device: str) -> None:
    pin = PIN_THAT_CANNOT_RUN[device]
    with pytest.raises(RuntimeError) as caught:
        ops.conv2d(images(device), filters(device), policy=f"fwd={pin}")
    assert_says(
        caught,
        "conv_fwd",
        pin,
        "cannot run: ",
        "problem: conv_fwd x=f32[2,4,8,8]:nchw w=f32[6,4,3,3]:nchw pad=0 stride=1",
        f"device: {device}",
        "would work: ",
        "on_unsupported",
    )
    with pytest.raises(RuntimeError, match="cannot run"):  # also when asked again
        ops.conv2d(images(device), filters(device), policy=f"fwd={pin}")


def test_an_unsupported_pin_of_a_gradient_is_an_error_in_backward(device: str) -> None:
    pin = PIN_THAT_CANNOT_RUN[device]
    for name in ("bwd_data", "bwd_filter"):
        x, w = images(device).requires_grad_(), filters(device).requires_grad_()
        result = ops.conv2d(x, w, policy={name: pin})
        with pytest.raises(RuntimeError) as caught:
            torch.autograd.grad(result.sum(), (x, w))
        assert_says(caught, f"problem: conv_{name} x=f32", pin, "cannot run", "would work")


def test_a_cudnn_pin_on_the_cpu() -> None:
    for pin in ("legacy:fft", "graph:eng1"):
        with pytest.raises(RuntimeError) as caught:
            ops.conv2d(images(), filters(), policy=f"fwd={pin}")
        assert_says(caught, pin, "device: cpu", "aten:default", "cpu:im2col", "cpu:direct")


def test_a_name_that_its_backend_does_not_know(device: str) -> None:
    with pytest.raises(ValueError) as caught:
        ops.conv2d(images(device), filters(device), policy="fwd=aten:nonsense")
    assert_says(caught, "aten:nonsense", "conv_fwd", "wanted one of aten:default")


def test_a_pin_outside_the_backends_allowed(device: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        ops.conv2d(
            images(device), filters(device), policy=f"fwd={PIN_THAT_CAN[device]};backends=aten"
        )
    assert_says(caught, PIN_THAT_CAN[device], "cannot run", "backends", "aten:default")


def test_constraints_that_nothing_meets(device: str) -> None:
    nothing = "cudnn" if device == "cpu" else "cpu"
    with pytest.raises(RuntimeError) as caught:
        ops.conv2d(images(device), filters(device), policy=f"backends={nothing}")
    assert_says(caught, "conv_fwd", "problem: conv_fwd x=f32", "policy: ", f"backends={nothing}")


def test_on_unsupported_warn_and_fallback(device: str) -> None:
    x, w = images(device), filters(device)
    pin = PIN_THAT_CANNOT_RUN[device]
    expected = ops.conv2d(x, w)
    with pytest.warns(UserWarning, match="cannot run") as warned:
        result = ops.conv2d(x, w, policy=f"fwd={pin};on_unsupported=warn")
    assert pin in str(warned[0].message)
    torch.testing.assert_close(result, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ops.conv2d(x, w, policy=f"fwd={pin};on_unsupported=fallback")
    torch.testing.assert_close(result, expected)
    choice = newest("conv_fwd")
    assert choice.why.startswith("fallback: ") and pin in choice.why


@pytest.mark.parametrize("action", ["warn", "fallback"])
def test_on_unsupported_goes_beyond_the_backends(action: str, device: str) -> None:
    backends = "cudnn" if device == "cuda" else "cpu"
    x = torch.randn(1, 4, 2, 2, device=device, requires_grad=True)  # windows of several sizes
    constraints = f"backends={backends}"
    with pytest.raises(RuntimeError, match=r"no algorithm .*\n(.*\n)* +\(on_unsupported=warn or"):
        ops.adaptive_avg_pool2d(x, 3, policy=constraints)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        y = ops.adaptive_avg_pool2d(x, 3, policy=f"{constraints};on_unsupported={action}")
        (gradient,) = torch.autograd.grad(y.sum(), x)
    told = [w for w in warned if "no admitted backend has an algorithm" in str(w.message)]
    assert len(told) == (2 if action == "warn" else 0)
    for op in ("pool_fwd", "pool_bwd"):
        choice = newest(op)
        assert choice.why == "fallback: no admitted backend has an algorithm"
        assert choice.algorithm == "aten:default"
    wanted = F.adaptive_avg_pool2d(x, 3)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted.sum(), x)[0])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.max_pool2d(x, 2),
        lambda x: torch.nn.LSTM(5, 4, 2)(x[0])[0],
        lambda x: torch.nn.BatchNorm2d(3)(x),
    ],
    ids=["max_pool", "lstm", "batch_norm"],
)
def test_backwards_follow_a_forward_beyond_the_backends(call: Callable[..., Tensor]) -> None:
    x = torch.randn(2, 3, 6, 5, requires_grad=True)
    with enabled("backends=cudnn;on_unsupported=fallback"):
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
    assert newest().algorithm == "aten:default" and gradient.shape == x.shape


def test_warnings_of_a_pin_and_of_backends_are_both_said() -> None:
    x = torch.randn(1, 3, 4, 4)
    policy = "fwd=cpu:direct;backends=cudnn;on_unsupported=warn"
    with pytest.warns(UserWarning) as warned:
        ops.conv2d(x, torch.randn(2, 3, 3, 3), policy=policy)
    told = "\n".join(str(warning.message) for warning in warned)
    assert "the pinned algorithm cpu:direct cannot run" in told
    assert "no admitted backend has an algorithm" in told


def test_other_backends_than_pytorch_s_run_beyond_those_admitted() -> None:
    x = torch.randn(1, 2, 3, 4, dtype=torch.bfloat16)  # PyTorch's own is refused there
    w = torch.randn(10, 1, 2, 2, dtype=torch.bfloat16)
    policy = "backends=cudnn;on_unsupported=fallback"
    ops.conv2d(x, w, stride=(1, 3), groups=2, policy=policy)
    assert newest("conv_fwd").algorithm == "cpu:im2col"


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_tensors_without_strides(layout: torch.layout) -> None:
    x = torch.eye(3).to_sparse(layout=layout)
    for name in ("relu", "matmul", "softmax"):
        arguments = {"relu": (x,), "matmul": (x, torch.eye(3)), "softmax": (x, 1)}[name]
        with pytest.raises(TypeError, match=rf"{name}: argument .*layout {layout}, wanted"):
            getattr(ops, name)(*arguments)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            "softmax_fwd x=f32[4294967296,4294967296,1]:nchw",
            "x has sizes .*less than 10\\^15 bytes",
        ),
        (
            "conv_fwd x=f32[4294967296,4294967296,1,1]:nchw w=f32[1,4294967296,1,1]:nchw",
            "x has sizes .*less than 10\\^15 bytes",
        ),
        (
            "conv_fwd x=f32[1,1,8,8]:nchw w=f32[1,1,3,3]:nchw pad=99999999999999999",
            "pad is 99999999999999999, .*at most 2\\^40",
        ),
        (
            "conv_fwd x=f32[1,1,8,8]:nchw w=f32[1,1,100,100]:nchw dilation=99999999999999999",
            "dilation is 99999999999999999, .*at most 2\\^40",
        ),
    ],
)
def test_sizes_beyond_all_counting_are_errors(problem: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.canonical_problem(problem)


@pytest.mark.parametrize(("argument", "call"), NUMBERS)
def test_a_number_with_a_gradient_is_refused_as_it_would_get_none(
    argument: str, call: Callable[[Any], object]
) -> None:
    number = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(TypeError) as caught:
        call(number)
    assert_says(caught, f": argument {argument}: got tensor(0.5000, requires_grad=True)")
    call(number.detach())


# --- integers that kernels index by ------------------------------------------------------------

# Hostile: what they would make a kernel read or write out of bounds.
HOSTILE_SIZES: list[tuple[list[int], str]] = [
    ([3, 1], "add up to 4, wanted the 5 steps"),
    ([3, 3], "add up to 6, wanted the 5 steps"),
    ([1, 2, 2], "wanted positive numbers that do not grow"),
    ([5, 0], "wanted positive numbers that do not grow"),
    ([6, -1], "wanted positive numbers that do not grow"),
    ([2**62], f"add up to {2**62}, wanted the 5 steps"),
    ([2**62] * 4 + [5], "a sum below 2^63"),  # which wraps around to 5
    ([2**63 - 1, 2**63 - 1, 7], "a sum below 2^63"),
    ([], "batch_sizes is empty"),
]


@pytest.mark.parametrize("on_meta", [False, True], ids=["real", "meta"])
@pytest.mark.parametrize("network", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize(("sizes", "message"), HOSTILE_SIZES)
def test_hostile_packed_sizes(
    sizes: list[int], message: str, network: str, on_meta: bool, device: str
) -> None:
    where = "meta" if on_meta else device
    shapes = ops.rnn_parameter_sizes(network, 3, 4)
    params = [torch.randn(shape, device=where) for shape in shapes]
    x = torch.randn(5, 3, device=where)
    rest = (params, True, 1, 0.0, False, False)
    with pytest.raises(ValueError, match=re.escape(message)):
        getattr(ops, network)(x, None, params, batch_sizes=sizes)
    operator = getattr(OPS, f"{network}_packed").default
    for requires_grad in (False, True):
        x.requires_grad_(requires_grad)
        with pytest.raises(ValueError, match=re.escape(message)):
            operator(x, sizes, [] if network == "lstm" else None, *rest)


def test_hostile_packed_sizes_of_other_states(device: str) -> None:
    module = nn.LSTM(3, 4).to(device)
    x = torch.randn(5, 3, device=device)
    for batch in (1, 2, 4):
        states = (torch.zeros(1, batch, 4, device=device),) * 2
        with pytest.raises(ValueError, match=rf"hx has sizes .1, {batch}, 4., wanted .1, 3, 4."):
            ops.lstm(x, states, list(module.parameters()), batch_sizes=[3, 2])
    packed = torch.nn.utils.rnn.PackedSequence(x, torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="batch_sizes add up to 6, wanted the 5 steps"):
        module(packed)


PACKED = "cell=lstm x=f32[3,2,3]:nchw hidden=4 lengths=packed"


@pytest.mark.parametrize("pass_name", ["fwd", "bwd"])
@pytest.mark.parametrize(
    "sizes", [[3, 2, 1], [1, 1, 1], [1, 2, 2], [2, 0, 0], [2, -1, 1], [2, 2, 3], [2**62, 1, 1]]
)
def test_hostile_packed_sizes_of_a_problem(sizes: list[int], pass_name: str, device: str) -> None:
    problem = f"rnn_{pass_name} {PACKED}"
    algorithms = [c["algorithm"] for c in _C.candidates(problem, device) if c["status"] == "ok"]
    for algorithm in algorithms[:4]:
        tensors = _C.scratch(problem, device) | left_by_forward(problem, algorithm, device)
        tensors["batch_sizes"] = torch.tensor(sizes)
        with pytest.raises(ValueError, match=r"batch_sizes is \["):
            _C.run(problem, algorithm, tensors)


@needs_cuda
def test_hostile_places_of_a_problem_s_tensors() -> None:
    problem = f"rnn_fwd {PACKED}"
    tensors = _C.scratch(problem, "cuda")
    elsewhere = {"batch_sizes": tensors["batch_sizes"].cuda(), "x": tensors["x"].cpu()}
    for role, tensor in elsewhere.items():
        with pytest.raises(ValueError, match=f"'{role}' is on .*, wanted"):
            _C.run(problem, "aten:default", tensors | {role: tensor})


CTC_LENGTHS = [([5, 4], [2, 2]), ([4, -1], [2, 2]), ([4, 4], [3, 2]), ([4, 4], [2, -2])]


@pytest.mark.parametrize("on_host", [True, False], ids=["on_host", "on_device"])
@pytest.mark.parametrize(
    ("inputs", "targets"), [*CTC_LENGTHS, ([2**62, 4], [2, 2]), ([4, 4], [2**62, 2**62])]
)
def test_hostile_lengths_of_ctc(
    inputs: list[int], targets: list[int], on_host: bool, device: str
) -> None:
    x = torch.zeros(4, 2, 3, device=device)
    labels = torch.ones(2, 2, dtype=torch.long, device=device)
    lengths = [torch.tensor(n, device="cpu" if on_host else device) for n in (inputs, targets)]
    for given in (labels, labels.flatten()):
        with pytest.raises(
            ValueError, match=r"_lengths holds .*, wanted|wanted the sum of target_"
        ):
            OPS.ctc_loss(x, given, *lengths)


@pytest.mark.parametrize("label", [3, -1, 2**40, 2**62, -(2**63)])
@pytest.mark.parametrize("form", ["padded", "concatenated"])
def test_hostile_labels_of_ctc(label: int, form: str, device: str) -> None:
    x = torch.randn(6, 2, 3, device=device).log_softmax(2).requires_grad_()
    labels = torch.tensor([[1, 2, label], [1, label, 2]], device=device)
    if form == "concatenated":
        labels = torch.tensor([1, 2, 1, label, 2], device=device)
    lengths = (torch.tensor([6, 6]), torch.tensor([2, 3]))
    for algorithm in ("", "aten:default", *([] if device == "cpu" else ["legacy:deterministic"])):
        policy = f"fwd={algorithm};allow_reduced_range" if algorithm else None
        if device == "cpu":
            with pytest.raises(ValueError, match=f"targets holds {label}, wanted at least 0"):
                OPS.ctc_loss(x, labels, *lengths, policy=policy)
            continue
        losses = OPS.ctc_loss(x, labels, *lengths, policy=policy)
        (dx,) = torch.autograd.grad(losses.sum(), x)
        assert losses.isnan().tolist() == [False, True]  # what is after a target's end is not read
        assert dx[:, 0].isfinite().all() and dx[:, 1].isnan().all()


@pytest.mark.parametrize("size", [-(2**63), -(2**62), -1, 0, 2**31, 2**40, 2**62, 2**63 - 1])
def test_hostile_lists_of_sizes(size: int, device: str) -> None:
    x, grid = images(device), torch.zeros(2, 3, 3, 2, device=device)
    y = torch.randn(2, 6, 6, 6, device=device)
    one, none = [1, 1], [0, 0]
    calls: list[Callable[[], object]] = [
        lambda: OPS.affine_grid(grid[:, :2, :, 0], [2, 1, size, 3], False),
        lambda: OPS.affine_grid(grid[:, :2, :, 0], [size, 1, 3, 3], False),
        lambda: OPS.affine_grid_backward(grid, [2, 1, size, 3], False),
        lambda: OPS.convolution_backward_input(
            y, filters(device), [2, 4, size, 8], one, none, one, 1
        ),
        lambda: OPS.convolution_backward_input(
            y, filters(device), [size, 4, 8, 8], one, none, one, 1
        ),
        lambda: OPS.convolution_backward_weight(y, x, [6, 4, size, 3], one, none, one, 1),
        lambda: OPS.convolution_backward_weight(y, x, [6, size, 3, 3], one, none, one, 1),
        lambda: OPS.avg_pool_backward(x, [2, 4, size, 8], False, one, one, none),
        lambda: OPS.avg_pool_backward(x, [size, 4, 8, 8], False, one, one, none),
        lambda: OPS.max_pool(x, [size, 1], one, none, one),
        lambda: OPS.layer_norm(x, [size]),
        lambda: OPS.group_norm(x, size),
    ]
    if size not in (0, -1):  # dimensions that there are
        calls += [lambda: OPS.reduce(x, "add", [size]), lambda: OPS.softmax(x, size)]
    for call in calls:
        with pytest.raises((*REFUSED, IndexError)) as caught:
            call()
        assert "internal assert" not in str(caught.value).lower()
