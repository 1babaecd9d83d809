"""From tensors up to what has a name in the source: who refers to them, and who to those, level by level.

Every level asks Python's collector for all referrers of what was reached, which walks all that it knows: a
few tens of milliseconds each, so all tensors go up together, and no level begins after the deadline.
"""

import dataclasses
import gc
import time
from collections import defaultdict
from typing import Any

from flatout.inside.retaining.given_names import Below, entries, names_given
from flatout.inside.retaining.variables import Name, local_names

_LEVELS = 9
# Objects of a level that are followed further.
_BROAD = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """An object with a name: the tensor itself, or something that holds it."""

    name: Name
    value: Any


class Search:
    """One way up for some tensors."""

    def __init__(self, tensors: list[Any], *, deadline: float, not_looked_at: tuple[Any, ...] = ()) -> None:
        self._deadline = deadline
        self._locals = local_names()
        # What was reached: objects by address, and the tensors (by place) that lie below them.
        self._objects = {id(tensor): tensor for tensor in tensors}
        self._tensors_below: dict[int, set[int]] = {id(one): {place} for place, one in enumerate(tensors)}
        self._keys: dict[int, tuple[str, int]] = {}
        # Ours, and no holders.
        self._ours = {id(tensors), id(self._objects), *map(id, not_looked_at)}
        self._found: dict[int, list[Named]] = defaultdict(list)
        # Names that several objects of a kind give to their own: elements of something larger, perhaps.
        self._perhaps: dict[int, list[Named]] = defaultdict(list)
        self.complete = True

    def go(self) -> dict[int, list[Named]]:
        """For each tensor, by place, the names that were met first."""
        level = list(self._objects)
        for _ in range(_LEVELS):
            level = self._not_named_by_functions(level)
            if not level:
                break
            if time.monotonic() > self._deadline:
                self.complete = False
                break
            level = self._up(level[:_BROAD])
        for place, perhaps in self._perhaps.items():
            if not self._found[place]:
                self._found[place] = perhaps
        return {place: named for place, named in self._found.items() if named}

    def _not_named_by_functions(self, level: list[int]) -> list[int]:
        """What is no variable of a function that runs, and has to be followed further."""
        left = []
        for address in level:
            for name in self._locals.get(address, ()):
                self._give(name, address, self._found)
            if address not in self._locals:
                left.append(address)
        return left

    def _up(self, level: list[int]) -> list[int]:
        below = Below(known=self._tensors_below, keys=self._keys)
        here = frozenset(level)
        reached: list[int] = []
        # By name, who gave it and to what.
        given: dict[Name, list[tuple[int, int]]] = defaultdict(list)
        for holder in self._holders(level):
            children = {address for address in map(id, gc.get_referents(holder)) if address in here}
            tensors = {place for address in children for place in self._tensors_below[address]}
            if id(holder) not in self._objects:
                reached.append(id(holder))
                self._objects[id(holder)] = holder
                self._note_key(holder, children)
            self._tensors_below.setdefault(id(holder), set()).update(tensors)
            for name, address in names_given(holder, children, below):
                if address in self._objects:
                    given[name].append((id(holder), address))
        named = {holder for by in given.values() for holder, _ in by}
        return [*self._settle(given), *(one for one in reached if one not in named)]

    def _holders(self, level: list[int]) -> list[Any]:
        """Who refers to something of this level. A list of them would be found by the next level, too."""
        found = gc.get_referrers(*(self._objects[address] for address in level))
        ours = {*self._ours, id(found)}
        return [one for one in found if id(one) not in ours and type(one) not in (Named, Search)]

    def _note_key(self, holder: Any, children: set[int]) -> None:
        if issubclass(type(holder), dict):
            for key, address in entries(holder, children)[:1]:
                self._keys[id(holder)] = (key, address)

    def _settle(self, given: dict[Name, list[tuple[int, int]]]) -> list[int]:
        """Keep the names that one object gave; of those that several gave, go on from the objects."""
        further = []
        for name, by in given.items():
            holders = list(dict.fromkeys(holder for holder, _ in by))
            is_one_of_many = len(holders) > 1 and name.kind in ("attribute", "closure")
            for _, address in by:
                self._give(name, address, self._perhaps if is_one_of_many else self._found)
            further += holders if is_one_of_many else []
        return further

    def _give(self, name: Name, address: int, where: dict[int, list[Named]]) -> None:
        for place in self._tensors_below[address]:
            where[place].append(Named(name, self._objects[address]))
