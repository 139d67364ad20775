"""Journals: resuming, damaged files, and several processes with one journal."""

import dataclasses
import fcntl
import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from helpers import LINE, OTHER

from torch_cudnn_ext import _C
from torch_cudnn_ext._workload.journal import Journal
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.profile import measure_layers
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.bench.layers import Comparison


def test_finished_problems_are_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    settings = make_settings("cpu")
    first = list(measure_layers([Layer(LINE)], settings, Journal(path)))
    with path.open("a") as file:
        file.write('{"key": "torn in the mid')
    journal = Journal(path)
    again = list(measure_layers([Layer(LINE, ("a",)), Layer(OTHER)], settings, journal))
    assert again[0].rows == first[0].rows
    assert again[0].names == ["a"]
    assert len(path.read_text().splitlines()) == 2
    (third,) = measure_layers([Layer(OTHER)], settings, Journal(path))
    assert third.rows == again[1].rows


def test_another_time_budget_is_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    for budget_s in (0.0001, 0.5, 0.5):
        settings = make_settings("cpu", time_budget_s=budget_s)
        list(measure_layers([Layer(LINE)], settings, Journal(path)))
    assert len(path.read_text().splitlines()) == 2


def test_another_policy_is_another_measurement(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    list(measure_layers([Layer(LINE)], make_settings("cpu"), Journal(path)))
    list(measure_layers([Layer(LINE)], make_settings("cpu", policy="backends=cpu"), Journal(path)))
    assert len(path.read_text().splitlines()) == 2


def test_a_line_of_a_journal_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    list(measure_layers([Layer(LINE)], make_settings("cpu", time_budget_s=0.05), Journal(path)))
    path.write_text(f"\n{path.read_text()}\n")
    kept = path.read_text()
    list(measure_layers([Layer(LINE)], make_settings("cpu", time_budget_s=0.05), Journal(path)))
    assert path.read_text() == kept


def test_a_damaged_line_before_the_last_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text('nonsense\n{"key": "a", "record": {}}\n')
    with pytest.raises(ValueError, match="line 1: got 'nonsense'"):
        Journal(path)


def test_a_record_with_other_fields_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    settings = make_settings("cpu")
    (first,) = measure_layers([Layer(LINE)], settings, Journal(path))
    entry = json.loads(path.read_text())
    path.write_text("")
    Journal(path).add(entry["key"], entry["record"] | {"of_another_version": 1})
    (again,) = measure_layers([Layer(LINE)], settings, Journal(path))
    assert again.rows != first.rows
    (third,) = measure_layers([Layer(LINE)], settings, Journal(path))
    assert third.rows == again.rows
    journal = Journal(tmp_path / "bench.jsonl")
    journal.add("a", {"problem": LINE})
    assert journal.get("a", Comparison) is None


def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    path.write_text('{"key": "a", "record": [1]}\n')
    with pytest.raises(ValueError, match=r"line 1: got .*\(its record is \[1\]\)"):
        Journal(path)


def test_a_record_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("a", {"rows": [{"median_ms": 0.25}], "error": float("nan")})
    whole = path.read_text()
    assert Journal(path).get("a", dict) is not None
    path.write_text(whole.replace("0.25", '"abc"'))
    with pytest.raises(ValueError, match="line 1: got .*it was changed after it was written"):
        Journal(path)
    path.write_text(whole.replace('"key": "a"', '"key": "b"'))
    with pytest.raises(ValueError, match="line 1: got .*it was changed after it was written"):
        Journal(path)
    entry = json.loads(whole)
    del entry["sum"]
    path.write_text(json.dumps(entry) + "\n")  # as earlier versions wrote it
    assert Journal(path).get("a", dict) is None


def test_a_line_cut_off_within_a_character_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("a", {"x": 1})
    whole = path.read_bytes()
    for torn in (b'{"key": "\xc3', b'{"k', b'{"key": "b", "reco'):
        path.write_bytes(whole + torn)
        assert Journal(path).get("a", dict) == {"x": 1}
        assert path.read_bytes() == whole


def test_a_torn_journal_is_whole_or_as_before(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("one", {"a": 1})
    path.write_text(text := path.read_text() + '{"key": "tw')

    lines = text.splitlines(keepends=True)
    path.write_text("nonsense\n" + text)
    with pytest.raises(ValueError, match="line 1: got 'nonsense'"):
        Journal(path)
    assert path.read_text() == "nonsense\n" + text
    path.write_text(text)
    Journal(path).add("two", {"b": 2})
    assert path.read_text().startswith(lines[0] + '{"key": "two", ')
    assert [file.name for file in tmp_path.iterdir()] == ["finished.jsonl"]


@pytest.mark.parametrize("text", ['{"key": "mine"}', '{"key": "a", "owner": {"b": [1]}}'])
def test_a_foreign_file_of_one_line_is_no_torn_journal(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    wanted = "wanted a finished problem as JSON .it has no 'record'."
    with pytest.raises(ValueError, match=f"line 1: got .*{wanted}"):
        Journal(path)
    assert path.read_text() == text


def test_a_journal_without_its_last_newline_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add("one", {"a": 1})
    whole = path.read_text()
    path.write_text(whole.rstrip("\n"))
    journal = Journal(path)
    assert journal.get("one", dict) == {"a": 1}
    journal.add("two", {"a": 2})
    assert path.read_text().startswith(whole)
    path.write_text(whole.rstrip("\n").replace('"a": 1', '"a": 3'))
    with pytest.raises(ValueError, match="changed after it was written"):
        Journal(path)


def test_processes_that_share_a_journal_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    first = Journal(path)
    first.add("one", {"a": 1})
    with path.open("a") as file:
        file.write('{"key": "tw')  # of one that was killed
    second = Journal(path)
    first.add("three", {"a": 3})
    second.add("four", {"a": 4})
    with path.open("a") as file:
        file.write('{"key": "fi')
    first.add("six", {"a": 6})
    whole = Journal(path)
    assert [whole.get(key, dict) for key in ("one", "three", "four", "six")] == [
        {"a": n} for n in (1, 3, 4, 6)
    ]
    assert len(path.read_text().splitlines()) == 4


def test_a_journal_waits_for_who_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    journal = Journal(path)
    with path.open("a") as file, ThreadPoolExecutor() as threads:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = [threads.submit(Journal, path), threads.submit(journal.add, "one", {"a": 1})]
        assert not wait(waiting, timeout=0.3).done
        fcntl.flock(file, fcntl.LOCK_UN)
        assert not wait(waiting, timeout=60).not_done
    assert Journal(path).get("one", dict) == {"a": 1}


def test_a_journal_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        Journal(tmp_path / "missing" / "finished.jsonl")


def test_an_interruption_keeps_what_was_finished(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"

    class Stop:
        def problem(self, done: int, total: int, text: str) -> None:
            self.done = done

        def algorithm(self, done: int, total: int, text: str) -> None:
            if self.done == 1:
                raise KeyboardInterrupt

    finished = []
    with pytest.raises(KeyboardInterrupt):
        for layer in measure_layers(
            [Layer(LINE), Layer(OTHER)], make_settings("cpu"), Journal(path), Stop()
        ):
            finished.append(layer)
    assert [layer.problem for layer in finished] == [LINE]
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [{"knob_search": True}, {"min_samples": 3}, {"time_budget_s": 3.0}, {"target": "h200"}],
)
def test_each_setting_makes_another_measurement(change: dict[str, Any]) -> None:
    settings = make_settings("cpu", min_samples=2, time_budget_s=2.0)
    assert settings.key(LINE) == dataclasses.replace(settings).key(LINE)
    assert dataclasses.replace(settings, **change).key(LINE) != settings.key(LINE)


def test_another_device_is_another_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings("cpu")
    before = settings.key(LINE)
    monkeypatch.setattr(_C, "device_fingerprint", lambda device: "another CPU")
    assert settings.key(LINE) != before
