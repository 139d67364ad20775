"""CUDA graphs of a module, one for each kind of inputs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext._workload.pytree import map_tensors, tensors_in

MAX_GRAPHS = 8  # kinds of inputs; the one used longest ago goes first
_WARM_UPS = 3  # calls before the capture, so that everything is chosen and allocated


class CaptureError(RuntimeError):
    """A call cannot be captured."""


class _Captured:
    """A graph, the tensors that it reads, and what it writes."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.inputs = map_tensors(lambda t: t.clone(memory_format=torch.preserve_format), args)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                call(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.places = tensors_in(self.inputs)
        self.graph = torch.cuda.CUDAGraph()
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        before = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outputs = call(*self.inputs)
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # a capture that fails may leave its own stream
            _end_captures(self.places[0].device)
            raise CaptureError(str(error).strip().splitlines()[0]) from error

    def __call__(self, given: list[Tensor]) -> Any:
        stream = torch.cuda.current_stream()
        stream.wait_event(self._done)  # the last call may be on another stream
        for place, tensor in zip(self.places, given, strict=True):
            place.copy_(tensor)
        self.graph.replay()
        results = map_tensors(lambda t: t.clone(memory_format=torch.preserve_format), self.outputs)
        self._done.record(stream)
        return results


def _end_captures(device: torch.device) -> None:
    """Let PyTorch's random generator leave the capture that failed, by one that succeeds.

    A capture that CUDA ends with an error leaves the generator in it (PyTorch 2.11 to 2.15).
    """
    one = torch.ones(1, device=device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        one.zero_()


class Graphs:
    """Calls a function by CUDA graphs, whose results are the caller's own."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._captured: OrderedDict[Any, _Captured] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._captured)

    def __call__(self, *args: Any) -> Any:
        """Replay the graph of such inputs, which the first of these calls captures.

        Raises:
            CaptureError: The call cannot be captured.
        """
        tensors = tensors_in(args)
        others = [a for a in args if not isinstance(a, Tensor)]
        device = tensors[0].device
        key = (
            *((t.shape, t.stride(), t.dtype, t.device) for t in tensors),
            repr(others) if others else "",
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        )
        with self._lock, torch.cuda.device(device):
            captured = self._captured.get(key)
            if captured is None:
                captured = self._captured[key] = _Captured(self._call, args)
                if len(self._captured) > MAX_GRAPHS:
                    self._captured.popitem(last=False)
            else:
                self._captured.move_to_end(key)
            return captured(tensors)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which capture anew."""
        return {"_call": self._call}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of what `__getstate__` gave."""
        self.__init__(**{"call": state["_call"]})  # type: ignore[misc]

    def clear(self) -> None:
        """Forget all graphs."""
        with self._lock:
            self._captured.clear()
