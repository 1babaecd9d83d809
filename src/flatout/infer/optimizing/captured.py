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
from flatout.infer.optimizing.calling import Arguments, opaque_in
from flatout.memory.splitting import map_tensors

_WARM_UPS = 3


class Pool:
    """Memory that graphs share: one of them runs at a time, whichever thread or stream it is called from."""

    def __init__(self, device: torch.device) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        # Of one pool, graphs share only what was allocated on one stream.
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.lock = threading.Lock()
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.used_on: Any = None


class Captured:
    """A function of tensors of fixed shapes on one GPU; other arguments are the example's, for ever."""

    def __init__(
        self, call: Callable[..., Any], example: Arguments, device: torch.device, pool: Pool
    ) -> None:
        self._pool = pool
        self._device = device
        # Inputs are written into, also by calls outside of the inference mode that the first one came in.
        with torch.inference_mode(False):
            self._inputs = example.copied()
        self._places = self._inputs.tensors()
        elsewhere = {str(one.device) for one in self._places if one.device != device}
        if elsewhere:
            raise ValueError(
                f"inputs on {', '.join(sorted(elsewhere))}: a graph on {device} would keep their first values"
            )
        with torch.cuda.device(device), torch.no_grad():
            stream = pool.stream
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    self._inputs.of(call)
            torch.cuda.current_stream(device).wait_stream(stream)
            try:
                self._graph, self._outputs = self._recorded(call)
            except Exception:  # noqa: BLE001 - what is made at a first use may not be made in a capture
                # Models that ask whether they are captured run something else then, here for the first time.
                self._graph, self._outputs = self._recorded(call)
        if kind := opaque_in(self._outputs):
            raise ValueError(f"an output holds a {kind}: what is in it would be overwritten by the next call")

    def _recorded(self, call: Callable[..., Any]) -> tuple[Any, Any]:
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._device, self._pool.handle, self._pool.stream):
            return graph, self._inputs.of(call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Copy the inputs in, run the graph, copy the outputs."""
        given = Arguments(args, kwargs).tensors()
        pool = self._pool
        with pool.lock, torch.no_grad(), self._on_device():
            stream = torch.cuda.current_stream(self._device)
            if pool.used_on is not None and pool.used_on != stream:
                stream.wait_event(pool.done)
            for place, tensor in zip(self._places, given, strict=True):
                place.copy_(tensor, non_blocking=True)
            self._graph.replay()
            outputs = map_tensors(torch.clone, self._outputs)
            pool.done.record(stream)
            pool.used_on = stream
        return outputs

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        if torch.cuda.current_device() == self._device.index:
            yield
            return
        with torch.cuda.device(self._device):
            yield
