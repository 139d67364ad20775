"""The one table of problems that every generic test runs over.

`LINES` holds a problem line each. Those of convolution come from `CASES`: a row is a forward
convolution; its data and filter gradients are the same row under another first word, so every row
is three problems. ``small`` rows are cheap enough for a two-core CPU, ``big`` rows are layers of
real networks and run on a GPU only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

PASSES = ("conv_fwd", "conv_bwd_data", "conv_bwd_filter")


@dataclass(frozen=True)
class Case:
    """One forward convolution; sizes and strides are in elements, ``align`` in bytes."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    dtype: str
    layout: str
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    compute: str
    size: str
    x_layout: str | None = None  # where it differs from ``layout``
    w_layout: str | None = None
    y_layout: str | None = None
    align: int = 16
    mode: str = "cross"
    accumulate: str = "none"

    @property
    def spatial_dims(self) -> int:
        """1, 2 or 3."""
        return len(self.x) - 2

    @property
    def y(self) -> tuple[int, ...]:
        """Sizes of the forward output."""
        space = zip(self.x[2:], self.w[2:], self.padding, self.stride, self.dilation, strict=True)
        return (
            self.x[0],
            self.w[0],
            *((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, p, s, d in space),
        )

    def problem(self, op: str) -> str:
        """The problem line for ``conv_fwd``, ``conv_bwd_data`` or ``conv_bwd_filter``."""
        words = [
            op,
            f"x={self.dtype}[{_numbers(self.x)}]:{self.x_layout or self.layout}",
            f"w={self.dtype}[{_numbers(self.w)}]:{self.w_layout or self.layout}",
            f"pad={_per_dim_text(self.padding)}",
            f"stride={_per_dim_text(self.stride)}",
            f"dilation={_per_dim_text(self.dilation)}",
            f"groups={self.groups}",
            f"compute={self.compute}",
        ]
        if self.y_layout is not None:
            words.append(f"y=:{self.y_layout}")
        if self.align != 16:
            words.append(f"align={self.align}")
        if self.mode != "cross":
            words.append(f"mode={self.mode}")
        if self.accumulate != "none":
            words.append(f"accumulate={self.accumulate}")
        return " ".join(words)


def _numbers(values: tuple[int, ...]) -> str:
    return ",".join(str(value) for value in values)


def _per_dim_text(values: tuple[int, ...]) -> str:
    return _numbers(values[:1] if len(set(values)) == 1 else values)


def _per_dim(value: int | tuple[int, ...], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else value


def _rows(
    name: str,
    x: tuple[int, ...],
    w: tuple[int, ...],
    kinds: str,
    *,
    padding: int | tuple[int, ...] = 0,
    stride: int | tuple[int, ...] = 1,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
    compute: str | None = None,
    size: str = "small",
    **more: Any,
) -> Iterator[Case]:
    """One case for each ``dtype:layout`` among the words of ``kinds``."""
    for kind in kinds.split():
        dtype, layout = kind.split(":")
        dims = len(x) - 2
        yield Case(
            name=f"{name}-{dtype}-{layout}",
            x=x,
            w=w,
            dtype=dtype,
            layout=layout,
            padding=_per_dim(padding, dims),
            stride=_per_dim(stride, dims),
            dilation=_per_dim(dilation, dims),
            groups=groups,
            compute=compute or ("f64" if dtype == "f64" else "f32"),
            size=size,
            **more,
        )


_big = partial(_rows, size="big")

_ALL = "f64:nchw f64:nhwc f32:nchw f32:nhwc f16:nchw f16:nhwc bf16:nchw bf16:nhwc"
_DTYPES = "f64:nchw f32:nchw f16:nhwc bf16:nhwc"
_BOTH = "f32:nchw f16:nhwc"
_PLANES = "f32:nchw f16:nchw bf16:nchw"
_HALVES = "f16:nchw f16:nhwc bf16:nhwc"

CASES: tuple[Case, ...] = (
    # Plain 2-D.
    *_rows("3x3", (2, 8, 8, 8), (8, 8, 3, 3), _ALL, padding=1),
    *_rows("3x3_valid", (2, 16, 7, 7), (32, 16, 3, 3), _DTYPES),
    *_rows("3x3_64ch", (2, 64, 8, 8), (64, 64, 3, 3), _BOTH, padding=1),
    *_rows("1x1", (2, 32, 7, 7), (64, 32, 1, 1), _ALL),
    *_rows("1x1_1d", (3, 10, 9), (12, 10, 1), _DTYPES),
    *_rows("1x1_odd", (3, 10, 5, 7), (13, 10, 1, 1), _ALL, accumulate="add"),
    *_rows("1x1_stride2", (2, 16, 8, 8), (32, 16, 1, 1), _ALL, stride=2),
    *_rows("1x1_stride32", (3, 10, 8, 7), (13, 10, 1, 1), _ALL, stride=(3, 2), accumulate="add"),
    # Windows that do not overlap, which a product of matrices convolves with.
    *_rows("patches", (2, 3, 8, 8), (16, 3, 4, 4), _ALL, stride=4),
    *_rows("patches_rest", (2, 6, 9, 8), (8, 6, 2, 3), _ALL, stride=(2, 3), accumulate="add"),
    *_rows("patches_1d", (2, 4, 12), (6, 4, 3), _DTYPES, stride=3),
    *_rows("patches_dilated", (2, 4, 12, 12), (6, 4, 2, 2), _BOTH, stride=3, dilation=2),
    *_rows("patches_true", (2, 4, 8, 8), (6, 4, 2, 2), _BOTH, stride=2, mode="conv"),
    *_rows("patches_turned", (2, 4, 8, 8), (6, 4, 2, 2), _BOTH, stride=2, w_layout="nhwc"),
    *_rows("patches_planes", (2, 4, 8, 8), (6, 4, 2, 2), _BOTH, stride=2, w_layout="nchw"),
    *_rows("patches_3d", (2, 3, 4, 5, 4), (6, 3, 2, 2, 2), _BOTH, stride=2),
    *_rows("one_window", (3, 6, 5, 5), (10, 6, 5, 5), _ALL),
    # With pixels beside the windows at the very end.
    *_rows("patches_rest_1d", (1, 3, 5), (4, 3, 2), _ALL, stride=2),
    *_rows("patches_rest_rows", (1, 3, 5, 4), (4, 3, 2, 4), _ALL, stride=(2, 4)),
    *_rows("patches_rest_one", (1, 8, 2, 2), (6, 8, 1, 1), _BOTH, stride=2, accumulate="general"),
    *_rows("patches_rest_channel", (1, 1, 6), (8, 1, 3), _DTYPES, stride=4, accumulate="add"),
    *_rows("1x1_padded", (1, 8, 5, 5), (8, 8, 1, 1), _BOTH, padding=1),
    *_rows("3x3_stride2", (2, 16, 8, 8), (16, 16, 3, 3), _DTYPES, padding=1, stride=2),
    *_rows("3x3_full", (2, 8, 5, 5), (8, 8, 3, 3), _BOTH, padding=2),
    *_rows("5x5", (2, 8, 8, 8), (16, 8, 5, 5), _DTYPES, padding=2),
    *_rows("2x2", (2, 8, 8, 8), (8, 8, 2, 2), _BOTH),
    *_rows("4x4_stride2", (2, 8, 8, 8), (16, 8, 4, 4), _BOTH, padding=1, stride=2),
    *_rows("7x7_stem", (1, 3, 8, 8), (16, 3, 7, 7), _ALL, padding=3, stride=2),
    *_rows("4x2_folded", (2, 4, 9, 8), (8, 4, 4, 2), _ALL, padding=(2, 1), stride=(3, 1)),
    *_rows("3x4_folded", (2, 1, 9, 8), (4, 1, 3, 4), _BOTH, dilation=(2, 1), stride=(1, 3)),
    *_rows("3d_folded", (1, 3, 4, 6, 9), (8, 3, 3, 3, 5), _ALL, padding=2, stride=2),
    # Few channels, whose data gradient is made of blocks; with padding beyond the window.
    *_rows("few_padded", (2, 2, 5, 7), (4, 2, 2, 3), _BOTH, padding=(3, 4), stride=(1, 2)),
    *_rows("few_1d", (2, 1, 11), (6, 1, 4), _DTYPES, padding=1, stride=2, accumulate="general"),
    *_rows("few_3d", (1, 2, 4, 5, 6), (4, 2, 3, 2, 3), _BOTH, padding=(1, 0, 2), stride=(2, 1, 1)),
    *_rows("few_true", (2, 3, 9, 9), (8, 3, 3, 3), _BOTH, padding=1, stride=2, mode="conv"),
    *_rows("11x11_stride4", (1, 3, 8, 8), (8, 3, 11, 11), _BOTH, padding=5, stride=4),
    # Kernels, strides and paddings that differ by dimension.
    *_rows("1x7", (2, 8, 4, 16), (8, 8, 1, 7), _BOTH, padding=(0, 3)),
    *_rows("7x1", (2, 8, 16, 4), (8, 8, 7, 1), _BOTH, padding=(3, 0)),
    *_rows("3x5_stride12", (2, 8, 7, 9), (8, 8, 3, 5), _BOTH, padding=(1, 0), stride=(1, 2)),
    *_rows("pad20", (1, 8, 6, 8), (8, 8, 3, 3), _BOTH, padding=(2, 0)),
    *_rows("2x3_stride31", (1, 4, 8, 8), (6, 4, 2, 3), _BOTH, padding=(0, 2), stride=(3, 1)),
    # Input elements that no output reads: their gradient is zero, and must be written.
    *_rows("stride_over_kernel", (2, 8, 8, 8), (8, 8, 1, 1), _DTYPES, stride=3),
    *_rows("unread_border", (2, 8, 8, 8), (8, 8, 3, 3), _BOTH, stride=2),
    # Dilation.
    *_rows("dilation2", (2, 8, 8, 8), (8, 8, 3, 3), _DTYPES, padding=2, dilation=2),
    *_rows("dilation13", (1, 8, 8, 8), (8, 8, 3, 3), _BOTH, padding=(1, 3), dilation=(1, 3)),
    *_rows("dilation2_stride2", (1, 8, 8, 8), (8, 8, 3, 3), _BOTH, dilation=2, stride=2, padding=1),
    # Groups and depthwise.
    *_rows("groups2", (2, 16, 7, 7), (16, 8, 3, 3), _DTYPES, padding=1, groups=2),
    *_rows("groups4_widening", (2, 8, 6, 6), (32, 2, 3, 3), _BOTH, padding=1, groups=4),
    *_rows("groups3_odd", (1, 9, 5, 5), (6, 3, 3, 3), _BOTH, padding=1, groups=3),
    *_rows("groups2_1x1", (2, 16, 6, 6), (32, 8, 1, 1), _BOTH, groups=2),
    *_rows("depthwise", (2, 16, 8, 8), (16, 1, 3, 3), _DTYPES, padding=1, groups=16),
    *_rows("depthwise_x2", (1, 8, 8, 8), (16, 1, 3, 3), _BOTH, padding=1, groups=8),
    *_rows("depthwise_x3", (1, 5, 7, 7), (15, 1, 3, 3), _BOTH, padding=1, groups=5),
    *_rows("depthwise_s2", (1, 8, 8, 8), (8, 1, 3, 3), _BOTH, padding=1, stride=2, groups=8),
    *_rows("groups3_s2", (2, 6, 9, 7), (9, 2, 3, 4), _BOTH, padding=1, stride=(1, 2), groups=3),
    *_rows("depthwise_5x5", (1, 8, 8, 8), (8, 1, 5, 5), _BOTH, padding=2, groups=8),
    *_rows("depthwise_d2", (1, 8, 8, 8), (8, 1, 3, 3), _BOTH, padding=2, dilation=2, groups=8),
    # Rows that are no multiples of 16 bytes.
    *_rows("depthwise_rest", (2, 6, 14, 14), (6, 1, 3, 3), _PLANES, padding=1, groups=6),
    *_rows("depthwise_rest_7x7", (1, 3, 9, 13), (3, 1, 7, 7), _PLANES, padding=3, groups=3),
    *_rows(
        "depthwise_rest_s2", (2, 5, 13, 7), (10, 1, 5, 5), _PLANES, padding=2, stride=2, groups=5
    ),
    *_rows(
        "depthwise_rest_d2", (1, 4, 15, 9), (4, 1, 3, 3), _PLANES, padding=2, dilation=2, groups=4
    ),
    # Prime, tiny and single.
    *_rows("primes", (1, 5, 7, 7), (11, 5, 3, 3), _DTYPES, padding=1),
    *_rows("primes_wide", (2, 13, 5, 11), (7, 13, 3, 5), _BOTH, padding=(1, 2)),
    *_rows("one_pixel_out", (2, 8, 3, 3), (8, 8, 3, 3), _DTYPES),
    *_rows("one_pixel_in", (1, 16, 1, 1), (8, 16, 1, 1), _BOTH),
    *_rows("one_pixel_padded", (1, 8, 1, 1), (8, 8, 3, 3), _BOTH, padding=1),
    *_rows("one_of_all", (1, 1, 1, 1), (1, 1, 1, 1), _DTYPES),
    *_rows("one_channel_in", (2, 1, 8, 8), (8, 1, 3, 3), _BOTH, padding=1),
    *_rows("one_channel_out", (2, 8, 8, 8), (1, 8, 3, 3), _BOTH, padding=1),
    # Pointers that are not aligned to 16 bytes.
    *_rows("align2", (2, 8, 8, 8), (8, 8, 3, 3), _HALVES, padding=1, align=2),
    *_rows("align4", (2, 8, 8, 8), (8, 8, 3, 3), _HALVES + " f32:nchw", padding=1, align=4),
    *_rows("align8", (2, 8, 8, 8), (8, 8, 3, 3), _DTYPES + " f32:nhwc", padding=1, align=8),
    # Other layouts.
    *_rows("y_nhwc", (2, 8, 6, 6), (8, 8, 3, 3), "f32:nchw f16:nchw", padding=1, y_layout="nhwc"),
    *_rows("w_nhwc", (2, 8, 6, 6), (8, 8, 3, 3), "f32:nchw f16:nchw", padding=1, w_layout="nhwc"),
    *_rows("w_nchw", (2, 8, 6, 6), (8, 8, 3, 3), "f32:nhwc f16:nhwc", padding=1, w_layout="nchw"),
    *_rows(
        "x_channel_slice",
        (2, 8, 6, 6),
        (8, 8, 3, 3),
        "f32:nchw f16:nchw",
        padding=1,
        x_layout="s(576,36,6,1)",
    ),
    *_rows(
        "x_window",
        (2, 8, 6, 6),
        (8, 8, 3, 3),
        "f32:nchw",
        padding=1,
        x_layout="s(800,100,10,1)",
    ),
    # True convolution.
    *_rows("flipped", (2, 8, 7, 7), (8, 8, 3, 3), _DTYPES, padding=1, mode="conv"),
    *_rows("flipped_1x2", (1, 4, 6, 6), (4, 4, 1, 2), "f32:nchw", mode="conv"),
    *_rows("flipped_groups", (1, 8, 6, 6), (8, 4, 3, 3), _BOTH, padding=1, groups=2, mode="conv"),
    *_rows("flipped_1d", (2, 8, 16), (8, 8, 3), _BOTH, padding=1, mode="conv"),
    *_rows("flipped_3d", (1, 4, 4, 4, 4), (4, 4, 2, 2, 2), _BOTH, mode="conv"),
    # Adding onto what the output holds.
    *_rows("add", (2, 8, 7, 7), (8, 8, 3, 3), _ALL, padding=1, accumulate="add"),
    *_rows("general", (2, 8, 7, 7), (8, 8, 3, 3), _ALL, padding=1, accumulate="general"),
    *_rows("general_1x1", (2, 16, 6, 6), (16, 16, 1, 1), _ALL, accumulate="general"),
    *_rows("add_1x1", (2, 16, 6, 6), (16, 16, 1, 1), _BOTH, accumulate="add"),
    *_rows("add_groups", (1, 8, 6, 6), (8, 4, 3, 3), _BOTH, padding=1, groups=2, accumulate="add"),
    *_rows("add_unread", (1, 8, 8, 8), (8, 8, 1, 1), _BOTH, stride=3, accumulate="add"),
    *_rows("add_1d", (2, 8, 16), (8, 8, 3), _BOTH, padding=1, accumulate="add"),
    *_rows("add_3d", (1, 4, 4, 4, 4), (4, 4, 3, 3, 3), _BOTH, padding=1, accumulate="add"),
    # 1-D.
    *_rows("1d_3", (2, 8, 32), (16, 8, 3), _ALL, padding=1),
    *_rows("1d_1", (2, 16, 16), (16, 16, 1), _BOTH),
    *_rows("1d_7_stride2", (2, 8, 31), (8, 8, 7), _BOTH, padding=3, stride=2),
    *_rows("1d_dilation4", (1, 8, 32), (8, 8, 3), _BOTH, padding=4, dilation=4),
    *_rows("1d_groups", (2, 16, 16), (16, 4, 5), _BOTH, padding=2, groups=4),
    *_rows("1d_groups_s3", (2, 8, 17), (4, 2, 5), _BOTH, padding=2, stride=3, groups=4),
    *_rows("1d_depthwise", (1, 16, 32), (16, 1, 5), _BOTH, padding=2, groups=16),
    *_rows("1d_depthwise_rest", (2, 6, 37), (6, 1, 15), _PLANES, padding=7, groups=6),
    *_rows("1d_primes", (3, 7, 29), (5, 7, 4), _BOTH, padding=1, stride=3),
    # 3-D.
    *_rows("3d_3", (1, 8, 4, 4, 4), (8, 8, 3, 3, 3), _ALL, padding=1),
    *_rows("3d_1", (1, 16, 3, 4, 4), (8, 16, 1, 1, 1), _BOTH),
    *_rows("3d_stride2", (1, 4, 4, 4, 4), (8, 4, 3, 3, 3), _BOTH, padding=1, stride=2),
    *_rows("3d_133", (1, 8, 3, 4, 4), (8, 8, 1, 3, 3), _BOTH, padding=(0, 1, 1)),
    *_rows("3d_311", (1, 8, 4, 4, 4), (8, 8, 3, 1, 1), _BOTH, padding=(1, 0, 0), stride=(2, 1, 1)),
    *_rows("3d_dilation2", (1, 4, 4, 4, 4), (4, 4, 2, 2, 2), _BOTH, dilation=2),
    *_rows("3d_groups", (1, 8, 4, 4, 4), (8, 4, 3, 3, 3), _BOTH, padding=1, groups=2),
    *_rows("3d_depthwise", (1, 8, 4, 4, 4), (8, 1, 3, 3, 3), _BOTH, padding=1, groups=8),
    *_rows("3d_primes", (1, 3, 2, 5, 3), (5, 3, 2, 3, 1), _BOTH, padding=(1, 1, 0)),
    # Half accumulation.
    *_rows("compute_f16", (2, 16, 8, 8), (16, 16, 3, 3), "f16:nhwc", padding=1, compute="f16"),
    # Layers of real networks: GPU only.
    *_big("resnet_3x3_56", (32, 64, 56, 56), (64, 64, 3, 3), _ALL, padding=1),
    *_big("resnet_stem", (16, 3, 224, 224), (64, 3, 7, 7), _DTYPES, padding=3, stride=2),
    *_big("resnet_1x1_56", (32, 64, 56, 56), (256, 64, 1, 1), _BOTH),
    *_big("resnet_3x3_s2", (32, 128, 56, 56), (128, 128, 3, 3), _BOTH, padding=1, stride=2),
    *_big("resnet_1x1_s2", (32, 256, 56, 56), (512, 256, 1, 1), _BOTH, stride=2),
    *_big("resnet_3x3_14", (32, 256, 14, 14), (256, 256, 3, 3), _BOTH, padding=1),
    *_big("resnet_1x1_14", (32, 1024, 14, 14), (256, 1024, 1, 1), "bf16:nhwc f32:nchw"),
    *_big("resnet_3x3_7", (32, 512, 7, 7), (512, 512, 3, 3), _BOTH, padding=1),
    *_big("vgg_112", (16, 64, 112, 112), (128, 64, 3, 3), "f32:nchw bf16:nhwc", padding=1),
    *_big("vgg_first", (8, 3, 224, 224), (64, 3, 3, 3), _BOTH, padding=1),
    *_big("alexnet_11x11", (32, 3, 224, 224), (64, 3, 11, 11), _BOTH, padding=2, stride=4),
    *_big("alexnet_5x5", (32, 64, 27, 27), (192, 64, 5, 5), _BOTH, padding=2),
    *_big("mobilenet_dw", (32, 144, 56, 56), (144, 1, 3, 3), _DTYPES, padding=1, groups=144),
    *_big(
        "mobilenet_dw_s2", (32, 96, 112, 112), (96, 1, 3, 3), _BOTH, padding=1, stride=2, groups=96
    ),
    *_big("mobilenet_expand", (32, 24, 56, 56), (144, 24, 1, 1), _BOTH),
    *_big("convnext_dw", (16, 96, 56, 56), (96, 1, 7, 7), _BOTH, padding=3, groups=96),
    *_big("resnext_groups32", (16, 128, 56, 56), (128, 4, 3, 3), _BOTH, padding=1, groups=32),
    *_big("inception_1x7", (16, 192, 17, 17), (192, 192, 1, 7), _BOTH, padding=(0, 3)),
    *_big("deeplab_d12", (4, 256, 33, 33), (256, 256, 3, 3), _BOTH, padding=12, dilation=12),
    *_big("dcgan_4x4", (16, 64, 32, 32), (128, 64, 4, 4), _BOTH, padding=1, stride=2),
    *_big("primes_big", (7, 67, 53, 59), (31, 67, 3, 3), _BOTH, padding=1),
    *_big("flipped_big", (16, 64, 28, 28), (64, 64, 3, 3), _BOTH, padding=1, mode="conv"),
    *_big("add_big", (16, 64, 28, 28), (64, 64, 3, 3), _BOTH, padding=1, accumulate="add"),
    *_big("c3d", (2, 64, 8, 56, 56), (128, 64, 3, 3, 3), _BOTH, padding=1),
    *_big("r2plus1d_space", (2, 64, 8, 56, 56), (144, 64, 1, 3, 3), _BOTH, padding=(0, 1, 1)),
    *_big("r2plus1d_time", (2, 144, 8, 56, 56), (64, 144, 3, 1, 1), _BOTH, padding=(1, 0, 0)),
    *_big("wav2vec_3", (8, 512, 4000), (512, 512, 3), _BOTH, stride=2),
    *_big("audio_first", (8, 1, 16000), (64, 1, 400), _BOTH, stride=160),
    *_big("conformer_dw", (8, 256, 1000), (256, 1, 31), _BOTH, padding=15, groups=256),
)

SMALL: tuple[Case, ...] = tuple(case for case in CASES if case.size == "small")


@dataclass(frozen=True)
class Line:
    """One problem, and whether it is ``small`` or ``big``."""

    name: str
    problem: str
    size: str


_RELU = (
    *_rows("relu", (2, 8, 8, 8), (8, 8, 3, 3), _ALL, padding=1),
    *_rows("relu_1x1", (2, 16, 7, 7), (32, 16, 1, 1), _DTYPES),
    *_rows("relu_5x5", (2, 8, 8, 8), (16, 8, 5, 5), _BOTH, padding=2, stride=2),
    *_rows("relu_64ch", (2, 64, 8, 8), (64, 64, 3, 3), _DTYPES + " f32:nhwc", padding=1),
    *_rows("relu_groups", (2, 16, 7, 7), (16, 8, 3, 3), _DTYPES, padding=1, groups=2),
    *_rows("relu_depthwise", (2, 16, 8, 8), (16, 1, 3, 3), _BOTH, padding=1, groups=16),
    *_rows("relu_primes", (1, 5, 7, 7), (11, 5, 3, 3), _DTYPES, padding=1),
    *_rows("relu_one_pixel", (64, 120, 1, 1), (32, 120, 1, 1), _DTYPES),
    *_rows("relu_align8", (2, 8, 8, 8), (8, 8, 3, 3), _DTYPES, padding=1, align=8),
    *_rows("relu_flipped", (2, 8, 7, 7), (8, 8, 3, 3), _BOTH, padding=1, mode="conv"),
    *_rows("relu_4_channels", (2, 4, 9, 8), (8, 4, 3, 3), _BOTH, padding=1),
    *_rows("relu_1d", (2, 8, 32), (16, 8, 3), _DTYPES, padding=1),
    *_rows("relu_3d", (1, 8, 4, 4, 4), (8, 8, 3, 3, 3), _DTYPES, padding=1),
    *_big("relu_resnet", (16, 128, 28, 28), (128, 128, 3, 3), _DTYPES + " f32:nhwc", padding=1),
    *_big("relu_expand", (16, 64, 56, 56), (256, 64, 1, 1), _DTYPES + " f32:nhwc"),
    *_big("relu_strided", (16, 64, 56, 56), (128, 64, 3, 3), _BOTH, padding=1, stride=2),
)
_EPILOGUES = {
    "alone": " act=relu",
    "bias": " bias={0} act=relu",
    "z": " z={0} act=relu",
    "bias_z": " bias={0} z={0} act=relu",
}

CLAMPED: tuple[Line, ...] = tuple(
    Line(
        f"conv_fwd-{case.name}-{name}",
        f"{case.problem('conv_fwd')}{fields.format(case.dtype)}",
        case.size,
    )
    for case in _RELU
    for name, fields in _EPILOGUES.items()
)

ACTIVATED: tuple[Line, ...] = tuple(
    Line(
        f"conv_fwd-{case.name}-{name}",
        f"{case.problem('conv_fwd')}{fields.format(case.dtype)}",
        case.size,
    )
    for case in (
        *_rows("act", (2, 8, 8, 8), (8, 8, 3, 3), _ALL, padding=1),
        *_rows("act_1x1", (2, 16, 7, 7), (32, 16, 1, 1), _DTYPES),
        *_rows("act_64ch", (2, 64, 8, 8), (64, 64, 3, 3), _DTYPES + " f32:nhwc", padding=1),
        *_rows("act_depthwise", (2, 16, 8, 8), (16, 1, 3, 3), _BOTH, padding=1, groups=16),
        *_rows("act_one_pixel", (64, 120, 1, 1), (32, 120, 1, 1), _DTYPES),
        *_rows("act_3d", (1, 8, 4, 4, 4), (8, 8, 3, 3, 3), _DTYPES, padding=1),
        *_big("act_resnet", (16, 128, 28, 28), (128, 128, 3, 3), _DTYPES, padding=1),
        *_big("act_expand", (16, 64, 56, 56), (256, 64, 1, 1), _DTYPES),
    )
    for name, fields in {
        "sum": " bias={0} z={0}",
        "relu6": " bias={0} act=relu6",
        "sigmoid": " z={0} act=sigmoid",
        "tanh": " act=tanh",
        "silu": " bias={0} act=silu",
        "silu_sum": " bias={0} z={0} act=silu",
        "gelu": " bias={0} act=gelu",
        "gelu_tanh": " bias={0} act=gelu_tanh",
    }.items()
)

BIASED: tuple[Line, ...] = tuple(
    Line(f"conv_fwd-{case.name}", f"{case.problem('conv_fwd')} bias={case.dtype}", case.size)
    for case in (
        *_rows("bias", (2, 8, 8, 8), (8, 8, 3, 3), _ALL, padding=1),
        *_rows("bias_1x1", (2, 16, 7, 7), (32, 16, 1, 1), _DTYPES),
        *_rows("bias_5x5", (2, 8, 8, 8), (16, 8, 5, 5), _BOTH, padding=2, stride=2),
        *_rows("bias_64ch", (2, 64, 8, 8), (64, 64, 3, 3), _DTYPES + " f32:nhwc", padding=1),
        *_rows("bias_dilated", (1, 8, 8, 8), (8, 8, 3, 3), _BOTH, padding=2, dilation=2),
        *_rows("bias_groups", (2, 16, 7, 7), (16, 8, 3, 3), _DTYPES, padding=1, groups=2),
        *_rows("bias_depthwise", (2, 16, 8, 8), (16, 1, 3, 3), _BOTH, padding=1, groups=16),
        *_rows("bias_primes", (1, 5, 7, 7), (11, 5, 3, 3), _DTYPES, padding=1),
        *_rows("bias_one_pixel", (2, 8, 3, 3), (16, 8, 3, 3), _BOTH),
        *_rows("bias_one_pixel_in", (64, 120, 1, 1), (32, 120, 1, 1), _DTYPES),
        *_rows("bias_align2", (2, 8, 8, 8), (8, 8, 3, 3), _HALVES, padding=1, align=2),
        *_rows("bias_align8", (2, 8, 8, 8), (8, 8, 3, 3), _DTYPES, padding=1, align=8),
        *_rows("bias_flipped", (2, 8, 7, 7), (8, 8, 3, 3), _BOTH, padding=1, mode="conv"),
        *_rows("bias_y_nhwc", (2, 8, 6, 6), (8, 8, 3, 3), "f16:nchw", padding=1, y_layout="nhwc"),
        *_rows("bias_7x7", (2, 3, 9, 8), (16, 3, 7, 7), _ALL, padding=3, stride=2),
        *_rows("bias_4_channels", (2, 4, 9, 8), (8, 4, 3, 3), _BOTH, padding=1),
        *_rows("bias_beyond", (2, 3, 9, 8), (8, 3, 3, 3), _BOTH, padding=2),
        *_rows("bias_1d", (2, 8, 32), (16, 8, 3), _ALL, padding=1),
        *_rows("bias_3d", (1, 8, 4, 4, 4), (8, 8, 3, 3, 3), _ALL, padding=1),
        *_rows("bias_f16", (2, 16, 8, 8), (16, 16, 3, 3), "f16:nhwc", padding=1, compute="f16"),
        *_big("bias_vgg_112", (16, 64, 112, 112), (128, 64, 3, 3), _DTYPES, padding=1),
        *_big("bias_alexnet", (32, 3, 224, 224), (64, 3, 11, 11), _DTYPES, padding=2, stride=4),
    )
)


def _tensor(dtype: str, sizes: tuple[int, ...], layout: str = "nchw") -> str:
    return f"{dtype}[{_numbers(sizes)}]:{layout}"


def _softmax(
    name: str, rows: tuple[int, int, int], dtypes: str, size: str = "small", extra: str = ""
) -> Iterator[Line]:
    """All of softmax on tensors of these ``[outer, n, inner]`` sizes, for each dtype."""
    for dtype in dtypes.split():
        for op in ("softmax_fwd", "softmax_bwd"):
            for log in ("false", "true"):
                problem = f"{op} x={_tensor(dtype, rows)} log={log}{extra}"
                kind = "log_" if log == "true" else ""
                yield Line(f"{op}-{kind}{name}-{dtype}", problem, size)


_EACH = "f64 f32 f16 bf16"
_TWO = "f32 f16"
_BOTH_HALVES = "f32 f16 bf16"

SOFTMAX: tuple[Line, ...] = (
    *_softmax("rows", (6, 10, 1), _EACH),
    *_softmax("channels", (2, 5, 12), _EACH),
    *_softmax("one_row", (1, 300, 1), _TWO),
    *_softmax("one_class", (3, 1, 7), _TWO),
    *_softmax("wide_pixel", (2, 33, 3), _TWO),
    *_softmax("primes", (7, 13, 11), _EACH),
    *_softmax("one_of_all", (1, 1, 1), _TWO),
    *_softmax("align", (3, 9, 5), "f32 f64", extra=" align=8"),
    *_softmax("align2", (3, 9, 5), "f16 bf16", extra=" align=2"),
    *_softmax("classes_1000", (256, 1000, 1), _EACH, "big"),
    *_softmax("vocabulary", (32, 32000, 1), _TWO, "big"),
    *_softmax("attention", (4096, 512, 1), "f16 bf16", "big"),
    *_softmax("segmentation", (8, 21, 128 * 128), _EACH, "big"),
    *_softmax("many_channels", (4, 512, 28 * 28), _TWO, "big"),
    *_softmax("volume", (2, 19, 32 * 32 * 32), _TWO, "big"),
)


_MODES = "max avg_include avg_exclude sum"


def _pool(
    name: str,
    x: tuple[int, ...],
    kinds: str,
    words: str,
    modes: str = _MODES,
    size: str = "small",
    how: str = "",
    align: str = "",
) -> Iterator[Line]:
    """Both passes of pooling for each ``dtype:layout`` and mode; maxima also without gradients."""
    for kind in kinds.split():
        dtype, layout = kind.split(":")
        for mode in modes.split():
            for op in ("pool_fwd", "pool_bwd"):
                if align and mode == "max":  # training copies its tensors
                    continue
                train = " train=true" if mode == "max" else ""
                problem = (
                    f"{op} x={_tensor(dtype, x, layout)} {words} mode={mode}{how}{train}{align}"
                )
                yield Line(f"{op}-{mode}-{name}-{dtype}-{layout}", problem, size)
            if mode == "max":
                problem = f"pool_fwd x={_tensor(dtype, x, layout)} {words} mode=max{how}{align}"
                yield Line(f"pool_fwd-max_infer-{name}-{dtype}-{layout}", problem, size)


_AVERAGES = "avg_include avg_exclude"

POOLING: tuple[Line, ...] = (
    *_pool("3x3_s2", (2, 8, 13, 11), _ALL, "window=3 pad=1 stride=2"),
    *_pool("2x2", (2, 8, 8, 8), _DTYPES, "window=2", "max avg_include sum"),
    *_pool("3x3_s1", (2, 5, 7, 7), _BOTH, "window=3 pad=1 stride=1"),
    *_pool("2x3", (1, 3, 8, 9), _BOTH, "window=2,3 pad=0,1 stride=3,1"),
    *_pool("primes", (3, 7, 11, 13), _DTYPES, "window=5,3 pad=2,1 stride=3,2"),
    *_pool("gaps", (2, 8, 9, 9), _BOTH, "window=2 stride=3", "max avg_include"),
    *_pool("global", (2, 16, 7, 7), _DTYPES, "window=7", "max avg_include"),
    *_pool("global_nhwc", (2, 16, 7, 5), "f32:nhwc bf16:nhwc", "window=7,5", "avg_include"),
    *_pool("global_volume", (2, 8, 3, 5, 4), _BOTH, "window=3,5,4", "avg_exclude"),
    *_pool("line", (2, 8, 1, 31), _BOTH, "window=1,4 pad=0,2 stride=1,3"),
    *_pool("one_of_all", (1, 1, 1, 1), "f32:nchw", "window=1", "max avg_include"),
    *_pool("pixels", (3, 8, 1, 1), _BOTH, "window=1", "max avg_include"),
    *_pool("one_channel", (2, 1, 9, 9), _BOTH, "window=3 stride=2", "max avg_include"),
    *_pool(
        "ceil", (2, 8, 12, 8), _DTYPES, "window=3 stride=2", "max avg_include sum", how=" ceil=true"
    ),
    *_pool("ceil_pad", (2, 8, 12, 8), _DTYPES, "window=3 pad=1 stride=2", how=" ceil=true"),
    *_pool("dilated", (2, 8, 12, 9), _DTYPES, "window=3 pad=1 stride=2 dilation=2,1", "max"),
    *_pool("uneven", (2, 8, 7, 9), _DTYPES, "window=3,4", "max avg_include", how=" adaptive=true"),
    *_pool(
        "align8",
        (2, 8, 9, 9),
        "f32:nchw f64:nchw f16:nhwc",
        "window=3 stride=2",
        "max avg_include",
        align=" align=8",
    ),
    *_pool(
        "align2",
        (2, 8, 9, 9),
        "f16:nchw f16:nhwc bf16:nhwc",
        "window=3 stride=2",
        "max avg_include",
        align=" align=2",
    ),
    *_pool("volume", (2, 4, 5, 7, 6), _ALL, "window=2 stride=2", "max avg_include"),
    *_pool("volume_pad", (1, 3, 5, 7, 6), _BOTH, "window=3,2,3 pad=1,0,1 stride=2,1,2"),
    *_pool(
        "volume_ceil",
        (1, 3, 6, 8, 6),
        _BOTH,
        "window=3 stride=2",
        "max avg_include",
        how=" ceil=true",
    ),
    *_pool(
        "volume_uneven",
        (1, 3, 5, 7, 6),
        "f32:nchw",
        "window=2,3,4",
        "max avg_include",
        how=" adaptive=true",
    ),
    *_pool("many_channels", (1, 65600, 8, 8), "f32:nchw f16:nchw", "window=2", "max", "big"),
    *_pool("many_images", (65600, 1, 32, 32), "f32:nchw", "window=2", "max avg_include", "big"),
    *_pool("resnet_stem", (32, 64, 112, 112), _ALL, "window=3 pad=1 stride=2", "max", "big"),
    *_pool(
        "average_stem", (32, 64, 112, 112), _DTYPES, "window=3 pad=1 stride=2", _AVERAGES, "big"
    ),
    *_pool(
        "vgg",
        (16, 128, 112, 112),
        "f32:nchw f16:nhwc bf16:nhwc",
        "window=2",
        "max avg_include",
        "big",
    ),
    *_pool("densenet", (16, 256, 56, 56), _BOTH, "window=2", "avg_include", "big"),
    *_pool(
        "inception_same",
        (16, 288, 35, 35),
        _BOTH,
        "window=3 pad=1 stride=1",
        "max avg_include",
        "big",
    ),
    *_pool("inception", (16, 288, 35, 35), _BOTH, "window=3 stride=2", "max", "big"),
    *_pool(
        "googlenet_ceil",
        (16, 192, 56, 56),
        _BOTH,
        "window=3 stride=2",
        "max avg_include",
        "big",
        " ceil=true",
    ),
    *_pool("global_7", (64, 2048, 7, 7), _DTYPES, "window=7", "max avg_include", "big"),
    *_pool("squeeze_excite", (32, 96, 56, 56), _BOTH, "window=56", "avg_include", "big"),
    *_pool("pyramid", (4, 512, 60, 60), _BOTH, "window=10", "max avg_include sum", "big"),
    *_pool("c3d", (4, 64, 8, 56, 56), _BOTH, "window=1,2,2", "max avg_include", "big"),
    *_pool("video", (4, 64, 8, 56, 56), _BOTH, "window=3 pad=1 stride=2", "max avg_include", "big"),
    *_pool(
        "audio",
        (8, 512, 1, 16000),
        _BOTH,
        "window=1,8 pad=0,2 stride=1,4",
        "max avg_include",
        "big",
    ),
)


def _batch_norm(
    name: str,
    x: tuple[int, int, int],
    dtypes: str,
    layouts: str = "nchw nhwc",
    size: str = "small",
    align: int = 16,
) -> Iterator[Line]:
    """All of batch normalisation of ``[N, C, S]``, for each dtype and layout."""
    problems = (
        ("train", "batch_norm_fwd", ""),
        ("train_running", "batch_norm_fwd", " running=true"),
        ("train_fused", "batch_norm_fwd", " running=true z=true act=relu"),
        ("infer", "batch_norm_infer", ""),
        ("infer_fused", "batch_norm_infer", " z=true act=relu"),
        ("bwd", "batch_norm_bwd", ""),
        ("bwd_eval", "batch_norm_bwd", " train=false"),
    )
    tail = "" if align == 16 else f" align={align}"
    for dtype in dtypes.split():
        for layout in layouts.split():
            for kind, op, extra in problems:
                if align < 16 and op != "batch_norm_infer":  # training copies its tensors
                    continue
                problem = f"{op} x={_tensor(dtype, x, layout)}{extra}{tail}"
                yield Line(f"batch_norm-{kind}-{name}-{layout}-{dtype}", problem, size)


BATCH_NORM: tuple[Line, ...] = (
    *_batch_norm("plain", (4, 6, 25), _EACH),
    *_batch_norm("primes", (5, 7, 11 * 13), _EACH),
    *_batch_norm("rows", (19, 10, 1), _EACH, "nchw"),
    *_batch_norm("one_channel", (3, 1, 35), _TWO, "nchw"),
    *_batch_norm("one_sample", (1, 8, 64), _TWO),
    *_batch_norm("wide", (8, 72, 9), _TWO),
    *_batch_norm("align", (3, 5, 21), _TWO, align=4),
    *_batch_norm("align2", (3, 5, 21), "f16 bf16", align=2),
    *_batch_norm("align4_rows", (4, 16, 64), "f32", align=4),
    *_batch_norm("resnet_stem", (32, 64, 112 * 112), _BOTH_HALVES, size="big"),
    *_batch_norm("resnet_last", (32, 2048, 7 * 7), _BOTH_HALVES, size="big"),
    *_batch_norm("mobilenet", (32, 144, 56 * 56), "f32 bf16", size="big"),
    *_batch_norm("densenet_odd", (16, 1056, 14 * 14), _TWO, size="big"),
    *_batch_norm("video", (2, 45, 8 * 56 * 56), _TWO, size="big"),
    *_batch_norm("classifier", (256, 4096, 1), _BOTH_HALVES, "nchw", size="big"),
)


def _rnn(
    name: str,
    cells: str,
    x: tuple[int, int, int],
    hidden: int,
    dtypes: str,
    size: str = "small",
    *,
    layers: int = 1,
    both: bool = False,
    proj: int = 0,
    bias: str = "double",
    skip: bool = False,
    lengths: str = "full",
    infer: bool = True,
) -> Iterator[Line]:
    """A network on ``[time, batch, input]``: inference, and the two passes of training."""
    for cell, dtype in ((cell, dtype) for cell in cells.split() for dtype in dtypes.split()):
        words = [f"cell={cell} x={_tensor(dtype, x)} hidden={hidden}"]
        words += [f"proj={proj}"] * (proj > 0)
        words.append(f"layers={layers} bidirectional={str(both).lower()} bias={bias}")
        words += ["skip=true"] * skip
        words.append(f"lengths={lengths}")
        for op, train in (("rnn_fwd", "false"), ("rnn_fwd", "true"), ("rnn_bwd", "true")):
            if train == "false" and not infer:
                continue
            compute = "f64" if dtype == "f64" else "f32"
            problem = " ".join([op, *words, f"train={train} compute={compute}"])
            kind = "infer" if train == "false" else "train"
            yield Line(f"{op}-{kind}-{name}-{cell}-{dtype}", problem, size)


_CELLS = "lstm gru tanh relu"

RNN: tuple[Line, ...] = (
    *_rnn("plain", _CELLS, (5, 3, 8), 16, _EACH),
    *_rnn("primes", _CELLS, (7, 5, 11), 13, _TWO),
    *_rnn("deep", "lstm gru", (4, 2, 16), 16, "f64 f32 f16", layers=3),
    *_rnn("both_ways", _CELLS, (4, 3, 8), 8, _TWO, layers=2, both=True),
    *_rnn("projected", "lstm", (5, 3, 8), 16, _EACH, proj=8),
    *_rnn("projected_both", "lstm", (4, 3, 8), 16, _TWO, proj=5, layers=2, both=True),
    *_rnn("no_bias", _CELLS, (5, 2, 8), 16, "f32", bias="none"),
    *_rnn("single_bias", "lstm gru relu", (5, 2, 8), 16, _TWO, bias="single", layers=2),
    *_rnn("skip", "lstm gru tanh", (5, 2, 16), 16, _TWO, skip=True, layers=2),
    *_rnn("skip_both", "gru", (5, 2, 16), 16, "f32", skip=True, both=True),
    *_rnn("packed", _CELLS, (6, 4, 8), 16, _TWO, lengths="packed"),
    *_rnn(
        "packed_both", "lstm gru", (5, 7, 8), 8, "f64 f16", lengths="packed", layers=2, both=True
    ),
    *_rnn("one_step", "lstm gru", (1, 3, 8), 16, "f32"),
    *_rnn("one_sequence", "lstm tanh", (6, 1, 8), 16, _TWO),
    *_rnn("tiny", _CELLS, (1, 1, 3), 5, "f32"),
    *_rnn("odd_eights", "lstm", (24, 5, 16), 72, "f16"),
    *_rnn("odd_eights_alone", "lstm", (40, 1, 11), 200, "f16"),
    *_rnn("speech", _CELLS, (50, 1, 256), 256, _TWO, "big"),
    *_rnn("language", "lstm", (64, 32, 512), 512, _EACH, "big", layers=4, infer=False),
    *_rnn("translation", "lstm gru", (128, 64, 1024), 1024, _TWO, "big", layers=2, infer=False),
    *_rnn("tagger", "lstm gru", (40, 16, 128), 128, _TWO, "big", layers=2, both=True),
    *_rnn("tagger_packed", "lstm", (40, 16, 128), 128, _TWO, "big", both=True, lengths="packed"),
    *_rnn("wide_batch", "lstm tanh", (32, 128, 128), 512, "f16 bf16", "big"),
    *_rnn("acoustic_projection", "lstm", (50, 16, 240), 512, _TWO, "big", proj=128, layers=2),
    *_rnn("small_hidden", _CELLS, (100, 8, 64), 64, _TWO, "big"),
    *_rnn("above_small_hidden", _CELLS, (6, 16, 128), 160, "f16 bf16", "big"),
    *_rnn("many_kinks", "relu", (16, 512, 8), 160, _TWO, "big"),
)


def _affine_grid(
    name: str, batch: int, space: tuple[int, ...], dtypes: str, size: str = "small", extra: str = ""
) -> Iterator[Line]:
    """Both passes, with and without aligned corners, for each dtype."""
    dims = len(space)
    for dtype in dtypes.split():
        theta = _tensor(dtype, (batch, dims, dims + 1))
        grid = _tensor(dtype, (batch, *space, dims))
        for op in ("affine_grid_fwd", "affine_grid_bwd"):
            for align in ("false", "true"):
                problem = f"{op} theta={theta} grid={grid} align_corners={align}{extra}"
                yield Line(f"{op}-{name}-{dtype}-{align}", problem, size)


AFFINE_GRID: tuple[Line, ...] = (
    *_affine_grid("square", 2, (5, 5), _EACH),
    *_affine_grid("wide", 3, (3, 11), _TWO),
    *_affine_grid("one_row", 2, (1, 7), "f64 f32"),
    *_affine_grid("many", 65600, (5, 5), "f32", "big"),
    *_affine_grid("one_point", 1, (1, 1), "f32"),
    *_affine_grid("volume", 2, (3, 4, 5), _EACH),
    *_affine_grid("flat_volume", 1, (1, 4, 3), "f32"),
    *_affine_grid("align", 2, (3, 5), "f32 f64", extra=" align=8"),
    *_affine_grid("align2", 2, (3, 5), "f16", extra=" align=2"),
    *_affine_grid("mnist", 256, (28, 28), _EACH, "big"),
    *_affine_grid("image", 32, (224, 224), _EACH, "big"),
    *_affine_grid("scan", 2, (64, 64, 64), _TWO, "big"),
)


def _grid_sample(
    name: str,
    x: tuple[int, ...],
    points: tuple[int, ...],
    dtypes: str,
    how: str = "bilinear:zeros:true",
    size: str = "small",
    layout: str = "nchw",
    extra: str = "",
) -> Iterator[Line]:
    """Both passes for each dtype and each ``mode:padding:align_corners`` among ``how``."""
    for dtype in dtypes.split():
        grid = _tensor(dtype, (x[0], *points, len(points)))
        for kind in how.split():
            mode, padding, align = kind.split(":")
            for op in ("grid_sample_fwd", "grid_sample_bwd"):
                if "input_gradient" in extra and op == "grid_sample_fwd":
                    continue
                problem = (
                    f"{op} x={_tensor(dtype, x, layout)} grid={grid} mode={mode} "
                    f"padding={padding} align_corners={align}{extra}"
                )
                yield Line(f"{op}-{name}-{dtype}-{kind.replace(':', '-')}", problem, size)


_BILINEAR = " ".join(
    f"bilinear:{padding}:{align}"
    for padding in ("zeros", "border", "reflection")
    for align in ("true", "false")
)
_OTHERS = "nearest:zeros:true nearest:reflection:false bicubic:zeros:true bicubic:border:false"

GRID_SAMPLE: tuple[Line, ...] = (
    *_grid_sample("plane", (2, 3, 5, 7), (4, 6), "f16 bf16"),
    *_grid_sample("ways", (2, 3, 5, 7), (4, 6), "f64 f32", _BILINEAR + " " + _OTHERS),
    *_grid_sample("ways_nhwc", (2, 4, 5, 7), (4, 6), "f32", _BILINEAR, layout="nhwc"),
    *_grid_sample("primes", (1, 11, 13, 3), (7, 5), _TWO),
    *_grid_sample("one_pixel", (2, 3, 1, 1), (4, 4), "f32", _BILINEAR),
    *_grid_sample("one_point", (3, 5, 6, 6), (1, 1), _TWO),
    *_grid_sample("one_row", (1, 2, 1, 9), (3, 3), "f32", _BILINEAR),
    *_grid_sample("nhwc", (2, 8, 6, 6), (5, 5), _TWO, layout="nhwc"),
    *_grid_sample("no_dx", (2, 3, 5, 7), (4, 6), _EACH, extra=" input_gradient=false"),
    *_grid_sample("align", (2, 3, 5, 5), (3, 3), "f32 f64", extra=" align=8"),
    *_grid_sample("align2", (2, 3, 5, 5), (3, 3), "f16", extra=" align=2"),
    *_grid_sample("volume", (2, 3, 3, 4, 5), (2, 3, 4), "f64 f32", _BILINEAR),
    *_grid_sample("volume_nearest", (1, 2, 4, 3, 5), (3, 3, 3), "f32", "nearest:border:true"),
    *_grid_sample("mnist", (256, 1, 28, 28), (28, 28), "f64 f32 f16", size="big"),
    *_grid_sample("image", (16, 3, 224, 224), (224, 224), "f32 f16", size="big"),
    *_grid_sample("features", (8, 256, 56, 56), (56, 56), "f32 f16", size="big"),
    *_grid_sample(
        "features_no_dx",
        (8, 64, 56, 56),
        (56, 56),
        "f32",
        size="big",
        extra=" input_gradient=false",
    ),
    *_grid_sample("flow", (4, 64, 96, 128), (96, 128), "f32", "bilinear:border:false", "big"),
    *_grid_sample("scan", (1, 4, 32, 64, 64), (32, 64, 64), "f32", size="big"),
)


def _dropout(name: str, elements: int, dtypes: str, p: str, size: str = "small") -> Iterator[Line]:
    """Inference, training and its gradient, for each dtype and both generators."""
    for rng in ("philox", "cudnn"):
        if rng == "cudnn":
            size = "big"  # cuDNN's numbers are drawn on a GPU
        for dtype in dtypes.split():
            if rng == "cudnn" and dtype == "bf16":
                continue
            words = f"x={_tensor(dtype, (elements,))} p={p} rng={rng}"
            yield Line(f"dropout_fwd-{name}-{dtype}-{rng}", f"dropout_fwd {words}", size)
            yield Line(f"dropout_bwd-{name}-{dtype}-{rng}", f"dropout_bwd {words}", size)
            alone = f"dropout_fwd {words} train=false"
            yield Line(f"dropout_fwd-alone-{name}-{dtype}-{rng}", alone, size)


DROPOUT: tuple[Line, ...] = (
    *_dropout("half", 4096, _EACH, "0.5"),
    *_dropout("rare", 1021, _TWO, "0.1"),
    *_dropout("most", 2003, _TWO, "0.9"),
    *_dropout("one", 1, "f32", "0.5"),
    *_dropout("vgg_classifier", 64 * 4096, _EACH, "0.5", "big"),
    *_dropout("transformer", 16 * 512 * 1024, _EACH, "0.1", "big"),
)


def _ctc(
    name: str,
    log_probs: tuple[int, int, int],
    target_length: int,
    extra: str = "",
    dtypes: str = "f64 f32",
    size: str = "small",
) -> Iterator[Line]:
    """The loss alone and with its gradient, for each dtype and kind of lengths."""
    for dtype in dtypes.split():
        for lengths in ("full", "padded", "irregular"):
            for gradient in ("", " gradient=true"):
                problem = (
                    f"ctc_fwd log_probs={_tensor(dtype, log_probs)} target_length={target_length} "
                    f"{extra or 'blank=0'} lengths={lengths}{gradient}"
                )
                kind = "gradient" if gradient else "loss"
                yield Line(f"ctc_fwd-{name}-{dtype}-{lengths}-{kind}", problem, size)


CTC: tuple[Line, ...] = (
    *_ctc("short", (9, 3, 5), 4),
    *_ctc("one_label", (6, 4, 7), 1),
    *_ctc("two_classes", (13, 2, 2), 3),
    *_ctc("last_blank", (11, 3, 6), 4, "blank=5"),
    *_ctc("middle_blank", (11, 3, 6), 4, "blank=2"),
    *_ctc("primes", (31, 7, 11), 13),
    *_ctc("words", (50, 16, 20), 20, dtypes="f32", size="big"),
    *_ctc("speech", (500, 32, 29), 100, dtypes="f32", size="big"),
    *_ctc("long_target", (700, 4, 40), 300, dtypes="f32", size="big"),
    *_ctc("word_pieces", (200, 16, 5000), 50, dtypes="f32", size="big"),
)


def _norm(
    name: str,
    sizes: tuple[int, ...],
    kind: str,
    dtypes: str,
    size: str = "small",
    *,
    layout: str = "nchw",
    parameters: str = "w bias",
    groups: int = 1,
    align: int = 16,
    no_stats: bool = False,
) -> Iterator[Line]:
    """Both passes for each ``dtype`` or ``dtype/dtype of parameters``."""
    if kind == "rms":
        parameters = parameters.replace("bias", "")
    for word in dtypes.split():
        dtype, _, own = word.partition("/")
        for op in ("layer_norm_fwd", "layer_norm_bwd"):
            if no_stats and op == "layer_norm_bwd":
                continue
            words = [op, f"x={_tensor(dtype, sizes, layout)}", f"kind={kind}"]
            words += [f"groups={groups}"] if groups > 1 else []
            words += [f"{parameter}={own or dtype}" for parameter in parameters.split()]
            words += ["stats=false"] if no_stats else []
            words += [f"align={align}"] if align < 16 else []
            problem = " ".join(words)
            yield Line(f"{op}-{kind}-{name}-{word.replace('/', '_')}-{layout}", problem, size)


def _lrn(
    name: str,
    sizes: tuple[int, ...],
    window: str,
    dtypes: str,
    size: str = "small",
) -> Iterator[Line]:
    """Both passes for each dtype; ``window`` holds the fields from ``kind`` on."""
    for dtype in dtypes.split():
        for op in ("lrn_fwd", "lrn_bwd"):
            problem = f"{op} x={_tensor(dtype, sizes)} {window}"
            yield Line(f"{op}-{name}-{dtype}", problem, size)


_COEFFICIENTS = {"clipped_relu": (0.7, 6.0), "elu": (1.0, 0.3), "swish": (1.0, 1.7)}


def _activation(
    name: str, count: int, dtypes: str, size: str = "small", extra: str = ""
) -> Iterator[Line]:
    """All activations of so many elements, and their gradients from the input and the output."""
    for dtype in dtypes.split():
        x = _tensor(dtype, (count,))
        for kind in ("relu", "clipped_relu", "tanh", "sigmoid", "elu", "swish"):
            for coefficient in _COEFFICIENTS.get(kind, (1.0,)):
                words = f"x={x} kind={kind} coefficient={coefficient:g}"
                label = f"{kind}{coefficient:g}-{name}-{dtype}"
                yield Line(f"activation_fwd-{label}", f"activation_fwd {words}{extra}", size)
                yield Line(f"activation_bwd-{label}", f"activation_bwd {words}{extra}", size)
                if kind in ("clipped_relu", "elu"):
                    problem = f"activation_bwd {words} from_output=true{extra}"
                    yield Line(f"activation_bwd-{label}-inplace", problem, size)


ACTIVATION: tuple[Line, ...] = (
    *_activation("prime", 1031, _EACH),
    *_activation("even", 4096, _TWO),
    *_activation("one", 1, "f32"),
    *_activation("align", 77, "f32", extra=" align=4"),
    *_activation("align2", 77, "bf16", extra=" align=2"),
    *_activation("align2_even", 4096, "f16", extra=" align=2"),
    *_activation("resnet", 32 * 64 * 56 * 56, "f32 bf16", "big"),
    *_activation("odd_big", 3 * 1009 * 1013, "f16", "big"),
)


def _matmul(
    name: str,
    x: tuple[int, int, int],
    w: tuple[int, int, int],
    dtypes: str,
    size: str = "small",
    layouts: tuple[str, str] = ("nchw", "nchw"),
    extra: str = "",
) -> Iterator[Line]:
    """The product of ``[batch, m, k]`` and ``[batch, k, n]``; ``:nhwc`` is a transposed matrix."""
    for dtype in dtypes.split():
        words = f"x={_tensor(dtype, x, layouts[0])} w={_tensor(dtype, w, layouts[1])}"
        yield Line(f"matmul-{name}-{dtype}", f"matmul_fwd {words}{extra}", size)


_FORMS = {
    "nn": ("nchw", "nchw"),
    "tn": ("nhwc", "nchw"),
    "nt": ("nchw", "nhwc"),
    "tt": ("nhwc", "nhwc"),
}
_EPILOGUES = {
    "bias": " bias=true",
    "relu": " act=relu",
    "bias_relu": " bias=true act=relu",
    "relu6": " act=relu6",
    "sigmoid": " bias=true act=sigmoid",
    "tanh": " act=tanh",
    "silu": " bias=true act=silu",
    "gelu": " bias=true act=gelu",
    "gelu_tanh": " bias=true act=gelu_tanh",
    "add": " accumulate=add",
    "scaled": " accumulate=general z=false",
    "general": " accumulate=general",
    "all": " bias=true act=relu accumulate=general",
}

MATMUL: tuple[Line, ...] = (
    *(
        line
        for form, layouts in _FORMS.items()
        for line in (
            *_matmul(f"single_{form}", (1, 24, 40), (1, 40, 16), _EACH, layouts=layouts),
            *_matmul(f"batch_{form}", (3, 16, 24), (3, 24, 8), _TWO, layouts=layouts),
            *_matmul(f"primes_{form}", (1, 13, 29), (1, 29, 7), _EACH, layouts=layouts),
            *_matmul(f"big_{form}", (1, 512, 768), (1, 768, 1024), _EACH, "big", layouts),
        )
    ),
    *(
        line
        for name, extra in _EPILOGUES.items()
        for line in (
            *_matmul(name, (1, 24, 40), (1, 40, 16), _EACH, extra=extra),
            *_matmul(f"batch_{name}", (3, 16, 24), (3, 24, 8), _TWO, extra=extra),
            *_matmul(f"big_{name}", (1, 256, 2048), (1, 2048, 1000), "f16", "big", extra=extra),
        )
    ),
    *_matmul("one_right", (4, 8, 16), (1, 16, 8), _EACH, layouts=("nhwc", "nchw")),
    *_matmul("one_left", (1, 8, 16), (5, 16, 8), _TWO),
    *_matmul("row", (1, 1, 33), (1, 33, 9), _TWO),
    *_matmul("column", (1, 17, 33), (1, 33, 1), _TWO),
    *_matmul("outer", (1, 9, 1), (1, 1, 11), _TWO),
    *_matmul("one_of_all", (1, 1, 1), (1, 1, 1), _TWO),
    *_matmul("long_sum", (1, 4, 3001), (1, 3001, 5), _EACH),
    *_matmul("slice", (2, 8, 8), (2, 8, 8), _TWO, layouts=("s(256,16,1)", "nchw")),
    *_matmul("heads", (6, 8, 16), (6, 16, 8), _TWO, layouts=("s(16,96,1)", "nchw")),
    *_matmul("align4", (1, 9, 11), (1, 11, 5), "f32 f16", extra=" align=4"),
    *_matmul("align2", (1, 9, 11), (1, 11, 5), "bf16", extra=" align=2"),
    *_matmul("align4_rows", (2, 16, 32), (2, 32, 24), "f32 f16", extra=" align=4"),
    *_matmul("attention", (96, 512, 64), (96, 64, 512), "f32 f16 bf16", "big"),
    *_matmul("classifier", (1, 256, 2048), (1, 2048, 1000), _EACH, "big", ("nchw", "nhwc")),
    *_matmul("mlp", (1, 8192, 1024), (1, 1024, 4096), "f16 bf16", "big", ("nchw", "nhwc")),
    *_matmul("vocabulary", (1, 512, 768), (1, 768, 50257), "bf16", "big", ("nchw", "nhwc")),
)


def _reduce(
    name: str,
    sizes: tuple[int, ...],
    first_reduced: bool,
    dtypes: str,
    size: str = "small",
    extra: str = "",
    kinds: str = "add mul min max absmax mean norm1 norm2 mul_no_zeros",
) -> Iterator[Line]:
    """All reductions of dimensions that take turns at being reduced, and indices of extremes."""
    for dtype in dtypes.split():
        words = f"x={_tensor(dtype, sizes)} first_reduced={str(first_reduced).lower()}"
        for kind in kinds.split():
            problem = f"reduce_fwd {words} kind={kind}"
            yield Line(f"reduce-{kind}-{name}-{dtype}", problem + extra, size)
            if kind in ("min", "max"):
                problem = f"{problem} indices=true{extra}"
                yield Line(f"reduce-arg{kind}-{name}-{dtype}", problem, size)


REDUCE: tuple[Line, ...] = (
    *_reduce("all", (1031,), True, _EACH),
    *_reduce("rows", (33, 64), False, _EACH),
    *_reduce("columns", (64, 33), True, _EACH),
    *_reduce("middle", (5, 13, 7), False, _TWO),
    *_reduce("outside", (5, 13, 7), True, _EACH),
    *_reduce("turns", (3, 4, 5, 6), True, _TWO),
    *_reduce("turns5", (3, 4, 2, 3, 5), False, "f32"),
    *_reduce("none", (9, 1), False, "f32"),
    *_reduce("one", (1,), True, "f32"),
    *_reduce("align", (5, 7), False, "f32", extra=" align=4"),
    *_reduce("align2", (5, 7), True, "bf16", extra=" align=2", kinds="add max norm2"),
    *_reduce("align4_even", (64, 32), True, "f32", extra=" align=4", kinds="add max"),
    *_reduce("bias", (32 * 56 * 56, 64), True, "f32 bf16", "big", kinds="add max norm2"),
    *_reduce("channels", (32, 64, 56 * 56), True, "f32 f16", "big", kinds="add mean absmax"),
    *_reduce("pixels", (2048, 3136), False, _TWO, "big", kinds="add mean max norm2"),
    *_reduce("all_big", (1 << 22,), True, _EACH, "big", kinds="add norm2 max"),
    *_reduce("all_big", (1 << 22,), True, "f64 f32 bf16", "big", kinds="norm1"),
)


def _transform(
    name: str,
    sizes: tuple[int, ...],
    layouts: str,
    dtypes: str,
    size: str = "small",
    extra: str = "",
) -> Iterator[Line]:
    """Conversions between two layouts, such as ``nchw>nhwc``; a cast is written ``f32>f16``."""
    x_layout, y_layout = layouts.split(">")
    for kind in dtypes.split():
        dtype, _, cast = kind.partition(">")
        words = f"x={_tensor(dtype, sizes, x_layout)} y=:{y_layout}"
        words += f" dtype={cast}" if cast else ""
        yield Line(f"transform-{name}-{kind}", f"transform_fwd {words}{extra}", size)


_CASTS = " ".join(f"{a}>{b}" for a in _EACH.split() for b in _EACH.split() if a != b)
_CASTS_TO_HALVES = "f32>f16 f32>bf16"

TRANSFORM: tuple[Line, ...] = (
    *_transform("to_nhwc", (2, 5, 6, 7), "nchw>nhwc", f"{_EACH} {_CASTS}"),
    *_transform("to_nchw", (2, 5, 6, 7), "nhwc>nchw", f"{_EACH} {_CASTS}"),
    *_transform("volume_to_nhwc", (2, 3, 4, 5, 6), "nchw>nhwc", f"{_TWO} {_CASTS_TO_HALVES}"),
    *_transform("volume_to_nchw", (2, 3, 4, 5, 6), "nhwc>nchw", f"{_TWO} f16>f32"),
    *_transform("line", (2, 5, 11), "nchw>nhwc", _TWO),
    *_transform("matrix", (37, 70), "s(1,37)>nchw", _EACH),
    *_transform("matrices", (3, 70, 65), "nchw>nhwc", f"{_EACH} {_CASTS_TO_HALVES}"),
    *_transform("same", (1031,), "nchw>nchw", f"{_EACH} {_CASTS}"),
    *_transform("same_even", (4096,), "nchw>nchw", f"{_TWO} {_CASTS_TO_HALVES} f16>f32"),
    *_transform("same_nhwc", (2, 5, 6, 7), "nhwc>nhwc", f"f32 {_CASTS_TO_HALVES}"),
    *_transform("one", (1, 1), "nchw>nchw", "f32 f32>f16"),
    *_transform("one_channel", (3, 1, 5, 7), "nchw>nhwc", "f32"),
    *_transform("reversed", (2, 3, 4, 5), "s(1,2,6,24)>nchw", f"{_TWO} f32>bf16"),
    *_transform("rows_of_more", (4, 6, 8), "s(96,16,1)>nchw", f"{_TWO} f32>f16"),
    *_transform("every_other", (4, 6, 8), "s(96,16,2)>nchw", f"{_TWO} f16>f64"),
    *_transform("channels_of_more", (2, 3, 6, 7), "s(336,1,56,8)>nchw", f"{_TWO} f32>f16"),
    *_transform("windows", (9, 4), "s(1,1)>nchw", "f32"),
    *_transform("into_more", (3, 4, 5), "nchw>s(80,20,2)", f"{_TWO} f32>f16"),
    *_transform("align4", (2, 5, 6, 7), "nchw>nhwc", "f32 f16", extra=" align=4"),
    *_transform("align2", (2, 5, 6, 7), "nhwc>nchw", "bf16 f16>f64", extra=" align=2"),
    *_transform("align2_even", (4096,), "nchw>nchw", "f16 f16>f32", extra=" align=2"),
    *_transform("resnet_to_nhwc", (32, 64, 56, 56), "nchw>nhwc", f"{_EACH} f32>f16", "big"),
    *_transform("resnet_to_nchw", (32, 64, 56, 56), "nhwc>nchw", f"{_TWO} f16>f32", "big"),
    *_transform("stem", (64, 3, 224, 224), "nchw>nhwc", f"{_TWO} f32>bf16", "big"),
    *_transform("unet_volume", (2, 32, 64, 64, 64), "nchw>nhwc", _TWO, "big"),
    *_transform("many", (70000, 8, 9), "nchw>nhwc", "f32 f32>f16", "big"),
    *_transform("weights", (1 << 24,), "nchw>nchw", f"f32 {_CASTS_TO_HALVES} bf16>f32", "big"),
)


def _convolution_lines() -> Iterator[Line]:
    for case in CASES:
        for op in PASSES if case.align == 16 else PASSES[:1]:  # gradients copy their tensors
            yield Line(f"{op}-{case.name}", case.problem(op), case.size)


_MIXED = "f64 f32 f16 f16/f32 bf16 bf16/f32"

NORMS: tuple[Line, ...] = (
    *_norm("rows", (6, 40), "layer", _MIXED),
    *_norm("rows", (6, 40), "rms", _MIXED),
    *_norm("primes", (7, 131), "layer", _EACH),
    *_norm("primes", (7, 131), "rms", _EACH),
    *_norm("one_row", (1, 96), "layer", _TWO),
    *_norm("one_row", (1, 96), "rms", _TWO),
    *_norm("short", (37, 8), "layer", _TWO),
    *_norm("short", (37, 8), "rms", _TWO),
    *_norm("threes", (20, 3), "layer", _TWO),
    *_norm("bare", (5, 64), "layer", _TWO, parameters=""),
    *_norm("bare", (5, 64), "rms", _TWO, parameters=""),
    *_norm("weight", (5, 64), "layer", "f32 f16/f32", parameters="w"),
    *_norm("bias", (5, 64), "layer", "f32 bf16/f32", parameters="bias"),
    *_norm("inference", (6, 48), "layer", _EACH, no_stats=True),
    *_norm("inference", (6, 48), "rms", _EACH, no_stats=True),
    *_norm("align8", (3, 33), "layer", "f32 f64", align=8),
    *_norm("align2", (3, 33), "layer", "f16 bf16", align=2),
    *_norm("align4", (3, 33), "rms", "f32 f16", align=4),
    *_norm("pixels", (2, 5, 36), "instance", _MIXED),
    *_norm("pixels", (2, 8, 36), "instance", _EACH, layout="nhwc"),
    *_norm("one_sample", (1, 7, 25), "instance", _TWO),
    *_norm("two_channels", (3, 2, 49), "instance", _TWO),
    *_norm("pairs", (2, 24, 2), "instance", _TWO),
    *_norm("primes", (3, 11, 13), "instance", _EACH),
    *_norm("bare", (2, 6, 20), "instance", _EACH, parameters=""),
    *_norm("weight", (2, 6, 20), "instance", _TWO, parameters="w"),
    *_norm("inference", (2, 8, 20), "instance", _TWO, no_stats=True),
    *_norm("inference", (2, 8, 20), "instance", _TWO, layout="nhwc", no_stats=True),
    *_norm("align4", (2, 3, 15), "instance", _TWO, align=4),
    *_norm("align2_even", (4, 16, 64), "instance", "f16 bf16", align=2),
    *_norm("pixels", (2, 6, 36), "group", _MIXED, groups=3),
    *_norm("one_group", (3, 8, 10), "group", _EACH),
    *_norm("each_channel", (2, 5, 12), "group", _TWO, groups=5),
    *_norm("primes", (3, 22, 7), "group", _TWO, groups=11),
    *_norm("rows", (4, 24, 1), "group", _TWO, groups=4),
    *_norm("bare", (2, 6, 20), "group", _TWO, parameters="", groups=2),
    *_norm("weight", (2, 6, 20), "group", _TWO, parameters="w", groups=2),
    *_norm("bias", (2, 6, 20), "group", _TWO, parameters="bias", groups=2),
    *_norm("inference", (2, 6, 20), "group", _TWO, groups=2, no_stats=True),
    *_norm("align8", (2, 6, 15), "group", _TWO, groups=2, align=8),
    *_norm("align2_even", (4, 16, 64), "group", "f16", groups=4, align=2),
    *_norm("bert", (4096, 768), "layer", _MIXED, "big"),
    *_norm("gpt", (2048, 4096), "layer", "f32 f16 bf16 bf16/f32", "big"),
    *_norm("convnext", (32 * 56 * 56, 96), "layer", "f32 f16", "big"),
    *_norm("vit_inference", (64 * 197, 1024), "layer", _TWO, "big", no_stats=True),
    *_norm("llama", (2048, 4096), "rms", "f32 f16 bf16 bf16/f32", "big"),
    *_norm("gemma_heads", (16384, 256), "rms", "f32 bf16", "big"),
    *_norm("llama_inference", (256, 8192), "rms", "f16 bf16", "big", no_stats=True),
    *_norm("style", (8, 64, 128 * 128), "instance", _EACH, "big"),
    *_norm("style", (8, 64, 128 * 128), "instance", "f32 f16 bf16", "big", layout="nhwc"),
    *_norm("unet_volume", (2, 32, 64 * 64 * 64), "instance", _TWO, "big"),
    *_norm("pix2pix", (4, 512, 16 * 16), "instance", _TWO, "big"),
    *_norm("diffusion", (4, 320, 64 * 64), "group", "f32 f16 bf16", "big", groups=32),
    *_norm("detector", (2, 256, 100 * 152), "group", _TWO, "big", groups=32),
    *_norm("bit", (8, 512, 28 * 28), "group", _TWO, "big", groups=32),
)

_CROSS = "kind=cross_channel"
_SPACE = "kind=divisive"

LRN: tuple[Line, ...] = (
    *_lrn("alexnet", (2, 16, 25), f"{_CROSS} size=5", _EACH),
    *_lrn("many", (65600, 8, 4), f"{_CROSS} size=5", "f32 bf16", "big"),
    *_lrn("strong", (2, 12, 9), f"{_CROSS} size=3 alpha=2 beta=0.75 k=2", _EACH),
    *_lrn("even", (2, 9, 10), f"{_CROSS} size=4 alpha=1 beta=0.5 k=1", _EACH),
    *_lrn("even_cudnn", (2, 9, 10), f"{_CROSS} size=4 alpha=1 beta=0.5 k=1 window=cudnn", _EACH),
    *_lrn("two_cudnn", (1, 5, 7), f"{_CROSS} size=2 alpha=3 beta=1 k=0.5 window=cudnn", _TWO),
    *_lrn("one", (3, 7, 5), f"{_CROSS} size=1 alpha=0.5 beta=0.75 k=1", _TWO),
    *_lrn("wider_than_x", (2, 3, 8), f"{_CROSS} size=9 alpha=1 beta=0.75 k=1", _TWO),
    *_lrn("sixteen", (1, 20, 6), f"{_CROSS} size=16 alpha=1 beta=0.75 k=1 window=cudnn", _TWO),
    *_lrn("seventeen", (1, 20, 6), f"{_CROSS} size=17 alpha=1 beta=0.75 k=1", "f32"),
    *_lrn("one_channel", (2, 1, 30), f"{_CROSS} size=3 alpha=1 beta=0.75 k=1", _TWO),
    *_lrn("align", (2, 5, 7), f"{_CROSS} size=3 alpha=1 beta=0.75 k=1 align=4", _TWO),
    *_lrn("plane", (2, 3, 8, 9), f"{_SPACE} size=3 alpha=1 beta=0.5 k=1", _EACH),
    *_lrn("plane_means", (2, 3, 8, 9), f"{_SPACE} size=3 alpha=1 beta=0.5 k=1 means=true", _EACH),
    *_lrn("plane_even", (1, 4, 7, 5), f"{_SPACE} size=4 alpha=2 beta=0.75 k=1 window=cudnn", _TWO),
    *_lrn("plane_one", (2, 3, 4, 5), f"{_SPACE} size=1 alpha=2 beta=0.75 k=1 means=true", _TWO),
    *_lrn("volume", (1, 2, 5, 6, 4), f"{_SPACE} size=3 alpha=1 beta=0.5 k=2", _EACH),
    *_lrn("volume_means", (1, 2, 5, 6, 4), f"{_SPACE} size=3 alpha=1 beta=1 k=2 means=true", _TWO),
    *_lrn("alexnet_1", (32, 64, 55 * 55), f"{_CROSS} size=5", _EACH, "big"),
    *_lrn("googlenet_2", (32, 192, 56 * 56), f"{_CROSS} size=5", _TWO, "big"),
    *_lrn("contrast", (16, 32, 64, 64), f"{_SPACE} size=5 alpha=1 beta=0.5 k=1", _TWO, "big"),
    *_lrn(
        "contrast_means",
        (16, 32, 64, 64),
        f"{_SPACE} size=9 alpha=1 beta=0.5 k=1 means=true",
        _TWO,
        "big",
    ),
)


LINES: tuple[Line, ...] = (
    *_convolution_lines(),
    *BIASED,
    *CLAMPED,
    *ACTIVATED,
    *SOFTMAX,
    *POOLING,
    *BATCH_NORM,
    *RNN,
    *AFFINE_GRID,
    *GRID_SAMPLE,
    *DROPOUT,
    *CTC,
    *NORMS,
    *LRN,
    *ACTIVATION,
    *MATMUL,
    *REDUCE,
    *TRANSFORM,
)
