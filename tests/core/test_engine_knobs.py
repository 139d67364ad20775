"""The names of engine knobs: those of cuDNN's header, in policies and below tables."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from torch_cudnn_ext import _C, Policy, knobs, ops
from torch_cudnn_ext._engine_knobs import ENGINE_KNOBS, knob_legend, with_numbers
from torch_cudnn_ext.analysis.html import tables_markdown
from torch_cudnn_ext.analysis.tables import ALGORITHM, Table, print_tables
from torch_cudnn_ext.policy import as_policy, text_for_all

NAMED, NUMBERED = "graph:eng67/tile_size=1/tilek=0", "graph:eng67/k2=1/k13=0"


def _header() -> Path | None:
    """CuDNN's header of the graph API, if the machine has it."""
    spec = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
    folders = [
        Path(place) / "include" for place in (spec and spec.submodule_search_locations) or ()
    ]
    for folder in (*folders, Path("/usr/include"), Path("/usr/local/cuda/include")):
        if (file := folder / "cudnn_graph_v9.h").exists() or (
            file := folder / "cudnn_graph.h"
        ).exists():
            return file
    return None


def test_the_names_are_those_of_the_header() -> None:
    file = _header()
    if file is None:
        pytest.skip("no header of cuDNN")
    found = re.findall(r"CUDNN_KNOB_TYPE_(\w+)[^=\n]*= *(\d+)", file.read_text())
    assert len(found) > 40
    named = {name.lower(): int(number) for name, number in found if name != "COUNTS"}
    assert named == {name: ENGINE_KNOBS.index(name) for name in named}


def test_every_reader_of_policies_takes_names() -> None:
    wanted = Policy(fwd=NUMBERED)
    assert str(wanted) == f"fwd={NUMBERED}"
    assert Policy(fwd=NAMED) == Policy.parse(f"fwd={NAMED}") == as_policy(f"fwd={NAMED}") == wanted
    assert as_policy({"fwd": NAMED}) == wanted
    assert text_for_all(f"fwd={NAMED}") == f"conv_fwd={NUMBERED}"
    with knobs.flags(conv_fwd_algo=NAMED):
        assert NUMBERED in _C.resolved_policy("", "conv")
    for wrong in ("graph:eng67/tile=1", "legacy:fft/tile_size=1"):
        with pytest.raises(ValueError, match="tile"):
            Policy(fwd=wrong)
    with pytest.raises(ValueError, match="k2"):
        Policy(fwd="graph:eng67/k2=1/tile_size=1")


def test_an_operator_takes_names() -> None:
    x, w = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3)
    policy = f"{NAMED};on_unsupported=fallback"
    wanted = torch.nn.functional.conv2d(x, w)
    torch.testing.assert_close(ops.conv2d(x, w, policy=policy), wanted)
    compiled = torch.compile(
        lambda x: ops.conv2d(x, w, policy=policy), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(x), wanted)


def test_tables_name_the_knobs_of_their_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["graph:eng70/k18=0/k2=4"], ["graph:eng4"], ["legacy:fft"], ["graph:eng1/k999=1"]]
    table = Table("A table", [ALGORITHM], rows, "a footer")
    legend = "engine knobs: k2 is tile_size, k18 is idx_mode"
    assert table.notes() == ["a footer", legend] and legend in tables_markdown([table])
    print_tables([table])
    assert f"\na footer\n{legend}\n" in capsys.readouterr().out
    assert Table("Another", [ALGORITHM], rows[1:3]).notes() == []


def test_other_texts_stay_as_they_are() -> None:
    assert knob_legend(["legacy:fft/k2=1", "graph:eng4"]) == ""
    for text in ("", "fwd=legacy:fft/math=fma", "graph:eng7/what=1", "graph:eng7;max_workspace=1B"):
        assert with_numbers(text) == text
    both = f"fwd={NAMED};bwd_data={NAMED};prefer=time"
    assert with_numbers(both) == both.replace(NAMED, NUMBERED)
