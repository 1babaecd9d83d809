"""What a loop does to memory from step to step: whether it grows, how fast, and who holds what it left."""

import dataclasses
from pathlib import Path
from typing import Literal

from flatout.records.finding import Place
from flatout.records.unknown import fill_reasons
from flatout.records.words import memory_size, percent, three_digits

HolderKind = Literal[
    "local", "global", "attribute", "class attribute", "closure", "default argument", "cache", "unnamed"
]
# What a backward pass finds where the gradients of the step before were.
Gradients = Literal["kept", "zeroed", "none"]
_WORDS_FROM = 10 << 10
_NAMED_WITH_ITS_CLASS = ("attribute", "class attribute")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryHolder:
    """Something of the script that keeps tensors from step to step, as the source calls it."""

    # `losses[...]`, where the tensors are in it; `Trainer.last`, where it is the tensor.
    name: str
    kind: HolderKind
    # The function, the class or the file that the name belongs to.
    scope: str
    # On the watched device, all that it holds now; storages that several tensors share count once.
    tensors: int
    held_bytes: int
    growth_bytes_per_step: float
    # Whether the tensors drag the graphs along that they were computed with.
    keeps_graph: bool
    # The line that adds to it, or else the one that makes it.
    where: Place | None = None
    adds: bool = False
    # The line that asked for the memory, where torch's allocator keeps a history.
    made_at: str = ""
    fix: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="no line of a readable source adds to it")

    def __str__(self) -> str:
        """One sentence."""
        scope = f" in {self.scope}" if self.scope and self.kind not in _NAMED_WITH_ITS_CLASS else ""
        many = f"{self.tensors:,} tensors" if self.tensors != 1 else "1 tensor"
        graph = ", and graphs that tensors were computed with" if self.keeps_graph else ""
        held = f"{self.name}{scope} holds {many}, {size_in_words(self.held_bytes)}{graph}"
        if self.where is None:
            return held
        verb = "added" if self.adds else "made"
        return f"{held}; {verb} at {Path(self.where.file).name}:{self.where.line}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryReport:
    """What `flatout.MemoryTracker` saw. Bytes; the interval is one of 95 %."""

    steps: int
    # "cuda:0", or "cpu".
    device: str
    # What was counted: what torch has given out on the device, what the C library has, or, where neither
    # tells, all that the process has.
    counted: Literal["allocated", "malloc", "resident"]
    # How often; long loops are looked at in every second step, every fourth, and so on.
    looks: int
    # Whether every step leaves something behind; None where there were too few to tell.
    is_leak: bool | None
    growth_bytes_per_step: float | None = None
    growth_low_bytes_per_step: float | None = None
    growth_high_bytes_per_step: float | None = None
    begin_bytes: int | None = None
    end_bytes: int | None = None
    # Who holds what was left behind; whoever holds most comes first.
    holders: tuple[MemoryHolder, ...] = ()
    gradients: Gradients | None = None
    # Of torch's allocator: all that it has, the largest free piece, and the share of it that is free beside
    # living tensors, in pieces that can be neither joined nor given back.
    reserved_bytes: int | None = None
    largest_free_bytes: int | None = None
    fragmented_share: float | None = None
    notes: tuple[str, ...] = ()
    # For the report itself.
    took_s: float = 0.0
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="too few steps" if self.counted == "allocated" else "only known on a GPU")

    def __str__(self) -> str:
        """A few lines to read."""
        lines = [self._growth(), *(f"  {holder}\n    fix: {holder.fix}" for holder in self.holders)]
        if self.gradients == "kept":
            lines.append(
                "gradients are never zeroed: each step adds to those before it\n"
                "    fix: optimizer.zero_grad() in every step"
            )
        if self.reserved_bytes is not None and self.fragmented_share is not None:
            reserved, share = memory_size(self.reserved_bytes), percent(self.fragmented_share)
            lines.append(f"{reserved} reserved, {share} of it free in pieces beside living tensors")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _growth(self) -> str:
        what = f"memory on {self.device}" if self.counted == "allocated" else "memory of the process"
        begin = f"{what} over {self.steps:,} steps"
        slope, low = self.growth_bytes_per_step, self.growth_low_bytes_per_step
        high = self.growth_high_bytes_per_step
        if slope is None or low is None or high is None:
            return f"{begin}: {self.unknown.get('growth_bytes_per_step', 'too few to tell')}"
        if self.is_leak:
            between = f"{size_in_words(low)} to {size_in_words(high)}"
            return f"{begin}: grows by {size_in_words(slope)} a step ({between} with 95 % confidence)"
        return f"{begin}: no leak; a step leaves at most {size_in_words(max(0.0, high))} behind"


def size_in_words(count: float) -> str:
    """Bytes with three digits, and one by one where they are few: what a step leaves behind adds up."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(count) >= max(size, _WORDS_FROM):
            return f"{three_digits(count / size)} {unit}"
    return f"{count:,.0f} bytes"
