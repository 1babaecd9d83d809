"""Outputs on their way out: copied to the host on a stream of their own, written by a thread."""

import dataclasses
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from flatout.records.errors import CallerMistake

# Batches that may wait to be written: beyond it, computing waits.
_MOST_WAITING = 4


class Sink(Protocol):
    """Where outputs go, shard after shard."""

    def add(self, tensors: dict[str, torch.Tensor], part_size: int | None) -> None:
        """Take a shard."""


class ToFunction:
    """Outputs handed to a function of the caller's, in order: `function(first, outputs)`."""

    def __init__(self, function: Callable[[int, dict[str, torch.Tensor]], Any]) -> None:
        self._function = function
        self._first = 0

    def add(self, tensors: dict[str, torch.Tensor], part_size: int | None) -> None:  # noqa: ARG002
        """Hand it over."""
        self._function(self._first, tensors)
        self._first += next(iter(tensors.values())).shape[0]


@dataclasses.dataclass(frozen=True)
class _Leaving:
    tensors: dict[str, torch.Tensor]
    arrived: Any
    part_size: int | None


class Writer:
    """A thread that gathers outputs into shards and writes them; what fails there is raised here."""

    def __init__(self, sink: Sink, shard_samples: int, device: torch.device) -> None:
        self._sink = sink
        self._shard_samples = shard_samples
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._device = device
        self._queue: queue.Queue[_Leaving | None] = queue.Queue(_MOST_WAITING)
        self._gathered: list[dict[str, torch.Tensor]] = []
        self._part_size: int | None = None
        self._failed: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="flatout-writer")
        self._thread.start()

    def put(self, tensors: dict[str, torch.Tensor], part_size: int | None) -> None:
        """Send outputs on their way; waits while too many are."""
        self._raise()
        leaving = self._start(tensors, part_size)
        while True:
            try:
                self._queue.put(leaving, timeout=0.5)
            except queue.Full:
                self._raise()
            else:
                return

    def finish(self) -> None:
        """Write what is left, and wait for it."""
        self._queue.put(None)
        self._thread.join()
        self._raise()

    def abandon(self) -> None:
        """Something else failed: whole shards of what was handed over stay, the rest is dropped."""
        self._is_abandoned = True
        self._queue.put(None)
        self._thread.join()

    def _start(self, tensors: dict[str, torch.Tensor], part_size: int | None) -> _Leaving:
        if self._stream is None:
            # A module may answer with its own memory, or with its input's.
            return _Leaving({name: one.clone() for name, one in tensors.items()}, None, part_size)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        here: dict[str, torch.Tensor] = {}
        with torch.cuda.stream(self._stream):
            for name, one in tensors.items():
                here[name] = torch.empty(one.shape, dtype=one.dtype, device="cpu", pin_memory=True)
                here[name].copy_(one, non_blocking=True)
                one.record_stream(self._stream)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return _Leaving(here, arrived, part_size)

    def _work(self) -> None:
        while (leaving := self._queue.get()) is not None:
            if self._failed is None:
                self._heard(lambda: self._take(leaving))
        if self._gathered and self._failed is None and not self._is_abandoned:
            self._heard(self._flush)

    def _heard(self, work: Callable[[], None]) -> None:
        """The one who computes hears of what fails, and this thread goes on until it is told to end."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised by the next call from outside
            self._failed = error

    def _take(self, leaving: _Leaving) -> None:
        if leaving.arrived is not None:
            leaving.arrived.synchronize()
        self._gathered.append(leaving.tensors)
        self._part_size = leaving.part_size
        if self._samples >= self._shard_samples:
            self._flush()

    @property
    def _samples(self) -> int:
        return sum(next(iter(one.values())).shape[0] for one in self._gathered)

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        if any(_looks(one) != _looks(gathered[0]) for one in gathered):
            raise CallerMistake(
                "batches have outputs of other names, dtypes or shapes than those before",
                expected="the same outputs for each sample",
                remedy="pad them to one shape in the module, or give a function as out",
            )
        self._sink.add(
            {name: torch.cat([one[name] for one in gathered]) for name in gathered[0]}, self._part_size
        )

    def _raise(self) -> None:
        if self._failed is not None:
            raise self._failed


def _looks(outputs: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (one.dtype, one.shape[1:]) for name, one in outputs.items()}
