"""Recurrent networks as functions, with the arguments of their namesakes in ``torch._VF``.

All take time-major input, or batch-major input with ``batch_first``, or the data of a
``PackedSequence`` with ``batch_sizes``. The parameters of each layer and direction come
in PyTorch's order: ``weight_ih``, ``weight_hh``, ``bias_ih``, ``bias_hh``, ``weight_hr``, without
those that the network does not have. Parameters that are contiguous in memory, as
``torch.nn.LSTM.flatten_parameters`` lays them out, are used in place; others are copied at each
call.

cuDNN's algorithms (``cudnnRNNForward``, ``cudnnRNNBackwardData_v8``,
``cudnnRNNBackwardWeights_v8``) are ``legacy:standard``, ``legacy:persist_static``,
``legacy:persist_dynamic`` and ``legacy:persist_static_small_h``, each with a math type
(``legacy:standard/math=fma``). On the CPU there are ``cpu:fused`` and ``cpu:unrolled``, and
everywhere ``aten:default``. A backward runs the algorithm of its forward, so one selection holds
for both. Dropout masks depend on the algorithm, and repeat with ``torch.manual_seed``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torch_cudnn_ext import _C
from torch_cudnn_ext.ops._arguments import (
    call_for_all,
    check_flags,
    check_number,
    check_tensor,
    integer_of,
    integers_of,
    wrong_type,
)
from torch_cudnn_ext.ops._direct import direct
from torch_cudnn_ext.ops.family import Family, describe
from torch_cudnn_ext.policy import PolicyLike, policy_text

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

_NETWORKS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@direct("lstm", "rnn")
def lstm(
    input: Tensor, hx: Sequence[Tensor] | None, params: Sequence[Tensor], has_biases: bool = True,
    num_layers: int = 1, dropout: float = 0.0, train: bool = False, bidirectional: bool = False,
    batch_first: bool = False,
    *, batch_sizes: Tensor | Sequence[int] | None = None, skip_input: bool = False,
    single_bias: bool = False, policy: PolicyLike = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Long short-term memory, with projection if ``params`` hold ``weight_hr``.

    Args:
        input: ``[T, B, I]``, ``[B, T, I]`` with ``batch_first``, or ``[sum of batch_sizes, I]``;
            float64, float32, float16 or bfloat16.
        hx: Hidden states ``[layers * directions, B, P]`` and cell states ``[layers * directions, B,
            H]`` at the start; ``None`` or empty for zeros.
        params: The parameters in PyTorch's order.
        has_biases: Whether there are biases among them.
        num_layers: The number of layers.
        dropout: The share of a layer's output that is zeroed before the next layer, if ``train``.
        train: Whether there is dropout.
        bidirectional: Whether a layer also runs backwards in time.
        batch_first: Whether input and output are batch-major; not with ``batch_sizes``.
        batch_sizes: The number of sequences in each time step of a packed batch, longest first.
        skip_input: Whether the first layer adds its input to every gate unchanged (cuDNN's
            ``CUDNN_SKIP_INPUT``). It then has no ``weight_ih``, and the input has ``H`` features.
        single_bias: Whether there is a ``bias_ih`` but no ``bias_hh``.
        policy: How the algorithm of the passes ``fwd`` and ``bwd`` is selected.

    Returns:
        The last layer's outputs, of the input's sizes but ``directions * P`` features, and the
        hidden and cell states at the end. Differentiable once; twice without dropout.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: Sizes, dtypes or devices do not fit, or the policy is wrong.
        RuntimeError: A pinned algorithm cannot run, or none is admissible.

    Example:
        >>> params = [torch.randn(size) for size in rnn_parameter_sizes("lstm", 8, 16)]
        >>> states = (torch.zeros(1, 2, 16), torch.zeros(1, 2, 16))
        >>> lstm(torch.randn(5, 2, 8), states, params)[0].shape
        torch.Size([5, 2, 16])
    """
    options = (has_biases, num_layers, dropout, train, bidirectional)
    variants = (batch_first, batch_sizes, skip_input, single_bias)
    states = [] if hx is None else _listed(hx)
    y, hy, cy = _run("lstm", input, states, params, options, variants, policy)
    return y, hy, cy


@direct("gru", "rnn")
def gru(
    input: Tensor, hx: Tensor | None, params: Sequence[Tensor], has_biases: bool = True,
    num_layers: int = 1, dropout: float = 0.0, train: bool = False, bidirectional: bool = False,
    batch_first: bool = False,
    *, batch_sizes: Tensor | Sequence[int] | None = None, skip_input: bool = False,
    single_bias: bool = False, policy: PolicyLike = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gated recurrent units; arguments and errors are those of `lstm`, with hidden states alone.

    Returns:
        The last layer's outputs, and the hidden states at the end. Differentiable as `lstm`.

    Example:
        >>> params = [torch.randn(size) for size in rnn_parameter_sizes("gru", 8, 16)]
        >>> gru(torch.randn(5, 2, 8), torch.zeros(1, 2, 16), params)[0].shape
        torch.Size([5, 2, 16])
    """
    options = (has_biases, num_layers, dropout, train, bidirectional)
    variants = (batch_first, batch_sizes, skip_input, single_bias)
    y, hy = _run("gru", input, hx, params, options, variants, policy)
    return y, hy


@direct("rnn_tanh", "rnn")
def rnn_tanh(
    input: Tensor, hx: Tensor | None, params: Sequence[Tensor], has_biases: bool = True,
    num_layers: int = 1, dropout: float = 0.0, train: bool = False, bidirectional: bool = False,
    batch_first: bool = False,
    *, batch_sizes: Tensor | Sequence[int] | None = None, skip_input: bool = False,
    single_bias: bool = False, policy: PolicyLike = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Elman's network with tanh; arguments, results and errors are those of `gru`.

    Example:
        >>> params = [torch.randn(size) for size in rnn_parameter_sizes("rnn_tanh", 8, 16)]
        >>> rnn_tanh(torch.randn(5, 2, 8), torch.zeros(1, 2, 16), params)[0].shape
        torch.Size([5, 2, 16])
    """
    options = (has_biases, num_layers, dropout, train, bidirectional)
    variants = (batch_first, batch_sizes, skip_input, single_bias)
    y, hy = _run("rnn_tanh", input, hx, params, options, variants, policy)
    return y, hy


@direct("rnn_relu", "rnn")
def rnn_relu(
    input: Tensor, hx: Tensor | None, params: Sequence[Tensor], has_biases: bool = True,
    num_layers: int = 1, dropout: float = 0.0, train: bool = False, bidirectional: bool = False,
    batch_first: bool = False,
    *, batch_sizes: Tensor | Sequence[int] | None = None, skip_input: bool = False,
    single_bias: bool = False, policy: PolicyLike = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Elman's network with ReLU; arguments, results and errors are those of `gru`.

    Example:
        >>> params = [torch.randn(size) for size in rnn_parameter_sizes("rnn_relu", 8, 16)]
        >>> rnn_relu(torch.randn(5, 2, 8), torch.zeros(1, 2, 16), params)[0].shape
        torch.Size([5, 2, 16])
    """
    options = (has_biases, num_layers, dropout, train, bidirectional)
    variants = (batch_first, batch_sizes, skip_input, single_bias)
    y, hy = _run("rnn_relu", input, hx, params, options, variants, policy)
    return y, hy


def rnn_parameter_sizes(
    network: str, input_size: int, hidden_size: int, num_layers: int = 1, has_biases: bool = True,
    bidirectional: bool = False, proj_size: int = 0,
    *, skip_input: bool = False, single_bias: bool = False,
) -> list[tuple[int, ...]]:  # fmt: skip
    """The sizes of a recurrent network's parameters, in the order that the functions here take.

    Parameters that ``split`` and ``view`` cut from one flat buffer are used in place if all
    matrices lie in it before all biases.

    Args:
        network: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        input_size: ``I``, the features of the input.
        hidden_size: ``H``, the features of a hidden state without projection.
        num_layers: The number of layers.
        has_biases: Whether there are biases.
        bidirectional: Whether a layer also runs backwards in time.
        proj_size: ``P``, less than ``H``, to which an LSTM projects its hidden state; 0 for none.
        skip_input: As in `lstm`.
        single_bias: As in `lstm`.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: There is no such network, or a number is out of range or does not fit another.

    Example:
        >>> rnn_parameter_sizes("lstm", 8, 16)
        [(64, 8), (64, 16), (64,), (64,)]
    """
    name = "rnn_parameter_sizes"
    if not isinstance(network, str):
        raise wrong_type(name, "network", network, "a text")
    if network not in _NETWORKS:
        raise ValueError(
            f"{name}: argument network: got {network!r}, wanted one of {', '.join(_NETWORKS)}"
        )
    check_flags(name, has_biases=has_biases, bidirectional=bidirectional)
    check_flags(name, skip_input=skip_input, single_bias=single_bias)
    given = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
    numbers = {argument: integer_of(name, argument, n) for argument, n in given.items()}
    for argument, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: argument {argument}: got {number}, wanted at least 1")
    hidden, projected = numbers["hidden_size"], integer_of(name, "proj_size", proj_size)
    if not 0 <= projected < hidden or (projected and network != "lstm"):
        most = f"at least 0, less than {hidden}" if network == "lstm" else f"0 for {network}"
        raise ValueError(f"{name}: argument proj_size: got {projected}, wanted {most}")
    if skip_input and numbers["input_size"] != hidden:
        raise ValueError(
            f"{name}: argument skip_input: got input_size={numbers['input_size']}, "
            f"wanted hidden_size={hidden}"
        )
    bias = ("single" if single_bias else "double") if has_biases else "none"
    problem = (
        f"rnn_fwd cell={network.removeprefix('rnn_')} x=f32[1,1,{numbers['input_size']}]:nchw "
        f"hidden={hidden} proj={projected} layers={numbers['num_layers']} "
        f"bidirectional={str(bool(bidirectional)).lower()} bias={bias} "
        f"skip={str(bool(skip_input)).lower()}"
    )
    return _C.rnn_parameter_sizes(problem)


def _run(
    name: str, input: Tensor, hx: Tensor | list[Tensor] | None, params: Sequence[Tensor],
    options: tuple[bool, int, float, bool, bool],
    variants: tuple[bool, Tensor | Sequence[int] | None, bool, bool], policy: PolicyLike,
) -> tuple[Tensor, ...]:  # fmt: skip
    check_tensor(name, "input", input)
    has_biases, num_layers, dropout, train, bidirectional = options
    batch_first, batch_sizes, skip_input, single_bias = variants
    check_flags(name, has_biases=has_biases, train=train, bidirectional=bidirectional)
    check_flags(name, batch_first=batch_first, skip_input=skip_input, single_bias=single_bias)
    check_number(name, "dropout", dropout)
    layers = integer_of(name, "num_layers", num_layers)
    options = (has_biases, layers, dropout, train, bidirectional)
    keywords: dict[str, Any] = {
        "skip_input": skip_input,
        "single_bias": single_bias,
        "policy": policy_text(policy, "rnn"),
    }
    weights = _listed(params)
    if batch_sizes is None:
        results = call_for_all(name, input, hx, weights, *options, batch_first, **keywords)
    else:
        if batch_first:
            raise ValueError(f"{name}: got batch_first with batch_sizes, wanted one of them")
        if isinstance(batch_sizes, Tensor) and not batch_sizes.is_meta:
            listed = batch_sizes.tolist()
        else:
            listed = _listed(batch_sizes)
        sizes = integers_of(name, "batch_sizes", listed, "integers")
        results = call_for_all(f"{name}_packed", input, sizes, hx, weights, *options, **keywords)
    return tuple(results)


def _listed(values: Any) -> Any:
    """A list of the values. What is not iterable stays; the operator's error names it."""
    try:
        return list(values)
    except TypeError:
        return values


def _steps(problem: "ProblemInfo") -> int:
    slots = problem["slots"]
    steps: int = slots.get("batch_sizes", slots["x"])["sizes"][0]
    return steps


describe(Family("rnn", tensor_cores=True, steps=_steps, random=("_rnn",), training=("_rnn",)))
