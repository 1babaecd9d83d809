"""One accepted item and what came of it; and why another is not accepted."""

import dataclasses
from collections.abc import Hashable
from typing import Any, Literal

State = Literal["waiting", "running", "answered", "left"]


class Full(Exception):
    """No more may wait; `retry_after_s` is when there should be room, by the present rate."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"no more may wait; try again in {retry_after_s:.3g} s")
        self.retry_after_s = retry_after_s


class Closing(Exception):
    """Nothing is accepted any more."""


class Expired(Exception):
    """It waited longer than it was allowed to."""


@dataclasses.dataclass(eq=False, slots=True)
class Ticket:
    """One accepted item and what came of it."""

    value: Any
    # Only items with the same key share a batch.
    key: Hashable
    arrived_s: float
    expires_s: float
    # Whoever waits for it may keep something here.
    owner: Any = None
    state: State = "waiting"
    result: Any = None
    error: BaseException | None = None
    # With how many it was computed, how long it had waited, and when it was answered.
    batch: int = 0
    waited_s: float = 0.0
    answered_s: float = 0.0
