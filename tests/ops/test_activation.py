"""Activations: PyTorch's values and gradients, in place and not, modules and errors."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from conftest import VIEWS, check_compiles, newest
from torch import Tensor

from torch_cudnn_ext import _C, Policy, knobs, ops
from torch_cudnn_ext import nn as ours

OPS = torch.ops.torch_cudnn_ext
# Ours, taking `inplace`; PyTorch's; the words of the problem.
Pair = tuple[Callable[..., Tensor], Callable[[Tensor], Tensor], str]
ALL: dict[str, Pair] = {
    "relu": (ops.relu, F.relu, "kind=relu"),
    "relu6": (ops.relu6, F.relu6, "kind=clipped_relu coefficient=6"),
    "clipped_relu": (
        lambda x, **k: ops.clipped_relu(x, 0.5, **k),
        lambda x: F.hardtanh(x, 0, 0.5),
        "kind=clipped_relu coefficient=0.5",
    ),
    "tanh": (ops.tanh, torch.tanh, "kind=tanh"),
    "sigmoid": (ops.sigmoid, torch.sigmoid, "kind=sigmoid"),
    "elu": (
        lambda x, **k: ops.elu(x, 0.7, **k),
        lambda x: F.elu(x, 0.7),
        "kind=elu coefficient=0.7",
    ),
    "silu": (ops.silu, F.silu, "kind=swish"),
    "swish": (
        lambda x, **k: ops.swish(x, 1.5, **k),
        lambda x: x * torch.sigmoid(1.5 * x),
        "kind=swish coefficient=1.5",
    ),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ALL)
def test_values_gradients_and_layout_are_pytorchs(name: str, view: str, device: str) -> None:
    mine, theirs, _ = ALL[name]
    x = torch.randn(3, 5, 6, 4, dtype=torch.float64, device=device)
    x = VIEWS[view](x).detach().requires_grad_()
    got, wanted = mine(x), theirs(x)
    torch.testing.assert_close(got, wanted)
    assert got.stride() == wanted.stride()
    for grad in (torch.randn_like(wanted), torch.ones((), device=device).double().expand_as(got)):
        torch.testing.assert_close(
            torch.autograd.grad(got, x, grad, retain_graph=True),
            torch.autograd.grad(wanted, x, grad, retain_graph=True),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_lower_precision_scalars_and_empty(name: str, dtype: torch.dtype, device: str) -> None:
    mine, theirs, _ = ALL[name]
    for sizes in ((7, 33), (), (0,), (2, 0, 3)):
        x = torch.randn(sizes, device=device).to(dtype).requires_grad_()
        wide = x.detach().float().requires_grad_()
        got, wanted = mine(x), theirs(wide)
        torch.testing.assert_close(got, wanted.to(dtype))
        (mine_grad,) = torch.autograd.grad(got.sum(), x)
        (wanted_grad,) = torch.autograd.grad(wanted.sum(), wide)
        # tanh and sigmoid compute theirs from an output that was rounded.
        torch.testing.assert_close(mine_grad, wanted_grad.to(dtype), rtol=0.02, atol=0.01)


@pytest.mark.parametrize("name", ALL)
def test_nan_and_infinities_are_pytorchs(name: str, device: str) -> None:
    mine, theirs, words = ALL[name]
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e30, -1e30], device=device)
    wanted = theirs(x)
    for candidate in _C.candidates(f"activation_fwd x=f32[6]:nchw {words}", device, ""):
        if candidate["status"] != "ok":
            continue
        got = mine(x, policy=f"fwd={candidate['algorithm']}")
        torch.testing.assert_close(got, wanted, equal_nan=True, msg=str(candidate["algorithm"]))


@pytest.mark.parametrize("algorithm", ["cpu:exponential", "cpu:hyperbolic"])
def test_the_slope_of_elu_at_nan_is_pytorchs(algorithm: str) -> None:
    x = torch.tensor([float("nan"), -1.0, 2.0], requires_grad=True)
    (wanted,) = torch.autograd.grad(F.elu(x).sum(), x)
    (got,) = torch.autograd.grad(ops.elu(x, policy=f"bwd={algorithm}").sum(), x)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", ALL)
def test_gradients_of_gradients(name: str, device: str) -> None:
    mine, _, _ = ALL[name]
    x = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(mine, (x,))
    assert torch.autograd.gradgradcheck(mine, (x,))
    # In place, of what is no leaf.
    assert torch.autograd.gradcheck(lambda t: mine(t * 1, inplace=True), (x,))
    assert torch.autograd.gradgradcheck(lambda t: mine(t * 1, inplace=True), (x,))


@pytest.mark.parametrize("name", ALL)
def test_every_gradient_has_a_gradient_by_the_input(name: str, device: str) -> None:
    mine, theirs, _ = ALL[name]
    seconds = []
    x = torch.randn(4, 5, dtype=torch.float64, device=device)
    x[0, 0] = 0
    x.requires_grad_()
    for function in (mine, theirs):
        (grad,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(grad.sum(), x)[0])
    torch.testing.assert_close(*seconds)


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "expanded"])
@pytest.mark.parametrize("name", ALL)
def test_in_place(name: str, view: str, device: str) -> None:
    mine, theirs, _ = ALL[name]
    source = torch.randn(3, 5, 6, 4, device=device)
    x, weight = VIEWS[view](source), VIEWS[view](torch.randn_like(source))
    wanted = theirs(x.clone())
    before = x._version
    assert mine(x, inplace=True) is x
    assert x._version == before + 1
    torch.testing.assert_close(x, wanted)

    leaf = torch.randn_like(x).requires_grad_()
    expected = theirs(leaf * 2)
    (wanted_grad,) = torch.autograd.grad((expected * weight).sum(), leaf)
    inner = leaf * 2
    got = mine(inner, inplace=True)
    assert got.data_ptr() == inner.data_ptr()
    (grad,) = torch.autograd.grad((got * weight).sum(), leaf)
    torch.testing.assert_close(grad, wanted_grad)


def test_in_place_writes_no_gradient_that_others_see(device: str) -> None:
    leaf = torch.randn(4, 6, device=device, requires_grad=True)
    y = ops.relu(leaf * 1, inplace=True)
    given = torch.randn_like(y)
    kept = given.clone()
    torch.autograd.backward(y, given, retain_graph=True)
    assert torch.equal(given, kept)
    y.retain_grad()
    torch.autograd.backward(y.square().sum())
    assert y.grad is not None
    torch.testing.assert_close(y.grad, 2 * y.detach())


@pytest.mark.parametrize("inplace", [False, True])
def test_in_place_makes_no_new_gradient(inplace: bool, device: str) -> None:
    leaf = torch.randn(64, 64, device=device, requires_grad=True)
    y = ops.relu(leaf * 1, inplace=inplace)
    with torch.profiler.profile(profile_memory=True) as profile:
        torch.autograd.backward(y.square().sum())
    (node,) = (
        event for event in profile.key_averages() if event.key == "TorchCudnnExtActivationBackward"
    )
    made = node.device_memory_usage if device == "cuda" else node.cpu_memory_usage
    assert made == (0 if inplace else 4 * y.numel())


def test_gradient_buffer_in_place(device: str) -> None:
    x = torch.randn(5, 7, device=device)
    y = torch.tanh(x)
    grad = torch.randn_like(x)
    wanted = grad * (1 - y * y)
    OPS.activation_backward_(grad, None, y, "tanh")
    torch.testing.assert_close(grad, wanted)
    with pytest.raises(RuntimeError, match="not differentiable"):
        OPS.activation_backward_(grad, None, y.requires_grad_(), "tanh")


def test_in_place_is_checked(device: str) -> None:
    leaf = torch.randn(3, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        ops.relu(leaf, inplace=True)
    with pytest.raises(RuntimeError, match="overlap|single memory location"):
        ops.relu(torch.randn(1, device=device).expand(3), inplace=True)
    saved = leaf * 1
    loss = saved.square().sum()
    ops.tanh(saved, inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)


def test_a_ceiling_that_rounds_to_nothing_stays() -> None:
    line = _C.canonical_problem("activation_fwd x=f32[8]:nchw kind=clipped_relu coefficient=1e-50")
    assert "coefficient=1e-50" in line
    assert _C.canonical_problem(line) == line


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_elu_at_zero_is_pytorchs(alpha: float, device: str) -> None:
    x = torch.tensor([-1.0, -0.0, 0.0, 1.0], device=device, requires_grad=True)
    (wanted,) = torch.autograd.grad(F.elu(x, alpha).sum(), x)
    line = f"activation_bwd x=f32[4]:nchw kind=elu coefficient={alpha}"
    for candidate in _C.candidates(line, device, ""):
        if candidate["status"] == "ok":
            pin = Policy(family="activation", bwd=candidate["algorithm"])
            (grad,) = torch.autograd.grad(ops.elu(x, alpha, policy=pin).sum(), x)
            torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "silu", "elu"])
def test_small_results_keep_their_digits(name: str) -> None:
    mine, theirs, words = ALL[name]
    x = torch.tensor([-300.0, -88, -30, -20, -3, -1e-3, -1e-7, -1e-30, 0, 1e-7, 1e-3, 30, 90, 300])
    wanted = theirs(x.double()).float()
    for candidate in _C.candidates(f"activation_fwd x=f32[14]:nchw {words}", "cpu", ""):
        pin = Policy(family="activation", fwd=candidate["algorithm"])
        if candidate["status"] == "ok":
            torch.testing.assert_close(mine(x, policy=pin), wanted, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_pins_are_obeyed(name: str, inplace: bool, device: str) -> None:
    knobs.allow_reduced_range = True  # as the clipped ReLU's gradient by graphs has it
    mine, theirs, words = ALL[name]
    x = torch.randn(4, 6, device=device, requires_grad=True)
    (wanted,) = torch.autograd.grad(theirs(x).sum(), x)
    found = [
        c["algorithm"]
        for c in _C.candidates(f"activation_fwd x=f32[24]:nchw {words}", device, "")
        if c["status"] == "ok" and not (inplace and c["algorithm"].startswith("graph"))
    ]
    assert len(found) >= 2
    # Gradients: of a clipped ReLU it reads x, of ELU it is 1 at zero.
    if device == "cuda" and (name == "elu" or (inplace and "clipped_relu" in words)):
        found.remove("legacy:default")
    for pin in found:
        y = mine(x * 1, inplace=inplace, policy=Policy(family="activation", fwd=pin, bwd=pin))
        (grad,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=2e-5)  # cuDNN's tanh
        for op in ("activation_fwd", "activation_bwd"):
            choice = newest(op)
            assert (choice.algorithm, choice.why) == (pin, "pinned")


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_compiles_whole(name: str, inplace: bool, device: str) -> None:
    mine, _, _ = ALL[name]

    def loss(x: Tensor) -> Tensor:
        return mine(x * 2, inplace=inplace).square().sum()

    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    check_compiles(loss, x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.relu(torch.zeros(2, dtype=torch.int64)), "input is Long, wanted Float"),
        (lambda: ops.clipped_relu(torch.zeros(2), 0.0), "ceiling is 0, wanted a ceiling above 0"),
        (lambda: ops.swish(torch.zeros(2), float("inf")), "beta is inf, wanted a finite"),
        (lambda: ops.elu(torch.zeros(2), float("nan"), True), "alpha is nan, wanted a finite"),
        (lambda: OPS.activation(torch.zeros(2), "gelu"), "kind is 'gelu', wanted one of relu"),
        (lambda: ops.tanh(torch.zeros(2), policy="fwd=cpu:three_pass"), "cpu:three_pass"),
        (
            lambda: ops.elu(torch.zeros(2, requires_grad=True) * 1, -1.0, inplace=True),
            "alpha is -1, wanted an alpha of at least 0",
        ),
        (
            lambda: OPS.activation_backward(torch.zeros(2), None, torch.zeros(2), "swish"),
            "cannot be computed from its output",
        ),
        (
            lambda: OPS.activation_backward(torch.zeros(2), None, torch.zeros(3), "tanh"),
            "output has sizes",
        ),
    ],
)
def test_errors_name_the_argument(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=message):
        call()


MODULES: list[tuple[ours.Tunable, torch.nn.Module]] = [
    (ours.ReLU(), torch.nn.ReLU()),
    (ours.ReLU6(policy="autotune"), torch.nn.ReLU6()),
    (ours.ClippedReLU(0.5), torch.nn.Hardtanh(0.0, 0.5)),
    (ours.Tanh(), torch.nn.Tanh()),
    (ours.Sigmoid(), torch.nn.Sigmoid()),
    (ours.ELU(0.5), torch.nn.ELU(0.5)),
    (ours.SiLU(), torch.nn.SiLU()),
    (ours.ReLU(inplace=True), torch.nn.ReLU(inplace=True)),
    (ours.SiLU(inplace=True), torch.nn.SiLU(inplace=True)),
    (ours.ClippedReLU(inplace=True), torch.nn.ReLU6(inplace=True)),
]


@pytest.mark.parametrize(("module", "parent"), MODULES, ids=[str(m[0]) for m in MODULES])
def test_modules(module: ours.Tunable, parent: torch.nn.Module, device: str) -> None:
    x = torch.randn(3, 5, device=device)
    torch.testing.assert_close(module(x.clone()), parent(x.clone()))
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert copied.policy == module.policy
        torch.testing.assert_close(copied(x.clone()), parent(x.clone()))
    assert not module.state_dict()
    before = module.policy
    module.set_mode("aten:default", bwd="autotune")
    assert module.policy == "fwd=aten:default;bwd=autotune"
    module.policy = before


def test_a_clipped_relu_tells_of_itself() -> None:
    assert repr(ours.ClippedReLU(3.0)) == "ClippedReLU(ceiling=3.0)"
    assert repr(ours.ClippedReLU(3.0, True)) == "ClippedReLU(ceiling=3.0, inplace=True)"
