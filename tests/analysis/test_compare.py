"""Comparing two results."""

import copy
import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from helpers import LINE, only_layer
from store_helpers import fields_of, summed

from torch_cudnn_ext import _C, profile, tuning
from torch_cudnn_ext.analysis import Change, Differences, compare
from torch_cudnn_ext.analysis.result_files import parse_results, read_results
from torch_cudnn_ext.analysis.results import Profile

STORED = json.loads(Path(__file__).with_name("repeats.json").read_text())
REPEATS = 10
FIRST = STORED["problems"][0]["problem"]


def row(algorithm: str, ms: float, spread: float, samples: int, status: str = "ok") -> Any:
    return {
        "algorithm": algorithm,
        "status": status,
        "reason": "",
        "median_ms": ms,
        "spread_ms": spread,
        "samples": samples,
    }


def stored(number: int) -> dict[str, Any]:
    """One of the stored profiles."""
    layers = []
    for problem in STORED["problems"]:
        rows = [row(name, *times[number]) for name, times in problem["algorithms"].items()]
        layer = {key: problem[key] for key in ("problem", "names", "count")}
        rows.sort(key=lambda one: one["median_ms"])
        layers.append({**layer, "note": "", "device": "cpu", "rows": rows})
    versions = {"torch": "2.11.0", "cudnn": "91900"}
    return {"layers": layers, "settings": {"policy": ""}, "versions": versions}


def written(folder: Path, name: str, value: Any) -> Path:
    file = folder / name
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def compared(folder: Path, before: Any, after: Any, **more: Any) -> Differences:
    return compare(written(folder, "a.json", before), written(folder, "b.json", after), **more)


def scaled(layer: dict[str, Any], factor: float, algorithm: str | None = None) -> None:
    for one in layer["rows"]:
        if algorithm in (None, one["algorithm"]):
            one["median_ms"] *= factor
            one["spread_ms"] *= factor


def others(found: Differences) -> list[Change]:
    return [change for change in found.changes if change.verdict != "same"]


def test_repeats_of_one_profile_differ_in_nothing(tmp_path: Path) -> None:
    files = [written(tmp_path, f"{i}.json", stored(i)) for i in range(REPEATS)]
    for before, after in permutations(files, 2):
        found = compare(before, after)
        assert len(found.changes) == 33 and not others(found) and not found.is_worse


@pytest.mark.parametrize("number", range(REPEATS))
def test_seeded_changes_are_found_and_no_others(number: int, tmp_path: Path) -> None:
    before, after = stored(0), stored((number + 1) % REPEATS)
    layers = after["layers"]
    scaled(layers[1], 6.0)  # everything of one problem; on a busy CPU few samples differ by 2
    scaled(layers[0], 1 / 4, "aten:default")  # the best of another
    layers[2]["rows"][-1] |= {"status": "unsupported", "reason": "not any more", "median_ms": None}
    layers[3]["rows"].append(row("cpu:new", 50.0, 0.1, 20))
    gone = layers.pop(4)
    added = copy.deepcopy(gone) | {"problem": gone["problem"].replace("1000", "999")}
    layers.append(added)
    found = compared(tmp_path, before, after)
    whole = {(c.subject, c.verdict) for c in others(found) if not c.part}
    assert whole == {
        (layers[1]["problem"], "slower"),
        (FIRST, "faster"),
        (gone["problem"], "gone"),
        (added["problem"], "new"),
    }
    algorithms = {(c.subject, c.part, c.verdict) for c in others(found) if c.part}
    assert algorithms == {
        *((layers[1]["problem"], one["algorithm"], "slower") for one in layers[1]["rows"]),
        (FIRST, "aten:default", "faster"),
        (layers[2]["problem"], layers[2]["rows"][-1]["algorithm"], "gone"),
        (layers[3]["problem"], "cpu:new", "new"),
    }
    (reason,) = {c.reason for c in others(found) if c.part and c.verdict == "gone"}
    assert reason == "unsupported: not any more"
    assert found.is_worse


@pytest.mark.parametrize(("factor", "verdict"), [(1.03, "same"), (1.08, "slower"), (0.9, "faster")])
def test_quiet_times_are_told_apart_beyond_the_tolerance(
    factor: float, verdict: str, tmp_path: Path
) -> None:
    before, after = stored(0), stored(0)
    for one in (before, after):
        for layer in one["layers"]:
            layer["rows"] = [row("graph:eng1", 1.0, 0.001, 11)]
    scaled(after["layers"][2], factor)
    found = compared(tmp_path, before, after)
    assert {c.verdict for c in found.whole if c.subject == before["layers"][2]["problem"]} == {
        verdict
    }
    assert len(others(found)) == 2 * (verdict != "same")  # of the problem and of its algorithm
    assert found.is_worse == (verdict == "slower")
    assert not others(compared(tmp_path, before, after, tolerance=0.2))
    assert compared(tmp_path, before, after, tolerance=0).changes[0].verdict != "same"


def test_few_samples_need_a_factor_of_two(tmp_path: Path) -> None:
    before, after = stored(0), stored(0)
    for layer in after["layers"]:
        scaled(layer, 1.9)
    for one in (before, after):
        for layer in one["layers"]:
            layer["rows"] = [row("cpu:direct", r["median_ms"], 0.0, 2) for r in layer["rows"][:1]]
    assert not others(compared(tmp_path, before, after))
    for layer in after["layers"]:
        scaled(layer, 1.1)
    found = compared(tmp_path, before, after)
    assert {change.verdict for change in found.whole} == {"slower"}


def test_what_was_not_tried_is_not_gone(tmp_path: Path, measured: Profile) -> None:
    before, after = (json.loads(measured.to_json()) for _ in range(2))
    last = [one for one in after["layers"][0]["rows"] if one["status"] == "ok"][-1]
    last |= {"status": "excluded", "median_ms": None, "reason": "by max_workspace"}
    assert any(c.verdict == "gone" for c in compared(tmp_path, before, after).changes)
    last["reason"] = f"{_C.OUT_OF_TIME}: 2 s"
    assert not others(compared(tmp_path, before, after))


def test_a_problem_without_a_working_algorithm_is_gone(tmp_path: Path) -> None:
    after = stored(0)
    for one in after["layers"][0]["rows"]:
        one |= {"status": "failed", "median_ms": None}
    found = compared(tmp_path, stored(0), after)
    (change,) = (c for c in found.whole if c.verdict == "gone")
    assert (change.subject, change.reason, change.after) == (FIRST, "no algorithm works", "")
    assert found.is_worse


def test_a_profile_is_compared_with_a_profile_and_with_a_table(
    measured: Profile, tmp_path: Path
) -> None:
    assert not others(compare(measured, measured))
    tuning.clear()
    result = profile(LINE, device="cpu", time_budget_s=0.5)
    file = tmp_path / "table.jsonl"
    assert tuning.export_table(file) == 1
    found = compare(result, file)
    assert len(found.whole) == 1 and not others(found)
    assert {c.part for c in found.changes} > {"", "aten:default"}


def test_tables_of_two_devices_are_compared(tmp_path: Path) -> None:
    tuning.clear()
    profile(LINE, device="cpu", time_budget_s=0.5)
    file = tmp_path / "a.jsonl"
    tuning.export_table(file)
    row = fields_of(file.read_bytes()) | {"device": "another"}
    other = written(tmp_path, "b.jsonl", summed(row).decode())
    found = compare(file, other)
    assert found.facts["device"][1] == "another" and not others(found)
    both = written(tmp_path, "both.jsonl", file.read_text() + other.read_text())
    assert len(read_results(both).items) == 2 * len(read_results(file).items)


def test_the_best_of_tune_alone_are_compared(tmp_path: Path) -> None:
    best = {"best": [{"problem": LINE, **row("aten:default", 1.0, 0.001, 11)}]}
    slower = {"best": [{"problem": LINE, **row("cpu:direct", 2.0, 0.001, 11)}]}
    found = compared(tmp_path, best, slower)
    (change,) = found.changes
    assert (change.verdict, change.before, change.after) == ("slower", "aten:default", "cpu:direct")
    whole = compared(tmp_path, best, stored(0))
    assert {c.part for c in whole.changes} == {""}  # the others were not written


def ratio(name: str, value: float, **more: Any) -> dict[str, Any]:
    return {
        **more,
        "ours_ms": 1 / value,
        "pytorch_ms": 1.0,
        "ratio": value,
        "ratio_low": 0.99 * value,
        "ratio_high": 1.01 * value,
    } | ({"network": name, "batch": 4} if name else {})


SETTING = {"precision": "f32", "layout": "nchw", "mode": "train"}


def test_ratios_of_benches_are_compared_by_their_intervals(tmp_path: Path) -> None:
    before = {"comparisons": [ratio(name, 1.5, **SETTING) for name in ("a", "b", "c")]}
    after = {"comparisons": [ratio("a", 1.3, **SETTING), ratio("b", 1.9, **SETTING)]}
    after["comparisons"].append(ratio("c", 1.51, **SETTING))
    found = compared(tmp_path, before, after)
    assert [(c.subject, c.verdict) for c in found.changes] == [
        ("a 4 f32 nchw train", "slower"),
        ("b 4 f32 nchw train", "faster"),
        ("c 4 f32 nchw train", "same"),
    ]
    assert "geometric mean of 3 ratios to PyTorch" in found.sentence()


def test_every_kind_of_bench_is_read() -> None:
    layer = ratio("", 1.2, problem=LINE, names=["0"], count=2, device="cpu", algorithm="cpu:fft")
    module = ratio("", 1.2, module="ReLU on [3]", layout="nchw", dtype="f32", pass_name="fwd")
    both = {f"{a}_{b}": 1.1 for a in ("untuned", "tuned") for b in ("ms", "ratio", "low", "high")}
    compiled = {"network": "unet", "batch": None, **SETTING, **both}
    for record, keys in (
        (layer, [(LINE, "")]),
        (module, [("ReLU on [3] nchw f32 fwd", "")]),
        (compiled, [("unet f32 nchw train", "untuned"), ("unet f32 nchw train", "tuned")]),
    ):
        assert [*parse_results(json.dumps({"comparisons": [record]}), "x").items] == keys
    doors = ("pytorch", "ops", "policy", "torch_nn", "nn", "enabled")
    record = {"operator": "conv2d", "dtype": "f32", "passes": "fwd", "spread": 0.01}
    text = json.dumps({"overhead": [record | {f"{door}_us": 10.0 for door in doors}]})
    assert [part for _, part in parse_results(text, "x").items] == [
        "ops",
        "policy",
        "nn",
        "enabled",
    ]


def test_the_sentence_tells_the_whole(tmp_path: Path) -> None:
    before, after = stored(0), stored(0)
    for one in (before, after):
        for layer in one["layers"]:
            layer["rows"] = [row("graph:eng1", 1.0, 0.001, 11)]
    assert compared(tmp_path, before, after).sentence() == (
        f"b.json is neither faster nor slower than a.json ({calls(before)} -> {calls(before)} ms "
        "for 6 problems): 0 slower, 0 gone, 0 faster, 0 new, 6 same."
    )
    for layer in after["layers"]:
        scaled(layer, 2)
    assert (
        compared(tmp_path, before, after)
        .sentence()
        .startswith("b.json is 2.00x (1.98 to 2.02) slower than a.json (")
    )
    assert (
        compared(tmp_path, after, before)
        .sentence()
        .startswith("b.json is 2.00x (1.98 to 2.02) faster than a.json (")
    )
    after["layers"] = [layer | {"problem": LINE} for layer in after["layers"][:1]]
    nothing = compared(tmp_path, before, after).sentence()
    assert nothing.startswith("b.json has nothing in common with a.json: 0 slower, 6 gone")


def calls(profile: dict[str, Any]) -> int:
    return sum(layer["count"] for layer in profile["layers"])


def test_what_differs_in_versions_is_told(tmp_path: Path) -> None:
    after = stored(0)
    after["versions"]["cudnn"] = "92600"
    found = compared(tmp_path, stored(0), after)
    assert found.facts == {"cudnn": ("91900", "92600")}
    assert "cudnn: 91900 -> 92600" in found.to_markdown()


def test_formats_tell_the_same(tmp_path: Path) -> None:
    after = stored(1)
    scaled(after["layers"][0], 3)
    found = compared(tmp_path, stored(0), after)
    shown = [c for c in others(found)]
    assert str(found) == found.to_markdown() and repr(found).startswith("<Differences: b.json is")
    assert found.to_markdown().count("| slower |") == len(shown)
    assert found.to_markdown(show_all=True).count("| same |") == len(found.changes) - len(shown)
    assert found.to_csv().count("\n") == 1 + len(found.changes)
    data = json.loads(found.to_json())
    assert data["is_worse"] and len(data["changes"]) == len(found.changes)
    page = found.to_html()
    assert page.startswith("<!DOCTYPE html>") and page.count('class="w slower"') == len(shown)
    assert "srcdoc=" in found._repr_html_()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "which is empty, wanted a profile, a bench or tuning results"),
        ("nonsense", "line 1: got 'nonsense', wanted a row of the tuning store"),
        ("[]", "which holds another object, wanted a profile"),
        ("{}", "which holds another object, wanted a profile"),
        ('{"layers": [{}]}', "which lacks the field 'device', wanted a profile"),
        ('{"layers": [3]}', "wanted a profile"),
        ('{"comparisons": [{}]}', "which lacks the field 'problem', wanted a profile"),
        ('{"best": [{"problem": "x"}]}', "which lacks the field 'status', wanted a profile"),
    ],
)
def test_a_file_without_results_is_an_error(text: str, said: str, tmp_path: Path) -> None:
    good = written(tmp_path, "good.json", stored(0))
    with pytest.raises(ValueError, match="^after: ") as error:
        compare(good, written(tmp_path, "bad.json", text))
    assert said in str(error.value) and "bad.json" in str(error.value)


def test_wrong_arguments_are_errors(tmp_path: Path, measured: Profile) -> None:
    with pytest.raises(TypeError, match=r"^before: got 3 \(int\), wanted a path or a Profile"):
        compare(3, measured)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="^tolerance: got 'x'"):
        compare(measured, measured, tolerance="x")  # type: ignore[arg-type]
    for value in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="^tolerance: got .*, wanted 0 or more"):
            compare(measured, measured, tolerance=value)
    with pytest.raises(FileNotFoundError):
        compare(measured, tmp_path / "none.json")
    bench = written(tmp_path, "bench.json", {"comparisons": [ratio("a", 1.0, **SETTING)]})
    with pytest.raises(ValueError, match="^after: got .*which holds ratios to PyTorch, with"):
        compare(measured, bench)
    assert only_layer(measured).rows


def test_another_schema_is_refused() -> None:
    text = '{"schema": 2, "layers": []}'
    with pytest.raises(ValueError, match="'new.json' of schema 2, wanted schema 1"):
        parse_results(text, "new.json")
    assert parse_results('{"schema": 1, "layers": []}', "x").items == {}


def test_problems_of_several_devices_are_several() -> None:
    value = stored(0)
    one = len(parse_results(json.dumps(value), "one").items)
    value["layers"] += [{**layer, "device": "cuda:0"} for layer in value["layers"]]
    assert len(parse_results(json.dumps(value), "both").items) == 2 * one


def test_a_tolerance_is_told_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps(stored(0)))
    assert "by more than 0.5%" in compare(file, file, tolerance=0.005).to_markdown()
