"""`fit`: what a script would take on a GPU, before it has one."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from flatout.hardware.catalogue import price_table, select
from flatout.memory.allocator import OutOfMemory
from flatout.memory.replaying import Replayed, replay
from flatout.records.errors import JobFailed
from flatout.records.fit import Fit, FitOption
from flatout.records.ledger import LedgerFile, read_ledger
from flatout.records.rated import RatedGpu
from flatout.records.session import RANKS_FOLDER
from flatout.records.trial import Trial
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# States of optimizers come with the first update, and stand beside activations in the second.
_UPDATES = 3
_ENOUGH = 2
# Of the whole, how far off predictions have been so far.
ERROR_BAR = 0.02
# What driver, context and kernels take on a GPU, beside what torch reserves.
_CONTEXT_BYTES = 560 << 20
USUAL = ("t4", "l4", "rtx4090", "a100-40gb-sxm", "l40s", "a100-80gb-sxm", "h100-80gb-sxm", "h200-sxm")


def fit_job(
    request: ProfileRequest, run: str, folder: Path, gpus: Sequence[str], on_progress: OnProgress
) -> Fit:
    """Run the script on an imagined GPU; raises JobFailed where that cannot be."""
    chosen = select(gpus or USUAL)
    began = time.monotonic()
    plan = TrialPlan(
        name="imagined",
        command=request.command,
        # The last is cut off, whether it is in the ledger or not.
        stop=StopRule(updates=_UPDATES + 1),
        order={
            "imagine": True,
            "taps": ["steps"],
            # Workers are processes of their own, in which nothing is imagined.
            "loader": {"num_workers": 0, "persistent_workers": False, "prefetch_factor": None},
        },
        startup_s=request.startup_s,
        silence_s=request.silence_s,
        environment={**request.environment, "CUDA_VISIBLE_DEVICES": ""},
    )
    place = folder / TRIALS_FOLDER / "1-imagined"
    trial = run_trial(plan, place, on_progress=on_progress)
    ledger = _ledger_of(trial, place, request.command)
    replayed = replay(ledger)
    needed = replayed.reserved_bytes + _CONTEXT_BYTES
    where = _from_here(*replayed.place[:3]) if replayed.place else None
    return Fit(
        run=run,
        command=request.command.words,
        peak_bytes=replayed.allocated_bytes,
        reserved_bytes=replayed.reserved_bytes,
        parts=dataclasses.replace(replayed.parts, context=_CONTEXT_BYTES),
        error_bar=ERROR_BAR,
        updates=ledger.updates,
        where=where,
        options=tuple(_option(gpu, needed, ledger) for gpu in chosen),
        timeline=replayed.timeline,
        took_s=time.monotonic() - began,
        notes=tuple(_notes(ledger, replayed)),
    )


def _from_here(file: str, line: int, function: str) -> str:
    path = Path(file)
    short = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{short}:{line} in {function}"


def _ledger_of(trial: Trial, place: Path, command: JobCommand) -> LedgerFile:
    ledgers = [read_ledger(rank) for rank in sorted((place / RANKS_FOLDER).glob("*"))]
    found = [ledger for ledger in ledgers if ledger is not None]
    if found:
        return max(found, key=lambda ledger: len(ledger.events))
    said = "".join(f"\n    {line}" for line in trial.said[-8:])
    raise JobFailed(
        f"on an imagined GPU the script made no update and ended as {trial.outcome!r}; it said last:{said}",
        expected="a script that trains in one process, and does not need values to go on",
        remedy=f"flatout check {command.typed()}   # does it run as written?",
    )


def _option(gpu: RatedGpu, needed: int, ledger: LedgerFile) -> FitOption:
    """With room for whatever it reserves it fits; with less it may, where cached memory is given back."""
    price = price_table().cheapest(gpu.id)
    room = gpu.memory_bytes - _CONTEXT_BYTES
    answers = {_fits(ledger, round(room * (1 + by))) for by in (-ERROR_BAR, ERROR_BAR)}
    return FitOption(
        gpu=gpu.id,
        memory_bytes=gpu.memory_bytes,
        fits=answers.pop() if len(answers) == 1 else None,
        is_tight=needed > gpu.memory_bytes,
        peak_bytes=needed,
        usd_per_hour=price.usd_per_gpu_hour if price is not None else None,
    )


def _fits(ledger: LedgerFile, room_bytes: int) -> bool:
    try:
        replay(ledger, room_bytes=room_bytes)
    except OutOfMemory:
        return False
    return True


def _notes(ledger: LedgerFile, replayed: Replayed) -> list[str]:
    notes = []
    if ledger.updates < _ENOUGH:
        notes.append("the script made one update: what an optimizer holds may not be in the peak")
    if not replayed.allocated_bytes:
        notes.append("the script put nothing on the GPU")
    shapes = [kind for kind in ledger.guessed if kind != "item"]
    for kind in shapes:
        places = ", ".join(sorted(ledger.guessed[kind])[:3])
        notes.append(f"{kind} at {places} gives as much as its values say: counted at its largest")
    return notes
