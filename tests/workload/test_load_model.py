"""Loading the networks that are named."""

import pytest
import torch

from torch_cudnn_ext._workload.models import load_model


def test_networks_are_channels_last_themselves() -> None:
    pytest.importorskip("torchvision")
    model, inputs = load_model("resnet18", batch=1, image_size=32, channels_last=True)
    tensors = [inputs, *(p for p in model.parameters() if p.dim() == 4)]
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)


def test_the_unet_gives_scores_for_each_pixel() -> None:
    model, images = load_model("unet", batch=2, image_size=32, channels_last=True)
    assert images.is_contiguous(memory_format=torch.channels_last) and images.is_meta
    assert model(images).shape == (2, 2, 32, 32)
    kinds = [type(module) for module in model.modules()]
    assert kinds.count(torch.nn.ConvTranspose2d) == 4 and kinds.count(torch.nn.Conv2d) == 19
