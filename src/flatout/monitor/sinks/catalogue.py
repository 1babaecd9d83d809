"""The sinks by name, and what `tensorboard:runs/x` means."""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

from flatout.monitor.sinks.event_files import EventFiles
from flatout.monitor.sinks.json_lines import JsonLines
from flatout.monitor.sinks.mlflow_run import MlflowRun
from flatout.monitor.sinks.protocol import About, Sink
from flatout.monitor.sinks.wandb_run import WandbRun
from flatout.records.errors import CallerMistake, MissingExtra, UnknownName


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of sink."""

    # What stands behind the colon, and what it is where nothing stands there.
    place: str
    default: str
    # The package that it needs; "" for none. The extra that brings it has the same name.
    package: str
    open: Callable[[str, About], Sink]
    # Whether the place is a path, of which each rank needs its own.
    is_path: bool


KINDS: dict[str, Kind] = {
    "jsonl": Kind("FILE", "flatout-log.jsonl", "", lambda place, _: JsonLines(place), is_path=True),
    "tensorboard": Kind("DIR", "runs", "tensorboard", lambda place, _: EventFiles(place), is_path=True),
    "wandb": Kind("PROJECT", "flatout", "wandb", WandbRun, is_path=False),
    "mlflow": Kind("EXPERIMENT", "flatout", "mlflow", MlflowRun, is_path=False),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A kind of sink, and where it puts things."""

    kind: str
    place: str

    def words(self) -> str:
        """As it was given."""
        return f"{self.kind}:{self.place}"

    def of_rank(self, rank: int) -> "Target":
        """A place of its own for each rank but the first."""
        if not rank or not KINDS[self.kind].is_path:
            return self
        path = Path(self.place)
        if self.kind == "jsonl":
            return Target(self.kind, str(path.with_name(f"{path.stem}-rank{rank}{path.suffix}")))
        return Target(self.kind, str(path / f"rank{rank}"))

    def open(self, about: About) -> Sink:
        """Open it; this imports its package, and may wait for a network."""
        return KINDS[self.kind].open(self.place, about)


def target(kind: str, place: str = "") -> Target:
    """Check a name and that its package is there, without importing it."""
    known = KINDS.get(kind)
    if known is None:
        raise UnknownName("sink", kind, KINDS)
    if known.package and importlib.util.find_spec(known.package) is None:
        raise MissingExtra(known.package, extra=known.package, wanted_for=f"logging to {kind}")
    return Target(kind, place or known.default)


def targets(text: str) -> list[Target]:
    """`tensorboard:runs/x,wandb:my-project`, taken apart."""
    found: list[Target] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        kind, _, place = word.partition(":")
        one = target(kind.strip(), place.strip())
        if one in found:
            raise CallerMistake(
                f"{one.words()} is named twice", expected="each sink once", remedy="leave one of them out"
            )
        found.append(one)
    if not found:
        raise CallerMistake(
            f"{text!r} names no sink",
            expected=", ".join(f"{name}:{kind.place}" for name, kind in KINDS.items()),
            remedy="--log-to tensorboard:runs",
        )
    return found
