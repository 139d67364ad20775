"""Recurrent modules."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torch_cudnn_ext._torch_internals import (
    FakeTensor,
    current_graph_task,
    drop_weights,
    flat_weights,
    is_functorch_wrapped,
    weight_names,
)
from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops._arguments import check_flag, check_tensor, wrong_type
from torch_cudnn_ext.ops.rnn import gru, lstm, rnn_relu, rnn_tanh

States: TypeAlias = Tensor | tuple[Tensor, Tensor]

_FUNCTIONS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "LSTM": lstm,
    "GRU": gru,
    "RNN_TANH": rnn_tanh,
    "RNN_RELU": rnn_relu,
}


class Recurrent(Tunable, torch.nn.RNNBase):
    """What the recurrent modules have in addition to their parents in ``torch.nn``.

    Attributes:
        skip_input: Whether the first layer adds its input to every gate unchanged. It then has no
            ``weight_ih_l0``, and ``input_size`` is ``hidden_size``.
        remember_states: Whether a call without ``hx`` starts with the final states of the call
            before, detached from its graph. A call that a backward repeats, as
            ``torch.utils.checkpoint`` does, would start with other states: without ``hx`` it is an
            error. Code that runs copies of the module, as ``torch.nn.DataParallel`` does, loses
            the states.
    """

    gates: ClassVar[int]
    family = "rnn"
    skip_input: bool = False
    remember_states: bool = False
    _states: tuple[Tensor, ...] = ()

    def __init__(
        self, *args: Any, skip_input: bool = False, remember_states: bool = False, **kwargs: Any
    ) -> None:
        """Take the arguments of the class that this one replaces, and the two attributes."""
        super().__init__(*args, **kwargs)
        check_flag(type(self).__name__, "remember_states", remember_states)
        check_flag(type(self).__name__, "skip_input", skip_input)
        self.remember_states = remember_states
        self.skip_input = skip_input
        if skip_input:
            self._drop_input_matrices()

    def forward(
        self, input: Tensor | PackedSequence, hx: States | None = None
    ) -> tuple[Tensor | PackedSequence, States]:
        """Run over whole sequences.

        Args:
            input: ``[T, B, I]`` (``[B, T, I]`` with ``batch_first``), ``[T, I]`` for one sequence,
                or a packed batch.
            hx: States at the start, as in PyTorch's module.

        Returns:
            Outputs in the form of the input, and states at the end.

        Raises:
            TypeError: An argument has a type that it does not take.
            ValueError: ``input`` has neither 2 nor 3 dimensions, or dtypes or devices do not fit.
            RuntimeError: Sizes of ``input`` or ``hx`` do not fit, a pinned algorithm cannot run, or
                none is admissible. If states are remembered and there is no ``hx``: the call is in
                a backward or exported, or its batch size is not that of the states.
        """
        if self.remember_states and hx is None:
            self._check_that_states_are_current()
        weights = flat_weights(self)
        if isinstance(input, PackedSequence):
            data, batch_sizes, order, order_back = input
            batched = True
        else:
            check_tensor(type(self).__name__, "input", input)
            data, batch_sizes, order, order_back = input, None, None, None
            batched = input.dim() == 3
            if input.dim() not in (2, 3):
                raise ValueError(
                    f"{type(self).__name__}: argument input: got sizes {list(input.shape)}, "
                    "wanted 3 dimensions, or 2 without a batch"
                )
            if not batched:
                data = input.unsqueeze(0 if self.batch_first else 1)
        states = (
            self._remembered_states(data, batch_sizes)
            if hx is None
            else self._states_given(hx, batched)
        )
        if order is None or all(state.size(1) >= order.numel() for state in states):
            states = tuple(_permuted(state, order) for state in states)
        self._check(data, batch_sizes, states)
        y, *ends = self._selecting(_FUNCTIONS[self.mode])(
            data,
            states if self.mode == "LSTM" else (states[0] if states else None),
            weights,
            self.bias,
            self.num_layers,
            self.dropout,
            self.training,
            self.bidirectional,
            self.batch_first and batch_sizes is None,
            batch_sizes=batch_sizes,
            skip_input=self.skip_input,
            policy=self._running,
        )
        ends = [_permuted(state, order_back) for state in ends]
        if self.remember_states and not any(map(_belongs_to_mode, ends)):
            self._states = tuple(state.detach().clone() for state in ends)
        if batch_sizes is not None:
            packed = PackedSequence(y, batch_sizes, order, order_back)
            return packed, self._as_given(ends)
        if batched:
            return y, self._as_given(ends)
        y = y.squeeze(0 if self.batch_first else 1)
        return y, self._as_given([state.squeeze(1) for state in ends])

    def reset_states(self) -> Self:
        """Forget the remembered states: the next call begins with zeros.

        Returns:
            The module.
        """
        self._states = ()
        return self

    def weight_views(self) -> list[list[Tensor]]:
        """Matrices by layer and gate, as views of the parameters.

        Each direction of a layer counts as a layer. Gates are in cuDNN's order (``linLayerID``),
        which is PyTorch's: those of the input, those of the hidden state, the projection. A first
        layer that skips its input has none of the input's. Writing to a view writes to the
        parameter.
        """
        return self._views("weight")

    def bias_views(self) -> list[list[Tensor]]:
        """Biases by layer and gate, as views of the parameters; see `weight_views`."""
        return self._views("bias")

    def flatten_parameters(self) -> None:
        """Make the parameters contiguous in GPU memory, as the parent does.

        PyTorch cannot do so without the first layer's matrices: each call then copies them.
        """
        if not self.skip_input:
            super().flatten_parameters()

    def extra_repr(self) -> str:
        """The parent's line, the policy, and the attributes that are set."""
        words = [super().extra_repr()]
        words += [
            f"{name}=True" for name in ("skip_input", "remember_states") if getattr(self, name)
        ]
        return ", ".join(words)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._states = ()  # their device or dtype may change
        return super()._apply(fn, recurse)

    def _reason_to_stay(self) -> str:
        given = [name for name in ("skip_input", "remember_states") if getattr(self, name)]
        return f"torch.nn has no {' and no '.join(given)}" if given else ""

    def _drop_input_matrices(self) -> None:
        if self.input_size != self.hidden_size:
            raise ValueError(
                f"{type(self).__name__}: argument skip_input: got input_size={self.input_size}, "
                f"wanted hidden_size={self.hidden_size}"
            )
        suffixes = ("", "_reverse")[: 1 + int(self.bidirectional)]
        drop_weights(self, [f"weight_ih_l0{suffix}" for suffix in suffixes])

    def _views(self, kind: str) -> list[list[Tensor]]:
        layers = []
        for names in weight_names(self):
            views: list[Tensor] = []
            for name in names:
                if name.startswith(kind):
                    parameter = getattr(self, name).detach()
                    views += parameter.chunk(1 if "_hr_" in name else self.gates)
            layers.append(views)
        return layers

    def _check_that_states_are_current(self) -> None:
        if _is_in_backward():
            raise RuntimeError(
                f"{type(self).__name__}: argument hx: got None in a backward, as where a "
                "checkpoint runs a call again, wanted states: those that are remembered are of a "
                "later call"
            )
        if torch.compiler.is_exporting():
            raise RuntimeError(
                f"{type(self).__name__}: argument hx: got None under torch.export, wanted states: "
                "what is exported remembers none"
            )

    def _remembered_states(self, data: Tensor, batch_sizes: Tensor | None) -> tuple[Tensor, ...]:
        if not self.remember_states or not self._states:
            return ()
        batch_dim = 0 if self.batch_first else 1
        batch = data.size(batch_dim) if batch_sizes is None else int(batch_sizes[0])
        remembered = self._states[0].size(1)
        if batch != remembered:
            raise RuntimeError(
                f"{type(self).__name__}: the states that are remembered are of a batch of "
                f"{remembered}, the input has {batch}; call reset_states() or give hx"
            )
        return tuple(_outside_of_modes(state, data.dtype) for state in self._states)

    def _states_given(self, hx: States, batched: bool) -> tuple[Tensor, ...]:
        name = type(self).__name__
        states: Sequence[Any] = (hx,)
        if self.mode == "LSTM":
            if not isinstance(hx, Sequence) or len(hx) != 2:
                raise wrong_type(name, "hx", hx, "a hidden and a cell state")
            states = hx
        dims = 3 if batched else 2
        for state in states:
            check_tensor(name, "hx", state)
            if state.dim() != dims:
                raise RuntimeError(
                    f"{name}: argument hx: got sizes {list(state.shape)}, "
                    f"wanted {dims} dimensions, as the input is {'' if batched else 'un'}batched"
                )
        return tuple(state if batched else state.unsqueeze(1) for state in states)

    def _check(self, data: Tensor, batch_sizes: Tensor | None, states: tuple[Tensor, ...]) -> None:
        if not states:
            self.check_input(data, batch_sizes)
            return
        hidden: Any = states if self.mode == "LSTM" else states[0]
        self.check_forward_args(data, hidden, batch_sizes)

    def _as_given(self, states: list[Tensor]) -> States:
        return (states[0], states[1]) if self.mode == "LSTM" else states[0]


class RNN(Recurrent, torch.nn.RNN):  # type: ignore[misc, unused-ignore]
    """``torch.nn.RNN`` with a policy and the attributes of `Recurrent`.

    Example:
        >>> RNN(8, 16, nonlinearity="relu")(torch.randn(5, 2, 8))[0].shape
        torch.Size([5, 2, 16])
    """

    replaces = torch.nn.RNN
    gates = 1


class LSTM(Recurrent, torch.nn.LSTM):  # type: ignore[misc, unused-ignore]
    """``torch.nn.LSTM`` with a policy and the attributes of `Recurrent`.

    Example:
        >>> lstm = LSTM(8, 16, policy="cpu:fused")
        >>> lstm(torch.randn(5, 2, 8))[0].shape
        torch.Size([5, 2, 16])
    """

    replaces = torch.nn.LSTM
    gates = 4


class GRU(Recurrent, torch.nn.GRU):  # type: ignore[misc, unused-ignore]
    """``torch.nn.GRU`` with a policy and the attributes of `Recurrent`.

    Example:
        >>> GRU(8, 16)(torch.randn(5, 2, 8))[0].shape
        torch.Size([5, 2, 16])
    """

    replaces = torch.nn.GRU
    gates = 3


def _outside_of_modes(state: Tensor, dtype: torch.dtype) -> Tensor:
    """A state that was remembered under autocast or in inference mode, for use outside."""
    is_foreign = state.is_inference() and not torch.is_inference_mode_enabled()
    return (state.clone() if is_foreign else state).to(dtype)


def _is_in_backward() -> bool:
    return not torch.compiler.is_compiling() and current_graph_task() != -1


def _belongs_to_mode(state: Tensor) -> bool:
    """Whether a state belongs to a transform of `torch.func` or is fake: it is void outside."""
    if torch.compiler.is_dynamo_compiling():  # Dynamo sees neither
        return False
    return isinstance(state, FakeTensor) or is_functorch_wrapped(state)


def _permuted(state: Tensor, order: Tensor | None) -> Tensor:
    return state if order is None else state.index_select(1, order)
