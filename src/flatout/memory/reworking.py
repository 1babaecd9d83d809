"""What nobody can imagine in one process, worked into a ledger: the same requests, other sizes or lives.

The result goes through the same allocator. Sizes are as exact as the arithmetic; what travels, and when, is
taken to go as it is written here.
"""

import dataclasses
from collections.abc import Callable, Collection

from flatout.memory.holders import TAKES
from flatout.records.ledger import LedgerFile

# Eight bits and a scale for every 256 values, in place of 32 bits.
_EIGHT_BIT = 0.25 + 1 / 256
# Of the largest parameter, what a GPU holds of others' shares while it computes: a block's, and the next's.
_GATHERED = 2
# Of a transformer block's activations, what each GPU has whole when products are split: 10 parts in 34
# (Korthikanti et al., 2022: what norms and dropouts keep).
_WHOLE = 10 / 34
# Saved for the way back: of a step's requests, what lives through so many is; smaller ones stay.
_LIVES_LONG = 0.05
_FEWEST_BYTES = 1 << 20
# On their way out, on their way back, and those that are needed first.
_WINDOWS_BYTES = 3 << 30

Rework = Callable[[LedgerFile], LedgerFile]


def eight_bit_optimizer(ledger: LedgerFile) -> LedgerFile:
    """States in eight bits."""
    return _resized(ledger, ledger.owners.get("optimizer", ()), lambda size: round(size * _EIGHT_BIT))


def micro_batches(ledger: LedgerFile, parts: int) -> LedgerFile:
    """What a step takes and gives back, in parts; what it keeps, copies of weights, and updates are whole."""
    kept = {number for numbers in ledger.owners.values() for number in numbers}
    kept |= _copies_of_weights(ledger) | _taken_in_updates(ledger)
    sizes = [event[0] for event in ledger.events if len(event) == TAKES and event[0] not in kept]
    return _resized(_with_gradients_kept(ledger), sizes, lambda size: -(-size // parts))


def sharded(ledger: LedgerFile, gpus: int) -> LedgerFile:
    """Parameters, gradients and states shared by several GPUs; what computes comes together."""
    owned = _with_weights(ledger)
    sizes = {event[0]: event[1] for event in ledger.events if len(event) == TAKES}
    weights = [sizes[number] for number in ledger.owners.get("parameters", ()) if number in sizes]
    if not weights:
        return ledger
    gathered = max(weights) * _GATHERED
    return _with_workspace(_resized(ledger, owned, lambda size: -(-size // gpus)), gathered)


def split_products(ledger: LedgerFile, gpus: int) -> LedgerFile:
    """Weights, what belongs to them, and most of what products make: a part of each on each GPU."""
    owned = _with_weights(ledger)
    others = [event[0] for event in ledger.events if len(event) == TAKES and event[0] not in owned]
    smaller = _resized(ledger, owned, lambda size: -(-size // gpus))
    return _resized(smaller, others, lambda size: round(size * (_WHOLE + (1 - _WHOLE) / gpus)))


def staged(ledger: LedgerFile, gpus: int) -> LedgerFile:
    """A part of the blocks on each GPU, with all that belongs to them; as many parts of a batch under way."""
    numbers = [event[0] for event in ledger.events if len(event) == TAKES]
    return _resized(ledger, numbers, lambda size: -(-size // gpus))


def states_away(ledger: LedgerFile) -> LedgerFile:
    """States of the optimizer come for each update, when activations are gone, and leave after it."""
    away = set(ledger.owners.get("optimizer", ()))
    visits = [event for event in ledger.events if len(event) == TAKES and event[0] in away]
    number = max((event[0] for event in ledger.events), default=0)
    events: list[list[int]] = []
    owned: list[int] = []
    for event in ledger.events:
        if event[0] < 0:
            numbers = range(number + 1, number + 1 + len(visits))
            events += [[one, size, place] for one, (_, size, place) in zip(numbers, visits, strict=True)]
            events += [[one] for one in numbers]
            owned += numbers
            number += len(visits)
        if event[0] not in away:
            events.append(event)
    return dataclasses.replace(ledger, events=events, owners={**ledger.owners, "optimizer": owned})


def activations_away(ledger: LedgerFile) -> LedgerFile:
    """What is saved for the way back is on the host meanwhile; what is under way takes some room."""
    kept = {number for numbers in ledger.owners.values() for number in numbers}
    taken = {event[0]: (at, event[1]) for at, event in enumerate(ledger.events) if len(event) == TAKES}
    long = _LIVES_LONG * len(ledger.events) / max(1, ledger.updates)
    saved = [
        event[0]
        for at, event in enumerate(ledger.events)
        if len(event) == 1 and event[0] in taken and event[0] not in kept
        if at - taken[event[0]][0] >= long and taken[event[0]][1] >= _FEWEST_BYTES
    ]
    under_way = min(_WINDOWS_BYTES, sum(taken[number][1] for number in saved) // max(1, ledger.updates))
    smaller = _resized(ledger, saved, lambda _size: 1)
    return _with_workspace(smaller, under_way)


def _with_weights(ledger: LedgerFile) -> set[int]:
    """What becomes less with them: parameters, gradients, states, and what an update takes."""
    names = ("parameters", "gradients", "optimizer")
    owned = {number for name in names for number in ledger.owners.get(name, ())}
    return owned | _taken_in_updates(ledger)


def _with_workspace(ledger: LedgerFile, size: int) -> LedgerFile:
    """Some memory from the beginning to the end."""
    number = max((event[0] for event in ledger.events), default=0) + 1
    owners = {**ledger.owners, "workspace": [*ledger.owners.get("workspace", ()), number]}
    place = next((event[2] for event in ledger.events if len(event) == TAKES), 0)
    return dataclasses.replace(ledger, events=[[number, size, place], *ledger.events], owners=owners)


def _with_gradients_kept(ledger: LedgerFile) -> LedgerFile:
    """Gradients of earlier parts are there from the beginning; what a part adds is taken beside them."""
    gradients = set(ledger.owners.get("gradients", ()))
    number = max((event[0] for event in ledger.events), default=0)
    events: list[list[int]] = []
    # Where those of this update come: when those of the last are gone. The first has none before it.
    at: int | None = None
    for event in ledger.events:
        is_gradient = event[0] in gradients
        if at is not None and is_gradient and len(event) == TAKES:
            number += 1
            events.insert(at, event)
            events += [[number, *event[1:]], [number]]
            at += 1
            continue
        events.append(event)
        if event[0] < 0 or (at is not None and is_gradient):
            at = len(events)
    return dataclasses.replace(ledger, events=events)


def _copies_of_weights(ledger: LedgerFile) -> set[int]:
    """What autocast makes of weights: as large as half of one, and made by a conversion."""
    sizes = {event[0]: event[1] for event in ledger.events if len(event) == TAKES}
    halves = {sizes[number] // 2 for number in ledger.owners.get("parameters", ()) if number in sizes}
    converts = {place for place, (*_, operator) in enumerate(ledger.places) if operator == "aten::_to_copy"}
    return {
        event[0]
        for event in ledger.events
        if len(event) == TAKES and event[2] in converts and event[1] in halves
    }


def _taken_in_updates(ledger: LedgerFile) -> set[int]:
    """What optimizers take while they compute, as large as weights, whatever the batch."""
    found: set[int] = set()
    since: set[int] | None = None
    for event in ledger.events:
        if event[0] == 0:
            since = set()
        elif event[0] < 0:
            found |= since or set()
            since = None
        elif since is not None and len(event) == TAKES:
            since.add(event[0])
    return found


def _resized(ledger: LedgerFile, numbers: Collection[int], size: Callable[[int], int]) -> LedgerFile:
    chosen = set(numbers)
    events = [
        [event[0], size(event[1]), event[2]] if len(event) == TAKES and event[0] in chosen else event
        for event in ledger.events
    ]
    return dataclasses.replace(ledger, events=events)
