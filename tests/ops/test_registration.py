"""The operators as PyTorch's dispatcher sees them: schemas, fake tensors, autocast, export."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import SMALL, Case
from conftest import CUDA_MARKS
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import torch_cudnn_ext  # noqa: F401  registers the operators

OPS = torch.ops.torch_cudnn_ext

_POLICY = "str? policy=None"
_SCALED = f"float alpha=1.0, float beta=0.0, bool flip_kernel=False, {_POLICY}"
_OUT = f"Tensor(a!) out, {_SCALED}"
_Z = f"Tensor? z=None, {_SCALED}"
_GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation"
_CONVOLUTION = (
    f"Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}, bool transposed, "
    "SymInt[] output_padding, SymInt groups"
)
_BACKWARD_INPUT = (
    f"Tensor grad_output, Tensor weight, SymInt[] input_size, {_GEOMETRY}, SymInt groups"
)
_BACKWARD_WEIGHT = (
    f"Tensor grad_output, Tensor input, SymInt[] weight_size, {_GEOMETRY}, SymInt groups"
)
_AVERAGE = (
    "SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool ceil_mode=False, bool "
    "count_include_pad=True, int? divisor_override=None, bool adaptive=False"
)
_NORM = (
    "Tensor input, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? weight=None, "
    "Tensor? bias=None"
)
_NORM_NUMBERS = "float momentum=0.1, float eps=1e-05"
_NORM_KEYWORDS = f'str mode="spatial", Tensor? z=None, str activation="none", {_POLICY}'
_RNN_OPTIONS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional"
)
_RNN_OURS = f"*, bool skip_input=False, bool single_bias=False, {_POLICY}"
_RNN_DENSE = f"{_RNN_OPTIONS}, bool batch_first, {_RNN_OURS}"
_RNN_PACKED = f"{_RNN_OPTIONS}, {_RNN_OURS}"
_REDUCE = "Tensor input, str kind, int[1]? dim=None, bool keepdim=False"
_KIND = "str kind, float coefficient=1.0"
SCHEMAS = {
    **{
        f"conv{n}d": (
            "(Tensor input, Tensor weight, Tensor? bias=None, "
            f"SymInt[{n}] stride=1, SymInt[{n}] padding=0, SymInt[{n}] dilation=1, "
            f"SymInt groups=1, *, {_POLICY}) -> Tensor"
        )
        for n in (1, 2, 3)
    },
    **{
        f"conv_transpose{n}d": (
            "(Tensor input, Tensor weight, Tensor? bias=None, "
            f"SymInt[{n}] stride=1, SymInt[{n}] padding=0, SymInt[{n}] output_padding=0, "
            f"SymInt groups=1, SymInt[{n}] dilation=1, *, {_POLICY}) -> Tensor"
        )
        for n in (1, 2, 3)
    },
    "convolution": f"({_CONVOLUTION}, *, {_Z}) -> Tensor",
    "convolution_fused": (
        f"(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}, SymInt groups, str activation, "
        f"*, Tensor? z=None, bool flip_kernel=False, {_POLICY}) -> Tensor"
    ),
    "convolution_backward_input": f"({_BACKWARD_INPUT}, *, {_Z}) -> Tensor",
    "convolution_backward_weight": f"({_BACKWARD_WEIGHT}, *, {_Z}) -> Tensor",
    # Softmax.
    "softmax": f"(Tensor input, int dim, ScalarType? dtype=None, *, {_POLICY}) -> Tensor",
    "log_softmax": f"(Tensor input, int dim, ScalarType? dtype=None, *, {_POLICY}) -> Tensor",
    "cross_entropy": (
        "(Tensor input, Tensor target, Tensor? weight=None, int ignore_index=-100, "
        f'str reduction="mean", *, {_POLICY}) -> Tensor'
    ),
    "softmax_backward": (
        f"(Tensor grad_output, Tensor output, int dim, bool log, *, {_POLICY}) -> Tensor"
    ),
    # Pooling.
    "max_pool": (
        "(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] "
        f"dilation, bool ceil_mode=False, bool adaptive=False, *, {_POLICY}) -> Tensor"
    ),
    "avg_pool": f"(Tensor input, {_AVERAGE}, *, {_POLICY}) -> Tensor",
    "avg_pool_backward": (
        f"(Tensor grad_output, SymInt[] input_size, bool channels_last, {_AVERAGE}, *, {_POLICY}) "
        "-> Tensor"
    ),
    # Batch normalisation.
    "batch_norm": f"({_NORM}, bool training=False, {_NORM_NUMBERS}, *, {_NORM_KEYWORDS}) -> Tensor",
    "batch_norm_train": (
        f"({_NORM}, {_NORM_NUMBERS}, *, {_NORM_KEYWORDS}) -> "
        "(Tensor output, Tensor mean, Tensor invstd)"
    ),
    "batch_norm_backward": (
        "(Tensor grad_output, Tensor input, Tensor? weight, Tensor mean, Tensor invstd_or_var, "
        'bool training, float eps, *, str mode="spatial", Tensor? reserve=None, '
        f"{_POLICY}) -> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)"
    ),
    # Recurrent networks; the inner operators, whose reserve no fake tensor knows the size of, are
    # not among these.
    "lstm": f"(Tensor input, Tensor[] hx, {_RNN_DENSE}) -> (Tensor, Tensor, Tensor)",
    "lstm_packed": (
        f"(Tensor data, int[] batch_sizes, Tensor[] hx, {_RNN_PACKED}) -> (Tensor, Tensor, Tensor)"
    ),
    **{
        name: f"(Tensor input, Tensor? hx, {_RNN_DENSE}) -> (Tensor, Tensor)"
        for name in ("gru", "rnn_tanh", "rnn_relu")
    },
    **{
        f"{name}_packed": (
            f"(Tensor data, int[] batch_sizes, Tensor? hx, {_RNN_PACKED}) -> (Tensor, Tensor)"
        )
        for name in ("gru", "rnn_tanh", "rnn_relu")
    },
    # Spatial transformers.
    "affine_grid": f"(Tensor theta, SymInt[] size, bool align_corners, *, {_POLICY}) -> Tensor",
    "affine_grid_backward": (
        f"(Tensor grad_grid, SymInt[] size, bool align_corners, *, {_POLICY}) -> Tensor"
    ),
    "grid_sample": (
        "(Tensor input, Tensor grid, int mode, int padding_mode, bool align_corners, *, "
        f"{_POLICY}) -> Tensor"
    ),
    "grid_sample_backward": (
        "(Tensor grad_output, Tensor input, Tensor grid, int mode, int padding_mode, "
        f"bool align_corners, bool input_gradient, *, {_POLICY}) -> (Tensor, Tensor)"
    ),
    # Dropout.
    "dropout": f"(Tensor input, float p, *, {_POLICY}) -> Tensor",
    "dropout_backward": (
        "(Tensor grad_output, Tensor reserve, Tensor? writer, float p, SymInt[] stride, *, "
        f"{_POLICY}) -> Tensor"
    ),
    # The CTC loss.
    "ctc_loss": (
        "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
        f"int blank=0, bool zero_infinity=False, *, {_POLICY}) -> Tensor"
    ),
    # Norms.
    "layer_norm": (
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
        f"float eps=1e-05, *, {_POLICY}) -> Tensor"
    ),
    "rms_norm": (
        "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None, "
        f"*, {_POLICY}) -> Tensor"
    ),
    "instance_norm": (
        "(Tensor input, Tensor(a!)? running_mean=None, Tensor(b!)? running_var=None, "
        "Tensor? weight=None, Tensor? bias=None, bool use_input_stats=True, float momentum=0.1, "
        f"float eps=1e-05, *, {_POLICY}) -> Tensor"
    ),
    "group_norm": (
        "(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, "
        f"float eps=1e-05, *, {_POLICY}) -> Tensor"
    ),
    # Local response and divisive normalisation.
    "local_response_norm": (
        "(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0, "
        f"str window='torch', *, {_POLICY}) -> Tensor"
    ),
    "divisive_norm": (
        "(Tensor input, int size, float alpha=0.0001, float beta=0.75, float k=1.0, "
        f"Tensor? means=None, *, {_POLICY}) -> Tensor"
    ),
    # Activations.
    "activation": f"(Tensor input, {_KIND}, *, {_POLICY}) -> Tensor",
    "activation_": f"(Tensor(a!) input, {_KIND}, *, {_POLICY}) -> ()",
    "activation_backward": (
        f"(Tensor grad_output, Tensor? input, Tensor output, {_KIND}, *, {_POLICY}) -> Tensor"
    ),
    "activation_backward_": (
        f"(Tensor(a!) grad_output, Tensor? input, Tensor output, {_KIND}, *, {_POLICY}) -> ()"
    ),
    # Matrix products.
    "matmul": (
        "(Tensor a, Tensor b, Tensor? bias=None, *, bool transpose_a=False, bool "
        "transpose_b=False, float alpha=1.0, float beta=0.0, Tensor? z=None, "
        f"str activation='none', {_POLICY}) -> Tensor"
    ),
    # Reductions.
    "reduce": f"({_REDUCE}, *, {_POLICY}) -> Tensor",
    "reduce_with_indices": f"({_REDUCE}, *, {_POLICY}) -> (Tensor values, Tensor indices)",
    # Conversions.
    "transform": (
        "(Tensor input, *, ScalarType? dtype=None, MemoryFormat? memory_format=None, "
        f"{_POLICY}) -> Tensor"
    ),
    "convolution_out": f"({_CONVOLUTION}, *, {_OUT}) -> ()",
    "convolution_backward_input_out": f"({_BACKWARD_INPUT}, *, {_OUT}) -> ()",
    "convolution_backward_weight_out": f"({_BACKWARD_WEIGHT}, *, {_OUT}) -> ()",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    packet = getattr(OPS, name)
    assert packet.overloads() == ["default"]
    schema = packet.default._schema
    wanted = torch._C.parse_schema(f"torch_cudnn_ext::{name}{SCHEMAS[name]}")
    assert schema == wanted, schema


def test_every_operator_is_in_the_list() -> None:
    registered = {
        schema.name.removeprefix("torch_cudnn_ext::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torch_cudnn_ext::") and not schema.name.split("::")[1][0] == "_"
    }
    assert registered == set(SCHEMAS)


def _random(sizes: tuple[int, ...], device: str, requires_grad: bool = False) -> Tensor:
    return torch.randn(sizes, device=device, dtype=torch.float64, requires_grad=requires_grad)


Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def _samples(device: str) -> dict[str, Call]:
    """Calls of every operator, with tensors that require gradients where the operator has them."""

    def leaf(*sizes: int) -> Tensor:
        return _random(sizes, device, requires_grad=True)

    def plain(*sizes: int) -> Tensor:
        return _random(sizes, device)

    def last(tensor: Tensor) -> Tensor:
        return tensor.detach().to(memory_format=torch.channels_last).requires_grad_()

    def cells(gates: int) -> list[Tensor]:
        sizes = ((gates * 3, 4), (gates * 3, 3), (gates * 3,), (gates * 3,))
        return [leaf(*size) for size in sizes]

    def recurrent(name: str, gates: int) -> dict[str, Call]:
        hx = [leaf(1, 2, 3), leaf(1, 2, 3)] if name == "lstm" else leaf(1, 2, 3)
        options = (True, 1, 0.0, True, False)
        return {
            name: (name, (leaf(2, 5, 4), hx, cells(gates), *options, True), {}),
            f"{name}_packed": (
                f"{name}_packed",
                (leaf(5, 4), [2, 2, 1], hx, cells(gates), *options),
                {"policy": "fwd=aten:default"},
            ),
        }

    two = ([2, 1], [1, 0], [1, 2])
    one = ([1, 1], [0, 0], [1, 1])
    scaled = {"alpha": 0.5, "beta": 2.0}
    x, w, y = (2, 4, 6, 7), (6, 2, 3, 2), (2, 6, 3, 5)
    return {
        "conv1d": ("conv1d", (leaf(2, 4, 9), leaf(6, 4, 3), leaf(6)), {"padding": [1]}),
        "conv2d": ("conv2d", (leaf(2, 4, 6, 6), leaf(6, 4, 3, 3), leaf(6)), {}),
        "conv2d_policy": (
            "conv2d",
            (leaf(*x), leaf(*w), None, *two, 2),
            {"policy": "autotune;max_workspace=64MiB"},
        ),
        "conv2d_channels_last": (
            "conv2d",
            (last(leaf(2, 4, 6, 6)), last(leaf(6, 4, 3, 3))),
            {"padding": [1, 1]},
        ),
        "conv2d_unbatched": ("conv2d", (leaf(4, 6, 6), leaf(6, 4, 3, 3)), {}),
        "conv2d_no_grad": ("conv2d", (plain(2, 4, 6, 6), plain(6, 4, 3, 3), plain(6)), {}),
        "conv3d": ("conv3d", (leaf(1, 2, 4, 4, 4), leaf(2, 2, 2, 3, 2), leaf(2)), {}),
        "conv_transpose1d": ("conv_transpose1d", (leaf(2, 4, 5), leaf(4, 3, 3), leaf(3)), {}),
        "conv_transpose2d": (
            "conv_transpose2d",
            (leaf(2, 4, 5, 5), leaf(4, 3, 3, 3), leaf(6)),
            {"stride": [2, 2], "padding": [1, 1], "output_padding": [1, 0], "groups": 2},
        ),
        "conv_transpose3d": (
            "conv_transpose3d",
            (leaf(1, 2, 2, 3, 2), leaf(2, 2, 2, 2, 2), leaf(2)),
            {},
        ),
        "convolution": ("convolution", (leaf(*x), leaf(*w), leaf(6), *two, False, [0, 0], 2), {}),
        "convolution_z": (
            "convolution",
            (leaf(*x), leaf(*w), None, *two, False, [0, 0], 2),
            {"z": leaf(*y), **scaled, "flip_kernel": True},
        ),
        "convolution_transposed": (
            "convolution",
            (leaf(2, 4, 5, 5), leaf(4, 3, 3, 3), leaf(3), *one, True, [0, 0], 1),
            {},
        ),
        "convolution_fused": (
            "convolution_fused",
            (leaf(*x), leaf(*w), leaf(6), *two, 2, "relu"),
            {"z": leaf(*y), "flip_kernel": True},
        ),
        "convolution_fused_channels_last": (
            "convolution_fused",
            (last(leaf(2, 4, 6, 6)), last(leaf(6, 4, 3, 3)), None, *one, 1, "relu"),
            {"policy": "autotune"},
        ),
        "convolution_fused_silu": (
            "convolution_fused",
            (leaf(*x), leaf(*w), leaf(6), *two, 2, "silu"),
            {"z": leaf(*y)},
        ),
        "backward_input": (
            "convolution_backward_input",
            (leaf(*y), leaf(*w), list(x), *two, 2),
            {"policy": "bwd_data=aten:default"},
        ),
        "backward_input_z": (
            "convolution_backward_input",
            (leaf(*y), leaf(*w), list(x), *two, 2),
            {"z": leaf(*x), **scaled},
        ),
        "backward_weight": (
            "convolution_backward_weight",
            (leaf(*y), leaf(*x), list(w), *two, 2),
            {},
        ),
        "backward_weight_z": (
            "convolution_backward_weight",
            (leaf(*y), leaf(*x), list(w), *two, 2),
            {"z": leaf(*w), **scaled},
        ),
        "softmax": ("softmax", (leaf(3, 4, 5), 1), {}),
        "softmax_channels_last": ("softmax", (last(leaf(2, 4, 5, 3)), 1), {"policy": "autotune"}),
        "log_softmax": ("log_softmax", (leaf(3, 4), -1, torch.float64), {}),
        "cross_entropy": (
            "cross_entropy",
            (leaf(3, 4), torch.tensor([0, 3, 1], device=device)),
            {},
        ),
        "softmax_backward": ("softmax_backward", (leaf(3, 4), leaf(3, 4), 1, False), {}),
        "max_pool": ("max_pool", (leaf(2, 3, 7, 6), [3, 2], [], [1, 0], [1, 2], True), {}),
        "max_pool_no_grad": ("max_pool", (plain(2, 3, 7), [3], [2], [1], [1]), {}),
        "max_pool_adaptive": ("max_pool", (leaf(2, 3, 7, 6), [3, 2], [], [], [], False, True), {}),
        "avg_pool": (
            "avg_pool",
            (last(leaf(2, 3, 7, 6)), [3, 2], [2, 1], [1, 0], True, False),
            {"policy": "autotune"},
        ),
        "avg_pool_sum_1d": ("avg_pool", (leaf(3, 7), [3], [], [1], False, True, 1), {}),
        "avg_pool_volume": ("avg_pool", (leaf(2, 3, 4, 5, 6), [2, 2, 3], [], [1, 0, 1]), {}),
        "avg_pool_backward": (
            "avg_pool_backward",
            (leaf(2, 3, 4, 3), [2, 3, 7, 6], True, [3, 2], [2, 2], [1, 0]),
            {},
        ),
        **recurrent("lstm", 4),
        **recurrent("gru", 3),
        **recurrent("rnn_tanh", 1),
        **recurrent("rnn_relu", 1),
        "affine_grid": ("affine_grid", (leaf(2, 2, 3), (2, 3, 4, 4), True), {}),
        "affine_grid_backward": (
            "affine_grid_backward",
            (leaf(2, 4, 4, 2), (2, 3, 4, 4), True),
            {},
        ),
        "grid_sample": ("grid_sample", (leaf(2, 3, 4, 4), leaf(2, 3, 3, 2), 0, 0, True), {}),
        "grid_sample_backward": (
            "grid_sample_backward",
            (plain(2, 3, 3, 3), plain(2, 3, 4, 4), plain(2, 3, 3, 2), 0, 0, True, True),
            {},
        ),
        "dropout_backward": (
            "dropout_backward",
            (leaf(3, 4), *OPS._dropout(plain(3, 4), 0.5)[1:], 0.5, (4, 1)),
            {},
        ),
        "ctc_loss": (
            "ctc_loss",
            (
                plain(7, 2, 4).log_softmax(2).requires_grad_(),
                torch.tensor([[1, 2], [3, 1]], device=device),
                torch.tensor([7, 6]),
                torch.tensor([2, 1]),
            ),
            {},
        ),
        "layer_norm": ("layer_norm", (leaf(2, 3, 4), [3, 4], leaf(3, 4), leaf(3, 4)), {}),
        "rms_norm": ("rms_norm", (leaf(5, 4), [4], leaf(4)), {"policy": "autotune"}),
        "instance_norm": ("instance_norm", (leaf(2, 3, 5), None, None, leaf(3), leaf(3)), {}),
        "group_norm": ("group_norm", (leaf(2, 6, 2, 3), 3, leaf(6), leaf(6)), {}),
        "local_response_norm": ("local_response_norm", (leaf(2, 5, 3, 2), 3, 1.0), {}),
        "divisive_norm": (
            "divisive_norm",
            (leaf(2, 2, 4, 3), 3, 1.0, 0.5, 1.0, leaf(2, 2, 4, 3)),
            {},
        ),
        "activation": ("activation", (leaf(3, 4), "tanh"), {}),
        "activation_channels_last": (
            "activation",
            (last(leaf(2, 4, 5, 3)), "swish", 1.5),
            {"policy": "autotune"},
        ),
        "activation_": ("activation_", (plain(3, 4), "elu", 0.5), {}),
        "activation_backward": (
            "activation_backward",
            (leaf(3, 4), leaf(3, 4), leaf(3, 4), "elu", 0.5),
            {},
        ),
        "activation_backward_output": (
            "activation_backward",
            (leaf(3, 4), None, leaf(3, 4), "sigmoid"),
            {},
        ),
        "activation_backward_": (
            "activation_backward_",
            (plain(3, 4), None, plain(3, 4), "clipped_relu", 0.5),
            {},
        ),
        "matmul": ("matmul", (leaf(4, 5), leaf(5, 6)), {}),
        "matmul_batch": (
            "matmul",
            (leaf(3, 4, 5), leaf(2, 1, 6, 4), leaf(6)),
            {
                "transpose_a": True,
                "transpose_b": True,
                "alpha": 0.5,
                "beta": 2.0,
                "z": leaf(3, 5, 6),
                "activation": "relu",
            },
        ),
        "matmul_policy": ("matmul", (leaf(2, 3, 5), leaf(5, 6)), {"policy": "autotune"}),
        "reduce": ("reduce", (leaf(3, 4), "mul"), {}),
        "reduce_dims": ("reduce", (last(leaf(2, 4, 5, 3)), "norm2", [1, -1], True), {}),
        "reduce_with_indices": ("reduce_with_indices", (leaf(3, 4, 5), "max", [0, 2]), {}),
        "transform": ("transform", (leaf(2, 3, 4),), {"dtype": torch.float32}),
        "transform_channels_last": (
            "transform",
            (leaf(2, 4, 5, 3),),
            {"memory_format": torch.channels_last, "policy": "autotune"},
        ),
        "convolution_out": (
            "convolution_out",
            (plain(*x), plain(*w), plain(6), *two, False, [0, 0], 2),
            {**scaled, "out": plain(*y)},
        ),
        "backward_input_out": (
            "convolution_backward_input_out",
            (plain(*y), plain(*w), list(x), *two, 2),
            {**scaled, "out": plain(*x)},
        ),
        "backward_weight_out": (
            "convolution_backward_weight_out",
            (plain(*y), plain(*x), list(w), *two, 2),
            {**scaled, "out": plain(*w)},
        ),
    }


SAMPLES = tuple(_samples("cpu"))
# Beginnings of the names of operators whose forward leaves a reserve and its writer.
COUPLED = ("max_pool", "lstm", "gru", "rnn_")
RANDOM = {"dropout"}  # opcheck compares two runs; test_dropout.py checks what can be
# Operators that public ones are made of, and where opcheck runs.
INNER = {
    "_batch_norm_infer": "inside batch_norm, in test_batch_norm.py",
    "_batch_norm_train": "inside batch_norm, in test_batch_norm.py; its reserve is coupled",
    "_batch_norm_train_alone": "inside batch_norm_train, in test_batch_norm.py",
    "_ctc_loss": "inside ctc_loss, in test_ctc.py; what it leaves is coupled",
    "_dropout": "inside dropout, in test_dropout.py; random",
    "_lrn": "by itself, in test_lrn.py",
    "_lrn_backward": "by itself, in test_lrn.py",
    "_max_pool_train": "inside max_pool, here; its reserve is coupled",
    "_max_pool_backward": "inside max_pool, here; its reserve is coupled",
    "_normalize": "by itself, in test_layer_norm.py",
    "_normalize_backward": "by itself, in test_layer_norm.py",
    "_rnn": "inside lstm and others, here; its reserve is coupled",
    "_rnn_backward": "inside lstm and others, here; its reserve is coupled",
}


def test_every_operator_has_a_sample() -> None:
    prefix = "torch_cudnn_ext::"
    names = torch._C._dispatch_get_all_op_names()
    registered = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    assert registered == SCHEMAS.keys() | INNER.keys()
    sampled = {call[0] for call in _samples("cpu").values()}
    # Those of batch norm change tensors; test_batch_norm.py checks them.
    elsewhere = {"batch_norm", "batch_norm_train", "batch_norm_backward"}
    assert sampled == set(SCHEMAS) - RANDOM - elsewhere


@pytest.mark.parametrize("sample", SAMPLES)
def test_opcheck(sample: str, device: str) -> None:
    name, arguments, keywords = _samples(device)[sample]
    if name.startswith(COUPLED) and any(
        isinstance(a, Tensor) and a.requires_grad for a in arguments
    ):
        # A fake reserve and a fake writer differ: only a run tells the algorithm.
        torch.library.opcheck(
            getattr(OPS, name).default,
            arguments,
            keywords,
            test_utils=("test_schema", "test_autograd_registration", "test_aot_dispatch_static"),
        )
        return
    # The default checks trace with static shapes too; the dynamic one marks every size as a symbol.
    torch.library.opcheck(getattr(OPS, name).default, arguments, keywords)
    if name.endswith("_out"):
        return
    torch.library.opcheck(
        getattr(OPS, name).default, arguments, keywords, test_utils="test_aot_dispatch_static"
    )


DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


def _case_tensors(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor]:
    last = torch.channels_last_3d if case.spatial_dims == 3 else torch.channels_last
    tensors = []
    for sizes in (case.x, case.w, case.y):
        tensor = torch.randn(sizes, device=device).to(DTYPES[case.dtype])
        if case.layout == "nhwc" and case.spatial_dims > 1:
            tensor = tensor.to(memory_format=last)
        tensors.append(tensor)
    return tensors[0], tensors[1], tensors[2]


def _strides_that_matter(tensor: Tensor) -> list[int]:
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


FAKE_CASES = [
    case
    for case in SMALL
    if not (case.x_layout or case.w_layout or case.y_layout or case.align < 16)
    and case.accumulate == "none"
]


@pytest.mark.parametrize("case", FAKE_CASES, ids=lambda case: case.name)
def test_fake_outputs_are_as_the_real_ones(case: Case, device: str) -> None:
    x, w, y = _case_tensors(case, device)
    flip = {"flip_kernel": case.mode == "conv"}
    options = (list(case.stride), list(case.padding), list(case.dilation))
    no_padding = [0] * case.spatial_dims
    calls = [
        (OPS.convolution, (x, w, None, *options, False, no_padding, case.groups)),
        (OPS.convolution_backward_input, (y, w, list(case.x), *options, case.groups)),
        (OPS.convolution_backward_weight, (y, x, list(case.w), *options, case.groups)),
    ]
    for op, arguments in calls:
        real = op.default(*arguments, **flip)
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
            fake = op.default(*fakes, **flip)
        assert fake.shape == real.shape
        assert _strides_that_matter(fake) == _strides_that_matter(real)
        assert (fake.dtype, fake.device) == (real.dtype, real.device)
        meta = op.default(
            *[a.to("meta") if isinstance(a, Tensor) else a for a in arguments], **flip
        )
        assert meta.is_meta
        assert meta.shape == real.shape
        assert meta.dtype == real.dtype


def test_meta_checks_its_arguments() -> None:
    x = torch.empty(2, 4, 5, 5, device="meta")
    with pytest.raises((RuntimeError, ValueError), match="weight|channel"):
        OPS.conv2d.default(x, torch.empty(6, 3, 3, 3, device="meta"))
    with pytest.raises((RuntimeError, ValueError), match="kernel|larger|weight"):
        OPS.conv2d.default(x, torch.empty(6, 4, 7, 7, device="meta"))


def test_operators_are_marked_for_the_compiler() -> None:
    for name in SCHEMAS:
        assert torch.Tag.pt2_compliant_tag in getattr(OPS, name).default.tags


AUTOCAST = [
    pytest.param("cpu", torch.bfloat16),
    pytest.param("cuda", torch.float16, marks=CUDA_MARKS),
    pytest.param("cuda", torch.bfloat16, marks=CUDA_MARKS),
]


@pytest.mark.parametrize(("device", "dtype"), AUTOCAST)
def test_autocast(device: str, dtype: torch.dtype) -> None:
    def leaf(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, requires_grad=True)

    x, w, bias = leaf(2, 8, 6, 6), leaf(8, 8, 3, 3), leaf(8)
    with torch.autocast(device, dtype=dtype):
        y = OPS.conv2d.default(x, w, bias, padding=[1, 1])
        assert y.dtype == F.conv2d(x, w, bias, padding=1).dtype == dtype
        # Inputs of several types are cast to one.
        assert OPS.conv2d.default(x.to(dtype), w, bias, padding=[1, 1]).dtype == dtype
        transposed = OPS.conv_transpose2d.default(x, w)
        assert transposed.dtype == dtype
    y.float().square().sum().backward()
    expected = F.conv2d(x.double(), w.double(), bias.double(), padding=1)
    torch.testing.assert_close(y.double(), expected, rtol=0.05, atol=0.05)
    wanted = torch.autograd.grad(expected.square().sum(), (x, w, bias))
    for tensor, gradient in zip((x, w, bias), wanted, strict=True):
        assert tensor.grad is not None and tensor.grad.dtype == torch.float32
        scale = float(gradient.abs().max())
        torch.testing.assert_close(tensor.grad, gradient, rtol=0.05, atol=0.05 * scale)


@pytest.mark.parametrize("device", [pytest.param("cpu"), pytest.param("cuda", marks=CUDA_MARKS)])
def test_autocast_leaves_float64_and_disabled_regions_alone(device: str) -> None:
    x, w = _random((2, 4, 6, 6), device), _random((4, 4, 3, 3), device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert OPS.conv2d.default(x, w).dtype == torch.float64
        with torch.autocast(device, enabled=False):
            assert OPS.conv2d.default(x.float(), w.float()).dtype == torch.float32


class _Exported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 4, 3, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = OPS.conv2d.default(x, self.weight, padding=[1, 1], policy="fwd=aten:default")
        return y.relu()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_export(dynamic: bool, device: str) -> None:
    module = _Exported().to(device)
    x = _random((2, 4, 6, 6), device)
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = ({0: batch},) if dynamic else None
    program = torch.export.export(module, (x,), dynamic_shapes=shapes)
    nodes = [node for node in program.graph.nodes if node.target is OPS.conv2d.default]
    assert len(nodes) == 1
    assert nodes[0].kwargs["policy"] == "fwd=aten:default"
    seen = _random((5, 4, 6, 6), device) if dynamic else x
    torch.testing.assert_close(program.module()(seen), module(seen))


def test_what_writes_an_argument_takes_lazily_negated_ones() -> None:
    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("torch_cudnn_ext::")]
    writing = {
        s.name
        for s in schemas
        if any(a.alias_info is not None and a.alias_info.is_write for a in s.arguments)
    }
    for key in ("Negative", "Conjugate"):
        having = torch._C._dispatch_has_kernel_for_dispatch_key
        assert {s.name for s in schemas if having(s.name, key)} == writing
    assert len(writing) >= 9
