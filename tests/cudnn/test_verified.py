"""What was verified, and what the user is told elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
from conftest import ROOT, needs_cuda

import torch_cudnn_ext
from torch_cudnn_ext import _C, UnverifiedVersionWarning, _warning

UNVERIFIED = [(94000, 90), (91900, 80), (91901, 90)]


def test_a_verified_platform_has_no_caution() -> None:
    assert _C.caution(91900, 90) == ""
    assert _C.capability("target:h200") == 90 and _C.capability("cpu") == 0
    for row in _C.verified_platforms():
        assert row["gpus"]


@pytest.mark.parametrize(("cudnn", "capability"), UNVERIFIED)
def test_a_caution_is_one_line_that_says_what_follows(cudnn: int, capability: int) -> None:
    text = _C.caution(cudnn, capability)
    assert "\n" not in text
    for part in ("was not verified", "cuDNN 9.19 on compute capability 9.0", "guards", "engine"):
        assert part in text
    # It can be pasted.
    with warnings.catch_warnings():
        exec(
            text.partition("silence this: ")[2],
            {"warnings": warnings, "torch_cudnn_ext": torch_cudnn_ext},
        )
        warnings.warn("told", UnverifiedVersionWarning, stacklevel=1)


def test_the_warning_has_a_category_of_its_own() -> None:
    with pytest.warns(UnverifiedVersionWarning, match="told") as told:
        _warning.warn_of_version("told")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=UnverifiedVersionWarning)
        _warning.warn_of_version("told")


@needs_cuda
def test_the_first_use_of_a_gpu_warns_once() -> None:
    code = (
        "import torch, warnings\n"
        "from torch_cudnn_ext import _C, ops\n"
        "_C.override_library_version('cuDNN', 94000)\n"
        "x, w = torch.randn(2, 4, 8, 8, device='cuda'), torch.randn(4, 4, 3, 3, device='cuda')\n"
        "with warnings.catch_warnings(record=True) as told:\n"
        "    warnings.simplefilter('always')\n"
        "    ops.conv2d(x, w)\n"
        "    ops.conv2d(x, w, padding=1)\n"
        "print([t.category.__name__ for t in told])\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert process.stdout.strip() == "['UnverifiedVersionWarning']", process.stderr
