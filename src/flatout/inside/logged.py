"""What a script logs, taken now and read later: no step waits for a number that lies on a GPU.

A number on a GPU is copied to pinned memory in the order of its stream, with an event behind it: what happens
to the tensor afterwards changes nothing. A thread asks whether the event has passed (`query()`, never
`synchronize()`) and hands the numbers on, in the order of the calls. What comes faster than it can be read
drops the oldest.
"""

import collections
import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from flatout.inside.deferred import Deferred, Slot, leave_to_the_parent
from flatout.inside.numbers import Refused, number_of
from flatout.inside.relaxed import relax_captures
from flatout.records.points import Point

_CALLS_AT_MOST = 1000
# Of numbers on their way, fewer than a ring of pinned memory has places for.
_NUMBERS_AT_MOST = 1500
_LOOK_S, _IDLE_S = 0.005, 0.05
_READY_S = 1.0
# Before a fork: a thread that reads may take so long to stop.
_PAUSE_S = 0.1

__all__ = ["LoggedCalls", "Refused"]


@dataclasses.dataclass(slots=True, eq=False)
class _Call:
    """One call: numbers, places where numbers will be, and tensors that are read by who can wait."""

    step: int
    at_unix_s: float
    values: dict[str, Any]
    # Behind the copies, one a device, by its number.
    events: dict[int, Any]
    slots: int

    def is_ready(self) -> bool:
        return all(event.query() for event in self.events.values())


class LoggedCalls:
    """The calls whose numbers are on their way; `deliver` gets each as a point."""

    def __init__(
        self,
        deliver: Callable[[Point], None],
        tell: Callable[[str], None],
        *,
        find_torch: Callable[[], Any] = lambda: sys.modules.get("torch"),
        relax: Callable[[Any, int], bool] = relax_captures,
    ) -> None:
        self._deliver, self._tell = deliver, tell
        self._find_torch, self._relax = find_torch, relax
        self._calls: collections.deque[_Call] = collections.deque()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._wake = threading.Event()
        self._paused = False
        self._thread: threading.Thread | None = None
        # Whether the thread may ask the device, and which one.
        self._thread_asks = False
        self._device: int | None = None
        self._deferred: Deferred | None = None
        # To be used again: an event stays with the device on which it was recorded first.
        self._events: dict[int, list[Any]] = {}
        self._slots = 0
        self._told: set[str] = set()
        self.dropped = 0

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Take these now. Raises `Refused` for what is no number, before anything is taken."""
        torch = self._find_torch()
        found = {name: number_of(value, torch) for name, value in values.items()}
        try:
            self._add(torch, step, found)
        except Exception as error:  # noqa: BLE001 - a device that fails is the script's to hear of, not from us
            self._give_up(f"{type(error).__name__}: {error}")

    def _add(self, torch: Any, step: int, found: dict[str, Any]) -> None:
        with self._lock:
            call = self._taken(torch, step, found)
            if not self._calls and not call.slots:
                self._hand_on(call)
                return
            self._calls.append(call)
            self._slots += call.slots
            self._drop_the_oldest()
            if self._thread is None:
                self._start(next(iter(call.events), None))
        # Where the thread may not ask, this one does, unless it captures a graph: that would spoil it.
        asks = self._deferred is not None and not self._thread_asks
        if asks and not torch.cuda.is_current_stream_capturing():
            self._look()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is handed on, or for so long; whether it was."""
        deadline = time.monotonic() + timeout_s
        while self._calls and time.monotonic() < deadline:
            if self._deferred is None or not self._find_torch().cuda.is_current_stream_capturing():
                self._look()
            if self._calls:
                time.sleep(0.0005)
        return not self._calls

    def pause(self) -> None:
        """A fork comes: end the thread, if that can be done now."""
        self._paused = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_PAUSE_S)

    def resume(self) -> None:
        """Go on."""
        self._paused = False
        self._wake.clear()
        with self._lock:
            if self._thread is not None and not self._thread.is_alive():
                self._start(self._device)

    def leave_to_the_parent(self) -> None:
        """In a forked child: what is on its way is the parent's, and so is freeing it."""
        leave_to_the_parent((self._calls, self._deferred, self._events))

    # In the thread that logs

    def _taken(self, torch: Any, step: int, found: dict[str, Any]) -> _Call:
        """Numbers as they are; of tensors on a device, a copy that is on its way."""
        devices: dict[int, Any] = {}
        slots = 0
        values = {}
        for name, value in found.items():
            taken = value if isinstance(value, float) else self._from_device(torch, value)
            if taken is None:
                self._lose("a graph was being captured: what it computes has no value yet")
                continue
            if isinstance(taken, Slot):
                slots += 1
                devices[value.device.index] = value.device
            elif not isinstance(taken, float):
                slots += 1  # read by the thread, which may wait
            values[name] = taken
        events = {number: self._event(torch, device) for number, device in devices.items()}
        return _Call(step, time.time(), values, events, slots)

    def _event(self, torch: Any, device: Any) -> Any:
        """One at this point of the device's current stream."""
        pool = self._events.get(device.index)
        event = pool.pop() if pool else torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        return event

    def _from_device(self, torch: Any, tensor: Any) -> Any:
        if tensor.device.type != "cuda":
            return tensor.detach().clone()
        if self._deferred is None:
            self._deferred = Deferred(torch)
        return self._deferred.value_of(tensor)

    def _drop_the_oldest(self) -> None:
        while len(self._calls) > _CALLS_AT_MOST or (self._slots > _NUMBERS_AT_MOST and len(self._calls) > 1):
            call = self._calls.popleft()
            self._slots -= call.slots
            self._lose("the device is too far behind")

    def _lose(self, why: str) -> None:
        self.dropped += 1
        if why not in self._told:
            self._told.add(why)
            self._tell(f"some of what was logged is left out: {why}")

    # In the thread that reads

    def _start(self, device: int | None) -> None:
        """With a GPU, wait until the thread is ready to ask: now nobody captures a graph, later one may."""
        self._device, self._thread_asks = device, False
        is_ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(device, is_ready), name="flatout-log", daemon=True
        )
        self._thread.start()
        if device is not None:
            is_ready.wait(_READY_S)

    def _serve(self, device: int | None, is_ready: threading.Event) -> None:
        with contextlib.suppress(Exception):
            self._thread_asks = device is None or self._relax(self._find_torch(), device)
        is_ready.set()
        while not self._paused:
            self._wake.wait(_LOOK_S if self._calls else _IDLE_S)
            if self._calls and self._thread_asks and not self._paused:
                try:
                    self._look()
                except Exception as error:  # noqa: BLE001 - logging never breaks a job
                    self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._calls.clear()
            self._slots = 0
            self._lose(why)

    def _look(self) -> None:
        """Hand on what the device has delivered, in order."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            while self._calls:
                with self._lock:
                    call = self._calls[0] if self._calls else None
                if call is None or not call.is_ready():
                    return
                values = {name: _read(value) for name, value in call.values.items()}
                with self._lock:
                    # Else it was dropped meanwhile, and its places may hold other numbers.
                    if self._calls and self._calls[0] is call:
                        self._calls.popleft()
                        self._slots -= call.slots
                        for device, event in call.events.items():
                            self._events.setdefault(device, []).append(event)
                        call.values = values
                        self._hand_on(call)
        finally:
            self._reading.release()

    def _hand_on(self, call: _Call) -> None:
        known = {name: value for name, value in call.values.items() if value is not None}
        if len(known) < len(call.values):
            self._lose("too many numbers at once")
        if known:
            self._deliver(Point(call.step, call.at_unix_s, known))


def _read(value: Any) -> float | None:
    if isinstance(value, float):
        return value
    found = value.read() if isinstance(value, Slot) else value.item()
    return None if found is None else float(found)
