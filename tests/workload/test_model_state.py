"""A dry run leaves a model, its buffers and its inputs unchanged."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import Network, convolutions
from torch import nn
from torch.nn import functional as F

from torch_cudnn_ext import explain, profile_model, trace
from torch_cudnn_ext._workload.model_state import copied
from torch_cudnn_ext._workload.network import network_layers
from torch_cudnn_ext.analysis.coverage import coverage


def test_running_a_model_leaves_it_as_it_was() -> None:
    model = Network().train()
    model.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    convolutions(model, torch.randn(2, 4, 8, 8))
    assert model.training and model.up.training and not model.norm.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("look", [network_layers, partial(coverage, backends="cpu")])
def test_what_a_forward_writes_to_is_put_back(look: Callable[..., Any]) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.linear = nn.Embedding(10, 4, max_norm=0.1), nn.Linear(4, 2)

        def forward(self, words: torch.Tensor, scale: torch.Tensor) -> Any:
            with torch.no_grad():
                self.linear.weight.clamp_(-0.01, 0.01)
            return F.relu(self.linear(self.words(words) * scale.mul_(2)))

    model, words, scale = Writes(), torch.arange(3), torch.ones(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    look(model, (words, scale))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert float(scale) == 1


def test_buffers_that_grow_are_put_back() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("grown", torch.zeros(0))
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.get_buffer("grown").resize_(4).fill_(1)
            self.get_buffer("count").add_(1)
            out: torch.Tensor = self.conv(x)
            return out

    model = Growing()
    profile_model(model, torch.randn(1, 3, 8, 8), device="cpu", time_budget_s=0.01)
    assert model.get_buffer("grown").shape == (0,) and not model.get_buffer("count").any()


def test_a_look_takes_each_module_s_mode_back() -> None:
    model = Network().train()
    model.norm.eval()
    before = [module.training for module in model.modules()]
    x = torch.randn(2, 4, 8, 8)
    explain(model, x, measure=False)
    trace(model, x, train=False)
    profile_model(model, x, train=False, device="cpu", time_budget_s=0.01)
    assert [module.training for module in model.modules()] == before


def test_weights_of_a_copied_recurrent_network_lie_together(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.LSTM(3, 2), nn.Linear(2, 2)).to(device)
    flat = list[nn.Module]()

    def flatten(self: nn.RNNBase) -> None:
        flat.append(self)
        original(self)

    original = nn.RNNBase.flatten_parameters
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten)
    made = copied(model)
    assert made[0] in flat and model[0] not in flat
    for a, b in zip(made.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b) and a is not b
    if device == "cuda":
        assert len({p.untyped_storage().data_ptr() for p in made[0].parameters()}) == 1
    flat.clear()
    sharing = copied(model, {id(p): p for p in model.parameters()})
    assert not flat and sharing[0].weight_ih_l0 is model[0].weight_ih_l0
