"""Problem lines and files: reading, rewriting, passes and shards."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from helpers import LINE, OTHER, only_layer
from torch import nn

from torch_cudnn_ext import _C, profile, trace, tuning
from torch_cudnn_ext._workload.models import load_model
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import (
    PROBLEM_FOLDER,
    Layer,
    convolution_arguments,
    read_problems,
    rewrite,
    shard,
    with_passes,
)


def test_rewriting_goes_by_the_tensors_that_a_problem_has() -> None:
    line = "softmax_fwd x=f16[8,64,49]:nchw log=true"
    assert rewrite(line, batch=2, dtype="f32") == "softmax_fwd x=f32[2,64,49]:nchw log=true"
    assert rewrite(line, op="softmax_bwd") == line.replace("_fwd", "_bwd")
    layers = with_passes([Layer(line), Layer(LINE)], ["bwd"])
    ops = [layer.problem.split()[0] for layer in layers]
    assert ops == ["softmax_bwd", "conv_bwd_data", "conv_bwd_filter"]
    with pytest.raises(ValueError, match="passes: softmax has fwd,bwd, got 'bwd_data'"):
        with_passes([Layer(line)], ["bwd_data"])


@pytest.mark.parametrize("name", sorted(path.stem for path in PROBLEM_FOLDER.glob("*.txt")))
def test_shipped_problems_are_canonical_and_distinct(name: str) -> None:
    layers = read_problems(name)
    text = (PROBLEM_FOLDER / f"{name}.txt").read_text()
    assert all(layer.count == len(layer.names) for layer in layers)
    lines = [line.split("#")[0].strip() for line in text.splitlines() if not line.startswith("#")]
    assert [layer.problem for layer in layers] == lines


@pytest.mark.parametrize(
    ("name", "calls"), [("resnet50", 53), ("vgg16", 13), ("alexnet", 5), ("mobilenet_v2", 52)]
)
def test_shipped_problems_count_every_convolution(name: str, calls: int) -> None:
    assert sum(layer.count for layer in read_problems(name)) == calls


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "alexnet", "mobilenet_v2"])
def test_shipped_problems_are_those_of_the_network(name: str) -> None:
    pytest.importorskip("torchvision")
    layers = network_layers(*load_model(name), ["fwd"]).layers
    found = [layer for layer in layers if layer.problem.startswith("conv_fwd ")]
    shipped = read_problems(name)
    assert sorted(layer.problem for layer in shipped) == sorted(layer.problem for layer in found)


def test_rewrite_changes_what_it_is_asked_for() -> None:
    text = rewrite(LINE, op="conv_bwd_filter", dtype="f64", batch=5, channels_last=True)
    assert text == (
        "conv_bwd_filter x=f64[5,4,8,8]:nhwc w=f64[6,4,3,3]:nhwc pad=1 stride=1 dilation=1 "
        "groups=1 compute=f64"
    )
    assert rewrite(LINE) == LINE
    sequences = _C.canonical_problem("conv_bwd_filter x=f32[2,4,8]:nchw w=f32[6,4,3]:nchw")
    assert rewrite(sequences, channels_last=True) == sequences  # as its operator takes them
    biased = f"{LINE} bias=f32"
    assert rewrite(biased, dtype="bf16") == f"{rewrite(LINE, dtype='bf16')} bias=bf16"
    assert rewrite(biased, op="conv_bwd_data") == rewrite(LINE, op="conv_bwd_data")
    layers = with_passes([Layer(LINE, ("a",), 3)], ["fwd", "bwd_data"])
    assert [layer.problem.split()[0] for layer in layers] == ["conv_fwd", "conv_bwd_data"]
    assert all(layer.count == 3 for layer in layers)


def test_convolution_arguments_expand_and_refuse() -> None:
    arguments = convolution_arguments(LINE.replace("pad=1", "pad=1,2"))
    assert arguments._asdict() == {
        "stride": [1, 1],
        "padding": [1, 2],
        "dilation": [1, 1],
        "groups": 1,
    }
    assert convolution_arguments(LINE + " bias=f32") == convolution_arguments(LINE)
    with pytest.raises(ValueError, match="wanted none of them, .* profile takes them"):
        convolution_arguments(LINE + " mode=conv")


def test_problem_files_are_read_with_names_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(f"# a comment\n\n{LINE}  # a, b x4\n{OTHER}\n{LINE} # c\n")
    layers = read_problems(file)
    assert [(layer.names, layer.count) for layer in layers] == [(("a", "b", "c"), 5), ((), 1)]
    file.write_text(f"{LINE}\nconv_fwd nonsense\n")
    with pytest.raises(ValueError, match="line 2"):
        read_problems(file)
    file.write_text(f"{LINE}  # the first layer of my net\n{OTHER} #x2\n")
    found = [(layer.names, layer.count) for layer in read_problems(file)]
    assert found == [(("the first layer of my net",), 1), ((), 2)]
    file.write_text(f"{LINE}  # a,x2\n{OTHER} # a, b, x3,\n")
    found = [(layer.names, layer.count) for layer in read_problems(file)]
    assert found == [(("a",), 2), (("a", "b"), 3)]
    for count in ("x0", f"x1{'0' * 5000}"):
        file.write_text(f"{LINE}  # a {count}\n")
        with pytest.raises(ValueError, match=f"line 1: got {count:.20}, wanted x1 to x1000000000"):
            read_problems(file)


def test_shipped_problems_are_found_where_no_file_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = read_problems("vgg16")
    assert len(shipped) > 1
    spellings = ("vgg16.txt", "problems/vgg16.txt", Path("problems/vgg16.txt"))
    assert all(read_problems(spelling) == shipped for spelling in spellings)
    for wrong in ("vgg17.txt", "mine/vgg16.txt", "../problems/vgg16.txt"):
        with pytest.raises(ValueError, match=f"got '{wrong}', wanted a file .* or one of alexnet,"):
            read_problems(wrong)
    (tmp_path / "problems").mkdir()
    for own in ("vgg16.txt", "problems/vgg16.txt"):
        (tmp_path / own).write_text(f"{LINE}\n")
        assert [layer.problem for layer in read_problems(own)] == [LINE]


def test_shards_are_a_partition() -> None:
    layers = read_problems("resnet50")
    parts = [shard(layers, f"{i}/4") for i in range(1, 5)]
    assert sorted(p.problem for part in parts for p in part) == sorted(p.problem for p in layers)
    for wrong in ("0/4", "5/4", "4", "a/b"):
        with pytest.raises(ValueError, match="wanted i/n"):
            shard(layers, wrong)


def test_lines_of_a_trace_may_be_profiled_and_tuned() -> None:
    network = torch.nn.Conv2d(2, 3, 3)
    (line,) = trace(network, torch.ones(1, 2, 4, 4), train=False)
    assert "#" in line
    (problem,) = tuning.tune(line, device="cpu", time_budget_s=0.05)
    assert line.startswith(problem)
    assert only_layer(profile(line, device="cpu", time_budget_s=0.05)).problem == problem


def _ops(layers: Iterable[Layer]) -> list[str]:
    return [layer.problem.split()[0] for layer in layers]


def test_of_a_network_s_passes_those_that_are_there_are_taken(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)
    )
    x = torch.randn(2, 3, 8, 8)
    trace(model, x, tmp_path / "train.txt")
    met = read_problems(tmp_path / "train.txt")
    for words, passes in (
        (["fwd"], {"fwd"}),
        (["bwd"], {"bwd", "bwd_filter"}),
        (["bwd_filter"], {"bwd_filter"}),
        (["fwd", "bwd"], {"fwd", "bwd", "bwd_filter"}),
    ):
        taken = with_passes(met, words)
        assert {_C.problem_info(layer.problem)["pass_name"] for layer in taken} == passes
        assert set(taken) <= set(met)
    trace(model, x, tmp_path / "infer.txt", train=False)
    inferred = read_problems(tmp_path / "infer.txt")
    assert with_passes(inferred, ["fwd"]) == inferred
    assert "batch_norm_infer" in _ops(inferred)


@pytest.mark.parametrize(
    ("line", "made"),
    [
        (
            "batch_norm_fwd x=f32[4,8,16]:nchw running=true",
            ["batch_norm_fwd x=f32[4,8,16]:nchw running=true", "batch_norm_bwd x=f32[4,8,16]:nchw"],
        ),
        ("batch_norm_infer x=f32[4,8,16]:nchw", ["batch_norm_infer x=f32[4,8,16]:nchw"]),
        ("rnn_fwd cell=gru x=f32[5,2,4]:nchw hidden=4", None),
    ],
)
def test_a_line_gets_the_passes_of_a_training_step(line: str, made: list[str] | None) -> None:
    passes = with_passes([Layer(_C.canonical_problem(line))], ["fwd", "bwd"])
    if made is None:
        assert _ops(passes) == ["rnn_fwd", "rnn_bwd"] and "train=true" in passes[1].problem
    else:
        assert [layer.problem for layer in passes][: len(made)] == made


@pytest.mark.parametrize(
    ("line", "is_laid_out"),
    [
        ("matmul_fwd x=f32[1,2,512]:nchw w=f32[1,512,10]:nchw", False),
        ("softmax_fwd x=f32[2,10,1]:nchw", False),
        ("layer_norm_fwd x=f32[2,4]:nchw kind=layer", False),
        ("layer_norm_fwd x=f32[2,4,6]:nchw kind=instance", True),
        ("batch_norm_fwd x=f32[2,4,6]:nchw", True),
        ("pool_fwd x=f32[2,4,6,6]:nchw window=2", True),
        ("grid_sample_fwd x=f32[2,4,6,6]:nchw grid=f32[2,5,5,2]:nchw", True),
    ],
)
def test_channels_last_is_of_images(line: str, is_laid_out: bool) -> None:
    before = _C.canonical_problem(line)
    after = rewrite(line, channels_last=True)
    assert after == (before.replace("]:nchw", "]:nhwc", 1) if is_laid_out else before)
