"""What Python knows of a family of operators in addition to its C++ ``Operator``.

The module of each family describes it once, next to its functions. A family that has none of these
facts needs no description.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from torch_cudnn_ext._torch_internals import describe_to_compiler

if TYPE_CHECKING:
    from torch_cudnn_ext._C import ProblemInfo

_OPERATORS = torch.ops.torch_cudnn_ext
_families: dict[str, "Family"] = {}


@dataclass(frozen=True)
class Family:
    """One family of operators.

    Attributes:
        name: As in `_C.operators`.
        forward_fields: The fields of a problem line that only forwards have.
        training_fields: Those that only the training forward has.
        images: The tensors of a problem that are images or their filters, which a network has
            channels-last.
        has_rows: Whether a problem's input is a matrix of rows. A network without images has one
            row per sample, and a network with images has several.
        float32_parameters: Whether parameters stay in float32 if the data have a half type.
        tensor_cores: Whether its kernels multiply matrices, which GPUs do on tensor cores, of
            float32 as TF32.
        tf32_by: The line of code that lets its layers use TF32.
        channels: The numbers of channels that they multiply, if a layer has such.
        gains: Whether `optimize` exchanges its layers; PyTorch's kernels of others are as fast.
        gains_over_compiler: Whether its layers may be faster than Inductor's code, even if they
            take in no activation.
        steps: The number of steps that a problem takes one after the other.
        replaced: By function of PyTorch, the function of ours that takes the same arguments. The
            functions of ``torch.nn.functional`` with the names of ours are not listed.
        keywords: PyTorch's names of arguments that have another name here.
        flops: By operator, how many operations ``torch.utils.flop_counter`` counts. A formula gets
            the shapes of tensors in their place.
        random: The operators that draw random numbers, of which two equal calls are not one.
        training: The operators that return a reserve, whose size the algorithm decides.
    """

    name: str
    forward_fields: tuple[str, ...] = ()
    training_fields: tuple[str, ...] = ()
    images: Callable[["ProblemInfo"], tuple[str, ...]] = lambda problem: ()
    has_rows: Callable[["ProblemInfo"], bool] = lambda problem: False
    float32_parameters: bool = False
    tensor_cores: bool = False
    tf32_by: str = 'torch_cudnn_ext.enable("allow_tf32=true")'
    channels: Callable[["ProblemInfo"], tuple[int, ...]] = lambda problem: ()
    gains: bool = True
    gains_over_compiler: bool = False
    steps: Callable[["ProblemInfo"], int] | None = None
    replaced: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)
    keywords: Mapping[str, str] = field(default_factory=dict)
    flops: Mapping[str, Callable[..., int]] = field(default_factory=dict)
    random: tuple[str, ...] = ()
    training: tuple[str, ...] = ()


def describe(family: Family) -> None:
    """Make a family known to the package and to PyTorch's counter and compiler."""
    _families[family.name] = family
    for operator, formula in family.flops.items():
        register_flop_formula(getattr(_OPERATORS, operator))(formula)
    describe_to_compiler(
        random=[getattr(_OPERATORS, name) for name in family.random],
        any_size=[getattr(_OPERATORS, name).default for name in family.training],
    )


def family_of(problem: "ProblemInfo") -> Family:
    """The family of a problem."""
    return family_named(problem["family"])


def family_named(name: str) -> Family:
    """The family of this name."""
    return _families.get(name, Family(name))


def families() -> list[Family]:
    """The families that are described."""
    return [*_families.values()]


def in_place_of_methods(*functions: Callable[..., Any]) -> dict[Any, Callable[..., Any]]:
    """For `Family.replaced`: functions that ``torch`` and its tensors have by the same names."""
    return {
        getattr(owner, function.__name__): function
        for function in functions
        for owner in (torch, Tensor)
    }
