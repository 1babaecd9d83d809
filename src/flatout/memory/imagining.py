"""Trials of a job on a GPU that is only imagined, as requested or under more levers; a ledger of each."""

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.steps import read_ranks
from flatout.records.ledger import LedgerFile, read_ledger
from flatout.records.plan import Choice
from flatout.records.session import RANKS_FOLDER
from flatout.records.trial import Trial
from flatout.runtime.profiling import ProfileRequest
from flatout.runtime.progress import Progress, StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# States of optimizers come with the first update, and stand beside activations in the second.
UPDATES = 3
# Workers are processes of their own, in which nothing is imagined.
_IN_ONE_PROCESS = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None}


class CalledOff(Exception):
    """Nobody waits for this trial any more."""


class Imaginer:
    """Runs the job on imagined GPUs, from one thread or from several."""

    def __init__(self, request: ProfileRequest, folder: Path, on_progress: OnProgress) -> None:
        self._request = request
        self._folder = folder
        self._tell = on_progress
        self._numbers = itertools.count(1)
        self._called_off = threading.Event()

    def call_off(self) -> None:
        """Trials that are under way end at once, with CalledOff."""
        self._called_off.set()

    def look(self, folder: Path, progress: Progress) -> bool:  # noqa: ARG002 - a Director's
        """Nothing to direct: a session counts its updates itself."""
        if self._called_off.is_set():
            raise CalledOff
        return False

    @property
    def silence_s(self) -> None:
        """What the plan allows."""

    def run(self, levers: tuple[Choice, ...]) -> tuple[Trial, Path]:
        """As requested, or under more levers."""
        names = ", ".join(choice.words() for choice in levers)
        place = self._folder / f"{next(self._numbers)}-imagined"
        base = self._request.order
        orders = _joined(base.get("levers", ()), levers)
        plan = TrialPlan(
            name=f"imagined with {names}" if levers else "imagined",
            command=self._request.command,
            # The last is cut off, whether it is in the ledger or not.
            stop=StopRule(updates=UPDATES + 1),
            order={
                "imagine": True,
                "taps": ["steps", "forward"] if orders else ["steps"],
                "levers": orders,
                "loader": {**base.get("loader", {}), **_IN_ONE_PROCESS},
            },
            startup_s=self._request.startup_s,
            silence_s=self._request.silence_s,
            environment={**self._request.environment, "CUDA_VISIBLE_DEVICES": ""},
            director=self,
        )
        return run_trial(plan, place, on_progress=self._tell), place

    def ledger(self, levers: tuple[Choice, ...]) -> LedgerFile | None:
        """Of the job under levers; None where one of them does not apply to it, or breaks it."""
        trial, place = self.run(levers)
        states = [rank.about.get("levers", {}) for rank in read_ranks(place)]
        asked = [one.get(choice.id, {}) for one in states for choice in levers]
        applied = all(state.get("applied") and "dropped" not in state for state in asked)
        found = largest_ledger(place) if states and applied else None
        return found if found is not None and is_enough(found, trial) else None


def _joined(base: Sequence[dict[str, Any]], levers: Sequence[Choice]) -> list[dict[str, Any]]:
    """What the job has on already, and more: of two settings of one lever the later."""
    more = {choice.id: choice.order() for choice in levers}
    return [*(one for one in base if one["id"] not in more), *more.values()]


def is_enough(ledger: LedgerFile, trial: Trial) -> bool:
    """Whether the peak can be in it: a script may end after one update, but not break off before its last."""
    return trial.went_well or ledger.updates >= UPDATES


def largest_ledger(place: Path) -> LedgerFile | None:
    """Of the process that did most; None where none made an update."""
    ledgers = [read_ledger(rank) for rank in sorted((place / RANKS_FOLDER).glob("*"))]
    found = [ledger for ledger in ledgers if ledger is not None]
    return max(found, key=lambda ledger: len(ledger.events)) if found else None
