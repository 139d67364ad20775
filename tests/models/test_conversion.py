"""Models exchanged for this package's layers and back."""

import copy
import pickle
from contextlib import suppress
from typing import Any

import pytest
import torch
from conftest import BIG_CUDA_MARKS, needs_cuda, newest
from networks import FAMILIES, MODELS, WANTED, LanguageModel, Tagger, images, vision_model
from torch import nn as tnn
from torch.nn import functional as F
from torch.nn.utils import parametrize, weight_norm
from torch.utils._pytree import tree_leaves

from torch_cudnn_ext import _C, Policy, convert, knobs, last_decision, nn
from torch_cudnn_ext._policy_text import algorithms_of, passes_of
from torch_cudnn_ext._workload.running import recording
from torch_cudnn_ext.analysis.coverage import coverage
from torch_cudnn_ext.models import conversion_steps, converted, counterparts
from torch_cudnn_ext.policy import as_policy

OURS = counterparts()


def small_network() -> tnn.Sequential:
    behind = tnn.Sequential(tnn.ConvTranspose2d(4, 5, 2), tnn.Softmax(1))
    return tnn.Sequential(tnn.Conv2d(3, 4, 3, padding=1), behind)


def storages(model: tnn.Module) -> dict[str, tuple[int, int]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: (id(t), t.data_ptr()) for name, t in tensors}


def results(model: tnn.Module, inputs: Any) -> list[torch.Tensor]:
    """Floating outputs, and the gradients of a sum over them, with one seed."""
    torch.manual_seed(1)
    outputs = [t for t in tree_leaves(model(inputs)) if t.is_floating_point()]
    parameters = list(model.parameters())
    loss = sum((t.float() ** 2).mean() for t in outputs)
    assert isinstance(loss, torch.Tensor)
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [*outputs, *(g for g in gradients if g is not None)]


def check_both_ways(model: tnn.Module, inputs: Any, dtype: torch.dtype) -> None:
    types = {name: type(module) for name, module in model.named_modules()}
    tensors, keys = storages(model), list(model.state_dict())
    expected = results(copy.deepcopy(model), inputs)
    assert convert(model) is model
    for name, module in model.named_modules():
        assert type(module) is OURS.get(types[name], types[name]), name
    assert any(types[name] in OURS for name in types)
    assert storages(model) == tensors
    assert list(model.state_dict()) == keys
    before = copy.deepcopy(model.state_dict())
    found = results(model, inputs)
    model.load_state_dict(before)
    convert(model, to="torch")
    assert {name: type(module) for name, module in model.named_modules()} == types
    assert storages(model) == tensors
    again = results(model, inputs)
    # Rounding grows through the layers: what two runs of PyTorch's own would be allowed, too.
    tolerance = {torch.float64: 1e-7, torch.float32: 2e-3, torch.float16: 5e-2}[dtype]
    for a, b, c in zip(expected, found, again, strict=True):
        scale = a.abs().max().clamp_min(1e-6).item()
        assert (a - b).abs().max().item() <= tolerance * scale
        assert (a - c).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize("name", MODELS)
def test_vision_models(name: str) -> None:
    model = vision_model(name).eval()
    check_both_ways(model, images(name, 1), torch.float32)


@pytest.mark.big
@needs_cuda
@pytest.mark.parametrize("name", MODELS)
def test_all_vision_models_train(name: str) -> None:
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    model = vision_model(name).double().cuda().train()
    for module in model.modules():  # what is dropped is no two implementations' alike
        module.train(not isinstance(module, tnn.modules.dropout._DropoutNd))
    check_both_ways(model, images(name, 4).double().cuda(), torch.float64)


@pytest.mark.parametrize("kind", [Tagger, LanguageModel])
def test_sequence_models(kind: type[tnn.Module], device: str) -> None:
    model = kind().to(device)
    assert any(type(module) in OURS for module in model.modules())
    words = torch.randint(50, (5, 6), device=device)
    check_both_ways(model.double(), words, torch.float64)


def test_every_counterpart_is_exchanged_and_taken_back() -> None:
    assert OURS[tnn.Conv2d] is nn.Conv2d
    for theirs, ours in OURS.items():
        assert issubclass(ours, theirs) and ours.__name__ == theirs.__name__
        holder = tnn.Module()
        torch.nn.Module.__init__(module := theirs.__new__(theirs))
        holder.inner = module
        convert(holder)
        assert type(module) is ours
        convert(holder, to="torch")
        assert type(module) is theirs and holder.inner is module


def test_the_model_itself_is_exchanged_with_all_that_it_has() -> None:
    layer = tnn.Conv2d(3, 4, 3).eval()
    layer.note = "mine"  # type: ignore[assignment]
    seen = []
    layer.register_forward_hook(lambda module, args, out: seen.append(type(module)))
    layer.weight.requires_grad_(False)
    parameters = dict(layer.named_parameters())
    assert convert(layer) is layer
    assert type(layer) is nn.Conv2d and isinstance(layer, nn.Conv2d)
    assert layer.note == "mine" and not layer.training
    assert all(layer.get_parameter(name) is p for name, p in parameters.items())
    assert layer.policy is None
    layer(torch.randn(1, 3, 5, 5))
    assert seen == [nn.Conv2d]


def test_a_policy_is_given_and_dropped() -> None:
    model = small_network()
    attributes = [set(vars(module)) for module in model.modules()]
    convert(model, policy="backends=cpu")
    assert [m.policy for m in model.modules() if isinstance(m, nn.Tunable)] == ["backends=cpu"] * 3
    model(torch.randn(1, 3, 6, 6))
    assert newest("softmax_fwd").algorithm.startswith("cpu:")
    convert(model, to="torch")
    assert [set(vars(module)) for module in model.modules()] == attributes


def test_a_policy_that_fits_not_all_changes_nothing() -> None:
    model = small_network()
    with pytest.raises(ValueError, match="guess_twice"):
        convert(model, policy="guess_twice")
    with pytest.raises(ValueError, match="wanted none"):
        convert(model, to="torch", policy="autotune")
    with pytest.raises(ValueError, match="wanted 'cudnn' or 'torch'"):
        convert(model, to="caffe")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="wanted one for layers of softmax"):
        convert(tnn.Softmax(1), policy="cpu:im2col")
    with pytest.raises(ValueError, match="got 'cpu:nope' for softmax_fwd, wanted"):
        convert(model[0], policy="softmax_fwd=cpu:nope")
    assert type(model[0]) is tnn.Conv2d
    convert(model[0], policy="guess_once")
    assert model[0].policy == nn.Conv2d(1, 1, 1, policy="guess_once").policy


@pytest.mark.parametrize("policy", ["conv=cpu:fft", "cpu:fft"])
def test_a_pin_of_one_family_is_for_its_layers_alone(policy: str) -> None:
    model = tnn.Sequential(tnn.Conv2d(1, 1, 1), tnn.ReLU())
    conv, relu = convert(model, policy=policy)
    assert conv.policy == nn.Conv2d(1, 1, 1, policy="cpu:fft").policy
    model(torch.randn(1, 1, 3, 3))
    for op, algorithm in (("conv_fwd", "cpu:fft"), ("activation_fwd", "aten:default")):
        assert newest(op).algorithm == algorithm
    assert isinstance(relu, nn.ReLU)


@pytest.mark.parametrize("nothing", [None, "", -1])
def test_a_mapping_may_leave_an_operator_unpinned(nothing: Any) -> None:
    model = convert(
        tnn.Sequential(tnn.Conv2d(1, 1, 1)), policy={"conv_fwd": nothing, "max_workspace": "1MiB"}
    )
    assert [layer.policy for layer in model] == ["max_workspace=1MiB"]


def test_layers_that_are_there_keep_their_policy() -> None:
    model = tnn.Sequential(nn.Conv2d(3, 3, 1, policy="backends=aten"), tnn.Conv2d(3, 3, 1))
    convert(model, policy="backends=cpu")
    policies = [layer.policy for layer in model if isinstance(layer, nn.Conv2d)]
    assert policies == ["backends=aten", "backends=cpu"]


def test_what_is_excluded_is_left_with_all_within() -> None:
    model = small_network()
    asked = []

    def exclude(name: str, module: tnn.Module) -> bool:
        asked.append(name)
        return name == "1"

    convert(model, exclude=exclude)
    assert type(model[0]) is nn.Conv2d and type(model.get_submodule("1.0")) is tnn.ConvTranspose2d
    assert asked == ["", "0", "1"]
    convert(model, to="torch", exclude=lambda name, module: isinstance(module, tnn.Conv2d))
    assert type(model[0]) is nn.Conv2d
    assert convert(model[0], exclude=lambda name, module: True) is model[0]


def test_a_shared_module_stays_shared() -> None:
    layer = tnn.Conv2d(3, 3, 1)
    model = tnn.Sequential(layer, tnn.ReLU(), layer)
    convert(model)
    assert model[0] is model[2] is layer and type(layer) is nn.Conv2d
    twin = copy.deepcopy(model)
    assert twin[0] is twin[2] is not layer


@pytest.mark.parametrize("excluded", ["b", "b.0"])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_is_excluded_is_left_under_its_other_names(excluded: str, order: str) -> None:
    layer = tnn.Conv2d(3, 3, 1)
    parts = {"a": layer, "b": tnn.Sequential(layer, tnn.ReLU())}
    model = tnn.ModuleDict({name: parts[name] for name in order})
    convert(model, exclude=lambda name, module: name == excluded)
    assert type(layer) is tnn.Conv2d
    assert type(model.get_submodule("b.1")) is (tnn.ReLU if excluded == "b" else nn.ReLU)


class Own(tnn.Conv2d):
    """A user's."""


def test_what_is_left_alone_has_a_reason() -> None:
    patched = tnn.Conv2d(3, 3, 1)
    patched.forward = lambda input: input  # type: ignore[method-assign]
    parametrized = tnn.Conv2d(3, 3, 1)
    parametrize.register_parametrization(parametrized, "weight", tnn.Identity())
    script = torch.jit.script(tnn.Conv2d(3, 3, 1))
    layers = [Own(3, 3, 1), patched, parametrized, tnn.LazyConv2d(3, 1), script, tnn.Flatten()]
    named = tnn.Conv2d(3, 3, 1)
    named.family = "resnet"  # what our class has, too
    model = tnn.Sequential(*layers, tnn.Conv2d(3, 3, 1), named)
    steps = conversion_steps(model)
    assert {step.name: step.reason for step in steps if "parametrizations" not in step.name} == {
        "0": "a subclass of Conv2d",
        "1": "its forward was replaced",
        "2": "a parametrized Conv2d",
        "3": "not initialised yet: it becomes a Conv2d at its first call",
        "4": "compiled by TorchScript",
        "5": "torch_cudnn_ext.nn has nothing for it",
        "6": "",
        "7": "it has a family of its own",
    }
    types = [type(layer) for layer in model]
    convert(model)
    assert [type(layer) for layer in model] == [*types[:6], nn.Conv2d, tnn.Conv2d]


def test_weight_norm_and_traced_graphs_go_on() -> None:
    x = torch.randn(2, 3, 5, 5)
    with pytest.warns(FutureWarning):
        normed = weight_norm(tnn.Conv2d(3, 4, 3))
    expected = normed(x)
    assert type(convert(normed)) is nn.Conv2d
    assert torch.allclose(normed(x), expected, atol=1e-6)
    network = small_network()
    expected = network(x)
    graph = torch.fx.symbolic_trace(network)
    convert(graph)
    assert torch.allclose(graph(x), expected, atol=1e-6)
    assert type(graph.get_submodule("0")) is nn.Conv2d


def test_copies_and_pickles_are_converted_too() -> None:
    model: Any = convert(small_network(), policy="backends=cpu")
    x = torch.randn(2, 3, 5, 5)
    expected = model(x)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin.get_submodule("1.1")) is nn.Softmax and twin[0].policy == "backends=cpu"
        assert torch.equal(twin(x), expected)
        assert twin[0].weight.data_ptr() != model[0].weight.data_ptr()
    plain = small_network()
    plain.load_state_dict(model.state_dict())
    assert torch.allclose(plain(x), expected, atol=1e-6)


def test_for_a_while() -> None:
    model = tnn.Sequential(tnn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1, policy="backends=aten"))
    with pytest.raises(RuntimeError, match="stop"), converted(model):
        assert type(model[0]) is nn.Conv2d
        raise RuntimeError("stop")
    assert type(model[0]) is tnn.Conv2d and type(model[1]) is nn.Conv2d
    assert model[1].policy == "backends=aten"


def test_for_a_while_subclasses_that_compute_alike_are_exchanged() -> None:
    class Other(Own):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    own, other = Own(3, 3, 1), Other(3, 3, 1)
    x = torch.randn(1, 3, 2, 2)
    expected = own(x)
    with converted(tnn.Sequential(own, other)):
        assert isinstance(own, nn.Conv2d) and isinstance(own, Own)
        assert torch.allclose(own(x), expected, atol=1e-6)
        assert type(other) is Other
    assert type(own) is Own


# What the wanted backends compute.


def test_coverage_counts_calls_by_kind() -> None:
    model = small_network()
    model.append(tnn.Hardsigmoid())
    x = torch.randn(2, 3, 6, 6)
    result = coverage(model, x, backends="cpu")
    # The first layer's input needs no gradient.
    assert result.families["conv"].calls == 5 and result.families["softmax"].calls == 2
    assert result.share() == result.share("conv") == 1
    assert result.elsewhere == {"aten.hardsigmoid": 1}
    assert type(model[0]) is tnn.Conv2d
    assert all(p.grad is None for p in model.parameters())
    result = coverage(model, x, backward=False, backends="cpu")
    assert result.families["conv"].calls == 2


@pytest.mark.parametrize(
    ("name", "device"),
    [(name, "cpu") for name in MODELS]
    + [pytest.param(name, "cuda", marks=BIG_CUDA_MARKS) for name in MODELS],
)
def test_converted_networks_run_the_backends_asked_for(name: str, device: str) -> None:
    knobs.allow_reduced_range = True  # as cuDNN's maximum pooling has it
    model, x = vision_model(name).to(device), images(name, 2).to(device)
    assert coverage(model, x, backends=WANTED[device]).share(*FAMILIES) >= 0.95


@pytest.mark.parametrize("kind", [Tagger, LanguageModel])
def test_converted_sequence_models_run_the_backends_asked_for(
    kind: type[tnn.Module], device: str
) -> None:
    knobs.allow_reduced_range = True  # as cuDNN's softmax over rows has it
    words = torch.randint(50, (5, 6), device=device)
    result = coverage(kind().to(device), words, backends=WANTED[device])
    assert result.share(*FAMILIES) >= 0.95


def test_coverage_takes_lists_of_backends() -> None:
    model, x = small_network(), torch.randn(2, 3, 6, 6)
    for backends in ("aten,cpu", ["aten", "cpu"]):
        result = coverage(model, x, backends=backends)
        assert result.share() == 1 and result.backends == "aten,cpu"
    with pytest.raises(ValueError, match="backends: got 'cuda', wanted"):
        coverage(model, x, backends="cuda")
    with pytest.raises(ValueError, match="backends: got 'cpu;deterministic', wanted .*without ';'"):
        coverage(model, x, backends="cpu;deterministic")
    with pytest.raises(TypeError, match=r"backends: got 3 \(int\), wanted"):
        coverage(model, x, backends=3)  # type: ignore[arg-type]


def test_blanks_in_a_policy_make_no_difference() -> None:
    text = "softmax_fwd=cpu:im2col; on_unsupported=fallback"
    converted = convert(small_network(), policy=text)
    assert converted(torch.randn(2, 3, 6, 6)).isfinite().all()


class Functional(tnn.Conv2d):
    """A layer whose code calls PyTorch's functions, rather than layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(F.conv2d(x, self.weight - self.weight.mean()), (4, 4))
        return F.max_pool2d(F.avg_pool2d(x, 2), 2)


def test_coverage_counts_what_functions_compute() -> None:
    model = tnn.Sequential(Functional(3, 4, 3), tnn.Flatten(), tnn.Linear(4, 2))
    result = coverage(model, torch.randn(2, 3, 6, 6), backends="cpu")
    calls = {name: (family.calls, family.inside) for name, family in result.families.items()}
    assert calls == {"conv": (2, 2), "layer_norm": (2, 2), "pool": (4, 4), "matmul": (3, 3)}
    assert {"aten.sub", "aten.mean"} <= result.elsewhere.keys()
    assert not any(word in str(result.elsewhere) for word in ("conv", "norm", "pool"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_coverage_counts_layers_that_go_another_way_while_they_are_watched() -> None:
    attention = tnn.MultiheadAttention(8, 2, batch_first=True)

    class Attends(tnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.last = attention, tnn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(self.attention(x, x, x, need_weights=False)[0])
            return out

    x = torch.randn(2, 3, 8)
    result = coverage(Attends().eval(), x, backward=False, backends="cpu")
    assert result.share("matmul") == 1


def test_coverage_names_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    result = coverage(small_network(), torch.randn(2, 3, 6, 6))
    assert result.share() == 0
    reason = "cuDNN runs on CUDA devices only"
    assert result.families["conv"].exceptions == {reason: 5}
    result.print()
    assert reason in capsys.readouterr().out


def test_a_dry_run_computes_nothing_and_is_over_afterwards() -> None:
    layer = nn.Softmax(1)
    x = torch.randn(3, 4)
    before = last_decision("softmax_fwd")
    with pytest.raises(KeyError):
        _C.problems_posed_by(lambda: vars(layer)["nothing"])
    assert _C.problems_posed_by(lambda: layer(x)) == ["softmax_fwd x=f32[3,4,1]:nchw log=false"]
    assert last_decision("softmax_fwd") == before
    assert torch.allclose(layer(x), x.softmax(1))


def test_a_recording_holds_every_execution_in_order() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with recording():
        nn.Softmax(1)(x).sum().backward()
        ran = [call["op"] for call in _C.recorded() if not isinstance(call, str)]
        assert ran == ["softmax_fwd", "softmax_bwd"]
        with recording():
            assert _C.recorded() == []
        assert len(_C.recorded()) == 2
    assert _C.recorded() == []


def test_coverage_leaves_layers_of_this_package_as_they_were() -> None:
    made, taken = nn.Conv2d(3, 4, 3), convert(tnn.Conv2d(4, 4, 3))
    own = nn.Conv2d(4, 4, 1, policy="guess_once")
    model = tnn.Sequential(made, taken, own)
    model(torch.randn(1, 3, 8, 8))
    policies, frozen = [layer.policy for layer in model], own._running
    result = coverage(model, torch.randn(1, 3, 8, 8), backends="cpu")
    assert [layer.policy for layer in model] == policies
    assert own._running == frozen and result.share() < 1
    assert result.families["conv"].exceptions.keys() == {
        "it is pinned, or its layer has a policy of its own"
    }
    with pytest.raises(RuntimeError):
        coverage(tnn.Sequential(made, Failing()), torch.randn(1, 3, 8, 8), backends="cpu")
    assert made.policy is None


class Failing(tnn.Module):
    """Runs without gradients alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise RuntimeError("no")
        return x


# What PyTorch's classes cannot do, and arguments.


def test_modules_without_an_equal_are_left_as_they_are() -> None:
    x = torch.randn(5, 2, 4)
    model = tnn.Sequential(nn.LSTM(4, 4, skip_input=True))
    states = nn.GRU(4, 4, remember_states=True)
    steps = conversion_steps(tnn.ModuleList([model, states, nn.ClippedReLU()]), "torch")
    assert {step.name: step.reason for step in steps} == {
        "0.0": "torch.nn has no skip_input",
        "1": "torch.nn has no remember_states",
        "2": "torch.nn has nothing for it",
    }
    assert type(convert(model, to="torch")[0]) is nn.LSTM and states is convert(states, to="torch")
    model(x)
    assert type(convert(nn.LSTM(4, 4), to="torch")) is tnn.LSTM


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"model": [tnn.ReLU()]}, "argument model: got .*list.*Module"),
        ({"exclude": "x"}, "argument exclude: got 'x'"),
        (
            {"exclude": lambda module: True},
            "argument exclude: got <function .*lambda.* of a name and",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], wanted: str) -> None:
    with pytest.raises(TypeError, match=wanted):
        convert(**{"model": tnn.ReLU(), **arguments})


def test_a_subclass_keeps_attributes_of_its_own() -> None:
    layer = Own(3, 3, 1)
    layer.policy = "mine"  # type: ignore[assignment]
    with converted(tnn.Sequential(layer)):
        assert type(layer) is Own
    assert layer.policy == "mine"


def test_a_module_refuses_an_algorithm_that_there_is_not() -> None:
    module = nn.Conv2d(1, 1, 1, policy="fwd=cpu:im2col")
    for fails in (
        lambda: nn.MaxPool2d(2, policy="cpu:nope"),
        lambda: module.set_mode(fwd="cpu:nope"),
        lambda: setattr(module, "policy", {"bwd_data": "aten:nope"}),
    ):
        with pytest.raises(ValueError, match="policy: got '(cpu|aten):nope' for .*wanted one of"):
            fails()
    assert module.policy == "fwd=cpu:im2col"
    module.policy = "fwd=cpu:nope;on_unsupported=fallback"


@pytest.mark.parametrize("ours", OURS.values(), ids=lambda cls: cls.__name__)
def test_what_every_operator_has_is_a_policy(ours: Any) -> None:
    for name in passes_of(ours.family):
        for algorithm in algorithms_of(ours.family, name):
            assert as_policy({name: algorithm}, ours.family).get(name) == algorithm
        assert {"aten:default"} < set(algorithms_of(ours.family, name))


@pytest.mark.parametrize("inside", [lambda: None, lambda: 1 / 0], ids=["ends", "raises"])
def test_transformers_have_their_fast_paths_again_behind_a_look(inside: Any) -> None:
    layer = tnn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = tnn.TransformerEncoder(layer, 1, enable_nested_tensor=True)
    before = [{**vars(module)} for module in model.modules()]
    with suppress(ZeroDivisionError), converted(model):
        assert not model.use_nested_tensor
        assert not model.layers[0].activation_relu_or_gelu
        inside()
    assert model.use_nested_tensor and model.layers[0].activation_relu_or_gelu
    assert [{**vars(module)} for module in model.modules()] == before


def test_a_policy_of_another_operator_is_checked_as_its_text_is() -> None:
    with pytest.raises(ValueError, match="cpu:im2col"):
        Policy(fwd="cpu:im2col", family="softmax")
    with pytest.raises(ValueError, match="cpu:im2col"):
        convert(tnn.Sequential(tnn.Conv2d(3, 4, 3)), policy="softmax_fwd=cpu:im2col")


def test_what_convolutions_keep_reaches_networks_of_other_layers(device: str) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Softmax(1)
    ).to(device)
    x = torch.randn(2, 3, 6, 6, device=device)
    expected = model(x)
    convert(model, policy="conv=guess_once")
    torch.testing.assert_close(model(x), expected)
    assert "fwd=guess_once" in model[0].policy


def _resized(padding: str) -> torch.nn.Module:
    layer = torch.nn.Conv2d(4, 4, 1, padding=padding)
    layer.weight = torch.nn.Parameter(torch.randn(4, 4, 3, 3))
    return layer


def _changed(layer: torch.nn.Module, **attributes: Any) -> torch.nn.Module:
    for name, value in attributes.items():
        setattr(layer, name, value)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda: _resized("same"),
        lambda: _resized("valid"),
        lambda: _changed(tnn.Conv2d(4, 4, 3), stride=2),
        lambda: _changed(tnn.Conv2d(4, 4, 3, padding="same"), dilation=2),
        lambda: _changed(tnn.Conv2d(4, 4, 3), padding=1, dilation=(2,)),
        lambda: tnn.ReLU(inplace=0),
        lambda: tnn.ELU(inplace=None),
        lambda: tnn.Dropout(0.0, 0),
        lambda: tnn.MaxPool2d(2, return_indices=0),
    ],
)
@pytest.mark.parametrize("policy", [None, "conv=guess_once"])
def test_attributes_are_read_as_pytorch_reads_them(make: Any, policy: str | None) -> None:
    layer, x = tnn.Sequential(make()), torch.randn(2, 4, 8, 8)
    expected = layer(x.clone())
    if policy is not None and not isinstance(layer[0], tnn.Conv2d):
        with pytest.raises(ValueError, match="wanted one for layers of"):
            convert(layer, policy=policy)
        return
    torch.testing.assert_close(convert(layer, policy=policy)(x), expected)


def test_transposed_convolutions_pad_with_zeros_alone() -> None:
    layer = convert(_changed(tnn.ConvTranspose2d(4, 4, 3), padding_mode="reflect"))
    with pytest.raises(ValueError, match="padding_mode is 'reflect', wanted 'zeros'"):
        layer(torch.randn(2, 4, 8, 8))


@pytest.mark.parametrize("word", ["softmax", "softmax_fwd"])
def test_pins_of_families_are_checked(word: str) -> None:
    with pytest.raises(ValueError, match="cpu:nonsense"):
        convert(tnn.Sequential(tnn.Conv2d(3, 4, 3)), policy=f"{word}=cpu:nonsense")
