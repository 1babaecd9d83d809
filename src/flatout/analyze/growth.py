"""What every step leaves behind, from the looks at memory that a trial's steps carry."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flatout.analyze.slope import Slope, slope_of
from flatout.records.memory_growth import MemoryHolder


def growth_of(steps: Sequence[dict[str, Any]], *, on_gpu: bool) -> Slope | None:
    """The slope of what was allocated on the device, else of what the process held; None after few looks."""
    name = "allocated_bytes" if on_gpu else "host_bytes"
    looks = [(number, step[name]) for number, step in enumerate(steps) if step.get(name) is not None]
    return slope_of(looks)


def growth(steps: Sequence[dict[str, Any]], *, on_gpu: bool) -> float | None:
    """Bytes that every step leaves behind: 0 where it does not do so steadily, None after too few looks."""
    slope = growth_of(steps, on_gpu=on_gpu)
    return slope.steady if slope is not None else None


def holders_in(about: Mapping[str, Any]) -> tuple[MemoryHolder, ...]:
    """Who held what had grown, as the session noted it."""
    try:
        return msgspec.convert(about.get("holders") or (), tuple[MemoryHolder, ...])
    except msgspec.ValidationError:  # of another version
        return ()
