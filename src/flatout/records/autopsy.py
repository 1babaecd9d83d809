"""What held the memory when there was no more: the document of an autopsy, and the file that a job leaves."""

import dataclasses
from pathlib import Path

import msgspec

from flatout.records.fit import FitOption, MemoryStack
from flatout.records.session import OUT_OF_MEMORY_FILE
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    """A line of the source that asked for memory which was held then; empty where nobody knows which."""

    category: str
    where: str
    size_bytes: int
    count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """What a process noted at the moment: `inside/autopsy.py` writes it."""

    message: str
    # On a GPU; else it was the host's.
    on_gpu: bool
    asked_bytes: int | None = None
    # Of the device: all of it, and what is left.
    device_bytes: int | None = None
    free_bytes: int | None = None
    # Of this process, as torch counts.
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    # Reserved and held by nobody; and the largest such block.
    cached_bytes: int = 0
    largest_cached_bytes: int = 0
    # By category.
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    holders: tuple[Holder, ...] = ()
    # The same by the calls that led there, the largest first.
    stacks: tuple[MemoryStack, ...] = ()
    # Whether lines were kept until then; else those of what was asked for lately are not known.
    stacks_kept: bool = True
    # Where the script was, in which part of a step, and after how many updates.
    where: str = ""
    phase: str = ""
    updates: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Autopsy:
    """One page on why there was not enough memory, and what would help."""

    run: str
    command: tuple[str, ...]
    rank: int
    found: OutOfMemory
    # What others hold on the device: processes, and drivers' own.
    others_bytes: int | None = None
    # Of what is reserved, what no request could use.
    fragmented_share: float = 0.0
    # By how much the memory grew from step to step before; None where there were too few steps to tell.
    growth_bytes_per_step: float | None = None
    # What would make it fit, the least costly first, as an imagined GPU of this size has it.
    fixes: tuple[FitOption, ...] = ()
    # Torch's own snapshot of that moment, and the page with the picture.
    snapshot: str | None = None
    report: str | None = None
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        reasons = {
            "snapshot": "it was not a GPU's memory that ran out, or it would be too large",
            "report": "no page was made",
        }
        fill_reasons(self, default="too few steps, or nobody could tell", reasons=reasons)


def read_out_of_memory(folder: Path) -> OutOfMemory | None:
    """What a process left, or None where it did not run out."""
    try:
        return msgspec.json.decode((folder / OUT_OF_MEMORY_FILE).read_bytes(), type=OutOfMemory)
    except (OSError, msgspec.DecodeError):
        return None
