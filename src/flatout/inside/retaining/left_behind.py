"""Which tensors steps have left behind, by what lived some steps ago and what lives now.

Those that were made between two marks and live still, steps after the second: what a step only passes on is
gone by then. One that takes the place of a smaller one, again and again. And one whose graph reaches back to
steps before, whatever it is itself.
"""

import dataclasses
import time
from typing import Any

from flatout.inside.retaining.graphs import reaches_back
from flatout.inside.retaining.living import Mark, is_on, living_tensors, size_of, still_alive

# Of what grows: what a single tensor must have gained.
_MATTERS = 0.25
_LARGEST = 3
_GRAPHS, _GRAPHS_S = 64, 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Left:
    """What was left, by address; and in how many steps the first of these were made."""

    kept: dict[int, Any]
    steps: int
    # Tensors that took the place of smaller ones.
    grown: dict[int, Any]
    # What these gained in a step, in bytes.
    gained: dict[int, float]
    # Tensors with graphs of earlier steps.
    chained: dict[int, Any]


def left_behind(torch: Any, device: str, begin: Mark, end: Mark, step: int, growth: float) -> Left:
    """After `step`, some steps after two marks; `growth` in bytes a step is what there is to explain."""
    alive = [one for one in living_tensors(torch) if is_on(one, device)]
    sizes = {id(one): size_of(one)[1] for one in alive}
    gained = _gained(alive, sizes, end, step, growth)
    return Left(
        kept={id(one): one for one in still_alive(end.new)},
        steps=max(1, end.step - begin.step),
        grown={id(one): one for one in alive if id(one) in gained},
        gained=gained,
        chained=_chained(alive, begin.sequence, end.sequence),
    )


def _gained(
    alive: list[Any], sizes: dict[int, int], mark: Mark, step: int, growth: float
) -> dict[int, float]:
    """What died since made room for what came; its address may have been taken over."""
    gone = [size for address, size in mark.sizes.items() if sizes.get(address) != size]
    new = [one for one in alive if mark.sizes.get(id(one)) != sizes[id(one)]]
    found = {}
    for one in sorted(new, key=lambda one: sizes[id(one)])[-_LARGEST:]:
        size = sizes[id(one)]
        gained = (size - max((other for other in gone if other < size), default=0)) / max(1, step - mark.step)
        were_as_large = sum(other >= size for other in mark.sizes.values())
        are_as_large = sum(other >= size for other in sizes.values())
        if growth > 0 and gained >= _MATTERS * growth and are_as_large > were_as_large:
            found[id(one)] = gained
    return found


def _chained(alive: list[Any], begin: int, end: int) -> dict[int, Any]:
    deadline = time.monotonic() + _GRAPHS_S
    computed = [one for one in alive if not one.is_leaf][-_GRAPHS:]
    return {id(one): one for one in computed if reaches_back(one, begin, end, deadline)}
