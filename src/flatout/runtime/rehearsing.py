"""A rehearsal before a protected job begins: it is ended after a few updates, brought back, and must go on.

What cannot be brought back is told at the start, not after the crash.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.analyze.steps import read_ranks
from flatout.records.protection import Protection
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# Saved at this update, ended some later, and brought back for some more.
_SAVED_AT, _ENDED_AT, _MORE = 5, 9, 5


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """Whether it went on as it should; None where it was over before anything could be told."""

    went_well: bool | None
    words: str


def rehearse(
    request: ProfileRequest, order: Mapping[str, Any], folder: Path, on_progress: OnProgress
) -> Rehearsal:
    """Two short trials of the job under its plan, which leave no trace."""
    first, second = (folder / TRIALS_FOLDER / f"{name}-rehearsal" for name in ("1", "2"))
    wish = Protection(str((first / "saved").resolve()), every_updates=_SAVED_AT, waits=True)
    plan = TrialPlan(
        name="a rehearsal",
        command=request.command,
        stop=StopRule(updates=_ENDED_AT),
        order={**order, "protect": dataclasses.asdict(wish)},
        startup_s=request.startup_s,
        silence_s=request.silence_s,
        environment=request.environment,
    )
    began = run_trial(plan, first, on_progress=on_progress)
    told = _told(first)
    if told.get("problem"):
        return Rehearsal(False, str(told["problem"]))
    if not told.get("saved"):
        return Rehearsal(None, f"it made {began.updates} updates, too few to rehearse")
    again = dataclasses.replace(plan, name="brought back", stop=StopRule(updates=_MORE))
    run_trial(again, second, on_progress=on_progress)
    told = _told(second)
    if told.get("problem") or told.get("resumed_at") is None:
        return Rehearsal(False, str(told.get("problem") or "it did not come back to where it was"))
    if "verified" not in told:
        return Rehearsal(None, "it was over before it could be compared")
    return Rehearsal(bool(told.get("repeats")), str(told["verified"]))


def _told(trial: Path) -> dict[str, Any]:
    ranks = read_ranks(trial)
    return dict(ranks[0].about.get("protection") or {}) if ranks else {}
