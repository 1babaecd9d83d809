"""A call captured as a CUDA graph: its kernels start by one launch, whatever the host is doing.

Captured by us, not by torch.compile's mode "reduce-overhead": that one keeps its graphs by thread, and a
server calls from another thread than the one in which the module was made ready. Outputs are copies: those of
a graph are overwritten by its next run.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from flatout.infer.capturing import capturing
from flatout.infer.optimizing.calling import Arguments
from flatout.memory.splitting import map_tensors

_WARM_UPS = 3


class Captured:
    """A function of tensors of fixed shapes on one GPU; other arguments are the example's, for ever."""

    def __init__(self, call: Callable[..., Any], example: Arguments, device: torch.device, pool: Any) -> None:
        self._lock = threading.Lock()
        self._device = device
        self._inputs = example.copied()
        self._places = self._inputs.tensors()
        elsewhere = {str(one.device) for one in self._places if one.device != device}
        if elsewhere:
            raise ValueError(
                f"inputs on {', '.join(sorted(elsewhere))}: a graph on {device} would keep their first values"
            )
        self._graph = torch.cuda.CUDAGraph()
        self._used_on: Any = None
        with torch.cuda.device(device), torch.no_grad():
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    self._inputs.of(call)
            torch.cuda.current_stream(device).wait_stream(stream)
            torch.cuda.synchronize(device)
            with capturing(self._graph, device, pool, stream):
                self._outputs = self._inputs.of(call)
        self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Copy the inputs in, run the graph, copy the outputs."""
        given = Arguments(args, kwargs).tensors()
        with self._lock, torch.no_grad(), self._on_device():
            stream = torch.cuda.current_stream(self._device)
            if self._used_on is not None and self._used_on != stream:
                stream.wait_event(self._done)
            for place, tensor in zip(self._places, given, strict=True):
                place.copy_(tensor, non_blocking=True)
            self._graph.replay()
            outputs = map_tensors(torch.clone, self._outputs)
            self._done.record(stream)
            self._used_on = stream
        return outputs

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        if torch.cuda.current_device() == self._device.index:
            yield
            return
        with torch.cuda.device(self._device):
            yield
