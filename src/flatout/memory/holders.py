"""Who holds memory at some moment of a ledger: by category, by line, and by the calls that lead there."""

import dataclasses

from flatout.memory.allocator import rounded
from flatout.records.ledger import LedgerFile

# What an event has that takes memory: number, bytes, place.
TAKES = 3
# What no parameter, gradient or optimizer holds lives for a step, or for less.
NOBODYS = "activations"
_STACKS = 200


@dataclasses.dataclass(frozen=True)
class Held:
    """What one place of the source holds."""

    place: tuple[str, int, str, str]
    category: str
    size_bytes: int
    count: int


@dataclasses.dataclass(frozen=True)
class HeldStack:
    """What one place holds where one way of calls leads to it."""

    # File, line and function of each call, the outermost first.
    calls: tuple[tuple[str, int, str], ...]
    operator: str
    category: str
    size_bytes: int
    count: int


class Holders:
    """What is held when the event with that number is over; -1 for nothing."""

    def __init__(self, ledger: LedgerFile, last: int) -> None:
        self._ledger = ledger
        owners = owners_of(ledger)
        held: dict[int, list[int]] = {}
        for event in ledger.events[: last + 1]:
            if len(event) == TAKES:
                held[event[0]] = event
            elif event[0] > 0:
                del held[event[0]]
        # By place and category.
        self._sizes: dict[tuple[int, str], list[int]] = {}
        for number, size, place in held.values():
            category = owners.get(number, NOBODYS)
            self._sizes.setdefault((place, category), []).append(rounded(size))

    def by_category(self) -> dict[str, int]:
        """Bytes, of those that hold any."""
        totals: dict[str, int] = {}
        for (_, category), sizes in self._sizes.items():
            totals[category] = totals.get(category, 0) + sum(sizes)
        return totals

    def by_line(self) -> tuple[Held, ...]:
        """The largest first."""
        lines: dict[tuple[tuple[str, int, str, str], str], list[int]] = {}
        for (place, category), sizes in self._sizes.items():
            lines.setdefault((self._ledger.places[place], category), []).extend(sizes)
        found = [Held(place, category, sum(sizes), len(sizes)) for (place, category), sizes in lines.items()]
        return tuple(sorted(found, key=lambda one: -one.size_bytes))

    def by_stack(self) -> tuple[HeldStack, ...]:
        """The largest first, and only so many."""
        ledger = self._ledger
        found = [
            HeldStack(ledger.calls_to(place), ledger.places[place][3], category, sum(sizes), len(sizes))
            for (place, category), sizes in self._sizes.items()
        ]
        return tuple(sorted(found, key=lambda one: -one.size_bytes)[:_STACKS])


def owners_of(ledger: LedgerFile) -> dict[int, str]:
    """By number, the category of what is owned."""
    return {number: name for name, numbers in ledger.owners.items() for number in numbers}
