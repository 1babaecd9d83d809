"""Ways to need less memory, from what costs nothing to what costs much: as levers, or as another ledger.

What a lever changes is imagined with the lever on, as exactly as the job as written. What nobody can imagine
in one process (another optimizer, several GPUs) is worked into the ledger: the same requests with other
sizes, put through the same allocator.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flatout.memory.reworking import (
    Rework,
    activations_away,
    eight_bit_optimizer,
    micro_batches,
    sharded,
    split_products,
    states_away,
)
from flatout.records.ledger import LedgerFile
from flatout.records.plan import Choice

# Once more through all blocks, and through half of them.
_AGAIN, _HALF_AGAIN = 4 / 3, 7 / 6
# Several small kernels in place of one large, and more launches.
_SMALLER_BATCHES = 1.05
_EIGHT_BIT_UPDATE = 1.02
_SHARDED = 1.15
# Each block waits twice for the others' parts.
_SPLIT = 1.25
# Over the host's link: what all activations cost, and all states, where nothing hides it.
_ACTIVATIONS_AWAY, _STATES_AWAY = 1.5, 1.4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way; of several, the one that costs least."""

    words: str
    # How many times as long a step should take, at most.
    slowdown: float
    # How to have it.
    how: str
    # What is imagined.
    levers: tuple[Choice, ...] = ()
    # What is worked into the ledger; and the lever that does it, where there is one, beside those above.
    rework: Rework | None = None
    by_lever: Choice | None = None
    gpus: int = 1
    # Of one kind, whatever it comes on top of and in however many parts, the first that fits is enough.
    kind: str = ""
    # Whether it changes the training, and not only its rounding.
    changes_training: bool = False

    @property
    def plan(self) -> tuple[Choice, ...]:
        """The levers that make it, where levers alone do."""
        if self.by_lever is not None:
            return (*self.levers, self.by_lever)
        return self.levers if self.rework is None else ()


BF16 = Choice(id="bf16")
HALF = Choice(id="block-checkpointing", settings={"share": 0.5})
ALL = Choice(id="block-checkpointing", settings={"share": 1.0})
ACTIVATIONS_AWAY = Choice(id="activation-offload", settings={"share": 1.0})
STATES_AWAY = Choice(id="optimizer-offload")

MICRO_BATCHES = "micro-batches"
_PARTS = (2, 4, 8, 16)

# What is divided among several, what that costs, and how to have it.
_SEVERAL_GPUS: tuple[tuple[str, float, Callable[..., LedgerFile], str], ...] = (
    ("FSDP", _SHARDED, sharded, "torch.distributed.fsdp.fully_shard, block by block"),
    (
        "tensor parallel",
        _SPLIT,
        split_products,
        "torch.distributed.tensor.parallel.parallelize_module, block by block",
    ),
)

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
            base,
            "optimizer states on the host",
            _STATES_AWAY,
            states_away,
            by_lever=STATES_AWAY,
        )
        for base in (AS_WRITTEN, *precision, leanest)
        if ledger.owners.get("optimizer")
    ]
    found += [
        _on_top(
            base,
            "activations on the host",
            _ACTIVATIONS_AWAY,
            activations_away,
            by_lever=ACTIVATIONS_AWAY,
        )
        for base in (AS_WRITTEN, *precision)
    ]
    # Blocks computed again save most, but not every job has blocks.
    bases = (AS_WRITTEN, *precision, checkpoints[-1], *both[-1:])
    found += [*_in_parts(bases, ledger.batch), *_over_gpus(bases)]
    return sorted(found, key=lambda one: (one.gpus, one.slowdown, one.changes_training))


def _in_parts(bases: Sequence[Strategy], batch: int | None) -> Iterator[Strategy]:
    """A batch in as few parts as will do."""
    for parts in _PARTS:
        if batch is not None and parts > batch:
            return
        rework = functools.partial(micro_batches, parts=parts)
        how = "flatout.microbatch: the same gradients, a part at a time"
        for base in bases:
            words = f"{parts} {MICRO_BATCHES}"
            yield _on_top(base, words, _SMALLER_BATCHES, rework, how=how, kind=MICRO_BATCHES)


def _over_gpus(bases: Sequence[Strategy]) -> Iterator[Strategy]:
    """The job on as few GPUs as will do."""
    for gpus in (2, 4, 8):
        for words, cost, rework_for, how in _SEVERAL_GPUS:
            rework = functools.partial(rework_for, gpus=gpus)
            for base in bases:
                over = f"{words} over {gpus} GPUs"
                yield _on_top(base, over, cost, rework, how=how, gpus=gpus, kind=words)


def _by_levers(words: str, slowdown: float, *levers: Choice) -> Strategy:
    return Strategy(words=words, slowdown=slowdown, levers=levers, how=_how(levers))


def _how(levers: Sequence[Choice]) -> str:
    return f"levers of `flatout tune --max-memory`: {', '.join(choice.words() for choice in levers)}"


def _beside(one: Strategy, other: Strategy) -> Strategy:
    cost = one.slowdown * other.slowdown
    return _by_levers(f"{one.words}, {other.words}", cost, *one.levers, *other.levers)


def _on_top(base: Strategy, words: str, cost: float, rework: Rework, **more: Any) -> Strategy:
    also = "" if base is AS_WRITTEN else f"{base.words}, "
    slowdown = base.slowdown * cost
    found = dataclasses.replace(base, words=f"{also}{words}", slowdown=slowdown, rework=rework, **more)
    return dataclasses.replace(found, how=_how(found.plan)) if found.plan else found
