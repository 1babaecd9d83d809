"""What a run leaves for the guard, and whether two runs saw the same."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.steps import loss_of, read_ranks
from flatout.records.session import GUARD_FILE, RANKS_FOLDER

# The loss of each step, where it was seen.
Losses = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class GuardRun:
    """What one run left for the guard."""

    losses: tuple[float | None, ...]
    updates: tuple[dict[str, Any], ...]
    pairing: dict[str, Any]
    failed: str = ""

    @property
    def infers(self) -> bool:
        """Whether nothing trained: outputs stand where gradients and losses would."""
        return bool(self.updates) and self.updates[0].get("what") == "outputs"

    @classmethod
    def read(cls, folder: Path) -> "GuardRun":
        """From a trial's folder."""
        ranks = read_ranks(folder)
        if not ranks:
            return cls((), (), {}, "the run made no update")
        lead = ranks[0]
        losses = tuple(loss_of(step) for step in lead.steps)
        updates: tuple[dict[str, Any], ...] = ()
        for place in sorted((folder / RANKS_FOLDER).glob(f"*-{lead.pid}/{GUARD_FILE}")):
            updates = tuple(json.loads(place.read_text())["updates"])
        failed = (
            ""
            if updates
            else str(lead.about.get("failed_taps", {}).get("guarding", "no update was sketched"))
        )
        return cls(losses, updates, lead.about.get("pairing") or {}, failed)


def is_paired(reference: GuardRun, other: GuardRun, twins: Sequence[GuardRun] = ()) -> bool:
    """Whether both began with the same parameters and saw the same inputs, by checksum.

    What one model hands to another (a generator's images, say) is input too, and rounds as the first one
    does. Where twins are given, only what they all saw alike is held to be data.
    """
    first, second = reference.pairing, other.pairing
    if not first.get("inputs") or not second.get("inputs"):
        return False
    runs = [[one[1] for one in run.pairing.get("inputs") or ()] for run in (reference, other, *twins)]
    both, *others = list(zip(*runs[:2], strict=False)), *runs[2:]
    data = [
        number
        for number in range(len(both))
        if all(run[number : number + 1] == [both[number][0]] for run in others)
    ]
    # Every update must have some.
    updates = {first["inputs"][number][0] for number in range(len(both))}
    if {first["inputs"][number][0] for number in data} != updates:
        return False
    same_inputs = all(both[number][0] == both[number][1] for number in data)
    return bool(first.get("parameters") == second.get("parameters") and same_inputs)


def known_losses(losses: Losses) -> list[float]:
    """Those that were seen."""
    return [loss for loss in losses if loss is not None]
