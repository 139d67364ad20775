"""PyTorch's own operators run by ours: `enable`, `disable`, and rules by problem.

    >>> torch_cudnn_ext.enable("autotune")
    >>> loss = torchvision.models.resnet50().cuda()(images).sum()  # tuned here, layer by layer
    >>> loss.backward()
    >>> torch_cudnn_ext.disable()

While enabled, calls of PyTorch's own operators (``F.conv2d``, ``nn.Conv2d``, ``F.softmax``, ...)
run ours, forward and backward, in eager mode, under autocast and in inference mode. A call whose
dtype or tensor ours do not take runs PyTorch's own kernel; `declined` counts it with the reason.

Under ``torch.compile``, by default, the graphs are those that PyTorch makes without us, with the
same fusions and layouts. Where the code that Inductor made calls a convolution or its backward,
ours run. Recurrent networks are ours, too. The argument ``compiled`` of `enable` changes that.
A model may be compiled before or after: enabling and disabling drop what ``torch.compile`` has made
and kept, so that it compiles anew at its next call. Programs exported to files keep the operators
that they were exported with. ``torch.export`` and ``torch.jit.trace`` see PyTorch's own operators,
without policies, and warn of that; a model that `convert` made exports ours.

PyTorch's dispatcher is changed for the whole process: do not enable or disable while other threads
run operators.
"""

import functools
import hashlib
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Self, get_args

import torch
from torch.compiler import config

from torch_cudnn_ext import _C, _cudnn_flags
from torch_cudnn_ext._grammar import FOR_ALL
from torch_cudnn_ext._policy_text import (
    check_mapping,
    check_pin,
    field_text,
    fields_of,
    not_pinned,
    operator_families,
    operators,
)
from torch_cudnn_ext._torch_internals import (
    OpOverload,
    around_compiled_graphs,
    decomposed_in_traces,
    forget_compiled,
)
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.policy import PolicyLike, naming_policy, plain_text, policy_text, text_for_all

_lock = threading.Lock()  # one change of the dispatcher at a time
CompiledUse = Literal["conv", "all", "none"]  # what compiled graphs run of ours
_graphs = ExitStack()  # what PyTorch's compiler is told while enabled
_asked: list[str] = []  # the policy's text as it was given, while enabled


def enable(
    policy: PolicyLike = None, *, replay: str | None = None, compiled: CompiledUse = "conv"
) -> None:
    """Run PyTorch's own operators by ours from now on, in all threads.

    Args:
        policy: The policy of this level: stronger than `knobs`, weaker than a call's, a module's or
            a `when` rule's. In a text, a word alone is for every pass of every operator that has
            it: ``autotune`` for all, ``cpu:online`` for softmax. Passes, and engines of the graph
            API, are for convolution unless they name their operator:
            ``autotune;softmax=heuristic``.
        replay: ``off``, ``graphs`` or ``kernels``, as in `Policy`; replaces the policy's.
        compiled: What graphs of ``torch.compile`` run of ours. ``conv``: convolutions and recurrent
            networks; the code around them is what PyTorch makes without us. ``all``: what eager
            code runs; no operator of ours is fused with its neighbours. ``none``: nothing. In each
            case the operators of converted modules and of `ops` stay in the graph.

    Raises:
        RuntimeError: The operators are enabled already.
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: ``policy`` is no policy, or pins an unknown algorithm and does not fall back;
            ``compiled`` is none of the three words.

    Example:
        >>> enable("heuristic;softmax=cpu:online")
        >>> y = torch.nn.functional.softmax(torch.zeros(1, 4), 1)
        >>> last_decision("softmax_fwd").algorithm
        'cpu:online'
        >>> disable()
    """
    asked = text_for_all(policy)
    text = _for_all_operators(asked)
    if replay is not None:
        field = field_text("replay", "replay", replay)
        text, asked = _C.merged_policy(field, text), ";".join(filter(None, (asked, field)))
    if compiled not in get_args(CompiledUse):
        wanted = ", ".join(get_args(CompiledUse))
        raise ValueError(f"argument compiled: got {compiled!r}, wanted one of {wanted}")
    with _lock:
        _C.enable_overrides(compiled)
        try:
            _C.set_enabled_policy(text)
            _asked[:] = [asked]
            _cudnn_flags.install()
            _warn_of_exports()
            _join_compiler(compiled)
            _forget_compiled()
            config.cache_key_tag += _tag(compiled)
        except BaseException:  # Ctrl-C too
            _leave()
            raise


def disable() -> None:
    """Run PyTorch's own operators by PyTorch again.

    The dispatch table and the results are PyTorch's own again, bit for bit. A backward whose
    forward ran while enabled still runs ours.

    Raises:
        RuntimeError: The operators are not enabled.

    Example:
        >>> enable()
        >>> disable()
        >>> is_enabled()
        False
    """
    with _lock:
        if not is_enabled():
            raise RuntimeError("disable: torch_cudnn_ext is not enabled")
        _leave()


def _leave() -> None:
    # If Ctrl-C interrupts this, the operators are still enabled and can be disabled.
    _C.set_enabled_policy("")
    _asked.clear()
    _cudnn_flags.uninstall()
    torch.export.export = _PLAIN_EXPORT
    _graphs.close()
    _forget_compiled()
    for compiled in get_args(CompiledUse):
        config.cache_key_tag = config.cache_key_tag.replace(_tag(compiled), "")
    _C.disable_overrides()


def asked_policy() -> str | None:
    """The policy's text as `enable` was given it; ``None`` if nothing is enabled."""
    return _asked[0] if _asked else None


def is_enabled() -> bool:
    """Whether PyTorch's own operators are run by ours.

    Example:
        >>> is_enabled()
        False
    """
    return _C.overrides_enabled()


@contextmanager
def enabled(
    policy: PolicyLike = None, *, replay: str | None = None, compiled: CompiledUse = "conv"
) -> Iterator[None]:
    """`enable` for a ``with`` block, in all threads; the block may call `disable` itself.

    Raises:
        RuntimeError: As `enable`.
        TypeError: As `enable`.
        ValueError: As `enable`.

    Example:
        >>> with enabled("heuristic"):
        ...     is_enabled()
        True
    """
    enable(policy, replay=replay, compiled=compiled)
    try:
        yield
    finally:
        if is_enabled():  # disable() would raise, and hide an error from inside
            disable()


@contextmanager
def enabled_anew(policy: str) -> Iterator[None]:
    """`enabled`; while enabled already, this policy is put before the present one instead.

    Raises:
        ValueError: ``policy`` is no policy.
    """
    if not is_enabled():
        with enabled(policy):
            yield
        return
    before = _C.enabled_policy()
    _C.set_enabled_policy(_C.policy_with_level(_for_all_operators(policy), before))
    try:
        yield
    finally:
        if is_enabled():
            _C.set_enabled_policy(before)


def declined(reset: bool = False) -> dict[str, int]:
    """The calls that ran PyTorch's own kernel while enabled, counted by operator and reason.

    Args:
        reset: Whether to count from zero again afterwards.

    Example:
        >>> with enabled():
        ...     y = torch.nn.functional.softmax(torch.zeros(1, 4), 1)
        ...     declined(reset=True)
        {}
    """
    counts = _C.declined()
    if reset:
        _C.reset_declined()
    return counts


class Rule:
    """A rule of `when`, which holds until `remove` or the end of its ``with`` block.

    Example:
        >>> rule = Rule("softmax_fwd log=false", "softmax_fwd=cpu:online")
        >>> rule.remove()
    """

    def __init__(self, matcher: str, use: str) -> None:
        """Check the rule and make it hold."""
        check_rule(matcher, use)
        self.matcher, self.use = matcher, use
        self._id = _C.add_rule(matcher, use)
        self._problems = 0  # that it matched, once it is removed
        _rules[self._id] = self

    def remove(self) -> None:
        """Remove the rule, with a warning if it matched nothing.

        Raises:
            ValueError: The rule was removed before.
        """
        self._end()
        if not self._problems:
            warn(f"{self!r}: it matched no problem that was decided while it held")

    @property
    def problems(self) -> int:
        """How many problems the rule matched, of those that were decided while it held."""
        return _C.problems_of_rule(self._id) if self._id in _rules else self._problems

    def __enter__(self) -> Self:
        """Return the rule, which holds already."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the rule, unless the block has done so; without a warning after an error."""
        if self._id in _rules:
            self._end() if any(error) else self.remove()

    def _end(self) -> None:
        self._problems = self.problems
        _C.remove_rule(self._id)
        _rules.pop(self._id, None)

    def __repr__(self) -> str:
        """The call that makes an equal rule."""
        return f"when({self.matcher!r}, use={self.use!r})"


_rules: dict[int, Rule] = {}  # that hold, the oldest first


def rules() -> tuple[Rule, ...]:
    """The rules that hold, the newest and strongest first."""
    return tuple(reversed(_rules.values()))


def when(matcher: str, use: PolicyLike) -> Rule:
    """Apply a policy to every problem that matches, in all threads.

    A rule is weaker than a call's ``policy=`` and a module's pin, and stronger than all other
    levels. Of two rules that match, the newer is the stronger. A rule is read as each pass runs: a
    backward after its removal does not obey it. Rules add no cost to calls whose problem was seen
    before, except for dropout.

    Example:
        >>> rule = when("conv_fwd w=*[64,64,3,3]* pad=1", use="winograd_nonfused")
        >>> rule.remove()

    Args:
        matcher: The first word of problem lines (``conv_fwd``), then fields of the line as
            ``key=glob`` in any order. ``*`` stands for any text and ``?`` for any character; all
            other characters, brackets too, stand for themselves. Fields that a line leaves out
            have their defaults, so that ``align=16`` matches.
        use: ``autotune``, ``tuned``, ``heuristic``, an algorithm of that pass (its text or cuDNN's
            integer), or a policy.

    Raises:
        TypeError: ``matcher`` is no text, or ``use`` has a type that stands for no policy.
        ValueError: There is no such operator or field, or ``use`` does not fit the operator.
    """
    with naming_policy("when", matcher, use):
        text = rule_text(matcher, use)
    return Rule(matcher, text)


def apply_rules(rules: Mapping[str, PolicyLike]) -> ExitStack:
    """Make several rules of `when`, such as `load_rules` reads from a file.

    Args:
        rules: The policy by matcher. Of two rules that match, the earlier is the stronger.

    Returns:
        An object whose ``close``, or the end of its ``with`` block, removes all the rules.

    Raises:
        TypeError: ``rules`` is no mapping, a matcher is no text, or a value has a type that stands
            for no policy.
        ValueError: A rule is invalid; the message says which part. No rule is made then.

    Example:
        >>> with apply_rules({"softmax_fwd log=false": "cpu:online"}):
        ...     y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1)
        >>> last_decision("softmax_fwd").algorithm
        'cpu:online'
    """
    check_mapping("rules", rules, "matchers to policies")
    with ExitStack() as made:
        for matcher, use in reversed([*rules.items()]):
            with naming_policy("rules", matcher, use):
                made.callback(Rule(matcher, rule_text(matcher, use)).remove)
        return made.pop_all()


def rule_text(matcher: str, use: PolicyLike) -> str:
    """The policy of a rule as text; single words belong to the matcher's operator."""
    if not isinstance(matcher, str):
        raise TypeError(
            f"argument matcher: got {matcher!r} ({type(matcher).__name__}), "
            "wanted a text such as 'conv_fwd pad=1'"
        )
    if isinstance(use, int) and not isinstance(use, bool) and not not_pinned(use):
        return str(use)  # an algorithm of the rule's one pass
    family, _ = operators().get("".join(matcher.split(maxsplit=1)[:1]), ("conv", ""))
    # `Rule` checks a text, which it reads for the matcher's operator.
    return (plain_text if isinstance(use, str) else policy_text)(use, family) or ""


def check_rule(matcher: str, use: str) -> None:
    """Check a rule.

    Raises:
        ValueError: There is no such operator, field, policy or algorithm.
    """
    text = _C.check_rule(matcher, use)
    family, name = operators()[matcher.split(maxsplit=1)[0]]
    check_pin(_C.canonical_policy(text, family), family, name, "use")


def _for_all_operators(text: str) -> str:
    """A policy text with ``autotune`` and ``heuristic`` written out for every family."""
    parts = []
    for word in fields_of(text):
        parts += (
            [f"{family}={word}" for family in operator_families()] if word in FOR_ALL else [word]
        )
    return ";".join(parts)


_PLAIN_EXPORT = torch.export.export


def _warn_of_exports() -> None:
    """Make ``torch.export.export`` warn that it does not see the overrides."""

    @functools.wraps(_PLAIN_EXPORT)
    def export(*arguments: Any, **keywords: Any) -> torch.export.ExportedProgram:
        if is_enabled():
            warnings.warn(
                "torch.export: what is exported while torch_cudnn_ext is enabled holds PyTorch's "
                "own operators, without policies and pins; export what torch_cudnn_ext.convert("
                "model, policy=...) gives, whose operators keep theirs",
                stacklevel=2,
            )
        return _PLAIN_EXPORT(*arguments, **keywords)

    torch.export.export = export


def _tag(compiled: CompiledUse) -> str:
    """What is added to ``cache_key_tag``, a text that may be the user's, for graphs on disk."""
    if compiled == "none":
        return ""  # the graphs are PyTorch's own
    return f"<torch_cudnn_ext {_build()} compiled={compiled}>"


@functools.cache
def _build() -> str:
    """A digest of the extension, which defines the operators that a graph calls."""
    with open(_C.__file__, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _join_compiler(compiled: CompiledUse) -> None:
    """Let PyTorch's compiler treat the overridden operators as `enable` promises."""
    if compiled != "all":
        _graphs.enter_context(around_compiled_graphs(_C.set_running_compiled_graph))
    if compiled == "none":
        _graphs.enter_context(decomposed_in_traces(_overridden()))


def _overridden() -> list[OpOverload]:
    """PyTorch's operators that ours replace."""
    names = (name.partition(".") for name in _C.overridden_ops())
    return [
        getattr(getattr(torch.ops.aten, packet), overload or "default")
        for packet, _, overload in names
    ]


def _forget_compiled() -> None:
    """Drop what depends on the dispatcher as it was.

    This includes the Python dispatch caches of the overridden operators, and what ``torch.compile``
    has compiled. In the caches on disk, ``cache_key_tag`` distinguishes the entries.
    """
    forget_compiled(_overridden())
