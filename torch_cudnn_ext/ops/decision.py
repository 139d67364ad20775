"""What operators ran, and why."""

from dataclasses import dataclass

from torch_cudnn_ext import _C
from torch_cudnn_ext._policy_text import operators


@dataclass(frozen=True)
class Decision:
    """What an operator ran, and why.

    Attributes:
        op: The operator and pass, such as ``conv_bwd_data``.
        problem: The problem line.
        algorithm: The algorithm's text.
        why: ``pinned`` or ``pinned by <what>``, ``tuned``, ``cached`` (``cached: measured on
            <device>`` or ``cached: ranked under <constraints>`` of another one), ``nearest:
            <problem>``, ``unstable: <reason>``, ``heuristic`` (``heuristic: <reason>`` if it
            replaces tuning), ``coupled with its forward``, or ``fallback: <reason>``.
        workspace_bytes: Its workspace; ``None`` if it is not known before a run.
        decision_ms: Host time of the decision, in milliseconds.
        device: The device that it ran on.
        policy: The policy, with all levels merged.
    """

    op: str
    problem: str
    algorithm: str
    why: str
    workspace_bytes: int | None
    decision_ms: float
    device: str
    policy: str


def last_decision(op: str | None = None, pass_name: str | None = None) -> Decision | None:
    """The decision that ran last, over all threads, since the process began.

    Args:
        op: An operator (``conv_fwd``), or a family (``conv``) together with ``pass_name``. ``None``
            for any.
        pass_name: ``fwd``, ``bwd_data`` or ``bwd_filter`` of convolution, ``fwd``, ``bwd`` or
            ``infer`` of others. For a transposed convolution this is the cuDNN primitive that ran:
            its forward is ``bwd_data``.

    Returns:
        The decision; ``None`` if the operator has not run yet.

    Raises:
        ValueError: No operator has this name, or several do.

    Example:
        >>> y = torch_cudnn_ext.ops.softmax(torch.zeros(1, 4), 1, policy="cpu:online")
        >>> last_decision("softmax", "fwd").algorithm
        'cpu:online'
    """
    if op is not None or pass_name is not None:
        op = _operator_called(op, pass_name)
    decision = _C.last_decision(op)
    return None if decision is None else Decision(**decision)


def _operator_called(op: str | None, pass_name: str | None) -> str:
    found = [
        full
        for full, (family, name) in operators().items()
        if op in (None, family, full) and pass_name in (None, name)
    ]
    if len(found) != 1:
        wanted = "_".join(word for word in (op, pass_name) if isinstance(word, str))
        raise ValueError(
            f"last_decision: got op={op!r}, pass_name={pass_name!r}, "
            f"{_C.wanted_words(wanted, list(operators()), _C.IN_OPERATORS)}"
        )
    return found[0]
