"""How a job under `flatout run` is doing, written down every other second for whoever watches.

A thread of Flatout's own process follows what the job's ranks write, over all of its lives. Nothing here may
harm the job: what fails is said once, and tried again.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.codec import encode
from flatout.records.hang import Hang
from flatout.records.live import LIVE_FILE, LIVE_KIND, LIVE_VERSION, LiveJob
from flatout.runtime.aside import start_aside
from flatout.runtime.last_profile import LastProfile, last_profile
from flatout.runtime.live_document import Promise, live_job
from flatout.runtime.lives_seen import JobEnd, LivesSeen
from flatout.runtime.own_devices import OwnDevices

# Devices are sampled this often, and every other time the file is written.
_SAMPLE_S = 1.0
_EVERY_S = 2.0
# For what is under way when the job has ended.
_PATIENCE_S = 10.0
_NOT_YET = "not looked for yet"


class Living:
    """One job, from its first start to its end. Used as a context manager."""

    def __init__(
        self,
        folder: Path,
        promise: Promise,
        *,
        tell: Callable[[str], None] = lambda _text: None,
        devices: OwnDevices | None = None,
        every_s: float = _EVERY_S,
    ) -> None:
        self._folder = folder.resolve()
        self._promise = promise
        self._tell = tell
        self._every_s = every_s
        self.own = devices if devices is not None else OwnDevices()
        self.seen = LivesSeen()
        # As it was last written down, or would have been.
        self.latest: LiveJob | None = None
        self._profile = LastProfile(finding_reason=_NOT_YET, floor_reason=_NOT_YET)
        self._began_unix_s = time.time()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = False

    def __enter__(self) -> "Living":
        self._thread = start_aside(self._serve, "flatout-living")
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=_PATIENCE_S)
        with self._safely():
            if self.seen.end is None:
                why = (
                    f"flatout run ended with {type(error).__name__}" if error is not None else "not said how"
                )
                self.seen.end = JobEnd(why=why)
            if self._thread is None or not self._thread.is_alive():  # else a driver or a disk hangs
                self.own.look(self.seen.ranks)
                self.own.sample()
                self._write()
                self.own.close()

    @contextlib.contextmanager
    def life(self, place: Path) -> Iterator[None]:
        """The job is started, and leaves its steps in `place`."""
        with self._safely(), self._lock:
            self.seen.life_begins(place)
        try:
            yield
        finally:
            with self._safely(), self._lock:
                self.seen.life_is_over()

    def refresh(self) -> None:
        """Write it down now, not when it is due: a life is over, for one."""
        with self._safely():
            self._write()

    def hangs(self, hang: Hang) -> None:
        """It makes no more steps."""
        with self._safely(), self._lock:
            self.seen.hangs(hang)

    def goes_on(self) -> None:
        """It does again."""
        with self._safely(), self._lock:
            self.seen.goes_on()

    def ended(self, exit_code: int | None, signal: int | None) -> None:
        """It is over, and will not be started again."""
        with self._safely(), self._lock:
            self.seen.end = JobEnd(exit_code, signal)

    # The thread

    def _serve(self) -> None:
        with self._safely():
            self._write()
            self._profile = last_profile(self._folder.parent.parent, self._promise.script)
        due_s = time.monotonic() + self._every_s
        while not self._over.wait(min(_SAMPLE_S, self._every_s)):
            with self._safely():
                self.own.sample()
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + self._every_s
                with self._safely():
                    with self._lock:
                        self.seen.look()
                    self.own.look(self.seen.ranks)
                    self._write()

    @contextlib.contextmanager
    def _safely(self) -> Iterator[None]:
        """Watching never breaks a job."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - see above
            if not self._told:
                self._told = True
                with contextlib.suppress(Exception):
                    why = str(error) or type(error).__name__
                    self._tell(f"how the job is doing cannot be written down: {why}")

    def _write(self) -> None:
        with self._lock:
            self.latest = live_job(
                self._folder, self._began_unix_s, self.seen, self.own, self._promise, self._profile
            )
            is_last = self.seen.end is not None
        if not self._folder.is_dir():  # somebody cleaned up: nothing is made again
            raise FileNotFoundError(f"{self._folder} is gone")
        # Only the last one has to outlive the machine.
        data = encode(LIVE_KIND, LIVE_VERSION, self.latest)
        write_atomically(self._folder / LIVE_FILE, data, synced=is_last)
