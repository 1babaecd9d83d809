"""Who keeps the others waiting: the rank that is behind, or the only one that does not wait."""

import itertools
from collections.abc import Sequence

from flatout.records.hang import RankStanding

# Functions in which a rank waits for others, or for a device that does.
_WAITING = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "wait",
    "synchronize",
    "_engine_run_backward",
    "backward",
    "monitored_barrier",
    "recv",
    "send",
    "item",
)


def culprit_of(ranks: Sequence[RankStanding]) -> tuple[int | None, str]:
    """The rank, where one can be named, and why."""
    for one in ranks:
        if one.state in ("gone", "zombie"):
            return one.rank, f"rank {one.rank} is {one.state}, and the others wait for it"
    if len(ranks) == 1:
        return ranks[0].rank, f"it is at {_at(ranks[0])}"
    fewest = min(one.updates for one in ranks)
    behind = [one for one in ranks if one.updates == fewest]
    if len(behind) == 1:
        return behind[0].rank, f"rank {behind[0].rank} is behind the others, at {_at(behind[0])}"
    busy = [one for one in ranks if one.call is not None and not _waits(one)]
    if len(busy) == 1:
        return busy[0].rank, f"rank {busy[0].rank} is at {_at(busy[0])}, the others wait for it"
    places = sorted({_at(one) for one in ranks})
    return None, f"all {len(ranks)} ranks wait, at {' and '.join(places[:3])}"


def _waits(one: RankStanding) -> bool:
    """By the functions of its main thread, which comes first; threads of others always wait for something."""
    frames = itertools.takewhile(lambda line: line.startswith("  "), one.stack[1:])
    functions = [line.strip().partition(" (")[0] for line in frames]
    return any(word in function for function in functions for word in _WAITING)


def _at(one: RankStanding) -> str:
    where = one.where or "an unknown place"
    return f"{where} (now {one.call})" if one.call and not where.endswith(f" in {one.call}") else where
