"""The Python of README.md runs, over a small network in place of ResNet-50."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import ROOT
from torch import nn

from torch_cudnn_ext import disable, is_enabled, knobs
from torch_cudnn_ext.tuning.store import read_table

README = ROOT / "README.md"
# What a CPU has otherwise, and a short test.
ON_CPU = {'device="cuda", ': "", ".cuda()": "", "(32, 64, 56, 56": "(2, 64, 8, 8"}
SMALLER = {
    "[64,64,56,56]": "[2,8,8,8]",
    "w=f16[64,64,3,3]": "w=f16[8,8,3,3]",
    "jobs=16": "jobs=1",
}


class Block(nn.Module):
    """What the pins of README name."""

    def __init__(self) -> None:
        """Two convolutions."""
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One behind the other."""
        y: torch.Tensor = self.conv2(self.conv1(x).relu())
        return y


class Network(nn.Module):
    """A little of a residual network."""

    def __init__(self) -> None:
        """With the names of torchvision's."""
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same as theirs."""
        y: torch.Tensor = self.layer1(self.conv1(x))
        return y


def test_the_python_of_the_readme_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if device == "cpu":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names: dict[str, Any] = {
        "model": Network().to(device),
        "images": torch.randn(2, 3, 8, 8, device=device),
        "inputs": torch.randn(4, 3, 16, 16),
        "problem_lines": "conv_fwd x=f32[2,3,8,8]:nchw w=f32[4,3,3,3]:nchw",
        "torchvision": SimpleNamespace(models=SimpleNamespace(resnet50=Network)),
    }
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 12
    try:
        for block in blocks:
            if device == "cpu":  # it has none of the GPU's algorithms that are pinned
                knobs.on_unsupported = "fallback"
            for there, here in (SMALLER | (ON_CPU if device == "cpu" else {})).items():
                block = block.replace(there, here)  # noqa: PLW2901
            exec(compile(block, str(README), "exec"), names)
    finally:
        if is_enabled():
            disable()
        vars(torch.backends.cudnn).pop("conv_fwd_algo", None)  # which disable() keeps
    out = capsys.readouterr().out
    assert "pinned by enable()" in out and "cpu:fused cpu:fused" in out
    assert len(read_table("tuning.jsonl")) > 1
    assert not is_enabled() and (tmp_path / "pins.toml").exists()
