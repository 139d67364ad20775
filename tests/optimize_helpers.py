"""Networks for tests of `optimize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize.recipe import Way
from torch_cudnn_ext._optimize.training_model import TrainingModel
from torch_cudnn_ext._workload.pytree import tensors_requiring_grad

# Little tuning, and nothing compiled.
BUDGET: dict[str, Any] = {"time_budget_s": 0.2, "torch_compile": False}


def trained_like(model: nn.Module) -> nn.Module:
    """A model whose batch norms have means, variances and weights as after training."""
    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_()
    return model.eval()


class Block(nn.Module):
    """Convolutions with batch norm, a sum and ReLU, written in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.kind == "iadd":
            y += x
            return self.relu(y)
        if self.kind == "method":
            return y.add(x).relu_()
        if self.kind == "swapped":
            return F.relu(x + y)
        if self.kind == "into the input":
            z = x * 1
            z += y
            return F.relu(z) + z
        if self.kind == "broadcast":
            return F.relu(y + x.mean((2, 3), keepdim=True))
        if self.kind == "twice":
            return F.relu(y + x) + y
        return torch.relu(torch.add(y, x, alpha=2))


# Networks for training, and what a step gives.


def images(batch: int = 2, device: str = "cpu") -> Tensor:
    draw = torch.Generator().manual_seed(3)
    return torch.randn(batch, 3, 8, 8, generator=draw).to(device)


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip


def results_of_step(model: nn.Module, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The output, and the gradients and buffers after a backward; the model is left as it was."""
    state = {name: t.clone() for name, t in model.state_dict().items()}
    given = [
        a.detach().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args
    ]
    model.zero_grad()
    torch.manual_seed(7)
    output = run(*given)
    tensors = tensors_requiring_grad(output)
    torch.autograd.backward(tensors, [t.detach().cos() for t in tensors])
    gradients = [
        t.grad for t in (*model.parameters(), *(a for a in given if isinstance(a, Tensor)))
    ]
    buffers = [b.clone() for b in model.buffers()]
    model.load_state_dict(state)
    return output, gradients, buffers


def check_step(fast: TrainingModel, model: nn.Module, *args: Any) -> None:
    """A step of ours gives what a step of the model gives."""
    assert fast.report.way is Way.optimized, str(fast.report)
    wanted, got = results_of_step(model, model, args), results_of_step(model, fast, args)
    assert type(got[0]) is type(wanted[0])
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def ran_ours(network: nn.Module, *args: Any) -> bool:
    """Whether a call ran a convolution of this package."""
    tce.ops.softmax(torch.zeros(1, 2), 1)
    network(*args)
    decision = tce.last_decision()
    return decision is not None and not decision.problem.startswith("softmax")
