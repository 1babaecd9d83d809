"""Will it fit: the document of `flatout fit`."""

import dataclasses

from flatout.records.plan import Choice
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryParts:
    """What holds the memory at the peak."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    workspace: int = 0
    # What the driver and torch's kernels take, beside anything that a job asks for.
    context: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitOption:
    """One way to run the job on one kind of GPU: does it fit?"""

    gpu: str
    strategy: str = "as written"
    # How many of them.
    gpus: int = 1
    # How many times as long a step should take, at most; faster ways count as 1.
    predicted_slowdown: float = 1.0
    # Whether it changes the training, and not only its rounding.
    changes_training: bool = False
    # How to have it; and the levers that do it, where levers do.
    how: str = ""
    levers: tuple[Choice, ...] = ()
    memory_bytes: int
    # None where the peak lies within the error of the GPU's memory.
    fits: bool | None
    # Whether it has less than the job would reserve: what is cached must be given back now and then.
    is_tight: bool
    peak_bytes: int
    usd_per_hour: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no price is known")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpreadOption:
    """One way to run the job on several GPUs of a kind at once."""

    gpu: str
    gpus: int
    strategy: str
    # What each GPU has a part of, and what goes from GPU to GPU in a step.
    splits: str
    moves: str
    # On each.
    peak_bytes: int
    fits: bool | None
    moved_bytes: int
    link_bytes_per_s: float | None
    link_source: str
    # For as long as it takes if nothing hides it; and of a step, what waits in any case.
    moving_s: float | None
    idle_share: float
    # Over one GPU, with nothing hidden and with all of it.
    predicted_speedup_low: float | None = None
    predicted_speedup_high: float | None = None
    usd_per_hour: float | None = None
    is_chosen: bool = False
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        reasons = {
            "fits": "within the error of the GPU's memory",
            "link_bytes_per_s": "the catalogue has none: --link",
            "moving_s": "the link is not known: --link",
            "usd_per_hour": "no price is known",
        }
        for name, reason in reasons.items():
            if getattr(self, name) is None:
                self.unknown.setdefault(name, reason)
        fill_reasons(self, default="the step's time on one GPU is not known: --step-ms")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryHolder:
    """A line of the source, and what it holds at the peak."""

    where: str
    category: str
    # What ran there: `addmm`.
    operator: str
    size_bytes: int
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryStack:
    """The calls that lead to a line of the source, and what it holds."""

    # `train.py:12 in main`, the outermost first; empty where nobody knows.
    frames: tuple[str, ...]
    category: str
    size_bytes: int
    count: int
    # What ran there: `addmm`; empty where that is not known.
    operator: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryAt:
    """How much is allocated at some event of the ledger."""

    event: int
    allocated_bytes: int
    # By category, who holds it.
    parts: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """What a script would take on a GPU that nobody needed to have."""

    run: str
    command: tuple[str, ...]
    # By torch's own count: allocated by tensors, and reserved for them.
    peak_bytes: int
    reserved_bytes: int
    parts: MemoryParts
    # Of the whole, how far off predictions have been.
    error_bar: float
    updates: int
    # Where the peak is reached.
    where: str | None
    options: tuple[FitOption, ...]
    holders: tuple[MemoryHolder, ...] = ()
    # Ways to make it fit where it does not, the least costly first; and the least that any of them takes.
    strategies: tuple[FitOption, ...] = ()
    least_bytes: int | None = None
    least_by: str = ""
    # Ways to run it on several GPUs at once, where somebody asked; the one to choose first.
    spread: tuple[SpreadOption, ...] = ()
    timeline: tuple[MemoryAt, ...] = ()
    # At which events of the timeline updates ended.
    update_events: tuple[int, ...] = ()
    # What holds it at the peak, by the calls that lead there, the largest first.
    stacks: tuple[MemoryStack, ...] = ()
    # The page with the picture.
    report: str | None = None
    took_s: float = 0.0
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        reasons = {
            "least_bytes": "it fits, or nothing was named that it should fit into",
            "report": "no page was made",
        }
        fill_reasons(self, default="the peak is reached in no line of the script", reasons=reasons)
