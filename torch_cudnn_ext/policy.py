"""`Policy`, a value that says how algorithms are selected.

A policy has a text: fields separated by ``;``. A field selects for one pass (``fwd=legacy:fft``,
``bwd_data=autotune``, ``bwd_filter=heuristic``), selects for all passes by a single word
(``autotune``), or sets a constraint (``max_workspace=64MiB``, ``deterministic``,
``backends=cudnn``). Operators take a policy text, a `Policy`, or a mapping of `Policy`'s keywords.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch_cudnn_ext import _C
from torch_cudnn_ext._engine_knobs import with_numbers
from torch_cudnn_ext._grammar import CONSTRAINTS, FALLING_BACK, FOR_ALL
from torch_cudnn_ext._policy_text import (
    check_all_pins,
    check_pins,
    check_text,
    expanded,
    families,
    field_texts,
    fields_of,
    keys_of,
    not_pinned,
    passes_of,
    value_of,
)
from torch_cudnn_ext._torch_internals import assume_constant_result

__all__ = ["AlgorithmSelection", "Policy", "PolicyLike"]

AlgorithmSelection: TypeAlias = str | int | None
PolicyLike: TypeAlias = "Policy | str | int | Mapping[str, Any] | None"


@dataclass(frozen=True, init=False, repr=False)
class Policy:
    """How the algorithm of each pass is selected, and the constraints on every algorithm.

    A policy is immutable. Two policies are equal if their families and canonical texts are.
    ``str(policy)`` is that text, and ``Policy.parse`` reads it.

    A selection is ``autotune``, ``tuned``, ``heuristic``, or an algorithm. ``autotune`` runs what
    was measured to be the fastest, and measures a problem at its first call if nothing was tuned
    for it. ``tuned`` does the same and never measures in a call: the heuristic's algorithm runs
    then. An algorithm is given by its text
    (``legacy:fft_tiling/math=fma``, ``graph:eng67/k2=1``, ``cpu:im2col``), by its integer, enum
    name or short name of cuDNN's classic API, or by one of Theano's names (``none``, ``small``,
    ``large``, ``fft``, ``fft_tiling``, ``winograd``, ``winograd_non_fused``, ``deterministic``).
    Theano's ``guess_on_shape_change`` and ``time_on_shape_change`` mean ``heuristic`` and
    ``autotune``, since every decision holds for one shape. ``guess_once`` and ``time_once`` are for
    modules, which keep their first algorithm. ``None``, ``""`` and -1 leave a pass unpinned.
    Engine knobs have names: ``graph:eng67/tile_size=1`` is ``graph:eng67/k2=1``.

    The passes of a transposed convolution name the cuDNN primitive that runs: its forward runs
    ``bwd_data``, its data gradient runs ``fwd``.

    Example:
        >>> Policy(fwd="legacy:fft", max_workspace="64MiB")
        Policy.parse('fwd=legacy:fft;max_workspace=64MiB')

    Args:
        selection: The selection for all passes that have none of their own.
        family: The operator family that the passes below belong to: ``conv``, ``softmax``, ...
        fwd: The selection for the forward.
        bwd: The selection for the backward; convolution has ``bwd_data`` and ``bwd_filter``.
        bwd_data: The selection for the gradient of the data.
        bwd_filter: The selection for the gradient of the filter.
        max_workspace: The largest workspace: bytes, or a text such as ``64MiB``, or ``20%`` of the
            GPU's memory.
        deterministic: Admit deterministic algorithms only.
        allow_tf32: Admit TF32 arithmetic for float32 data.
        allow_down_convert: Admit algorithms that convert to, or accumulate in, a narrower type.
        allow_reduced_range: Admit algorithms that narrow the range of values.
        prefer: What tuning ranks by: ``time`` is the longer of GPU time and host time;
            ``gpu_time`` is GPU time alone, for what is captured as a CUDA graph; ``memory`` is the
            workspace, among algorithms within 5 % of the best time; ``energy`` is the energy that
            the GPU uses for a call, measured for the six fastest algorithms and PyTorch's own. On a
            CPU ``energy`` means ``time``.
        replay: How calls of cuDNN are recorded and repeated without cuDNN, which takes less host
            time: ``off``, as CUDA ``graphs``, or as single ``kernels``. The default is ``off``,
            since a recording captures a stream: another thread that waits for the whole device
            during the capture gets an error.
        backends: The admitted backends: a list, or a text such as ``aten,cpu``. ``cudnn`` stands
            for ``graph`` and ``legacy``.
        on_unsupported: What happens if a pin cannot run: ``error``, or ``warn`` or ``fallback``,
            which run the heuristic's algorithm. If no admitted backend has an algorithm, ``warn``
            and ``fallback`` let the heuristic take one of any backend.
        on_miss: What runs if nothing was tuned for a problem that ``autotune``, ``tuned``,
            ``benchmark`` or ``fastest`` holds for. ``autotune`` measures it. ``heuristic`` runs the
            heuristic's algorithm, the default of ``tuned``. ``nearest`` runs what was tuned for the
            problem with the nearest sizes of batch and images, if it supports this one, and else
            the heuristic's. ``record`` runs the heuristic's algorithm, and the tuning store keeps
            the problem's line for ``tune --from-record``. ``error`` raises.
        benchmark: Autotune an unpinned problem at its first call.
        fastest: Autotune what this policy does not pin, and ignore its ``max_workspace``. Tuning
            ranks by time unless ``prefer`` is given.
        compute: The type of accumulation in convolutions: ``f16``, ``f32``, ``f64``, ``as_input``
            (that of the data), or ``as_input_f32`` (the same, but float32 for narrower data). One
            word holds for data of all types. ``f16:f32,bf16:f32,f64:f64`` sets some types and
            leaves the others to weaker levels.
        **selections: Selections for operators of any family, as ``softmax_fwd="accurate"``, or for
            all passes of one family, as ``softmax="autotune"``.

    Raises:
        TypeError: An argument has a type that it does not take.
        ValueError: An argument has a value that it does not take.
    """

    text: str
    family: str

    def __init__(
        self,
        selection: str | None = None,
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
        replay: str | None = None,
        backends: str | list[str] | tuple[str, ...] | None = None,
        on_unsupported: str | None = None,
        on_miss: str | None = None,
        benchmark: bool | None = None,
        fastest: bool | None = None,
        compute: str | None = None,
        **selections: AlgorithmSelection,
    ) -> None:
        """Check each argument and build the canonical text."""
        fields = {
            "": selection,
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
            "replay": replay,
            "backends": backends,
            "on_unsupported": on_unsupported,
            "on_miss": on_miss,
            "benchmark": benchmark,
            "fastest": fastest,
            "compute": compute,
            **selections,
        }
        known = dict.fromkeys((*passes_of(family), *families()))
        for name, value in fields.items():
            is_known = name in known or name in CONSTRAINTS or not name
            if not is_known and (name in selections or not not_pinned(value)):
                words = [*known, *CONSTRAINTS, "family"]
                raise TypeError(
                    f"Policy: got the keyword {name!r}, "
                    f"{_C.wanted_words(name, words, _C.IN_POLICIES)}"
                )
        self._set(";".join(field_texts(fields, family)), family)

    @classmethod
    def parse(cls, text: str, family: str = "conv") -> "Policy":
        """Read a policy text.

        Args:
            text: The text.
            family: The operator family of passes that are written without one.

        Raises:
            TypeError: ``text`` is no text.
            ValueError: ``text`` is no policy, or pins an unknown algorithm and does not fall back;
                the message names the part that is wrong.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: got {text!r} ({type(text).__name__}), wanted a policy text")
        policy = cls.__new__(cls)
        policy._set(text, family)
        return policy

    def of(self, family: str) -> "Policy":
        """The same policy, written for another operator family."""
        if family == self.family:
            return self
        return Policy.parse(_C.canonical_policy(self.text, self.family, family), family)

    def get(self, field: str) -> str | None:
        """The text of a field: a pass (``fwd``), or a constraint (``max_workspace``).

        A flag is ``true`` or ``false``. If a policy holds two caps of the workspace, one in bytes
        and one in percent, this is the one in bytes. A field that is not set is ``None``.
        """
        return value_of(self.text, field)

    @property
    def max_workspace(self) -> int | str | None:
        """The largest workspace in bytes, or a text such as ``20%``; ``None`` without a limit."""
        cap = self.get("max_workspace")
        if cap is None or cap.endswith("%"):
            return cap
        return int(_C.policy_fields(f"max_workspace={cap}")["max_workspace"])

    def replace(self, **changes: Any) -> "Policy":
        """This policy with some keywords set to other values; ``None`` removes a keyword.

        Raises:
            TypeError: A keyword is unknown, or its value has a type that it does not take.
            ValueError: A keyword has a value that it does not take.
        """
        known = (*passes_of(self.family), *families(), *CONSTRAINTS)
        for name in changes:
            if name not in known:
                wanted = _C.wanted_words(name, list(known), _C.IN_POLICIES)
                raise TypeError(f"replace: got the keyword {name!r}, {wanted}")
        gone = {key for name in changes for key in keys_of(name, self.family)}
        kept = [part for part in self.text.split(";") if part.partition("=")[0] not in gone]
        return Policy.parse(";".join([*kept, *field_texts(changes, self.family)]), self.family)

    def __or__(self, other: PolicyLike) -> "Policy":
        """Merge field by field: the right side wins.

        The smaller ``max_workspace`` holds, and ``deterministic`` holds if either side demands it.
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
        passes_of(family)  # raises for an unknown family, which an empty text would not
        text = _C.canonical_policy(with_numbers(text), family)
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "family", family)
        check_all_pins(text, family)


def as_policy(policy: PolicyLike, family: str = "conv") -> Policy:
    """Make a `Policy` of what stands for one; it may select for other families alone.

    Raises:
        TypeError: It has a type that stands for no policy.
        ValueError: It is no policy.
    """
    return Policy.parse(plain_text(policy, family) or "", family)


def policy_text(policy: PolicyLike, family: str = "conv") -> str | None:
    """The policy text for an operator of a family; ``None`` if nothing is set.

    Raises:
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: ``policy`` is an integer other than -1 (an integer names an algorithm of one
            pass), a mapping with a value that its keyword does not take, or no policy; it selects
            for other families alone; or it pins an unknown algorithm and does not fall back.
    """
    text = plain_text(policy, family)
    if text is not None:
        check_text(family, text)
    return text


def plain_text(policy: PolicyLike, family: str) -> str | None:
    """As `policy_text`, but also for other families alone; a text is returned unchecked."""
    if policy is None:
        return None
    if isinstance(policy, str):
        return (_numbered(policy) if "graph:" in policy else policy) or None
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


@assume_constant_result
def _numbered(text: str) -> str:
    return with_numbers(text)


@assume_constant_result
def _text_of_keywords(keywords: dict[str, Any], family: str) -> str | None:
    return Policy(**{"family": family, **keywords}).of(family).text or None


@assume_constant_result
def _text_for(family: str, text: str, written_for: str) -> str | None:
    return Policy.parse(text, written_for).of(family).text or None


def text_for_all(policy: PolicyLike, family: str = "conv") -> str:
    """A canonical policy text that operators of all families read alike.

    The single words of `FOR_ALL` stay, since each operator reads them for its own passes. An
    algorithm alone is for every pass of every operator that has it; an engine of the graph API,
    whose number means another engine in each operator, is for ``family``. So are passes.

    Raises:
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: ``policy`` is no policy, or pins an unknown algorithm and does not fall back.
    """
    words = fields_of(plain_text(policy, family) or "")
    for_all = [word for word in words if word in FOR_ALL]
    others = [part for word in words if word not in FOR_ALL for part in expanded(word, family)]
    rest = _C.canonical_policy(";".join(others), family, "")
    check_named_pins(rest)
    return ";".join(word for word in (*for_all, rest) if word)


def check_named_pins(policy: PolicyLike) -> None:
    """Check the pins that name their operator (``softmax_fwd``).

    Raises:
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: An operator does not have the algorithm, and the policy does not fall back.
    """
    if isinstance(policy, Mapping):
        parts = [f"{key}={value}" for key, value in policy.items() if not not_pinned(value)]
    else:
        # A policy of another family writes that family's passes without the operator's name.
        if isinstance(policy, Policy) and policy.family != "conv":
            policy = _C.canonical_policy(policy.text, policy.family, "")
        parts = fields_of(plain_text(policy, "conv") or "")
    if any(f"on_unsupported={action}" in parts for action in FALLING_BACK):
        return
    for part in parts:
        family = families().get(part.partition("=")[0])
        if family is not None:
            check_pins(_C.canonical_policy(part, family), family)


@contextmanager
def naming_policy(argument: str, key: str, policy: PolicyLike) -> Iterator[None]:
    """Errors inside name the argument, its key, and the policy of that key."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}: {key!r} is {policy!r}: {error}") from error


def __dir__() -> list[str]:
    """The public names, without those of imports."""
    return sorted(__all__)
