"""Reads what a session saw when it looked closely at the first updates."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from flatout.analyze.steps import RankSteps, read_ranks
from flatout.records.check import ParameterState
from flatout.records.session import INSPECTION_FILE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspected:
    """One rank's first updates."""

    rank: RankSteps
    calls: tuple[dict[str, Any], ...]
    parameters: tuple[ParameterState, ...]

    @property
    def losses(self) -> tuple[float | None, ...]:
        """One loss a `backward()`, in order; None where it could not be read."""
        return tuple(loss for step in self.rank.steps for loss in step["losses"])

    @property
    def pairing(self) -> dict[str, Any]:
        """Checksums of initial parameters and inputs."""
        return self.rank.about.get("pairing") or {"parameters": [], "inputs": []}


def read_inspected(folder: Path) -> Inspected | None:
    """The first rank of a trial with what its inspection wrote; None where it made no update."""
    ranks = read_ranks(folder)
    if not ranks:
        return None
    try:
        plain = json.loads((ranks[0].folder / INSPECTION_FILE).read_text())
    except (OSError, ValueError):
        plain = {"calls": [], "parameters": []}
    return Inspected(
        rank=ranks[0],
        calls=tuple(plain["calls"]),
        parameters=tuple(_parameter(entry) for entry in plain["parameters"]),
    )


def _parameter(entry: dict[str, Any]) -> ParameterState:
    rate = entry.get("learning_rate")
    fields = {**entry, "shape": tuple(entry["shape"])}
    fields["learning_rate"] = rate if isinstance(rate, float) and math.isfinite(rate) else None
    return ParameterState(**fields)
