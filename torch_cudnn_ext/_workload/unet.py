"""A U-Net, which torchvision does not have: transposed and concatenated images of many sizes."""

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 1024)  # channels, from the full images to the smallest


def _two_convolutions(channels: int, width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for into in (channels, width):
        layers += [nn.Conv2d(into, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A segmentation network (Ronneberger et al., 2015), padded, with batch norms.

    Images shrink four times by half and grow again by transposed convolutions; each size on the
    way back also reads what the same size gave on the way down.
    """

    def __init__(self, channels: int = 3, classes: int = 2) -> None:
        """Make the layers for images of so many channels."""
        super().__init__()
        self.down = nn.ModuleList(_two_convolutions(a, b) for a, b in pairwise((channels, *WIDTHS)))
        self.halve = nn.MaxPool2d(2)
        back = [*pairwise(WIDTHS[::-1])]
        self.grow = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in back)
        self.up = nn.ModuleList(_two_convolutions(2 * b, b) for _, b in back)
        self.head = nn.Conv2d(WIDTHS[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes for each pixel, for images whose sides 16 divides."""
        kept: list[Tensor] = []
        x = images
        for i, convolutions in enumerate(self.down):
            x = convolutions(self.halve(x) if i else x)
            kept.append(x)
        kept.pop()
        for grow, convolutions in zip(self.grow, self.up, strict=True):
            x = convolutions(torch.cat([kept.pop(), grow(x)], 1))
        scores: Tensor = self.head(x)
        return scores
