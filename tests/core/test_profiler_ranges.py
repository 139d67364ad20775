"""What `torch.profiler` shows of decisions."""

import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from torch_cudnn_ext import enabled, last_decision, ops


def ranges(events: profile) -> list[tuple[str, str]]:
    """The names of our ranges, each with that of the operator around it."""
    found = []
    for event in events.events() or []:
        word = event.name.partition(" ")[0]
        if word in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter", "softmax_fwd"):
            parent = event.cpu_parent
            found.append((event.name, parent.name if parent else ""))
    return found


def test_a_profiler_sees_the_pass_and_the_algorithm(device: str) -> None:
    x = torch.randn(1, 2, 6, 6, device=device, requires_grad=True)
    w = torch.randn(3, 2, 3, 3, device=device, requires_grad=True)
    for warm in (False, True):  # the first call decides, the second one takes the short way
        with profile(activities=[ProfilerActivity.CPU]) as events:
            ops.conv2d(x, w, policy="fwd=aten:default").sum().backward()
        algorithms = {op: last_decision(op) for op in ("conv_bwd_data", "conv_bwd_filter")}
        names = [name for name, _ in ranges(events)]
        assert "conv_fwd aten:default" in names, warm
        for op, decision in algorithms.items():
            assert decision is not None and f"{op} {decision.algorithm}" in names, warm


def test_ranges_lie_inside_the_operator_that_was_called(device: str) -> None:
    x, w = torch.randn(1, 2, 6, 6, device=device), torch.randn(3, 2, 3, 3, device=device)
    with enabled("backends=aten"), profile(activities=[ProfilerActivity.CPU]) as events:
        F.conv2d(x, w)
    ((name, around),) = ranges(events)
    assert name == "conv_fwd aten:default" and "conv" in around


def test_without_a_profiler_there_are_none(device: str) -> None:
    x = torch.randn(2, 5, device=device)
    with profile(activities=[ProfilerActivity.CPU]) as events:
        pass
    ops.softmax(x, 1)
    assert ranges(events) == []
