"""Takes what is known of a job under `flatout run` to its sinks, from Flatout's own process.

The job never feels it: a thread here reads the files that the job writes anyway, and each sink has a thread
of its own. A network that is gone costs points, and nothing else.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.recorded import recordings
from flatout.analyze.steps import StepsReader
from flatout.monitor.sinks.catalogue import Target
from flatout.monitor.sinks.lines_read import LoggedLines
from flatout.monitor.sinks.outbox import Outbox, close_all
from flatout.monitor.sinks.protocol import About, ending_of
from flatout.monitor.sinks.run_points import job_point, loss_points
from flatout.monitor.sinks.traces import place_traces
from flatout.records.points import Logged, Point
from flatout.records.session import EVENTS_FILE, RANKS_FOLDER, SESSION_FILE
from flatout.runtime.aside import start_aside
from flatout.runtime.lives_seen import JobEnd
from flatout.runtime.living import Living

_LOOK_S = 2.0
# At the end: for trackers that upload what is left.
_CLOSING_S = 30.0
_OF_STEPS = "rank*-step*.pt.trace.json.gz"


class Feed:
    """One job and its sinks, over all of its lives. Used as a context manager, inside that of `living`."""

    def __init__(
        self, targets: Sequence[Target], run: str, living: Living, about: About, tell: Callable[[str], None]
    ) -> None:
        self._run, self._living, self._tell = run, living, tell
        self._outboxes = [Outbox(one.kind, _opening(one, about), tell) for one in targets]
        self._targets = targets
        self._life: _Life | None = None
        self._sent_at_unix_s = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._told = False

    def __enter__(self) -> "Feed":
        self._thread = start_aside(self._serve, "flatout-feed")
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=_CLOSING_S)
        end = self._living.seen.end or JobEnd()  # not said: an exception is on its way
        close_all(self._outboxes, _CLOSING_S, ending_of(end.exit_code, end.signal))

    @contextlib.contextmanager
    def life(self, place: Path) -> Iterator[None]:
        """The job is started, and leaves its files in `place`."""
        with self._lock:
            self._life = _Life(place)
        try:
            yield
        finally:
            self._living.refresh()
            with self._lock:
                self._look(is_last=True)
                self._life = None

    def told(self) -> tuple[Logged, ...]:
        """How it went, sink by sink."""
        return tuple(
            Logged(target=one.words(), points=box.delivered, dropped=box.dropped, failure=box.failure)
            for one, box in zip(self._targets, self._outboxes, strict=True)
        )

    def _serve(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._lock:
                self._look()

    def _look(self, *, is_last: bool = False) -> None:
        if self._life is None:
            return
        try:
            for point in (*self._life.look(is_last=is_last), *self._of_job()):
                for outbox in self._outboxes:
                    outbox.put(point)
            self._place_traces(self._life.place)
        except Exception as error:  # noqa: BLE001 - watching never breaks a job
            if not self._told:
                self._told = True
                self._tell(f"some of its figures could not be logged: {type(error).__name__}: {error}")

    def _of_job(self) -> list[Point]:
        """The newest look at the job, once."""
        job, epoch = self._living.latest, self._living.seen.epoch()
        if job is None or not job.updates or job.written_at_unix_s <= self._sent_at_unix_s:
            return []
        self._sent_at_unix_s = job.written_at_unix_s
        point = job_point(job, epoch[0] if epoch is not None else None, self._living.own.newest())
        return [point] if point.values else []

    def _place_traces(self, place: Path) -> None:
        for one in self._targets:
            if one.kind == "tensorboard":
                place_traces(Path(one.place), self._run, recordings(place, _OF_STEPS))


class _Life:
    """One start of the job: what its first rank and its script write."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._logged = LoggedLines(place)
        self._readers: dict[Path, StepsReader] = {}

    def look(self, *, is_last: bool) -> list[Point]:
        """New losses, and what the script itself logged."""
        found: list[Point] = []
        for folder in sorted((self.place / RANKS_FOLDER).glob("0-*")):
            reader = self._readers.setdefault(folder, StepsReader(folder / EVENTS_FILE))
            steps = [*reader.read(), *(reader.replay.rest() if is_last else ())]
            about = _about(folder) if steps else {}
            found += loss_points(
                steps,
                after_update=int((about.get("protection") or {}).get("resumed_at") or 0),
                loss_scale=_scale(about),
                unix_at_zero_s=float(about.get("unix_at_zero_s") or 0.0),
            )
        return [*found, *self._logged.look()]


def _opening(target: Target, about: About) -> Callable[[], Any]:
    return lambda: target.open(about)


def _scale(about: dict[str, Any]) -> float | None:
    told = (about.get("finite_updates") or {}).get("loss_scale")
    scale = told if told is not None else about.get("loss_scale")
    return float(scale) if isinstance(scale, int | float) else None


def _about(folder: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((folder / SESSION_FILE).read_bytes())
        return found if isinstance(found, dict) else {}
    return {}
