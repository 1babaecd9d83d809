"""Ways to need less memory, from what costs nothing to what costs much: as levers, or as another ledger.

What a lever changes is imagined with the lever on, as exactly as the job as written. What nobody can imagine
in one process (another optimizer, several GPUs) is worked into the ledger: the same requests with other
sizes, put through the same allocator.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from flatout.records.ledger import LedgerFile
from flatout.records.plan import Choice

# What an event has that takes memory: number, bytes, place.
_TAKES = 3
# Eight bits and a scale for every 256 values, in place of 32 bits.
_EIGHT_BIT = 0.25 + 1 / 256
# Of the largest parameter, what a GPU holds of others' shares while it computes: a block's, and the next's.
_GATHERED = 2
# Once more through all blocks, and through half of them.
_AGAIN, _HALF_AGAIN = 4 / 3, 7 / 6
# Several small kernels in place of one large, and more launches.
_SMALLER_BATCHES = 1.05
_EIGHT_BIT_UPDATE = 1.02
_SHARDED = 1.15

Rework = Callable[[LedgerFile], LedgerFile]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way; of several, the one that costs least."""

    words: str
    # How many times as long a step should take, at most.
    slowdown: float
    # How to have it.
    how: str
    levers: tuple[Choice, ...] = ()
    rework: Rework | None = None
    gpus: int = 1
    # Whether it changes the training, and not only its rounding.
    changes_training: bool = False


BF16 = Choice(id="bf16")
HALF = Choice(id="block-checkpointing", settings={"share": 0.5})
ALL = Choice(id="block-checkpointing", settings={"share": 1.0})

AS_WRITTEN = Strategy(words="as written", slowdown=1.0, how="")


def strategies(ledger: LedgerFile) -> list[Strategy]:
    """Those that make sense for a job, the least costly first."""
    in_half = bool(set(ledger.products) & {"bfloat16", "float16"})
    precision = [] if in_half else [_by_levers("bf16", 1.0, BF16)]
    checkpoints = [
        _by_levers("half of the blocks computed again", _HALF_AGAIN, HALF),
        _by_levers("all blocks computed again", _AGAIN, ALL),
    ]
    both = [_beside(one, other) for one in precision for other in checkpoints]
    found = [*precision, *checkpoints, *both]
    leanest = found[-1]
    found += [
        _on_top(
            base,
            "8-bit optimizer",
            _EIGHT_BIT_UPDATE,
            eight_bit_optimizer,
            how="flatout tune --goal memory --allow optimizer-8bit",
            changes_training=True,
        )
        for base in (AS_WRITTEN, leanest)
    ]
    found += [
        _on_top(
            leanest,
            f"{parts} micro-batches",
            _SMALLER_BATCHES,
            functools.partial(micro_batches, parts=parts),
            how="flatout.microbatch: the same gradients, a part at a time",
        )
        for parts in (2, 4, 8, 16)
        if ledger.batch is None or parts <= ledger.batch
    ]
    found += [
        _on_top(
            leanest,
            f"FSDP over {gpus} GPUs",
            _SHARDED,
            functools.partial(sharded, gpus=gpus),
            how="torch.distributed.fsdp.fully_shard, block by block",
            gpus=gpus,
        )
        for gpus in (2, 4, 8)
    ]
    return sorted(found, key=lambda one: (one.gpus, one.slowdown, one.changes_training))


def _by_levers(words: str, slowdown: float, *levers: Choice) -> Strategy:
    names = ", ".join(choice.words() for choice in levers)
    return Strategy(words=words, slowdown=slowdown, levers=levers, how=f"levers of `flatout tune`: {names}")


def _beside(one: Strategy, other: Strategy) -> Strategy:
    cost = one.slowdown * other.slowdown
    return _by_levers(f"{one.words}, {other.words}", cost, *one.levers, *other.levers)


def _on_top(base: Strategy, words: str, cost: float, rework: Rework, **more: Any) -> Strategy:
    also = "" if base is AS_WRITTEN else f"{base.words}, "
    slowdown = base.slowdown * cost
    return dataclasses.replace(base, words=f"{also}{words}", slowdown=slowdown, rework=rework, **more)


# Ledgers worked over


def eight_bit_optimizer(ledger: LedgerFile) -> LedgerFile:
    """States in eight bits."""
    return _resized(ledger, ledger.owners.get("optimizer", ()), lambda size: round(size * _EIGHT_BIT))


def micro_batches(ledger: LedgerFile, parts: int) -> LedgerFile:
    """What a step takes and gives back, in parts; what it keeps, and copies of weights, are whole."""
    kept = {number for numbers in ledger.owners.values() for number in numbers} | _copies_of_weights(ledger)
    sizes = [event[0] for event in ledger.events if len(event) == _TAKES and event[0] not in kept]
    return _resized(ledger, sizes, lambda size: -(-size // parts))


def sharded(ledger: LedgerFile, gpus: int) -> LedgerFile:
    """Parameters, gradients and states shared by several GPUs; what computes comes together."""
    owned = [
        number for name in ("parameters", "gradients", "optimizer") for number in ledger.owners.get(name, ())
    ]
    sizes = {event[0]: event[1] for event in ledger.events if len(event) == _TAKES}
    weights = [sizes[number] for number in ledger.owners.get("parameters", ()) if number in sizes]
    if not weights:
        return ledger
    gathered = max(weights) * _GATHERED
    smaller = _resized(ledger, owned, lambda size: -(-size // gpus))
    number = max(sizes) + 1
    owners = {**smaller.owners, "workspace": [*smaller.owners.get("workspace", ()), number]}
    first = next((event[2] for event in ledger.events if len(event) == _TAKES), 0)
    return dataclasses.replace(smaller, events=[[number, gathered, first], *smaller.events], owners=owners)


def _copies_of_weights(ledger: LedgerFile) -> set[int]:
    """What autocast makes of weights: as large as half of one, and made by a conversion."""
    sizes = {event[0]: event[1] for event in ledger.events if len(event) == _TAKES}
    halves = {sizes[number] // 2 for number in ledger.owners.get("parameters", ()) if number in sizes}
    converts = {place for place, (*_, operator) in enumerate(ledger.places) if operator == "aten::_to_copy"}
    return {
        event[0]
        for event in ledger.events
        if len(event) == _TAKES and event[2] in converts and event[1] in halves
    }


def _resized(ledger: LedgerFile, numbers: Sequence[int], size: Callable[[int], int]) -> LedgerFile:
    chosen = set(numbers)
    events = [
        [event[0], size(event[1]), event[2]] if len(event) == _TAKES and event[0] in chosen else event
        for event in ledger.events
    ]
    return dataclasses.replace(ledger, events=events)
