"""One pass over the data, as the loop has it: run out, or left by the loop, it is over."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

from flatout.runtime.stopping import current


class Pass:
    """An iterator that knows when its loop has left it: by `break`, by `islice`, by dropping it."""

    def __init__(self, begin: Callable[[object], Iterator[Any]], left: Callable[[object], None]) -> None:
        self._begin = begin
        self._left = left
        # By which others know it, and do not keep it alive: whoever drops it has left it.
        self._token = object()
        self._batches: Iterator[Any] | None = None
        self._is_over = False

    def __iter__(self) -> "Pass":
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            if self._batches is None:
                self._batches = self._begin(self._token)
            return next(self._batches)
        except BaseException:  # the data's end, or its own trouble: the loop has not left it
            self._is_over = True
            raise

    def close(self) -> None:
        """The loop goes no further."""
        # One that nobody has asked for a batch was never begun.
        if self._is_over or self._batches is None:
            return
        self._is_over = True
        self._left(self._token)
        self._batches = None

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()


@dataclasses.dataclass(frozen=True)
class Left:
    """Where a pass stood when its loop left it, and what was the matter then."""

    state: dict[str, Any]
    is_to_stop: bool
    # The exception that was being handled, by its id.
    amid: int

    @property
    def goes_on(self) -> bool:
        """Whether it goes on in another life: training stops there, or an exception has ended the loop."""
        return self.is_to_stop or handled() not in (0, self.amid)


def handled() -> int:
    """Which exception is being handled, by its id, or 0."""
    error = sys.exc_info()[1]
    return 0 if error is None else id(error)


def is_to_stop(torch: Any) -> bool:
    """Whether training was asked to stop, and all ranks know; unlike `stop_requested`, it counts no step."""
    stop, distributed = current(), torch.distributed
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return stop.is_agreed
    return stop.signal is not None
