"""How updates went: noted on the device, read by the host one update later, when nobody waits for it.

The answer of each update travels to the host behind it. It is read right before the next update, always: by
then the passes in between are queued, so that the device has work while the host looks, and all ranks look at
the same moment and decide alike.
"""

import collections
import dataclasses
import math
from typing import Any

from flatout.records.finite import Updates
from flatout.runtime.finite.gradients import Look, brought

_REMEMBERED = 32


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One update, as the host knows it."""

    update: int
    was_skipped: bool
    loss: float | None
    loss_scale: float | None
    # Of one that was skipped: parameters with gradients, and those among them that were not finite.
    owners: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()
    # What it would be called in the data.
    batch: str = ""
    let_through: bool = False

    @property
    def loss_is_finite(self) -> bool | None:
        """None where no loss was seen."""
        return None if self.loss is None else math.isfinite(self.loss)


class Answer:
    """Numbers on their way to the host: the flag, the loss and its scale where there are any, the marks."""

    def __init__(self, torch: Any, flag: Any, loss: Any, scale: Any, found: Look | None) -> None:
        given = [flag, *(one for one in (loss, scale) if one is not None)]
        self._has = (loss is not None, scale is not None)
        self._owners = found.owners if found is not None else ()
        marks = [brought(found.marks, flag.device)] if found is not None else []
        packed = torch.cat([*(_as_one(torch, one, flag.device) for one in given), *marks])
        self._event: Any = None
        if packed.device.type == "cuda":
            here = {"device": "cpu", "pin_memory": True}
            self._numbers = torch.empty(packed.shape, dtype=torch.float32, **here)
            self._numbers.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(packed.device))
        else:
            self._numbers = packed

    def read(self, update: int, batch: str, *, let_through: bool) -> Outcome:
        """Waits for the moment at which the update was looked at, no longer."""
        if self._event is not None:
            self._event.synchronize()
        flag, *rest = self._numbers.tolist()
        loss = rest.pop(0) if self._has[0] else None
        scale = rest.pop(0) if self._has[1] else None
        if not flag:
            return Outcome(update, False, loss, scale, batch=batch)
        bad = tuple(owner for owner, mark in zip(self._owners, rest, strict=True) if mark != 0)
        return Outcome(update, True, loss, scale, self._owners, bad, batch, let_through)


def _as_one(torch: Any, number: Any, device: Any) -> Any:
    return brought(number.detach().reshape(1), device).to(torch.float32)


class Ledger:
    """Counts the updates of one optimizer."""

    def __init__(self) -> None:
        self.updates = 0
        # When it made its last update, by the count of all optimizers'; and how many parameters it had.
        self.last_at = self.parameters = 0
        self.made = self.skipped = self.in_a_row = self.most_in_a_row = self.rollbacks = self.let_through = 0
        self.last_finite_loss: float | None = None
        self.loss_scales: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        # The first of those in a row.
        self.first: Outcome | None = None
        self._under_way: tuple[Answer, str, bool] | None = None

    def note(self, answer: Answer, *, batch: str = "", let_through: bool = False) -> None:
        """An update is under way, and its answer too."""
        self.updates += 1
        self._under_way = (answer, batch, let_through)

    def settle(self) -> Outcome | None:
        """Read the answer that is due; None where none is."""
        if self._under_way is None:
            return None
        answer, batch, let_through = self._under_way
        self._under_way = None
        outcome = answer.read(self.updates, batch, let_through=let_through)
        self._count(outcome)
        return outcome

    def begin_anew(self) -> None:
        """A good state was loaded."""
        self.in_a_row, self.first = 0, None
        self.rollbacks += 1

    def counts(self) -> Updates:
        """So far, as far as it has been read."""
        return Updates(
            made=self.made,
            skipped=self.skipped,
            in_a_row=self.in_a_row,
            most_in_a_row=self.most_in_a_row,
            rollbacks=self.rollbacks,
            let_through=self.let_through,
            loss_scale=self.loss_scales[-1] if self.loss_scales else None,
        )

    def _count(self, outcome: Outcome) -> None:
        if outcome.loss_scale is not None:
            self.loss_scales.append(outcome.loss_scale)
        if outcome.loss is not None and math.isfinite(outcome.loss):
            self.last_finite_loss = outcome.loss
        if not outcome.was_skipped:
            self.made += 1
            self.in_a_row, self.first = 0, None
            return
        if outcome.let_through:
            self.let_through += 1
        else:
            self.skipped += 1
        self.in_a_row += 1
        self.most_in_a_row = max(self.most_in_a_row, self.in_a_row)
        if self.in_a_row == 1:
            self.first = outcome
