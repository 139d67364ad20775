"""What tuning measures, keeps and reports."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import LINE, OTHER
from torch import nn

from torch_cudnn_ext import _C, Policy, profile, tuning
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.tuning.store_rows import row_line


def test_a_problem_is_tuned_once() -> None:
    told = []

    class Told:
        def problem(self, done: int, total: int, text: str) -> None:
            told.append((total, text))

        def algorithm(self, done: int, total: int, text: str) -> None: ...

    lines = [LINE, LINE.replace("pad=1", "pad=1,1"), OTHER, LINE]
    best = tuning.tune(lines, device="cpu", time_budget_s=0.1, progress=Told())
    assert told == [(2, line) for line in best] and [*best] == [LINE, OTHER]
    with pytest.raises(TypeError, match=r"problems: got 5 \(int\), wanted problem lines"):
        tuning.tune(5, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_samples: got 0"):
        make_settings("cpu", min_samples=0)
    with pytest.raises(ValueError, match="min_samples: got 'a', wanted at least 1"):
        profile(LINE, min_samples="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"problem: got \[\] \(list\), wanted a problem line"):
        profile([])  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["fwd=cpu:fft", "heuristic", Policy("cpu:taps", family="pool")])
def test_tuning_takes_no_choice(policy: Any) -> None:
    with pytest.raises(ValueError, match="policy: got the selection .*, wanted constraints alone"):
        tuning.tune(LINE, device="cpu", policy=policy)


def test_what_tunes_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="model: Hardsigmoid called no operator of this package"):
        tuning.tune_model(nn.Hardsigmoid(), torch.ones(2), train=False)
    with pytest.raises(ValueError, match="knob_search: got 'no', wanted True or False"):
        tuning.tune(LINE, device="cpu", knob_search="no")  # type: ignore[arg-type]


def test_a_kept_ranking_of_which_nothing_runs_is_measured_anew(tmp_path: Path) -> None:
    tuning.tune(LINE, policy="backends=cpu", device="cpu", time_budget_s=0.1)
    (entry,) = tuning.entries()
    path = tmp_path / "choices.jsonl"
    for i, row in enumerate(entry["measurements"]):
        row |= {"algorithm": f"cpu:of_another_version{i}", "backend": "cpu"}
    path.write_bytes(row_line(entry))
    tuning.clear()
    assert tuning.import_table(path) == 1
    choice = _C.decide(LINE, "cpu", "autotune;backends=cpu")
    assert choice["why"] == "tuned"
    (again,) = tuning.entries()
    names = {row["algorithm"] for row in again["measurements"] if row["status"] == "ok"}
    assert choice["algorithm"] in names
    assert not any("another_version" in row["algorithm"] for row in again["measurements"])


def test_a_problem_that_no_memory_holds_fails_alone(device: str) -> None:
    huge = "softmax_fwd x=f32[15000000,15000000,1]:nchw"
    small = "softmax_fwd x=f32[15,15,1]:nchw log=false"
    with pytest.raises(RuntimeError, match="no algorithm works .*: out of memory: "):
        tuning.tune([huge, small], device=device, time_budget_s=0.1)
    assert [entry["problem"] for entry in tuning.entries()] == [small]
    with pytest.warns(UserWarning, match="no memory to tune in"):
        choice = _C.decide(huge, device, "autotune")
    assert choice["why"].startswith("heuristic: no memory")


def test_what_a_budget_cut_is_not_tuned_again_within_it() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    tuning.reset()
    found = [
        len(tuning.tune_model(model, x, train=False, time_budget_s=budget))
        for budget in (1e-9, 1e-9, 0.0, 0.0)
    ]
    assert found == [1, 0, 1, 0]


def test_what_a_time_budget_leaves_out_is_told() -> None:
    line = "conv_fwd x=f32[8,32,64,64]:nchw w=f32[32,32,3,3]:nchw pad=1"
    text = profile(line, device="cpu", time_budget_s=1e-6).to_markdown()
    told = re.findall(r"(\d+)(?: algorithms?)? not tried, as the time budget was used up", text)
    assert len(told) == 2 and told[0] == told[1] and int(told[0]) >= 3


@pytest.mark.parametrize("policy", ["autotune", "benchmark"])
def test_a_cap_does_not_tune_once_more(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    choose = _C.decide

    def spy(problem: str, device: str, policy: str = "") -> Any:
        seen.append(policy)
        return choose(problem, device, policy)

    monkeypatch.setattr(_C, "decide", spy)
    capped = profile(LINE, device="cpu", policy=f"{policy};max_workspace=0")
    assert not any(policy in word for word in seen)
    (layer,) = capped.layers
    best = layer.best(0)
    assert layer.current == (best["algorithm"] if best else None)
    assert bool(layer.current_error) == (best is None)
