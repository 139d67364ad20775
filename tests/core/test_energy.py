"""Clocks and energy of a measurement, as the driver tells them, and NVIDIA's library for it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import needs_cuda
from selector_helpers import conv_problem
from selector_helpers import measure_conv as measure_all
from torch import Tensor

from torch_cudnn_ext import _C

PLAIN = "backends=fake,aten"
ENERGY = f"{PLAIN};prefer=energy"


def measure_conv(x: Tensor, w: Tensor, policy: str, **more: Any) -> dict[str, Any]:
    """Measurements of what is scripted and of the baseline, by algorithm, best first."""
    rows = measure_all(x, w, policy, **more)
    return {name: row for name, row in rows.items() if _is_asked_for(name)}


def _is_asked_for(name: str) -> bool:
    return name.startswith("fake:") or name == "aten:default"


def _scripted(fake: Any, watts: dict[str, float], **driver: Any) -> None:
    fake.script_others(milliseconds=[1.0], host_ms=0)
    for name, power in watts.items():
        fake.script(f"fake:{name}", milliseconds=0.5, watts=power)
    fake.script_driver(watts_of_others=300.0, step_mj=20.0, **driver)


def test_the_least_energy_wins_if_it_is_preferred(fake: Any, x: Tensor, w: Tensor) -> None:
    _scripted(fake, {"hungry": 700.0, "frugal": 400.0})  # 350 and 200 mJ; PyTorch's takes 300
    by_time = measure_conv(x, w, PLAIN)
    assert [*by_time][-1] == "aten:default", "both are faster"
    assert all(row["energy_mj"] is None for row in by_time.values())
    by_energy = measure_conv(x, w, ENERGY)
    assert [*by_energy] == ["fake:frugal", "aten:default", "fake:hungry"]
    found = {name: row["energy_mj"] for name, row in by_energy.items()}
    assert found == pytest.approx(
        {"fake:frugal": 200, "aten:default": 300, "fake:hungry": 350}, rel=0.03
    )
    for row in by_energy.values():
        assert 0 <= row["energy_spread_mj"] < 0.03 * row["energy_mj"]


def test_energy_is_measured_on_demand_and_ranks_nothing(fake: Any, x: Tensor, w: Tensor) -> None:
    _scripted(fake, {"hungry": 900.0})
    asked = measure_conv(x, w, PLAIN, energy=True)
    assert next(iter(asked)) == "fake:hungry" and asked["fake:hungry"]["energy_mj"] > 0


def test_what_takes_no_less_in_every_window_does_not_replace_pytorchs(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    _scripted(fake, {"equal": 599.0})  # within the steps of the counter
    fake.script_driver(watts_of_others=300.0, step_mj=15_000.0)
    assert next(iter(measure_conv(x, w, ENERGY))) == "aten:default"


def test_only_the_fastest_get_an_energy(fake: Any, x: Tensor, w: Tensor) -> None:
    _scripted(fake, {"fast": 400.0})
    fake.script("fake:slow", milliseconds=5, watts=10)
    found = measure_conv(x, w, ENERGY)
    assert found["fake:slow"]["energy_mj"] is None
    assert [*found] == ["fake:fast", "aten:default", "fake:slow"]


@pytest.mark.parametrize("step_mj", [0.0, 1e12])
def test_a_driver_that_tells_no_energy_ranks_by_time(
    fake: Any, x: Tensor, w: Tensor, step_mj: float
) -> None:
    fake.script_others(milliseconds=[1.0], host_ms=0)
    fake.script("fake:fast", milliseconds=0.5)
    fake.script_driver(step_mj=step_mj)
    found = measure_conv(x, w, ENERGY)
    assert [*found] == ["fake:fast", "aten:default"]
    assert all(row["energy_mj"] is None for row in found.values())


def test_what_fails_while_its_energy_is_measured_has_failed(
    fake: Any, x: Tensor, w: Tensor
) -> None:
    _scripted(fake, {"fine": 400.0, "late": 100.0})
    runs = fake.counts("fake:late")[1]
    measure_conv(x, w, PLAIN)
    timed = fake.counts("fake:late")[1] - runs
    fake.script(
        "fake:late", milliseconds=0.5, watts=100.0, run_raises="error",
        raises_at=fake.counts("fake:late")[1] + timed + 3,
    )  # fmt: skip
    found = measure_conv(x, w, ENERGY)
    assert found["fake:late"]["status"] == "failed" and next(iter(found)) == "fake:fine"


def test_the_clocks_of_a_measurement_are_kept(fake: Any, x: Tensor, w: Tensor) -> None:
    _scripted(fake, {"one": 1.0}, clocks=[(1980, []), (1755, ["power cap"]), (1800, ["power cap"])])
    for row in measure_conv(x, w, PLAIN).values():
        assert (row["clock_low_mhz"], row["clock_high_mhz"]) == (1755, 1980)
        assert row["throttled"] == ["power cap"]
    assert _C.device_state("cpu")["sm_clock_mhz"] in (1755, 1800, 1980)
    fake.script_driver()
    for row in measure_conv(x, w, PLAIN).values():
        assert row["clock_low_mhz"] is row["clock_high_mhz"] is None and row["throttled"] == []


def test_a_cpu_tells_nothing(x: Tensor, w: Tensor) -> None:
    known = {"sm_clock_mhz": None, "throttled": [], "power_limit_w": None, "energy_mj": None}
    assert _C.device_state("cpu") == known
    rows = _C.measure(conv_problem(x, w), "cpu", "prefer=energy", time_budget_s=0.1)
    assert all(row["energy_mj"] is None and row["clock_low_mhz"] is None for row in rows)


NVML = """
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** out) {
  static int device;
  if (__builtin_strcmp(id, "00000000:1a:00.0") != 0) return 6;
  *out = &device;
  return 0;
}
int nvmlDeviceGetClockInfo(void* device, int kind, unsigned* out) {
  *out = kind == 1 ? 1755 : 0;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* out) { *out = 700000; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* out) {
  *out = 123456789012ULL;
  return 0;
}
int REASONS(void* device, unsigned long long* out) { *out = 0x4 | 0x20 | 0x1; return 0; }
"""
READ = """
import importlib.util, json, sys
import torch
import torch_cudnn_ext
spec = importlib.util.spec_from_file_location("fake_backend", sys.argv[1])
fake = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake)
print(json.dumps([fake.nvml(name) for name in ("00000000:1a:00.0", "00000000:1b:00.0")]))
"""


@pytest.mark.parametrize("reasons", ["EventReasons", "ThrottleReasons"])  # of newer and older ones
def test_nvml_is_asked(fake_backend: Any, tmp_path: Path, reasons: str) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text(NVML.replace("REASONS", f"nvmlDeviceGetCurrentClocks{reasons}"))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    known, unknown = _nvml(fake_backend, LD_LIBRARY_PATH=str(tmp_path))
    assert known == [1755, ["power cap", "temperature"], 700.0, 123456789012.0]
    assert unknown == [0, [], None, None]


def test_a_library_that_lacks_functions_tells_nothing(fake_backend: Any, tmp_path: Path) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvidia-ml.so.1"
    source.write_text("int nvmlInit_v2() { return 0; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert _nvml(fake_backend, LD_LIBRARY_PATH=str(tmp_path)) == [[0, [], None, None]] * 2


def _nvml(fake_backend: Any, **environment: str) -> Any:
    command = [sys.executable, "-c", READ, fake_backend.__file__]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@needs_cuda
def test_a_gpu_tells_clocks_and_energy() -> None:
    state = _C.device_state("cuda")
    if state["sm_clock_mhz"] is None or state["energy_mj"] is None:
        pytest.skip("this driver tells no clock or no energy")
    assert 100 < state["sm_clock_mhz"] < 5000 and (state["power_limit_w"] or 0) > 10
    line = "conv_fwd x=f32[32,64,56,56]:nchw w=f32[64,64,3,3]:nchw pad=1"
    rows = _C.measure(line, "cuda", "backends=aten,legacy;prefer=energy", record=False)
    known = [row for row in rows if row["energy_mj"] is not None]
    assert any(row["algorithm"] == "aten:default" for row in known)
    for row in known:
        power_w = row["energy_mj"] / row["median_ms"]  # type: ignore[operator]
        assert 20 < power_w < 2000, "the GPU's own, over calls one after the other"
        assert 100 < (row["clock_low_mhz"] or 0) <= (row["clock_high_mhz"] or 0)
