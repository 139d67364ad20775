"""The layout of each layer: which is chosen, and what the network then computes."""

from __future__ import annotations

import itertools
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimize_helpers import BUDGET, Block, trained_like
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize import making, optimize, search
from torch_cudnn_ext._optimize.layouts import LayerTimes, cheapest_layouts, conversions, may_gain
from torch_cudnn_ext._optimize.recipe import Way

LAYOUTS = "contiguous", "channels_last"


@st.composite
def graphs(draw: st.DrawFn) -> tuple[fx.GraphModule, dict[str, LayerTimes]]:
    """Layers and sums that read what came before, and times of most layers."""
    graph: Any = fx.Graph()
    made, times = [graph.placeholder("x")], {}
    modules: dict[str, nn.Module] = {}
    for number in range(draw(st.integers(1, 5))):
        name = f"layer{draw(st.integers(0, number))}"  # some are called twice
        first, second = (draw(st.sampled_from(made)) for _ in range(2))
        if draw(st.booleans()):
            modules[name] = nn.Identity()
            made.append(graph.call_module(name, (first,)))
            if draw(st.integers(0, 3)):
                times[name] = LayerTimes(*(draw(st.integers(0, 9)) for _ in range(2)))
        else:
            made.append(graph.call_function(operator.add, (first, second)))
    graph.output(made[-1])
    network = fx.GraphModule(modules, graph)
    shapes: Any = ShapeProp
    shapes(network).propagate(torch.zeros(1, 2, 2, 2))
    return network, times


def vertex(node: fx.Node, times: dict[str, LayerTimes]) -> str:
    return str(node.target) if str(node.target) in times else node.name


def cost(
    network: fx.GraphModule, times: dict[str, LayerTimes], of: dict[str, str], each: float
) -> float:
    """What the layers take, and the conversions of tensors that some want in the other layout."""
    total = sum(getattr(time, of[name]) for name, time in times.items())
    for node in network.graph.nodes:
        users = [user for user in node.users if user.op != "output"]
        here = of.get(vertex(node, times))
        total += each * any(of[vertex(user, times)] != here for user in users)
    return total


@settings(deadline=None)  # the first cut imports networkx
@given(graphs(), st.sampled_from(LAYOUTS), st.integers(0, 4))
def test_no_other_layouts_of_layers_take_less_time(
    made: tuple[fx.GraphModule, dict[str, LayerTimes]], layout: str, each: int
) -> None:
    network, times = made
    if not times:
        return
    found = cheapest_layouts(network, layout, times, dict.fromkeys(conversions(network), each))
    nodes = [node for node in network.graph.nodes if node.op != "output"]
    names = [*dict.fromkeys(vertex(n, times) for n in nodes if n.op != "placeholder")]
    costs: dict[tuple[str, ...], float] = {}
    for chosen in itertools.product(LAYOUTS, repeat=len(names)):
        of = {"x": layout} | dict(zip(names, chosen, strict=True))
        key = tuple(of[name] for name in times)
        costs[key] = min(costs.get(key, float("inf")), cost(network, times, of, each))
    assert found.keys() == times.keys()
    assert costs[tuple(found.values())] == min(costs.values())


def test_layers_with_one_preference_gain_nothing() -> None:
    alike = {"a": LayerTimes(1.0, 2.0), "b": LayerTimes(3.0, 3.5)}
    assert not may_gain(alike)
    assert not may_gain({})
    assert may_gain(alike | {"c": LayerTimes(2.0, 1.5)})
    assert not may_gain(alike | {"c": LayerTimes(2.0, 1.99)})


class Net(nn.Module):
    """Two blocks, one of them called twice, with a pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block("iadd"), Block("swapped")
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.pool(self.second(self.first(x)))
        result: Tensor = self.head(self.second(y).mean((2, 3)))
        return result


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> dict[str, LayerTimes]:
    """Makes every second layer faster in the other layout, and that network the one that stays."""
    found: dict[str, LayerTimes] = {}
    layer_times = search.Search.layer_times

    def times(self: search.Search, *networks: Any) -> dict[str, LayerTimes]:
        names = [*layer_times(self, *networks)]
        found.update({name: LayerTimes(1 + i % 2, 2 - i % 2) for i, name in enumerate(names)})
        return found

    monkeypatch.setattr(search.Search, "layer_times", times)
    monkeypatch.setattr(
        search.Search, "conversion_ms", lambda *given: dict.fromkeys(given[2], 0.01)
    )
    monkeypatch.setattr(optimize, "_fastest_of", lambda networks, args: networks[-1])
    return found


def check(fast: Any, model: nn.Module, x: Tensor) -> None:
    with torch.no_grad():
        wanted = model(x)
    ways = [Way.optimized, Way.optimized_graph] + [Way.mixed] * (not fast.report.torch_compile)
    for way in ways:
        torch.testing.assert_close(fast.run(way, x), wanted, rtol=1e-4, atol=1e-4)


def test_each_layer_computes_in_its_layout(
    mixed: dict[str, LayerTimes], device: str, tmp_path: Path
) -> None:
    model = trained_like(Net()).to(device)
    x = torch.randn(2, 4, 8, 8, device=device)
    before = {name: t.stride() for name, t in model.state_dict().items()}
    fast = tce.optimize(model, x, layout="search", **BUDGET)
    layouts = fast.report.layouts
    assert mixed and layouts.keys() == mixed.keys() and {*layouts.values()} == {*LAYOUTS}
    others = [name for name, layout in layouts.items() if layout != fast.report.layout]
    assert fast.report.facts()[_heading(fast, "other layout")] == ", ".join(others)
    check(fast, model, x)
    check(fast, model, x.to(memory_format=torch.channels_last))
    check(fast, model, torch.randn(3, 4, 6, 10, device=device))
    # Each layer met its problem in the layout that it was given, and no other.
    met = search.Search((x,), 0.0, False, 1, None)
    met.note(fast, fast._untuned)  # type: ignore[attr-defined]
    for name, problems in met._calls_of_layers(fast).items():  # type: ignore[arg-type]
        if name in layouts:
            word = {"contiguous": ":nchw", "channels_last": ":nhwc"}[layouts[name]]
            assert all(problem.split()[1].endswith(word) for problem in problems), name
    assert before == {name: t.stride() for name, t in model.state_dict().items()}
    fast.save(tmp_path / "net.tce")
    again = tce.load_optimized(tmp_path / "net.tce", model)
    assert again.report.layouts == layouts
    check(again, model, x)
    again.save(tmp_path / "again.tce")
    assert (tmp_path / "again.tce").read_text() == (tmp_path / "net.tce").read_text()


def _heading(fast: tce.OptimizedModel, fact: str) -> str:
    return next(heading for heading in fast.report.facts() if heading.endswith(fact))


@pytest.mark.usefixtures("dynamo_alone", "mixed")
def test_inductor_compiles_layers_of_both_layouts(device: str) -> None:
    model, x = trained_like(Net()).to(device), torch.randn(2, 4, 8, 8, device=device)
    options = BUDGET | {"torch_compile": True}
    fast = tce.optimize(model, x, layout="search", **options)
    assert fast.report.layouts and not fast.report.torch_compile
    check(fast, model, x)


def test_a_network_that_does_not_run_is_left_out(
    mixed: dict[str, LayerTimes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(network: fx.GraphModule, layout: str, layouts: dict[str, str]) -> None:
        if layouts:
            raise RuntimeError("does not run")

    monkeypatch.setattr(making, "lay_out", fails)
    model, x = trained_like(Net()), torch.randn(2, 4, 8, 8)
    fast = tce.optimize(model, x, layout="search", **BUDGET)
    assert mixed and not fast.report.layouts
    check(fast, model, x)


def test_a_conversion_takes_the_time_of_pytorchs_kernel(device: str) -> None:
    model, x = trained_like(Block("iadd")).to(device), torch.randn(2, 4, 8, 8, device=device)
    fast = tce.optimize(model, x, layout="contiguous", **BUDGET)
    line = "transform_fwd x=f32[2,4,64]:nchw y=:nhwc"
    timed = search.Search((x,), 0.2, False, 1, None)
    first = timed.conversion_ms(fast, [line])
    assert 0 < first[line] < 1000
    before = tce.tuning.statistics().timed_runs
    assert timed.conversion_ms(fast, [line]) == first
    assert tce.tuning.statistics().timed_runs == before
    assert line not in fast._recipe.problems
