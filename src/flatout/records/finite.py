"""Updates whose gradients are not finite: what to do about them, how many there were, and why they came."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

Policy = Literal["skip", "stop", "rollback"]
POLICIES: tuple[Policy, ...] = ("skip", "stop", "rollback")
# A GradScaler that begins at 65536 needs 16 halvings to come down to 1: fewer in a row may be its search.
PATIENCE = 20
NOT_FINITE_FILE = "not-finite.json"

_NAMES_IN_WORDS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Updates:
    """How a training's updates went so far, on all ranks alike."""

    made: int = 0
    skipped: int = 0
    # Skipped without one between them: the last ones now, and the longest such row ever.
    in_a_row: int = 0
    most_in_a_row: int = 0
    rollbacks: int = 0
    # Updates that could not be skipped, although something was not finite.
    let_through: int = 0
    # Made inside of a backward pass, a compiled function or a graph, where nobody can look at them.
    not_looked_at: int = 0
    loss_scale: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no loss was scaled")

    def words(self) -> str:
        """In a sentence."""
        text = f"{self.made:,} updates were made"
        if self.skipped:
            total = self.made + self.skipped
            text = f"{self.skipped:,} of {total:,} updates were skipped: their gradients were not finite"
        if self.most_in_a_row > 1:
            text += f" (at most {self.most_in_a_row} in a row)"
        if self.rollbacks:
            text += f"; went back to a good state {self.rollbacks} time{'s' if self.rollbacks > 1 else ''}"
        if self.let_through:
            text += f"; {self.let_through:,} could not be skipped"
        if self.not_looked_at:
            where = "in backward passes, in graphs or by hand"
            text += f"; {self.not_looked_at:,} more, {where}, cannot be looked at"
        if self.loss_scale is not None:
            text += f"; loss scale {self.loss_scale:g}"
        return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Why updates were not finite, as far as the first of them in a row shows."""

    # The first update of the row, counted from 1, and how many there are in it; none where values are bad
    # and gradients are not.
    update: int
    in_a_row: int
    optimizer: str
    # Whose gradients were not finite then, in the model's order, and how many have gradients at all.
    parameters: tuple[str, ...]
    not_finite: int
    with_gradients: int
    # The last parameter with such a gradient, where those behind it in the model are finite.
    arose_at: str = ""
    # Whose values are not finite by now: then no batch can help.
    values_not_finite: tuple[str, ...] = ()
    loss_is_finite: bool | None = None
    last_finite_loss: float | None = None
    # Of the last updates, the newest last; empty without loss scaling.
    loss_scales: tuple[float, ...] = ()
    # The place in the data, where it is known.
    batch: str = ""
    rank: int = 0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not seen")

    def headline(self) -> str:
        """What happened, in a sentence."""
        if not self.in_a_row:
            text = f"values are not finite after update {self.update}, although its gradients were"
        elif self.in_a_row == 1:
            text = f"update {self.update} has gradients that are not finite"
        else:
            last = self.update + self.in_a_row - 1
            row = f"{self.in_a_row} updates in a row ({self.update} to {last})"
            text = f"{row} have gradients that are not finite"
        return f"{text} ({self.batch})" if self.batch else text

    def lines(self) -> tuple[str, ...]:
        """What is known of it, a line each."""
        found = [self._gradients()]
        if self.arose_at:
            found.append(
                f"it arose at {self.arose_at} or before: gradients behind it in the model are finite"
            )
        if self.values_not_finite:
            found.append(f"values that are not finite themselves: {_some(self.values_not_finite)}")
        if self.loss_is_finite is not None:
            word = "finite" if self.loss_is_finite else "not finite"
            last = (
                ""
                if self.last_finite_loss is None
                else f"; the last finite one was {self.last_finite_loss:g}"
            )
            found.append(f"the loss of update {self.update} was {word}{last}")
        if self.loss_scales:
            found.append(f"loss scale: {', '.join(f'{scale:g}' for scale in self.loss_scales[-8:])}")
        return tuple(found)

    def remedy(self) -> str:
        """What to do next."""
        if self.values_not_finite:
            return "go on from an older checkpoint; a smaller learning rate, warm-up or clipping before it"
        if self.loss_is_finite is False:
            return "look at this batch; `flatout run --debug anomaly` names the operation"
        if self.loss_scales:
            return "bf16 instead of fp16, or look for what overflows: `flatout run --debug anomaly`"
        return "`flatout run --debug anomaly` names the operation; a smaller learning rate, or clipping"

    def _gradients(self) -> str:
        if not self.in_a_row:
            return "no gradient tells of it: a saturated function passes none on"
        if not self.not_finite:
            return "gradients of this rank are finite, and another rank's are not"
        if self.not_finite == self.with_gradients:
            return f"all of {self.with_gradients} gradients are not finite"
        return (
            f"{self.not_finite} of {self.with_gradients} gradients are not finite: {_some(self.parameters)}"
        )


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMES_IN_WORDS
    return ", ".join(names[:_NAMES_IN_WORDS]) + (f" and {more} more" if more > 0 else "")
