"""Profiles that are made up, for tests of what is told of them."""

from typing import Any

from helpers import LINE, OTHER

from torch_cudnn_ext.analysis.results import LayerProfile, Profile
from torch_cudnn_ext.analysis.settings import make_settings


def row(algorithm: str, ms: float, workspace: int | None = 0, **more: Any) -> Any:
    return {
        "algorithm": algorithm,
        "backend": algorithm.partition(":")[0],
        "status": "ok",
        "reason": "",
        "workspace_bytes": workspace,
        "notes": [],
        "deterministic": True,
        "source": "enumeration",
        "median_ms": ms,
        "spread_ms": 0.01 * ms,
        "host_ms": 0.008,
        "samples": 11,
        "error": 1e-7,
        "build_ms": 1.0,
    } | more


def layer(problem: str, *rows: Any, names: tuple[str, ...] = (), **more: Any) -> LayerProfile:
    fields: dict[str, Any] = {"count": 1, "note": "", "device": "cuda", "measured": problem} | more
    return LayerProfile(
        problem,
        [*names],
        flops=1e9,
        floor_ms=0.5,
        bytes_moved=1e6,
        peak_flops=2e12,
        peak_bytes=1e12,
        rows=[*rows],
        **fields,
    )


def made_network() -> Profile:
    """Two layers with something to gain, and one without."""
    layers = [
        layer(
            LINE,
            row("graph:eng4", 1.0, 2**20),
            row("aten:default", 2.0),
            row("legacy:fft", 4.0, 2**26),
            names=("conv1", "conv2"),
            count=2,
        ),
        layer(OTHER, row("legacy:fft", 0.9, 2**26), row("aten:default", 1.0), names=("<last>",)),
        layer("softmax_fwd x=f32[16,10,1]:nchw log=false", row("aten:default", 1.0), names=("s",)),
    ]
    return Profile(layers, make_settings("cpu"), "net")
