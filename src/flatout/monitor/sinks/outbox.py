"""Between those who log and a sink: a bounded queue and a thread, so that nobody ever waits for a sink.

A queue that is full loses its oldest points, counts them, and says so once. A sink that raises is turned off
and says why; others never notice. The thread looks a few times a second: waking it for each point would cost
the thread that trains more than the point itself.
"""

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from flatout.monitor.sinks.protocol import WENT_WELL, Ending, Sink
from flatout.records.points import Point
from flatout.runtime.aside import start_aside

_POINTS_AT_MOST = 10_000
# In one call of a sink.
_AT_ONCE = 500
_LOOK_S = 0.25
# Before a fork: how long a thread may take to get to a place where it can be stopped.
_PAUSE_S = 0.1


class Outbox:
    """One sink's queue. `put` is for any thread and never waits."""

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], Sink],
        tell: Callable[[str], None],
        *,
        points_at_most: int = _POINTS_AT_MOST,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._open, self._tell, self._on_open = open_sink, tell, on_open
        self._at_most = points_at_most
        self._points: collections.deque[Point] = collections.deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._sink: Sink | None = None
        self._ending = WENT_WELL
        self._busy = self._hurry = self._closing = self._paused = self._told_full = False
        # Whether a thread will take what comes.
        self._is_served = False
        self.dropped = self.delivered = 0
        # Why it is off; "" while it works.
        self.failure = ""

    def put(self, point: Point) -> None:
        """Have it delivered; a thread is started with the first."""
        with self._changed:
            if self.failure or self._closing:
                self.dropped += 1
                return
            self._points.append(point)
            is_full = len(self._points) > self._at_most
            if is_full:
                self._points.popleft()
                self.dropped += 1
            if self._thread is None:
                self._start()
        if is_full and not self._told_full:
            self._told_full = True
            self._tell(f"{self.name} is too slow: the oldest points that wait for it are dropped")

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is delivered, or for so long; whether it was."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._points and not self._busy, timeout_s)
            self._hurry = False
        return done and not self.failure

    def request_close(self, ending: Ending = WENT_WELL) -> None:
        """No more comes: deliver the rest and close the sink, in its own time."""
        with self._changed:
            self._ending = ending
            self._closing = True
            self._changed.notify_all()

    def close(self, timeout_s: float, ending: Ending = WENT_WELL) -> bool:
        """The same, within a time; a sink that takes longer is left alone. Whether all went well."""
        self.request_close(ending)
        thread = self._thread
        if thread is not None:
            thread.join(max(timeout_s, 0.0))
            if thread.is_alive() and not self.failure:
                self.failure = "it did not take everything in time"
                self.dropped += len(self._points)
                self._tell(f"{self.name}: {self.failure}; {len(self._points)} points are lost")
        return not self.failure

    # A fork wants no threads about.

    def pause(self) -> None:
        """End the thread, if it can be ended now; points wait."""
        thread = self._thread
        if thread is None:
            return
        with self._changed:
            self._paused = True
            self._changed.notify_all()
        thread.join(_PAUSE_S)

    def resume(self) -> None:
        """Go on."""
        with self._changed:
            self._paused = False
            # The thread of before may be about to end still; whether it saw the pause is what counts.
            if self._thread is not None and not self._is_served and not self.failure:
                self._start()

    def _start(self) -> None:
        self._is_served = True
        self._thread = start_aside(self._serve, f"flatout-{self.name}")

    # In its own thread

    def _serve(self) -> None:
        points: list[Point] | None = []
        try:
            sink = self._sink or self._opened()
            while points := self._take():
                sink.write(points)
                self.delivered += len(points)
            if points is None:
                return
            sink.close(self._ending)
        except BaseException as error:  # noqa: BLE001 - a tracker that fails is the tracker's own business
            self._fail(error, len(points or ()))
        with self._changed:
            self._busy = False
            self._changed.notify_all()

    def _opened(self) -> Sink:
        self._sink = sink = self._open()
        self._on_open()
        if sink.note:
            self._tell(f"{self.name}: {sink.note.splitlines()[0][:300]}")
        return sink

    def _take(self) -> list[Point] | None:
        """What waits; nothing when there is no more to come. None when a fork comes: this thread ends now."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._closing and not self._paused:
                if self._hurry and self._points:
                    break
                before = bool(self._points)
                self._changed.wait(_LOOK_S)
                if before and self._points:
                    break
            if self._paused:
                self._is_served = False
                return None
            self._busy = bool(self._points)
            return [self._points.popleft() for _ in range(min(len(self._points), _AT_ONCE))]

    def _fail(self, error: BaseException, lost: int) -> None:
        with self._changed:
            self.dropped += lost + len(self._points)
            self._points.clear()
            self.failure = (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:300]
        self._tell(f"{self.name} is turned off: {self.failure}")
        if self._sink is not None:
            with contextlib.suppress(BaseException):
                self._sink.close()


def close_all(outboxes: Sequence[Outbox], timeout_s: float, ending: Ending = WENT_WELL) -> None:
    """Close them side by side, within one deadline."""
    deadline = time.monotonic() + timeout_s
    for outbox in outboxes:
        outbox.request_close(ending)
    for outbox in outboxes:
        outbox.close(deadline - time.monotonic(), ending)
