"""How fast ranks reach each other, as `limits` measured it: sums over all of them, copies pair by pair."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Literal

from flatout.records.unknown import fill_reasons

# Links of a kind differ by a few percent; one that lost lanes gives half, one that goes by the host less.
SLOW_SHARE = 0.7
_FEWEST_PAIRS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduceRate:
    """Sums of one size over all ranks. The bus rate is 2 (n - 1) / n x bytes / time: what each rank sends."""

    message_bytes: int
    seconds: float
    bus_bytes_per_s: float
    spread_share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairRate:
    """Copies from one rank to another, one way, while the others rest."""

    source: int
    target: int
    bytes_per_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class RanksLink:
    """What ranks can send each other; what could not be measured is absent, with the reason."""

    backend: Literal["nccl", "gloo"]
    ranks: int
    nodes: int = 1
    # What each rank is: `GPU 3 (GPU-5f2e...)`, `process 1`.
    members: tuple[str, ...]
    # The best of the large sums, and how long one of a few numbers takes.
    bus_bytes_per_s: float | None = None
    small_s: float | None = None
    sizes: tuple[AllReduceRate, ...] = ()
    pairs: tuple[PairRate, ...] = ()
    pair_median_bytes_per_s: float | None = None
    # Pairs far below the median.
    slow_pairs: tuple[PairRate, ...] = ()
    # Settings of NCCL and gloo that were in force, as `NCCL_P2P_DISABLE=1`.
    settings: tuple[str, ...] = ()
    took_s: float
    disturbed: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        rates = [size.bus_bytes_per_s for size in self.sizes] + [pair.bytes_per_s for pair in self.pairs]
        known = [value for value in (self.bus_bytes_per_s, self.small_s) if value is not None]
        if any(rate <= 0 for rate in [*rates, *known]):
            raise ValueError("a measured rate that is not above zero")
        fill_reasons(self)

    def below_median(self, pair: PairRate) -> float:
        """How far a pair is below the median of all, as a share."""
        return 1 - pair.bytes_per_s / (self.pair_median_bytes_per_s or pair.bytes_per_s)

    def where(self) -> str:
        """What was measured, in words."""
        if self.backend == "nccl":
            return f"{self.ranks} GPUs" + (f" on {self.nodes} machines" if self.nodes > 1 else "")
        of = f" on {self.nodes} machines" if self.nodes > 1 else ""
        return f"{self.ranks} processes{of} over gloo: the host's memory and network, no GPU's link"


def judged(pairs: Sequence[PairRate]) -> tuple[float | None, tuple[PairRate, ...]]:
    """The pairs' median, and those far below it, the slowest first.

    Two directions of one pair tell which is slower, but not whether that is slow.
    """
    if not pairs:
        return None, ()
    middle = statistics.median(pair.bytes_per_s for pair in pairs)
    if len(pairs) < _FEWEST_PAIRS:
        return middle, ()
    slow = [pair for pair in pairs if pair.bytes_per_s < SLOW_SHARE * middle]
    return middle, tuple(sorted(slow, key=lambda pair: pair.bytes_per_s))
