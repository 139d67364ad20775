"""What a maximum with indices checks, since PyTorch's own kernel computes it."""

from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import value_of
from torch_cudnn_ext._torch_internals import DisableTorchFunction, assume_constant_result
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.ops._arguments import call
from torch_cudnn_ext.policy import as_policy


def check_as_without_indices(input: Tensor, *arguments: Any, **keywords: Any) -> None:
    """Let the operator check its arguments; in a compiled graph PyTorch's own checks do."""
    if not torch.compiler.is_compiling():
        with DisableTorchFunction():  # a tracer must not see this as a call of the network
            meta = torch.empty(input.shape, dtype=input.dtype, device="meta")
            call("max_pool", meta, *arguments, **keywords)


def check_windows(
    name: str, input: Tensor, kernel: list[int], stride: list[int], padding: list[int],
    dilation: list[int], ceil_mode: bool,
) -> None:  # fmt: skip
    """Raise ValueError for windows for which PyTorch's gradient writes out of bounds."""
    is_rare = max(dilation) > 1 and max(padding) > 0 and input.device.type == "cpu"
    wants_gradient = input.requires_grad and torch.is_grad_enabled()
    if torch.compiler.is_compiling() or not (is_rare and wants_gradient and input.numel()):
        return
    with DisableTorchFunction():  # nothing is computed here
        lines = _C.problems_posed_by(
            lambda: call("max_pool", input.detach(), kernel, stride, padding, dilation, ceil_mode)
        )
    for line in lines:
        for row in _C.candidates(line, "cpu", "backends=aten"):
            if row["status"] == "unsupported":
                raise ValueError(
                    f"{name}: argument return_indices: got True of an input that wants a gradient, "
                    "wanted False, since aten:default, which alone gives indices, does not run: "
                    + row["reason"]
                )


@assume_constant_result
def check_indices(name: str, policy: str | None) -> None:
    """If a policy excludes PyTorch's kernel, which alone gives indices, obey on_unsupported."""
    merged = _C.resolved_policy(as_policy(policy, "pool").text, "pool")  # with flags and knobs
    reasons = [
        f"{key}={algorithm}"
        for key in ("fwd", "bwd")
        if (algorithm := value_of(merged, key))
        not in (None, "heuristic", "autotune", "aten:default")
    ]
    backends = value_of(merged, "backends")
    if backends is not None and "aten" not in backends.split(","):
        reasons.append(f"backends={backends}")
    if not reasons:
        return
    said = (
        f"{name}: argument return_indices: got True under the policy {';'.join(reasons)}, wanted "
        "aten:default or no pin, and aten among the backends, since no other algorithm gives "
        "indices"
    )
    action = value_of(merged, "on_unsupported") or "error"
    if action == "error":
        raise ValueError(said)
    if action == "warn":
        warn(f"{said}; aten:default runs instead")
