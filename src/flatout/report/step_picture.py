"""A step as one stacked bar, and below it, on the same scale, what it could be."""

import math
from collections.abc import Sequence

from flatout.records.profile import Profile
from flatout.records.step import Share
from flatout.records.tuning import Tuning
from flatout.records.words import percent
from flatout.report.figures import milliseconds
from flatout.report.parts import PARTS, part_words
from flatout.report.profile_words import headroom
from flatout.report.stacks import Bar, Part, Stack, pieces

_ORDER: list[str] = list(PARTS)
_MEANINGS: dict[str, str] = {part: meaning for part, (_, meaning) in PARTS.items()}


def step_parts(waterfall: Sequence[Share]) -> list[Part]:
    """The parts of a step, work first; a part that we don't know comes last."""
    known = [share for share in waterfall if math.isfinite(share.ms) and share.ms > 0]
    order = {part: place for place, part in enumerate(_ORDER)}
    return [
        Part(
            kind=share.part if share.part in order else "unattributed",
            name=part_words(share.part),
            size=share.ms,
            figure=milliseconds(share.ms),
            label=percent(share.share),
            meaning=_MEANINGS.get(share.part, ""),
        )
        for share in sorted(known, key=lambda one: order.get(one.part, len(order)))
    ]


def trace_picture(waterfall: Sequence[Share], name: str) -> Stack | None:
    """The waterfall of a trace alone, of which no floor is known; None where nothing has a length."""
    parts = step_parts(waterfall)
    whole = sum(part.size for part in parts)
    if not parts:
        return None
    return Stack([Bar(name, milliseconds(whole), pieces(parts, whole), is_main=True)], parts)


def step_picture(profile: Profile, tuning: Tuning | None = None) -> Stack | None:
    """The waterfall, the floors that are known, and the plan of a tuning; None where nothing was timed."""
    parts = step_parts(profile.waterfall)
    if not parts:
        return None
    whole = sum(part.size for part in parts)
    beside = [
        ("floor", "at the device's limits, as written", profile.floors.as_written_ms),
        ("floor", "at the device's limits, ideally fused", profile.floors.fused_ms),
        ("plan", "with the plan of the tuning", tuning.best.step_ms if tuning is not None else None),
    ]
    known = [(kind, name, ms) for kind, name, ms in beside if ms is not None and math.isfinite(ms)]
    longest = max([whole, *(ms for _, _, ms in known)])
    bars = [Bar("a step, on average", milliseconds(whole), pieces(parts, longest), is_main=True)]
    # Speedups are of the median, as everywhere.
    typical = profile.step_ms.p50 if profile.step_ms is not None else whole
    for kind, name, ms in known:
        faster = headroom(typical, ms)
        figure = milliseconds(ms) + (f" ({faster})" if faster else "")
        bars.append(Bar(name, figure, pieces([Part(kind, name, ms, figure)], longest)))
    return Stack(bars, parts)
