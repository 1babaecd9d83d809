"""`flatout.parallel`: a model, its optimizer and its loader on several processes or devices, by strategy."""

import dataclasses
import sys
from typing import Any

from flatout.records.errors import CallerMistake, UnknownName
from flatout.runtime.parallel.choosing import choose
from flatout.runtime.parallel.data import place
from flatout.runtime.parallel.ddp import Ddp, DdpOptions
from flatout.runtime.parallel.fsdp import Fsdp, FsdpOptions
from flatout.runtime.parallel.joining import Joined, join
from flatout.runtime.parallel.parameters import layout_of, to_device
from flatout.runtime.parallel.world import World
from flatout.runtime.parallel.wrapped import Job, Wrapped, insist_on_fresh

__all__ = ["World", "parallel"]

_STRATEGIES: dict[str, tuple[type, type]] = {
    "ddp": (Ddp, DdpOptions),
    "fsdp": (Fsdp, FsdpOptions),
}


def parallel(
    strategy: str = "auto",
    *,
    model: Any,
    optimizer: Any = None,
    loader: Any = None,
    sample: Any = None,
    device: Any = None,
    timeout_s: float = 600.0,
    shard_iterable: bool = False,
    keep_batch: bool = False,
    even_alone: bool = False,
    **options: Any,
) -> World:
    """TODO."""
    if strategy != "auto" and strategy not in _STRATEGIES:
        raise UnknownName("strategy", strategy, ("auto", *_STRATEGIES))
    insist_on_fresh(model)
    joined = join(timeout_s=timeout_s, device=device, even_alone=even_alone)
    try:
        reason = ""
        if strategy == "auto":
            chosen = choose(model, optimizer, joined)
            strategy, reason = chosen.strategy, chosen.reason
        asked = _options(strategy, options)
        layout = layout_of(model, optimizer)
        names = tuple(model.state_dict())
        job = Job(joined, model, optimizer, sample)
        kind, _ = _STRATEGIES[strategy]
        needed = joined.count > 1 or even_alone
        wrapped: Wrapped = kind(job, asked) if needed else _alone(job)
        placed = place(loader, joined, wrapped.data, shard_iterable=shard_iterable, keep_batch=keep_batch)
    except BaseException as error:
        joined.tell_of_failure(error)
        joined.leave(failed=True)
        raise
    return World(strategy, wrapped, placed, reason=reason, loader=loader, layout=layout, names=names)


def _alone(job: Job) -> Wrapped:
    to_device(job.model, job.optimizer, job.joined.device)
    return Wrapped(job, reason="one process: nothing to divide")


def _options(strategy: str, given: dict[str, Any]) -> Any:
    _, kind = _STRATEGIES[strategy]
    valid = [field.name for field in dataclasses.fields(kind)]
    for name in given:
        if name not in valid:
            raise UnknownName(f"option of {strategy}", name, valid)
    return kind(**given)
