"""The one table of problems that every generic test runs over.

A row is a forward convolution; its data and filter gradients are the same row under another first
word, so every row is three problems. ``small`` rows are cheap enough for a two-core CPU, ``big``
rows are layers of real networks and run on a GPU only.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

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
    x_layout: str | None = None,
    w_layout: str | None = None,
    y_layout: str | None = None,
    align: int = 16,
    mode: str = "cross",
    accumulate: str = "none",
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
            x_layout=x_layout,
            w_layout=w_layout,
            y_layout=y_layout,
            align=align,
            mode=mode,
            accumulate=accumulate,
        )


_big = partial(_rows, size="big")

_ALL = "f64:nchw f64:nhwc f32:nchw f32:nhwc f16:nchw f16:nhwc bf16:nchw bf16:nhwc"
_DTYPES = "f64:nchw f32:nchw f16:nhwc bf16:nhwc"
_BOTH = "f32:nchw f16:nhwc"
_HALVES = "f16:nchw f16:nhwc bf16:nhwc"

CASES: tuple[Case, ...] = (
    # Plain 2-D.
    *_rows("3x3", (2, 8, 8, 8), (8, 8, 3, 3), _ALL, padding=1),
    *_rows("3x3_valid", (2, 16, 7, 7), (32, 16, 3, 3), _DTYPES),
    *_rows("3x3_64ch", (2, 64, 8, 8), (64, 64, 3, 3), _BOTH, padding=1),
    *_rows("1x1", (2, 32, 7, 7), (64, 32, 1, 1), _ALL),
    *_rows("1x1_stride2", (2, 16, 8, 8), (32, 16, 1, 1), _DTYPES, stride=2),
    *_rows("1x1_padded", (1, 8, 5, 5), (8, 8, 1, 1), _BOTH, padding=1),
    *_rows("3x3_stride2", (2, 16, 8, 8), (16, 16, 3, 3), _DTYPES, padding=1, stride=2),
    *_rows("3x3_full", (2, 8, 5, 5), (8, 8, 3, 3), _BOTH, padding=2),
    *_rows("5x5", (2, 8, 8, 8), (16, 8, 5, 5), _DTYPES, padding=2),
    *_rows("2x2", (2, 8, 8, 8), (8, 8, 2, 2), _BOTH),
    *_rows("4x4_stride2", (2, 8, 8, 8), (16, 8, 4, 4), _BOTH, padding=1, stride=2),
    *_rows("7x7_stem", (1, 3, 8, 8), (16, 3, 7, 7), _ALL, padding=3, stride=2),
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
    *_rows("depthwise_5x5", (1, 8, 8, 8), (8, 1, 5, 5), _BOTH, padding=2, groups=8),
    *_rows("depthwise_d2", (1, 8, 8, 8), (8, 1, 3, 3), _BOTH, padding=2, dilation=2, groups=8),
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
    *_rows("1d_depthwise", (1, 16, 32), (16, 1, 5), _BOTH, padding=2, groups=16),
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
