"""Loading the networks that are named."""

import pytest
import torch

from torch_cudnn_ext._workload.models import load_model


def test_networks_are_channels_last_themselves() -> None:
    pytest.importorskip("torchvision")
    model, inputs = load_model("resnet18", batch=1, image_size=32, channels_last=True)
    tensors = [inputs, *(p for p in model.parameters() if p.dim() == 4)]
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)
