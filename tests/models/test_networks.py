"""Whole networks, unmodified: what of them cuDNN computes and how well, and pins on one layer."""

import copy
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from math import isfinite
from operator import call as call_it
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from conftest import BIG_CUDA_MARKS, EVERY_NUMERICS
from networks import FAMILIES, MODELS, SMALL, WANTED, LanguageModel, Tagger, images, vision_model
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from torch_cudnn_ext import _C, Policy, apply_rules, enabled, explain, knobs, pinned, trace
from torch_cudnn_ext._timing import kernel_names
from torch_cudnn_ext._workload.running import recording
from torch_cudnn_ext.analysis.coverage import _unsupported
from torch_cudnn_ext.analysis.explain import LayerCall
from torch_cudnn_ext.models.classes import counterparts

pytestmark = pytest.mark.usefixtures("no_tf32")

SEQUENCES = {"Tagger": Tagger, "LanguageModel": LanguageModel}
SETTINGS = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
LAYERS = {theirs.__name__: ours.family for theirs, ours in counterparts().items()}
# What errors may be beyond three times PyTorch's, of outputs and of gradients. A rounded input of a
# ReLU may change its sign, and all gradients before it: in float32 these differ by a few percent.
SLACK = {"f32": (1e-4, 5e-2), "f16": (1e-2, 1e-2), "bf16": (1e-2, 1e-2)}
# Of the loss of images, whose gradients are below float16's range; those of sequences are within.
SCALE = 1024.0

Results = tuple[list[Tensor], list[Tensor]]


class Squares(nn.Module):
    """A network behind a loss: the mean square of its outputs. Gives these too."""

    def __init__(self, network: nn.Module, scale: float) -> None:
        super().__init__()
        self.network, self.scale = network, scale

    def forward(self, inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs = [t for t in tree_leaves(self.network(inputs)) if t.is_floating_point()]
        losses = torch.stack([t.double().square().mean() for t in outputs])
        return self.scale * losses.sum(), [t.detach() for t in outputs]


def results(model: nn.Module, inputs: Tensor) -> Results:
    """Outputs, and the gradients of all parameters."""
    loss, outputs = model(inputs)
    return outputs, list(torch.autograd.grad(loss, list(model.parameters())))


@lru_cache(maxsize=1)
def prepared(name: str, device: str) -> tuple[nn.Module, Tensor, Results]:
    """A network that trains with nothing random in it, inputs, and its results in float64."""
    torch.manual_seed(0)
    if name in SEQUENCES:
        model = Squares(SEQUENCES[name](), 1).train()
    else:
        model = Squares(vision_model(name), SCALE).train()
    for module in model.modules():
        if isinstance(module, _DropoutNd | torchvision.ops.StochasticDepth):
            module.eval()
    if name in SEQUENCES:
        x = torch.randint(50, (4, 6))
    else:
        x = images(name, 4 if MODELS[name] < 100 else 1)  # one large image takes seconds
    model, x = model.to(device), x.to(device)
    double = x.double() if x.is_floating_point() else x
    return model, x, results(copy.deepcopy(model).double(), double)


def errors(found: Results, expected: Results) -> list[float]:
    """Of the outputs together, and of the gradients together: relative to the norm."""

    def norm(tensors: list[Tensor]) -> float:
        return float(torch.stack([t.norm() for t in tensors]).norm())

    return [
        norm([a.double() - b for a, b in zip(mine, wanted, strict=True)]) / norm(wanted)
        for mine, wanted in zip(found, expected, strict=True)
    ]


def unsupported_of(model: nn.Module, inputs: Tensor, device: str) -> dict[str, str]:
    """By problem line, why the wanted backends do not take it or what shares its algorithm."""
    with enabled(f"backends={WANTED[device]},aten"):
        lines = [line.partition("  #")[0] for line in trace(model, inputs)]
    return _unsupported(dict.fromkeys(lines, device), f"backends={WANTED[device]}", None)


def exceptions_of(
    calls: list[LayerCall], device: str, unsupported: dict[str, str]
) -> tuple[int, Counter[str]]:
    """How many calls there are that the wanted backends could run, and which they did not."""
    backends = _C.policy_fields(f"backends={WANTED[device]}")["backends"]
    count, exceptions = 0, Counter[str]()
    for call in calls:
        # Without a problem and a layer's kind it is a function's call that was declined.
        known = _C.problem_info(call.problem)["family"] if call.problem else LAYERS.get(call.kind)
        if known is not None and known not in FAMILIES:
            continue
        count += 1
        if call.algorithm.partition(":")[0] not in backends:
            exceptions[f"{call.op or call.kind}: {unsupported.get(call.problem, call.why)}"] += 1
    return count, exceptions


def network_cases() -> list[Any]:
    """Name, setting, layout and device."""
    cases = []
    for device in ("cuda", "cpu"):
        for name in [*MODELS, *SEQUENCES]:
            few = device == "cpu" and name not in (*SMALL, *SEQUENCES)
            for setting in ("f32",) if few else SETTINGS:
                if device == "cpu" and name in SEQUENCES and setting == "f16":
                    continue  # PyTorch has no such LSTM there
                for layout in ("nchw",) if few or name in SEQUENCES else ("nchw", "nhwc"):
                    case = (name, setting, layout, device)
                    marks = BIG_CUDA_MARKS if device == "cuda" else ()
                    cases.append(pytest.param(*case, id="-".join(case), marks=marks))
    return cases


@pytest.mark.parametrize(("name", "setting", "layout", "device"), network_cases())
def test_networks_run_unmodified_with_cudnn(
    name: str, setting: str, layout: str, device: str
) -> None:
    half_lstm = name == "Tagger" and setting == "bf16" and device == "cpu"
    if half_lstm and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("PyTorch's LSTM raises under autocast to bfloat16 on this CPU")
    knobs.allow_reduced_range = True  # as cuDNN's maximum pooling has it
    shared, inputs, expected = prepared(name, device)
    model: Any = copy.deepcopy(shared)
    if layout == "nhwc":
        form = FORMATS[inputs.dim()]
        model, inputs = model.to(memory_format=form), inputs.to(memory_format=form)
    dtype = SETTINGS[setting]
    with torch.autocast(device, dtype, enabled=dtype is not None):
        theirs = errors(results(copy.deepcopy(model), inputs), expected)
        unsupported = unsupported_of(model, inputs, device)
        rules = dict.fromkeys(unsupported, "backends=aten")
        with apply_rules(rules), enabled(f"backends={WANTED[device]}"):
            calls = explain(model, inputs, train=True, measure=False).calls
            ours = errors(results(model, inputs), expected)
    count, exceptions = exceptions_of(calls, device, unsupported)
    inside = count - exceptions.total()
    print(f"\n{name} {setting} {layout}: {WANTED[device]} runs {inside}/{count}")
    print(f"  errors {ours}, PyTorch's {theirs}")
    for reason, times in exceptions.most_common():
        print(f"  {times} x {reason}")
    assert inside >= 0.95 * count > 0
    for mine, pytorchs, slack in zip(ours, theirs, SLACK[setting], strict=True):
        assert isfinite(pytorchs)
        assert mine <= 3 * pytorchs + slack


# Pins on one layer.

LAYER = "layer1.0.conv2"
PASSES = ("conv_fwd", "conv_bwd_data", "conv_bwd_filter")


def problems_of(model: nn.Module, x: Tensor) -> dict[str, str]:
    """The problem of each pass of the layer."""
    calls = explain(model, x, train=True, measure=False).calls
    return {call.op: call.problem for call in calls if call.layer == LAYER}


def algorithms_of(problem: str, device: str, policy: str) -> list[str]:
    """All of the CPU or of cuDNN's classic API, and three engines; each with its first options."""
    named: dict[str, str] = {}
    for row in _C.candidates(problem, device, policy):
        if row["status"] == "ok":
            named.setdefault(row["algorithm"].partition("/")[0], row["algorithm"])
    engines = [algorithm for name, algorithm in named.items() if name.startswith("graph:")][:3]
    return engines + [a for name, a in named.items() if name.startswith(("cpu:", "legacy:"))]


def input_of(model: nn.Module, layer: nn.Module, x: Tensor) -> Tensor:
    """What the layer is called with inside the model."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(x)
    hook.remove()
    return seen[0].requires_grad_()


def works_of(layer: nn.Module, x: Tensor) -> dict[str, Callable[[], object]]:
    """What runs one pass of a layer alone."""
    y = layer(x)
    dy = torch.randn_like(y)

    def gradient(of: Tensor) -> object:
        return torch.autograd.grad(y, of, dy, retain_graph=True)

    weight = layer.get_parameter("weight")
    return dict(
        zip(PASSES, (lambda: layer(x), lambda: gradient(x), lambda: gradient(weight)), strict=True)
    )


def kernels_of(work: Callable[[], object], device: str) -> set[str]:
    work()
    names = kernel_names(work, call_it, device)
    return {name for name in names if not name.startswith(("Memset", "Memcpy"))}


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=BIG_CUDA_MARKS)])
def test_pins_on_one_layer_of_resnet50(op: str, device: str) -> None:
    # The CPU's is smaller; its layer has the same name and filter.
    kind, batch, size = ("resnet50", 8, 224) if device == "cuda" else ("resnet18", 2, 32)
    model = torchvision.models.get_model(kind, weights=None).to(device)
    x = torch.randn(batch, 3, size, size, device=device)
    layer, problem = model.get_submodule(LAYER), problems_of(model, x)[op]
    layer_input = input_of(model, layer, x)
    algorithms = algorithms_of(problem, device, EVERY_NUMERICS)
    assert len(algorithms) >= (7 if device == "cuda" else 3), algorithms
    tensors = _C.scratch(problem, device)
    failures = []
    for algorithm in algorithms:
        policy = Policy.parse(f"{op}={algorithm};{EVERY_NUMERICS}")
        with pinned(model, {LAYER: policy}):
            work = works_of(layer, layer_input)[op]
            work()
            last = _C.last_decision(op)
            kernels = kernels_of(work, device) if device == "cuda" else set()
            calls = explain(model, x, train=True, measure=False).calls
        assert last is not None
        if (last["problem"], last["algorithm"]) != (problem, algorithm):
            failures.append(f"{algorithm}: the layer alone ran {last}")
        convolutions = [c for c in calls if c.op in PASSES and c.why.startswith("pinned")]
        ran = [(c.layer, c.op, c.algorithm) for c in convolutions]
        if ran != [(LAYER, op, algorithm)]:
            failures.append(f"{algorithm}: pinned in a step was {ran}")
        if device == "cuda":
            work = partial(_C.run, problem, algorithm, dict(tensors), EVERY_NUMERICS)
            alone = kernels_of(work, device)
            if not alone or not alone <= kernels:
                failures.append(f"{algorithm}: launches {alone}, the layer {kernels}")
    assert not failures, "\n".join([f"{problem} on {device}:", *failures])


WAYS: dict[str, Callable[[nn.Module], Callable[[Tensor], Any]]] = {
    "accumulation": lambda model: model,
    "checkpoint": lambda model: lambda x: checkpoint(model, x, use_reentrant=False),
    "reentrant checkpoint": lambda model: (
        lambda x: checkpoint(model, x.requires_grad_(), use_reentrant=True)
    ),
    "DistributedDataParallel": nn.parallel.DistributedDataParallel,
}


def accumulated(model: nn.Module, forward: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    """Gradients over two halves of a batch."""
    model.zero_grad()
    for half in x.chunk(2):
        forward(half).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("way", WAYS)
def test_a_pin_holds_however_the_network_is_trained(way: str, device: str, tmp_path: Path) -> None:
    # In float64, since batch norm over few values magnifies what rounding does to gradients.
    model = torchvision.models.resnet18().double().to(device)
    x = torch.randn(4, 3, 64, 64, dtype=torch.double, device=device)
    plain = accumulated(model, model, x)
    problems = problems_of(model, x[:2])
    pins = {op: algorithms_of(problems[op], device, "backends=cpu,legacy")[0] for op in PASSES}
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        chosen = {LAYER: ";".join(f"{op}={name}" for op, name in pins.items())}
        with pinned(model, chosen), recording():
            ours = accumulated(model, WAYS[way](model), x)
            calls = [call for call in _C.recorded() if not isinstance(call, str)]
    finally:
        torch.distributed.destroy_process_group()
    ran = Counter((call["op"], call["algorithm"]) for call in calls)
    forwards = 4 if "checkpoint" in way else 2
    assert ran == {(op, pins[op]): forwards if op == "conv_fwd" else 2 for op in PASSES}
    for mine, wanted in zip(ours, plain, strict=True):
        assert float((mine - wanted).norm()) <= 1e-6 * float(wanted.norm()) + 1e-12
