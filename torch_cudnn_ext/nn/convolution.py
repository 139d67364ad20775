"""Convolution modules."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils._python_dispatch import _disable_current_modes

from torch_cudnn_ext import _C
from torch_cudnn_ext.nn.tunable import Tunable
from torch_cudnn_ext.ops._arguments import check_tensor, sizes_of
from torch_cudnn_ext.ops.convolution import (
    ConvActivation,
    border,
    check_activation,
    convolution,
    pad_behind,
)
from torch_cudnn_ext.policy import ONCE, Policy, passes_of


class _Convolution(Tunable, _ConvNd):
    """Policy of a convolution module, and its way to the operator.

    In ``_running``, ``guess_once`` and ``time_once`` have been replaced, first by ``heuristic`` and
    ``autotune``, and at the first call by the algorithm that these chose. ``_once`` names the
    passes that still wait for that. A copied, unpickled, moved or cast module chooses anew; a copy
    of a parametrized one, which ``torch.nn.utils.parametrize`` makes, keeps what was chosen.
    """

    family = "conv"
    _operator: ClassVar[Any]
    _once: tuple[str, ...] = ()
    _takes_once = True

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._thaw()  # what was chosen may not run on another device or dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._thaw()

    def _policy_changed(self) -> None:
        self._thaw()

    def _thaw(self) -> None:
        """Forget what ``guess_once`` and ``time_once`` have chosen."""
        policy = Policy.parse(self._policy)
        choices = {name: policy.get(name) for name in passes_of(self.family)}
        once = {name: ONCE[choice] for name, choice in choices.items() if choice in ONCE}
        self._once = tuple(once)
        self._running = policy.replace(**once).text or None

    def _waiting(self, input: Tensor, runs: str, **gradients: Tensor) -> list[str]:
        """The passes that wait for a choice and that this call, or its backward, will run.

        None do where nothing is computed: on meta tensors, fake ones and empty ones.

        Args:
            input: Of the call.
            runs: The pass that the forward runs.
            **gradients: The tensors whose gradients the other passes compute.
        """
        check_tensor(type(self).__name__, "input", input)
        if input.is_meta or isinstance(input, FakeTensor) or input.numel() == 0:
            return []
        backward = torch.is_grad_enabled()
        needed = {name: backward and tensor.requires_grad for name, tensor in gradients.items()}
        return [name for name in self._once if name == runs or needed.get(name)]

    @torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
        reason="guess_once and time_once choose at a first call in eager mode"
    )
    def _freeze(
        self,
        x: Tensor,
        w: Tensor,
        padding: tuple[int, ...],
        waiting: list[str],
        has_bias: bool = False,
        epilogue: str = "",
    ) -> None:
        """Choose now for these passes, and keep to that; the forward's problem has the epilogue."""
        if _C.is_look():  # it is not the first call
            return
        x = _as_computed(x if x.dim() == w.dim() else x.unsqueeze(0))
        function, dims = type(self).__name__, w.dim() - 2
        before = sizes_of(function, "padding", padding, dims)
        stride = sizes_of(function, "stride", self.stride, dims)
        dilation = sizes_of(function, "dilation", self.dilation, dims)
        for name in waiting:
            policy = Policy.parse(self._running or "")
            problem = _C.convolution_problem(
                f"conv_{name}",
                x,
                _as_computed(w),
                before,
                stride,
                dilation,
                self.groups,
                policy.text,
                has_bias,
            )
            # Not under what the caller traces, transforms or counts by.
            with _disable_current_modes(), torch._C._DisableFuncTorch():
                line = problem + epilogue if name == "fwd" else problem
                choice = _C.choose(line, str(x.device), policy.text)
            self._running = policy.replace(**{name: choice["algorithm"]}).text
            self._once = tuple(other for other in self._once if other != name)


class _ForwardConvolution(_Convolution):
    """One that is not transposed."""

    activation: ConvActivation = "none"

    def __init__(self, *args: Any, activation: ConvActivation = "none", **kwargs: Any) -> None:
        """Take the arguments of the class that this one replaces, a policy and an activation."""
        super().__init__(*args, **kwargs)
        check_activation(type(self).__name__, activation)
        self.activation = activation

    def extra_repr(self) -> str:
        """The parent's line, the policy, and an activation."""
        line = super().extra_repr()
        return line if self.activation == "none" else f"{line}, activation={self.activation!r}"

    def _reason_to_stay(self) -> str:
        if self.activation == "none":
            return ""
        return f"torch.nn has no activation={self.activation!r}"

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0,) * len(self.kernel_size)
        elif isinstance(padding, str):
            name = type(self).__name__
            kernel = weight.shape[2:]  # which may be another than was constructed
            stride = sizes_of(name, "stride", self.stride, len(kernel))
            dilation = sizes_of(name, "dilation", self.dilation, len(kernel))
            before, behind = border(name, padding, kernel, stride, dilation)  # type: ignore[arg-type]
            input = pad_behind(input, before, behind)
            padding = tuple(before)
        if self._once and (
            waiting := self._waiting(input, "fwd", bwd_data=input, bwd_filter=weight)
        ):
            epilogue = "" if self.activation == "none" else f" act={self.activation}"
            self._freeze(input, weight, padding, waiting, bias is not None, epilogue)
        geometry = (self.stride, padding, self.dilation)
        output: Tensor
        if self.activation == "none":
            output = self._operator(
                input, weight, bias, *geometry, self.groups, policy=self._running
            )
            return output
        is_batch = input.dim() == weight.dim()
        output = convolution(
            input if is_batch else input.unsqueeze(0),
            weight,
            bias,
            *geometry,
            groups=self.groups,
            activation=self.activation,
            policy=self._running,
        )
        return output if is_batch else output.squeeze(0)


class _TransposedConvolution(_Convolution, _ConvTransposeNd):
    """A transposed convolution: what its policy calls ``x`` and ``fwd`` is its output's side."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Apply the transposed convolution.

        Args:
            input: ``[N, C_in, *space]``, or ``[C_in, *space]`` without a batch.
            output_size: Sizes wanted of the output, with or without ``N`` and ``C_out``; settles
                what a stride larger than 1 leaves open.

        Returns:
            ``[N, C_out, *space_out]``, without ``N`` where the input has none.

        Raises:
            ValueError: No output padding gives ``output_size``, or the padding is not of zeros.
        """
        if self.padding_mode != "zeros":
            raise ValueError(
                f"{type(self).__name__}: padding_mode is {self.padding_mode!r}, wanted 'zeros'"
            )
        assert isinstance(self.padding, tuple)  # its constructor takes no words
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            len(self.kernel_size),
            self.dilation,  # type: ignore[arg-type]
        )
        arguments = (self.stride, self.padding, output_padding, self.groups, self.dilation)
        if self._once and (
            waiting := self._waiting(input, "bwd_data", fwd=input, bwd_filter=self.weight)
        ):
            self._freeze_transposed(input, arguments, waiting)
        weight, bias = self.weight, self.bias
        output: Tensor = self._operator(input, weight, bias, *arguments, policy=self._running)
        return output

    @torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
        reason="guess_once and time_once choose at a first call in eager mode"
    )
    def _freeze_transposed(
        self, input: Tensor, arguments: tuple[Any, ...], waiting: list[str]
    ) -> None:
        # The primitive's x is this module's output, of which only the form is needed.
        metas = (input.detach().to("meta"), self.weight.detach().to("meta"))
        x = torch.empty_like(self._operator(*metas, None, *arguments), device=input.device)
        _, padding, *_ = arguments
        self._freeze(x, self.weight, padding, waiting)


def _as_computed(tensor: Tensor) -> Tensor:
    """The tensor as an operator gets it under autocast."""
    tensor = tensor.detach()
    device = tensor.device.type
    if torch.is_autocast_enabled(device) and tensor.dtype != torch.float64:
        return tensor.to(torch.get_autocast_dtype(device))
    return tensor


class Conv1d(_ForwardConvolution, torch.nn.Conv1d):
    """``torch.nn.Conv1d`` with a choice of algorithm.

    Takes the arguments of ``torch.nn.Conv1d`` and, by keyword, ``policy``: how to choose the
    algorithms (text, `Policy`, or a mapping of its keywords); and ``activation``: ``none``, or
    ``relu`` of the result, as in `torch_cudnn_ext.ops.convolution`.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; output ``[N, C_out, L_out]`` or ``[C_out, L_out]``.
    """

    replaces = torch.nn.Conv1d
    _operator = torch.ops.torch_cudnn_ext.conv1d.default


class Conv2d(_ForwardConvolution, torch.nn.Conv2d):
    """``torch.nn.Conv2d`` with a choice of algorithm.

    Takes the arguments of ``torch.nn.Conv2d`` and, by keyword, ``policy``: how to choose the
    algorithms (text, `Policy`, or a mapping of its keywords); and ``activation``: ``none``, or
    ``relu`` of the result, as in `torch_cudnn_ext.ops.convolution`.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; output ``[N, C_out, H_out, W_out]`` or
        ``[C_out, H_out, W_out]``.
    """

    replaces = torch.nn.Conv2d
    _operator = torch.ops.torch_cudnn_ext.conv2d.default


class Conv3d(_ForwardConvolution, torch.nn.Conv3d):
    """``torch.nn.Conv3d`` with a choice of algorithm.

    Takes the arguments of ``torch.nn.Conv3d`` and, by keyword, ``policy``: how to choose the
    algorithms (text, `Policy`, or a mapping of its keywords); and ``activation``: ``none``, or
    ``relu`` of the result, as in `torch_cudnn_ext.ops.convolution`.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; output
        ``[N, C_out, D_out, H_out, W_out]`` or ``[C_out, D_out, H_out, W_out]``.
    """

    replaces = torch.nn.Conv3d
    _operator = torch.ops.torch_cudnn_ext.conv3d.default


class ConvTranspose1d(_TransposedConvolution, torch.nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` with a choice of algorithm.

    Takes the arguments of ``torch.nn.ConvTranspose1d`` and, by keyword, ``policy``: how to choose
    the algorithms (text, `Policy`, or a mapping of its keywords). Its passes name the cuDNN
    primitive that runs: the forward runs ``bwd_data``, the data gradient ``fwd``, the weight
    gradient ``bwd_filter``.

    Shapes:
        input ``[N, C_in, L]`` or ``[C_in, L]``; output ``[N, C_out, L_out]`` or ``[C_out, L_out]``.
    """

    replaces = torch.nn.ConvTranspose1d
    _operator = torch.ops.torch_cudnn_ext.conv_transpose1d.default


class ConvTranspose2d(_TransposedConvolution, torch.nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` with a choice of algorithm.

    Takes the arguments of ``torch.nn.ConvTranspose2d`` and, by keyword, ``policy``: how to choose
    the algorithms (text, `Policy`, or a mapping of its keywords). Its passes name the cuDNN
    primitive that runs: the forward runs ``bwd_data``, the data gradient ``fwd``, the weight
    gradient ``bwd_filter``.

    Shapes:
        input ``[N, C_in, H, W]`` or ``[C_in, H, W]``; output ``[N, C_out, H_out, W_out]`` or
        ``[C_out, H_out, W_out]``.
    """

    replaces = torch.nn.ConvTranspose2d
    _operator = torch.ops.torch_cudnn_ext.conv_transpose2d.default


class ConvTranspose3d(_TransposedConvolution, torch.nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` with a choice of algorithm.

    Takes the arguments of ``torch.nn.ConvTranspose3d`` and, by keyword, ``policy``: how to choose
    the algorithms (text, `Policy`, or a mapping of its keywords). Its passes name the cuDNN
    primitive that runs: the forward runs ``bwd_data``, the data gradient ``fwd``, the weight
    gradient ``bwd_filter``.

    Shapes:
        input ``[N, C_in, D, H, W]`` or ``[C_in, D, H, W]``; output
        ``[N, C_out, D_out, H_out, W_out]`` or ``[C_out, D_out, H_out, W_out]``.
    """

    replaces = torch.nn.ConvTranspose3d
    _operator = torch.ops.torch_cudnn_ext.conv_transpose3d.default
