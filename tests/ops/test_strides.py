"""Strides of results and gradients: PyTorch's, and the same of meta tensors."""

import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel

from torch_cudnn_ext import UnverifiedVersionWarning, convert, enabled, ops

Call = Callable[..., Tensor]
Layout = Callable[[Tensor], Tensor]


def _last(t: Tensor) -> Tensor:
    """Channels last, where a tensor has channels and space."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.to(memory_format=formats[t.dim()]) if t.dim() in formats else t


# Of inputs, and of gradients of results.
LAYOUTS: dict[str, Layout] = {"contiguous": lambda t: t.contiguous(), "channels_last": _last}
GRADIENTS: dict[str, Layout] = {**LAYOUTS, "expanded": lambda t: t.flatten()[0].expand_as(t)}


class Case(NamedTuple):
    """One operator, ours and PyTorch's, as functions of an input and parameters."""

    ours: Call
    theirs: Call
    x: tuple[int, ...]
    parameters: tuple[tuple[int, ...], ...] = ()


def _named(name: str, *sizes: tuple[int, ...], **options: Any) -> Case:
    """A function that has the same name and arguments here and there."""

    def call(module: Any) -> Call:
        return lambda *tensors: getattr(module, name)(*tensors, **options)

    return Case(call(ops), call(F), sizes[0], sizes[1:])


def _after(name: str, *sizes: tuple[int, ...], **options: Any) -> Case:
    """The same, where the parameters are given by keyword."""

    def call(module: Any) -> Call:
        names = ("weight", "bias")
        return lambda x, *p: getattr(module, name)(
            x, **options, **dict(zip(names, p, strict=False))
        )

    return Case(call(ops), call(F), sizes[0], sizes[1:])


def _batch_norm(x: tuple[int, ...], training: bool, parameters: bool = True) -> Case:
    def call(module: Any) -> Call:
        def run(x: Tensor, *p: Tensor) -> Tensor:
            mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
            output: Tensor = module.batch_norm(x, mean, var, *p, training=training)
            return output

        return run

    return Case(call(ops), call(F), x, ((x[1],), (x[1],)) if parameters else ())


def _instance_norm(x: tuple[int, ...], training: bool) -> Case:
    def call(module: Any) -> Call:
        def run(x: Tensor, *p: Tensor) -> Tensor:
            mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
            output: Tensor = module.instance_norm(x, mean, var, *p, use_input_stats=training)
            return output

        return run

    return Case(call(ops), call(F), x, ((x[1],), (x[1],)))


def _lstm(input_size: int, hidden: int) -> Case:
    def theirs(x: Tensor, *p: Tensor) -> Tensor:
        zeros = x.new_zeros(1, x.shape[1], hidden)
        y: Tensor = torch.lstm(x, (zeros, zeros), p, True, 1, 0.0, True, False, False)[0]
        return y

    def mine(x: Tensor, *p: Tensor) -> Tensor:
        return ops.lstm(x, None, [*p], True)[0]

    gates = 4 * hidden
    return Case(
        mine, theirs, (5, 3, input_size), ((gates, input_size), (gates, hidden), (gates,), (gates,))
    )


CASES: dict[str, Case] = {
    "conv1d": _named("conv1d", (2, 4, 7), (6, 4, 3), (6,)),
    "conv1d_1": _named("conv1d", (2, 4, 7), (6, 4, 1), (6,)),
    "conv2d": _named("conv2d", (2, 4, 6, 5), (6, 4, 3, 3), (6,)),
    "conv2d_1x1": _named("conv2d", (2, 4, 6, 5), (6, 4, 1, 1), (6,)),
    "conv2d_1x1_strided": _named("conv2d", (2, 4, 6, 5), (6, 4, 1, 1), (6,), stride=2),
    "conv2d_depthwise": _named("conv2d", (2, 4, 6, 5), (8, 1, 3, 3), (8,), groups=4),
    "conv2d_depthwise_1x1": _named("conv2d", (2, 4, 6, 5), (4, 1, 1, 1), (4,), groups=4),
    "conv2d_grouped_1x1": _named("conv2d", (2, 4, 6, 5), (6, 2, 1, 1), (6,), groups=2),
    "conv2d_from_one": _named("conv2d", (2, 1, 6, 5), (6, 1, 3, 3), (6,)),
    "conv2d_from_one_1x1": _named("conv2d", (2, 1, 6, 5), (6, 1, 1, 1), (6,)),
    "conv2d_to_one": _named("conv2d", (2, 4, 6, 5), (1, 4, 3, 3), (1,)),
    "conv2d_to_one_1x1": _named("conv2d", (2, 4, 6, 5), (1, 4, 1, 1), (1,)),
    "conv2d_one_high": _named("conv2d", (2, 4, 6, 5), (6, 4, 1, 3), (6,)),
    "conv2d_one_pixel": _named("conv2d", (2, 4, 1, 1), (6, 4, 1, 1), (6,)),
    "conv2d_to_one_pixel": _named("conv2d", (2, 4, 3, 3), (6, 4, 3, 3), (6,)),
    "conv2d_one_image": _named("conv2d", (1, 4, 6, 5), (6, 4, 1, 1), (6,)),
    "conv3d": _named("conv3d", (2, 4, 3, 6, 5), (6, 4, 1, 3, 3), (6,)),
    "conv3d_1x1": _named("conv3d", (2, 4, 3, 6, 5), (6, 4, 1, 1, 1), (6,)),
    "conv_transpose1d": _named("conv_transpose1d", (2, 4, 7), (4, 6, 1), (6,)),
    "conv_transpose2d": _named("conv_transpose2d", (2, 4, 6, 5), (4, 6, 2, 2), (6,), stride=2),
    "conv_transpose2d_1x1": _named("conv_transpose2d", (2, 4, 6, 5), (4, 6, 1, 1), (6,)),
    "conv_transpose2d_depthwise": _named(
        "conv_transpose2d", (2, 4, 6, 5), (4, 1, 3, 3), (4,), groups=4
    ),
    "conv_transpose3d": _named("conv_transpose3d", (2, 4, 3, 6, 5), (4, 6, 1, 1, 1), (6,)),
    "linear": _named("linear", (3, 5), (6, 5), (6,)),
    "linear_image": _named("linear", (2, 4, 6, 5), (6, 5), (6,)),
    "linear_from_one": _named("linear", (7, 1), (6, 1), (6,)),
    "linear_to_one": _named("linear", (7, 5), (1, 5), (1,)),
    "linear_one_row": _named("linear", (1, 5), (6, 5), (6,)),
    "batch_norm": _batch_norm((2, 4, 6, 5), True),
    "batch_norm_no_parameters": _batch_norm((2, 4, 6, 5), True, parameters=False),
    "batch_norm_one_channel": _batch_norm((2, 1, 6, 5), True),
    "batch_norm_one_pixel": _batch_norm((2, 4, 1, 1), True),
    "batch_norm_one_image": _batch_norm((1, 4, 6, 5), True),
    "batch_norm_volume": _batch_norm((2, 4, 3, 6, 5), True),
    "batch_norm_rows": _batch_norm((5, 4), True),
    "batch_norm_eval": _batch_norm((2, 4, 6, 5), False),
    "batch_norm_eval_no_parameters": _batch_norm((2, 4, 6, 5), False, parameters=False),
    "batch_norm_eval_one_channel": _batch_norm((2, 1, 6, 5), False),
    "batch_norm_eval_one_pixel": _batch_norm((2, 4, 1, 1), False),
    "batch_norm_eval_one_image": _batch_norm((1, 4, 6, 5), False),
    "batch_norm_eval_volume": _batch_norm((2, 4, 3, 6, 5), False),
    "batch_norm_eval_rows": _batch_norm((5, 4), False),
    "layer_norm": _after("layer_norm", (2, 4, 6, 5), (5,), (5,), normalized_shape=(5,)),
    "layer_norm_image": _after(
        "layer_norm", (2, 4, 6, 5), (4, 6, 5), (4, 6, 5), normalized_shape=(4, 6, 5)
    ),
    "layer_norm_one": _after("layer_norm", (2, 4, 6, 1), (6, 1), (6, 1), normalized_shape=(6, 1)),
    "rms_norm": _after("rms_norm", (2, 6, 5), (5,), normalized_shape=(5,)),
    "group_norm": _after("group_norm", (2, 4, 6, 5), (4,), (4,), num_groups=2),
    "group_norm_one_image": _after("group_norm", (1, 4, 6, 5), (4,), (4,), num_groups=2),
    "instance_norm": _instance_norm((2, 4, 6, 5), True),
    "instance_norm_eval": _instance_norm((2, 4, 6), False),
    "max_pool1d": _named("max_pool1d", (2, 4, 7), kernel_size=2),
    "max_pool2d": _named("max_pool2d", (2, 4, 6, 5), kernel_size=2),
    "max_pool2d_to_one": _named("max_pool2d", (2, 4, 2, 2), kernel_size=2),
    "max_pool2d_one_channel": _named("max_pool2d", (2, 1, 6, 5), kernel_size=2),
    "max_pool3d": _named("max_pool3d", (2, 4, 4, 6, 5), kernel_size=2),
    "avg_pool1d": _named("avg_pool1d", (2, 4, 7), kernel_size=2),
    "avg_pool2d": _named("avg_pool2d", (2, 4, 6, 5), kernel_size=2),
    "avg_pool2d_one_channel": _named("avg_pool2d", (2, 1, 6, 5), kernel_size=2),
    "avg_pool3d": _named("avg_pool3d", (2, 4, 4, 6, 5), kernel_size=2),
    "lp_pool2d": _named("lp_pool2d", (2, 4, 6, 5), norm_type=2, kernel_size=2),
    "adaptive_avg_pool2d": _named("adaptive_avg_pool2d", (2, 4, 6, 5), output_size=3),
    "adaptive_avg_pool2d_to_one": _named("adaptive_avg_pool2d", (2, 4, 6, 5), output_size=1),
    "adaptive_max_pool2d": _named("adaptive_max_pool2d", (2, 4, 6, 5), output_size=3),
    "softmax": _named("softmax", (2, 4, 6, 5), dim=1),
    "log_softmax": _named("log_softmax", (2, 4, 6, 5), dim=1),
    "relu": _named("relu", (2, 4, 6, 5)),
    "relu6": _named("relu6", (2, 4, 6, 5)),
    "elu": _named("elu", (2, 4, 6, 5)),
    "silu": _named("silu", (2, 4, 6, 5)),
    "tanh": _named("tanh", (2, 4, 6, 5)),
    "sigmoid": _named("sigmoid", (2, 4, 6, 5)),
    "dropout": _named("dropout", (2, 4, 6, 5), p=0.5),
    "local_response_norm": _named("local_response_norm", (2, 4, 6, 5), size=3),
    "lstm": _lstm(4, 6),
    "lstm_from_one": _lstm(1, 6),
    "lstm_of_one": _lstm(4, 1),
    "grid_sample": Case(
        lambda x, g: ops.grid_sample(x, g, align_corners=False),
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (2, 4, 6, 5),
        ((2, 3, 3, 2),),
    ),
}


def _strides_agree(t: Tensor, other: Tensor) -> bool:
    """Whether strides differ in dimensions of size 1 alone."""
    return all(
        n == 1 or a == b for n, a, b in zip(t.shape, t.stride(), other.stride(), strict=True)
    )


# Where channels-last and contiguous are the same memory, PyTorch's batch norms differ in which of
# them they tell. The stride of a lone image is lost where a gradient passes a view.
EITHER_LAYOUT = re.compile("batch_norm.*_one_(channel|pixel)|group_norm_one_image")


def _strides(results: Sequence[Tensor], name: str) -> list[tuple[int, ...]]:
    """Of all; where either layout may be told, with zeros in dimensions of size 1."""
    if not EITHER_LAYOUT.fullmatch(name):
        return [t.stride() for t in results]
    return [
        tuple(s if n > 1 else 0 for n, s in zip(t.shape, t.stride(), strict=True)) for t in results
    ]


def _differentiated(call: Call, tensors: list[Tensor], layout: Layout) -> tuple[Tensor, ...]:
    """The result and the gradients, which have the strides of parameters of the same memory."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = call(*leaves)
    return (y.detach(), *torch.autograd.grad(y, leaves, layout(torch.ones_like(y))))


def _expected(case: Case, tensors: list[Tensor], layout: Layout) -> list[Tensor]:
    """PyTorch's; of the parameters' gradients with the parameters' strides, if they fit."""
    y, dx, *rest = _differentiated(case.theirs, tensors, layout)
    fitting = [
        p.detach() if _strides_agree(g, p) else g for g, p in zip(rest, tensors[1:], strict=True)
    ]
    return [y, dx, *fitting]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_strides_are_pytorchs(name: str, layout: str, device: str) -> None:
    case = CASES[name]
    x = LAYOUTS[layout](torch.randn(case.x, device=device))
    parameters = [torch.randn(sizes, device=device) for sizes in case.parameters]
    has_layouts = any(p.dim() >= 4 for p in parameters)
    for parameter_layout in LAYOUTS if has_layouts else ("contiguous",):
        tensors = [x, *(LAYOUTS[parameter_layout](p) for p in parameters)]
        for gradient, in_layout in GRADIENTS.items():
            wanted = _strides(_expected(case, tensors, in_layout), name)
            found = {"ops": _differentiated(case.ours, tensors, in_layout)}
            with enabled():
                found["enable"] = _differentiated(case.theirs, tensors, in_layout)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake = [mode.from_tensor(t) for t in tensors]
                found["fake"] = _differentiated(case.ours, fake, in_layout)
            for way, results in found.items():
                assert _strides(results, name) == wanted, (way, gradient, parameter_layout)


class Network(nn.Module):
    """A layer of each kind that has parameters, most with a dimension of size 1."""

    def __init__(self) -> None:
        """Small: 8 channels, 6 x 6 pixels."""
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.Conv2d(8, 8, 1, bias=False),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 8, (1, 3), groups=2),
            nn.ConvTranspose2d(8, 8, 1),
            nn.ConvTranspose2d(8, 8, 3, groups=8),
            nn.Conv2d(8, 1, 1),
        )
        self.frozen = nn.BatchNorm2d(1).eval()
        self.row = nn.Sequential(nn.LayerNorm([8, 1]), nn.Linear(1, 4))
        self.sequence = nn.LSTM(4, 1)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number for each sample."""
        y = self.frozen(self.image(x)).mean(3)
        y = self.sequence(self.row(y.transpose(1, 2)))[0]
        result: Tensor = self.last(y.squeeze(2))
        return result


def _train(rank: int, store: str, device: str) -> None:
    """Raises at any warning of PyTorch's, in all layouts and in each way to our operators."""
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    formats = (torch.contiguous_format, torch.channels_last)
    for layout, x_layout in itertools.product(formats, formats):
        for way in ("convert", "enable", "autocast"):
            torch.manual_seed(0)
            network = Network().to(device).to(memory_format=layout)
            if way != "enable":
                network = convert(network)
            ids = None if device == "cpu" else [torch.device(device).index]
            model = DistributedDataParallel(network, device_ids=ids)
            x = torch.randn(2, 1, 6, 6, device=device).to(memory_format=x_layout)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", DeprecationWarning)  # of PyTorch's own imports
                warnings.simplefilter("ignore", UnverifiedVersionWarning)
                for _ in range(2):
                    model.zero_grad()
                    with (
                        enabled() if way == "enable" else nullcontext(),
                        torch.autocast(x.device.type, torch.bfloat16, enabled=way == "autocast"),
                    ):
                        loss = model(x).square().mean()
                    loss.backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                strides = (parameter.grad.stride(), parameter.stride())
                assert strides[0] == strides[1], (layout, x_layout, way, name, strides)
    torch.distributed.destroy_process_group()


def test_gradients_of_two_processes_are_not_copied(tmp_path: Path, device: str) -> None:
    where = "cpu" if device == "cpu" else "cuda:0"
    mp.spawn(_train, (f"file://{tmp_path}/store", where), nprocs=2)  # type: ignore[no-untyped-call]
