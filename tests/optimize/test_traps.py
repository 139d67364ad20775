"""Networks whose traces, or copies, may compute something else than the network."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_cudnn_ext as tce
from torch_cudnn_ext._optimize.forms import UnknownForm, content_of, form_of
from torch_cudnn_ext._optimize.numerics import largest_error
from torch_cudnn_ext._optimize.recipe import Way

Forward = Callable[..., Any]


def conv() -> nn.Conv2d:
    return nn.Conv2d(3, 3, 3, padding=1)


def net(forward: Forward, **attributes: Any) -> Any:
    """A network with a convolution ``c`` and other attributes."""
    made: Any = type("Net", (nn.Module,), {"forward": forward})()
    for name, value in ({"c": conv()} | attributes).items():
        setattr(made, name, value)
    return made.eval()


def images(*sizes: int) -> Tensor:
    return torch.randn(*(sizes or (2, 3, 8, 8)))


def optimized(model: nn.Module, *args: Any, **options: Any) -> tce.OptimizedModel:
    return tce.optimize(model, args, time_budget_s=0.02, torch_compile=False, **options)


def check(fast: tce.OptimizedModel, model: nn.Module, *args: Any) -> None:
    with torch.no_grad():
        wanted, got = model(*args), fast.run(Way.optimized, *args)
    assert type(got) is type(wanted)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


class Branch(nn.Module):
    """What cannot be traced."""

    def forward(self, x: Tensor, more: Any = None) -> Tensor:
        return x + 1 if x.sum() > 1e9 else x


def _catches(self: Any, x: Tensor) -> Tensor:
    try:
        y = self.branch(x)
    except Exception:
        y = x * 0
    result: Tensor = self.c(y)
    return result


def _casts(self: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        result: Tensor = self.c(x)
    return result


def _clamps(self: Any, x: Tensor) -> Tensor:
    w = x * 1
    y = self.c(w)
    return F.relu(y + self.clamp(w))


class Clamp(nn.Module):
    """Changes its input."""

    def forward(self, x: Tensor) -> Tensor:
        if x.min() < 0:
            x.clamp_(0)
        return x


def _with_weight(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return F.relu(self.c(x) + x), self.c.weight.sum()


@pytest.mark.parametrize(
    "forward",
    [
        _catches,
        _casts,
        _clamps,
        _with_weight,
        lambda self, x: self.branch(self.c(x), types.SimpleNamespace(a=2)),
        lambda self, x: self.i([x, x])[0] + self.c(x),
        lambda self, x: {"a": self.c(x), None: x},
        lambda self, x: self.c(x).view(x.size(0), -1),
        lambda self, x: F.relu(self.c(x), True) + x,
    ],
    ids=["catches", "casts", "clamps", "weight", "object", "list", "keys", "view", "position"],
)
def test_results_are_the_models(forward: Forward) -> None:
    model = net(forward, branch=Branch(), clamp=Clamp(), i=nn.Identity())
    x = images()
    before = x.clone()
    fast = optimized(model, x)
    check(fast, model, x)
    check(fast, model, images(3, 3, 9, 5))
    assert torch.equal(x, before)
    check(optimized(model, x, layout="search"), model, x)


def test_a_layer_is_used_by_a_part_that_is_not_traced_too() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = conv()

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.c(x) if x.sum() < 1e9 else x
            return result

    norm = nn.BatchNorm2d(3)
    norm.running_var.fill_(0.3)  # type: ignore[union-attr]
    model = net(lambda self, x: self.b(self.enc.c(x)) + self.enc(x), b=norm, enc=Whole())
    check(optimized(model, images()), model, images())


def test_calls_of_another_form_run_the_model() -> None:
    model = net(lambda self, x, mask=None: self.c(x) if mask is None else self.c(x) * mask)
    for example in ((images(),), (images(), images())):
        fast = optimized(model, *example)
        check(fast, model, images())
        check(fast, model, images(), images())
        check(fast, model, images(), 2.0)
    norm = nn.BatchNorm1d(5)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    line = nn.Sequential(nn.Linear(6, 5), norm).eval()
    check(optimized(line, images(4, 6)), line, images(2, 5, 6))
    fused = net(lambda self, x, z: F.relu(self.c(x) + z))
    check(optimized(fused, images(), images()), fused, images(), images().double())
    same = net(lambda self, x: F.relu(self.c(x) + x))
    check(optimized(same, images(3, 8, 8)), same, images())
    stars = net(lambda self, x, *a, scale=2: self.c(x) * scale)
    check(optimized(stars, images()), stars, images(), images())
    fast = optimized(same, images()).double()
    check(fast, same.double(), images().double())


def test_state_is_seen() -> None:
    def keeps(self: Any, x: Tensor) -> Tensor:
        y: Tensor = self.c(x)
        if "y" in self.k:
            y = y + self.k["y"]
        self.k["y"] = y
        return y

    def counts(self: Any, x: Tensor) -> Tensor:
        self.n.add_(1)
        result: Tensor = self.c(x) * self.n
        return result

    for model in (net(keeps, k={}), net(counts, n=torch.zeros(()))):
        fast = optimized(model, images())
        assert "its forward changes" in fast.report.whole[""] and fast.report.cuda_graph
        assert model(images(1, 3, 2, 2)).shape  # as before: nothing is kept or counted
    counted = net(counts, n=nn.Buffer(torch.zeros(())))
    fast = optimized(counted, images())
    x = images()
    first, second = fast.run(Way.optimized, x), fast.run(Way.optimized, x)
    torch.testing.assert_close(second, 2 * first)
    torch.testing.assert_close(first, counted(x))


def test_what_changes_its_inputs_is_refused() -> None:
    x = images()
    before = x.clone()
    for model in (
        nn.Sequential(nn.ReLU(inplace=True), conv()),
        net(lambda self, x: self.c(x.sub_(0.5))),
    ):
        with pytest.raises(ValueError, match="model: got one that changes its inputs"):
            optimized(model, x)
        assert torch.equal(x, before)
    with pytest.raises(ValueError, match="model: got one that changes its inputs"):
        optimized(net(lambda self, d: self.c(d.pop("x"))), {"x": x})


def test_layers_that_train_on_purpose_stay() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.d, self.b = conv(), nn.Dropout(0.5), nn.BatchNorm2d(3)

        def train(self, mode: bool = True) -> Dropping:
            super().train(mode)
            self.d.train()
            self.b.train()
            return self

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.d(self.b(self.c(x)))
            return result

    fast = optimized(Dropping(), images())
    assert fast.report.rewrites.removed == [] and fast.report.rewrites.folded == []
    x = images()
    assert not torch.equal(fast.run(Way.optimized, x), fast.run(Way.optimized, x))


def test_copies_train_no_more_than_the_model() -> None:
    from torchvision.models import resnet18
    from torchvision.models.feature_extraction import create_feature_extractor

    model = create_feature_extractor(resnet18().eval(), {"layer1": "a"})
    x = images(1, 3, 32, 32)
    fast = optimized(model, x)
    assert fast.report.rewrites.folded and not any(
        m.training for m in fast.modules() if not [*m.children()]
    )
    with torch.no_grad():
        got, wanted = fast.run(Way.optimized, x)["a"], model.eval()(x)["a"]
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)


def test_random_numbers_are_drawn_anew_and_left_alone() -> None:
    for forward in (
        lambda self, x: self.c(x) * random.random(),
        lambda self, x: self.c(x) + torch.rand_like(x),
        lambda self, x: self.c(x) + (torch.ones(4) if random.random() < 0.5 else 0),
    ):
        model = net(forward)
        states = torch.get_rng_state(), random.getstate()
        optimized(model, torch.ones(1, 3, 4, 4))
        assert random.getstate() == states[1]
        assert torch.equal(torch.get_rng_state(), states[0])


def test_a_replaced_forward_runs() -> None:
    model = net(lambda self, x: self.c(x))
    model.forward = types.MethodType(lambda self, x: {"out": self.c(x)}, model)
    fast = optimized(model, images())
    assert fast.report.whole == {"": "its forward was replaced"}
    check(fast, model, images())


def test_weights_beyond_the_range_are_not_folded() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3, bias=False), nn.BatchNorm2d(3)).half().eval()
    model[1].running_var.zero_()  # type: ignore[union-attr,operator]
    model[0].weight.data.fill_(1000.0)  # type: ignore[union-attr,operator]
    assert optimized(model, images().half() * 1e-5).report.rewrites.folded == []


def test_errors_are_infinite_if_results_are_of_another_kind() -> None:
    right = torch.ones(2)
    nan, inf = torch.tensor([float("nan"), 1]), torch.tensor([float("inf"), 1])
    assert largest_error(nan, right, [right.double()]) == float("inf")
    assert largest_error(inf, right, [right.double()]) == float("inf")
    assert largest_error(inf, inf, [inf.double()]) == 0
    assert largest_error(nan, nan, [nan.double()]) == 0
    assert largest_error(right.double(), right, [right.double()]) == float("inf")
    assert largest_error((right,), right, [right.double()]) == float("inf")
    assert largest_error(right * 1.5, right, [right.double()]) == pytest.approx(0.5)
    assert largest_error(torch.tensor([1]), torch.tensor([2]), [right]) == float("inf")


def test_forms_tell_arguments_apart() -> None:
    t = images(2, 2)
    forms = [(t, None), (None, t), (t, t), ([t], t), (t[0], t), (t.double(), t), ({"a": t}, 1)]
    assert len({form_of(args) for args in forms}) == len(forms)
    assert form_of((t, 1.0)) == form_of((images(3, 4), 2.0))
    assert len({content_of(args) for args in forms}) == len(forms)
    assert content_of((t, 1.0)) == content_of((images(2, 2), 1.0)) != content_of((t, 2.0))
    assert content_of(t) != content_of(t.t())
    with pytest.raises(UnknownForm, match="SimpleNamespace"):
        content_of((t, types.SimpleNamespace()))


class Pair(NamedTuple):
    """Arguments in one."""

    x: Tensor
    more: Any = None


def test_forms_see_into_named_tuples() -> None:
    norm = nn.BatchNorm1d(5)
    norm.running_mean.normal_()  # type: ignore[union-attr]
    model = net(lambda self, pair: self.b(self.line(pair.x)), b=norm, line=nn.Linear(6, 5))
    fast = optimized(model, Pair(images(4, 6)))
    assert fast.report.rewrites.folded
    check(fast, model, Pair(images(4, 6)))
    check(fast, model, Pair(images(2, 5, 6)))


def test_autocast_inside_and_around() -> None:
    def floats(self: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            result: Tensor = self.c(x)
        return result

    model = net(floats)
    fast = optimized(model, images())
    with torch.autocast("cpu", torch.bfloat16):
        check(fast, model, images())
        inside = optimized(net(lambda self, x: self.c(x).relu()), images())
        assert inside.run(Way.optimized, images()).dtype == torch.bfloat16
        check(optimized(model, images()), model, images())


def test_a_cache_is_one_for_all_sizes() -> None:
    def joins(self: Any, x: Tensor) -> Tensor:
        y = self.c(x)
        self.k = y if self.k is None else torch.cat([self.k, y], 2)
        return self.k * 1

    fast, model = optimized(net(joins, k=None), images()), net(joins, k=None)
    shapes = [fast.run(Way.optimized, images(2, 3, n, 8)).shape for n in (8, 1, 8)]
    assert shapes == [model(images(2, 3, n, 8)).shape for n in (8, 1, 8)]
    listed = net(lambda self, x: (self.n[0].add_(1), self.c(x) * self.n[0])[1])
    listed.n = [torch.zeros(())]
    assert "its forward changes n" in optimized(listed, images()).report.whole[""]


def test_recipes_of_what_was_not_traced(tmp_path: Path) -> None:
    masked = net(lambda self, x, mask=None: F.relu(self.c(x) if mask is None else self.c(x) * mask))
    counts = net(lambda self, x: (self.n.add_(1), self.c(x) * self.n)[1], n=torch.zeros(()))
    for model, args in ((masked, (images(), None)), (counts, (images(),))):
        fast = optimized(model, *args)
        fast.save(tmp_path / "net.tce")
        again = tce.load_optimized(tmp_path / "net.tce", model)
        assert again.report.whole == fast.report.whole
        check(again, model, *args)


def test_inference_mode() -> None:
    with torch.inference_mode():
        model, x = net(lambda self, x: F.relu(self.c(x) + x)), images()
        fast = optimized(model, x)
        check(fast, model, x)
    check(fast, model, images())
