"""Errata as data: what each row is about, and in which versions its guard is on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from torch_cudnn_ext import _C

TARGET = "target:h200"
EVERYTHING = "allow_tf32;allow_down_convert;allow_reduced_range"
LATER = 94000  # cuDNN 9.40, of which nothing is known
COMPILED = ("runtime_compilation",)
WINOGRAD = ("winograd",)


class Run(NamedTuple):
    """An algorithm on a problem, with the notes that it has."""

    problem: str
    algorithm: str
    notes: tuple[str, ...] = ()


def _conv(op: str, more: str = "", dtype: str = "f16", channels: int = 64) -> str:
    x, w = f"{dtype}[2,{channels},8,8]:nhwc", f"{dtype}[64,{channels},3,3]:nhwc"
    return f"conv_{op} x={x} w={w} pad=1 {more}"


def _grouped(op: str, groups: int = 32) -> str:
    return f"conv_{op} x=f32[2,64,7,7]:nchw w=f32[64,{64 // groups},3,3]:nchw pad=1 groups={groups}"


def _pool(x: str, mode: str, op: str = "fwd", more: str = "") -> str:
    return f"pool_{op} x={x} window=2 stride=2 mode={mode} {more}"


def _rnn(cell: str, x: str, hidden: int, op: str = "fwd", more: str = "") -> str:
    return f"rnn_{op} cell={cell} x={x}:nchw hidden={hidden} {more}"


def _on_cpu(fields: str, op: str = "fwd") -> str:
    return f"conv_{op} {fields}"


DATA_LARGE = "conv_bwd_data x=f16[{0},64,1024,1024]:nhwc w=f16[32,64,3,3]:nhwc pad=1"
FILTER_LARGE = "conv_bwd_filter x=f16[{0},64,2048,2048]:nhwc w=f16[32,64,3,3]:nhwc pad=1"
HUGE = "conv_bwd_data x=f32[3,9,8,7]:nchw w=f32[8,9,1,1]:nchw stride=2 dilation={0}"
STRIDED = "conv_bwd_data x=f32[2,4,8,8]:{0} w=f32[6,4,3,3]:nchw pad=1"
PIXEL = "conv_fwd x=f16[8,64,{0},1]:nhwc w=f16[64,64,1,1]:nhwc {1}"
WINDOWS = "pool_fwd x=f32[1,1,32,{0}]:nchw window=3,2049 pad=1,1024 stride=1 mode=max"
SMALL_H = "legacy:persist_static_small_h/math={0}"
NORM = "layer_norm_{0} x=f16[4,6,35]:nchw kind={1} w=f16 bias=f16 {2}"

# For each row a run that it is about, and a neighbouring one that it is not about.
CASES: dict[str, tuple[Run, Run]] = {
    "conv-huge-numbers": (
        Run(HUGE.format(2**31 - 1), "graph:eng0"),
        Run(HUGE.format(2**30), "graph:eng0"),
    ),
    "conv-fused-misaligned": (
        Run(_conv("fwd", "align=2 bias=f16"), "graph:eng0"),
        Run(_conv("fwd", "bias=f16"), "graph:eng0"),
    ),
    "conv-fused-eng8": (
        Run(_conv("fwd", "act=relu"), "graph:eng8"),
        Run(_conv("fwd"), "graph:eng8"),
    ),
    "conv-depthwise-eng61": (
        Run(_grouped("bwd_filter", 64), "graph:eng61/k2=0"),
        Run(_conv("bwd_filter"), "graph:eng61/k2=0"),
    ),
    "conv-compiled-rows": (
        Run(_conv("fwd", channels=12), "graph:eng30", COMPILED),
        Run(_conv("fwd", channels=12), "graph:eng5", COMPILED),
    ),
    "conv-compiled-accumulate": (
        Run(_conv("fwd", "accumulate=add"), "graph:eng30", COMPILED),
        Run(_conv("fwd", "accumulate=add"), "graph:eng30"),
    ),
    "conv-compiled-flipped": (
        Run(_conv("fwd", "mode=conv"), "graph:eng30", COMPILED),
        Run(_conv("fwd"), "graph:eng30", COMPILED),
    ),
    "conv-compiled-slices": (
        Run(_conv("bwd_data"), "graph:eng77/k17=24", COMPILED),
        Run(_conv("bwd_data"), "graph:eng77/k17=16", COMPILED),
    ),
    "conv-eng80-local-memory": (
        Run(_conv("fwd", channels=17), "graph:eng80"),
        Run(_conv("fwd", channels=16), "graph:eng80"),
    ),
    "conv-eng2-strided-gradient": (
        Run(STRIDED.format("s(1000,200,20,1)"), "graph:eng2"),
        Run(STRIDED.format("nchw"), "graph:eng2"),
    ),
    "conv-eng1-large-gradient": (
        Run(DATA_LARGE.format(32), "graph:eng1"),
        Run(DATA_LARGE.format(31), "graph:eng1"),
    ),
    "conv-eng19-large-images": (
        Run(FILTER_LARGE.format(9), "graph:eng19"),
        Run(FILTER_LARGE.format(8), "graph:eng19"),
    ),
    "pytorch-conv-large-images": (
        Run(FILTER_LARGE.format(9), "aten:default"),
        Run(FILTER_LARGE.format(9), "aten:matmul"),
    ),
    "conv-eng52-one-pixel": (
        Run(PIXEL.format(1, "bias=f16"), "graph:eng52"),
        Run(PIXEL.format(2, "bias=f16"), "graph:eng52"),
    ),
    "conv-eng4-one-pixel": (
        Run(PIXEL.format(1, "bias=f16 act=silu"), "graph:eng7"),
        Run(PIXEL.format(1, "bias=f16 act=relu"), "graph:eng7"),
    ),
    "conv-eng17-winograd": (
        Run(_conv("bwd_filter"), "graph:eng17"),
        Run(_conv("bwd_data"), "graph:eng17"),
    ),
    "conv-winograd-large-tiles": (
        Run(
            "conv_fwd x=f32[2,8,9,9]:nchw w=f32[8,8,5,3]:nchw",
            "legacy:winograd_nonfused/math=fma",
            WINOGRAD,
        ),
        Run(_conv("fwd"), "legacy:winograd_nonfused/math=fma", WINOGRAD),
    ),
    "conv-winograd-range": (
        Run(_conv("bwd_data"), "graph:eng3", WINOGRAD),
        Run(_conv("bwd_filter"), "graph:eng3", WINOGRAD),
    ),
    "conv-eng47-infinities": (
        Run(_conv("fwd"), "graph:eng47"),
        Run(_conv("fwd", "bias=f16"), "graph:eng47"),
    ),
    "conv-eng32-infinities": (
        Run(_conv("fwd", "bias=f16"), "graph:eng32"),
        Run(_conv("fwd"), "graph:eng32"),
    ),
    "conv-fused-relu-nan": (
        Run(_conv("fwd", "bias=f16 act=relu"), "graph:eng11"),
        Run(_conv("fwd", "bias=f16"), "graph:eng11"),
    ),
    "conv-eng65-rounds-twice": (
        Run(_conv("bwd_filter", "accumulate=add"), "graph:eng65"),
        Run(_conv("bwd_filter"), "graph:eng65"),
    ),
    "conv-eng7-grouped-accuracy": (
        Run(_grouped("bwd_data"), "graph:eng7"),
        Run(_grouped("bwd_data", groups=1), "graph:eng7"),
    ),
    "conv-eng17-grouped-accuracy": (
        Run(_grouped("bwd_filter"), "graph:eng17/k25=2"),
        Run(_grouped("bwd_filter"), "graph:eng17/k25=1"),
    ),
    "pool-large": (
        Run(_pool("f16[32,64,1024,1024]:nhwc", "avg_include"), "graph:eng3"),
        Run(_pool("f16[32,64,1024,1024]:nhwc", "avg_include"), "graph:eng2"),
    ),
    "pool-eng1-large-windows": (
        Run(WINDOWS.format(262145), "graph:eng1"),
        Run(WINDOWS.format(262144), "graph:eng1"),
    ),
    "pool-grid": (
        Run(_pool("f16[65536,1,32,32]:nchw", "max"), "legacy:max"),
        Run(_pool("f16[65535,1,32,32]:nchw", "max"), "legacy:max"),
    ),
    "pool-max-gradient-grid": (
        Run(_pool("f32[1,65536,4,4]:nchw", "max", more="train=true"), "legacy:max"),
        Run(_pool("f32[1,65536,4,4]:nchw", "max"), "legacy:max"),
    ),
    "pool-average-gradient": (
        Run(_pool("f32[8,16,32,32]:nchw", "avg_include", "bwd"), "graph:eng1"),
        Run(_pool("f32[8,16,32,32]:nchw", "avg_include", "bwd"), "graph:eng1", COMPILED),
    ),
    "pool-bf16-without-indices": (
        Run(_pool("bf16[8,16,32,32]:nhwc", "max"), "graph:eng2", COMPILED),
        Run(_pool("bf16[8,16,32,32]:nhwc", "max", more="train=true"), "graph:eng2", COMPILED),
    ),
    "pool-bf16-average": (
        Run(_pool("bf16[32,448,14,14]:nhwc", "avg_include"), "graph:eng3"),
        Run(_pool("bf16[32,448,14,14]:nchw", "avg_include"), "graph:eng3"),
    ),
    "pool-compiled-pixels": (
        Run(_pool("f32[8,5,32,32]:nhwc", "avg_include"), "graph:eng3", COMPILED),
        Run(_pool("f32[8,4,32,32]:nhwc", "avg_include"), "graph:eng3", COMPILED),
    ),
    "pool-max-infinite": (
        Run(_pool("f32[8,16,32,32]:nchw", "max"), "legacy:max"),
        Run(_pool("f32[8,16,32,32]:nchw", "avg_include"), "legacy:avg"),
    ),
    "pool-eng2-nan": (
        Run(_pool("f32[8,16,32,32]:nhwc", "max"), "graph:eng2"),
        Run(_pool("f32[8,16,32,32]:nhwc", "avg_include"), "graph:eng2"),
    ),
    "rnn-projection": (
        Run(_rnn("lstm", "f32[6,16,128]", 80, more="proj=40"), "legacy:standard/math=fma"),
        Run(_rnn("lstm", "f32[6,16,128]", 80, more="proj=40"), "legacy:standard/math=default"),
    ),
    "rnn-persist-static-nan": (
        Run(_rnn("lstm", "f16[64,5,11]", 72, "bwd"), "legacy:persist_static/math=tensor_op"),
        Run(_rnn("lstm", "f16[64,6,11]", 72, "bwd"), "legacy:persist_static/math=tensor_op"),
    ),
    "rnn-small-h-gradient": (
        Run(_rnn("gru", "f16[6,3,128]", 136, "bwd"), SMALL_H.format("default")),
        Run(_rnn("tanh", "f16[6,3,128]", 136, "bwd"), SMALL_H.format("default")),
    ),
    "rnn-small-h-converts": (
        Run(_rnn("lstm", "f32[6,16,128]", 176), SMALL_H.format("tensor_op_allow_conversion")),
        Run(_rnn("lstm", "f32[6,16,128]", 160), SMALL_H.format("tensor_op_allow_conversion")),
    ),
    "rnn-small-h-wrong": (
        Run(_rnn("gru", "f16[6,16,128]", 80), SMALL_H.format("tensor_op")),
        Run(_rnn("gru", "f16[6,16,128]", 96), SMALL_H.format("tensor_op")),
    ),
    "pytorch-rnn-small-h": (
        Run(_rnn("lstm", "f16[6,16,128]", 80), "aten:default"),
        Run(_rnn("lstm", "f32[6,16,128]", 80), "aten:default"),
    ),
    "rnn-persist-static-reads-past": (
        Run(_rnn("lstm", "f16[6,16,8]", 8, "bwd"), "legacy:persist_static/math=tensor_op"),
        Run(_rnn("lstm", "f16[6,16,8]", 8), "legacy:persist_static/math=tensor_op"),
    ),
    "compiled-misaligned": (
        Run(_conv("fwd", "align=2"), "graph:eng30", COMPILED),
        Run(_conv("fwd", "align=2"), "graph:eng30"),
    ),
    "instance-norm-default-stream": (
        Run(NORM.format("bwd", "group groups=2", ""), "graph:eng0"),
        Run(NORM.format("fwd", "instance", ""), "graph:eng0"),
    ),
    "instance-norm-misaligned": (
        Run(NORM.format("fwd", "instance", "align=2"), "legacy:spatial"),
        Run(NORM.format("fwd", "instance", ""), "legacy:spatial"),
    ),
    "instance-norm-persistent-range": (
        Run(NORM.format("fwd", "instance", ""), "legacy:spatial_persistent"),
        Run(NORM.format("fwd", "instance", ""), "legacy:spatial"),
    ),
    "softmax-nan": (
        Run("softmax_fwd x=f32[64,1000,1]:nchw", "legacy:accurate"),
        Run("softmax_fwd x=f32[64,1000,2]:nchw", "legacy:accurate"),
    ),
    "lrn-nan": (
        Run("lrn_fwd x=f32[8,16,64]:nchw kind=cross_channel size=5", "legacy:cross_channel"),
        Run("lrn_fwd x=f32[8,16,64]:nchw kind=cross_channel size=5", "cpu:prefix"),
    ),
    "lrn-grid": (
        Run("lrn_fwd x=f32[65536,8,4]:nchw kind=cross_channel size=5", "legacy:cross_channel"),
        Run("lrn_fwd x=f32[65536,8,4]:nchw kind=cross_channel size=3", "legacy:cross_channel"),
    ),
    "lrn-even-divisive-gradient": (
        Run("lrn_bwd x=f32[2,8,16,16]:nchw kind=divisive size=4", "legacy:precomputed_means"),
        Run("lrn_bwd x=f32[2,8,16,16]:nchw kind=divisive size=5", "legacy:precomputed_means"),
    ),
    "transform-kernel-35": (
        Run("transform_fwd x=f32[1,1,4096]:nchw dtype=f16", "graph:eng0/k24=35"),
        Run("transform_fwd x=f32[1,1,4096]:nchw dtype=f16", "graph:eng0/k24=34"),
    ),
    "activation-kernel-35": (
        Run("activation_fwd x=f32[4096]:nchw kind=relu", "graph:eng0/k24=35"),
        Run("activation_fwd x=f32[4096]:nchw kind=relu", "graph:eng0/k24=34"),
    ),
    "activation-clipped-relu-infinities": (
        Run("activation_bwd x=f32[4096]:nchw kind=clipped_relu coefficient=6", "graph:eng0"),
        Run("activation_fwd x=f32[4096]:nchw kind=clipped_relu coefficient=6", "graph:eng0"),
    ),
    "activation-clipped-relu-half": (
        Run("activation_bwd x=f16[4096]:nchw kind=clipped_relu coefficient=6", "legacy:default"),
        Run("activation_bwd x=f32[4096]:nchw kind=clipped_relu coefficient=6", "legacy:default"),
    ),
    "activation-elu-at-zero": (
        Run("activation_bwd x=f32[4096]:nchw kind=elu coefficient=0.5", "legacy:default"),
        Run("activation_bwd x=f32[4096]:nchw kind=elu coefficient=1", "legacy:default"),
    ),
    "affine-grid-grid": (
        Run(
            "affine_grid_fwd theta=f32[65536,2,3]:nchw grid=f32[65536,2,2,2]:nchw "
            "align_corners=true",
            "legacy:default",
        ),
        Run(
            "affine_grid_fwd theta=f32[65535,2,3]:nchw grid=f32[65535,2,2,2]:nchw "
            "align_corners=true",
            "legacy:default",
        ),
    ),
    "matmul-eng0-misaligned": (
        Run("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw align=2", "graph:eng0"),
        Run("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw", "graph:eng0"),
    ),
    "matmul-eng2-rows": (
        Run("matmul_fwd x=f16[1,64,63]:nchw w=f16[1,63,64]:nchw", "graph:eng2"),
        Run("matmul_fwd x=f16[1,63,64]:nchw w=f16[1,64,64]:nchw", "graph:eng2"),
    ),
    "matmul-eng0-relu6": (
        Run("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw act=relu6", "graph:eng0"),
        Run("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw act=relu", "graph:eng0"),
    ),
    "matmul-tf32": (
        Run("matmul_fwd x=f32[1,64,64]:nchw w=f32[1,64,64]:nchw", "graph:eng0"),
        Run("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw", "graph:eng0"),
    ),
    "matmul-eng2-nonfinite": (
        Run("matmul_fwd x=bf16[1,64,64]:nchw w=bf16[1,64,64]:nchw", "graph:eng2"),
        Run("matmul_fwd x=f16[1,64,64]:nchw w=f16[1,64,64]:nchw", "graph:eng2"),
    ),
    "reduce-sums-differ": (
        Run("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=mul", "graph:eng0"),
        Run("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=max", "graph:eng0"),
    ),
    "reduce-extremes-nan": (
        Run("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=absmax", "graph:eng0"),
        Run("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=add", "graph:eng0"),
    ),
    "reduce-extremes-infinite": (
        Run("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=min", "legacy:default"),
        Run("reduce_fwd x=f32[4096,64]:nchw first_reduced=true kind=absmax", "legacy:default"),
    ),
    "ctc-other-classes": (
        Run("ctc_fwd log_probs=f32[12,2,6]:nchw target_length=3", "legacy:deterministic"),
        Run("ctc_fwd log_probs=f32[12,2,6]:nchw target_length=3", "aten:default"),
    ),
    "ctc-few-labels": (
        Run("ctc_fwd log_probs=f32[12,2,6]:nchw target_length=3", "legacy:deterministic"),
        Run("ctc_fwd log_probs=f32[12,2,6]:nchw target_length=3", "cpu:log_space"),
    ),
    "ctc-blank-labels": (
        Run("ctc_fwd log_probs=f32[12,2,6]:nchw target_length=3", "legacy:nondeterministic"),
        Run("ctc_fwd log_probs=f32[12,2,6]:nchw target_length=3", "aten:default"),
    ),
    "pytorch-cpu-conv-left-out-rows": (
        Run(
            _on_cpu("x=f32[3,3,8,5]:nhwc w=f32[2,3,1,1]:nhwc stride=2,1", "bwd_filter"),
            "aten:default",
        ),
        Run(
            _on_cpu("x=f32[3,3,8,5]:nhwc w=f32[2,3,1,1]:nhwc stride=2,2", "bwd_filter"),
            "aten:default",
        ),
    ),
    "pytorch-cpu-conv-past-depth": (
        Run(
            _on_cpu(
                "x=f32[2,16,3,3,3]:nchw w=f32[12,16,5,5,5]:nchw pad=4,2,2 stride=3", "bwd_filter"
            ),
            "aten:default",
        ),
        Run(
            _on_cpu(
                "x=f32[2,16,3,3,3]:nchw w=f32[12,16,5,5,5]:nchw pad=4,2,2 stride=1", "bwd_filter"
            ),
            "aten:default",
        ),
    ),
    "pytorch-cpu-conv-one-column": (
        Run(_on_cpu("x=f32[2,1,7,3]:nhwc w=f32[2,1,3,3]:nhwc stride=1,4"), "aten:default"),
        Run(_on_cpu("x=f32[2,1,7,7]:nhwc w=f32[2,1,3,3]:nhwc stride=1,4"), "aten:default"),
    ),
    "pytorch-cpu-conv-nothing-summed": (
        Run(
            _on_cpu("x=f16[2,8,8,1]:nhwc w=f16[2,8,3,1]:nhwc pad=2 stride=3 dilation=2"),
            "aten:default",
        ),
        Run(
            _on_cpu("x=f32[2,8,8,1]:nhwc w=f32[2,8,3,1]:nhwc pad=2 stride=3 dilation=2"),
            "aten:default",
        ),
    ),
    "pytorch-cpu-conv-unwritten": (
        Run(_on_cpu("x=bf16[1,3,1,8,8]:nchw w=bf16[8,3,3,3,3]:nchw pad=1"), "aten:default"),
        Run(_on_cpu("x=bf16[1,3,2,8,8]:nchw w=bf16[8,3,3,3,3]:nchw pad=1"), "aten:default"),
    ),
    "pytorch-cpu-conv-first-window": (
        Run(
            _on_cpu("x=bf16[1,16,40,21]:nchw w=bf16[16,16,3,1]:nchw pad=1 stride=37,3"),
            "aten:default",
        ),
        Run(
            _on_cpu("x=bf16[1,16,40,21]:nchw w=bf16[16,16,3,1]:nchw pad=1 stride=37,1"),
            "aten:default",
        ),
    ),
    "pytorch-cpu-conv-endless": (
        Run(_on_cpu("x=f16[2,6,37]:nchw w=f16[6,1,15]:nchw groups=6"), "aten:default"),
        Run(_on_cpu("x=f16[2,6,37]:nchw w=f16[6,1,14]:nchw groups=6"), "aten:default"),
    ),
    "pytorch-cpu-conv-narrow-images": (
        Run(_on_cpu("x=bf16[2,3,9,8]:nhwc w=bf16[8,3,5,5]:nhwc"), "aten:folded"),
        Run(_on_cpu("x=bf16[2,3,9,8]:nhwc w=bf16[8,3,5,5]:nhwc"), "aten:default"),
    ),
    "pytorch-cpu-conv-one-plane": (
        Run(
            _on_cpu("x=f32[2,3,7,4]:nhwc w=f32[1,3,3,3]:nhwc pad=1 stride=4,1", "bwd_data"),
            "aten:turned/block=4",
        ),
        Run(
            _on_cpu("x=f32[2,3,7,4]:nhwc w=f32[2,3,3,3]:nhwc pad=1 stride=4,1", "bwd_data"),
            "aten:turned/block=4",
        ),
    ),
    "pytorch-cpu-pool-padding": (
        Run(
            "pool_fwd x=f32[2,2,1,8]:nchw window=2 pad=1 stride=2 dilation=2 mode=max",
            "aten:default",
        ),
        Run(
            "pool_fwd x=f32[2,2,2,8]:nchw window=2 pad=1 stride=2 dilation=2 mode=max",
            "aten:default",
        ),
    ),
    "pytorch-pool-average-gradient": (
        Run(_pool("f32[2,4,8,8]:nhwc", "avg_include", "bwd"), "aten:default"),
        Run(_pool("f32[2,4,8,8]:nhwc", "avg_include"), "aten:default"),
    ),
    "pytorch-cpu-grid-sample-nan": (
        Run(
            "grid_sample_bwd x=f32[2,3,8,8]:nchw grid=f32[2,4,4,2]:nchw padding=border",
            "aten:default",
        ),
        Run(
            "grid_sample_bwd x=f32[2,3,8,8]:nchw grid=f32[2,4,4,2]:nchw padding=zeros",
            "aten:default",
        ),
    ),
}


def _by_id(cudnn: int = 0, pytorch: int = 0, capability: int = 0) -> dict[str, _C.Erratum]:
    return {row["id"]: row for row in _C.errata(cudnn, pytorch, capability)}


def test_every_row_has_a_case() -> None:
    ids = [row["id"] for row in _C.errata()]
    assert len(ids) == len(set(ids))
    assert sorted(ids) == sorted(CASES)


@pytest.mark.parametrize("id", CASES)
def test_a_row_is_about_its_case_and_not_about_its_neighbour(id: str) -> None:
    hit, miss = CASES[id]
    assert _C.erratum_concerns(id, hit.problem, hit.algorithm, [*hit.notes])
    assert not _C.erratum_concerns(id, miss.problem, miss.algorithm, [*miss.notes])


def test_every_row_says_what_happens_and_how_it_was_seen() -> None:
    backends = {name for operator in _C.operators() for name in operator["backends"]}
    families = {operator["family"]: operator["passes"] for operator in _C.operators()}
    for row in _C.errata():
        assert row["text"] and row["evidence"] and row["first"]
        assert set(row["backends"]) <= backends
        for family in row["families"]:
            assert set(row["passes"]) <= set(families[family]), row["id"]
        assert all(run["problem"] and run["algorithm"] for run in row["runs"])


def test_the_runs_of_a_row_are_ones_that_it_is_about() -> None:
    for row in _C.errata():
        texts = [_C.canonical_problem(run["problem"]) + str(run) for run in row["runs"]]
        assert len(set(texts)) == len(texts), row["id"]
        for run in row["runs"]:
            notes = row["with_notes"]
            about = _C.erratum_concerns(row["id"], run["problem"], run["algorithm"], notes)
            assert about, (row["id"], run)


# Runs whose engines a list without a GPU names, by cuDNN's word and not by ours.
NAMED = {
    "conv-eng32-infinities",
    "conv-eng47-infinities",
}


@pytest.mark.parametrize("id", sorted(NAMED))
def test_the_engine_of_a_run_takes_its_problem(id: str) -> None:
    row = next(row for row in _C.errata() if row["id"] == id)
    _C.lift_errata([id])
    try:
        for run in row["runs"]:
            pin = f"{_C.problem_info(run['problem'])['pass_name']}={run['algorithm']}"
            decision = _C.decide(run["problem"], TARGET, f"{pin};{EVERYTHING}")
            assert decision["algorithm"] == run["algorithm"]
    finally:
        _C.lift_errata([])


def test_the_run_of_huge_numbers_ends_a_process_without_a_gpu_too() -> None:
    row = next(row for row in _C.errata() if row["id"] == "conv-huge-numbers")
    (run,) = row["runs"]
    policy = f"bwd_data={run['algorithm']};{EVERYTHING}"
    code = (
        "from torch_cudnn_ext import _C\n"
        f"_C.lift_errata([{row['id']!r}])\n"
        f"_C.decide({run['problem']!r}, {TARGET!r}, {policy!r})"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == -signal.SIGFPE, process.stderr


def test_guards_stay_on_until_a_fix_was_shown() -> None:
    for row in _C.errata(LATER, 29900):
        assert row["state"] == ("fixed" if row["fixed"] else "on"), row["id"]
    for row in _C.errata(90000, 20000):  # nobody has looked at such an old version
        assert row["state"] == ("not in this version" if row["last_good"] else "on"), row["id"]


@pytest.mark.parametrize(
    ("id", "states"),
    [
        ("pool-max-infinite", {91900: "on", 92800: "on", 92801: "fixed", LATER: "fixed"}),
        (
            "conv-eng7-grouped-accuracy",
            {91900: "not in this version", 91901: "on", 92600: "on", 92801: "on"},
        ),
        ("conv-eng80-local-memory", {91400: "on", 91900: "on", 92801: "on"}),
    ],
)
def test_a_row_is_on_in_the_versions_that_were_not_shown_to_be_without_it(
    id: str, states: dict[int, str]
) -> None:
    assert {version: _by_id(version)[id]["state"] for version in states} == states


@pytest.fixture
def later() -> Iterator[None]:
    """A version of cuDNN of which nothing is known."""
    _C.override_library_version("cuDNN", LATER)
    yield
    _C.override_library_version("cuDNN", 0)


@pytest.mark.usefixtures("later")
def test_a_later_version_refuses_what_an_earlier_one_did_wrong() -> None:
    many, few = (
        row["reason"]
        for channels in (64, 16)
        for row in _C.candidates(_conv("fwd", channels=channels), TARGET, EVERYTHING)
        if row["algorithm"] == "graph:eng80"
    )
    assert many.startswith("cuDNN 9.40: engine 80 has")
    assert many.endswith(
        "(erratum conv-eng80-local-memory, seen in 9.19 and not shown to be fixed)"
    )
    assert "erratum" not in few


def test_a_made_up_version_is_taken_back() -> None:
    real = _C.library_versions()
    _C.override_library_version("PyTorch", 29900)
    try:
        assert _C.library_versions() == {**real, "PyTorch": 29900}
    finally:
        _C.override_library_version("PyTorch", 0)
    assert _C.library_versions() == real
    assert str(real["cuDNN"]) == _C.versions()["cudnn"]
    major, minor = _C.versions()["torch"].split(".")[:2]
    assert real["PyTorch"] // 100 == int(major) * 100 + int(minor)


def _notes(problem: str, algorithm: str) -> list[str]:
    rows = _C.candidates(problem, TARGET, EVERYTHING)
    return next(row["notes"] for row in rows if row["algorithm"] == algorithm)


def test_a_fixed_version_has_neither_guard_nor_note() -> None:
    problem = CASES["pool-max-infinite"][0].problem
    try:
        _C.override_library_version("cuDNN", 91900)
        assert "reduced_range" in _notes(problem, "graph:eng1")
        _C.override_library_version("cuDNN", 92801)
        assert "reduced_range" not in _notes(problem, "graph:eng1")
    finally:
        _C.override_library_version("cuDNN", 0)


def test_a_guard_is_lifted_and_put_back() -> None:
    run = CASES["pytorch-cpu-conv-one-column"][0]

    def reason() -> str:
        rows = _C.candidates(run.problem, "cpu")
        return next(row["reason"] for row in rows if row["algorithm"] == run.algorithm)

    assert "erratum pytorch-cpu-conv-one-column" in reason()
    _C.lift_errata(["pytorch-cpu-conv-one-column"])
    try:
        assert reason() == ""
    finally:
        _C.lift_errata([])
    assert "erratum pytorch-cpu-conv-one-column" in reason()


def test_an_unknown_row_is_named() -> None:
    with pytest.raises(ValueError, match="erratum is 'conv-eng81', .*all: .* info --errata"):
        _C.lift_errata(["conv-eng81"])
    with pytest.raises(ValueError, match=re.escape("library is 'cudart', wanted one of cuDNN")):
        _C.override_library_version("cudart", 1)
