"""Layer, RMS, instance and group norm: PyTorch's values, gradients, layouts and errors."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import _C, Policy, ops
from torch_cudnn_ext import nn as ours

Function = Callable[..., Tensor]
OPS = torch.ops.torch_cudnn_ext

# Of a [3, 6, 4, 5] input: the function, PyTorch's, and how many elements the parameters have.
KINDS: dict[str, tuple[Function, Function, tuple[int, ...]]] = {
    "layer": (
        lambda x, w, b, **k: ops.layer_norm(x, (x.shape[-1],), w, b, **k),
        lambda x, w, b, **k: F.layer_norm(x, (x.shape[-1],), w, b, **k),
        (5,),
    ),
    "rms": (
        lambda x, w, b, **k: ops.rms_norm(x, (x.shape[-1],), w, **k),
        lambda x, w, b, **k: F.rms_norm(x, (x.shape[-1],), w, **k),
        (5,),
    ),
    "instance": (
        lambda x, w, b, **k: ops.instance_norm(x, None, None, w, b, **k),
        lambda x, w, b, **k: F.instance_norm(x, None, None, w, b, **k),
        (6,),
    ),
    "group": (
        lambda x, w, b, **k: ops.group_norm(x, 3, w, b, **k),
        lambda x, w, b, **k: F.group_norm(x, 3, w, b, **k),
        (6,),
    ),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
    "sliced": lambda t: torch.cat([t, t], 2)[:, :, ::2],
    "one_batch": lambda t: t[:1],
    "expanded": lambda t: t[:1].expand(3, -1, -1, -1),
}


def _leaf(*sizes: int, device: str, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(sizes, device=device).to(dtype).requires_grad_()


@pytest.mark.parametrize("parameters", ["both", "weight", "neither"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_pytorchs(
    kind: str, view: str, parameters: str, device: str
) -> None:
    mine, theirs, sizes = KINDS[kind]
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64, device=device)
    x = VIEWS[view](x).detach().requires_grad_()
    w = _leaf(*sizes, device=device) if parameters != "neither" else None
    b = _leaf(*sizes, device=device) if parameters == "both" and kind != "rms" else None
    inputs = [t for t in (x, w, b) if t is not None]
    got, wanted = mine(x, w, b, eps=1e-3), theirs(x, w, b, eps=1e-3)
    torch.testing.assert_close(got, wanted)
    if not (kind == "rms" and device == "cuda"):  # there PyTorch keeps what is not contiguous
        assert got.stride() == wanted.stride()
    for grad in (torch.randn_like(wanted), torch.ones((), device=device).double().expand_as(got)):
        torch.testing.assert_close(
            torch.autograd.grad(got, inputs, grad, retain_graph=True),
            torch.autograd.grad(wanted, inputs, grad, retain_graph=True),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_lower_precision(kind: str, dtype: torch.dtype, device: str) -> None:
    mine, theirs, sizes = KINDS[kind]
    x = torch.randn(3, 6, 4, 5, device=device).to(dtype)
    w, b = (torch.randn(sizes, device=device).to(dtype) for _ in range(2))
    torch.testing.assert_close(mine(x, w, b), theirs(x, w, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_half_data_takes_float_parameters(kind: str, dtype: torch.dtype, device: str) -> None:
    mine, theirs, sizes = KINDS[kind]
    x = _leaf(3, 6, 4, 5, device=device, dtype=dtype)
    w, b = (_leaf(*sizes, device=device, dtype=torch.float32) for _ in range(2))
    got = mine(x, w, b)
    wanted = theirs(x.double(), w.double(), b.double())
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0.02, atol=0.02)
    into = torch.randn_like(wanted).to(dtype)
    grads = torch.autograd.grad(got, (x, w), into)
    for grad, exact in zip(grads, torch.autograd.grad(wanted, (x, w), into.double()), strict=True):
        assert grad.dtype == exact.dtype
        scale = float(exact.abs().max())
        torch.testing.assert_close(grad, exact, rtol=0.05, atol=0.05 * scale)


@pytest.mark.parametrize("parameters", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("statistics", [torch.float16, torch.float32], ids=str)
def test_given_statistics_of_either_type(
    statistics: torch.dtype, parameters: torch.dtype, device: str
) -> None:
    x = _leaf(2, 6, 5, device=device, dtype=torch.float16)
    w, b = (_leaf(6, device=device, dtype=parameters) for _ in range(2))
    mean = torch.randn(6, device=device, dtype=statistics)
    var = torch.rand(6, device=device, dtype=statistics) + 0.5
    got = ops.instance_norm(x, mean, var, w, b, use_input_stats=False)
    exact = [t.detach().double().requires_grad_() for t in (x, w, b)]
    wanted = F.instance_norm(
        exact[0], mean.double(), var.double(), exact[1], exact[2], use_input_stats=False
    )
    assert got.dtype == x.dtype
    torch.testing.assert_close(got.double(), wanted, rtol=0.02, atol=0.02)
    grads = torch.autograd.grad(got.sum(), (x, w, b))
    for grad, leaf, other in zip(
        grads, (x, w, b), torch.autograd.grad(wanted.sum(), exact), strict=True
    ):
        assert grad.dtype == leaf.dtype
        torch.testing.assert_close(grad.double(), other, rtol=0.02, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_rms_norm_has_pytorchs_epsilon(dtype: torch.dtype, device: str) -> None:
    x = (torch.randn(4, 9, device=device) * 1e-4).to(dtype)
    torch.testing.assert_close(ops.rms_norm(x, (9,)), F.rms_norm(x, (9,)))


def test_normalised_shapes_of_several_dimensions(device: str) -> None:
    x = _leaf(2, 3, 4, 5, device=device)
    for count in (1, 2, 3, 4):
        shape = x.shape[-count:]
        w, b = _leaf(*shape, device=device), _leaf(*shape, device=device)
        torch.testing.assert_close(ops.layer_norm(x, shape, w, b), F.layer_norm(x, shape, w, b))
        torch.testing.assert_close(ops.rms_norm(x, shape, w), F.rms_norm(x, shape, w))
        grads = torch.autograd.grad(ops.layer_norm(x, shape, w, b).pow(3).sum(), (x, w, b))
        wanted = torch.autograd.grad(F.layer_norm(x, shape, w, b).pow(3).sum(), (x, w, b))
        torch.testing.assert_close(grads, wanted)


@pytest.mark.parametrize(
    ("name", "sizes", "arguments"),
    [
        ("layer_norm", (0, 4), ([4],)),
        ("layer_norm", (3, 0), ([0],)),
        ("rms_norm", (2, 0, 4), ([4],)),
        ("group_norm", (0, 4, 3), (2,)),
        ("instance_norm", (0, 3, 5), ()),
    ],
)
def test_empty_tensors(
    name: str, sizes: tuple[int, ...], arguments: tuple[Any, ...], device: str
) -> None:
    x = _leaf(*sizes, device=device)
    weight = _leaf(*(arguments[0] if name[0] in "lr" else sizes[1:2]), device=device)
    y = getattr(ops, name)(x, *arguments, weight=weight)
    assert y.shape == x.shape
    torch.autograd.backward(y.sum())
    assert x.grad is not None and x.grad.shape == x.shape
    assert weight.grad is not None and bool((weight.grad == 0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_strides_are_those_of_meta(kind: str, device: str) -> None:
    mine, theirs, _ = KINDS[kind]
    for sizes in ((0, 6, 4, 10), (0, 6, 10), *([(0, 10)] if kind in ("layer", "rms") else [])):
        gaps = torch.randn(sizes, device=device)[..., ::2]
        assert mine(gaps, None, None).stride() == mine(gaps.to("meta"), None, None).stride()
    last = torch.randn(3, 6, 4, 5, device="meta").to(memory_format=torch.channels_last)
    assert mine(last, None, None).stride() == theirs(last, None, None).stride()


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_vmap(kind: str, parameters: bool, device: str) -> None:
    mine, theirs, sizes = KINDS[kind]
    x = torch.randn(4, 2, 6, 3, 5, dtype=torch.float64, device=device)
    w, b = (torch.randn(sizes).to(x) if parameters else None for _ in range(2))

    def both(norm: Function) -> tuple[Tensor, Tensor]:
        gradient = torch.func.grad(lambda t: norm(t, w, b).pow(3).sum())
        return torch.vmap(lambda t: norm(t, w, b))(x), torch.vmap(gradient)(x)

    torch.testing.assert_close(both(mine), both(theirs))


def test_vmap_with_given_statistics(device: str) -> None:
    x = torch.randn(4, 2, 3, 5, device=device)
    mean, var = torch.randn(3, device=device), torch.rand(3, device=device)

    def run(norm: Function) -> Tensor:
        return torch.vmap(lambda t: norm(t, mean, var, use_input_stats=False))(x)

    torch.testing.assert_close(run(ops.instance_norm), run(F.instance_norm))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_gradients(kind: str, device: str) -> None:
    mine, _, sizes = KINDS[kind]
    x = _leaf(2, 6, 2, 5, device=device)
    w, b = _leaf(*sizes, device=device), _leaf(*sizes, device=device)
    assert torch.autograd.gradcheck(mine, (x, w, b))
    assert torch.autograd.gradgradcheck(mine, (x, w, b))
    assert torch.autograd.gradgradcheck(lambda t: mine(t, None, None), (x,))


def test_gradients_of_gradients_without_channels(device: str) -> None:
    x = _leaf(5, 0, 3, device=device)
    (grad,) = torch.autograd.grad(ops.instance_norm(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x, allow_unused=True)
    assert grad.shape == x.shape and (second is None or second.shape == x.shape)


@pytest.mark.parametrize("frozen", ["x", "w", "b"])
def test_gradients_of_some(frozen: str, device: str) -> None:
    leaves = {
        name: _leaf(*sizes, device=device)
        for name, sizes in (("x", (2, 6, 3)), ("w", (6,)), ("b", (6,)))
    }
    leaves[frozen].requires_grad_(False)
    torch.autograd.backward(ops.group_norm(leaves["x"], 2, leaves["w"], leaves["b"]).square().sum())
    got = {name: leaf.grad for name, leaf in leaves.items()}
    for leaf in leaves.values():
        leaf.grad = None
    torch.autograd.backward(F.group_norm(leaves["x"], 2, leaves["w"], leaves["b"]).square().sum())
    for name, leaf in leaves.items():
        assert (leaf.grad is None) == (name == frozen) == (got[name] is None)
        torch.testing.assert_close(got[name], leaf.grad)


@pytest.mark.parametrize("momentum", [0.1, 0.7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_running_statistics(dtype: torch.dtype, momentum: float, device: str) -> None:
    x = (torch.randn(3, 4, 5, 2, device=device) * 3 + 1).to(dtype)
    mine = [torch.zeros(4, device=device, dtype=dtype), torch.ones(4, device=device, dtype=dtype)]
    theirs = copy.deepcopy(mine)
    (mean, var), (their_mean, their_var) = mine, theirs
    for leaf in (x, x.clone().requires_grad_()):
        got = ops.instance_norm(leaf, mean, var, momentum=momentum)
        wanted = F.instance_norm(leaf, their_mean, their_var, momentum=momentum)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(mine, theirs)
    with_given = ops.instance_norm(x, mean, var, use_input_stats=False)
    torch.testing.assert_close(
        with_given, F.instance_norm(x, their_mean, their_var, use_input_stats=False)
    )
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("given", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("use_input_stats", [True, False])
def test_running_statistics_of_other_dtypes(
    use_input_stats: bool, given: torch.dtype, device: str
) -> None:
    x = torch.randn(3, 4, 5, device=device)
    mean, var = torch.zeros(4, device=device), torch.ones(4, device=device)
    others = (mean.to(given), var.to(given))
    got = ops.instance_norm(x, *others, use_input_stats=use_input_stats)
    torch.testing.assert_close(got, F.instance_norm(x, mean, var, use_input_stats=use_input_stats))
    torch.testing.assert_close(others, (mean.to(given), var.to(given)), rtol=1e-3, atol=1e-3)


def test_given_numbers_may_have_gaps(device: str) -> None:
    x = torch.randn(2, 3, 1, device=device, requires_grad=True)
    numbers = [torch.rand(6, device=device).add(0.1)[::2] for _ in range(4)]

    def run(mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        y = ops.instance_norm(x, mean, var, weight, bias, use_input_stats=False)
        return y, torch.autograd.grad(y.square().sum(), x)[0]

    torch.testing.assert_close(run(*numbers), run(*(t.contiguous() for t in numbers)))


@pytest.mark.parametrize("kind", ["instance", "group", "layer", "rms"])
def test_a_weight_of_another_size_is_refused(kind: str, device: str) -> None:
    x, statistics = torch.randn(2, 4, 6, device=device), torch.ones(2, device=device)
    for weight in (torch.empty(0, device=device), torch.randn(5, device=device)):
        with pytest.raises(ValueError, match="weight has (0|5) elements, wanted (4|6)"):
            OPS._normalize_backward.default(
                x, x, weight, statistics, statistics, kind, 2, False, 1e-5
            )


def test_no_groups_are_refused_without_data() -> None:
    x = torch.empty(2, 4, 6, device="meta")
    with pytest.raises(ValueError, match="groups is 0, wanted at least 1"):
        OPS._normalize.default(x, None, None, "group", 0, 1e-5, True)


def test_refused_statistics_are_left_alone(device: str) -> None:
    x = torch.randn(3, 4, 5, device=device)
    mean = torch.zeros(4, device=device)
    with pytest.raises(ValueError, match="running_var is Long"):
        ops.instance_norm(x, mean, torch.ones(4, device=device).long())
    assert not mean.any()


LINES = {
    "layer": "layer_norm_fwd x=f32[72,5]:nchw kind=layer w=f32 bias=f32",
    "rms": "layer_norm_fwd x=f32[72,5]:nchw kind=rms w=f32",
    "instance": "layer_norm_fwd x=f32[3,6,20]:nchw kind=instance w=f32 bias=f32",
    "group": "layer_norm_fwd x=f32[3,6,20]:nchw kind=group groups=3 w=f32 bias=f32",
}


@pytest.mark.parametrize("kind", KINDS)
def test_pins_are_obeyed(kind: str, device: str) -> None:
    mine, theirs, sizes = KINDS[kind]
    x = _leaf(3, 6, 4, 5, device=device, dtype=torch.float32)
    w, b = (_leaf(*sizes, device=device, dtype=torch.float32) for _ in range(2))
    inputs = (x, w) if kind == "rms" else (x, w, b)
    wanted = torch.autograd.grad(theirs(x, w, b).pow(3).sum(), inputs)
    listed = {
        op: _C.candidates(LINES[kind].replace("_fwd", f"_{op}"), device, "")
        for op in ("fwd", "bwd")
    }
    ok = {
        op: [c["algorithm"] for c in found if c["status"] == "ok"] for op, found in listed.items()
    }
    assert len(ok["fwd"]) >= 2
    for pin in ok["fwd"]:
        backward = pin if pin in ok["bwd"] else ok["bwd"][0]
        policy = Policy(family="layer_norm", fwd=pin, bwd=backward)
        got = torch.autograd.grad(mine(x, w, b, policy=policy).pow(3).sum(), inputs)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
        for op, algorithm in (("fwd", pin), ("bwd", backward)):
            choice = newest(f"layer_norm_{op}")
            assert (choice.algorithm, choice.why) == (algorithm, "pinned")


def test_statistics_are_computed_for_a_gradient_alone(device: str) -> None:
    x = torch.randn(4, 8, device=device)
    for leaf, absent in ((x, True), (x.clone().requires_grad_(), False)):
        ops.layer_norm(leaf, (8,))
        assert ("stats=false" in newest("layer_norm_fwd").problem) == absent


def test_channels_last_instances_are_not_copied(device: str) -> None:
    x = torch.randn(2, 4, 3, 5, device=device).to(memory_format=torch.channels_last)
    torch.testing.assert_close(ops.instance_norm(x), F.instance_norm(x))
    assert "x=f32[2,4,15]:nhwc" in newest("layer_norm_fwd").problem


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck_of_the_inner_operators(kind: str, device: str) -> None:
    x = _leaf(3, 8, device=device) if kind in ("layer", "rms") else _leaf(3, 8, 5, device=device)
    groups = 2 if kind == "group" else 1
    w, b = _leaf(8, device=device), None if kind == "rms" else _leaf(8, device=device)
    torch.library.opcheck(OPS._normalize.default, (x, w, b, kind, groups, 1e-5, False))
    torch.library.opcheck(OPS._normalize.default, (x, w, b, kind, groups, 1e-5, True))
    _, mean, invstd = OPS._normalize.default(x.detach(), w, b, kind, groups, 1e-5, True)
    arguments = (
        torch.randn_like(x),
        x,
        w,
        mean.detach(),
        invstd.detach(),
        kind,
        groups,
        b is not None,
        1e-5,
    )
    torch.library.opcheck(OPS._normalize_backward.default, arguments)
    # Of results that there are not, neither.
    plain = (*arguments[:2], None, *arguments[3:7], False, 1e-5)
    torch.library.opcheck(OPS._normalize_backward.default, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_gives_pytorchs_dtype(kind: str, device: str) -> None:
    mine, theirs, sizes = KINDS[kind]
    lower = torch.bfloat16 if device == "cpu" else torch.float16
    x = torch.randn(2, 6, 4, 5, device=device, dtype=lower)
    w, b = (torch.randn(sizes, device=device, dtype=lower) for _ in range(2))
    with torch.autocast(device, lower):
        got, wanted = mine(x, w, b), theirs(x, w, b)
    assert got.dtype == wanted.dtype
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_compiles_whole(kind: str, dynamic: bool, device: str) -> None:
    mine, _, sizes = KINDS[kind]
    x, w, b = (_leaf(*s, device=device) for s in ((2, 6, 4, 5), sizes, sizes))
    inputs = (x, w) if kind == "rms" else (x, w, b)

    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return mine(x, w, b).pow(3).sum()

    check_compiles(loss, x, w, b, inputs=inputs, dynamic=dynamic)


def test_nothing_in_space_leaves_running_statistics(device: str) -> None:
    mine = ours.InstanceNorm1d(2, track_running_stats=True, device=device)
    theirs = torch.nn.InstanceNorm1d(2, track_running_stats=True, device=device)
    x = torch.randn(3, 2, 0, device=device)
    assert mine(x).shape == theirs(x).shape
    torch.testing.assert_close(mine.running_var, theirs.running_var)
    torch.testing.assert_close(mine.running_mean, theirs.running_mean)


def test_compiles_with_running_statistics(device: str) -> None:
    x = torch.randn(2, 3, 7, device=device)
    plain = [torch.zeros(3, device=device), torch.ones(3, device=device)]
    compiled = copy.deepcopy(plain)
    run = torch.compile(ops.instance_norm, fullgraph=True, backend="aot_eager")
    got = run(x, compiled[0], compiled[1])
    torch.testing.assert_close(got, ops.instance_norm(x, plain[0], plain[1]))
    torch.testing.assert_close(compiled, plain)


_X = torch.zeros(2, 6, 3)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("layer_norm", (_X, (4,)), r"layer_norm: normalized_shape is \[4\], wanted the last"),
        ("layer_norm", (_X, ()), "normalized_shape is empty"),
        ("layer_norm", (_X, (3,), torch.zeros(4)), r"weight has sizes \[4\], wanted"),
        ("layer_norm", (_X, (3,), torch.zeros(3).half()), "weight is Half, wanted input's dtype"),
        (
            "layer_norm",
            (_X.half(), (3,), None, torch.zeros(3)),
            "bias is Float, wanted input's dtype Half since there is no weight",
        ),
        ("layer_norm", (_X.long(), (3,)), "input is Long, wanted Float"),
        ("rms_norm", (_X, (6,)), "rms_norm: normalized_shape is"),
        ("group_norm", (_X, 4), "num_groups is 4, wanted a divisor of input's 6 channels"),
        ("group_norm", (_X, 2, torch.zeros(5)), "weight has 5 elements in 1 dimensions, wanted 6"),
        ("instance_norm", (_X[:, :, :1],), "wanted more than one element in space"),
        ("instance_norm", (_X[0],), "wanted at least 3 dimensions"),
        ("instance_norm", (_X, torch.zeros(6)), "one of running_mean and running_var"),
        ("instance_norm", (_X, None, None, None, None, False), "running_mean is missing"),
        ("instance_norm", (_X, torch.zeros(2, 6), torch.ones(6)), "running_mean has sizes .2, 6."),
        ("instance_norm", (_X, torch.zeros(6), torch.ones(1)), "running_var has sizes .1., wanted"),
        ("instance_norm", (_X, torch.zeros(6).long(), torch.ones(6)), "running_mean is Long, want"),
        (
            "instance_norm",
            (_X, torch.zeros(6), torch.ones(6, requires_grad=True)),
            "running_var requires a gradient, wanted a tensor without",
        ),
        ("group_norm", (_X[:1, :, 0], 6), r"sizes \(1, 6\) for 6 groups, wanted more than 1 value"),
    ],
)
def test_errors_name_the_argument(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(ops, name)(*arguments)


def test_what_cudnn_has_not_is_said() -> None:
    for line, backend, reason in (
        ("x=f32[2,3]:nchw kind=layer", "legacy", "no layer norm and no RMS norm"),
        ("x=f16[2,3,4]:nhwc kind=instance", "legacy", "several nhwc tensors are not"),
        ("x=f64[2,3]:nchw kind=rms", "graph", "no norm of float64"),
    ):
        found = _C.candidates(f"layer_norm_fwd {line}", "target:h200", "")
        reasons = [c["reason"] for c in found if c["algorithm"].startswith(backend)]
        assert reasons and all(reason in text for text in reasons), reasons


MODULES: list[tuple[ours.Tunable, torch.nn.Module, tuple[int, ...]]] = [
    (ours.LayerNorm([4, 5]), torch.nn.LayerNorm([4, 5]), (2, 4, 5)),
    (ours.LayerNorm(5, bias=False), torch.nn.LayerNorm(5, bias=False), (2, 4, 5)),
    (ours.RMSNorm(5, policy="autotune"), torch.nn.RMSNorm(5), (2, 4, 5)),
    (ours.GroupNorm(2, 6), torch.nn.GroupNorm(2, 6), (2, 6, 5)),
    (ours.InstanceNorm1d(6), torch.nn.InstanceNorm1d(6), (6, 5)),
    (ours.InstanceNorm2d(6, affine=True), torch.nn.InstanceNorm2d(6, affine=True), (2, 6, 5, 3)),
    (
        ours.InstanceNorm3d(6, track_running_stats=True),
        torch.nn.InstanceNorm3d(6, track_running_stats=True),
        (2, 6, 5, 3, 2),
    ),
]


@pytest.mark.parametrize(("module", "parent", "sizes"), MODULES, ids=lambda x: str(x)[:30])
def test_modules(
    module: ours.Tunable, parent: torch.nn.Module, sizes: tuple[int, ...], device: str
) -> None:
    module, parent = copy.deepcopy(module).to(device), copy.deepcopy(parent).to(device)
    assert type(parent) is module.replaces
    x = torch.randn(sizes, device=device)
    with torch.no_grad():
        for parameter in parent.parameters():
            parameter.normal_()
    module.load_state_dict(parent.state_dict())
    for _ in range(2):
        torch.testing.assert_close(module(x), parent(x))
    torch.testing.assert_close(module.state_dict(), parent.state_dict())
    parent.load_state_dict(module.state_dict())
    torch.testing.assert_close(module.eval()(x), parent.eval()(x))
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert copied.policy == module.policy
        torch.testing.assert_close(copied(x), parent(x))
    module.set_mode("cpu:one_pass", bwd="cpu:two_pass")
    assert module.policy is not None and "fwd=cpu:one_pass" in module.policy
    assert module.reset_mode().policy is None


@pytest.mark.parametrize("name", ["LayerNorm", "GroupNorm", "RMSNorm", "LocalResponseNorm"])
@pytest.mark.parametrize("grad", [True, False])
def test_results_are_no_views(name: str, grad: bool, device: str) -> None:
    sizes = {"LayerNorm": (4,), "GroupNorm": (2, 4), "RMSNorm": (4,), "LocalResponseNorm": (3,)}
    module = getattr(ours, name)(*sizes[name]).to(device)
    x = torch.randn(2, 4, 5, 4, device=device)
    shift = torch.ones(4, device=device, requires_grad=True)
    with torch.set_grad_enabled(grad):
        y = module(x)
    assert not y._is_view()
    y += shift
    y.sum().backward()
    assert torch.equal(shift.grad, torch.full_like(shift, y.numel() / 4))


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("of_weight", FLOATS)
def test_rms_norm_takes_weights_of_any_dtype(
    dtype: torch.dtype, of_weight: torch.dtype, device: str
) -> None:
    x = torch.randn(3, 8, device=device, dtype=dtype)
    results = []
    for function in (ops.rms_norm, F.rms_norm):
        w = torch.linspace(0.5, 1, 8, device=device).to(of_weight).requires_grad_()
        y = function(x, (8,), w, 1e-5)
        y.float().sum().backward()
        results.append((y, w.grad))
    for got, wanted in zip(*results, strict=True):
        assert wanted is not None and got is not None
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("momentum", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("deviation", [1.0, 1e-5])
def test_running_statistics_are_the_datas(momentum: float, deviation: float, device: str) -> None:
    x = torch.randn(4, 3, 8, 8, device=device) * deviation
    mean, var = torch.zeros(3, device=device), torch.zeros(3, device=device)
    ops.instance_norm(x, mean, var, None, None, True, momentum, 1e-5)
    torch.testing.assert_close(mean, momentum * x.mean((2, 3)).mean(0))
    wanted = momentum * x.double().flatten(2).var(2).mean(0)
    torch.testing.assert_close(var.double(), wanted, rtol=1e-5, atol=0)
    x[0, 0, 0, 0] = math.inf
    ops.instance_norm(x, mean, var, None, None, True, momentum, 1e-5)
    assert mean[0] == math.inf and mean[1:].isfinite().all()


@pytest.mark.parametrize("scales", [(2.0, 0.0), (300.0, 1e-4)])
def test_large_gradients_of_group_norm_do_not_overflow_float16(
    scales: tuple[float, float], device: str
) -> None:
    x = (8 * torch.randn(2, 8, 4, 4, device=device)).half()
    x[0, 0, 0, 0] = 0  # so that the weight's gradient does not overflow
    x.requires_grad_()
    w = torch.tensor(scales, device=device).repeat_interleave(4).half().requires_grad_()
    b = torch.zeros(8, device=device).half().requires_grad_()
    dy = torch.randn(2, 8, 4, 4, device=device).half()
    dy[0, 0, 0, 0] = 40000 / scales[0] * 2
    doubles = [t.detach().double().requires_grad_() for t in (x, w, b)]
    wanted = torch.autograd.grad(F.group_norm(doubles[0], 2, *doubles[1:]), doubles, dy.double())
    line = LINES["group"].replace("_fwd", "_bwd").replace("f32", "f16")
    ran = 0
    for candidate in _C.candidates(line, device, ""):
        if candidate["status"] != "ok":
            continue
        policy = Policy(family="layer_norm", bwd=candidate["algorithm"], on_unsupported="error")
        y = ops.group_norm(x, 2, w, b, policy=policy)
        got = torch.autograd.grad(y, (x, w, b), dy)
        ran += 1
        for mine, theirs in zip(got, wanted, strict=True):
            assert mine.isfinite().all(), candidate["algorithm"]
            limit = 4e-3 * float(theirs.abs().max())
            torch.testing.assert_close(mine.double(), theirs, rtol=4e-3, atol=limit)
    assert ran >= 2
