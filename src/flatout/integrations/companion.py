"""What all integrations share: a plan and taps while a library trains, figures, and being asked to stop.

Under `flatout profile`, `tune` and `run` a session watches the process already, and does what it was told to:
then levers, and in a trial figures too, are left to it. Under `run --protect` stops are that one's.
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flatout.inside.armed import armed_session
from flatout.inside.session import Session
from flatout.integrations.figures import Figures
from flatout.integrations.guarded import tell
from flatout.records.errors import FlatoutError
from flatout.records.places import PROJECT_FOLDER
from flatout.records.plan import Plan
from flatout.records.profile import Profile
from flatout.records.protection import ON_ITS_WAY_BACK
from flatout.records.session import Order
from flatout.runtime.observing import Observing, take_off
from flatout.runtime.stopping import Stopped, current, stop_requested

# Settings of what exists before training begins; the libraries have switches for them.
_BEFORE = {
    "loader": "its DataLoader exists already",
    "batch-size": "its batches are yours to size",
}


@dataclasses.dataclass(frozen=True)
class Held:
    """What a library does itself of a plan, and what it could do if told to: levers' ids, and words."""

    done: Mapping[str, str] = dataclasses.field(default_factory=dict)
    advice: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Companion:
    """Goes along with one training at a time."""

    def __init__(self, plan: Plan | None, *, watch: bool, folder: str | Path = PROJECT_FOLDER) -> None:
        self._plan = plan
        self._watch = watch
        self._root = Path(folder)
        self._session: Session | None = None
        self._observing: Observing | None = None
        self._aside: Path | None = None
        self._is_ours = False
        self._listens = self._has_updated = False
        self._figures = Figures(plan, 1)
        # What was told of levers that are not on.
        self._told: set[str] = set()
        self._not_here: dict[str, str] = {}
        self._last_facts: dict[str, Any] = {}
        # Of the training before, where it was watched.
        self.run = ""
        self.profile: Profile | None = None

    # Beginning and ending

    def begin(self, optimizers: Iterable[Any], held: Held, *, rank: int = 0, ranks: int = 1) -> None:
        """Training is about to begin on these optimizers."""
        while _companions:  # a training before this one, which an error has ended
            _companions[-1].end()
        self._figures = Figures(self._plan, ranks)
        self._told, self._last_facts, self._has_updated = set(), {}, False
        found = armed_session()
        self._is_ours = found is None
        self._session = found if found is not None else self._arm(optimizers, held, rank)
        if found is not None and self._plan is not None and not found.order.trial and not found.order.levers:
            tell("`flatout run` applies plans itself, and was given none: flatout run --plan FILE")
        if not self._is_left_to_others():
            self._listens = current().listen()
        _companions.append(self)

    def _arm(self, optimizers: Iterable[Any], held: Held, rank: int) -> Session | None:
        levers = self._levers(held)
        if not levers and (not self._watch or rank):
            return None
        session = self._observed(levers) if self._watch and not rank else None
        if session is None:
            import torch

            self._aside = Path(tempfile.mkdtemp(prefix="flatout-"))
            session = Session(torch, Order(folder=str(self._aside), levers=tuple(levers)))
            session.arm()
        if session.scene is not None:
            for optimizer in optimizers:
                session.scene.optimizer_made(optimizer)
        return session

    def _observed(self, levers: list[dict[str, Any]]) -> Session | None:
        """A session with a run folder; None where there can be none: the rest is done all the same."""
        try:
            self._observing = Observing(self._root, levers=levers, samples=False)
        except (FlatoutError, OSError) as error:
            tell(f"no profile is kept: {error}")
            return None
        self._observing.__enter__()
        return self._observing.session

    def _levers(self, held: Held) -> list[dict[str, Any]]:
        self._not_here = {}
        mine = []
        for choice in self._plan.levers if self._plan is not None else ():
            if choice.id in held.done:
                self._told.add(choice.id)  # it is on, as it should be
            elif choice.id in _BEFORE:
                advice = held.advice.get(choice.id, "")
                self._not_here[choice.id] = _BEFORE[choice.id] + (f": {advice}" if advice else "")
            else:
                mine.append(choice.order())
        return mine

    def end(self) -> None:
        """Take everything off that was put on: the process is as it was found."""
        if self in _companions:
            _companions.remove(self)
        self._tell_of_levers()
        session, self._session = self._session, None
        observing, self._observing = self._observing, None
        if session is not None:
            self._last_facts = dict(session.facts.get("levers", {}))
        try:
            if observing is not None:
                observing.__exit__(None, None, None)
                self.run, self.profile = observing.seen.run, observing.seen.profile
            elif session is not None and self._is_ours:
                take_off(session)
        finally:  # signals are not ours any more, whatever became of the figures
            if self._aside is not None:
                shutil.rmtree(self._aside, ignore_errors=True)
                self._aside = None
            if self._listens and current().signal is None:  # else the script may still want to ask
                current().leave()
            self._listens = False

    @property
    def may_apply(self) -> bool:
        """Whether levers are ours to apply: no session of Flatout's watches this process."""
        return armed_session() is None or bool(_companions)

    # While it trains

    @property
    def levers(self) -> tuple[str, ...]:
        """What is on; known from the first training call on."""
        return tuple(name for name, facts in self._facts().items() if "dropped" not in facts)

    @property
    def dropped(self) -> dict[str, str]:
        """What is not, and why."""
        told = {name: facts["dropped"] for name, facts in self._facts().items() if "dropped" in facts}
        return {**self._not_here, **told}

    def _facts(self) -> dict[str, Any]:
        return self._session.facts.get("levers", {}) if self._session is not None else self._last_facts

    def updated(self) -> None:
        """After each update; after the first, what became of the plan is known."""
        if not self._has_updated:
            self._has_updated = True
            self._tell_of_levers()

    def _tell_of_levers(self) -> None:
        """Once for each lever of the plan that is not on."""
        for name, why in self.dropped.items():
            if name not in self._told:
                self._told.add(name)
                tell(f"{name} is not applied: {why}")

    def figures(self) -> dict[str, float]:
        """What it does at the moment; nothing in a trial, or where nobody watches."""
        session = self._session
        if not self._watch or session is None or session.order.trial or not session.updates:
            return {}
        if ON_ITS_WAY_BACK in (session.facts.get("protection") or ()):
            return {}
        return self._figures.now(session.write_now())

    def stop_requested(self) -> bool:
        """Whether to save and stop now; all ranks must ask, after each update."""
        try:
            return not self._is_left_to_others() and stop_requested()
        except Exception:
            current().leave()  # a signal that nobody answers must do what it would do without us
            raise

    @property
    def knows_of_a_signal(self) -> bool:
        """Whether one came to this process, which will be answered after an update."""
        return not self._is_left_to_others() and current().signal is not None

    def stopped(self) -> Stopped:
        """How the process ends after the training was saved: with the signal's code."""
        return Stopped(current().exit_code)

    def _is_left_to_others(self) -> bool:
        session = self._session
        if session is None or self._is_ours:
            return False
        protection = session.facts.get("protection")
        return session.order.trial or (protection is not None and not protection.get("problem"))


# Of this process: the one that goes along with the training that is under way.
_companions: list[Companion] = []
