"""The device's own clock: pooled events at step boundaries, read when the device has passed them.

Nothing here waits: a step whose events have not been reached stays pending, and is looked at again later.
Inside a step, events at the borders of its parts cost more than the boundary alone: they are recorded for one
step in four at first, for one in sixteen later.
"""

import collections
import time
from collections.abc import Callable
from typing import Any

from flatout.inside.deferred import Slot

_DETAIL_EVERY = 4
_DETAIL_LATER = 16
_EARLY = 64
_MARKS_AT_MOST = 48
# Looking costs a query and a few readings: several steps at a time.
_LOOK_EVERY = 8
# The device this far behind is not ours to wait for: older steps lose their device time, and say so.
_PENDING_AT_MOST = 256
_LAST_CHANCE_S = 5.0

Mark = tuple[str, Any]
Pending = tuple[int, Any, Any, list[Mark], list[Any], list[Any]]


class DeviceClock:
    """Events of one CUDA device; used from the training thread alone."""

    def __init__(self, torch: Any, device: Any, log: Callable[[tuple[Any, ...]], None]) -> None:
        self._torch = torch
        self._device = device
        self._log = log
        self._pool: list[Any] = []
        self._pending: collections.deque[Pending] = collections.deque()
        self._boundary: Any = None
        # The streams, by number, of the last event and of the last boundary.
        self._stream = self._boundary_stream = 0
        self._streams: dict[int, Any] = {}
        # Asking for the stream's number is cheap; making an object for it at every event is not.
        self._stream_number = torch._C._cuda_getCurrentRawStream  # noqa: SLF001
        self._capturing = torch.cuda.is_current_stream_capturing

    @staticmethod
    def wants_detail(update: int) -> bool:
        """Whether the step after `update` gets events at the borders of its parts."""
        return (
            update < _EARLY and update % _DETAIL_EVERY == 1
        ) or update % _DETAIL_LATER == _DETAIL_LATER - 1

    def event(self) -> Any:
        """An event at this point of the current stream, or None while a graph is being captured."""
        if self._capturing():
            return None
        self._stream = number = self._stream_number(self._device.index)
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = self._torch.cuda.current_stream(self._device)
        event = self._pool.pop() if self._pool else self._torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def mark(self) -> Any:
        """An event inside a step; None on another stream than the step's: what runs there runs beside it."""
        if self._stream_number(self._device.index) != self._boundary_stream:
            return None
        return self.event()

    def tick(self, update: int) -> None:
        """A step that nobody looked at ends here: its time alone."""
        ended = self.event()
        started, self._boundary = self._boundary, ended
        self._boundary_stream = self._stream
        self._pending.append((update, started, ended, [], [], []))
        if len(self._pending) > _PENDING_AT_MOST and ended is not None:
            self._look()

    def close(
        self, update: int, marks: list[Mark], losses: list[Any], norms: list[Any], *, late: bool
    ) -> None:
        """A step ends at this point of the stream; its times are logged once the device got here.

        A step that is closed late has no device time, and opens none for the next.
        """
        ended = self.event()
        started, self._boundary = self._boundary, None if late else ended
        self._boundary_stream = self._stream
        self._pending.append((update, started, ended, marks, losses, norms))
        # While a graph is being captured, the question alone would spoil it.
        if len(self._pending) >= _LOOK_EVERY and ended is not None:
            self._look()
            while len(self._pending) > _PENDING_AT_MOST:
                self._give_up("the device was too far behind")

    def drain(self) -> None:
        """The process ends: look until the device has passed everything, for a few seconds at most."""
        deadline = time.monotonic() + _LAST_CHANCE_S
        while self._pending and time.monotonic() < deadline:
            self._look()
            if self._pending:
                time.sleep(0.001)
        while self._pending:
            self._give_up("the job ended before the device got there")

    def _look(self) -> None:
        while self._pending:
            update, started, ended, marks, losses, norms = self._pending[0]
            if ended is not None and not ended.query():
                return
            self._pending.popleft()
            took, parts, reason = None, None, ""
            if ended is None:
                reason = "a graph was being captured"
            elif started is not None:
                took = started.elapsed_time(ended)
                parts = _parts(started, ended, marks) if marks else None
            values = [[_read(slot, ended) for slot in slots] for slots in (losses, norms)]
            self._log(("device", update, took, parts, *values, reason))
            # The boundary that closes this step opens the next, so only the earlier one goes back.
            if started is not None:
                self._pool.append(started)
            self._pool += [event for _, event in marks if event is not None]

    def _give_up(self, reason: str) -> None:
        update, _, _, _, losses, norms = self._pending.popleft()
        self._log(("device", update, None, None, [None] * len(losses), [None] * len(norms), reason))


def _parts(started: Any, ended: Any, marks: list[Mark]) -> dict[str, float]:
    """Device milliseconds between neighbouring events, by what followed the earlier one."""
    found: dict[str, float] = {}
    kind, since = "between", started
    for following, event in [*marks, ("", ended)]:
        if event is not None:
            found[kind] = found.get(kind, 0.0) + since.elapsed_time(event)
            kind, since = following, event
    return found


def _read(value: Any, passed: Any) -> Any:
    if isinstance(value, Slot):
        return value.read() if passed is not None else None
    return value


def room_for_a_mark(marks: list[Mark]) -> bool:
    """Whether one more event may be recorded in this step."""
    return len(marks) < _MARKS_AT_MOST
