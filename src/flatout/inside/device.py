"""The device's own clock: pooled events at step boundaries, read when the device has passed them.

Nothing here waits: a step whose events have not been reached stays pending, and is looked at again later.
Inside a step, events at the borders of its parts cost more than the boundary alone: they are recorded for one
step in four at first, for one in sixteen later. Steps that nobody looks at have no events at all: recording
one costs a busy host more than all the rest that we do in such a step.
"""

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from flatout.inside.deferred import Slot
from flatout.inside.looks import is_looked_at

_DETAIL_EVERY = 4
_DETAIL_LATER = 16
_EARLY = 64
_SOME = 256
_MARKS_AT_MOST = 48
# Looking costs a query and a few readings: several steps at a time.
_LOOK_EVERY = 8
# The device this far behind is not ours to wait for: older steps lose their device time, and say so.
_PENDING_AT_MOST = 256
_LAST_CHANCE_S = 5.0

Mark = tuple[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class _Pending:
    """A step that the device has yet to reach the end of."""

    update: int
    started: Any
    ended: Any
    # Whether its last event is the first of the next step too.
    opens_next: bool
    marks: list[Mark]
    losses: list[Any]
    norms: list[Any]


class DeviceClock:
    """Events of one CUDA device; used from the training thread alone."""

    def __init__(self, torch: Any, device: Any, log: Callable[[tuple[Any, ...]], None]) -> None:
        self._torch = torch
        self._device = device
        self._log = log
        self._pool: list[Any] = []
        self._pending: collections.deque[_Pending] = collections.deque()
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
        is_early = update < _EARLY and update % _DETAIL_EVERY == 1
        return (
            is_early
            or (update < _SOME and update % _DETAIL_LATER == _DETAIL_LATER - 1)
            or is_looked_at(update + 1)
        )

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

    def open(self) -> None:
        """A step that is looked at begins here, after one that was not."""
        self._boundary = self.event()
        self._boundary_stream = self._stream

    def close(
        self, update: int, marks: list[Mark], losses: list[Any], norms: list[Any], *, opens_next: bool
    ) -> None:
        """A step ends at this point of the stream; its times are logged once the device got here.

        This point does not open the next step where that has begun already, or where nobody will look at it.
        """
        ended = self.event()
        started, self._boundary = self._boundary, ended if opens_next else None
        self._boundary_stream = self._stream
        self._pending.append(_Pending(update, started, ended, opens_next, marks, losses, norms))
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
            step = self._pending[0]
            started, ended, marks = step.started, step.ended, step.marks
            if ended is not None and not ended.query():
                return
            self._pending.popleft()
            took, parts, reason = None, None, ""
            if ended is None:
                reason = "a graph was being captured"
            elif started is not None:
                took = started.elapsed_time(ended)
                parts = _parts(started, ended, marks) if marks else None
            values = [[_read(slot, ended) for slot in slots] for slots in (step.losses, step.norms)]
            self._log(("device", step.update, took, parts, *values, reason))
            # An event that opens the next step is still needed.
            used = [started, *(event for _, event in marks), None if step.opens_next else ended]
            self._pool += [event for event in used if event is not None]

    def _give_up(self, reason: str) -> None:
        step = self._pending.popleft()
        values = [None] * len(step.losses), [None] * len(step.norms)
        self._log(("device", step.update, None, None, *values, reason))


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
