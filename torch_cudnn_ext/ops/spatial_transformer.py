"""Spatial transformers as functions: affine maps of a grid, and sampling a tensor at its points."""

from collections.abc import Sequence

from torch import Tensor

from torch_cudnn_ext.ops._arguments import call, check_flag, check_tensor, integers_of
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


@direct("affine_grid", "affine_grid")
def affine_grid(
    theta: Tensor, size: Sequence[int], align_corners: bool | None = False,
    *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Map a regular grid by affine maps, as ``torch.nn.functional.affine_grid``.

    cuDNN's algorithm (``cudnnSpatialTfGridGeneratorForward``, ``...Backward``) is
    ``legacy:default``. It takes 2-D grids of at least two points a dimension, float64, float32 or
    float16, and ``align_corners``. On the CPU there are ``cpu:dense`` and ``cpu:separable``, and
    everywhere ``aten:default``.

    Args:
        theta: Maps ``[N, 2, 3]``, or ``[N, 3, 4]`` in 3-D; float64, float32, float16 or bfloat16.
        size: Sizes of the sampled tensor, ``[N, C, H, W]`` or ``[N, C, D, H, W]``.
        align_corners: Whether -1 and 1 are the centres of the outermost pixels, rather than their
            edges. ``None`` means False.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        ``[N, H, W, 2]`` or ``[N, D, H, W, 3]``: x, y (, z) of each point. Differentiable twice.

    Raises:
        TypeError: ``theta`` is no tensor, ``size`` no integers, ``align_corners`` no bool, or
            ``policy`` stands for no policy.
        ValueError: Sizes do not fit together, the dtype is not supported, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> theta = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> affine_grid(theta, [1, 1, 4, 4], align_corners=True).shape
        torch.Size([1, 4, 4, 2])
    """
    check_tensor("affine_grid", "theta", theta)
    align_corners = _flag("affine_grid", align_corners)
    sizes = integers_of("affine_grid", "size", size, "4 or 5 integers")
    return call(
        "affine_grid", theta, sizes, align_corners, policy=policy_text(policy, "affine_grid")
    )


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = False, *, policy: PolicyLike = None,
) -> Tensor:  # fmt: skip
    """Sample a tensor at the points of a grid, as ``torch.nn.functional.grid_sample``.

    cuDNN's algorithm (``cudnnSpatialTfSamplerForward``, ``...Backward``) is ``legacy:bilinear``. It
    takes 2-D, contiguous float64, float32 or float16 input of at most 1024 channels, ``bilinear``,
    ``zeros`` and ``align_corners``. Its gradient of the input is summed in no fixed order, as is
    PyTorch's on CUDA. On the CPU there are ``cpu:gather`` and ``cpu:dense`` for ``bilinear``, and
    everywhere ``aten:default``. ``cpu:dense`` spreads an infinity or NaN over all points and is
    admitted with ``allow_reduced_range`` only.

    Args:
        input: ``[N, C, H, W]`` or ``[N, C, D, H, W]``; float64, float32, float16 or bfloat16.
        grid: ``[N, H_out, W_out, 2]`` or ``[N, D_out, H_out, W_out, 3]`` of the input's dtype: x, y
            (, z) of each point; the input extends from -1 to 1.
        mode: ``bilinear`` (in 3-D, trilinear), ``nearest``, or in 2-D ``bicubic``.
        padding_mode: The values outside: ``zeros``, ``border`` or ``reflection``.
        align_corners: Whether -1 and 1 are the centres of the outermost pixels, rather than their
            edges. ``None`` means False.
        policy: How the algorithms of the passes ``fwd`` and ``bwd`` are selected.

    Returns:
        ``[N, C, H_out, W_out]`` or ``[N, C, D_out, H_out, W_out]``, contiguous. Differentiable
        once.

    Raises:
        TypeError: ``input`` or ``grid`` is no tensor, ``align_corners`` no bool, or ``policy``
            stands for no policy.
        ValueError: Sizes, dtypes or devices do not fit together, or a mode or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> images, grid = torch.ones(1, 1, 4, 4), torch.zeros(1, 2, 2, 2)
        >>> grid_sample(images, grid, align_corners=True).sum()
        tensor(4.)
    """
    check_tensor("grid_sample", "input", input)
    check_tensor("grid_sample", "grid", grid)
    align_corners = _flag("grid_sample", align_corners)
    return call(
        "grid_sample",
        input,
        grid,
        _index("mode", mode, _MODES[:2] if input.dim() == 5 else _MODES),
        _index("padding_mode", padding_mode, _PADDINGS),
        align_corners,
        policy=policy_text(policy, "grid_sample"),
    )


def _flag(function: str, align_corners: bool | None) -> bool:
    if align_corners is None:  # as in PyTorch
        return False
    check_flag(function, "align_corners", align_corners)
    return align_corners


def _index(argument: str, word: str, words: Sequence[str]) -> int:
    if word not in words:
        raise ValueError(
            f"grid_sample: argument {argument}: got {word!r}, wanted one of {', '.join(words)}"
        )
    return words.index(word)


describe(Family("grid_sample", images=lambda problem: ("x",)))
