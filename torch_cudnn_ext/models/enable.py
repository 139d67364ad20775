"""Plain PyTorch code on our operators: `enable`, `disable`, and rules by problem.

    >>> torch_cudnn_ext.enable("autotune")
    >>> loss = torchvision.models.resnet50().cuda()(images).sum()  # chosen here, layer by layer
    >>> loss.backward()
    >>> torch_cudnn_ext.disable()

While enabled, what PyTorch's own operators are called for (``F.conv2d``, ``nn.Conv2d``,
``F.softmax``, ...) is run by ours, forward and backward, in eager mode, under autocast, in
inference mode and under ``torch.compile``. A dtype or tensor that ours do not take goes to
PyTorch's own kernel, and is counted with the reason in `declined`.

Whether a model is compiled before or after makes no difference: enabling and disabling drop what
``torch.compile`` has made and kept, so that it compiles anew at its next call. Programs exported to
files keep the operators that they were exported with. ``torch.export`` and ``torch.jit.trace`` see
PyTorch's own operators, without policies, and warn of that: what `convert` made exports ours.

PyTorch's dispatcher is changed for the whole process: do not enable or disable while other threads
run operators.
"""

import functools
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import torch
from torch.compiler import config

from torch_cudnn_ext import _C
from torch_cudnn_ext import _cudnn_flags as backends
from torch_cudnn_ext.policy import (
    FOR_ALL,
    Policy,
    PolicyLike,
    check_mapping,
    check_pin,
    fields_of,
    naming_policy,
    not_pinned,
    operators,
    plain_text,
    policy_text,
    text_for_all,
)

_lock = threading.Lock()  # one change of the dispatcher at a time
_TAG = "<enabled by torch_cudnn_ext>"  # in a text that may be the user's


def enable(policy: PolicyLike = None) -> None:
    """Run PyTorch's own operators by ours from now on, in all threads.

    Args:
        policy: How to choose what no call, module or `when` rule chooses; stronger than `knobs`. In
            a text, the single words ``autotune`` and ``heuristic`` are for all operators, any
            other for convolution, unless it says which: ``autotune;softmax=heuristic``.

    Raises:
        RuntimeError: It is enabled already.
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: ``policy`` is no policy, or pins what there is not and does not fall back.
    """
    text = _for_all_operators(text_for_all(policy))
    with _lock:
        _C.enable_overrides()
        try:
            _C.set_enabled_policy(text)
            backends.install()
            _warn_of_exports()
            _forget_compiled()
            config.cache_key_tag += _TAG
        except BaseException:  # Ctrl-C too
            _leave()
            raise


def disable() -> None:
    """Give PyTorch its own operators back.

    The dispatch table and the results are PyTorch's own again, bit for bit. A backward whose
    forward ran while enabled still runs ours.

    Raises:
        RuntimeError: It is not enabled.
    """
    with _lock:
        if not is_enabled():
            raise RuntimeError("disable: torch_cudnn_ext is not enabled")
        _leave()


def _leave() -> None:
    # What Ctrl-C comes between is enabled still, and can be disabled.
    _C.set_enabled_policy("")
    backends.uninstall()
    torch.export.export = _PLAIN_EXPORT
    _forget_compiled()
    config.cache_key_tag = config.cache_key_tag.replace(_TAG, "")
    _C.disable_overrides()


def is_enabled() -> bool:
    """Whether PyTorch's own operators are run by ours."""
    return _C.overrides_enabled()


@contextmanager
def enabled(policy: PolicyLike = None) -> Iterator[None]:
    """`enable` inside a ``with`` block, `disable` behind it; in all threads.

    It may have been disabled inside.

    Raises:
        RuntimeError: It is enabled already.
        TypeError: ``policy`` has a type that stands for no policy.
        ValueError: As of `enable`.
    """
    enable(policy)
    try:
        yield
    finally:
        if is_enabled():  # else an error from inside would be lost to ours
            disable()


@contextmanager
def enabled_anew(policy: str) -> Iterator[None]:
    """`enabled`, which it may be already: then this policy goes before that one meanwhile.

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
    """Calls that went to PyTorch's own kernel while enabled, counted by operator and reason.

    Args:
        reset: Count from zero again afterwards.
    """
    counts = _C.declined()
    if reset:
        _C.reset_declined()
    return counts


class Rule:
    """A rule of `when`; ends with `remove`, or with its ``with`` block."""

    def __init__(self, matcher: str, use: str) -> None:
        """Make it hold."""
        check_rule(matcher, use)
        self.matcher, self.use = matcher, use
        self._id = _C.add_rule(matcher, use)

    def remove(self) -> None:
        """Take the rule back.

        Raises:
            ValueError: That was done before.
        """
        _C.remove_rule(self._id)

    def __enter__(self) -> Self:
        """The rule, which holds already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the rule back, unless that was done inside."""
        with suppress(ValueError):
            self.remove()

    def __repr__(self) -> str:
        """The call that makes an equal rule."""
        return f"when({self.matcher!r}, use={self.use!r})"


def when(matcher: str, use: PolicyLike) -> Rule:
    """Choose for every problem that matches, in all threads.

    A rule is weaker than a call's ``policy=`` and a module's pin, and stronger than all else. Of
    two that match, the newer is the stronger. It is read as each pass runs: a backward behind its
    removal does not obey it. Calls that were seen before pay nothing for it, but dropout's.

    Example:
        >>> rule = when("conv_fwd w=*[64,64,3,3]* pad=1", use="winograd_nonfused")
        >>> rule.remove()

    Args:
        matcher: The first word of problem lines (``conv_fwd``), then fields of the line as
            ``key=glob`` in any order. ``*`` stands for any text and ``?`` for any character; all
            else, brackets too, for itself. Fields that a line leaves out have their defaults, so
            that ``align=16`` matches.
        use: ``autotune``, ``heuristic``, an algorithm of that pass (its text or cuDNN's integer),
            or a policy.

    Raises:
        TypeError: ``matcher`` is no text, or ``use`` has a type that stands for no policy.
        ValueError: There is no such operator or field, or ``use`` does not fit the operator.
    """
    with naming_policy("when", matcher, use):
        text = rule_text(matcher, use)
    return Rule(matcher, text)


def apply_rules(rules: Mapping[str, PolicyLike]) -> ExitStack:
    """`when` for each of several, such as `load_rules` reads from a file; or for none of them.

    Args:
        rules: By matcher, what to use. Of two that match, the earlier is the stronger.

    Returns:
        What takes all of them back by its ``close``, or with its ``with`` block.

    Raises:
        TypeError: ``rules`` is no mapping, a matcher no text, or a value has a type that stands for
            no policy.
        ValueError: A rule is none; the message says which part.
    """
    check_mapping("rules", rules, "matchers to policies")
    with ExitStack() as made:
        for matcher, use in reversed([*rules.items()]):
            with naming_policy("rules", matcher, use):
                made.callback(Rule(matcher, rule_text(matcher, use)).remove)
        return made.pop_all()


def rule_text(matcher: str, use: PolicyLike) -> str:
    """The policy of a rule as text; single words are of the matcher's operator."""
    if not isinstance(matcher, str):
        raise TypeError(
            f"argument matcher: got {matcher!r} ({type(matcher).__name__}), "
            "wanted a text such as 'conv_fwd pad=1'"
        )
    if isinstance(use, int) and not isinstance(use, bool) and not not_pinned(use):
        return str(use)  # a rule is of one pass
    family, _ = operators().get("".join(matcher.split(maxsplit=1)[:1]), ("conv", ""))
    # A text is read as one of the matcher's operator, where it becomes a rule.
    return (plain_text if isinstance(use, str) else policy_text)(use, family) or ""


def check_rule(matcher: str, use: str) -> None:
    """Raise where a rule is none.

    Raises:
        ValueError: There is no such operator, field, policy or algorithm.
    """
    canonical = _C.check_rule(matcher, use)
    family, name = operators()[matcher.split(maxsplit=1)[0]]
    check_pin(Policy._unchecked(canonical, family), name, "use")


def _for_all_operators(text: str) -> str:
    """The policy text with ``autotune`` and ``heuristic`` written out for every family."""
    families = [op["family"] for op in _C.operators()]
    parts = []
    for word in fields_of(text):
        parts += [f"{family}={word}" for family in families] if word in FOR_ALL else [word]
    return ";".join(parts)


_PLAIN_EXPORT = torch.export.export


def _warn_of_exports() -> None:
    """Have ``torch.export.export``, which sees nothing of the overrides, say so."""

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


def _forget_compiled() -> None:
    """Drop what was decided while the dispatcher was another.

    That is the dispatch caches of the overridden operators in Python, and what ``torch.compile``
    has compiled. AOTAutograd's cache on disk is told apart by ``cache_key_tag``.
    """
    for name in _C.overridden_ops():
        packet, _, overload = name.partition(".")
        getattr(getattr(torch.ops.aten, packet), overload or "default")._dispatch_cache.clear()
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()
