"""Load, held for a while: so many requests at a time, or so many a second whatever the server does.

With a rate, a request's time counts from when it was to be sent. A server that stands still for a second is
charged for all that came in that second, not for the one request that a polite client would have waited with.
"""

import asyncio
import dataclasses
import random
import time
from collections.abc import Iterator

from flatout.infer.bench.client import Client, Exchange
from flatout.infer.bench.payload import Payload

# More than this at a time is not tried: the machine that loads would be measured.
_MOST_AT_ONCE = 4096
# A server that is not there, or says "not now", is not asked again without a pause.
_NOT_NOW, _PAUSE_S = (429, 503), 0.05


@dataclasses.dataclass(frozen=True)
class Sample:
    """One request: when it was due, and what came of it."""

    due_s: float
    exchange: Exchange


async def at_once(client: Client, payload: Payload, concurrency: int, seconds: float) -> list[Sample]:
    """So many at a time, each after the other."""
    found: list[Sample] = []
    end = time.monotonic() + seconds

    async def one_after_the_other() -> None:
        while (now := time.monotonic()) < end:
            found.append(Sample(now, await client.send(payload.request)))
            answered = found[-1].exchange
            if answered.error or answered.status in _NOT_NOW:
                await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(one_after_the_other() for _ in range(concurrency)))
    return found


async def at_rate(
    client: Client, payload: Payload, rate: float, seconds: float, seed: int = 0
) -> list[Sample]:
    """So many a second, at random moments (Poisson), until the last has its answer."""
    found: list[Sample] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        found.append(Sample(due, await client.send(payload.request)))

    for due in _moments(time.monotonic(), rate, seconds, seed):
        await _until(due)
        if len(tasks) >= _MOST_AT_ONCE:
            found.append(Sample(due, Exchange(error="not sent: too many under way", ended_s=due)))
            continue
        task = asyncio.create_task(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return found


def _moments(start: float, rate: float, seconds: float, seed: int) -> Iterator[float]:
    draws, due = random.Random(seed), start  # noqa: S311
    while (due := due + draws.expovariate(rate)) < start + seconds:
        yield due


async def _until(moment: float) -> None:
    pause = moment - time.monotonic()
    # Also where it is late: answers must be read meanwhile.
    await asyncio.sleep(max(0.0, pause))
