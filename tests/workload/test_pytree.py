"""Tensors in containers are found, replaced and detached."""

import dataclasses
from collections import UserDict, deque
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from torch_cudnn_ext import profile_model, trace
from torch_cudnn_ext._workload.pytree import tensors_in
from torch_cudnn_ext._workload.running import detached


def test_tensors_are_found_and_replaced_in_every_container() -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        a: object

    one = torch.zeros(1)
    itself = Frozen([one])
    itself.a.append(itself)  # type: ignore[attr-defined]
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(2, 1)])
    values = {
        "list": [one, 5, "text", None, Frozen],
        "structure": torch.zeros(1).max(0),
        "packed": packed,
        "namespace": SimpleNamespace(a=UserDict(b=deque([{one}]))),
        "dataclass": itself,
    }
    values["size"], values["numbers"] = one.shape, range(3)
    detached_values = detached(values)
    assert all(detached_values[name] is values[name] for name in ("size", "numbers"))
    assert [*detached_values] == [*values] and detached_values["list"][1:] == values["list"][1:]
    found = tensors_in(values)
    assert len(found) == 7 and len(tensors_in(detached_values)) == 7
    assert not {id(t) for t in found} & {id(t) for t in tensors_in(detached_values)}
    assert type(detached_values["packed"]) is type(packed)
    assert detached_values["dataclass"].a[1] is detached_values["dataclass"]


def test_callers_graphs_are_left_alone_in_every_container() -> None:
    @dataclasses.dataclass
    class Box:
        x: torch.Tensor

    class Boxed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, box: Any) -> Any:
            found = box.x if isinstance(box, Box) else box["x"]
            return UserDict(y=SimpleNamespace(z={self.conv(found)}))

    model, x = Boxed(), torch.randn(1, 3, 8, 8, requires_grad=True)
    for kind in (Box, lambda x: [UserDict(x=x)]):
        y = 2 * x
        problems = trace(model, kind(y))
        assert any(line.startswith("conv_bwd_filter") for line in problems)
        profile_model(model, kind(y), device="cpu", time_budget_s=0.01)
        assert x.grad is None
        torch.autograd.grad(y.sum(), x)
