"""Where a loop stands in the data of a loader that Accelerate has prepared, and going on from there."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from flatout.runtime.checkpoint.position import Numbers
from flatout.runtime.checkpoint.random_states import put_back, random_states


class Place:
    """Passes that are over, and batches of this one that the loop has had.

    What a pass draws its order from is kept as it was when the pass began: Accelerate's own
    `skip_first_batches` then leaves out what the loop has had. Accelerate fetches a batch ahead, so a data
    set that draws random numbers in the process that trains draws others for the first two batches then.
    """

    def __init__(self, torch: Any, accelerator: Any) -> None:
        self._torch = torch
        self._accelerator = accelerator
        self.passes = 0
        self._batches = 0
        self._at_start: dict[str, Any] | None = None
        self._to_resume: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """Between two batches."""
        return {"passes": self.passes, "batches": self._batches, "at_start": self._at_start}

    def resume(self, state: dict[str, Any]) -> None:
        """The next pass begins in the middle. To be called when random numbers stand where they stood."""
        self.passes = state["passes"]
        self._to_resume = {**state, "now": random_states(self._torch)} if state["batches"] else None

    def leave_off(self) -> None:
        """The loop has ended a pass early."""
        self.passes += 1
        self._batches, self._at_start = 0, None

    def batches(self, loader: Any) -> Iterator[Any]:
        """Of one pass."""
        resumed, self._to_resume = self._to_resume, None
        numbers = Numbers(self._torch, _drawn_from(loader))
        if hasattr(loader, "iteration"):
            loader.iteration = self.passes  # samplers are told by it which pass it is
        source, now = loader, None
        if resumed is None:
            self._batches, self._at_start = 0, numbers.now()
        else:
            self._batches, self._at_start, now = resumed["batches"], resumed["at_start"], resumed["now"]
            numbers.put_back(resumed["at_start"])
            if hasattr(
                loader, "set_epoch"
            ):  # of several ranks, Accelerate's skipping does not reach samplers
                loader.set_epoch(self.passes)
            source = self._accelerator.skip_first_batches(loader, self._batches)
        for batch in source:
            if now is not None:
                put_back(self._torch, now)
                now = None
            self._batches += 1
            yield batch
        if now is not None:  # nothing was left of it
            put_back(self._torch, now)
        self.leave_off()


def _drawn_from(loader: Any) -> Any:
    """The generators of a loader, also of one whose sampler is hidden in a shard of it."""
    shared = getattr(loader, "synchronized_generator", None)
    hidden = SimpleNamespace(generator=shared) if shared is not None else getattr(loader, "sampler", None)
    return SimpleNamespace(generator=getattr(loader, "generator", None), sampler=hidden)
