"""Elementwise activations as functions."""

from collections.abc import Callable

from torch import Tensor

from torch_cudnn_ext.ops._arguments import call_renamed, check_flag, check_number, check_tensor
from torch_cudnn_ext.ops._direct import FunctionT, direct
from torch_cudnn_ext.ops.family import Family, describe, in_place_of_methods
from torch_cudnn_ext.policy import PolicyLike, policy_text


def _elementwise(
    kind: str, argument: str = "", **constants: object
) -> Callable[[FunctionT], FunctionT]:
    """A direct call of the operator and, for ``inplace=True``, of the one that writes."""
    constants["kind"] = kind
    sources = {"coefficient": argument} if argument else {}
    to_new = direct("activation", "activation", sources=sources, constants=constants)
    in_place = direct(
        "activation_", "activation", sources=sources, only={"inplace": True}, constants=constants
    )
    return lambda function: to_new(in_place(function))


@_elementwise("relu", coefficient=1.0)
def relu(input: Tensor, inplace: bool = False, *, policy: PolicyLike = None) -> Tensor:
    """Set elements below zero to zero, as ``torch.nn.functional.relu``.

    cuDNN's entry points are ``cudnnActivationForward`` and ``cudnnActivationBackward``
    (``legacy:default``) and the graph API's elementwise operations (``graph:engN``, compiled at
    run time). On the CPU there are ``cpu:exponential`` and ``cpu:hyperbolic``, and everywhere
    ``aten:default``. All functions of this module have these algorithms, and the arguments below.

    Args:
        input: Any sizes and strides; float64, float32, float16 or bfloat16.
        inplace: Whether the result overwrites the input. In backward, the gradient with respect to
            the input then overwrites that of the output, if nothing else can see that memory;
            ``torch.ops.torch_cudnn_ext.activation_backward_`` always overwrites it.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        A tensor of the input's sizes and memory format, or the input. Differentiable twice.

    Raises:
        TypeError: ``input`` is no tensor, or ``policy`` stands for no policy.
        ValueError: The dtype is not supported, or the policy is wrong.
        RuntimeError: In place, the input is a leaf that requires a gradient, or overlaps itself; or
            a pinned algorithm cannot run, or none is admissible.

    Example:
        >>> relu(torch.tensor([-1.0, 0.0, 2.0]))
        tensor([0., 0., 2.])
    """
    return _activation("relu", input, "relu", 1.0, inplace, policy)


@_elementwise("clipped_relu", coefficient=6.0)
def relu6(input: Tensor, inplace: bool = False, *, policy: PolicyLike = None) -> Tensor:
    """`clipped_relu` with a ceiling of 6, as ``torch.nn.functional.relu6``.

    Example:
        >>> relu6(torch.tensor([-1.0, 2.0, 7.0]))
        tensor([0., 2., 6.])
    """
    return _activation("relu6", input, "clipped_relu", 6.0, inplace, policy)


@_elementwise("clipped_relu", "ceiling")
def clipped_relu(
    input: Tensor, ceiling: float, inplace: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """Clip elements to zero and the ceiling, ``min(max(x, 0), ceiling)``.

    The gradient is zero at both ends; in place it is computed from the output. A ceiling that is
    not above zero is a ValueError. All else is as in `relu`.

    Example:
        >>> clipped_relu(torch.tensor([-1.0, 2.0, 7.0]), 3.0)
        tensor([0., 2., 3.])
    """
    return _activation("clipped_relu", input, "clipped_relu", ceiling, inplace, policy, "ceiling")


@_elementwise("tanh", coefficient=1.0)
def tanh(input: Tensor, inplace: bool = False, *, policy: PolicyLike = None) -> Tensor:
    """The hyperbolic tangent, as ``torch.tanh``; all else is as in `relu`.

    Example:
        >>> tanh(torch.zeros(2))
        tensor([0., 0.])
    """
    return _activation("tanh", input, "tanh", 1.0, inplace, policy)


@_elementwise("sigmoid", coefficient=1.0)
def sigmoid(input: Tensor, inplace: bool = False, *, policy: PolicyLike = None) -> Tensor:
    """The logistic function ``1 / (1 + exp(-x))``, as ``torch.sigmoid``.

    All else is as in `relu`.

    Example:
        >>> sigmoid(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """
    return _activation("sigmoid", input, "sigmoid", 1.0, inplace, policy)


@_elementwise("elu", "alpha")
def elu(
    input: Tensor, alpha: float = 1.0, inplace: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """``x`` if it is positive, else ``alpha (exp(x) - 1)``, as ``torch.nn.functional.elu``.

    In place the gradient is computed from the output, so a negative ``alpha`` is a ValueError. All
    else is as in `relu`.

    Example:
        >>> elu(torch.tensor([0.0, 2.0]), alpha=0.5)
        tensor([0., 2.])
    """
    return _activation("elu", input, "elu", alpha, inplace, policy, "alpha")


@_elementwise("swish", coefficient=1.0)
def silu(input: Tensor, inplace: bool = False, *, policy: PolicyLike = None) -> Tensor:
    """`swish` with a ``beta`` of 1, as ``torch.nn.functional.silu``.

    Example:
        >>> silu(torch.zeros(2))
        tensor([0., 0.])
    """
    return _activation("silu", input, "swish", 1.0, inplace, policy)


@_elementwise("swish", "beta")
def swish(
    input: Tensor, beta: float = 1.0, inplace: bool = False, *, policy: PolicyLike = None
) -> Tensor:
    """``x sigmoid(beta x)`` (Ramachandran et al. 2017); all else is as in `relu`.

    In place, a copy of the input is kept if a gradient is wanted.

    Example:
        >>> swish(torch.zeros(2), beta=2.0)
        tensor([0., 0.])
    """
    return _activation("swish", input, "swish", beta, inplace, policy, "beta")


def _activation(
    function: str, input: Tensor, kind: str, coefficient: float, inplace: bool, policy: PolicyLike,
    argument: str = "coefficient",
) -> Tensor:  # fmt: skip
    check_tensor(function, "input", input)
    check_flag(function, "inplace", inplace)
    check_number(function, argument, coefficient)
    text = policy_text(policy, "activation")
    names = {"coefficient": argument}
    if not inplace:
        return call_renamed(names, "activation", input, kind, coefficient, policy=text)
    call_renamed(names, "activation_", input, kind, coefficient, policy=text)
    return input


describe(Family("activation", replaced=in_place_of_methods(relu, sigmoid, tanh), gains=False))
