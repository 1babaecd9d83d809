"""Requests become batches: as many as came meanwhile, up to a size, and none waits longer than it must.

One thread runs the model; anybody may hand items in. It knows nothing of HTTP or torch. What is accepted is
answered: by a result, by its own error, or by the notice that its time was over.
"""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from flatout.infer.serving.pace import Pace
from flatout.infer.serving.policy import Policy
from flatout.infer.serving.tickets import Closing, Expired, Full, Ticket

# After a batch that was too large, so many full ones must go well before a larger one is tried again.
_WELL = 64


class Batcher:
    """The queue, and the thread that runs batches of it."""

    def __init__(
        self,
        run: Callable[[Sequence[Any]], Sequence[Any]],
        policy: Policy,
        *,
        deliver: Callable[[list[Ticket]], None] = lambda _tickets: None,
        too_large: Callable[[BaseException], bool] = lambda error: isinstance(error, MemoryError),
        on_start: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = policy
        self.pace = Pace()
        # What a batch may hold at the moment: less than the policy's after one that ran out of memory.
        self.most = policy.most
        self.splits = 0
        self._run, self._deliver, self._too_large, self._clock = run, deliver, too_large, clock
        self._on_start = on_start
        self._queues: OrderedDict[Hashable, deque[Ticket]] = OrderedDict()
        self._waiting = 0
        self._running: list[Ticket] = []
        self._began_s: float | None = None
        self._went_well = 0
        # How many were here when the last batch ended, it included; with how many the next one is complete.
        self._seen, self._wanted = 0, policy.most
        self._closing = False
        self._sleeps = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="flatout-batches", daemon=True)

    # For those who hand in

    def start(self) -> None:
        """Begin to run batches."""
        self._thread.start()

    def submit(
        self, value: Any, *, key: Hashable = None, timeout_s: float = 60.0, owner: Any = None
    ) -> Ticket:
        """Accept an item, or raise Full or Closing."""
        now = self._clock()
        with self._changed:
            if self._closing:
                raise Closing("the server is about to end")
            if self.is_full:
                raise Full(self.retry_after_s)
            ticket = Ticket(value, key, now, now + timeout_s, owner)
            queue = self._queues.setdefault(key, deque())
            queue.append(ticket)
            self._waiting += 1
            if self._running:
                self.pace.arrived()
            # A thread that collects looks by itself: only the first and the last of a batch wake it.
            if self._sleeps or len(queue) >= self._wanted:
                self._changed.notify()
            return ticket

    def delivered(self, ticket: Ticket) -> None:
        """Its answer is on its way to the client only now."""
        self.pace.delivered(self._clock() - ticket.answered_s)

    def leave(self, ticket: Ticket) -> None:
        """Nobody waits for it: it will not be computed, unless that has begun."""
        with self._changed:
            if ticket.state == "waiting":
                self._queues[ticket.key].remove(ticket)
                self._forget_if_empty(ticket.key)
                self._waiting -= 1
                ticket.value = None
            # One that is being computed keeps its value: a batch with a hole in it would fail as a whole.
            if ticket.state != "answered":
                ticket.state = "left"

    def drain(self, timeout_s: float | None = None) -> bool:
        """Accept nothing more, answer what is here; whether that was done in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting

    @property
    def is_full(self) -> bool:
        """Whether one more would be too many: for the queue, or for the time that it may take."""
        # One may always wait, however slow all has become: else nobody would notice that it no longer is.
        if not self._waiting:
            return False
        return (
            self._waiting >= self.policy.queue or self._seconds_for(self._waiting + 1) > self.policy.limit_s
        )

    @property
    def retry_after_s(self) -> float:
        """When all that is here should be answered, by the present rate."""
        return self.pace.seconds_for(self._waiting + len(self._running))

    def _seconds_for(self, waiting: int) -> float:
        """What the last of so many would wait for and take: batches as measured, as slow as they are now."""
        whole = self.policy.predicted_s(self.most)
        if whole is None:
            return 0.0
        rounds, rest = divmod(waiting, self.most)
        last = self.policy.predicted_s(rest) if rest else 0.0
        slow = self.pace.slowness
        batches = slow * (rounds * whole + (last or 0.0)) + self._under_way_s(slow)
        return batches + self.pace.spread_s + self.pace.delivery_s

    def _under_way_s(self, slow: float) -> float:
        """What is left of the batch that is being computed."""
        whole = self.policy.predicted_s(len(self._running)) if self._running else None
        return 0.0 if whole is None else max(0.0, slow * whole - self.running_for_s)

    @property
    def running_for_s(self) -> float:
        """How long the batch under way has been so; 0 where there is none."""
        began = self._began_s
        return 0.0 if began is None else self._clock() - began

    # The thread

    def _work(self) -> None:
        self._on_start()
        while True:
            tickets = self._collect()
            if tickets is None:
                return
            self._answer(tickets)

    def turn(self) -> bool:
        """One batch in the caller's thread, in place of the own one; False where nothing is left."""
        tickets = self._collect()
        if tickets is None:
            return False
        self._answer(tickets)
        return True

    def _collect(self) -> list[Ticket] | None:
        """Wait for a batch; None when all is done."""
        late: list[Ticket] = []
        try:
            with self._changed:
                while True:
                    late += self._drop_expired()
                    if late:
                        return []
                    if not self._queues:
                        if self._closing:
                            return None
                        self._sleep(None)
                        continue
                    key = self._oldest_key()
                    pause = self._pause(self._queues[key])
                    if pause <= 0:
                        return self._take(key)
                    self._sleep(pause, until_full=True)
        finally:
            if late:
                self._deliver(late)

    def _pause(self, queue: deque[Ticket]) -> float:
        """How long to wait for company: not at all where it is full, or none is to be expected in time."""
        # Whoever was here a batch ago may come again at once; others come at the rate at which they come.
        left_s = queue[0].arrived_s + self.policy.wait_s - self._clock()
        soon = self.pace.expected(left_s)
        self._wanted = min(self.most, max(self._seen, len(queue) + soon))
        return 0.0 if len(queue) >= self._wanted or self._closing else left_s

    def _sleep(self, seconds: float | None, *, until_full: bool = False) -> None:
        self._sleeps = not until_full
        self._changed.wait(seconds)
        self._sleeps = False

    def _oldest_key(self) -> Hashable:
        heads = [
            (queue[0].arrived_s, number, key) for number, (key, queue) in enumerate(self._queues.items())
        ]
        return min(heads)[2]

    def _take(self, key: Hashable) -> list[Ticket]:
        queue, now = self._queues[key], self._clock()
        count = self.policy.worthwhile(min(self.most, len(queue)))
        tickets = [queue.popleft() for _ in range(count)]
        self._forget_if_empty(key)
        self._waiting -= len(tickets)
        for ticket in tickets:
            ticket.state, ticket.waited_s = "running", now - ticket.arrived_s
        self._running, self._began_s = tickets, now
        self._wanted = self.most
        return tickets

    def _drop_expired(self) -> list[Ticket]:
        """Those whose time is over; each queue is in order of arrival, and times allowed hardly differ."""
        now, late = self._clock(), []
        for key in list(self._queues):
            queue = self._queues[key]
            while queue and queue[0].expires_s <= now:
                ticket = queue.popleft()
                ticket.state, ticket.answered_s = "answered", now
                ticket.error = Expired("it waited too long")
                late.append(ticket)
            self._forget_if_empty(key)
        self._waiting -= len(late)
        return late

    def _forget_if_empty(self, key: Hashable) -> None:
        """A shape that nobody asks for any more leaves nothing behind."""
        if not self._queues[key]:
            del self._queues[key]

    # Results

    def _answer(self, tickets: list[Ticket]) -> None:
        """Run a batch; one that fails is halved until those that cannot be computed are alone."""
        parts = [tickets] if tickets else []
        while parts:
            part = [ticket for ticket in parts.pop() if ticket.state == "running"]
            if not part:
                continue
            began = self._clock()
            outcome = self._tried(part)
            if isinstance(outcome, BaseException) and len(part) > 1:
                self._note_failure(part, outcome)
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            self._finish(part, outcome, self._clock() - began)
        with self._changed:
            self._running, self._began_s = [], None
            self._seen = len(tickets) + self._waiting

    def _tried(self, part: list[Ticket]) -> Sequence[Any] | BaseException:
        """Results, or the error without the frames that would keep its tensors."""
        try:
            results = self._run([ticket.value for ticket in part])
            if len(results) != len(part):
                raise TypeError(f"{len(part)} inputs gave {len(results)} results")
            return results
        except BaseException as error:  # noqa: BLE001 - the server goes on, whatever a model does
            return _bare(error)

    def _note_failure(self, part: list[Ticket], error: BaseException) -> None:
        self.splits += 1
        if self._too_large(error):
            self.most = max(1, min(self.most, len(part) // 2))
            self._went_well = 0

    def _finish(self, part: list[Ticket], outcome: Sequence[Any] | BaseException, took_s: float) -> None:
        for number, ticket in enumerate(part):
            ticket.batch, ticket.value = len(part), None
            if isinstance(outcome, BaseException):
                ticket.error = outcome
            else:
                ticket.result = outcome[number]
        now = self._clock()
        with self._changed:
            told = [ticket for ticket in part if ticket.state == "running"]
            for ticket in told:
                ticket.state, ticket.answered_s = "answered", now
            self.pace.answered(len(part), took_s, self.policy.predicted_s(len(part)))
            self._grow_back(len(part))
        self._deliver(told)

    def _grow_back(self, size: int) -> None:
        if size < self.most or self.most >= self.policy.most:
            return
        self._went_well += 1
        if self._went_well >= _WELL:
            self._went_well, self.most = 0, min(self.policy.most, 2 * self.most)


def _bare(error: BaseException) -> BaseException:
    for one in _line_of(error):
        one.__traceback__ = None
    return error


def _line_of(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
