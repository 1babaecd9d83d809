"""How a whole job went under a plan: the document of `flatout run`."""

import dataclasses

from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRun:
    """A few figures; the steps lie in the run folder."""

    run: str
    steps: int
    exit_code: int | None
    took_s: float
    levers: tuple[str, ...]
    # Levers that could not be applied or failed on the way, and why.
    dropped_levers: dict[str, str]
    samples_per_s: float | None = None
    promised_samples_per_s: float | None = None
    mfu: float | None = None
    signal: int | None = None
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="not measured")
