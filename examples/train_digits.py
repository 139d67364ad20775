"""Trains a small convolutional network on handwritten digits, and says which algorithms it ran.

    python examples/train_digits.py --device cpu --epochs 16

In a clone, where the package is not installed, it is ``PYTHONPATH=. "$(tools/bootstrap)"`` that
stands for ``python``.

The data are the 1797 images of the UCI "Optical Recognition of Handwritten Digits" test set, 8x8
pixels each (E. Alpaydin and C. Kaynak, 1998, CC BY 4.0), in ``digits.csv.gz`` beside this file. A
fifth of them, always the same, is kept for testing.

The first epoch is autotuned, the next three pin other algorithms, as one would to compare them, and
so on in turns; the network learns on undisturbed, since all of them compute the same convolution.
At the end stands the table of what each algorithm costs in each layer and pass.
"""

import argparse
import gzip
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_cudnn_ext
from torch_cudnn_ext.nn import Conv2d

# Algorithms for the forward pass, the data gradient and the filter gradient, epoch by epoch.
# Integers are those of cuDNN's classic API, which exists for CUDA devices only.
PINS: dict[str, list[tuple[str | int, str | int, str | int]]] = {
    "cpu": [
        ("autotune", "autotune", "autotune"),
        ("cpu:im2col", "cpu:im2col", "cpu:im2col"),
        ("cpu:direct", "aten:default", "cpu:im2col"),
        ("cpu:fft", "cpu:fft", "cpu:fft"),
    ],
    "cuda": [
        ("autotune", "autotune", "autotune"),
        (1, 1, 1),
        ("graph:eng0", 1, 0),
        (0, "aten:default", 1),
    ],
}
BATCH = 64


def load(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and digits, test images and digits.

    Images are float32 of sizes [n, 1, 8, 8] with values from 0 to 1, digits int64 of size [n].
    """
    with gzip.open(Path(__file__).with_name("digits.csv.gz"), "rt", encoding="ascii") as file:
        lines = [line for line in file if not line.startswith("#")]
    rows = torch.tensor([[int(value) for value in line.split(",")] for line in lines])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))].to(device)
    images, digits = rows[:, :64].view(-1, 1, 8, 8).float() / 16, rows[:, 64]
    test = len(rows) // 5
    return images[test:], digits[test:], images[:test], digits[:test]


class Net(nn.Module):
    """Three convolutions and a linear layer: images [n, 1, 8, 8] to scores [n, 10]."""

    def __init__(self) -> None:
        """Random weights."""
        super().__init__()
        self.conv1 = Conv2d(1, 16, 3, padding=1)
        self.conv2 = Conv2d(16, 32, 3, padding=1)
        self.conv3 = Conv2d(32, 32, 3, padding=1)
        self.out = nn.Linear(32 * 2 * 2, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the ten digits."""
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.max_pool2d(F.relu(self.conv3(x)), 2)
        scores: Tensor = self.out(F.dropout(x.flatten(1), 0.25, self.training))
        return scores

    def set_mode(self, fwd: str | int, bwd_data: str | int, bwd_filter: str | int) -> None:
        """Algorithms for all convolutions."""
        for layer in (self.conv1, self.conv2, self.conv3):
            layer.set_mode(fwd, bwd_data, bwd_filter)


def accuracy(net: Net, images: Tensor, digits: Tensor) -> float:
    """The part of the images that are recognised, in percent."""
    net.eval()
    with torch.no_grad():
        right = (net(images).argmax(1) == digits).float().mean()
    net.train()
    return 100 * float(right)


def main() -> None:
    """Trains, prints an accuracy an epoch, then the profile."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=16)
    options = parser.parse_args()

    torch.manual_seed(0)
    images, digits, test_images, test_digits = load(options.device)
    net = Net().to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, options.epochs * steps)
    pins = PINS[torch.device(options.device).type]
    for epoch in range(options.epochs):
        modes = pins[epoch % len(pins)]
        net.set_mode(*modes)
        start = time.perf_counter()
        # Whole batches only: one problem for each layer and pass.
        for batch in torch.randperm(len(images), device=options.device)[: steps * BATCH].split(
            BATCH
        ):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images[batch]), digits[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}: loss {loss.item():.3f}, "
            f"test accuracy {accuracy(net, test_images, test_digits):.2f} %, {seconds:.1f} s, "
            f"fwd={modes[0]} bwd_data={modes[1]} bwd_filter={modes[2]}"
        )
    print(f"test accuracy: {accuracy(net, test_images, test_digits):.2f} %")
    torch_cudnn_ext.profile_model(net, images[:BATCH], device=options.device).print(all_layers=True)


if __name__ == "__main__":
    main()
