"""Batches on their way to the device while it works on the one before.

The copy runs on a stream of its own. The stream that computes waits for it by an event, on the device: no
host ever waits. Memory of the copy belongs to the side stream; `record_stream` keeps it from being given away
while the computing stream still reads it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flatout.levers.batches import leaves, map_leaves


@dataclasses.dataclass(frozen=True)
class OnItsWay:
    """A batch whose copies are under way."""

    batch: Any
    moved: tuple[Any, ...]
    arrived: Any


class Mover:
    """Starts copies on a stream of its own, and hands out what has arrived."""

    def __init__(self, torch: Any, device: Any, paths: frozenset[str] | None = None) -> None:
        self._torch = torch
        self._device = device
        # Which tensors of a batch to move; None for all.
        self._paths = paths
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, batch: Any) -> OnItsWay:
        """Begin to copy."""
        moved: list[Any] = []

        def move(path: str, tensor: Any) -> Any:
            if (self._paths is not None and path not in self._paths) or tensor.device == self._device:
                return tensor
            moved.append(tensor.to(self._device, non_blocking=self._stream is not None))
            return moved[-1]

        if self._stream is None:
            return OnItsWay(map_leaves(move, batch), tuple(moved), None)
        cuda = self._torch.cuda
        # What the batch was made of may have been computed on the current stream.
        if any(tensor.is_cuda for _, tensor in leaves(batch)):
            self._stream.wait_stream(cuda.current_stream(self._device))
        with cuda.stream(self._stream):
            batch = map_leaves(move, batch)
            arrived = cuda.Event()
            arrived.record(self._stream)
        return OnItsWay(batch, tuple(moved), arrived)

    def hand_out(self, coming: OnItsWay) -> Any:
        """The batch, safe to use in whatever stream is current."""
        if coming.arrived is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(coming.arrived)
            for tensor in coming.moved:
                tensor.record_stream(stream)
        return coming.batch


class Ahead:
    """One iterator of batches, of which the next is fetched and copied ahead wherever it is ready.

    Nothing is fetched earlier than it is ready: a loop whose loader is slow waits where it always waited.
    """

    def __init__(self, mover: Mover, fetch: Callable[[], Any], is_ready: Callable[[], bool]) -> None:
        self._mover = mover
        self._fetch = fetch
        self._is_ready = is_ready
        self._coming: OnItsWay | BaseException | None = None

    @property
    def has_one(self) -> bool:
        """Whether a batch was fetched that nobody has got yet."""
        return self._coming is not None

    def next_or(self, end: Any) -> Any:
        """The next batch, or `end` where there is none."""
        try:
            return self.next()
        except StopIteration:
            return end

    def next(self, *, look_ahead: bool = True) -> Any:
        """The next batch; raises what fetching it raised."""
        coming, self._coming = self._coming, None
        if coming is None:
            coming = self._mover.start(self._fetch())
        if isinstance(coming, BaseException):
            raise coming
        batch = self._mover.hand_out(coming)
        if look_ahead and self._is_ready():
            try:
                self._coming = self._mover.start(self._fetch())
            except BaseException as error:  # noqa: BLE001 - whoever asks for the next batch gets it
                self._coming = error
        return batch


def workers_have_one(iterator: Any) -> bool:
    """Whether a DataLoader's iterator can give its next batch without waiting for a worker."""
    task = iterator._task_info.get(iterator._rcvd_idx)  # noqa: SLF001
    return (task is not None and len(task) == 2) or not iterator._data_queue.empty()  # noqa: SLF001


class Prefetched:
    """A loader whose batches come on the device; everything else is the loader's own."""

    def __init__(self, loader: Iterable[Any], device: Any) -> None:
        import torch

        self._loader = loader
        self._device: Any = torch.device(device)
        if str(self._device) == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())

    def __iter__(self) -> Iterator[Any]:
        import torch

        mover = Mover(torch, self._device)
        iterator: Any = iter(self._loader)
        # A loader without workers makes its batches in this thread: ahead of time is not earlier.
        ready = (lambda: workers_have_one(iterator)) if hasattr(iterator, "_task_info") else (lambda: False)
        ahead = Ahead(mover, lambda: next(iterator), ready)
        end: Any = object()
        while (batch := ahead.next_or(end)) is not end:
            yield batch

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)
