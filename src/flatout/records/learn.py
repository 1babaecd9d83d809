"""What a lesson of `flatout learn` gives: figures, pictures, what one sees in them, and what to do."""

import dataclasses
import math
from typing import Literal

from flatout.records.device import Vendor

# Who says so: this machine, just now or as `flatout limits` kept it; the vendor; or arithmetic on either.
Origin = Literal["measured", "rated", "computed"]
Unit = Literal["bytes", "bytes/s", "FLOP/s", "s", "times", "share", "steps", "FLOP/byte", "number"]
Scale = Literal["linear", "log"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnFigure:
    """One number; None where it could not be had, and `note` says why."""

    name: str
    value: float | None
    unit: Unit
    origin: Origin = "measured"
    note: str = ""

    def __post_init__(self) -> None:
        if self.value is None and not self.note:
            raise ValueError(f"{self.name} is unknown, and nobody says why")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"{self.name} is not finite")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnBar:
    """A row of a bar picture; `words` stand instead of the bare figure."""

    label: str
    value: float
    origin: Origin = "measured"
    words: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BarPicture:
    """Values side by side."""

    title: str
    unit: Unit
    bars: tuple[LearnBar, ...]
    scale: Scale = "linear"
    caption: str = ""
    kind: Literal["bars"] = "bars"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnCurve:
    """One line of a picture: points (x, y), from left to right."""

    name: str
    points: tuple[tuple[float, float], ...]
    origin: Origin = "measured"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurveMark:
    """Something to know about one place of the x axis."""

    x: float
    label: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvePicture:
    """How something changes with something else."""

    title: str
    x_label: str
    x_unit: Unit
    y_label: str
    y_unit: Unit
    curves: tuple[LearnCurve, ...]
    marks: tuple[CurveMark, ...] = ()
    y_scale: Scale = "log"
    caption: str = ""
    kind: Literal["curve"] = "curve"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TablePicture:
    """Rows of words and figures; the first column names them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    origin: Origin = "measured"
    caption: str = ""
    kind: Literal["table"] = "table"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listing:
    """What a file or a process really said, line by line."""

    title: str
    lines: tuple[str, ...]
    caption: str = ""
    kind: Literal["listing"] = "listing"


Picture = BarPicture | CurvePicture | TablePicture | Listing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """A command of Flatout's that follows from what was seen, and why it does."""

    command: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taught:
    """One lesson, as it went on this machine."""

    id: str
    title: str
    question: str
    # The answer in one sentence, with a figure of this machine.
    answer: str
    pictures: tuple[Picture, ...]
    # What one sees, a paragraph each.
    seen: tuple[str, ...]
    advice: tuple[Advice, ...]
    figures: tuple[LearnFigure, ...]
    # What other hardware is rated at, for comparison: never measured here.
    rated: Picture | None = None
    notes: tuple[str, ...] = ()
    took_s: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnDevice:
    """What the figures were measured on."""

    name: str
    torch_device: str
    vendor: Vendor
    torch_version: str
    # Why it is this one: a CPU where there is no GPU says so.
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learned:
    """The document of `flatout learn` with lessons."""

    device: LearnDevice
    lessons: tuple[Taught, ...]
    # What went on beside it; empty when nothing did.
    disturbed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LessonEntry:
    """A lesson before it is taken."""

    id: str
    title: str
    question: str
    seconds: int
    is_first: bool = False
