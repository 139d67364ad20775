"""Whole networks that several test files run."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

# Names of torchvision or of timm, and the size of their images. The first two end in adaptive
# pooling, whose windows are equal at the size that they were made for.
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
    "timm:resnet26d": 64,
    "timm:efficientnet_b0": 64,
    "timm:convnext_atto": 32,
    "timm:vit_tiny_patch16_224": 32,
    "timm:mobilenetv3_small_050": 32,
}
# Those that run in all settings on a CPU, too; the others in float32 alone.
SMALL = (
    "mobilenet_v3_large",
    "googlenet",
    "timm:convnext_atto",
    "timm:vit_tiny_patch16_224",
    "timm:mobilenetv3_small_050",
)
# The backends that a device's networks are kept to, and the kinds of operators that enable()
# overrides.
WANTED = {"cpu": "cpu", "cuda": "cudnn"}
FAMILIES = {"conv", "pool", "batch_norm", "layer_norm", "softmax", "rnn"}


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


def vision_model(name: str) -> nn.Module:
    """One of `MODELS` with random weights; skips the test where its package is not there."""
    model: nn.Module
    if name.startswith("timm:"):
        arguments: dict[str, Any] = {"img_size": MODELS[name]} if ":vit" in name else {}
        model = pytest.importorskip("timm").create_model(name.removeprefix("timm:"), **arguments)
        return model
    models = pytest.importorskip("torchvision").models
    arguments = {"weights_backbone": None} if name.startswith("fcn") else {}
    if name in ("googlenet", "inception_v3"):
        arguments |= {"init_weights": False, "aux_logits": False}  # the latter want larger images
    model = models.get_model(name, weights=None, **arguments)
    return model


def images(name: str, batch: int) -> Tensor:
    frames = (4,) if name == "r3d_18" else ()
    return torch.randn(batch, 3, *frames, MODELS[name], MODELS[name])
