"""Policy texts: the fields that they hold, and checks of the algorithms that they pin.

This module knows the operator families that the extension lists. It does not know `Policy`.
"""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from torch_cudnn_ext import _C
from torch_cudnn_ext._engine_knobs import with_numbers
from torch_cudnn_ext._grammar import CONSTRAINTS, FALLING_BACK, ONCE
from torch_cudnn_ext._torch_internals import assume_constant_result

_WANTED_FOR_A_PASS = (
    "'autotune', 'tuned', 'heuristic' or an algorithm: its text ('legacy:fft', 'graph:eng67'), "
    "cuDNN's integer or enum name for this pass, or Theano's name"
)
_WANTED_FOR_ALL = "'autotune', 'tuned', 'heuristic', or a text or name of an algorithm"


# Operator families.


@cache
def operator_info(family: str) -> dict[str, Any]:
    """What the extension lists of an operator family: its passes, examples, backends, ...

    Raises:
        ValueError: There is no such family.
    """
    known = {op["family"]: op for op in _C.operators()}
    if family not in known:
        wanted = _C.wanted_words(str(family), list(known), _C.IN_OPERATORS)
        raise ValueError(f"family: got {family!r}, {wanted}")
    return known[family]


def passes_of(family: str) -> tuple[str, ...]:
    """The passes of an operator family: ``fwd``, ``bwd_data``, ...

    Raises:
        ValueError: There is no such family.
    """
    return tuple(operator_info(family)["passes"])


@cache
def operator_families() -> tuple[str, ...]:
    """The names of all families."""
    return tuple(op["family"] for op in _C.operators())


@cache
def operators() -> dict[str, tuple[str, str]]:
    """The family and the pass of each operator: ``conv_fwd``, ``conv_bwd_data``, ..."""
    return {
        f"{op['family']}_{name}": (op["family"], name)
        for op in _C.operators()
        for name in op["passes"]
    }


@cache
def families() -> dict[str, str]:
    """The family by its own name (``conv``) and by the name of each operator (``conv_fwd``)."""
    own = {family: family for family in operator_families()}
    return own | {name: family for name, (family, _) in operators().items()}


@cache
def algorithms_of(family: str, name: str) -> list[str]:
    """The algorithms of a pass, without options, including those that cannot run here."""
    examples = operator_info(family)["examples"]
    lines = [" ".join([f"{family}_{name}", *line.split()[1:]]) for line in examples]
    rows = [row for line in lines for row in _C.candidates(line, "cpu")]
    return list(dict.fromkeys(without_options(row["algorithm"]) for row in rows))


def without_options(algorithm: str) -> str:
    """The backend and name of an algorithm: ``graph:eng67`` of ``graph:eng67/k2=1``."""
    return algorithm.partition("/")[0]


# Fields.


@lru_cache(maxsize=1024)
def expanded(word: str, family: str) -> tuple[str, ...]:
    """The fields of operators that one field of a text stands for.

    A word that no family has stays as it is, so that reading it raises the error.
    """
    key = word.partition("=")[0]
    is_algorithm = ":" in key or "/" in key or ("=" not in word and word not in CONSTRAINTS)
    if not is_algorithm:
        return (word,)
    if key.startswith("graph:"):
        return (f"{family}={word}",)
    found = [field for one in (family, *operator_families()) for field in _selected(word, one)]
    return (*dict.fromkeys(found),) or (word,)


def _selected(word: str, family: str) -> list[str]:
    """The fields by which a word selects for the passes of a family that have the algorithm."""
    try:
        text = _C.canonical_policy(word, family)
    except ValueError:
        return []
    return [
        f"{family}_{field}"
        for field in fields_of(text)
        if without_options(field.partition("=")[2])
        in algorithms_of(family, field.partition("=")[0])
    ]


def not_pinned(selection: object) -> bool:
    """Whether a selection is one of the three spellings of "not pinned": None, ``""`` and -1."""
    return selection is None or selection == "" or selection == -1


def fields_of(text: str) -> list[str]:
    """The fields of a policy text, without blanks around them and their ``=``."""
    split = (field.partition("=") for field in text.split(";"))
    fields = (key.strip() + equals + value.strip() for key, equals, value in split)
    return [field for field in fields if field]


def only_fields(text: str, keys: Sequence[str]) -> str:
    """A policy text with the fields of these keys alone."""
    return ";".join(field for field in fields_of(text) if field.partition("=")[0] in keys)


def value_of(text: str, key: str) -> str | None:
    """The value of a field in a canonical policy text; ``true`` for a flag, None if not set."""
    for field in text.split(";"):
        name, _, value = field.partition("=")
        if name == key:
            return value or "true"
    return None


def field_text(argument: str, key: str, value: object, family: str = "conv") -> str:
    """Write one field of a policy text.

    Args:
        argument: What an error calls the field: a keyword, a knob, an environment variable.
        key: A constraint, a pass (``fwd``), an operator (``conv_fwd``), or ``""`` for all passes.
        value: The value of the field.
        family: The operator family that a selection must fit.

    Raises:
        TypeError: The value has a type that the field does not take.
        ValueError: The field does not take the value.
    """
    for_a_pass = ((int, str), _WANTED_FOR_A_PASS) if key else ((str,), _WANTED_FOR_ALL)
    types, wanted = CONSTRAINTS.get(key, for_a_pass)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{argument}: got {value!r} ({type(value).__name__}), wanted {wanted}")
    if isinstance(value, list | tuple):
        word = ",".join(map(str, value))
    else:
        word = str(value).lower() if isinstance(value, bool) else str(value)
    if ";" in word:
        raise ValueError(f"{argument}: got {value!r}, wanted {wanted}, without ';'")
    text = with_numbers(f"{key}={word}" if key else word)
    try:
        _C.canonical_policy(text, family)
    except ValueError as error:
        raise ValueError(f"{argument}: got {value!r}, wanted {wanted}: {error}") from error
    return text


def field_texts(fields: Mapping[str, object], family: str) -> list[str]:
    """The texts of the fields that are set.

    Raises:
        TypeError: As `field_text`.
        ValueError: As `field_text`.
    """
    return [
        field_text(key or "selection", key, value, family)
        for key, value in fields.items()
        if not (value is None if key in CONSTRAINTS else not_pinned(value))
    ]


def keys_of(keyword: str, family: str) -> set[str]:
    """The keys that a keyword of `Policy` sets in a text of a family."""
    passes = {name: of for name, of in operators().items() if keyword in (name, of[0])}
    return {keyword, *passes, *(name for of, name in passes.values() if of == family)}


# Checks.


def check_pin(text: str, family: str, name: str, argument: str = "policy") -> None:
    """Check that a family has the algorithm that a policy pins for a pass.

    A policy that falls back may pin anything. Engines of the graph API are not checked, since only
    a GPU knows which there are.

    Args:
        text: The canonical policy text, written for the family.
        family: The operator family.
        name: The pass, such as ``fwd``.
        argument: What an error calls the policy.

    Raises:
        ValueError: The family has no such algorithm in that pass.
    """
    pin = without_options(value_of(text, name) or "")
    named = pin.startswith(("aten:", "cpu:", "legacy:"))
    if not named or value_of(text, "on_unsupported") in FALLING_BACK:
        return
    known = algorithms_of(family, name)
    if pin in known:
        return
    backends = (value_of(text, "backends") or "graph,legacy,aten,cpu").split(",")
    if "cudnn" in backends:
        backends += ["graph", "legacy"]
    wanted = list(
        dict.fromkeys(
            "graph:engN" if backend == "graph" else algorithm
            for algorithm in known
            if (backend := algorithm.partition(":")[0]) in backends
        )
    )
    of_backend = [one for one in wanted if one.startswith(pin.partition(":")[0] + ":")]
    near = _C.nearest_words(pin, wanted) or of_backend[:5] or wanted[:5]
    others = ", ".join(f"{other} ({other}={pin})" for other in _C.families_with(pin))
    raise ValueError(
        f"{argument}: got {pin!r} for {family}_{name}, wanted one of "
        f"{', '.join(near)}{'' if near == wanted else f' (all: {_C.IN_OPERATORS})'}, or "
        "on_unsupported=fallback" + (f"; it is an algorithm of {others}" if others else "")
    )


def check_pins(text: str, family: str, argument: str = "policy") -> None:
    """`check_pin` for every pass of a family."""
    for name in passes_of(family):
        check_pin(text, family, name, argument)


@lru_cache(maxsize=1024)
def check_all_pins(text: str, family: str) -> None:
    """`check_pin` for every pass of every family that a canonical text selects for."""
    texts = {family: text}
    for field in fields_of(text):
        key = field.partition("=")[0]
        of, name = operators().get(key, (family, key))
        if name in passes_of(of):
            if of not in texts:
                texts[of] = _C.canonical_policy(text, family, of)
            check_pin(texts[of], of, name)


def check_not_once(argument: str, value: object) -> None:
    """Raise ValueError for a selection that only a module can keep: one of `ONCE`."""
    if isinstance(value, str) and value in ONCE:
        raise ValueError(
            f"{argument}: got {value!r}, which is state of a module, "
            "wanted 'heuristic', 'autotune' or an algorithm"
        )


@assume_constant_result
def check_text(family: str, text: str) -> None:
    """Check a policy text that is given to an operator or module of a family.

    Raises:
        ValueError: The text is no policy, selects for other families alone, or pins an unknown
            algorithm although neither the text nor a weaker level falls back.
    """
    try:
        _check_text_alone(family, text)
    except ValueError:
        if foreign_operators(text, family):
            raise
        merged = _C.resolved_policy(text, family)  # with what flags and knobs say
        if value_of(merged, "on_unsupported") not in FALLING_BACK:
            raise


def is_text_of(family: str, text: str) -> bool:
    """Whether `check_text` takes a text whatever the weaker levels say."""
    try:
        _check_text_alone(family, text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1024)
def _check_text_alone(family: str, text: str) -> None:
    others = foreign_operators(text, family)
    if others:
        raise ValueError(
            f"policy: got a Policy for {', '.join(others)}, wanted one for {family} "
            f"({', '.join(passes_of(family))}): a text, a mapping, or Policy(..., "
            f"family={family!r})"
        )
    check_all_pins(_C.canonical_policy(text, family), family)


@lru_cache(maxsize=1024)
def foreign_operators(text: str, family: str) -> tuple[str, ...]:
    """The operators of other families that a text selects for.

    Empty if the text also selects for this family.
    """
    keys = [field.partition("=")[0] for field in fields_of(_C.canonical_policy(text, family))]
    if any(key in passes_of(family) for key in keys):
        return ()
    return tuple(key for key in keys if key in operators())


def own_text(text: str, family: str) -> str:
    """A canonical policy text without the selections for `foreign_operators`."""
    others = foreign_operators(text, family)
    return ";".join(field for field in fields_of(text) if field.partition("=")[0] not in others)


def check_mapping(argument: str, value: object, of: str) -> None:
    """Raise TypeError for what is no mapping; ``of`` names its content: "patterns to policies"."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{argument}: got {value!r:.60} ({type(value).__name__}), wanted a mapping of {of}"
        )
