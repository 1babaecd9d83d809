"""A long run: an alarm when its steps become slower, and where that is wanted a recording every so many."""

import json
import statistics
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.inside.window import Window, is_profiling
from flatout.records.session import ALARMS_FILE

if TYPE_CHECKING:
    from flatout.inside.session import Session

# Steps that are judged together, and for how long at least: single ones are long for a hundred reasons.
_BLOCK, _BLOCK_NS = 32, 500_000_000
# A pace is known after so many blocks; the first steps are nobody's pace.
_BLOCKS_TO_KNOW = 3
# So much slower than the best pace is an alarm, in two blocks after each other; below the other it is over.
_SLOWER, _AS_BEFORE = 1.2, 1.1
_BLOCKS_TO_TELL = 2
# Steps after a recording that may still feel it.
_AFTERWARDS = 2
# Recordings that are kept of a run: the newest.
_AT_MOST = 20


class Watch:
    """Sees the end of every step; costs a subtraction in most of them."""

    def __init__(self, session: "Session", every: int) -> None:
        self._session = session
        self._every = every
        self._ended_ns = 0
        self._block: list[int] = []
        self._block_ns = 0
        self._blocks = 0
        self._seen = 0
        self._best_ms: float | None = None
        self._slow_blocks = 0
        self._is_slow = False
        self._leave_out = 0
        self._wanted = False
        self._window: Window | None = None
        self._written: deque[Path] = deque()
        # Whether the next call of a model has to be told.
        self.waits_for_a_call = False

    def step(self, ended_ns: int) -> None:
        """A step has ended."""
        before, self._ended_ns = self._ended_ns, ended_ns
        if self._window is not None:
            if self.waits_for_a_call:  # a whole step without a call of a model
                self.close()
            self.waits_for_a_call = self._session.watching = self._window is not None
            return
        if self._leave_out:
            self._leave_out -= 1
        elif before:
            self._seen += 1
            self._block.append(ended_ns - before)
            self._block_ns += self._block[-1]
            if len(self._block) >= _BLOCK and self._block_ns >= _BLOCK_NS:
                self._judge(statistics.median(self._block) / 1e6)
                self._begin_block()
        if not self._every:
            return
        is_due = self._wanted or not self._session.updates % self._every
        # The steps must have found their pace: nobody wants a recording of a warm-up.
        if is_due and self._seen >= _BLOCK * _BLOCKS_TO_KNOW:
            self._wanted = False
            self.waits_for_a_call = self._session.watching = True

    def call_begins(self) -> None:
        """A model is called, for the first time since a step ended: here a profiler may be switched."""
        self.waits_for_a_call = False
        if self._window is None:
            if is_profiling(self._session.torch):  # the script itself: another time, then
                return
            name = f"rank{{rank}}-step{self._session.updates}.pt.trace.json.gz"
            window = Window(self._session, details=False, name=name)
            window.begin()
            self._window = window
        else:
            try:
                self._window.step()
                if self._window.is_over:
                    window, self._window = self._window, None
                    self._begin_block()
                    self._leave_out = _AFTERWARDS
                    window.end()
                    if window.path is not None:  # else the script began to profile itself
                        self._keep(window.path)
            except Exception:
                self.close()
                raise
        # This step is not one to time by.
        self._session.log.add(("recorded", self._ended_ns, self._ended_ns))

    def close(self) -> None:
        """The process ends, or recording has failed: a profiler that is left behind would crash it."""
        window, self._window = self._window, None
        if window is not None:
            window.abandon()

    def _begin_block(self) -> None:
        self._block, self._block_ns = [], 0

    def _judge(self, median_ms: float) -> None:
        self._blocks += 1
        if self._blocks < _BLOCKS_TO_KNOW:
            return
        if self._best_ms is None or median_ms < self._best_ms:
            self._best_ms = median_ms
        ratio = median_ms / self._best_ms
        self._slow_blocks = self._slow_blocks + 1 if ratio > _SLOWER else 0
        if self._slow_blocks >= _BLOCKS_TO_TELL and not self._is_slow:
            self._is_slow = self._wanted = True
            self._tell("slower", median_ms)
        elif self._is_slow and ratio < _AS_BEFORE:
            self._is_slow = False
            self._tell("as before", median_ms)

    def _tell(self, what: str, median_ms: float) -> None:
        said = {
            "what": what,
            "update": self._session.updates,
            "step_ms": median_ms,
            "best_ms": self._best_ms,
            "rank": self._session.rank_and_world_size()[0],
        }
        with (self._session.folder() / ALARMS_FILE).open("a") as file:
            file.write(json.dumps(said) + "\n")

    def _keep(self, path: Path) -> None:
        self._written.append(path)
        if len(self._written) > _AT_MOST:
            self._written.popleft().unlink(missing_ok=True)
