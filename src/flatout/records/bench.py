"""What a server did under load: the document of `flatout bench`."""

import dataclasses

from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """Times, in milliseconds."""

    p50: float
    p90: float
    p99: float
    p999: float
    max: float
    mean: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadPoint:
    """One load, held for a while. Of answered requests: status 200 to 299."""

    # Either of both: so many at a time, or so many a second.
    concurrency: int | None
    rate_per_s: float | None
    seconds: float
    sent: int
    answered: int
    answered_per_s: float
    # From the moment at which it was to be sent, where a rate was asked for.
    latency_ms: Spread | None
    # What was not answered with success: by status, and by what went wrong with the connection.
    statuses: dict[str, int]
    errors: dict[str, int]
    # Of refusals: how soon they came.
    refusal_ms: Spread | None = None
    # Of streams of tokens.
    first_token_ms: Spread | None = None
    between_tokens_ms: Spread | None = None
    tokens_per_s: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="does not apply to this load, or nothing was answered")

    @property
    def load(self) -> float:
        """Whichever was asked for."""
        return self.rate_per_s if self.rate_per_s is not None else float(self.concurrency or 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Several loads, and the one at which more brings no more."""

    url: str
    path: str
    payload: str
    streams: bool
    # "closed": so many at a time; "open": so many a second, Poisson.
    loop: str
    points: tuple[LoadPoint, ...]
    # The place in `points`; None where none answered.
    knee: int | None
    reason: str
