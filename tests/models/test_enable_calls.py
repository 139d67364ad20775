"""Calls of PyTorch under `enable` run our operators and give the same results."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from conftest import newest
from enable_helpers import AUTOTUNE, KINDS, AllKinds, Net, check_equal, images, passes_of, ran, run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import torch_cudnn_ext
from torch_cudnn_ext import _C, convert, declined, enabled, is_enabled, tuning

pytestmark = pytest.mark.usefixtures("off", "no_tf32")


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
@pytest.mark.parametrize("compiled", [False, True])
def test_padding_by_the_word_valid(layer: Any, compiled: bool, device: str) -> None:
    pin = {"cpu": "cpu:im2col", "cuda": "legacy:implicit_gemm"}[device]
    model = layer(3, 4, 3, padding="valid").to(device)
    x = torch.randn(2, 3, *[8] * (model.weight.dim() - 2), device=device)
    wanted = model(x)
    torch._dynamo.reset()
    with enabled(f"conv_fwd={pin}"):
        got = torch.compile(model, backend="aot_eager")(x) if compiled else model(x)
        assert torch_cudnn_ext.declined() == {}
        assert ran().startswith(pin)
    check_equal([got], [wanted])


@pytest.mark.parametrize("policy", [None, "backends", "autotune"])
def test_outputs_and_gradients_are_pytorchs(net: Net, device: str, policy: str | None) -> None:
    x = images(device)
    plain = run(net, x)
    if policy == "backends":
        policy = "backends=cpu" if device == "cpu" else "backends=cudnn,aten"
    if policy == "autotune":
        policy = AUTOTUNE[device]
    with enabled(policy):
        assert is_enabled()
        ours = run(net, x)
        assert net(x).grad_fn is not None
        assert "TorchCudnnExt" in F.conv2d(x, net.first.weight).grad_fn.name()  # type: ignore[union-attr]
    check_equal(ours, plain)
    assert not is_enabled()
    assert declined() == {}


@pytest.mark.parametrize("channels_last", [False, True])
def test_resnet18(device: str, channels_last: bool) -> None:
    # In float64, since batch norm over few values magnifies what rounding does to gradients.
    model = torchvision.models.resnet18().double().to(device)
    x = torch.randn(2, 3, 64, 64, dtype=torch.double, device=device)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    state = copy.deepcopy(model.state_dict())
    plain = run(model, x)
    model.load_state_dict(state)
    with enabled("backends=cpu" if device == "cpu" else None):
        ours = run(model, x)
        assert ran("conv_bwd_filter").startswith("cpu:" if device == "cpu" else "")
    check_equal(ours, plain, 1e-6)


def test_softmax_runs_ours(device: str) -> None:
    x = torch.randn(3, 5, 7, device=device, requires_grad=True)
    for function in (F.softmax, F.log_softmax):
        plain = function(x, 1)
        with enabled():
            ours = function(x, 1)
            assert ran("softmax_fwd")
            assert "TorchCudnnExt" in ours.grad_fn.name()  # type: ignore[union-attr]
            (gradient,) = torch.autograd.grad(ours.square().sum(), x)
        (wanted,) = torch.autograd.grad(plain.square().sum(), x)
        check_equal([ours, gradient], [plain, wanted], 1e-5)


def randn(device: str, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(sizes, device=device, dtype=dtype, requires_grad=True)


def batch_norm(device: str, training: bool) -> list[Tensor]:
    model = nn.BatchNorm2d(6).to(device).train(training)
    model.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    x = randn(device, 4, 6, 5, 7)
    y = model(x)
    return [y, *model.buffers(), *torch.autograd.grad(y.pow(3).sum(), [x, *model.parameters()])]


def of_module(model: nn.Module, x: Tensor) -> list[Tensor]:
    model = model.to(x.device)
    y = model(x)
    results = [y] if isinstance(y, Tensor) else [y[0], *(y[1] if len(y[1]) == 2 else [y[1]])]
    total = sum((t.pow(3).sum() for t in results), torch.zeros((), device=x.device))
    return [*results, *torch.autograd.grad(total, [x, *model.parameters()])]


def of_packed(model: nn.Module, x: Tensor) -> list[Tensor]:
    model = model.to(x.device)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 6, 1]), enforce_sorted=False)
    y, states = model(packed)
    results = [y.data, *([states] if isinstance(states, Tensor) else states)]
    total = sum((t.pow(3).sum() for t in results), torch.zeros((), device=x.device))
    return [*results, *torch.autograd.grad(total, [x, *model.parameters()])]


# How PyTorch users call what is overridden, and the pass of ours that runs.
CALLS: dict[str, tuple[str, str, Callable[[str], list[Tensor]]]] = {
    "batch_norm, training": ("batch_norm", "batch_norm_fwd", lambda d: batch_norm(d, True)),
    "batch_norm, evaluating": ("batch_norm", "batch_norm_infer", lambda d: batch_norm(d, False)),
    "max_pool1d": (
        "max_pool1d",
        "pool_fwd",
        lambda d: of_module(nn.MaxPool1d(3, 2, 1), randn(d, 2, 3, 13)),
    ),
    "max_pool2d": (
        "max_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.MaxPool2d(3, padding=1, ceil_mode=True), randn(d, 2, 3, 13, 11)),
    ),
    "max_pool3d": (
        "max_pool3d",
        "pool_fwd",
        lambda d: of_module(nn.MaxPool3d(2, dilation=2), randn(d, 3, 7, 6, 5)),
    ),
    "avg_pool1d": (
        "avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AvgPool1d(3, count_include_pad=False), randn(d, 2, 3, 13)),
    ),
    "avg_pool2d": (
        "avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AvgPool2d(3, 2, 1, divisor_override=5), randn(d, 2, 3, 13, 11)),
    ),
    "avg_pool3d": (
        "avg_pool3d",
        "pool_fwd",
        lambda d: of_module(nn.AvgPool3d((2, 3, 1)), randn(d, 2, 3, 7, 6, 5)),
    ),
    "adaptive_avg_pool2d": (
        "adaptive_avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool2d((3, 2)), randn(d, 2, 3, 13, 11)),
    ),
    "adaptive_avg_pool3d": (
        "adaptive_avg_pool3d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool3d((3, 2, 2)), randn(d, 2, 3, 7, 6, 5)),
    ),
    "adaptive_avg_pool2d, global": (
        "adaptive_avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool2d(1), randn(d, 2, 3, 13, 11)),
    ),
    "adaptive_avg_pool1d": (
        "adaptive_avg_pool2d",
        "pool_fwd",
        lambda d: of_module(nn.AdaptiveAvgPool1d(1), randn(d, 2, 3, 13)),
    ),
    "layer_norm": (
        "layer_norm",
        "layer_norm_fwd",
        lambda d: of_module(nn.LayerNorm([5, 7]), randn(d, 2, 3, 5, 7)),
    ),
    "layer_norm, no parameters": (
        "layer_norm",
        "layer_norm_fwd",
        lambda d: of_module(nn.LayerNorm(7, elementwise_affine=False), randn(d, 3, 7)),
    ),
    "group_norm": (
        "group_norm",
        "layer_norm_fwd",
        lambda d: of_module(nn.GroupNorm(2, 6), randn(d, 3, 6, 5)),
    ),
    "lstm": (
        "lstm.input",
        "rnn_fwd",
        lambda d: of_module(
            nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True), randn(d, 3, 6, 5)
        ),
    ),
    "gru": ("gru.input", "rnn_fwd", lambda d: of_module(nn.GRU(5, 4), randn(d, 6, 3, 5))),
    "rnn_tanh": ("rnn_tanh.input", "rnn_fwd", lambda d: of_module(nn.RNN(5, 4), randn(d, 6, 3, 5))),
    "rnn_relu": (
        "rnn_relu.input",
        "rnn_fwd",
        lambda d: of_module(nn.RNN(5, 4, nonlinearity="relu"), randn(d, 6, 3, 5)),
    ),
    "lstm, packed": (
        "lstm.data",
        "rnn_fwd",
        lambda d: of_packed(nn.LSTM(5, 4, 2, proj_size=3), randn(d, 6, 3, 5)),
    ),
    "gru, packed": (
        "gru.data",
        "rnn_fwd",
        lambda d: of_packed(nn.GRU(5, 4, bidirectional=True), randn(d, 6, 3, 5)),
    ),
    "rnn_tanh, packed": (
        "rnn_tanh.data",
        "rnn_fwd",
        lambda d: of_packed(nn.RNN(5, 4), randn(d, 6, 3, 5)),
    ),
    "rnn_relu, packed": (
        "rnn_relu.data",
        "rnn_fwd",
        lambda d: of_packed(nn.RNN(5, 4, nonlinearity="relu"), randn(d, 6, 3, 5)),
    ),
    "convolution": (
        "convolution",
        "conv_fwd",
        lambda d: of_module(nn.Conv2d(3, 4, 3), randn(d, 2, 3, 7, 7)),
    ),
    "softmax": ("_softmax", "softmax_fwd", lambda d: of_module(nn.Softmax(1), randn(d, 2, 3))),
    "log_softmax": (
        "_log_softmax",
        "softmax_fwd",
        lambda d: of_module(nn.LogSoftmax(1), randn(d, 2, 3)),
    ),
}


def test_every_override_is_called_here() -> None:
    in_graphs_alone = {"convolution_backward"}
    assert {op for op, _, _ in CALLS.values()} == set(_C.overridden_ops()) - in_graphs_alone


@pytest.mark.parametrize("call", CALLS)
def test_plain_calls_run_ours_and_give_the_same(device: str, call: str) -> None:
    _, forward, function = CALLS[call]
    torch.manual_seed(1)
    plain = function(device)
    ours: list[Tensor] = []
    with enabled():
        torch.manual_seed(1)
        ran = passes_of(lambda: ours.extend(function(device)))
    backward = {"conv": "bwd_filter"}.get(family := forward.rpartition("_")[0], "bwd")
    assert {forward, f"{family}_{backward}"} <= set(ran)
    check_equal(ours, plain)
    assert [t.stride() for t in ours] == [t.stride() for t in plain]
    assert declined() == {}


def test_a_model_of_all_kinds(device: str) -> None:
    model, x = AllKinds().to(device), images(device, 16)
    explanation = torch_cudnn_ext.explain(model, x, train=True, measure=False)
    ours = {call.layer: call.op for call in explanation.calls if call.op.endswith("_fwd")}
    assert ours == KINDS
    assert sum(call.op.endswith("_bwd") for call in explanation.calls) == len(KINDS) - 1
    other = copy.deepcopy(model)
    with enabled():
        found = run(other, x)
    check_equal(found, run(model, x), 1e-3)
    check_equal(list(other.buffers()), list(model.buffers()))
    assert declined() == {}


@pytest.mark.parametrize("train", [True, False])
def test_tuning_a_model_ahead_leaves_nothing_to_measure(device: str, train: bool) -> None:
    model, x = AllKinds().to(device).train(train), images(device, 16)
    policy = f"max_workspace=64MiB;backends={'cpu,aten' if device == 'cpu' else 'legacy,aten'}"
    with torch.autocast(device, torch.bfloat16):
        best = tuning.tune_model(model, x, train=train, policy=policy)
    assert {line.split()[0] for line in best} >= {"conv_fwd", "pool_fwd", "softmax_fwd"}
    assert all(row["status"] == "ok" for row in best.values())
    assert not is_enabled()
    before = tuning.entries()
    with torch.autocast(device, torch.bfloat16):
        with enabled(f"autotune;{policy}"), torch.set_grad_enabled(train):
            y = model(x)
            if train:
                y.float().square().sum().backward()
        assert tuning.entries() == before
        assert tuning.tune_model(model, x, train=train, policy=policy) == {}
        stricter = policy.replace("64MiB", "32MiB")
        assert tuning.tune_model(model, x, train=train, policy=stricter) == {}
        other = f"{policy};prefer=memory"
        again = tuning.tune_model(model, x, train=train, policy=other)
    assert again.keys() == best.keys()  # other constraints, other rankings
    with pytest.raises(ValueError, match="tune_model: got a model and inputs without a tensor"):
        tuning.tune_model(nn.Identity(), None)


def test_a_model_is_tuned_in_the_precision_of_the_policy() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 6, 6)
    (line,) = tuning.tune_model(layer, x, train=False, policy="compute=f64", time_budget_s=0.1)
    assert "compute=f64" in line
    with enabled("autotune;compute=f64"), torch.no_grad():
        layer(x)
    choice = newest("conv_fwd")
    assert (choice.problem, choice.why) == (line, "cached")


def test_tuning_a_model_while_enabled_leaves_that_as_it_is() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Softmax(1)), torch.randn(2, 3, 6, 6)
    with enabled("autotune;deterministic;backends=aten,cpu"):
        before = _C.resolved_policy(None)
        best = tuning.tune_model(model, x, train=False, time_budget_s=0.1)
        assert [line.split()[0] for line in best] == ["conv_fwd", "softmax_fwd"]
        assert all("deterministic" in entry["constraints"] for entry in tuning.entries())
        assert is_enabled() and _C.resolved_policy(None) == before
        table = tuning.entries()
        model(x)
        assert tuning.entries() == table  # nothing was left to measure


def test_inference_mode_of_all_kinds(device: str) -> None:
    model, x = AllKinds().to(device).eval(), images(device, 16)
    found: list[Tensor] = []
    with torch.inference_mode():
        plain = model(x)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode(), enabled():
            ran = passes_of(lambda: found.append(model(x)))
        assert set(ran) == {*KINDS.values(), "batch_norm_infer"} - {"batch_norm_fwd"}
        check_equal(found[-1:], [plain])
        assert found[-1].is_inference() == (mode is torch.inference_mode)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_all_kinds(device: str, dtype: torch.dtype) -> None:
    recurrent = device == "cpu" and dtype == torch.bfloat16
    model, x = AllKinds(recurrent or device == "cuda").to(device), images(device, 16)
    other = copy.deepcopy(model)
    with torch.autocast(device, dtype):
        plain = run(model, x)
        with enabled():
            ours = run(other, x)
    assert [t.dtype for t in ours] == [t.dtype for t in plain]
    check_equal(ours[:1], plain[:1], 0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(net: Net, device: str, dtype: torch.dtype) -> None:
    x = images(device)
    with torch.autocast(device, dtype):
        plain = run(net, x)
    with enabled(), torch.autocast(device, dtype):
        ours = run(net, x)
    assert f"x={'bf16' if dtype == torch.bfloat16 else 'f16'}[" in newest("conv_fwd").problem
    assert [t.dtype for t in ours] == [t.dtype for t in plain]
    check_equal(ours, plain, 0.1)


@pytest.mark.parametrize("recorded", [False, True])
def test_maxima_of_sequences_have_pytorchs_strides(recorded: bool, device: str) -> None:
    x = randn(device, 1, 8, 2).transpose(1, 2).detach().requires_grad_(recorded)
    for t in (x, x[0]):
        wanted = F.max_pool1d(t, 2).stride()
        with enabled("heuristic"):
            assert F.max_pool1d(t, 2).stride() == wanted


@pytest.mark.parametrize("dims", [2, 3])
def test_one_pixel_keeps_the_layout_of_many(dims: int, device: str) -> None:
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d
    x = randn(device, 2, 8, *(4, 3, 3)[:dims]).to(memory_format=layout)
    names = ("adaptive_avg_pool", "adaptive_max_pool", "max_pool", "avg_pool")
    for function, size in [(getattr(F, f"{name}{dims}d"), 1) for name in names[:2]] + [
        (getattr(F, f"{name}{dims}d"), (4, 3, 3)[:dims]) for name in names[2:]
    ]:
        wanted = function(x, size).stride()
        with enabled("heuristic"):
            assert function(x, size).stride() == wanted, function


def test_results_may_be_changed_in_place(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True)).to(device)
    x = images(device)
    plain = run(model, x)
    pin = "pool=cpu:taps" if device == "cpu" else "pool=legacy:max;allow_reduced_range"
    for policy in (None, pin, "heuristic", "autotune"):
        with enabled(policy):
            check_equal(run(model, x), plain)
    assert declined() == {}


@pytest.mark.parametrize("sizes", [(0, 2, 5, 5), (2, 5, 5)])
def test_empty_and_unbatched(device: str, sizes: tuple[int, ...]) -> None:
    x, w = torch.randn(sizes, device=device), torch.randn(3, 2, 3, 3, device=device)
    plain = F.conv2d(x, w)
    with enabled():
        ours = F.conv2d(x, w)
    assert ours.shape == plain.shape
    assert ours.stride() == plain.stride()
    torch.testing.assert_close(ours, plain)


def test_floating_point_operations_are_counted(device: str) -> None:
    x = torch.randn(2, 6, 9, 8, device=device, requires_grad=True)
    model = nn.Sequential(
        nn.Conv2d(6, 4, 3, stride=2), nn.ConvTranspose2d(4, 3, 3), nn.Flatten()
    ).to(device)

    def total(call: Callable[[], Tensor]) -> int:
        with FlopCounterMode(display=False) as counter:
            call().sum().backward()
        return int(counter.get_total_flops())

    plain = total(lambda: model(x))
    with enabled():
        assert total(lambda: model(x)) == plain > 0
    weight = torch.randn(5, 8, device=device, requires_grad=True)
    wanted = total(lambda: F.linear(x, weight))
    assert total(lambda: torch_cudnn_ext.ops.linear(x, weight)) == wanted > 0


def test_results_can_be_viewed_as_pytorchs_can(device: str) -> None:
    sequence = torch.randn(2, 5, 3, device=device)
    filters = torch.randn(4, 3, 3, device=device)
    volume = torch.randn(1, 3, 2, 3, 2, device=device).to(memory_format=torch.channels_last_3d)
    up = torch.randn(3, 2, 2, 2, 2, device=device)

    def results() -> list[Tensor]:
        y = F.conv_transpose3d(volume, up, stride=2)
        return [
            F.conv1d(sequence.transpose(1, 2), filters).view(2, -1),
            y.view(1, -1) if device == "cpu" else y,
        ]

    plain = results()
    with enabled():
        ours = results()
        compiled = torch.compile(results, backend="aot_eager")()
    check_equal(ours, plain)
    check_equal(compiled, plain)
    assert [y.stride() for y in plain] == [y.stride() for y in ours]
    assert declined() == {}


def test_output_padding_beyond_stride(device: str) -> None:
    model = nn.ConvTranspose2d(3, 2, 3, dilation=2, output_padding=1).to(device)
    x = images(device, 4)
    plain = run(model, x)
    with enabled():
        ours = run(model, x)
        assert ran("conv_bwd_data")
    check_equal(ours, plain)
    assert declined() == {}


@pytest.mark.filterwarnings("ignore:.*batching rule")
def test_vectorised_hessians_of_maximum_pooling(device: str) -> None:
    layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    model = torch.nn.Sequential(*layers).double().to(device)
    x = torch.randn(1, 1, 6, 6, dtype=torch.float64, device=device)

    def hessian() -> Tensor:
        return torch.autograd.functional.hessian(
            lambda x: model(x).square().sum(), x, vectorize=True
        )

    wanted = hessian()
    with enabled():
        torch.testing.assert_close(hessian(), wanted)


@pytest.mark.parametrize("kind", ["batch_norm", "lrn"])
def test_one_image_of_interleaved_channels_stays_so(kind: str, device: str) -> None:
    image = torch.randn(8, 8, 3, device=device).permute(2, 0, 1)[None]
    layer = {"batch_norm": torch.nn.BatchNorm2d(3), "lrn": torch.nn.LocalResponseNorm(3)}[kind]
    layer = layer.to(device)
    with enabled():
        assert layer(image).is_contiguous(memory_format=torch.channels_last)
    assert convert(layer)(image).is_contiguous(memory_format=torch.channels_last)
