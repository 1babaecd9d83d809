"""Who holds what steps leave behind: marks while they run, and at the end the names and lines of the holders.

A mark costs tens of milliseconds, the end tenths of a second, and three at most where millions of objects
live. Neither keeps a tensor alive.
"""

import dataclasses
import gc
import sys
import time
from typing import Any

from flatout.inside.retaining.choosing import best_name, fix_for
from flatout.inside.retaining.contents import tensors_in
from flatout.inside.retaining.left_behind import Left, left_behind
from flatout.inside.retaining.living import Mark, size_of, take_mark
from flatout.inside.retaining.making_lines import lines_that_made
from flatout.inside.retaining.search import Named, Search
from flatout.records.memory_growth import MemoryHolder

SECONDS = 3.0
_MARKS = 4
_PAIR = 2
_SAMPLES = 16
_HOLDERS = 5
# Of what grows: what a holder must explain to be named.
_MATTERS = 0.1
# Or of the steps: how many must have left a tensor with it.
_OFTEN = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Held:
    """Who holds it, whoever holds most first; and what there is to say of the search."""

    holders: tuple[MemoryHolder, ...] = ()
    notes: tuple[str, ...] = ()


class Retention:
    """The marks, and what they tell in the end."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        # A kind of device: "cuda", "cpu".
        self._device = device
        self._marks: list[Mark] = []

    def mark(self, step: int) -> None:
        """Note what lives after this step."""
        before = self._marks[-1] if self._marks else None
        self._marks = [*self._marks[1 - _MARKS :], take_mark(self._torch, step, self._device, before)]

    @property
    def own_bytes(self) -> int:
        """What the marks take, of the C library's memory."""
        return sum(sys.getsizeof(part) for mark in self._marks for part in (mark.sizes, mark.alive, mark.new))

    def held(self, step: int, growth_bytes_per_step: float = 0.0) -> Held:
        """What was left behind until now, after so many steps."""
        marks = [mark for mark in self._marks if mark.step < step]
        if len(marks) < _PAIR:
            return Held(notes=("too few steps to tell who holds what was left behind",))
        with self._torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
            deadline = time.monotonic() + SECONDS
            begin, end = marks[-_PAIR:]
            left = left_behind(self._torch, self._device, begin, end, step, growth_bytes_per_step)
            return _holders(self._torch, left, growth_bytes_per_step, deadline)


def _holders(torch: Any, left: Left, growth: float, deadline: float) -> Held:
    samples = {id(one): one for one in _samples(list(left.kept.values()))}
    followed = list((samples | left.grown | left.chained).values())
    ours = (samples, left.kept, left.grown, left.chained)
    search = Search(followed, deadline=deadline, not_looked_at=ours)
    by_value: dict[int, list[Named]] = {}
    for named in (one for names in search.go().values() for one in names):
        by_value.setdefault(id(named.value), []).append(named)
    holders = [
        holder
        for names in by_value.values()
        if (holder := _holder(torch, names, left, growth, deadline)) is not None
    ]
    explained = sum(holder.growth_bytes_per_step for holder in holders if not holder.keeps_graph)
    graphs_first = explained < growth / 2
    holders.sort(key=lambda one: (graphs_first and one.keeps_graph, one.growth_bytes_per_step), reverse=True)
    return Held(holders=tuple(holders[:_HOLDERS]), notes=_notes(search, left, holders))


def _holder(
    torch: Any, names: list[Named], left: Left, growth: float, deadline: float
) -> MemoryHolder | None:
    """What is known of one; None where it holds too little of what was left."""
    value = names[0].value
    inside = tensors_in(value, torch, deadline)
    kept = [one for one in inside if id(one) in left.kept]
    gained = _bytes(kept) / left.steps + left.gained.get(id(value), 0.0)
    chained = id(value) in left.chained
    matters = growth > 0 and gained >= _MATTERS * growth
    often = len(kept) >= max(2.0, _OFTEN * left.steps)
    if not inside or not (matters or often or chained or id(value) in left.grown):
        return None
    name, line = best_name([named.name for named in names])
    keeps_graph = chained or any(not one.is_leaf for one in kept)
    known_as = name.text if value is inside[0] or name.kind == "cache" else f"{name.text}[...]"
    return MemoryHolder(
        name=known_as,
        kind=name.kind,
        scope=name.scope,
        tensors=len(inside),
        held_bytes=_bytes(inside),
        growth_bytes_per_step=gained,
        keeps_graph=keeps_graph,
        where=line.place if line is not None else None,
        adds=line is not None and line.adds,
        made_at=next(iter(lines_that_made(torch, kept[-1:] or inside[:1]).values()), ""),
        fix=fix_for(name.text, keeps_graph=keeps_graph, is_tensor=known_as == name.text),
    )


def _notes(search: Search, left: Left, holders: list[MemoryHolder]) -> tuple[str, ...]:
    notes = []
    if not search.complete:
        notes.append(f"the search for who holds what was left behind was ended after {SECONDS} s")
    if not holders and gc.get_freeze_count():
        notes.append("gc.freeze() hides from a search what was there when it was called")
    if not holders and not left.kept:
        notes.append(
            "no tensor of Python's was left behind: other objects grow, or torch itself keeps memory"
        )
    elif not holders:
        notes.append(f"nothing with a name holds the {len(left.kept):,} tensors that were left behind")
    return tuple(notes)


def _samples(tensors: list[Any]) -> list[Any]:
    """The largest, and some from all over."""
    largest = sorted(tensors, key=lambda one: -size_of(one)[1])[: _SAMPLES // 2]
    return [*largest, *tensors[:: max(1, len(tensors) // (_SAMPLES // 2))][:_SAMPLES]]


def _bytes(tensors: list[Any]) -> int:
    return sum(dict(map(size_of, tensors)).values())
