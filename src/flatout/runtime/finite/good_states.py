"""What a training was like when all of it was finite, to go back to where there is no checkpoint.

The newest two snapshots wait in the host's memory, since the newest may be of a training that was lost
already and did not show it; one alone where there is no room for two. They are taken every so many updates,
fewer the longer they take, and where an optimizer has come that the newest one lacks. All ranks take them,
and go back, at the same update: what they decide by, they count or agree on.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from flatout.levers.offloading import host_has_room
from flatout.records.words import memory_size
from flatout.runtime.finite.agreement import agree
from flatout.runtime.finite.first_seen import FirstSeen
from flatout.runtime.finite.gradients import are_finite
from flatout.runtime.finite.ledger import Ledger
from flatout.runtime.finite.snapshot import Snapshot, Training, bytes_of

_FEWEST_UPDATES = 50
# By then states exist.
_FIRST = 2
# Of the time, what snapshots may take.
_SHARE = 0.01
_KEPT = 2
# Who has made none of so many updates has ended, or rests.
_SILENT = 64
# Snapshots before their time, for optimizers that came: there may be one for every task, without end.
_MOST_EARLY = 16
T = TypeVar("T")
Seen = Literal["sound", "repaired", "lost"]


class GoodStates:
    """Snapshots of a training, the newest last."""

    def __init__(self, torch: Any, *, fewest_updates: int = _FEWEST_UPDATES) -> None:
        self._torch = torch
        self._fewest = fewest_updates
        self._kept: list[Snapshot] = []
        self._spare: Snapshot | None = None
        self._most = _KEPT
        self._next = _FIRST
        self._early = 0
        self._leader: Ledger | None = None
        # When the last one was taken, and after how many updates.
        self._ended: tuple[float, int] | None = None
        self._sizes: tuple[int, ...] = ()
        self._first_seen = FirstSeen(torch)
        # Why there are none, where there can be none.
        self.problem = ""

    def reaches(self, ledger: Ledger) -> bool:
        """Whether there is a snapshot that knows the optimizer of this ledger."""
        return any(ledger in one.updates for one in self._kept)

    def is_due(self, made: int, ledger: Ledger, ledgers: Sequence[Ledger]) -> bool:
        """Whether to take one, after `made` updates of all; the newest was this ledger's, and went well.

        One optimizer leads, so that it is always the same moment of a round; another, when it falls silent.
        """
        if self.problem:
            return False
        if self._leader is None or made - self._leader.last_at > _SILENT:
            self._leader = ledger
        if ledger is not self._leader or ledger.made < _FIRST:
            return False
        is_new = self._early < _MOST_EARLY and _sizes(ledgers) != self._sizes
        if made < self._next and not (is_new and self._kept):
            return False
        return not any(one.in_a_row and made - one.last_at <= _SILENT for one in ledgers)

    def keep(self, made: int, ledgers: Sequence[Ledger], training: Training) -> Seen:
        """Take one, unless something is not finite. All ranks must ask.

        Buffers that alone are spoiled are put back at once.
        """
        began = time.monotonic()
        if made < self._next:
            self._early += 1
        self._sizes = _sizes(ledgers)
        look, problem = _tried(lambda: self._look(training))
        is_lost, are_buffers_lost, lacks_two, lacks_one, has_failed = self._agreed(
            [*(look or _Look()).flags, float(bool(problem))], training
        )
        self._next = made + self._fewest
        if has_failed or look is None:
            self._give_up(problem)
        elif is_lost:
            return "lost"
        elif are_buffers_lost:
            return self._repair(training)
        elif lacks_one:
            needed = memory_size(look.needed_bytes)
            self._give_up(f"the host has no room for a copy of the training ({needed})")
        else:
            self._most = 1 if lacks_two else self._most
            self._take(training, look.changing, began, made)
        return "sound"

    def go_back(self, made: int, ledger: Ledger, training: Training) -> int | None:
        """As it was in the newest snapshot that knows the optimizer in trouble.

        After which of its updates that was; None where it did not work. Asked again before there is another
        snapshot, it goes back further.
        """
        while self._kept and ledger not in self._kept[-1].updates:
            self._spare = self._kept.pop()
        if not self._kept:
            return None
        snapshot = self._kept[-1]
        if len(self._kept) > 1:
            self._spare = self._kept.pop()
        self._next = made + self._fewest
        _, problem = _tried(snapshot.put_back)
        [has_failed] = self._agreed([float(bool(problem))], training)
        return None if has_failed else snapshot.updates[ledger]

    def _look(self, training: Training) -> "_Look":
        torch = self._torch
        changing = self._first_seen.changing(training)
        values, states = [*training.held(), *changing], training.states(torch)
        needed = bytes_of([*values, *states.values(), *training.buffers().values()])
        first_seen = self._first_seen
        meant = [*first_seen.meant_to_be_finite(values), *first_seen.states_meant_to_be_finite(states)]
        oldest = self._kept[0] if self._kept else None
        spare = oldest if len(self._kept) >= self._most else self._spare
        return _Look(
            changing=changing,
            needed_bytes=needed,
            is_lost=bool(are_finite(torch, meant)),
            are_buffers_lost=bool(first_seen.spoiled(training.buffers())),
            lacks_two=_lacks_room(needed, spare),
            lacks_one=_lacks_room(needed, oldest or spare),
        )

    def _take(self, training: Training, changing: Sequence[Any], began: float, made: int) -> None:
        spare, self._spare = self._spare, None
        while len(self._kept) >= self._most:
            spare = self._kept.pop(0)
        taken, problem = _tried(lambda: Snapshot(self._torch, training, changing, spare))
        has_failed, wanted = self._agreed([float(bool(problem)), self._until_next(began, made)], training)
        if has_failed or taken is None:
            self._give_up(problem)
            return
        self._kept.append(taken)
        self._next = made + int(wanted)

    def _repair(self, training: Training) -> Seen:
        """A batch norm's statistics after a bad batch, while all else is well."""
        self._first_seen.count_repair()
        _, problem = _tried(self._kept[-1].put_back_buffers) if self._kept else (None, "there is no copy yet")
        [has_failed] = self._agreed([float(bool(problem))], training)
        if has_failed:
            self._give_up(problem)
        return "sound" if has_failed else "repaired"

    def _give_up(self, problem: str) -> None:
        self.problem = problem or "it did not work on another rank"
        self._kept, self._spare = [], None

    def _agreed(self, flags: list[float], training: Training) -> list[float]:
        held = training.held()
        device = held[0].device if held else "cpu"
        told = self._torch.tensor(flags, dtype=self._torch.float32, device=device)
        found: list[float] = agree(self._torch, told).tolist()
        return found

    def _until_next(self, began: float, made: int) -> float:
        """Updates until the next one: as many as make this one cost little."""
        ended = time.monotonic()
        wanted = float(self._fewest)
        if self._ended is not None and made > self._ended[1]:
            each = max(1e-6, (began - self._ended[0]) / (made - self._ended[1]))
            wanted = max(wanted, (ended - began) / (_SHARE * each))
        self._ended = ended, made
        return min(wanted, 1e6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Look:
    """What this rank found before a snapshot."""

    is_lost: bool = False
    # Buffers alone are spoiled.
    are_buffers_lost: bool = False
    # No room for one more; and not even in the place of what is kept.
    lacks_two: bool = False
    lacks_one: bool = False
    needed_bytes: int = 0
    # Parameters that no optimizer has, and that change.
    changing: Sequence[Any] = ()

    @property
    def flags(self) -> list[float]:
        """For the other ranks."""
        return [float(one) for one in (self.is_lost, self.are_buffers_lost, self.lacks_two, self.lacks_one)]


def _sizes(ledgers: Sequence[Ledger]) -> tuple[int, ...]:
    return tuple(ledger.parameters for ledger in ledgers)


def _lacks_room(needed: int, spare: Snapshot | None) -> bool:
    """Whether this host has too little for it, on all of its ranks, beside what is used again."""
    there = (
        sum(one.numel() * one.element_size() for one in spare.tensors.values()) if spare is not None else 0
    )
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return needed > there and not host_has_room((needed - there) * ranks)


def _tried(work: Callable[[], T]) -> tuple[T | None, str]:
    """What came of it, or what is wrong: a tensor that nobody foresaw is no reason for a job to end."""
    try:
        return work(), ""
    except Exception as error:  # noqa: BLE001 - told, and agreed on with all ranks
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
