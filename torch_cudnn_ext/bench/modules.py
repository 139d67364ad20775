"""Modules of ``torch.nn`` compared with their drop-ins of `nn`, beyond convolution.

Both sides have the same input and parameters. Compared are the forward without gradients and the
gradients alone, and of recurrent networks, whose training passes are tuned as one, also both
together. On a GPU the GPU's time counts: the host is given a head start.

A family is described by its classes in `nn`, its C++ operator and its record (`ops.family`). This
module lists sizes only: they are chosen for this comparison, and no other part reads them.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import call
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext import _C, nn
from torch_cudnn_ext._policy_text import operator_info
from torch_cudnn_ext._timing import current
from torch_cudnn_ext._torch_internals import keep_gradient_buffers
from torch_cudnn_ext._workload.models import in_channels_last
from torch_cudnn_ext._workload.problems import DTYPES
from torch_cudnn_ext.analysis.html import formatted
from torch_cudnn_ext.analysis.records import field_names
from torch_cudnn_ext.analysis.tables import ALGORITHM, Column, Table, milliseconds
from torch_cudnn_ext.bench import rounds
from torch_cudnn_ext.ops.family import family_named
from torch_cudnn_ext.tuning.measure import Progress, check_progress

_Window = int | tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A module and the sizes of its input.

    Attributes:
        module: The class, in ``torch.nn`` and in `nn`.
        arguments: The arguments of both constructors.
        sizes: The sizes of the input.
        training: Whether the modules are in training mode.
        kind: What sets the case apart from others of its family in the geometric means.
    """

    module: str
    arguments: dict[str, Any]
    sizes: tuple[int, ...]
    training: bool = True
    kind: str = ""

    @property
    def text(self) -> str:
        """``BatchNorm2d(num_features=64) on [64,64,56,56]``."""
        arguments = ", ".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.module}({arguments}) on [{','.join(map(str, self.sizes))}]"

    @property
    def family(self) -> str:
        """The operator family of the module."""
        return str(getattr(nn, self.module).family)

    @property
    def group(self) -> str:
        """The group of the geometric means."""
        return f"{self.family} {self.kind}".rstrip()

    @property
    def passes(self) -> tuple[str, ...]:
        """What is compared: ``fwd``, ``bwd``, and ``fwd+bwd`` if both are tuned as one."""
        coupled = operator_info(self.family)["is_always_coupled"]
        return ("fwd", "bwd", "fwd+bwd") if coupled else ("fwd", "bwd")


def _pool(
    module: str, kernel: _Window, stride: _Window, padding: _Window, *sizes: int, **more: bool
) -> Case:
    arguments = {"kernel_size": kernel, "stride": stride, "padding": padding, **more}
    return Case(module, arguments, sizes)


def _rnn(
    module: str, steps: int, batch: int, inputs: int, hidden: int, layers: int, **more: int
) -> Case:
    arguments = {"input_size": inputs, "hidden_size": hidden, "num_layers": layers, **more}
    return Case(module, arguments, (steps, batch, inputs))


def _norms(*inputs: tuple[int, ...]) -> list[Case]:
    names = {sizes: f"BatchNorm{max(1, len(sizes) - 2)}d" for sizes in inputs}
    return [Case(names[sizes], {"num_features": sizes[1]}, sizes) for sizes in inputs]


def _softmaxes(dim: int, *inputs: tuple[int, ...]) -> list[Case]:
    return [Case("Softmax", {"dim": dim}, sizes) for sizes in inputs]


CASES: tuple[Case, ...] = (
    *_norms((64, 64, 112, 112), (32, 64, 56, 56), (32, 256, 56, 56), (64, 512, 14, 14)),
    *_norms((16, 48, 75, 91), (4, 32, 16, 28, 28)),
    _pool("MaxPool2d", 3, 2, 1, 64, 64, 112, 112),
    _pool("MaxPool2d", 2, 2, 0, 32, 128, 56, 56),
    _pool("MaxPool2d", 3, 1, 1, 32, 192, 28, 28),
    _pool("AvgPool2d", 3, 2, 1, 64, 64, 112, 112),
    _pool("AvgPool2d", 2, 2, 0, 32, 256, 28, 28),
    _pool("AvgPool2d", 7, 7, 0, 64, 512, 7, 7),
    *_softmaxes(1, (64, 21, 256, 256), (64, 21, 512, 512), (8, 150, 128, 128)),
    Case("LogSoftmax", {"dim": 1}, (16, 19, 128, 256)),
    Case("Softmax", {"dim": 1}, (256, 1000), kind="rows"),
    Case("Softmax", {"dim": -1}, (8, 12, 512, 512), kind="rows"),
    Case("LayerNorm", {"normalized_shape": 768}, (32, 197, 768)),
    Case("GroupNorm", {"num_groups": 32, "num_channels": 256}, (16, 256, 32, 32)),
    Case("InstanceNorm2d", {"num_features": 64}, (8, 64, 128, 128)),
    _rnn("LSTM", 50, 1, 256, 256, 1),
    _rnn("LSTM", 64, 32, 512, 512, 4),
    _rnn("LSTM", 128, 64, 1024, 1024, 2),
    _rnn("LSTM", 30, 16, 384, 384, 2),
    _rnn("LSTM", 100, 8, 200, 200, 1),
    Case("GRU", {"input_size": 512, "hidden_size": 512}, (64, 32, 512)),
)

# Modules of many kinds of networks, and of odd sizes.
MIXED: tuple[Case, ...] = (
    _pool("MaxPool2d", 2, 2, 0, 16, 64, 224, 224),
    _pool("MaxPool2d", 3, 2, 0, 8, 96, 55, 55),
    _pool("MaxPool2d", 3, 2, 1, 16, 192, 56, 56, ceil_mode=True),
    _pool("MaxPool2d", 5, 1, 2, 8, 512, 20, 20),
    _pool("MaxPool2d", 13, 1, 6, 8, 512, 20, 20),
    _pool("MaxPool2d", 3, 2, 1, 4, 24, 97, 131),
    _pool("MaxPool1d", 3, 2, 1, 32, 128, 4000),
    _pool("MaxPool3d", 2, 2, 0, 4, 64, 16, 56, 56),
    _pool("MaxPool3d", (1, 3, 3), (1, 2, 2), (0, 1, 1), 4, 64, 16, 56, 56),
    _pool("AvgPool2d", 3, 1, 1, 16, 288, 35, 35),
    _pool("AvgPool2d", 2, 2, 0, 16, 128, 56, 56),
    _pool("AvgPool2d", 4, 4, 0, 16, 3, 512, 512),
    _pool("AvgPool2d", 3, 2, 1, 16, 100, 33, 47, count_include_pad=False),
    _pool("AvgPool1d", 4, 4, 0, 32, 256, 2000),
    _pool("AvgPool3d", 2, 2, 0, 2, 64, 16, 56, 56),
    Case("AdaptiveAvgPool2d", {"output_size": 1}, (32, 2048, 7, 7)),
    Case("AdaptiveAvgPool2d", {"output_size": 7}, (16, 512, 14, 14)),
    Case("LPPool2d", {"norm_type": 2, "kernel_size": 2, "stride": 2}, (16, 64, 56, 56)),
    *_norms((16, 32, 256, 256), (8, 1280, 7, 7), (128, 24, 56, 56), (2, 256, 200, 304)),
    *_norms((32, 2048, 7, 7)),
    Case("BatchNorm2d", {"num_features": 128}, (32, 128, 28, 28), training=False),
    *_norms((3, 17, 33, 47), (256, 1024), (32, 256, 500), (2, 64, 16, 56, 56)),
    *_softmaxes(-1, (8, 16, 1024, 1024), (32, 50257)),
    *_softmaxes(1, (4, 8, 32, 64, 64), (8, 2, 512, 512), (64, 10), (16, 64, 300), (2000, 91)),
    Case("LogSoftmax", {"dim": -1}, (4096, 32000)),
    Case("LogSoftmax", {"dim": 1}, (4, 35, 200, 300)),
    Case("Softmax", {"dim": 0}, (1000, 64, 20)),
    Case("LayerNorm", {"normalized_shape": 1024}, (8, 1024, 1024)),
    Case("LayerNorm", {"normalized_shape": 384}, (64, 196, 384)),
    Case("LayerNorm", {"normalized_shape": 4096}, (4, 2048, 4096)),
    Case("LayerNorm", {"normalized_shape": 100}, (16, 50, 100)),
    Case("LayerNorm", {"normalized_shape": (64, 24, 24)}, (32, 64, 24, 24)),
    Case("RMSNorm", {"normalized_shape": 4096}, (4, 2048, 4096)),
    Case("RMSNorm", {"normalized_shape": 768}, (16, 512, 768)),
    Case("GroupNorm", {"num_groups": 32, "num_channels": 128}, (8, 128, 64, 64)),
    Case("GroupNorm", {"num_groups": 8, "num_channels": 320}, (4, 320, 32, 32)),
    Case("InstanceNorm2d", {"num_features": 256}, (4, 256, 64, 64)),
    Case("InstanceNorm2d", {"num_features": 32, "affine": True}, (16, 32, 128, 128)),
    Case("LocalResponseNorm", {"size": 5}, (32, 96, 55, 55)),
    _rnn("LSTM", 35, 20, 650, 650, 2),
    _rnn("LSTM", 200, 64, 80, 128, 1, bidirectional=True),
    _rnn("LSTM", 25, 128, 300, 512, 2, bidirectional=True),
    _rnn("LSTM", 10, 1, 64, 64, 1),
    _rnn("LSTM", 40, 32, 256, 512, 2, proj_size=128),
    _rnn("GRU", 100, 16, 128, 256, 3),
    _rnn("GRU", 50, 64, 300, 300, 1, bidirectional=True),
    _rnn("RNN", 64, 32, 256, 256, 2),
    Case("ReLU", {}, (32, 256, 56, 56)),
    Case("SiLU", {}, (16, 96, 112, 112)),
    Case("Tanh", {}, (64, 1024)),
    Case("Sigmoid", {}, (16, 1, 512, 512)),
    Case("ELU", {}, (8, 128, 40, 40)),
    Case("ReLU6", {}, (16, 144, 56, 56)),
    Case("Linear", {"in_features": 1024, "out_features": 4096}, (256, 1024)),
    Case("Linear", {"in_features": 2048, "out_features": 1000}, (64, 2048)),
    Case("Linear", {"in_features": 768, "out_features": 3072}, (16, 197, 768)),
)


@dataclass
class ModuleComparison:
    """One pass of one module, tuned here and as PyTorch runs it.

    ``ratio`` is PyTorch's time by ours, above 1 if ours is faster, with a 95 % interval.
    """

    family: str  # the group of the geometric means
    module: str
    layout: str
    dtype: str
    pass_name: str  # "fwd", "bwd" or "fwd+bwd"
    algorithm: str
    ours_ms: float
    pytorch_ms: float
    compiled_ms: float | None  # of torch.compile, if asked for
    ratio: float
    ratio_low: float
    ratio_high: float


def select_cases(text: str, channels_last: bool) -> list[Case]:
    """The cases that a text names: ``all``, ``mixed``, or words of modules' names, with commas.

    Raises:
        ValueError: A word is in no name.
    """
    listed = MIXED if text == "mixed" else CASES
    cases = [case for case in listed if not channels_last or len(case.sizes) in (4, 5)]
    if text in ("all", "mixed"):
        return cases
    known = list(dict.fromkeys(case.module for case in cases))
    words = [word.strip() for word in text.split(",")]
    if not all(word and any(word in name for name in known) for word in words):
        condition = " with --channels-last" if channels_last else ""
        raise ValueError(
            f"got {text!r}{condition}, wanted all, mixed or words of {', '.join(known)}"
        )
    return [case for case in cases if any(word in case.module for word in words)]


def compare_modules(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    channels_last: bool,
    device: str,
    policy: str = rounds.DEFAULT_POLICY,
    compiled: bool = False,
    progress: Progress | None = None,
) -> Iterator[ModuleComparison]:
    """Compare module by module, forward and backward.

    Args:
        cases: What to compare; their classes must be in `nn`.
        dtypes: ``f32``, ``f16``, ``bf16``.
        channels_last: Whether inputs, which must be 4-D or 5-D then, are channels-last.
        device: ``cpu`` or ``cuda[:i]``.
        policy: The policy of our modules.
        compiled: Also time ``torch.compile`` of PyTorch's module.
        progress: Told of every case.

    Raises:
        TypeError: ``progress`` lacks a method of `Progress`.
    """
    check_progress(progress)
    work = [(case, dtype) for case in cases for dtype in dtypes]
    for done, (case, dtype) in enumerate(work):
        if progress is not None:
            progress.problem(done, len(work), case.text)
        passes = _compare(case, dtype, channels_last, device, policy, compiled)
        while True:
            with current(device), torch.random.fork_rng(range(torch.cuda.device_count())):
                torch.manual_seed(0)
                result = next(passes, None)
            if result is None:
                break
            yield result


def _compare(
    case: Case, dtype: str, channels_last: bool, device: str, policy: str, compiled: bool
) -> Iterator[ModuleComparison]:
    theirs = getattr(torch.nn, case.module)(**case.arguments).to(device).train(case.training)
    ours = getattr(nn, case.module)(**case.arguments, policy=policy).to(device)
    ours.load_state_dict(theirs.state_dict())
    ours.train(case.training)
    if not family_named(case.family).float32_parameters:
        theirs, ours = theirs.to(DTYPES[dtype]), ours.to(DTYPES[dtype])
    x = torch.randn(case.sizes, device=device).to(DTYPES[dtype])
    if channels_last:
        x = in_channels_last(x)
    makers = {"fwd": _forward, "bwd": _backward, "fwd+bwd": _training}
    for pass_name in case.passes:
        make = makers[pass_name]
        sides = [make(ours, x)]
        decision = _C.last_decision()
        algorithm = decision["algorithm"] if decision is not None else ""
        sides.append(make(theirs, x))
        # Gradients are taken more than once, so a compiled backward must keep its buffers. PyTorch
        # reads this switch when it compiles, and again in each run.
        with keep_gradient_buffers():
            if compiled:
                # A copy has statistics of its own: PyTorch's backward raises if another forward
                # updated them. The compiler takes all modules for one function, and gives up on
                # the ninth without a reset.
                torch.compiler.reset()
                sides.append(make(torch.compile(copy.deepcopy(theirs)), x))
            timers = rounds.samplers([(side, call) for side in sides], device)
            result = rounds.compare_sides(timers[:2])
            times = [timers[2]() for _ in range(rounds.LEAST_ROUNDS) if compiled]
        yield ModuleComparison(
            family=case.group,
            module=case.text,
            layout="nhwc" if channels_last else "nchw",
            dtype=dtype,
            pass_name=pass_name,
            algorithm=algorithm,
            compiled_ms=statistics.median(times) if compiled else None,
            **result.fields(),
        )


def _forward(module: Callable[[Tensor], Any], x: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return module(x)

    run()
    return run


def _backward(module: Callable[[Tensor], Any], x: Tensor) -> Callable[[], object]:
    """The gradients of the input and all parameters, from one forward that is kept."""
    x = x.detach().requires_grad_()
    inputs = _differentiated(module, x)
    y = _output(module, x)
    grad = torch.randn_like(y)

    def run() -> object:
        return torch.autograd.grad(y, inputs, grad, retain_graph=True)

    run()
    return run


def _training(module: Callable[[Tensor], Any], x: Tensor) -> Callable[[], object]:
    """A forward and its gradients."""
    x = x.detach().requires_grad_()
    inputs = _differentiated(module, x)
    grad = torch.randn_like(_output(module, x))

    def run() -> object:
        return torch.autograd.grad(_output(module, x), inputs, grad)

    run()
    return run


def _differentiated(module: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    return [x, *(p for p in getattr(module, "parameters", list)() if p.requires_grad)]


def _output(module: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    y = module(x)
    output: Tensor = y[0] if isinstance(y, tuple) else y
    return output


COLUMNS = (
    Column("module", lambda r: r["module"]),
    Column("dtype", lambda r: f"{r['dtype']} {r['layout']}"),
    Column("pass", lambda r: r["pass_name"]),
    replace(ALGORITHM, heading="tuned"),
    *rounds.TIME_COLUMNS,
    Column("compiled ms", lambda r: milliseconds(r["compiled_ms"]), True),
    *rounds.RATIO_COLUMNS,
)


def geometric_means(comparisons: Sequence[ModuleComparison]) -> dict[str, float]:
    """Geometric means of the ratios, by family, pass and layout."""
    groups: dict[str, list[float]] = {}
    for comparison in comparisons:
        name = f"{comparison.family} {comparison.pass_name} {comparison.layout}"
        groups.setdefault(name, []).append(comparison.ratio)
    return {name: statistics.geometric_mean(ratios) for name, ratios in groups.items()}


def comparison_text(comparisons: Sequence[ModuleComparison], format: str) -> str | list[Table]:
    """Comparisons in a format; see `formatted`."""
    records = [dataclasses.asdict(comparison) for comparison in comparisons]
    means = geometric_means(comparisons)
    data = {"comparisons": records, "geometric_means": means}
    words = [f"{name}: {mean:.3f}" for name, mean in means.items()]
    footer = f"geometric means: {'; '.join(words)}" if words else ""
    title, names = "modules, tuned against PyTorch's", field_names(ModuleComparison)
    return formatted(format, data, title, COLUMNS, records, names, footer)
