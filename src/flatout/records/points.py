"""Numbers of a training on their way to a tracker: a `Point` has a step, a time and some named values.

As text they are one JSON object a line. JSON has no NaN and no infinity: such a value is null, and named
under `not_finite`. Read and written with the standard library alone: scripts do so in their own process.
"""

import dataclasses
import json
import math
from collections.abc import Mapping

# In the folder of a rank: what the script gave to `flatout.log`.
LOGGED_FILE = "logged.jsonl"

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """What was known at one step."""

    step: int
    at_unix_s: float
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logged:
    """How it went with one sink of a job."""

    # As it was given: `tensorboard:runs`.
    target: str
    points: int = 0
    # Points that came too fast for it, or after it had failed.
    dropped: int = 0
    # Why it was turned off; "" where it was not.
    failure: str = ""


def line_of(point: Point) -> str:
    """One line of JSON, without its end."""
    finite = {name: value if math.isfinite(value) else None for name, value in point.values.items()}
    line: dict[str, object] = {"step": point.step, "at_unix_s": round(point.at_unix_s, 6), "values": finite}
    odd = {name: repr(value) for name, value in point.values.items() if not math.isfinite(value)}
    if odd:
        line["not_finite"] = odd
    return json.dumps(line, separators=(",", ":"))


def point_of(line: str | bytes) -> Point | None:
    """The point that was written so; None for a line that is none."""
    try:
        read = json.loads(line)
        odd = read.get("not_finite", {})
        values = {
            str(name): float(value) if value is not None else _NOT_FINITE[odd[name]]
            for name, value in read["values"].items()
        }
        return Point(int(read["step"]), float(read["at_unix_s"]), values)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
