"""`with flatout.observe():` for notebooks and libraries: taps around some code, and its profile after."""

import contextlib
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from flatout.analyze.device_use import device_use
from flatout.analyze.profile import build_profile, window_of
from flatout.analyze.steps import read_ranks
from flatout.inside.session import Session, armed_session
from flatout.records.index import RunIndex
from flatout.records.places import PROJECT_FOLDER
from flatout.records.profile import Profile
from flatout.records.runs import RunFolder
from flatout.records.session import Order
from flatout.records.trial import Shield, Trial
from flatout.runtime.peaks import peaks_for
from flatout.runtime.samples import DeviceSampler


@dataclasses.dataclass
class Observation:
    """What was observed; `profile` is there after the block, or `reason` says why not."""

    run: str = ""
    profile: Profile | None = None
    reason: str = ""


@contextlib.contextmanager
def observe(*, folder: str | Path = PROJECT_FOLDER, show: bool = True) -> Iterator[Observation]:
    """Watch the training steps in this block, and print what they cost.

    Changes nothing that the code does: it writes its own files, and errors pass through. Everything that was
    put in place is taken off at the end. What was seen is kept in `folder`/runs.
    """
    seen = Observation()
    if armed_session() is not None:
        seen.reason = "this process is watched already"
        yield seen
        return
    import torch

    root = Path(folder)
    run = RunFolder.create(root, command="observe", arguments=tuple(sys.argv))
    seen.run = run.manifest.id
    place = run.path / "trials" / "1-observe"
    place.mkdir(parents=True)
    session = Session(torch, Order(folder=str(place.resolve())))
    began = time.monotonic()
    with run.writing(), DeviceSampler() as sampler:
        session.arm()
        try:
            yield seen
        finally:
            session.finish()
            session.disarm()
            _conclude(seen, run, place, sampler, time.monotonic() - began)
            RunIndex(root, notice=lambda _text: None).add(run.manifest)
    if show:
        _show(seen)


def _conclude(seen: Observation, run: RunFolder, place: Path, sampler: DeviceSampler, took_s: float) -> None:
    ranks = read_ranks(place)
    if not ranks:
        seen.reason = "no optimizer update happened in the block"
        return
    lead = ranks[0]
    trial = Trial(
        name="observe",
        folder=str(place),
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
    use = device_use(lead, window_of(lead).chosen, sampler.samples)
    seen.profile = build_profile(seen.run, trial, place, peaks, use)
    run.write("profile", 1, seen.profile)


def _show(seen: Observation) -> None:
    from rich.console import Console

    from flatout.report.profile import draw_profile

    console = Console(highlight=False, markup=False, emoji=False)
    if seen.profile is None:
        console.print(f"flatout: {seen.reason}")
    else:
        draw_profile(seen.profile, console)
