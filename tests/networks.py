"""Whole networks that several test files run."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

# Names of torchvision and the size of their images; of which CI runs the small ones too. The first
# two end in adaptive pooling, whose windows are equal at the size that they were made for.
MODELS = {
    "alexnet": 224,
    "vgg16_bn": 224,
    "resnet18": 64,
    "resnet50": 64,
    "densenet121": 64,
    "mobilenet_v3_large": 64,
    "efficientnet_b0": 64,
    "convnext_tiny": 64,
    "inception_v3": 80,
    "googlenet": 64,
    "fcn_resnet50": 64,
    "r3d_18": 64,
}
SMALL = ("mobilenet_v3_large", "googlenet")


class Tagger(nn.Module):
    """A bidirectional LSTM of two layers over embedded words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(32, 7)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.tags(self.lstm(self.words(words))[0])
        return out


class LanguageModel(nn.Module):
    """A GRU that predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.gru = nn.GRU(16, 16, num_layers=2)
        self.norm = nn.LayerNorm(16)

    def forward(self, words: Tensor) -> Tensor:
        out = self.norm(self.gru(self.words(words))[0])
        return torch.log_softmax(out @ self.words.weight.t(), -1)


def torchvision_model(name: str) -> nn.Module:
    models = pytest.importorskip("torchvision").models
    arguments: dict[str, Any] = {"weights_backbone": None} if name.startswith("fcn") else {}
    if name in ("googlenet", "inception_v3"):
        arguments |= {"init_weights": False, "aux_logits": False}  # the latter want larger images
    model: nn.Module = models.get_model(name, weights=None, **arguments)
    return model


def images(name: str, batch: int) -> Tensor:
    frames = (4,) if name == "r3d_18" else ()
    return torch.randn(batch, 3, *frames, MODELS[name], MODELS[name])
