"""Something that is done again and again in a thread of its own, until it is told to end."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_CLOSING_S = 5.0


class Repeated:
    """Runs `work` every so often. What it raises goes to `failed`, and it is done again."""

    def __init__(
        self, name: str, work: Callable[[], object], every_s: float, failed: Callable[[Exception], None]
    ) -> None:
        self._work = work
        self._every_s = every_s
        self._failed = failed
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_CLOSING_S)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - told to whoever counts them
                self._failed(error)
