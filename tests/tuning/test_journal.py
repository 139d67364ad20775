"""Journals: resuming, damaged files, and several processes with one journal."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import LINE, OTHER

from torch_cudnn_ext import _C, tuning
from torch_cudnn_ext._workload.problems import Layer
from torch_cudnn_ext.analysis.profile import measure_layers
from torch_cudnn_ext.analysis.settings import make_settings
from torch_cudnn_ext.bench.layers import Comparison
from torch_cudnn_ext.tuning.journal import Journal, Work
from torch_cudnn_ext.tuning.store_upkeep import merge


def test_finished_problems_are_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    settings = make_settings("cpu")
    first = list(measure_layers([Layer(LINE)], settings, Journal(path)))
    with path.open("a") as file:
        file.write('{"sum": "torn in the mid')
    journal = Journal(path)
    again = list(measure_layers([Layer(LINE, ("a",)), Layer(OTHER)], settings, journal))
    assert again[0].rows == first[0].rows
    assert again[0].names == ["a"]
    assert len(path.read_text().splitlines()) == 3
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


def work(name: str) -> Work:
    return "cpu/a/1 thread", LINE, name


def found(journal: Journal, *names: str) -> list[dict[str, Any] | None]:
    return [journal.get(work(name), dict) for name in names]


@pytest.mark.parametrize(
    "line", ["nonsense", '{"key": "a", "record": {}}', "[1]", '{"sum": "00000000", "format": 1}']
)
def test_a_foreign_line_is_refused_and_the_file_left(line: str, tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add(work("a"), {"x": 1})
    for text in (line, f"{line}\n{path.read_text()}", line + '\n{"sum": "12'):
        path.write_text(text)
        with pytest.raises(ValueError, match="finished.jsonl, line 1: "):
            Journal(path)
        assert path.read_text() == text


def test_a_record_with_other_fields_is_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    settings = make_settings("cpu")
    (first,) = measure_layers([Layer(LINE)], settings, Journal(path))
    row = json.loads(path.read_text())
    about = row["device"], row["problem"], row["constraints"]
    path.write_text("")
    Journal(path).add(about, row["result"] | {"of_another_version": 1})
    (again,) = measure_layers([Layer(LINE)], settings, Journal(path))
    assert again.rows != first.rows
    (third,) = measure_layers([Layer(LINE)], settings, Journal(path))
    assert third.rows == again.rows
    Journal(path).add(work("bench"), {"problem": LINE})
    assert Journal(path).get(work("bench"), Comparison) is None


def test_a_record_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add(work("a"), {"rows": [{"median_ms": 0.25}], "error": float("nan")})
    whole = path.read_text()
    assert found(Journal(path), "a") != [None]
    for edited in (whole.replace("0.25", '"abc"'), whole.replace('"a"', '"b"')):
        path.write_text(edited)
        with pytest.raises(ValueError, match="line 1: the line was changed, its checksum differs"):
            Journal(path)


def test_a_line_cut_off_at_any_byte_is_skipped_and_the_next_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    Journal(path).add(work("a"), {"x": "ü"})
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        journal = Journal(path)
        assert path.read_bytes() == whole[:size]
        assert found(journal, "a") == [None if size < len(whole) - 1 else {"x": "ü"}]
        journal.add(work("b"), {"y": size})
        kept = [None if size < len(whole) - 1 else {"x": "ü"}, {"y": size}]
        assert found(Journal(path), "a", "b") == kept


def test_processes_that_share_a_journal_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "finished.jsonl"
    first = Journal(path)
    first.add(work("one"), {"a": 1})
    with path.open("a") as file:
        file.write('{"sum": "tw')  # of one that was killed
    second = Journal(path)
    first.add(work("three"), {"a": 3})
    second.add(work("four"), {"a": 4})
    with path.open("a") as file:
        file.write('{"sum": "01234567", "fo')
    first.add(work("six"), {"a": 6})
    whole = found(Journal(path), "one", "three", "four", "six")
    assert whole == [{"a": n} for n in (1, 3, 4, 6)]


def test_rankings_and_results_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "both.jsonl"
    Journal(path).add(work("a"), {"x": 1})
    tuning.clear()
    tuning.tune(LINE, device="cpu", time_budget_s=0.05)
    assert tuning.merge_table(path) == 1
    Journal(path).add(work("b"), {"x": 2})
    assert found(Journal(path), "a", "b") == [{"x": 1}, {"x": 2}]
    assert tuning.import_table(path) == tuning.merge_table(path) == 1
    assert merge(tmp_path / "store", [path]) == (1, 0, [])


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
    assert settings.work("profile", LINE) == dataclasses.replace(settings).work("profile", LINE)
    assert dataclasses.replace(settings, **change).work("profile", LINE) != settings.work(
        "profile", LINE
    )


def test_another_device_is_another_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings("cpu")
    before = settings.work("profile", LINE)
    monkeypatch.setattr(_C, "device_fingerprint", lambda device: "another CPU")
    assert settings.work("profile", LINE) != before
