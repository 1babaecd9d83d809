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
from flatout.runtime.finite.gradients import Look

_REMEMBERED = 32


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One update, as the host knows it."""

    update: int
    was_skipped: bool
    loss: float | None
    loss_scale: float | None
    found: Look | None
    # What it would be called in the data.
    batch: str = ""
    let_through: bool = False

    @property
    def loss_is_finite(self) -> bool | None:
        """None where no loss was seen."""
        return None if self.loss is None else math.isfinite(self.loss)


class Answer:
    """Numbers on their way to the host: the flag, and the loss and its scale where there are any."""

    def __init__(self, torch: Any, flag: Any, loss: Any, scale: Any) -> None:
        given = [flag, *(one.detach() for one in (loss, scale) if one is not None)]
        self._has = (loss is not None, scale is not None)
        packed = torch.stack(
            [one.reshape(()).to(flag.device, torch.float32, non_blocking=True) for one in given]
        )
        self._event: Any = None
        if packed.device.type == "cuda":
            self._numbers = torch.empty(packed.shape, dtype=torch.float32, pin_memory=True)
            self._numbers.copy_(packed, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(packed.device))
        else:
            self._numbers = packed

    def read(self) -> tuple[bool, float | None, float | None]:
        """Whether something was not finite, the loss, and its scale; waits for that moment, no longer."""
        if self._event is not None:
            self._event.synchronize()
        flag, *rest = self._numbers.tolist()
        loss = rest.pop(0) if self._has[0] else None
        return bool(flag), loss, rest.pop(0) if self._has[1] else None


class Ledger:
    """Counts the updates of one optimizer."""

    def __init__(self) -> None:
        self.updates = 0
        self.made = self.skipped = self.in_a_row = self.most_in_a_row = self.rollbacks = self.let_through = 0
        self.last_finite_loss: float | None = None
        self.loss_scales: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        # The first of those in a row.
        self.first: Outcome | None = None
        self._under_way: tuple[int, Answer, Look | None, str, bool] | None = None

    def note(self, answer: Answer, found: Look | None, *, batch: str = "", let_through: bool = False) -> None:
        """An update is under way, and its answer too."""
        self.updates += 1
        self._under_way = (self.updates, answer, found, batch, let_through)

    def settle(self) -> Outcome | None:
        """Read the answer that is due; None where none is."""
        if self._under_way is None:
            return None
        update, answer, found, batch, let_through = self._under_way
        self._under_way = None
        is_bad, loss, scale = answer.read()
        outcome = Outcome(update, is_bad, loss, scale, found if is_bad else None, batch, let_through)
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
