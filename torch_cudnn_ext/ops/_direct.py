"""Functions that call an operator directly, with one call from Python into C++.

A function of this package checks its arguments one by one, so that its errors name them. `direct`
puts a call of C++ in front of it. That call takes arguments of the plain types: tensors of the
class ``Tensor`` itself, integers, numbers, flags, texts, and lists of integers. It leaves all else
to the function: other types, modes and subclasses with ``__torch_function__``, wrong arguments, and
tracing by ``torch.compile``. The function therefore defines what a call does, and the direct call
only does the same sooner.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, wraps
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import is_text_of
from torch_cudnn_ext._torch_internals import schema_of

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD
MAX_DIMS = 64  # more than a tensor has
MAX_TEXTS = 1024  # then all policy texts of a family are forgotten


@dataclass(frozen=True)
class direct:  # noqa: N801  used as a decorator
    """Puts a direct call of an operator in front of a function.

    An argument of the operator comes from the function's parameter of the same name, unless
    ``sources`` or ``constants`` say otherwise; without any it has the operator's default. A
    parameter that no argument comes from must have its default, else the function itself runs.

    Attributes:
        operator: The operator's name.
        family: The family that policies are read for.
        dims: How many integers those lists have whose length the schema leaves open; one integer
            stands for all of them. 0 leaves it open.
        any_length: The arguments that are one integer or a list of any length.
        sources: By argument of the operator, the parameter that it comes from.
        instead: By argument, the argument whose value counts if its own is ``None``.
        positive: The arguments that must be above 0.
        ranks: By argument, the fewest and the most dimensions that a tensor may have.
        only: By parameter that no argument comes from, the only value with which the operator is
            called, in place of the default.
        constants: By argument, its value in every call.
    """

    operator: str
    family: str
    dims: int = 0
    any_length: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    positive: tuple[str, ...] = ()
    ranks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    only: Mapping[str, object] = field(default_factory=dict)
    constants: Mapping[str, object] = field(default_factory=dict)

    def __call__(self, general: FunctionT) -> FunctionT:
        """The function with the direct call in front of it."""
        parameters = [*inspect.signature(general).parameters.values()]
        return wraps(general)(self._in_front_of(general, parameters))  # type: ignore[return-value]

    def of_operator(self) -> Callable[..., Any]:
        """The operator itself, with its own arguments, defaults and errors."""
        operator = getattr(torch.ops.torch_cudnn_ext, self.operator).default
        parameters = [
            inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY if one.kwarg_only else _POSITIONAL,
                default=one.default_value if one.has_default_value() else inspect.Parameter.empty,
            )
            for one in _arguments_of(self.operator)
        ]
        return self._in_front_of(operator, parameters)

    def _in_front_of(
        self, general: Callable[..., Any], parameters: Sequence[inspect.Parameter]
    ) -> Callable[..., Any]:
        call = self._call(general, parameters)

        def function(*given: Any, **by_name: Any) -> Any:
            if is_dynamo_compiling():
                return general(*given, **by_name)
            return call(*given, **by_name)

        # torch.compile counts how often it compiles each code, and a traceback shows its name.
        name = general.__name__
        function.__code__ = function.__code__.replace(co_name=name, co_qualname=name)
        return function

    def _call(
        self, general: Callable[..., Any], parameters: Sequence[inspect.Parameter]
    ) -> Callable[..., Any]:
        defaults = {p.name: ... if p.default is p.empty else p.default for p in parameters}
        places = {name: place for place, name in enumerate(defaults)}
        slots = [*defaults.values()]
        arguments = _arguments_of(self.operator)
        read: dict[str, int] = {}
        for argument in arguments:
            source = self.sources.get(argument.name, argument.name)
            if source in places and argument.name not in self.constants:
                read[argument.name] = places[source]
            else:
                read[argument.name] = len(slots)
                slots.append(self.constants.get(argument.name, argument.default_value))
        allowed = defaults | dict(self.only)
        unread = [(places[name], allowed[name]) for name in places.keys() - _names(places, read)]
        return _C.direct_call(
            self.operator,
            general,
            partial(_admits, self.family),
            texts_of(self.family),
            [*places],
            sum(p.kind is _POSITIONAL for p in parameters),
            slots,
            [self._source(argument, read) for argument in arguments],
            unread,
        )

    def _source(
        self, argument: Any, read: Mapping[str, int]
    ) -> tuple[int, int, int, bool, int, int]:
        name = argument.name
        return (
            read[name],
            read[self.instead[name]] if name in self.instead else -1,
            0 if name in self.any_length else argument.N or self.dims or -1,
            name in self.positive,
            *self.ranks.get(name, (0, MAX_DIMS)),
        )


def _arguments_of(operator: str) -> list[Any]:
    arguments: list[Any] = schema_of(getattr(torch.ops.torch_cudnn_ext, operator).default).arguments
    return arguments


def _names(places: Mapping[str, int], read: Mapping[str, int]) -> set[str]:
    """The parameters that arguments come from."""
    used = {*read.values()}
    return {name for name, place in places.items() if place in used}


@cache
def texts_of(family: str) -> dict[str, str]:
    """The policy texts that operators of a family have taken."""
    return {}


def _admits(family: str, text: str) -> bool:
    """Whether operators of a family take a policy text, whatever weaker levels say."""
    if not text or not is_text_of(family, text):
        return False
    texts = texts_of(family)
    if len(texts) >= MAX_TEXTS:
        texts.clear()
    texts[text] = text
    return True
