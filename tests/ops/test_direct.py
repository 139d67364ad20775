"""Direct calls: the functions of `ops` without the Python that they stand for."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_cudnn_ext import Policy, ops
from torch_cudnn_ext.ops._direct import MAX_TEXTS, texts_of

CHANNELS = 4


def images() -> Tensor:
    return torch.randn(2, CHANNELS, 6, 6)


def rows() -> Tensor:
    return torch.randn(3, CHANNELS)


def vector() -> Tensor:
    return torch.rand(CHANNELS) + 0.5


def convolution(dims: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, CHANNELS, *[5] * dims), torch.randn(4, 4, *[3] * dims), vector()


# A call of every function that calls its operator directly.
CALLS: dict[str, tuple[Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    **{f"conv{n}d": (lambda n=n: convolution(n), {"padding": 1}) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (lambda n=n: convolution(n), {"stride": 2}) for n in (1, 2, 3)},
    "max_pool1d": (lambda: (rows(), 2), {}),
    "max_pool2d": (lambda: (images(), (3, 2), 2, 1), {"dilation": 1, "ceil_mode": True}),
    "max_pool3d": (lambda: (torch.randn(1, 2, 4, 4, 4), [2]), {}),
    "avg_pool1d": (lambda: (rows(), 2), {"stride": None}),
    "avg_pool2d": (lambda: (images(), 2), {"divisor_override": 3}),
    "avg_pool3d": (lambda: (torch.randn(1, 2, 4, 4, 4), 2), {"count_include_pad": False}),
    "sum_pool1d": (lambda: (rows(), 2), {}),
    "sum_pool2d": (lambda: (images(), 2), {"padding": 1}),
    "sum_pool3d": (lambda: (torch.randn(1, 2, 4, 4, 4), 2), {}),
    "adaptive_avg_pool1d": (lambda: (rows(), 2), {}),
    "adaptive_avg_pool2d": (lambda: (images(), (3, 2)), {}),
    "adaptive_avg_pool3d": (lambda: (torch.randn(1, 2, 4, 4, 4), 1), {}),
    "adaptive_max_pool1d": (lambda: (rows(), 2), {}),
    "adaptive_max_pool2d": (lambda: (images(), 3), {}),
    "adaptive_max_pool3d": (lambda: (torch.randn(1, 2, 4, 4, 4), [2, 4, 1]), {}),
    "softmax": (lambda: (rows(), 1), {}),
    "log_softmax": (lambda: (rows(), -1, torch.float64), {}),
    "layer_norm": (lambda: (rows(), (CHANNELS,), vector(), vector()), {"eps": 1e-3}),
    "rms_norm": (lambda: (rows(), [CHANNELS]), {}),
    "instance_norm": (lambda: (images(),), {"weight": None}),
    "batch_norm": (lambda: (images(), vector(), vector(), vector(), vector()), {"training": True}),
    "relu": (lambda: (rows(),), {}),
    "relu6": (lambda: (rows(),), {"inplace": True}),
    "clipped_relu": (lambda: (rows(), 2), {}),
    "tanh": (lambda: (rows(), True), {}),
    "sigmoid": (lambda: (rows(),), {}),
    "elu": (lambda: (rows(), 0.5), {}),
    "silu": (lambda: (rows(),), {}),
    "swish": (lambda: (rows(), 2.0), {}),
    "linear": (lambda: (rows(), torch.randn(5, CHANNELS), torch.randn(5)), {}),
    "matmul": (lambda: (rows(), torch.randn(CHANNELS, 2)), {}),
    "gemm": (lambda: (rows(), torch.randn(CHANNELS, 2)), {"alpha": 2, "activation": "relu"}),
    "cross_entropy": (lambda: (rows(), torch.tensor([0, 3, 1])), {"label_smoothing": 0.0}),
    "local_response_norm": (lambda: (images(), 3), {"k": 2.0}),
    "divisive_norm": (lambda: (images(), 3), {}),
    "affine_grid": (lambda: (torch.randn(2, 2, 3), (2, 3, 4, 4)), {}),
    **{name: (lambda: (rows(), -1), {}) for name in ("sum", "mean", "norm1")},
    **{name: (lambda: (images(), (1, 2), True), {}) for name in ("prod", "prod_nonzero", "norm2")},
}
IN_PLACE = ("relu6", "tanh")  # in `CALLS`; a leaf that requires a gradient does not take it
every_function = pytest.mark.parametrize("name", CALLS)


def copied(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in arguments)


def called_in_python(work: Callable[[], object]) -> list[str]:
    """The names of the Python functions that a call runs."""
    names: list[str] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return names[1:]  # of `work` itself on


@every_function
@pytest.mark.parametrize("policy", [None, "aten:default"])
def test_no_python_runs_but_the_function(name: str, policy: str | None) -> None:
    function = getattr(ops, name)
    make, keywords = CALLS[name]
    arguments = make()
    function(*copied(arguments), **keywords, policy=policy)  # the policy's text is checked once
    names = called_in_python(lambda: function(*arguments, **keywords, policy=policy))
    assert {*names} - {"is_dynamo_compiling"} == {name}


@every_function
@pytest.mark.parametrize("grad", [False, True])
def test_the_result_is_that_of_the_function(name: str, grad: bool) -> None:
    function = getattr(ops, name)
    make, keywords = CALLS[name]
    arguments = make()
    if grad and name not in IN_PLACE:
        arguments = (arguments[0].requires_grad_(), *arguments[1:])
    expected = function.__wrapped__(*copied(arguments), **keywords)
    result = function(*copied(arguments), **keywords)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    assert result.stride() == expected.stride()
    assert (result.grad_fn is None) == (expected.grad_fn is None)


@every_function
def test_names_and_signature_are_the_functions(name: str) -> None:
    function = getattr(ops, name)
    assert (function.__name__, function.__module__) == (name, function.__wrapped__.__module__)
    assert function.__doc__


# What a direct call leaves to the function, and the same in plain types.
UNUSUAL: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "numpy": (lambda: ops.max_pool2d(ONES, np.int64(2)), lambda: ops.max_pool2d(ONES, 2)),
    "tensor": (lambda: ops.max_pool2d(ONES, torch.tensor(2)), lambda: ops.max_pool2d(ONES, 2)),
    "policy": (
        lambda: ops.relu(ONES, policy=Policy(fwd="aten:default", family="activation")),
        lambda: ops.relu(ONES),
    ),
    "no policy": (lambda: ops.relu(ONES, policy=""), lambda: ops.relu(ONES)),
    "border": (
        lambda: ops.conv2d(ONES, ONES[:, :, :3, :3], padding="same"),
        lambda: ops.conv2d(ONES, ONES[:, :, :3, :3], padding=1),
    ),
    "vector": (
        lambda: ops.linear(ONES[0, 0, 0], ONES[0, 0]),
        lambda: ops.linear(ONES[0, 0, :1], ONES[0, 0])[0],
    ),
    "bias that broadcasts": (
        lambda: ops.linear(ONES[0, 0], ONES[0, 0], ONES[0, 0, 0, :1]),
        lambda: ops.linear(ONES[0, 0], ONES[0, 0], ONES[0, 0, 0]),
    ),
    "probabilities": (
        lambda: ops.cross_entropy(ONES[0, 0], torch.eye(6)),
        lambda: ops.cross_entropy(ONES[0, 0], torch.arange(6)),
    ),
}
ONES = torch.ones(1, 1, 6, 6)
# More than torch.compile compiles one code.
OF_ONE_TENSOR = (
    "relu",
    "relu6",
    "tanh",
    "sigmoid",
    "silu",
    "elu",
    "swish",
    "sum",
    "mean",
    "norm1",
    "norm2",
)


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_arguments_are_left_to_the_function(name: str) -> None:
    unusual, plain = UNUSUAL[name]
    torch.testing.assert_close(unusual(), plain())


# Calls that raise an error, with arguments of plain types among them.
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("relu", (), {}),
    ("relu", (ONES, False, False), {}),
    ("relu", (ONES,), {"input": ONES}),
    ("relu", (ONES,), {"sideways": 1}),
    ("relu", (ONES,), {"inplace": 1}),
    ("relu", (torch.ones(2, dtype=torch.int64),), {}),
    ("relu", (ONES.to_sparse(),), {}),
    ("relu", (ONES,), {"policy": "nonsense"}),
    ("relu", (ONES,), {"policy": "legacy:fft"}),
    ("elu", (ONES, "1"), {}),
    ("conv2d", (ONES[0, 0], ONES), {}),
    ("conv2d", (ONES, ONES[0]), {}),
    ("conv2d", (ONES, ONES), {"groups": True}),
    ("conv2d", (ONES, ONES), {"groups": 2**70}),
    ("conv2d", (ONES, ONES), {"conv_mode": "sideways"}),
    ("conv2d", (ONES, ONES), {"stride": (1, 1, 1)}),
    ("max_pool1d", (ONES[0], (2, 2)), {}),
    ("max_pool2d", (ONES, (2, 2, 2)), {}),
    ("max_pool2d", (ONES, 0), {}),
    ("avg_pool2d", (ONES, 2), {"divisor_override": 0}),
    ("adaptive_avg_pool2d", (ONES, (1, 2, 3)), {}),
    ("softmax", (ONES, 4), {}),
    ("layer_norm", (ONES, 6), {}),
    ("layer_norm", (ONES, (5,)), {}),
    ("batch_norm", (ONES, None, None), {"training": True, "eps": 0.0}),
    ("batch_norm", (ONES[:, :, :1, :1], None, None), {"training": True}),
    ("linear", (ONES, torch.ones(2, 3, 6)), {}),
    ("linear", (ONES, torch.ones(2, 5)), {}),
    ("cross_entropy", (ONES[0, 0], torch.arange(6)), {"reduction": "most"}),
    ("cross_entropy", (ONES[0, 0], torch.arange(5)), {}),
    ("sum", (ONES, 7), {}),
]


@pytest.mark.parametrize(("name", "arguments", "keywords"), WRONG)
def test_errors_are_those_of_the_function(
    name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    function = getattr(ops, name)
    with pytest.raises((TypeError, ValueError, RuntimeError)) as expected:
        function.__wrapped__(*arguments, **keywords)
    with pytest.raises(type(expected.value)) as caught:
        function(*arguments, **keywords)
    assert str(caught.value) == str(expected.value)


def test_modes_and_subclasses_see_the_operator() -> None:
    seen: list[str] = []

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            seen.append(str(function))
            return function(*arguments, **(keywords or {}))

    class Subclass(Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None
        ) -> Any:
            seen.append(str(function))
            return super().__torch_function__(function, types, arguments, keywords or {})

    with Mode():
        ops.relu(ONES)
    assert "torch_cudnn_ext.activation.default" in seen
    seen.clear()
    assert isinstance(ops.relu(ONES.as_subclass(Subclass)), Subclass)
    assert "torch_cudnn_ext.activation.default" in seen


def test_versions_of_changed_tensors_are_counted() -> None:
    x, mean, var = images(), vector(), vector()
    with torch.no_grad():
        ops.relu(x, inplace=True)
        ops.batch_norm(images(), mean, var, training=True)
    assert (x._version, mean._version, var._version) == (1, 1, 1)


def test_many_functions_can_be_compiled() -> None:
    compiled = [
        torch.compile(getattr(ops, name), fullgraph=True, backend="eager") for name in OF_ONE_TENSOR
    ]
    for name, function in zip(OF_ONE_TENSOR, compiled, strict=True):
        torch.testing.assert_close(function(ONES), getattr(ops, name)(ONES))


def test_a_warning_is_of_the_callers_line() -> None:
    with pytest.warns(UserWarning, match="Implicit dimension choice") as caught:
        ops.softmax(ONES)
    assert caught[0].filename == __file__


def test_policy_texts_are_forgotten_in_time() -> None:
    for size in range(MAX_TEXTS + 2):
        ops.relu(ONES, policy=f"max_workspace={size}")
    assert len(texts_of("activation")) <= MAX_TEXTS
