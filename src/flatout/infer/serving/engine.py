"""A language model in a thread of its own: requests share its batch as they come and go."""

import asyncio
import dataclasses
import queue
import threading
import time

from flatout.infer.generating.generator import Generator, Request
from flatout.infer.serving.broken import lost_device
from flatout.infer.serving.loading import leave_a_core
from flatout.infer.serving.pace import Pace
from flatout.infer.serving.tickets import Closing, Full

_IDLE_S = 0.5


@dataclasses.dataclass(eq=False)
class Job:
    """One text that is being written. `news` holds tokens, then None at its end."""

    request: Request
    news: "asyncio.Queue[int | None]"
    arrived_s: float
    started_s: float | None = None
    first_s: float | None = None
    error: BaseException | None = None
    # Tokens that the loop has not heard of yet.
    fresh: list[int] = dataclasses.field(default_factory=list)


class Engine:
    """Drives a generator; everything else may be called from the loop."""

    def __init__(self, generator: Generator, loop: asyncio.AbstractEventLoop, most_waiting: int) -> None:
        self._generator, self._loop = generator, loop
        self.rows = generator.decoder.rows
        self.length = generator.decoder.length
        self._most = self.rows + most_waiting
        self._incoming: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._jobs: list[Job] = []
        self._here = 0
        self.pace = Pace()
        self._closing = threading.Event()
        self._turn_s: float | None = None
        # What ended the device for this process; empty as long as it works.
        self.broken = ""
        self._thread = threading.Thread(target=self._work, name="flatout-texts", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Texts that wait for a row."""
        return max(0, self._here - self.rows)

    @property
    def running(self) -> int:
        """Texts that are being written."""
        return min(self._here, self.rows)

    @property
    def is_full(self) -> bool:
        """Whether no more may wait."""
        return self._here >= self._most

    @property
    def retry_after_s(self) -> float:
        """When there should be room, by the present rate."""
        return self.pace.seconds_for(self.waiting + 1)

    @property
    def turn_for_s(self) -> float:
        """How long the present turn has lasted."""
        began = self._turn_s
        return 0.0 if began is None else time.monotonic() - began

    def submit(self, request: Request) -> Job:
        """Accept one, or raise Full or Closing; from the loop."""
        if self._closing.is_set():
            raise Closing("the server is about to end")
        if self.is_full:
            raise Full(self.retry_after_s)
        job = Job(request, asyncio.Queue(), time.monotonic())
        request.on_token = job.fresh.append
        self._here += 1
        self._incoming.put(job)
        return job

    def leave(self, job: Job) -> None:
        """Nobody waits for the rest."""
        job.request.leave()

    def drain(self, timeout_s: float) -> bool:
        """Accept nothing more, end when all is said; whether it was in time."""
        self._closing.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The thread

    def _work(self) -> None:
        leave_a_core()
        while True:
            self._take_in(wait=not self._jobs)
            if self._jobs:
                self._one_turn()
            elif self._closing.is_set() and self._incoming.empty():
                return

    def _take_in(self, *, wait: bool) -> None:
        try:
            job = self._incoming.get(timeout=_IDLE_S) if wait else self._incoming.get_nowait()
            while True:
                self._jobs.append(job)
                job.started_s = time.monotonic()
                try:
                    self._generator.submit(job.request)
                except ValueError as error:
                    job.error, job.request.ending = error, "left"
                job = self._incoming.get_nowait()
        except queue.Empty:
            return

    def _one_turn(self) -> None:
        self._turn_s = time.monotonic()
        try:
            while not self._generator.is_idle:
                self._generator.pump()
                if any(job.fresh or job.request.ending for job in self._jobs):
                    break
        except Exception as error:  # noqa: BLE001 - all who are here hear of it, and the next may go well
            self._fail(error)
        self._turn_s = None
        self._tell()

    def _fail(self, error: Exception) -> None:
        error.__traceback__ = None
        for job in self._jobs:
            if not job.request.ending:
                job.error, job.request.ending = error, "left"

    def _tell(self) -> None:
        """One call into the loop for all that this turn brought."""
        news: list[tuple[Job, list[int], bool]] = []
        for job in self._jobs:
            job.error = job.error or job.request.error
            self.broken = self.broken or lost_device(job.error)
            fresh, ended = list(job.fresh), bool(job.request.ending)
            job.fresh.clear()
            if fresh or ended:
                news.append((job, fresh, ended))
        self._jobs = [job for job in self._jobs if not job.request.ending]
        done = sum(1 for _, _, ended in news if ended)
        if news:
            self._loop.call_soon_threadsafe(self._hear, news, done)

    def _hear(self, news: list[tuple[Job, list[int], bool]], done: int) -> None:
        self._here -= done
        now = time.monotonic()
        for job, fresh, ended in news:
            if fresh and job.first_s is None:
                job.first_s = now
            for token in fresh:
                job.news.put_nowait(token)
            if ended:
                # With so many rows at work, one is free after this share of a text's time.
                self.pace.answered(self.rows, now - (job.started_s or now))
                job.news.put_nowait(None)
