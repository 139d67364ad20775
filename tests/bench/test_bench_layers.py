"""Layers compared with PyTorch."""

import pytest
from helpers import LINE, PASSES

from torch_cudnn_ext._workload.problems import Layer, with_passes
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.bench.layers import (
    Comparison,
    compare_layers,
    comparison_text,
    geometric_means,
)
from torch_cudnn_ext.bench.rounds import bootstrap_interval


def test_bench_compares_with_both_of_pytorch_s_settings(device: str) -> None:
    layers = with_passes([Layer(LINE, ("a",), 2)], ["fwd", "bwd_data", "bwd_filter"])
    layers.append(Layer(LINE + " bias=f32", ("a",), 2))
    results = list(compare_layers(layers, make_settings(device, time_budget_s=1), kernels=True))
    assert [result.problem.split()[0] for result in results] == [*PASSES, PASSES[0]]
    for result in results:
        assert result.ratio_low <= result.ratio <= result.ratio_high
        both = (result.pytorch_default_ms, result.pytorch_benchmark_ms)
        assert result.pytorch_ms == min(both)
        assert result.count == 2 and result.algorithm
        assert bool(result.pytorch_kernels) == bool(result.kernels) == (device == "cuda")
        assert not result.pytorch_reason


def test_bench_says_why_pytorchs_own_call_is_no_candidate(device: str) -> None:
    backends = "backends=graph,legacy" if device == "cuda" else "backends=cpu"
    settings = make_settings(device, policy=backends, time_budget_s=10)
    results = list(compare_layers([Layer(LINE, ("a",), 1)], settings))
    assert results[0].pytorch_reason == f"excluded by {backends}"
    (table,) = comparison_text(results, "table")
    assert not isinstance(table, str)
    assert table.lists[0][1] == [results[0].pytorch_reason]
    means = geometric_means(results)
    assert means["all"] == pytest.approx(means["filters 3x3 and larger"])


def test_the_bootstrap_interval_holds_the_median() -> None:
    assert bootstrap_interval([2.0] * 5) == (2.0, 2.0)
    low, high = bootstrap_interval([1.0, 1.1, 0.9, 1.05, 0.95] * 6)
    assert 0.9 <= low <= 1.0 <= high <= 1.1


def test_geometric_means_tell_large_filters_apart() -> None:
    def result(line: str, ratio: float) -> Comparison:
        return Comparison(line, [], 1, "", "", [], 1, 1, 1, 1, "", [], ratio, ratio, ratio, "")

    small = LINE.replace("3,3]", "1,1]")
    means = geometric_means([result(LINE, 4.0), result(small, 1.0)])
    assert means == {
        "all": pytest.approx(2.0),
        "filters 3x3 and larger": pytest.approx(4.0),
    }
