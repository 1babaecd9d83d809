"""What a lesson is: a measurement for the child process, and words about it for the reader."""

import dataclasses
from collections.abc import Callable
from typing import Any

from flatout.learn.bench import Bench
from flatout.records.learn import LearnDevice, Taught
from flatout.records.limits import RatedPeaks
from flatout.records.rated import RatedGpu


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What words may speak of beside the measurement: the device, what it is rated at, and what was asked."""

    device: LearnDevice
    rated: RatedPeaks | None
    # Rated GPUs to compare with.
    compared: tuple[RatedGpu, ...]
    # The reader's own job, where a lesson reckons what it would take.
    params: float
    gpus: int
    tokens: int

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU was measured."""
        return self.device.vendor != "cpu"

    @property
    def here(self) -> str:
        """The device in a sentence."""
        return "this GPU" if self.on_gpu else "this CPU"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lesson:
    """One lesson. `measure` runs in a child process and returns a `record`, which `teach` gets here."""

    id: str
    title: str
    question: str
    # About how long it takes on a slow machine.
    seconds: int
    record: type
    measure: Callable[[Bench], Any]
    teach: Callable[[Any, Setting], Taught]
    # Needs torch in the measuring process itself; others start jobs that import it.
    on_device: bool = True
