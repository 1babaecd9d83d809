"""Trials of a job on a GPU that is only imagined, as written or under levers; a ledger comes of each."""

import itertools
from pathlib import Path

from flatout.analyze.steps import read_ranks
from flatout.records.ledger import LedgerFile, read_ledger
from flatout.records.plan import Choice
from flatout.records.session import RANKS_FOLDER
from flatout.records.trial import Trial
from flatout.runtime.profiling import ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# States of optimizers come with the first update, and stand beside activations in the second.
UPDATES = 3


class Imaginer:
    """Runs the job on imagined GPUs, one after the other."""

    def __init__(self, request: ProfileRequest, folder: Path, on_progress: OnProgress) -> None:
        self._request = request
        self._folder = folder
        self._tell = on_progress
        self._numbers = itertools.count(1)

    def run(self, levers: tuple[Choice, ...]) -> tuple[Trial, Path]:
        """As written, or under levers."""
        names = ", ".join(choice.words() for choice in levers)
        place = self._folder / f"{next(self._numbers)}-imagined"
        plan = TrialPlan(
            name=f"imagined with {names}" if levers else "imagined",
            command=self._request.command,
            # The last is cut off, whether it is in the ledger or not.
            stop=StopRule(updates=UPDATES + 1),
            order={
                "imagine": True,
                "taps": ["steps", "forward"] if levers else ["steps"],
                "levers": [choice.order() for choice in levers],
                # Workers are processes of their own, in which nothing is imagined.
                "loader": {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None},
            },
            startup_s=self._request.startup_s,
            silence_s=self._request.silence_s,
            environment={**self._request.environment, "CUDA_VISIBLE_DEVICES": ""},
        )
        return run_trial(plan, place, on_progress=self._tell), place

    def ledger(self, levers: tuple[Choice, ...]) -> LedgerFile | None:
        """Of the job under levers; None where one of them does not apply to it, or breaks it."""
        _, place = self.run(levers)
        states = [rank.about.get("levers", {}) for rank in read_ranks(place)]
        applied = all(
            state.get("applied") and "dropped" not in state for one in states for state in one.values()
        )
        return largest_ledger(place) if states and applied else None


def largest_ledger(place: Path) -> LedgerFile | None:
    """Of the process that did most; None where none made an update."""
    ledgers = [read_ledger(rank) for rank in sorted((place / RANKS_FOLDER).glob("*"))]
    found = [ledger for ledger in ledgers if ledger is not None]
    return max(found, key=lambda ledger: len(ledger.events)) if found else None
