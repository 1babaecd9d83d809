"""Calls that may block, such as into a wedged driver, run in a thread that we can stop waiting for."""

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class DeadlinePassed(Exception):
    """The call has not come back in time; it may still be blocked."""


class Pending(Generic[T]):
    """The answer of a call that runs in a worker's thread."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def run(self, call: Callable[[], T]) -> None:
        """Make the call and keep what it returned or raised, for the waiting thread."""
        try:
            self._value = call()
        except BaseException as error:  # noqa: BLE001 - re-raised where the answer is asked for
            self._error = error
        self._done.set()

    def result(self, timeout_s: float) -> T:
        """The answer, or DeadlinePassed."""
        if not self._done.wait(max(0.0, timeout_s)):
            raise DeadlinePassed("no answer before the deadline")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    @property
    def done(self) -> bool:
        """True once the call has come back."""
        return self._done.is_set()


class Worker:
    """One daemon thread for one device. While a call is stuck, further calls fail at once.

    Daemon, because a thread that hangs in the driver must not keep the interpreter from exiting.
    Threads do not survive a fork: the child starts its own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pid = 0
        self._stuck: tuple[Pending[Any], float] | None = None

    def submit(self, call: Callable[[], T]) -> Pending[T]:
        """Hand a call to the thread. Raises DeadlinePassed when an earlier one never came back."""
        self._ensure_thread()
        if self._stuck is not None:
            blocked, since = self._stuck
            if not blocked.done:
                raise DeadlinePassed(f"an earlier call has been blocked for {time.monotonic() - since:.0f} s")
            self._stuck = None
        pending: Pending[T] = Pending()
        self._calls.put(lambda: pending.run(call))
        return pending

    def wait(self, pending: Pending[T], timeout_s: float) -> T:
        """The answer to `pending`; when it is late, remember that this thread is stuck."""
        try:
            return pending.result(timeout_s)
        except DeadlinePassed:
            if not pending.done:
                self._stuck = (pending, time.monotonic() - timeout_s)
            raise

    def call(self, call: Callable[[], T], timeout_s: float) -> T:
        """Submit and wait."""
        return self.wait(self.submit(call), timeout_s)

    def _ensure_thread(self) -> None:
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._calls = queue.SimpleQueue()
        self._stuck = None
        threading.Thread(target=self._serve, args=(self._calls,), name=self._name, daemon=True).start()

    @staticmethod
    def _serve(calls: "queue.SimpleQueue[Callable[[], None]]") -> None:
        while True:
            calls.get()()
