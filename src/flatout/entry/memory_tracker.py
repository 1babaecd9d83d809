"""`flatout.MemoryTracker`: whether a loop leaks memory, how fast, and who holds it."""

import time
from types import TracebackType
from typing import Any, Self

from flatout.analyze.slope import Slope, slope_of
from flatout.inside.counters import Counter, counter_for
from flatout.inside.gradients_left import GradientWatch
from flatout.inside.looks import Looks, rise
from flatout.inside.retaining.retention import Held, Retention
from flatout.records.memory_growth import MemoryReport

__all__ = ["MemoryTracker"]

# Who lives is noted at this step and at each power of two after it, while memory rises.
_FIRST_MARK = 8


class MemoryTracker:
    """Watches what the steps of a loop leave behind.

        with flatout.MemoryTracker() as tracker:
            for batch in loader:
                ...
                tracker.step()
        print(tracker.report())

    The report is a record (`growth_bytes_per_step` with its interval, `is_leak`, `holders`, `gradients`,
    `fragmented_share`) and can be printed. Steps that only come to their pace, and memory that comes and
    goes, are no leak; `growth_high_bytes_per_step` then says how large one could be at most.

    On a GPU it counts what torch has given out, elsewhere what the C library has: both are exact, and know
    what graphs hold. To count living tensors in each step would cost a thousand times as much and miss those.
    `device` says which; by default it is the current GPU where one is in use at the first step.

    `holders` names what keeps tensors from step to step: a variable, a global, an attribute, with the line
    that adds to it. While memory rises, which tensors live is noted at step 8, 16, 32 and so on: tens of
    milliseconds each. Holders are looked up when the block ends, or at `report()` inside of it, in tenths of
    a second (three seconds at most), and only if memory rose. Every other step costs a reading of one
    counter: microseconds, on the host up to a millisecond where its memory lies scattered; looks that cost
    too much become fewer.

    Nothing that the loop computes is changed, and nothing that goes wrong in here reaches it: the report's
    `notes` say what did.
    """

    def __init__(self, device: Any = None) -> None:
        self._wanted = device
        self._looks = Looks()
        self._steps = 0
        # What went wrong, by what was tried.
        self._notes: dict[str, str] = {}
        self._counter: Counter | None = None
        # Of what is counted, what marks take.
        self._own_bytes = 0
        self._retention: Retention | None = None
        self._gradients: GradientWatch | None = None
        self._held: Held | None = None

    def __enter__(self) -> Self:
        """Begin to watch gradients, too; `step()` alone watches memory."""
        try:
            import torch

            self._gradients = GradientWatch(torch)
            self._gradients.install()
        except Exception as error:  # noqa: BLE001 - watching never breaks a loop
            self._note("gradients", error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Look up who holds what was left, while those who do are still there."""
        if self._gradients is not None:
            self._gradients.remove()
        self._held = self._holders()
        if self._counter is not None:
            self._counter.close()

    def step(self) -> None:
        """A step has ended: look at memory."""
        self._steps = steps = self._steps + 1
        if steps % self._looks.every:
            return
        try:
            if self._counter is None:
                self._begin()
            self._looks.look(steps, self._read)
            if steps >= _FIRST_MARK and not steps & (steps - 1):
                self._now_and_then(steps)
        except Exception as error:  # noqa: BLE001 - watching never breaks a loop
            self._note("step", error)

    def report(self) -> MemoryReport:
        """What was seen until now."""
        began = time.monotonic()
        slope = slope_of(self._looks.points)
        is_leak = self._is_leak(slope)
        held = self._held if self._held is not None else self._holders()
        sizes = [size for _, size in self._looks.points]
        return MemoryReport(
            steps=self._steps,
            device=self._counter.device if self._counter is not None else "cpu",
            counted=self._counter.counted if self._counter is not None else "resident",
            looks=len(sizes),
            is_leak=is_leak,
            growth_bytes_per_step=slope.value if slope else None,
            growth_low_bytes_per_step=slope.low if slope else None,
            growth_high_bytes_per_step=slope.high if slope else None,
            begin_bytes=sizes[0] if sizes else None,
            end_bytes=sizes[-1] if sizes else None,
            holders=held.holders if is_leak else (),
            gradients=self._gradients.found() if self._gradients is not None else None,
            **self._of_the_allocator(),
            notes=(*self._notes.values(), *(held.notes if is_leak else ())),
            took_s=time.monotonic() - began,
            unknown=self._unknown(),
        )

    # Behind the steps

    def _begin(self) -> None:
        """At the first step: by now it is known which device is in use."""
        import torch

        self._counter = counter_for(torch, self._wanted)
        self._retention = Retention(torch, self._counter.kind)

    def _read(self) -> int | None:
        size = self._counter.read() if self._counter is not None else None
        return size - self._own_bytes if size is not None else None

    def _now_and_then(self, steps: int) -> None:
        if self._gradients is not None and self._gradients.is_over:
            self._gradients.remove()
        if self._retention is not None and self._rises():
            self._retention.mark(steps)
            if self._counter is not None and self._counter.kind == "cpu":
                self._own_bytes = self._retention.own_bytes

    def _rises(self) -> bool:
        return self._counter is not None and rise(self._looks.points) > self._counter.least_a_step

    def _is_leak(self, slope: Slope | None) -> bool | None:
        if slope is None or self._counter is None:
            return None
        (first, _), (last, _) = self._looks.points[0], self._looks.points[-1]
        least = max(self._counter.least_a_step, self._counter.least / (last - first))
        return slope.rises and slope.value > least

    def _holders(self) -> Held:
        """Who holds what was left, if anything was."""
        try:
            if self._retention is not None and self._rises():
                return self._retention.held(self._steps, rise(self._looks.points))
        except Exception as error:  # noqa: BLE001 - watching never breaks a loop
            self._note("holders", error)
        return Held()

    def _of_the_allocator(self) -> dict[str, Any]:
        try:
            return self._counter.about() if self._counter is not None else {}
        except Exception as error:  # noqa: BLE001 - a report on less is still one
            self._note("allocator", error)
            return {}

    def _unknown(self) -> dict[str, str]:
        few = f"only {self._steps} steps, too few to tell"
        if self._steps and not self._looks.points:
            few = "nobody here tells how much memory is in use"
        unknown = dict.fromkeys(
            ("is_leak", "growth_bytes_per_step", "growth_low_bytes_per_step", "growth_high_bytes_per_step"),
            few,
        )
        reason = self._gradients.reason if self._gradients is not None else "watched inside of `with` alone"
        return {**unknown, "gradients": reason, "begin_bytes": few, "end_bytes": few}

    def _note(self, what: str, error: Exception) -> None:
        self._notes.setdefault(what, f"{what}: {type(error).__name__}: {error}")
