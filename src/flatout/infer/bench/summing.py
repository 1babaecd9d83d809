"""From samples to a point of the curve: percentiles, rates, errors by what they were; and its knee."""

import collections
import itertools
import math
import re
from collections.abc import Sequence

from flatout.infer.bench.loading import Sample
from flatout.records.bench import LoadPoint, Spread

# As good as the best: within this of it.
_KNEE = 0.05
# So much of what was sent may fail before a load counts as too much.
_LOST = 0.01
_REFUSED = ("429", "503")


def spread(values_s: Sequence[float]) -> Spread | None:
    """Percentiles of times in seconds, by the nearest rank: each is a time that was seen."""
    if not values_s:
        return None
    ordered = sorted(1000 * value for value in values_s)
    count = len(ordered)

    def at(share: float) -> float:
        return ordered[min(count - 1, math.ceil(share * count) - 1)]

    return Spread(
        p50=at(0.5),
        p90=at(0.9),
        p99=at(0.99),
        p999=at(0.999),
        max=ordered[-1],
        mean=math.fsum(ordered) / count,
    )


def point(
    samples: Sequence[Sample], seconds: float, *, concurrency: int | None, rate: float | None, streams: bool
) -> LoadPoint:
    """Sum up one load."""
    good = [one for one in samples if 200 <= one.exchange.status < 300 and not one.exchange.error]
    statuses = collections.Counter(str(one.exchange.status) for one in samples if not one.exchange.error)
    errors = collections.Counter(one.exchange.error for one in samples if one.exchange.error)
    # Up to the last answer: a server that has fallen behind must not be credited with what it owes.
    ends = [one.exchange.ended_s for one in samples]
    lasted = max(seconds, max(ends) - min(one.due_s for one in samples)) if samples else seconds
    tokens = [_token_times(one) for one in good] if streams else []
    gaps = [after - before for times in tokens for before, after in itertools.pairwise(times)]
    return LoadPoint(
        concurrency=concurrency,
        rate_per_s=rate,
        seconds=lasted,
        sent=len(samples),
        answered=len(good),
        answered_per_s=len(good) / lasted,
        latency_ms=spread([one.exchange.ended_s - one.due_s for one in good]),
        statuses=dict(sorted(statuses.items())),
        errors=dict(sorted(errors.items())),
        refusal_ms=spread(
            [one.exchange.ended_s - one.due_s for one in samples if str(one.exchange.status) in _REFUSED]
        ),
        first_token_ms=spread(
            [times[0] - one.due_s for one, times in zip(good, tokens, strict=True) if times]
            if streams
            else []
        ),
        between_tokens_ms=spread(gaps),
        tokens_per_s=sum(map(_count, good, tokens)) / lasted if streams else None,
    )


def _count(sample: Sample, times: Sequence[float]) -> int:
    """Tokens by the server's own count, where the stream ends with it; else the pieces that came."""
    told = re.search(rb'"completion_tokens":\s*(\d{1,9})', sample.exchange.body[-2000:])
    return int(told[1]) if told else len(times)


def _token_times(sample: Sample) -> list[float]:
    """When each event of a stream came that brought text: one for a token, but for those of half a letter."""
    body, pieces = bytes(sample.exchange.body), sample.exchange.pieces
    found, place, number = [], 0, 0
    while (place := body.find(b"data: ", place)) >= 0:
        end = body.find(b"\n\n", place)
        event = body[place : end if end >= 0 else len(body)]
        while number < len(pieces) - 1 and pieces[number][1] < (end if end >= 0 else len(body)):
            number += 1
        if (
            b'"text":""' not in event
            and (b'"text":"' in event or b'"content":"' in event)
            and b'"content":""' not in event
        ):
            found.append(pieces[number][0])
        place += 6
    return found


def knee(points: Sequence[LoadPoint]) -> tuple[int | None, str]:
    """The smallest load that is answered nearly as fast as any, and why."""
    able = [number for number, one in enumerate(points) if one.answered]
    if not any(one.sent for one in points):
        return None, "nothing was sent: no request was due in that time"
    if not able:
        return None, "nothing was answered"
    whole = [number for number in able if _lost(points[number]) <= _LOST]
    most = max(points[number].answered_per_s for number in whole or able)
    best = next(n for n in whole or able if points[n].answered_per_s >= most * (1 - _KNEE))
    if not whole:
        return best, "each load was too much: some requests were refused or failed"
    if best == len(points) - 1 and len(points) > 1:
        return best, "the largest load that was tried is the best: the knee may lie beyond"
    after = points[min(best + 1, len(points) - 1)]
    if _lost(after) > _LOST:
        return best, "with more, requests are refused or fail"
    return best, "more load brings longer waiting, and hardly more answers"


def _lost(one: LoadPoint) -> float:
    return 1 - one.answered / one.sent if one.sent else 1.0


def still_grows(points: Sequence[LoadPoint]) -> bool:
    """Whether a larger load is worth trying."""
    if len(points) < 3:
        return _lost(points[-1]) <= 0.5 if points else True
    before = max(one.answered_per_s for one in points[:-2])
    lately = max(one.answered_per_s for one in points[-2:])
    return lately > before * (1 + _KNEE) and _lost(points[-1]) <= 0.5
