"""Watching a part of this process: taps put on and taken off again, and what they saw, in a run folder."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.device_use import device_use
from flatout.analyze.profile import build_profile
from flatout.analyze.steps import read_ranks
from flatout.analyze.window import window_of
from flatout.inside.session import Session
from flatout.records.index import RunIndex
from flatout.records.profile import Profile
from flatout.records.runs import RunFolder
from flatout.records.session import Order
from flatout.records.trial import Shield, Trial
from flatout.runtime.peaks import peaks_for
from flatout.runtime.samples import DeviceSampler

# Every step of a run is read for its profile: of a run of weeks, that would be minutes at its very end.
_MOST_TO_PROFILE = 20_000


@dataclasses.dataclass
class Observation:
    """What was observed; `profile` is there after the block, or `reason` says why not."""

    run: str = ""
    profile: Profile | None = None
    reason: str = ""


class Observing:
    """One stretch of a process that is watched, perhaps with levers on: a context manager, to be used once.

    GPUs are sampled from outside, too, unless the stretch may be a long one: samples are kept in memory.
    """

    def __init__(
        self,
        root: Path,
        *,
        levers: Sequence[dict[str, Any]] = (),
        samples: bool = True,
    ) -> None:
        import torch

        self.seen = Observation()
        self._root = root
        self._run = RunFolder.create(root, command="observe", arguments=tuple(sys.argv))
        self.seen.run = self._run.manifest.id
        self._place = self._run.path / "trials" / "1-observe"
        self._place.mkdir(parents=True)
        self.session = Session(torch, Order(folder=str(self._place.resolve()), levers=tuple(levers)))
        self._sampler = DeviceSampler() if samples else None
        self._held = contextlib.ExitStack()
        self._began_s = time.monotonic()

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self._run.path

    def __enter__(self) -> "Observing":
        self._held.enter_context(self._run.writing())
        if self._sampler is not None:
            self._held.enter_context(self._sampler)
        self.session.arm()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            take_off(self.session)
            self._conclude(time.monotonic() - self._began_s)
            RunIndex(self._root, notice=lambda _text: None).add(self._run.manifest)
        finally:
            self._held.__exit__(*(error if error[0] is not None else sys.exc_info()))

    def _conclude(self, took_s: float) -> None:
        seen = self.seen
        if self.session.updates > _MOST_TO_PROFILE:
            seen.reason = f"{self.session.updates:,} steps are too many to go through at the end"
            return
        ranks = read_ranks(self._place)
        if not ranks:
            seen.reason = "no optimizer update happened in the block"
            return
        lead = ranks[0]
        trial = Trial(
            name="observe",
            folder=str(self._place),
            command=tuple(sys.argv),
            outcome="ended",
            updates=len(lead.steps),
            ranks=len(ranks),
            took_s=took_s,
            shield=Shield(kind="none", reason="observed in the user's own process"),
            failed_taps=lead.about.get("failed_taps", {}),
        )
        on_gpu = str(lead.about.get("device", "cpu")).startswith("cuda")
        peaks = peaks_for(lead.about.get("device_uuid"), on_gpu=on_gpu, measure=False)
        samples = self._sampler.samples if self._sampler is not None else []
        use = device_use(lead, window_of(lead).chosen, samples)
        seen.profile = build_profile(seen.run, trial, self._place, peaks, use)
        self._run.write("profile", 1, seen.profile)


def take_off(session: Session) -> None:
    """Levers and taps of a session, so that the process is as it was found."""
    session.finish()
    if session.scene is not None:
        session.scene.end()
    session.disarm()
