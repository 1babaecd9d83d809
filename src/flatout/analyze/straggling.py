"""The rank that the others wait for.

Where gradients are summed over ranks, all of them end a step at the same time, and a slow one is nowhere to
be seen in its step time. The others wait inside of a pass, mostly the backward one. So the parts are compared
in which nobody waits for anybody: data, copies, the update. What the loop does beside is one where DDP
or FSDP sums the gradients; a script may wait there where it does that itself. Only then the forward pass, and
only under DDP, since sharded models wait for each other there too.
"""

import statistics
from collections.abc import Sequence

from flatout.records.ranks import RankUse, Straggler
from flatout.records.trace import RankTrace

# What a rank does by itself, by the host's clock and by the device's.
_ALONE = ("input", "copies", "before forward", "optimizer")
_BESIDE = ("other",)
_FORWARD = ("forward",)
_DDP = "DistributedDataParallel"
_SHARDED = ("FSDP", "FullySharded")


def straggler(ranks: Sequence[RankUse], roots: Sequence[str], share_of_a_step: float) -> Straggler | None:
    """The rank with most to do by itself, where that is more than so much of a step above the others."""
    seen = [rank for rank in ranks if rank.step_ms and rank.parts]
    if len(seen) < 2 or len(seen) < len(ranks):
        return None
    is_ddp = bool(roots) and all(root == _DDP for root in roots)
    sums_inside = bool(roots) and all(root == _DDP or root.startswith(_SHARDED) for root in roots)
    looked_at = [(*_ALONE, *(_BESIDE if sums_inside else ())), *([_FORWARD] if is_ddp else [])]
    slowest = (_slowest(seen, parts) for parts in looked_at)
    return next((one for one in slowest if one.ms - one.others_ms >= share_of_a_step * one.step_ms), None)


def straggler_of_traces(ranks: Sequence[RankTrace], share_of_a_step: float) -> Straggler | None:
    """The same by what each rank's device does beside communication: there the others wait.

    Where none of them communicates, or one comes twice, the traces are not of the ranks of one job.
    """
    known = [rank for rank in ranks if rank.alone_ms is not None and rank.step_ms]
    if len(known) < 2 or len(known) < len(ranks):
        return None
    numbers = [rank.rank for rank in known if rank.rank is not None]
    if len(set(numbers)) < len(numbers) or not any(rank.exposed_communication_ms for rank in known):
        return None
    place = max(range(len(known)), key=lambda number: known[number].alone_ms or 0.0)
    slow, own_ms = known[place], known[place].alone_ms or 0.0
    others_ms = statistics.median(one.alone_ms or 0.0 for one in known if one is not slow)
    if own_ms - others_ms < share_of_a_step * (slow.step_ms or 0.0):
        return None
    number = slow.rank if slow.rank is not None else list(ranks).index(slow)
    return Straggler(
        rank=number, part="beside communication", ms=own_ms, others_ms=others_ms, step_ms=slow.step_ms or 0.0
    )


def _slowest(ranks: Sequence[RankUse], parts: Sequence[str]) -> Straggler:
    """By all of these parts together; named after the one in which it is furthest behind."""
    alone = [{part: _ms(rank, part) for part in parts} for rank in ranks]
    place = max(range(len(ranks)), key=lambda number: sum(alone[number].values()))
    slow, own = ranks[place], alone.pop(place)
    others = {part: statistics.median(one[part] for one in alone) for part in parts}
    part = max(parts, key=lambda name: own[name] - others[name])
    return Straggler(
        rank=slow.rank,
        part=part,
        ms=own[part],
        others_ms=others[part],
        step_ms=slow.step_ms or 0.0,
    )


def _ms(rank: RankUse, part: str) -> float:
    return sum(share.ms for share in rank.parts if share.part == part)
