"""Proxies: the smaller problems that the CPU measures for a network."""

import re

import pytest
import torch
from helpers import network_with
from torch import nn
from torch.nn import functional as F

from torch_cudnn_ext import profile_model
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext._workload.problems import Layer


def test_proxies_are_of_the_same_calls() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu, self.convs = nn.ReLU(), nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.convs[1](self.relu(self.convs[0](x))))
            return F.relu(self.convs[2](F.max_pool2d(x, 2)).mean((2, 3)))

    layers = network_layers(Net(), torch.randn(4, 4, 16, 16), proxies=True).layers
    sizes = {
        layer.problem: layer.proxy for layer in layers if layer.problem.startswith("activation")
    }
    numbers = [
        [int(n) for n in re.findall(r"x=f32\[(\d+)", f"{line} {other}")]
        for line, other in sizes.items()
    ]
    assert len(numbers) == 4 and all(whole == 4 * first for whole, first in numbers)


def test_where_the_cpu_stands_in_all_of_a_network_is_measured_at_one_size() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.LayerNorm(6), nn.Flatten(), nn.Linear(144, 5)
    )
    settings = {"target": "h200", "time_budget_s": 0.02, "train": False}
    many = profile_model(model, torch.randn(8, 3, 8, 8), **settings)  # type: ignore[arg-type]
    one = profile_model(model, torch.randn(1, 3, 8, 8), **settings)  # type: ignore[arg-type]
    assert [layer.measured for layer in many.layers] == [layer.problem for layer in one.layers]
    assert all(layer.measured == layer.problem for layer in one.layers)
    assert all(layer.problem != layer.measured for layer in many.layers)


def test_inputs_without_a_batch_in_common() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 2, 1), nn.ReLU()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.relu(self.conv(x)) + y
            return out

    inputs = (torch.randn(4, 3, 2, 2), torch.randn(2, 1, 1))
    result = profile_model(Adds(), inputs, target="h200", time_budget_s=0.02, train=False)
    # The elements of the activation do not tell their batch.
    assert all(layer.measured == layer.problem for layer in result.layers)
    assert "at batch" not in result.to_markdown()
    one_value = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.ReLU())
    result = profile_model(one_value, torch.randn(4, 3, 2, 2), target="h200", time_budget_s=0.02)
    assert all(layer.measured == layer.problem for layer in result.layers)
    lstm = profile_model(
        nn.LSTM(3, 4), torch.randn(5, 6, 3), target="h200", time_budget_s=0.02, train=False
    )
    assert "x=f32[5,1,3]" in lstm.layers[0].measured


def test_proxies_of_a_network_with_a_recurrent_layer() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()
            self.lstm, self.linear = nn.LSTM(32, 6, batch_first=True), nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.relu(self.conv(x)).permute(0, 3, 1, 2).flatten(2)
            return F.log_softmax(self.linear(self.lstm(y)[0]), -1)

    def lines(batch: int) -> list[Layer]:
        x = torch.randn(batch, 3, 8, 8)
        return network_layers(Reads(), x, proxies=True).layers

    assert [layer.proxy for layer in lines(4)] == [layer.problem for layer in lines(1)]

    one_step = network_layers(nn.LSTM(5, 6), torch.randn(1, 4, 5), ["fwd"], proxies=True)
    assert "x=f32[1,1,5]" in one_step.layers[0].proxy

    class Packs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(5, 6, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return F.relu(self.lstm(packed)[1][0])

    inputs = torch.randn(4, 7, 5), torch.tensor([7, 5, 3, 2])
    packed = network_layers(Packs(), inputs, ["fwd"], proxies=True).layers
    assert [re.findall(r"x=f32\[([\d,]+)", layer.proxy)[0] for layer in packed] == ["7,1,5", "6"]

    class Rows(nn.Module):  # of images, of which each is a sequence
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(3, 6, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.lstm(x.permute(0, 2, 3, 1).flatten(0, 1))[0])

    rows = network_layers(Rows(), torch.randn(4, 3, 8, 5), ["fwd"], proxies=True).layers
    assert [re.findall(r"x=f32\[([\d,]+)", layer.proxy)[0] for layer in rows] == ["5,8,3", "240"]


def test_proxies_that_are_equal_over_one_of_the_batch() -> None:
    def elements(problem: str) -> int:
        return int(re.findall(r"x=f32\[(\d+)\]", problem)[0])

    weight = torch.randn(4)
    model = network_with(lambda y: torch.cat([torch.tanh(y), torch.tanh(weight)[None]]).tanh())
    layers = network_layers(model, torch.randn(32, 4), ["fwd"], proxies=True).layers
    sizes = {
        elements(layer.problem): elements(layer.proxy)
        for layer in layers
        if layer.problem.startswith("activation")
    }
    assert sizes == {128: 4, 4: 4, 132: 8}


def test_lengths_are_not_guessed_on_the_meta_device() -> None:
    def loss(y: torch.Tensor) -> torch.Tensor:
        lengths = torch.full((2,), 6, device=y.device), torch.full((2,), 3, device=y.device)
        targets = torch.ones(2, 3, dtype=torch.long, device=y.device)
        return F.ctc_loss(y.log_softmax(-1), targets, *lengths)

    model, x = network_with(loss), torch.randn(6, 2, 4)
    lines = [layer.problem for layer in network_layers(model, x).layers]
    assert any(line.startswith("ctc_fwd") and "lengths=full" in line for line in lines)
    with pytest.raises(RuntimeError, match="meta device have no values, which lengths are"):
        network_layers(model.to("meta"), x.to("meta"))


def test_what_cannot_run_on_the_first_of_a_batch_is_measured_otherwise() -> None:
    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x.view(3, 6))
            return out

    result = profile_model(Three(), torch.randn(3, 6), target="h200", time_budget_s=0.01)
    assert {layer.op for layer in result.layers} == {"matmul_fwd"}
