"""What `optimize` is asked for, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from torch_cudnn_ext import _C
from torch_cudnn_ext._defaults import LAYOUTS
from torch_cudnn_ext._optimize.forms import autocast_now, form_of
from torch_cudnn_ext._optimize.recipe import NEW_SHAPES, Recipe
from torch_cudnn_ext._policy_text import field_text
from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in
from torch_cudnn_ext.policy import PolicyLike, text_for_all
from torch_cudnn_ext.tuning.measure import check_constraints_alone

Layout = Literal["keep", "contiguous", "channels_last", "search"]
NewShape = Literal["heuristic", "autotune"]
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Options:
    """The arguments of `optimize`, under their names.

    Raises:
        TypeError: ``loss`` cannot be called, ``policy`` is no policy, or ``peak_memory`` is neither
            an integer nor a text.
        ValueError: Another one is none of its values, or is not for training, or is for it alone.
    """

    train: bool
    loss: Loss | None
    policy: PolicyLike
    layout: Layout
    cuda_graph: bool | None
    torch_compile: bool | None
    on_new_shape: NewShape
    max_error: float | None
    peak_memory: int | str | None

    def __post_init__(self) -> None:
        """Check all of them."""
        for name, value, wanted in (
            ("layout", self.layout, (*LAYOUTS, "search")),
            ("on_new_shape", self.on_new_shape, NEW_SHAPES),
        ):
            if value not in wanted:
                raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(wanted)}")
        if not isinstance(self.train, bool):
            raise ValueError(f"train: got {self.train!r}, wanted True or False")
        for name in ("cuda_graph", "torch_compile"):
            if (flag := getattr(self, name)) is not None and not isinstance(flag, bool):
                raise ValueError(f"{name}: got {flag!r}, wanted True, False or None")
            if self.train and flag:
                raise ValueError(f"{name}: got True with train=True, wanted False: {_WHY[name]}")
        if self.loss is not None and not callable(self.loss):
            kind = type(self.loss).__name__
            raise TypeError(f"loss: got {self.loss!r:.60} ({kind}), wanted a function or None")
        if self.loss is not None and not self.train:
            raise ValueError("loss: got one with train=False, wanted None: inference has no loss")
        error = self.max_error
        is_number = isinstance(error, int | float) and not isinstance(error, bool)
        if error is not None and not (is_number and error > 0):
            raise ValueError(f"max_error: got {error!r}, wanted a positive number")
        if self.peak_memory is not None:
            field_text("peak_memory", "max_workspace", self.peak_memory)
        check_constraints_alone(text_for_all(self.policy))

    def most_bytes(self, device: str) -> int | None:
        """The bound of ``peak_memory`` in bytes.

        Raises:
            ValueError: The model is not on a GPU.
        """
        if self.peak_memory is None:
            return None
        if not device.startswith("cuda"):
            raise ValueError(
                f"peak_memory: got {self.peak_memory!r} for a model on {device}, wanted one on a "
                "GPU, whose allocator measures it"
            )
        return _C.workspace_cap(f"max_workspace={self.peak_memory}", device)

    def recipes(self, args: tuple[Any, ...], digest: str) -> list[Recipe]:
        """What a network is made by, one for each layout that is tried."""
        is_on_gpu = any(t.is_cuda for t in tensors_in(args))
        compiles = is_on_gpu if self.torch_compile is None else self.torch_compile
        return [
            Recipe(
                policy=text_for_all(self.policy),
                layout=layout,
                on_new_shape=self.on_new_shape,
                cuda_graph=not self.train and self.cuda_graph is not False,
                torch_compile=not self.train and compiles,
                form=form_of(args),
                layers=digest,
                autocast=autocast_now(),
                train=self.train,
            )
            for layout in (LAYOUTS[1:] if self.layout == "search" else (self.layout,))
        ]


_WHY = {
    "cuda_graph": "a graph that is replayed writes each gradient to the same memory, so that "
    "gradients which are kept for the next step become wrong; capture the whole step yourself",
    "torch_compile": "only networks for inference are compiled here",
}


def example_of(inputs: object, train: bool) -> tuple[Any, ...]:
    """Copies of the example's arguments, which have a gradient in training if the user's have one.

    Raises:
        TypeError: They are neither a tensor nor a tuple.
        ValueError: There is no tensor among them.
    """
    args = tuple(inputs) if isinstance(inputs, tuple) else (inputs,)
    if not isinstance(inputs, Tensor | tuple):
        raise TypeError(
            f"optimize: argument inputs: got {type(inputs).__name__}, wanted a tensor or a tuple "
            "of positional arguments"
        )
    if not tensors_in(args):
        raise ValueError("optimize: argument inputs: got no tensor, wanted at least one")
    return tuple(
        map_tensors(lambda t: t.detach().clone().requires_grad_(train and t.requires_grad), args)
    )
