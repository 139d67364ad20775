"""How algorithms are chosen: `Policy`, a value that stands for a policy text.

A policy text holds, separated by ``;``, a choice for each pass (``fwd=legacy:fft``,
``bwd_data=autotune``, ``bwd_filter=heuristic``), or one word for all of them (``autotune``), and
constraints (``max_workspace=64MiB``, ``deterministic``, ``backends=cudnn``). Operators take the
text itself, a `Policy`, or a mapping of `Policy`'s keywords.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, TypeAlias

import torch

from torch_cudnn_ext import _C

AlgorithmSelection: TypeAlias = str | int | None
PolicyLike: TypeAlias = "Policy | str | int | Mapping[str, Any] | None"

# The values of on_unsupported by which another algorithm runs.
FALLING_BACK = ("warn", "fallback")
# The words for all passes that every operator knows.
FOR_ALL = ("autotune", "heuristic", "time_on_shape_change", "guess_on_shape_change")

# What keeps a module's first choice, and the word that makes it.
ONCE = {"guess_once": "heuristic", "time_once": "autotune"}

_CHOICE_WANTED = (
    "'autotune', 'heuristic' or an algorithm: its text ('legacy:fft', 'graph:eng67'), cuDNN's "
    "integer or enum name for this pass, or Theano's name"
)
_CHOICE_FOR_ALL_WANTED = "'autotune', 'heuristic', or a text or name of an algorithm"
_BOOLEAN: tuple[tuple[type, ...], str] = ((bool,), "True or False")

# Each constraint: the Python types that it takes, and what an error says was wanted.
CONSTRAINTS: dict[str, tuple[tuple[type, ...], str]] = {
    "max_workspace": ((int, str), "bytes as an integer, or a text such as '64MiB' or '20%'"),
    "deterministic": _BOOLEAN,
    "allow_tf32": _BOOLEAN,
    "allow_down_convert": _BOOLEAN,
    "allow_reduced_range": _BOOLEAN,
    "prefer": ((str,), "'time', 'gpu_time' or 'memory'"),
    "backends": (
        (str, list, tuple),
        "'cudnn', or a list of 'graph', 'legacy', 'aten', 'cpu', 'cudnn'",
    ),
    "on_unsupported": ((str,), "'error', 'warn' or 'fallback'"),
    "benchmark": _BOOLEAN,
    "fastest": _BOOLEAN,
    "compute": (
        (str,),
        "'as_input', 'as_input_f32', 'f16', 'f32' or 'f64', for all types of data or by type: "
        "'f16:f32,bf16:f32'",
    ),
}


def not_pinned(choice: object) -> bool:
    """Whether a choice is one of the three ways to say "not pinned": ``None``, ``""`` or -1."""
    return choice is None or choice == "" or choice == -1


def field_text(argument: str, key: str, value: object, family: str = "conv") -> str:
    """Write one field of a policy text.

    Args:
        argument: What an error calls the field: a keyword, a knob, an environment variable.
        key: A constraint, a pass (``fwd``), an operator (``conv_fwd``), or ``""`` for all passes.
        value: What the field is set to.
        family: The operator family that a choice must fit.

    Raises:
        TypeError: The value has a type that the field does not take.
        ValueError: The value is none that the field takes.
    """
    of_choice = ((int, str), _CHOICE_WANTED) if key else ((str,), _CHOICE_FOR_ALL_WANTED)
    types, wanted = CONSTRAINTS.get(key, of_choice)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{argument}: got {value!r} ({type(value).__name__}), wanted {wanted}")
    word = _word(value)
    if ";" in word:
        raise ValueError(f"{argument}: got {value!r}, wanted {wanted}, without ';'")
    text = f"{key}={word}" if key else word
    try:
        _C.canonical_policy(text, family)
    except ValueError as error:
        raise ValueError(f"{argument}: got {value!r}, wanted {wanted}: {error}") from error
    return text


@dataclass(frozen=True, init=False, repr=False)
class Policy:
    """How to choose the algorithm of each pass, and what every algorithm must keep to.

    Immutable; equal policies have equal families and canonical texts. ``str(policy)`` is that text,
    and ``Policy.parse`` reads it. A choice is ``autotune``, ``heuristic``, or an algorithm: its
    text (``legacy:fft_tiling/math=fma``, ``graph:eng67/k2=1``, ``cpu:im2col``), an integer, enum
    name or short name of cuDNN's classic API, or one of Theano's names (``none``, ``small``,
    ``large``, ``fft``, ``fft_tiling``, ``winograd``, ``winograd_non_fused``, ``deterministic``).
    Theano's ``guess_on_shape_change`` and ``time_on_shape_change`` are ``heuristic`` and
    ``autotune``, since choices are always kept by shape; ``guess_once`` and ``time_once`` are for
    modules, which keep their first choice.
    ``None``, ``""`` and -1 leave a pass unpinned.

    For transposed convolutions the passes name the cuDNN primitive that runs: their forward runs
    ``bwd_data``, their data gradient ``fwd``.

    Example:
        >>> Policy(fwd="legacy:fft", max_workspace="64MiB")
        Policy.parse('fwd=legacy:fft;max_workspace=64MiB')

    Args:
        choice: The choice for all passes that have none of their own.
        family: The family of operators that the passes below belong to: ``conv``, ``softmax``, ...
        fwd: The choice for the forward.
        bwd: The choice for the backward; convolution has two, ``bwd_data`` and ``bwd_filter``.
        bwd_data: The choice for the gradient of the data.
        bwd_filter: The choice for the gradient of the filter.
        max_workspace: The largest workspace: bytes, or a text such as ``64MiB``, or ``20%`` of the
            GPU's memory.
        deterministic: Admit deterministic algorithms only.
        allow_tf32: Admit TF32 arithmetic for float32 data.
        allow_down_convert: Admit algorithms that convert to, or accumulate in, a narrower type.
        allow_reduced_range: Admit algorithms that narrow the range of values.
        prefer: What tuning ranks by: ``time``, the GPU's or the host's, whichever is longer;
            ``gpu_time``, the GPU's alone, for what is captured as a CUDA graph; ``memory``, the
            workspace of those within 5 % of the best time.
        backends: The backends admitted: a list, or text such as ``aten,cpu``; ``cudnn`` stands for
            ``graph`` and ``legacy``.
        on_unsupported: What a pin that cannot run is: ``error``, ``warn`` or ``fallback``, which
            takes the heuristic's choice. Likewise where none of ``backends`` has an algorithm: then
            it is the choice of all backends.
        benchmark: Autotune what is not pinned when it is first met.
        fastest: Autotune what this policy does not pin, by time unless ``prefer`` is given,
            whatever its ``max_workspace`` says.
        compute: The type of accumulation in convolutions: ``f16``, ``f32``, ``f64``, ``as_input``
            (that of the data), or ``as_input_f32`` (the same, but float32 for narrower data). One
            word is for data of all types; ``f16:f32,bf16:f32,f64:f64`` says it for some, and leaves
            the others to weaker levels.
        **choices: Choices for operators of any family, as ``softmax_fwd="accurate"``, or for all
            passes of one, as ``softmax="autotune"``.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take.
    """

    text: str
    family: str

    def __init__(
        self,
        choice: str | None = None,
        /,
        *,
        family: str = "conv",
        fwd: AlgorithmSelection = None,
        bwd: AlgorithmSelection = None,
        bwd_data: AlgorithmSelection = None,
        bwd_filter: AlgorithmSelection = None,
        max_workspace: int | str | None = None,
        deterministic: bool | None = None,
        allow_tf32: bool | None = None,
        allow_down_convert: bool | None = None,
        allow_reduced_range: bool | None = None,
        prefer: str | None = None,
        backends: str | list[str] | tuple[str, ...] | None = None,
        on_unsupported: str | None = None,
        benchmark: bool | None = None,
        fastest: bool | None = None,
        compute: str | None = None,
        **choices: AlgorithmSelection,
    ) -> None:
        """Check each argument and build the canonical text."""
        fields = {
            "": choice,
            "fwd": fwd,
            "bwd": bwd,
            "bwd_data": bwd_data,
            "bwd_filter": bwd_filter,
            "max_workspace": max_workspace,
            "deterministic": deterministic,
            "allow_tf32": allow_tf32,
            "allow_down_convert": allow_down_convert,
            "allow_reduced_range": allow_reduced_range,
            "prefer": prefer,
            "backends": backends,
            "on_unsupported": on_unsupported,
            "benchmark": benchmark,
            "fastest": fastest,
            "compute": compute,
            **choices,
        }
        known = dict.fromkeys((*passes_of(family), *_families()))
        for name, value in fields.items():
            is_known = name in known or name in CONSTRAINTS or not name
            if not is_known and (name in choices or not not_pinned(value)):
                words = [*known, *CONSTRAINTS, "family"]
                raise TypeError(
                    f"Policy: got the keyword {name!r}, "
                    f"{_C.wanted_words(name, words, _C.IN_POLICIES)}"
                )
        self._set(";".join(_checked(fields, family)), family)
        _check_algorithms(self.text, family)

    @classmethod
    def parse(cls, text: str, family: str = "conv") -> "Policy":
        """Read a policy text.

        Args:
            text: The text.
            family: The family that passes without one belong to.

        Raises:
            TypeError: ``text`` is no text.
            ValueError: ``text`` is no policy, or chooses what there is not and does not fall back;
                the message names the part that is wrong.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: got {text!r} ({type(text).__name__}), wanted a policy text")
        policy = cls._unchecked(text, family)
        _check_algorithms(policy.text, family)
        return policy

    @classmethod
    def _unchecked(cls, text: str, family: str = "conv") -> "Policy":
        """As `parse`, where another level may say that what there is not falls back."""
        policy = cls.__new__(cls)
        policy._set(text, family)
        return policy

    def of(self, family: str) -> "Policy":
        """The same policy, written for another family of operators."""
        if family == self.family:
            return self
        return Policy.parse(_C.canonical_policy(self.text, self.family, family), family)

    def get(self, field: str) -> str | None:
        """The text of a field: a pass (``fwd``), or a constraint (``max_workspace``).

        Flags read ``true`` or ``false``. Where a cap in bytes and one in percent hold together,
        the one in bytes is given. ``None`` where the field is not set.
        """
        for part in self.text.split(";"):
            key, _, value = part.partition("=")
            if key == field:
                return value or "true"
        return None

    @property
    def max_workspace(self) -> int | str | None:
        """The largest workspace in bytes, or a text such as ``20%``; ``None`` without a limit."""
        cap = self.get("max_workspace")
        if cap is None or cap.endswith("%"):
            return cap
        return int(_C.policy_fields(f"max_workspace={cap}")["max_workspace"])

    def replace(self, **changes: Any) -> "Policy":
        """This policy with some keywords set anew; ``None`` takes one out.

        Raises:
            TypeError: A keyword is unknown, or its value has a type that it does not take.
            ValueError: A keyword has a value that it does not take.
        """
        known = (*passes_of(self.family), *_families(), *CONSTRAINTS)
        for name in changes:
            if name not in known:
                wanted = _C.wanted_words(name, list(known), _C.IN_POLICIES)
                raise TypeError(f"replace: got the keyword {name!r}, {wanted}")
        gone = {field for name in changes for field in _fields(name, self.family)}
        kept = [part for part in self.text.split(";") if part.partition("=")[0] not in gone]
        return Policy.parse(";".join([*kept, *_checked(changes, self.family)]), self.family)

    def __or__(self, other: PolicyLike) -> "Policy":
        """Merge field by field: the right side wins.

        The smaller ``max_workspace`` and ``deterministic`` hold from either side.
        """
        stronger = as_policy(other, self.family).text
        return Policy.parse(_C.merged_policy(stronger, self.text, self.family), self.family)

    def __str__(self) -> str:
        """The canonical text."""
        return self.text

    def __repr__(self) -> str:
        """The call that gives an equal policy."""
        family = "" if self.family == "conv" else f", family={self.family!r}"
        return f"Policy.parse({self.text!r}{family})"

    def _set(self, text: str, family: str) -> None:
        passes_of(family)  # raises for an unknown one; an empty text would not
        object.__setattr__(self, "text", _C.canonical_policy(text, family))
        object.__setattr__(self, "family", family)


def as_policy(policy: PolicyLike, family: str = "conv") -> Policy:
    """Read whatever stands for a policy, which may be for other families too.

    Raises:
        TypeError: It has a type that stands for no policy.
        ValueError: It is no policy.
    """
    return Policy.parse(plain_text(policy, family) or "", family)


def only_fields(policy: str, keys: Sequence[str]) -> str:
    """Some fields of a policy text, as a policy text."""
    return ";".join(field for field in fields_of(policy) if field.partition("=")[0] in keys)


def fields_of(text: str) -> list[str]:
    """The fields of a policy text, without blanks around them and their ``=``."""
    split = (field.partition("=") for field in text.split(";"))
    fields = (key.strip() + equals + value.strip() for key, equals, value in split)
    return [field for field in fields if field]


def check_pin(policy: Policy, name: str, argument: str = "policy") -> None:
    """Raise where a policy pins a pass (``fwd``) to what there is not, and does not fall back.

    An error names the ``argument`` that the policy came by.

    Raises:
        ValueError: The family has no such algorithm in that pass.
    """
    pin = without_options(policy.get(name) or "")
    # Of cuDNN's engines only a GPU tells.
    named = pin.startswith(("aten:", "cpu:", "legacy:"))
    if not named or policy.get("on_unsupported") in FALLING_BACK:
        return
    known = algorithms_of(policy.family, name)
    if pin in known:
        return
    admitted = _admitted_backends(policy)
    wanted = list(
        dict.fromkeys(
            "graph:engN" if backend == "graph" else algorithm
            for algorithm in known
            if (backend := algorithm.partition(":")[0]) in admitted
        )
    )
    of_backend = [one for one in wanted if one.startswith(pin.partition(":")[0] + ":")]
    near = _C.nearest_words(pin, wanted) or of_backend[:5] or wanted[:5]
    others = ", ".join(f"{family} ({family}={pin})" for family in _C.families_with(pin))
    raise ValueError(
        f"{argument}: got {pin!r} for {policy.family}_{name}, wanted one of "
        f"{', '.join(near)}{'' if near == wanted else f' (all: {_C.IN_OPERATORS})'}, or "
        "on_unsupported=fallback" + (f"; it is an algorithm of {others}" if others else "")
    )


def _admitted_backends(policy: Policy) -> list[str]:
    said = policy.get("backends")
    names = ["graph", "legacy", "aten", "cpu"] if said is None else said.split(",")
    return [one for name in names for one in (["graph", "legacy"] if name == "cudnn" else [name])]


@lru_cache(maxsize=1024)
def _check_algorithms(text: str, family: str) -> None:
    """`check_pin` of every pass of every family that a canonical text chooses for."""
    policies = {family: Policy._unchecked(text, family)}
    for field in fields_of(text):
        key = field.partition("=")[0]
        of, name = operators().get(key, (family, key))
        if name in passes_of(of):
            if of not in policies:
                policies[of] = Policy._unchecked(_C.canonical_policy(text, family, of), of)
            check_pin(policies[of], name)


def refuse_once(argument: str, value: object) -> None:
    """ValueError for a choice that only a module can keep."""
    if isinstance(value, str) and value in ONCE:
        raise ValueError(
            f"{argument}: got {value!r}, which is state of a module, "
            "wanted 'heuristic', 'autotune' or an algorithm"
        )


def check_pins(policy: Policy, argument: str = "policy") -> None:
    """`check_pin` of every pass."""
    for name in passes_of(policy.family):
        check_pin(policy, name, argument)


def check_mapping(argument: str, value: object, of: str) -> None:
    """TypeError for what is no mapping, say ``of`` patterns to policies."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{argument}: got {value!r:.60} ({type(value).__name__}), wanted a mapping of {of}"
        )


@contextmanager
def naming_policy(argument: str, key: str, policy: PolicyLike) -> Iterator[None]:
    """Errors name the argument, its key, and the policy of this key."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {key!r} is {policy!r}: {error}") from error


def check_named_pins(policy: PolicyLike) -> None:
    """Raise where a choice that names its operator (``softmax_fwd``) is none of that operator's.

    Raises:
        TypeError: It has a type that stands for no policy.
        ValueError: The operator has no such algorithm, and the policy does not fall back.
    """
    if isinstance(policy, Mapping):
        parts = [f"{key}={value}" for key, value in policy.items() if not not_pinned(value)]
    else:
        # Its own operator's passes are written without the operator's name.
        if isinstance(policy, Policy) and policy.family != "conv":
            policy = _C.canonical_policy(policy.text, policy.family, "")
        parts = fields_of(plain_text(policy, "conv") or "")
    falls_back = any(f"on_unsupported={action}" in parts for action in FALLING_BACK)
    for part in parts:
        family = _families().get(part.partition("=")[0])
        if family is not None and not falls_back:
            check_pins(Policy._unchecked(part, family))


def without_options(algorithm: str) -> str:
    """Its backend and name: ``graph:eng67`` of ``graph:eng67/k2=1``."""
    return algorithm.partition("/")[0]


@cache
def algorithms_of(family: str, name: str) -> list[str]:
    """The algorithms of a pass, without options; whether they can run here or not."""
    examples = operator_info(family)["examples"]
    lines = [" ".join([f"{family}_{name}", *line.split()[1:]]) for line in examples]
    rows = [row for line in lines for row in _C.candidates(line, "cpu")]
    return list(dict.fromkeys(without_options(row["algorithm"]) for row in rows))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text_of_keywords(keywords: dict[str, Any], family: str) -> str | None:
    return Policy(**{"family": family, **keywords}).of(family).text or None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text_for(family: str, text: str, written_for: str) -> str | None:
    return Policy.parse(text, written_for).of(family).text or None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _check_text(family: str, text: str) -> None:
    """ValueError where no problem of a family could be chosen for by a text that it is given."""
    try:
        _check_text_alone(family, text)
    except ValueError:
        if others_spoken_of(text, family):
            raise
        # Also what flags and knobs say.
        merged = Policy._unchecked(_C.resolved_policy(text, family), family)
        if merged.get("on_unsupported") not in FALLING_BACK:
            raise


@lru_cache(maxsize=1024)
def _check_text_alone(family: str, text: str) -> None:
    others = others_spoken_of(text, family)
    if others:
        raise ValueError(
            f"policy: got a Policy for {', '.join(others)}, wanted one for {family} "
            f"({', '.join(passes_of(family))}): a text, a mapping, or Policy(..., "
            f"family={family!r})"
        )
    _check_algorithms(_C.canonical_policy(text, family), family)


@lru_cache(maxsize=1024)
def others_spoken_of(text: str, family: str) -> tuple[str, ...]:
    """Whose algorithm a text chooses in other families, where it chooses none in this one."""
    keys = [field.partition("=")[0] for field in fields_of(_C.canonical_policy(text, family))]
    if any(key in passes_of(family) for key in keys):
        return ()
    return tuple(key for key in keys if key in operators())


def own_text(text: str, family: str) -> str:
    """A canonical policy text without choices, where it chooses for other families alone."""
    others = others_spoken_of(text, family)
    return ";".join(one for one in fields_of(text) if one.partition("=")[0] not in others)


def policy_text(policy: PolicyLike, family: str = "conv") -> str | None:
    """The text that an operator of a family takes for a policy; ``None`` where nothing is set.

    Raises:
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: ``policy`` is an integer other than -1 (integers name an algorithm of one
            pass), a mapping with a value that its keyword does not take, or no policy; or it
            chooses for other families alone, or what there is not, and does not fall back.
    """
    text = plain_text(policy, family)
    if text is not None:
        _check_text(family, text)
    return text


def plain_text(policy: PolicyLike, family: str) -> str | None:
    """As `policy_text`, of what chooses for other families too, and unchecked where it is text."""
    if policy is None:
        return None
    if isinstance(policy, str):
        return policy or None
    text: str | None
    if isinstance(policy, Policy):
        if policy.family == family:
            return policy.text or None
        text = _text_for(family, policy.text, policy.family)
        return text
    if isinstance(policy, Mapping):
        text = _text_of_keywords(dict(policy), family)
        return text
    if isinstance(policy, int) and not isinstance(policy, bool):
        if policy == -1:
            return None
        raise ValueError(
            f"policy: got {policy}, but an integer names an algorithm of one pass only, "
            f"wanted for example 'fwd={policy}'"
        )
    raise TypeError(
        f"policy: got {policy!r} ({type(policy).__name__}), wanted a Policy, a policy text, "
        "a mapping of Policy's keywords, or None"
    )


def text_for_all(policy: PolicyLike, family: str = "conv") -> str:
    """A canonical policy text that operators of all families read alike.

    The single words of `FOR_ALL` stay, which each reads for its own passes; other words and passes
    are of one family, and get its name.

    Raises:
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: ``policy`` is no policy, or pins what there is not and does not fall back.
    """
    words = fields_of(plain_text(policy, family) or "")
    for_all = [word for word in words if word in FOR_ALL]
    rest = _C.canonical_policy(";".join(word for word in words if word not in FOR_ALL), family, "")
    check_named_pins(rest)
    return ";".join(word for word in (*for_all, rest) if word)


@cache
def operator_info(family: str) -> dict[str, Any]:
    """What a family of operators says of itself: its passes, examples, backends, ...

    Raises:
        ValueError: There is no such family.
    """
    known = {op["family"]: op for op in _C.operators()}
    if family not in known:
        wanted = _C.wanted_words(str(family), list(known), _C.IN_OPERATORS)
        raise ValueError(f"family: got {family!r}, {wanted}")
    return known[family]


def passes_of(family: str) -> tuple[str, ...]:
    """The passes of a family of operators: ``fwd``, ``bwd_data``, ...

    Raises:
        ValueError: There is no such family.
    """
    return tuple(operator_info(family)["passes"])


@cache
def operators() -> dict[str, tuple[str, str]]:
    """The family and the pass of each operator: ``conv_fwd``, ``conv_bwd_data``, ..."""
    return {
        f"{op['family']}_{name}": (op["family"], name)
        for op in _C.operators()
        for name in op["passes"]
    }


@cache
def _families() -> dict[str, str]:
    """Of ``conv``, ``softmax``, ..., ``conv_fwd``, ``conv_bwd_data``, ..., each one's family."""
    families = {op["family"]: op["family"] for op in _C.operators()}
    return families | {name: family for name, (family, _) in operators().items()}


def _fields(keyword: str, family: str) -> set[str]:
    """The fields of a policy's text, of a family, that a keyword sets."""
    passes = {name: of for name, of in operators().items() if keyword in (name, of[0])}
    return {keyword, *passes, *(name for of, name in passes.values() if of == family)}


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def _checked(fields: Mapping[str, object], family: str) -> list[str]:
    """The texts of the fields that are set, each of them valid."""
    return [
        field_text(key or "choice", key, value, family)
        for key, value in fields.items()
        if not (value is None if key in CONSTRAINTS else not_pinned(value))
    ]
