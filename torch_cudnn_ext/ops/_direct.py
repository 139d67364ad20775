"""Functions that call an operator directly, with one call from Python into C++.

A function of this package checks its arguments one by one, so that its errors name them. `direct`
puts a call of C++ in front of it. That call takes arguments of the plain types: tensors of the
class ``Tensor`` itself, integers, numbers, flags, texts, and lists of integers. It leaves all else
to the function: other types, modes and subclasses with ``__torch_function__``, wrong arguments, and
tracing by ``torch.compile``. The function therefore defines what a call does, and the direct call
only does the same sooner.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial, wraps
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import is_text_of
from torch_cudnn_ext._torch_internals import schema_of

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

MAX_DIMS = 64  # more than a tensor has
_MAX_TEXTS = 1024  # then all policy texts of a family are forgotten


def direct(
    operator: str,
    family: str,
    *,
    dims: int = 0,
    sources: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
    positive: tuple[str, ...] = (),
    ranks: Mapping[str, tuple[int, int]] | None = None,
    only: Mapping[str, object] | None = None,
    **constants: object,
) -> Callable[[FunctionT], FunctionT]:
    """Put a direct call of an operator in front of a function.

    An argument of the operator comes from the function's parameter of the same name, unless
    ``sources`` or ``constants`` say otherwise; without any it has the operator's default. A
    parameter that no argument comes from must have its default, else the function itself runs.

    Args:
        operator: The operator's name.
        family: The family that policies are read for.
        dims: How many integers a list of any length has; one integer stands for all of them.
        sources: By argument of the operator, the parameter that it comes from.
        instead: By argument, the argument whose value counts if its own is ``None``.
        positive: The arguments that must be above 0.
        ranks: By argument, the fewest and the most dimensions that a tensor may have.
        only: By parameter that no argument comes from, the only value with which the operator is
            called, in place of the default.
        **constants: By argument, its value in every call.
    """

    def decorate(general: FunctionT) -> FunctionT:
        parameters = inspect.signature(general).parameters
        positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        slots = {name: ... if p.default is p.empty else p.default for name, p in parameters.items()}
        places = {name: place for place, name in enumerate(slots)}
        arguments = schema_of(getattr(torch.ops.torch_cudnn_ext, operator).default).arguments
        values = [*slots.values()]
        read: dict[str, int] = {}
        for argument in arguments:
            source = (sources or {}).get(argument.name, argument.name)
            if source in places and argument.name not in constants:
                read[argument.name] = places[source]
                continue
            read[argument.name] = len(values)
            values.append(constants.get(argument.name, argument.default_value))
        plan = [
            (
                read[argument.name],
                read.get((instead or {}).get(argument.name, ""), -1),
                argument.N or dims,
                argument.name in positive,
                *(ranks or {}).get(argument.name, (0, MAX_DIMS)),
            )
            for argument in arguments
        ]
        fixed = slots | dict(only or {})
        unread = [
            (place, fixed[name]) for name, place in places.items() if place not in read.values()
        ]
        call = _C.direct_call(
            operator,
            general,
            partial(_admits, family),
            _texts_of(family),
            [*parameters],
            len(positional),
            values,
            plan,
            unread,
        )

        @wraps(general)
        def function(*given: Any, **by_name: Any) -> Any:
            if is_dynamo_compiling():
                return general(*given, **by_name)
            return call(*given, **by_name)

        return function  # type: ignore[return-value]

    return decorate


@cache
def _texts_of(family: str) -> dict[str, str]:
    """The policy texts that operators of a family have taken."""
    return {}


def _admits(family: str, text: str) -> bool:
    """Whether operators of a family take a policy text, whatever weaker levels say."""
    if not text or not is_text_of(family, text):
        return False
    texts = _texts_of(family)
    if len(texts) >= _MAX_TEXTS:
        texts.clear()
    texts[text] = text
    return True
