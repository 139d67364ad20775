"""CUDA graphs of a function, one for each kind of arguments."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_cudnn_ext._optimize.forms import content_of, reason_of, tensors_of
from torch_cudnn_ext._workload.pytree import map_tensors

MAX_GRAPHS = 8  # kinds of arguments; the one used longest ago goes first
_WARM_UPS = 3  # calls before the capture, so that everything is chosen and allocated
_lock = threading.RLock()  # a network may hold another one that was optimized


class CaptureError(RuntimeError):
    """A call cannot be captured."""


def _copied(values: Any) -> Any:
    return map_tensors(lambda t: t.clone(memory_format=torch.preserve_format), values)


class _Captured:
    """A graph, the tensors that it reads, and what it writes."""

    def __init__(self, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.inputs = _copied(args)
        self.places = tensors_of(self.inputs)
        self.graph = torch.cuda.CUDAGraph()
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        before = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                call(*self.inputs)
        before.wait_stream(stream)
        try:
            # PyTorch's own stream for captures is of the device that captured first.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.outputs = call(*self.inputs)
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # a capture that fails may leave its own stream
            _end_captures(stream)
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise CaptureError(reason_of(error)) from error

    def __call__(self, given: list[Tensor]) -> Any:
        stream = torch.cuda.current_stream()
        stream.wait_event(self.done)  # the last call may be on another stream
        for place, tensor in zip(self.places, given, strict=True):
            place.copy_(tensor)
        self.graph.replay()
        results = _copied(self.outputs)
        self.done.record(stream)
        return results


def _end_captures(stream: torch.cuda.Stream) -> None:
    """Let PyTorch's random generator leave the capture that failed, by one that succeeds.

    A capture that CUDA ends with an error leaves the generator in it (PyTorch 2.11).
    """
    one, graph = torch.ones(1, device=stream.device), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        one.zero_()


class Graphs:
    """Calls a function by CUDA graphs, whose results are the caller's own."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._captured: OrderedDict[Any, _Captured] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which capture anew."""
        return {"_call": self._call, "_captured": OrderedDict()}

    def __call__(self, *args: Any) -> Any:
        """Replay the graph of such arguments, which the first of these calls captures.

        Raises:
            CaptureError: The call cannot be captured.
            OutOfMemoryError: There is no memory for a capture.
            UnknownForm: As `content_of`.
        """
        tensors = tensors_of(args)
        cast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
        key = content_of(args), cast
        with _lock, torch.cuda.device(tensors[0].device), torch.inference_mode(False):
            with torch.no_grad():
                captured = self._captured.get(key)
                if captured is None:
                    captured = self._captured[key] = _Captured(self._call, args)
                    if len(self._captured) > MAX_GRAPHS:
                        _, oldest = self._captured.popitem(last=False)
                        oldest.done.synchronize()
                self._captured.move_to_end(key)
                return captured(tensors)

    def clear(self) -> None:
        """Forget all graphs."""
        with _lock:
            for captured in self._captured.values():
                captured.done.synchronize()
            self._captured.clear()
