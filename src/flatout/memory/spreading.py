"""How a job could be spread over several GPUs: what each holds, what moves, and what that costs.

Memory comes from the job's own ledger, put through the allocator with other sizes. What moves is arithmetic
on rings: every GPU sends its share of all but its own part. How fast it moves is the link's figure; what is
left open is how much of it hides behind computing, so both ends are given.
"""

import dataclasses
from collections.abc import Sequence

from flatout.memory.planning import Budget, option_of
from flatout.memory.replaying import replay
from flatout.memory.reworking import Rework, sharded, split_products, staged
from flatout.memory.strategies import Strategy
from flatout.records.fit import SpreadOption
from flatout.records.ledger import LedgerFile

# Of a block's activations in bytes (34 for each number of its input; Korthikanti et al., 2022), what its four
# sums over GPUs move: two numbers of two bytes each, there and back.
_SUMS_OF_A_BLOCK = 16 / 34
# Parts of a batch for each stage of a pipeline: more, and each is too small to be worth its launch.
_PARTS_A_STAGE = 4


@dataclasses.dataclass(frozen=True)
class Link:
    """What two GPUs of a kind can send each other, one way, and who says so."""

    bytes_per_s: float | None
    source: str


@dataclasses.dataclass(frozen=True)
class _Way:
    name: str
    splits: str
    moves: str
    rework: Rework | None
    moved_bytes: float
    # Of a step, what waits whatever the link does.
    idle_share: float = 0.0


def spread(
    ledger: LedgerFile, budget: Budget, gpus: int, link: Link, step_s: float | None, price: float | None
) -> tuple[SpreadOption, ...]:
    """Each way over so many GPUs of a kind, and the one to choose, first."""
    found = [_option(way, ledger, budget, gpus, link, step_s, price) for way in _ways(ledger, gpus)]
    best = _choose(found)
    chosen = [dataclasses.replace(one, is_chosen=one is best) for one in found]
    return tuple(sorted(chosen, key=lambda one: (not one.is_chosen, one.fits is not True)))


def _ways(ledger: LedgerFile, gpus: int) -> list[_Way]:
    parts = replay(ledger).parts
    others = (gpus - 1) / gpus
    weights, gradients, activations = parts.parameters, parts.gradients or parts.parameters, parts.activations
    stages_idle = (gpus - 1) / (_PARTS_A_STAGE * gpus + gpus - 1)
    return [
        _Way("ddp", "the batch; each GPU has all else", "gradients, summed", None, 2 * others * gradients),
        _Way(
            "fsdp",
            "the batch, and each weight with its gradient and state",
            "weights to each GPU, twice; gradients to their owners",
            lambda one: sharded(one, gpus),
            others * (2 * weights + gradients),
        ),
        _Way(
            "tensor",
            "each block's products",
            "activations, summed four times a block",
            lambda one: split_products(one, gpus),
            others * _SUMS_OF_A_BLOCK * activations,
        ),
        _Way(
            "pipeline",
            f"the blocks, and the batch into {_PARTS_A_STAGE * gpus}",
            "activations from stage to stage",
            lambda one: staged(one, gpus),
            # Of a block's 34 bytes a number, the output goes on and its gradient comes back: 4, at most.
            4 / 34 * activations,
            stages_idle,
        ),
    ]


def _option(
    way: _Way,
    ledger: LedgerFile,
    budget: Budget,
    gpus: int,
    link: Link,
    step_s: float | None,
    price: float | None,
) -> SpreadOption:
    changed = way.rework(ledger) if way.rework is not None else ledger
    held = option_of(budget, Strategy(words=way.name, slowdown=1.0, how=""), changed, replay(changed), price)
    moving_s = way.moved_bytes / link.bytes_per_s if link.bytes_per_s else None
    least = most = None
    if step_s is not None and moving_s is not None:
        # So many GPUs do so many times the work in the same time; what is waited for is lost.
        computing_s = step_s / (1 - way.idle_share)
        least = gpus * step_s / (computing_s + moving_s)
        most = gpus * step_s / max(computing_s, moving_s)
    return SpreadOption(
        gpu=budget.id,
        gpus=gpus,
        strategy=way.name,
        splits=way.splits,
        moves=way.moves,
        peak_bytes=held.peak_bytes,
        fits=held.fits,
        moved_bytes=round(way.moved_bytes),
        link_bytes_per_s=link.bytes_per_s,
        link_source=link.source,
        moving_s=moving_s,
        idle_share=way.idle_share,
        predicted_speedup_low=least,
        predicted_speedup_high=most,
        usd_per_hour=price * gpus if price is not None else None,
    )


def _choose(options: Sequence[SpreadOption]) -> SpreadOption | None:
    """Of those that fit, the one that loses least time; data parallel among equals, which changes nothing."""
    fitting = [one for one in options if one.fits]
    if not fitting:
        return None
    return min(fitting, key=lambda one: (one.idle_share > 0, one.moved_bytes))
