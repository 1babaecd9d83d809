"""Answers before they are asked for: several imagined runs at a time, in the order they are needed in."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from flatout.records.ledger import LedgerFile
from flatout.records.plan import Choice

Levers = tuple[Choice, ...]
# The ledger of the job under some levers; None where they do not apply to it.
Imagine = Callable[[Levers], LedgerFile | None]


class Ahead:
    """Each question that is coming is given to a few workers; whoever asks waits for that answer alone."""

    def __init__(
        self,
        imagine: Imagine,
        coming: Iterable[Levers],
        at_once: int,
        call_off: Callable[[], None] = lambda: None,
    ) -> None:
        self._imagine, self._call_off = imagine, call_off
        self._pool = ThreadPoolExecutor(max_workers=max(1, at_once))
        self._answers: dict[tuple[str, ...], Future[LedgerFile | None]] = {}
        for levers in coming:
            if levers and _key(levers) not in self._answers:
                self._answers[_key(levers)] = self._pool.submit(imagine, levers)

    def __call__(self, levers: Levers) -> LedgerFile | None:
        """The answer, whether it is there, on its way, or nobody thought of the question."""
        known = self._answers.get(_key(levers))
        return known.result() if known is not None else self._imagine(levers)

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What nobody has begun, nobody begins; what is under way is not needed any more."""
        self._call_off()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _key(levers: Levers) -> tuple[str, ...]:
    return tuple(choice.words() for choice in levers)
