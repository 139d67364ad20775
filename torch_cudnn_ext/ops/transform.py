"""Conversions between layouts and types as a function."""

import torch
from torch import Tensor

from torch_cudnn_ext.ops._arguments import call, check_tensor, wrong_type
from torch_cudnn_ext.policy import PolicyLike, policy_text


def transform(
    input: Tensor, *, dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | None = torch.preserve_format, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Copy a tensor to another dtype, another memory format, or both.

    The result is that of ``input.to(dtype, memory_format=memory_format, copy=True)``, always a new
    tensor. `enable` and `convert` replace nothing by this function: ``Tensor.to`` and
    ``Tensor.contiguous`` stay PyTorch's own.

    cuDNN's entry points are ``cudnnTransformTensor`` (``legacy:default``: layouts of one dtype) and
    the graph API's elementwise identity (``graph:engN``, compiled at run time: dense tensors that
    keep their order in memory). On the CPU there are ``cpu:gather`` and ``cpu:tiles``, and
    everywhere ``aten:default``.

    Args:
        input: Any sizes and strides; float64, float32, float16 or bfloat16.
        dtype: One of these; ``None`` for the input's.
        memory_format: As ``Tensor.to`` takes it; ``None`` means ``torch.preserve_format``.
        policy: How the algorithm of the pass ``fwd`` is selected. The gradient is a conversion
            back, by the same operator and policy.

    Returns:
        A dense tensor. Its gradient has the input's dtype and memory format. Differentiable any
        number of times.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: A dtype is not supported, the input cannot have the memory format, or the policy
            is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> transform(torch.ones(1, 2, 2, 2), memory_format=torch.channels_last).stride()
        (8, 1, 4, 2)
    """
    check_tensor("transform", "input", input)
    if not isinstance(dtype, torch.dtype | None):  # the operator would also take integers
        raise wrong_type("transform", "dtype", dtype, "a torch.dtype")
    if not isinstance(memory_format, torch.memory_format | None):
        raise wrong_type("transform", "memory_format", memory_format, "a torch.memory_format")
    text = policy_text(policy, "transform")
    return call("transform", input, dtype=dtype, memory_format=memory_format, policy=text)
