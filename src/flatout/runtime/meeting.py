"""Ranks that have met: words that they leave for each other, told apart from those of an earlier life.

A job whose ranks are started again may find the store of the life before, with all that was said there: who
reads too early takes an old word for a new one. So each rank first shows a word that nobody has used before,
the first rank answers it with the name of this life, and all that is said afterwards bears that name.
"""

import secrets
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

_ROOM = "flatout/meeting"
_POLL_S = 0.005
_WITHIN_S = 1800.0


class Meeting:
    """One rank's part in it: `look` never waits, `meet` does."""

    def __init__(self, store: Any, rank: int, count: int) -> None:
        self._store = store
        self._rank = rank
        self._mine = secrets.token_hex(8)
        # The name of this life: the first rank gives it.
        self._life = self._mine if rank == 0 else ""
        self._missing = set(range(1, count)) if rank == 0 else set()
        self._answered: dict[int, str] = {}
        self._is_over = False
        if rank:
            store.set(f"{_ROOM}/here/{rank}", self._mine)

    def look(self) -> str:
        """The name of this life once every rank knows it; empty before."""
        if not self._is_over:
            self._is_over = self._ask_all() if self._rank == 0 else self._ask_the_first()
        return self._life if self._is_over else ""

    def meet(self) -> str:
        """The same, when all are here."""
        deadline = time.monotonic() + _WITHIN_S
        while not self.look():
            if time.monotonic() > deadline:
                who = f"ranks {sorted(self._missing)} were" if self._missing else "the first rank was"
                raise TimeoutError(f"{who} not met within {_WITHIN_S:.0f} s")
            time.sleep(_POLL_S)
        return self._life

    def _ask_all(self) -> bool:
        """Answer who has come, until they say that they have heard it: an old word hears nothing."""
        for rank in sorted(self._missing):
            shown = self._said(f"{_ROOM}/here/{rank}")
            if shown and self._answered.get(rank) != shown:
                self._store.set(f"{_ROOM}/answer/{shown}", self._life)
                self._answered[rank] = shown
            if self._said(f"{_ROOM}/{self._life}/knows/{rank}"):
                self._missing.discard(rank)
        if not self._missing:
            self._store.set(f"{_ROOM}/{self._life}/all", "here")
        return not self._missing

    def _ask_the_first(self) -> bool:
        if not self._life:
            self._life = self._said(f"{_ROOM}/answer/{self._mine}")
            if not self._life:
                return False
            self._store.set(f"{_ROOM}/{self._life}/knows/{self._rank}", "it")
        return bool(self._said(f"{_ROOM}/{self._life}/all"))

    def _said(self, key: str) -> str:
        return str(self._store.get(key).decode()) if self._store.check([key]) else ""


class _Known:
    """The meeting of the process group as it is now."""

    def __init__(self) -> None:
        self._of: Callable[[], Any] = lambda: None
        self._meeting: Meeting | None = None

    def of(self, store: Any) -> Meeting:
        if self._meeting is None or self._of() is not store:
            distributed: Any = sys.modules["torch"].distributed
            self._meeting = Meeting(store, distributed.get_rank(), distributed.get_world_size())
            self._of = weakref.ref(store)
        return self._meeting


_known = _Known()


def store_of_ranks() -> Any:
    """Where ranks leave words for each other; None for a process that is alone."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    if torch.distributed.get_world_size() < 2:
        return None
    get: Callable[[], Any] = torch.distributed.distributed_c10d._get_default_store  # noqa: SLF001
    return get()


def words_of_this_life(*, wait: bool = True) -> Any:
    """The store with the words of this life alone, when all ranks have met; None for a process that is alone.

    Without `wait`, "" as long as they have not: to be asked again.
    """
    store = store_of_ranks()
    if store is None:
        return None
    meeting = _known.of(store)
    life = meeting.meet() if wait else meeting.look()
    return sys.modules["torch"].distributed.PrefixStore(f"flatout/{life}", store) if life else ""
