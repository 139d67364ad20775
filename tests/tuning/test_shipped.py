"""The rankings that come with this package: what they leave out, and what finds them."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import LINE, OTHER
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import H200, WHEN, entry, forget, measurement, run_process

from torch_cudnn_ext import _C, knobs, profile, tuning
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.profile import measure_layers
from torch_cudnn_ext.analysis.results import Profile
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.tuning import keeping, store_upkeep
from torch_cudnn_ext.tuning.shipped import SHIPPED, hardware_of_target, winners
from torch_cudnn_ext.tuning.store_files import SegmentWriter, device_of
from torch_cudnn_ext.tuning.store_rows import Row

CONSTRAINTS = _C.constraints_text(LINE, _C.policy_for(LINE, ""))
MOST_BYTES = 3_000_000

one_measurement = st.builds(
    lambda name, workspace, deterministic, notes, status: measurement(
        name,
        workspace_bytes=workspace,
        deterministic=deterministic,
        notes=notes,
        status="unsupported" if status == "not tried" else status,
        reason="not tried, as the best was much faster" if status == "not tried" else "",
    ),
    st.sampled_from(["graph", "legacy", "aten"]).map(lambda b: f"{b}:default"),
    st.sampled_from([None, 0, 1, 2, 3]),
    st.sampled_from([True, False, None]),
    st.lists(st.sampled_from(["tf32", "fft"]), unique=True),
    st.sampled_from(["ok", "ok", "ok", "failed", "not tried"]),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the user that is empty, and a shipped one, whose folder it is."""
    knobs.store = tmp_path / "own"
    monkeypatch.setattr(keeping, "SHIPPED", tmp_path / "shipped")
    forget()
    yield tmp_path / "shipped"
    forget()


def keep(root: Path, *rows: dict[str, Any], problem: str = LINE, device: str = H200) -> None:
    """Add a ranking to a store."""
    row = Row(WHEN, "torch 2.11.0", entry(problem, device, CONSTRAINTS, *rows))
    SegmentWriter(root).append(device, row.line())


def first(rows: Any, cap: int, deterministic: bool, without: str, backends: set[str]) -> Any:
    """The first of a ranking that keeps constraints."""
    for row in rows:
        keeps = row["status"] == "ok" and row["backend"] in backends and without not in row["notes"]
        fits = row["workspace_bytes"] is not None and row["workspace_bytes"] <= cap
        if keeps and fits and (row["deterministic"] or not deterministic):
            return row
    return None


@given(
    st.lists(one_measurement, min_size=1, max_size=12),
    st.sampled_from([0, 1, 2, 3]),
    st.booleans(),
    st.sampled_from(["", "tf32", "fft"]),
    st.sets(st.sampled_from(["graph", "legacy", "aten"])),
)
def test_stricter_constraints_choose_among_winners_as_among_all(
    rows: list[dict[str, Any]], cap: int, deterministic: bool, without: str, backends: set[str]
) -> None:
    left = winners(Row("", "", entry(LINE, H200, "", *rows))).entry["measurements"]
    asked = cap, deterministic, without, backends
    assert first(left, *asked) == first(rows, *asked)
    untried = [row["reason"].startswith("not tried") for row in rows]
    assert any(row["reason"].startswith("not tried") for row in left) == any(untried)


def test_winners_leave_out_what_nothing_would_choose() -> None:
    rows = [
        measurement("graph:eng1", 1.0, workspace_bytes=8),
        measurement("graph:eng2", 2.0, workspace_bytes=8),
        measurement("graph:eng4", 3.0, workspace_bytes=0),
        measurement("legacy:fft", 4.0, status="failed"),
        measurement("aten:default", 5.0, workspace_bytes=64, status="excluded"),
    ]
    left = winners(Row(WHEN, "", entry(LINE, H200, "", *rows)))
    names = [row["algorithm"] for row in left.entry["measurements"]]
    assert names == ["graph:eng1", "graph:eng4", "aten:default"]
    assert winners(left) == left


def test_the_hardware_of_a_target_is_that_of_rows() -> None:
    assert hardware_of_target("h200") == device_of(H200).hardware
    assert hardware_of_target("no_such_gpu") is None


def test_what_is_shipped_is_small_and_right() -> None:
    good, bad = store_upkeep.verify(SHIPPED)
    rows = store_upkeep.holding_rows(SHIPPED)
    assert not bad
    assert good == len(rows) > 0
    assert sum(file.stat().st_size for file in SHIPPED.rglob("*.jsonl.gz")) < MOST_BYTES
    for row in rows:
        assert winners(row) == row
        assert device_of(row.entry["device"]).kind == "gpu"
        assert row.entry["measurements"][0]["status"] == "ok"


def test_what_is_shipped_is_part_of_the_package() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["torch_cudnn_ext"]
    packaged = {file for pattern in patterns for file in (root / "torch_cudnn_ext").glob(pattern)}
    assert {*SHIPPED.rglob("*.jsonl.gz")} <= packaged


def test_a_shipped_ranking_is_found_without_a_measurement(store: Path) -> None:
    here = _C.device_fingerprint("cpu")
    keep(store, measurement("cpu:im2col"), measurement(), device=here)
    before = tuning.statistics()
    decision = _C.decide(LINE, "cpu", "autotune")
    assert decision["algorithm"] == "cpu:im2col"
    now = tuning.statistics()
    assert (now.measured - before.measured, now.found - before.found) == (0, 1)
    assert not (store.parent / "own").exists()


def test_the_users_store_comes_before_the_shipped_one(store: Path) -> None:
    here = _C.device_fingerprint("cpu")
    keep(store, measurement("cpu:im2col"), device=here)
    keep(store.parent / "own", measurement(), device=here)
    assert _C.decide(LINE, "cpu", "autotune")["algorithm"] == "aten:default"


def test_without_a_store_nothing_is_shipped(store: Path) -> None:
    keep(store, measurement("graph:eng1"))
    assert keeping.recorded_row(LINE, "h200", _C.policy_for(LINE, "")) is not None
    knobs.store = ""
    assert keeping.recorded_row(LINE, "h200", _C.policy_for(LINE, "")) is None
    assert keeping.store_paths() == []


def test_a_recorded_row_is_of_the_same_hardware_and_constraints(store: Path) -> None:
    policy = _C.policy_for(LINE, "")
    ours = f"{device_of(H200).hardware}/cudnn{_C.versions()['cudnn']}"
    keep(store, measurement("graph:eng1"), device="NVIDIA H100/sm90/132sm/cudnn91900")
    assert keeping.recorded_row(LINE, "h200", policy) is None
    keep(store, measurement("graph:eng2"))
    keep(store, measurement("graph:eng4"), device=ours)
    found = keeping.recorded_row(LINE, "h200", policy)
    assert found is not None
    assert found.entry["measurements"][0]["algorithm"] == "graph:eng4"  # this cuDNN's
    assert keeping.recorded_row(LINE, "h200", _C.policy_for(LINE, "deterministic")) is None
    assert keeping.recorded_row(OTHER, "h200", policy) is None
    assert keeping.recorded_row(LINE, "no_such_gpu", policy) is None


def test_a_profile_for_a_target_tells_recorded_times(store: Path) -> None:
    keep(store, measurement("graph:eng1", 1.0), measurement(ms=2.0))
    before = tuning.statistics()
    result = profile(LINE, target="h200")
    assert tuning.statistics().timed_runs == before.timed_runs
    recorded = "recorded on NVIDIA H200 with cuDNN 9.19 on 2026-11-28"
    said = result.to_markdown()
    assert result.sentence().startswith(f"R{recorded[1:]}: autotune makes conv_fwd 2.00x")
    assert f"{LINE}" in said and recorded in said
    assert "not the target's" not in said
    (layer,) = json.loads(result.to_json())["layers"]
    assert layer["recorded"] == "2026-11-28"
    assert str(result.best()) == "fwd=graph:eng1"


def test_problems_that_are_not_recorded_are_listed(store: Path) -> None:
    keep(store, measurement("graph:eng1", 1.0), measurement(ms=2.0))
    settings = make_settings(target="h200")
    layers = [Layer(LINE, ("a",)), Layer(OTHER, ("b",))]
    result = Profile([*measure_layers(layers, settings)], settings, "net")
    assert "the layers of net (without 1 problem, not recorded) 2.00x" in result.sentence()
    assert [bool(layer.rows) for layer in result.layers] == [True, False]
    assert [bool(layer.listed) for layer in result.layers] == [False, True]
    assert "target:h200 accepts" in result.to_markdown()
    assert "1 problem is not recorded, and not in the sums" in result.to_markdown()
    assert [line.label for line in result.totals()] == ["conv_fwd"]
    page = result.to_html()
    assert "recorded on" in page and "NVIDIA H200/sm90/132sm/cudnn91900" in page
    assert torch.__version__ not in page
    assert json.loads(result.to_json())["versions"] is None


def test_a_cap_is_kept_by_what_is_recorded(store: Path) -> None:
    rows = [
        measurement("graph:eng1", 1.0, workspace_bytes=2**30),
        measurement("graph:eng4", 1.5),
        measurement(ms=2.0),
    ]
    keep(store, *rows)
    result = profile(LINE, target="h200", policy="max_workspace=1MiB")
    assert "within a workspace of 1 MiB" in result.sentence()
    assert "1.33x" in result.sentence()


def test_the_main_job_without_a_gpu_tells_times_of_an_h200(tmp_path: Path) -> None:
    code = (
        "import json, torch, torchvision\n"
        "from torch_cudnn_ext import profile_model, tuning\n"
        "with torch.device('meta'):\n"
        "    model, images = torchvision.models.resnet18(), torch.empty(32, 3, 224, 224)\n"
        "result = profile_model(model, images, target='h200')\n"
        "missing = sorted({layer.op for layer in result.layers if not layer.recorded})\n"
        "print(json.dumps([result.sentence(), missing, tuning.statistics().timed_runs]))"
    )
    sentence, missing, timed_runs = run_process(code, tmp_path / "own")
    assert sentence.startswith("Recorded on NVIDIA H200 with cuDNN ")
    assert "autotune makes the layers of ResNet" in sentence
    # What enable("autotune") leaves to PyTorch is not tuned.
    assert missing == ["activation_bwd", "activation_fwd", "matmul_fwd"]
    assert timed_runs == 0
