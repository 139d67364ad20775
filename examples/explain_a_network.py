"""Runs an unmodified network with pins by layer name and by problem, and tells what ran and why.

    python examples/explain_a_network.py --measure

In a clone, ``PYTHONPATH=. "$(tools/bootstrap)"`` stands for ``python``.
"""

import argparse

import torch
from torch import Tensor, nn

import torch_cudnn_ext


class Block(nn.Module):
    """Two convolutions with a sum, as in a residual network: [n, 16, h, w] to the same."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        y: Tensor = self.conv2(self.conv1(x).relu())
        return x + y


def main() -> None:
    """Prints a line for each call of the network, forward and backward."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--measure", action="store_true", help="also time each algorithm")
    options = parser.parse_args()

    model = nn.Sequential(nn.Conv2d(3, 16, 3), Block(), Block(), nn.MaxPool2d(2))
    model, images = model.to(options.device), torch.randn(2, 3, 18, 18, device=options.device)
    pins = {"1.conv?": "fwd=aten:default"}  # by the name of a layer
    with (
        torch_cudnn_ext.enabled("heuristic"),  # all else
        torch_cudnn_ext.pinned(model, pins),
        torch_cudnn_ext.when("conv_bwd_filter w=*[16,16,3,3]*", use="aten:default"),  # by problem
    ):
        explained = torch_cudnn_ext.explain(model, images, train=True, measure=options.measure)
    for call in explained.calls:
        time = "" if call.ms is None else f"  {call.ms:.3f} ms"
        name = call.algorithm or "PyTorch's own"
        print(f"{call.layer or '-':8} {call.op or '-':16} {name:24} {call.why}{time}")
    print(f"{explained.share:.0%} of the calls ran algorithms that were chosen here")


if __name__ == "__main__":
    main()
