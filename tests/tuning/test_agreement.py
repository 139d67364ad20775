"""Ranks that agree inside a step, as threads with one store."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import LINE
from store_helpers import entry, measurement
from torch import distributed as dist

import torch_cudnn_ext as tce
from torch_cudnn_ext import _C, knobs, ops, tuning
from torch_cudnn_ext.tuning import agreement, keeping
from torch_cudnn_ext.tuning.agreement import Agreement, alone, current_agreement

CONSTRAINTS = _C.constraints_text(LINE, _C.policy_for(LINE, ""))
ASKED = (LINE, _C.device_fingerprint("cpu"), CONSTRAINTS)
ROW = measurement("cpu:im2col", 0.5)


def ranking(*rows: dict[str, Any]) -> Any:
    """An entry for what is asked."""
    return entry(LINE, None, CONSTRAINTS, *(rows or (ROW,)))


def nothing() -> None:
    """What a rank finds whose store is empty."""


def test_one_measures_and_the_others_get_its_ranking() -> None:
    store = dist.HashStore()
    ranks = [Agreement(store, 600) for _ in range(4)]
    found: list[Any] = []
    together = threading.Barrier(4)

    def step(rank: Agreement) -> None:
        assert rank.find(ASKED, nothing) is None
        together.wait()
        claimed = rank.claim(ASKED)
        found.append(claimed if claimed is not None else rank.add(ranking()))

    try:
        threads = [threading.Thread(target=step, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for rank in ranks:
            rank.end()
    assert found.count(None) == 1 and found.count(([ROW], "", "")) == 3
    assert ranks[0].find(ASKED, nothing) == ([ROW], "", "")
    other = ASKED[0], "cpu/another/2 threads", ASKED[2]
    assert ranks[0].find(other, nothing) is None and ranks[3].claim(other) is None


def test_all_obey_what_was_published_first() -> None:
    store = dist.HashStore()
    with Agreement(store, 600) as first, Agreement(store, 0.01) as second:
        assert first.claim(ASKED) is None and first.claim(ASKED) is None
        late = second.claim(ASKED)
        assert late == "no ranking came from another rank within 0.01 s"
        assert first.add(ranking()) == late
        assert first.find(ASKED, nothing) == second.find(ASKED, nothing) == late
    with Agreement(dist.HashStore()) as rank:  # a ranking of a store, of another device
        known: Any = ([ROW], "a device", "no constraints")
        assert rank.find(ASKED, lambda: known) == known
        assert rank.add(ranking(measurement())) == known


@pytest.mark.parametrize(
    "text",
    ["", "[", "1", '"heuristic"', "[[[", '{"measurements": []}', '{"measurements": [{}]}']
    + [agreement._ranking_text([{**ROW, **change}], "", "") for change in (  # type: ignore[typeddict-item]
        {"median_ms": -1.0}, {"algorithm": "nothing"}, {"status": "new"},
    )],
)  # fmt: skip
def test_nonsense_is_the_same_on_all_ranks(text: str) -> None:
    store = dist.HashStore()
    with Agreement(store) as one, Agreement(store) as other:
        one._publish(ASKED, text or "{}")
        found = one.find(ASKED, nothing)
        assert isinstance(found, str) and found.startswith("what another rank published is no rank")
        assert found == other.find(ASKED, nothing) == other.add(ranking())


def test_agreements_nest_and_end() -> None:
    store = dist.HashStore()
    assert current_agreement() is None
    outer = tuning.agree(store)
    with tuning.agree(store, timeout_s=5) as inner:
        assert current_agreement() is inner
        with alone(), alone():
            assert current_agreement() is None
        assert current_agreement() is inner
        outer.end()
        assert current_agreement() is inner
        inner.end()
    assert current_agreement() is None
    with pytest.raises(ValueError, match="end: the agreement was ended before"):
        outer.end()


def test_a_forked_process_does_without() -> None:
    with tuning.agree(dist.HashStore()):
        child = os.fork()
        if child == 0:
            os._exit(int(current_agreement() is not None))
        assert os.waitpid(child, 0)[1] == 0


def test_bad_arguments() -> None:
    for seconds in (0, -1, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ValueError, match="timeout_s: got .*, wanted more than 0 seconds"):
            tuning.agree(dist.HashStore(), timeout_s=seconds)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"store: got 3 \(int\), wanted a store of torch.distr"):
        tuning.agree(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="store: got None without a default process group"):
        tuning.agree()
    assert current_agreement() is None


def test_another_version_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = dist.HashStore()
    with tuning.agree(store):
        monkeypatch.setattr(agreement, "software", lambda: "torch_cudnn_ext 99")
        with pytest.raises(RuntimeError, match="agree: got torch_cudnn_ext 99 here and torch_cudn"):
            tuning.agree(store)
    assert current_agreement() is None


def test_a_store_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False)
    with tuning.agree(client):
        del server
        with pytest.raises(RuntimeError, match="agree: the store of torch.distributed failed"):
            ops.softmax(torch.zeros(2, 5), 1, policy="autotune")


def test_a_call_obeys_and_keeps_what_others_measured(tmp_path: Path) -> None:
    knobs.store = tmp_path / "store"
    store = dist.HashStore()
    with Agreement(store) as other:
        assert other.claim(ASKED) is None
        assert other.add(ranking()) is None
    before = tuning.statistics()
    with tuning.agree(store):
        chosen = _C.decide(LINE, "cpu", "autotune")
    assert (chosen["algorithm"], chosen["why"]) == ("cpu:im2col", "cached")
    now = tuning.statistics()
    assert (now.measured - before.measured, now.kept - before.kept) == (0, 1)
    tuning.reset()
    keeping._store = None
    chosen = _C.decide(LINE, "cpu", "autotune")
    assert (chosen["algorithm"], chosen["why"]) == ("cpu:im2col", "cached")


@pytest.mark.filterwarnings("ignore:the search budget", "ignore:when")
def test_only_what_will_be_measured_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[str] = []
    monkeypatch.setattr(Agreement, "claim", lambda _, asked: claims.append(asked[0]))
    line = "softmax_fwd x=f32[2,6,1]:nchw log=false"

    def claimed(policy: str = "") -> bool:
        """Whether a call that nothing is known of claims its problem."""
        tuning.reset()
        claims.clear()
        with tuning.agree(dist.HashStore()):
            _C.decide(line, "cpu", policy)
        return claims == [line]

    assert not claimed() and claimed("autotune") and not claimed("tuned")
    knobs.benchmark = True
    assert claimed()
    knobs.benchmark, knobs.softmax_fwd_algo = None, "tuned"
    assert not claimed()
    knobs.softmax_fwd_algo = "autotune"
    assert claimed()
    knobs.on_miss = "heuristic"
    assert not claimed()
    knobs.on_miss, knobs.search_budget_s = None, 0.0
    assert claimed()  # so that the ranks run the heuristic's algorithm alike
    knobs.search_budget_s = None
    _C.set_model_tracing(True)
    try:
        assert not claimed()
    finally:
        _C.set_model_tracing(False)
    claims.clear()
    with tuning.agree(dist.HashStore()):
        tuning.tune_model(torch.nn.Softmax(1), torch.randn(2, 7), train=False)
    assert not claims
    knobs.softmax_fwd_algo = None
    with tce.when("softmax_fwd", use="autotune"):
        assert claimed()
