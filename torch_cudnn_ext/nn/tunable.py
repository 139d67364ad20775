"""What every module of this package has in addition to its parent in ``torch.nn``: a policy."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import torch

from torch_cudnn_ext import _C
from torch_cudnn_ext._grammar import ONCE
from torch_cudnn_ext._policy_text import fields_of, not_pinned, passes_of
from torch_cudnn_ext._torch_internals import disable_dynamo
from torch_cudnn_ext._warning import warn
from torch_cudnn_ext.nn.once import choose, is_computed, pattern_of, problems_of, tensors_of
from torch_cudnn_ext.policy import AlgorithmSelection, Policy, PolicyLike, as_policy, policy_text

T = TypeVar("T")


class Tunable(torch.nn.Module):
    """A mixin that gives a module a policy; as a base it precedes the class of ``torch.nn``.

    The policy is kept as text, so that a module pickles and compiles like its parent.
    ``_policy`` is the policy that the user set or, for a pinned layer, that its pin set.
    ``_running`` is the policy that the operator gets. It is ``_policy`` with other words for
    ``guess_once`` and ``time_once``: ``heuristic`` and ``autotune`` until the first call, and
    afterwards the algorithm that these selected. ``_once`` names the passes that still wait for
    that. A copied, unpickled, moved or cast module selects anew. A copy of a parametrized module,
    which ``torch.nn.utils.parametrize`` makes, keeps the algorithm.

    `convert` and pins turn a PyTorch module into one of this package by changing its class.
    Therefore each attribute that a subclass adds to a module has its default in the class.

    Attributes:
        replaces: The class of ``torch.nn`` that this one stands for.
        family: The family of operators that its passes belong to.

    Example:
        >>> layer = nn.Conv2d(3, 8, 3, policy="max_workspace=64MiB")
        >>> layer.set_mode(fwd="cpu:im2col").policy
        'fwd=cpu:im2col;max_workspace=64MiB'
    """

    replaces: ClassVar[type[torch.nn.Module]]
    family: ClassVar[str]
    __signature__: ClassVar[inspect.Signature | None]
    _policy: str = ""
    _running: str | None = None
    _once: tuple[str, ...] = ()
    _settled_for: tuple[str, ...] = ()  # patterns of calls that ran no pass of `_once`
    _draws: ClassVar[bool] = False  # whether the random numbers depend on the algorithm

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the class the signature of the one that it replaces, and its own keywords."""
        if "_is_hidden" in vars(cls):  # hidden classes do not notify a user's base class
            return
        super().__init_subclass__(**kwargs)
        if "replaces" in vars(cls):
            cls.__signature__ = _signature(cls)
        elif "__init__" in vars(cls):
            cls.__signature__ = None  # hides the inherited one

    def __init__(self, *args: Any, policy: PolicyLike = None, **kwargs: Any) -> None:
        """Take the arguments of the class that this one replaces, and a policy."""
        super().__init__(*args, **kwargs)
        self.policy = policy

    @property
    def policy(self) -> str | None:
        """The policy's canonical text; ``None`` if nothing is set.

        Set it to a policy text, a `Policy`, a mapping of its keywords, or ``None``. The passes of a
        transposed convolution name the cuDNN primitive that runs: its forward runs ``bwd_data``,
        its data gradient ``fwd``.

        Raises:
            TypeError: On setting: the value has the wrong type for a policy.
            ValueError: On setting: the value is no policy.
        """
        return self._policy or None

    @policy.setter
    def policy(self, policy: PolicyLike) -> None:
        self._policy = as_policy(policy_text(policy, self.family), self.family).text
        self._policy_changed()

    def set_mode(self, *selections: AlgorithmSelection, **named: AlgorithmSelection) -> Self:
        """Select the algorithm of each pass, in order or by name.

        The passes are those of the family. Convolution has ``fwd``, ``bwd_data`` and
        ``bwd_filter``; CTC and matrix products have ``fwd`` alone; others have ``fwd`` and ``bwd``,
        and batch norm also has ``infer``. An algorithm that cannot run is an error at the
        call, unless the policy says ``on_unsupported=warn`` or ``fallback``. The passes of a
        transposed convolution name the cuDNN primitive that runs: the forward runs ``bwd_data``,
        the data gradient ``fwd``.

        ``guess_once`` and ``time_once`` pin the algorithm that the heuristic or tuning selects at
        the first call that runs the pass, also for shapes that come later. Passes that share an
        algorithm get it together. If a call has several problems of a pass, the first one decides.
        A copied, unpickled, moved or cast module selects anew; a copy of a parametrized module does
        not.

        Args:
            *selections: ``autotune``, ``heuristic``, or an algorithm: its text, or cuDNN's integer
                or name for this pass. ``None`` leaves the pass as it is; ``""`` or -1 unpins it.
            **named: The same by the name of the pass.

        Returns:
            The module.

        Raises:
            TypeError: A selection has a wrong type, or there is no such pass.
            ValueError: A selection is none of the above; then no pass has been changed.
        """
        passes = passes_of(self.family)
        name = type(self).__name__
        if len(selections) > len(passes):
            raise TypeError(
                f"{name}.set_mode: got {len(selections)} selections, wanted {len(passes)}"
            )
        for key in named:
            if key not in passes:
                raise TypeError(
                    f"{name}.set_mode: got the keyword {key!r}, wanted {', '.join(passes)}"
                )
            if key in passes[: len(selections)]:
                raise TypeError(f"{name}.set_mode: got {key!r} twice, by its place and by its name")
        given = {
            key: None if not_pinned(selection) else selection
            for key, selection in (dict(zip(passes, selections, strict=False)) | named).items()
            if selection is not None
        }
        self.policy = Policy.parse(self._policy, self.family).replace(**given)
        return self

    def reset_mode(self) -> Self:
        """Remove every selection: pins, tuning, `fastest` and ``prefer``.

        The constraints stay, `workspace_limit` included.

        Returns:
            The module.
        """
        self.policy = self._unchosen()
        return self

    def fastest(self) -> Self:
        """Autotune all passes for time alone; drop the pins and the `workspace_limit`.

        A warning names what is dropped.

        Returns:
            The module.
        """
        policy = self._unchosen().replace(max_workspace=None, fastest=True)
        kept = fields_of(policy.text)
        dropped = [
            field
            for field in fields_of(self._policy)
            if field not in kept and not field.endswith(("=autotune", "=heuristic"))
        ]
        if dropped:
            warn(
                f"{type(self).__name__}.fastest: drops {';'.join(dropped)}, wanted: "
                "reset_mode() and workspace_limit=None before, to say so"
            )
        self.policy = policy
        return self

    @property
    def workspace_limit(self) -> int | str | None:
        """The largest workspace in bytes; ``None`` without a limit of this module.

        A share of the GPU's memory is a text (``20%``).

        Raises:
            TypeError: On setting: the limit is neither an integer, a text nor ``None``.
            ValueError: On setting: the limit is negative, or a text that is no size.
        """
        return Policy.parse(self._policy, self.family).max_workspace

    @workspace_limit.setter
    def workspace_limit(self, limit: int | str | None) -> None:
        policy = Policy.parse(self._policy, self.family).replace(max_workspace=None)
        self.policy = policy | Policy(family=self.family, max_workspace=limit)

    def extra_repr(self) -> str:
        """The parent's line, and the policy."""
        line: str = super().extra_repr()
        if not self._policy:
            return line
        return f"{line}{', ' if line else ''}policy={self._policy!r}"

    def _policy_changed(self) -> None:
        self._thaw()

    def __prepare_scriptable__(self) -> Self:
        """Raise for ``torch.jit.script``, which calls this method.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            f"torch.jit.script: {type(self).__name__} is a module of torch_cudnn_ext, whose "
            "operators TorchScript cannot compile; use torch.jit.trace, torch.export or "
            "torch.compile, or give the network its own modules back before: convert(model, "
            "to='torch'), or clear_pins(model)"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._thaw()  # the algorithm may not run on another device or dtype
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied module, which selects anew."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._thaw()

    def _thaw(self) -> None:
        """Forget the algorithms of ``guess_once`` and ``time_once``."""
        once = self._asked_once()
        self._once = tuple(once)
        self._settled_for = ()
        replaced = Policy.parse(self._policy, self.family).replace(**once).text if once else ""
        self._running = replaced or self._policy or None

    def _asked_once(self) -> dict[str, str]:
        """The passes that keep their first algorithm, and the selection that finds it."""
        if not any(word in self._policy for word in ONCE):
            return {}
        policy = Policy.parse(self._policy, self.family)
        selections = {name: policy.get(name) for name in passes_of(self.family)}
        return {name: ONCE[word] for name, word in selections.items() if word in ONCE}

    def _selecting(self, operator: Callable[..., T]) -> Callable[..., T]:
        """The operator, to be called with ``policy=self._running``.

        While passes wait for their algorithm, the call selects first, and runs what was selected.
        """
        return partial(self._select_and_run, operator) if self._once else operator

    def _select_and_run(
        self, operator: Callable[..., T], *arguments: Any, policy: str | None, **keywords: Any
    ) -> T:
        """Call an operator by the policy after the selection, not the one before it."""
        pattern = pattern_of(self.training, tensors_of(arguments, keywords))
        if pattern not in self._settled_for:
            self._settle(pattern, operator, arguments, keywords)
        return operator(*arguments, **keywords, policy=self._running)

    @disable_dynamo("guess_once and time_once choose at a first call in eager mode")
    def _settle(
        self,
        pattern: str,
        operator: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """Select for the waiting passes that this call, or its backward, will run."""
        # A dry run is not the first call.
        if _C.is_model_tracing() or not is_computed(tensors_of(arguments, keywords)):
            return
        call = problems_of(operator, arguments, keywords)
        for problem in (*call.forward, *call.backward):
            self._settle_problem(problem, call.device)
        self._settled_for += (pattern,)

    def _settle_problem(self, problem: str, device: str) -> None:
        info = _C.problem_info(problem)
        if info["family"] != self.family:
            return
        together = [_C.problem_info(other)["pass_name"] for other in info["coupled"]]
        names = [info["pass_name"], *together]  # they run one algorithm
        waiting = [name for name in names if name in self._once]
        if not waiting:
            return
        policy = Policy.parse(self._running or "", self.family)
        kept = [name for name in names if name in self._asked_once() and name not in waiting]
        algorithm = policy.get(kept[0]) if kept else choose(problem, device, policy.text)
        self._running = policy.replace(**dict.fromkeys(waiting, algorithm)).text
        self._once = tuple(name for name in self._once if name not in waiting)

    def _reason_to_stay(self) -> str:
        """What this module does that the class it replaces cannot do; else empty."""
        return ""

    def _unchosen(self) -> Policy:
        chosen = (*passes_of(self.family), "benchmark", "fastest", "prefer")
        return Policy.parse(self._policy, self.family).replace(**dict.fromkeys(chosen))


def _signature(cls: type[Tunable]) -> inspect.Signature:
    """The signature of the class that this one replaces, with the keywords that are added."""
    theirs = [*inspect.signature(cls.replaces).parameters.values()]
    ours = [base.__init__ for base in cls.__mro__ if issubclass(base, Tunable)]
    added = {
        parameter.name: parameter
        for function in ours
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return inspect.Signature(sorted([*theirs, *added.values()], key=lambda one: one.kind))
