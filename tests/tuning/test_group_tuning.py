"""How problems are split over ranks."""

import random
from collections import Counter

from torch_cudnn_ext.tuning.group_tuning import _expected_s, split_by_time

H200 = "NVIDIA H200/sm90/132sm/cudnn91900"
CPU = "cpu/any/1 thread"


def problem(op: str, channels: int) -> str:
    x, w = f"x=f16[32,{channels},56,56]:nhwc", f"w=f16[{channels},{channels},3,3]:nhwc"
    return f"{op} {x} {w} pad=1 stride=1 dilation=1 groups=1 compute=f32"


def test_every_operator_is_split_evenly() -> None:
    sizes = [8 * n for n in range(1, 14)]
    convolutions = [problem(op, n) for op in ("conv_fwd", "conv_bwd_data") for n in sizes]
    others = [f"softmax_fwd x=f16[{n},1000,1]:nchw log=false" for n in sizes]
    everything = convolutions + others
    for device, ranks in ((H200, [0, 1]), (H200, [1, 2, 5]), (CPU, [0, 3]), (CPU, [7])):
        split = split_by_time(everything, ranks, device)
        assert {*split} == {*everything} and {*split.values()} == {*ranks}
        shuffled = random.Random(1).sample(everything, len(everything))
        assert split_by_time(shuffled, ranks, device) == split
        for op in ("conv_fwd", "conv_bwd_data", "softmax_fwd"):
            counts = Counter(split[line] for line in everything if line.startswith(op))
            if device == H200:  # building takes most of the time
                assert max(counts.values()) - min(counts[rank] for rank in ranks) <= 1
    assert split_by_time([], [0, 1], CPU) == {}


def test_the_longest_come_first() -> None:
    sizes = [64, 65, 66, 512]
    split = split_by_time([problem("conv_fwd", n) for n in sizes], [0, 1], CPU)
    alone = split[problem("conv_fwd", 512)]
    assert [rank for rank in split.values()].count(alone) == 1
    assert _expected_s(1e12, 0, CPU) > _expected_s(1e9, 0, CPU) > _expected_s(0, 0, CPU) > 0
