"""Why there was not enough memory: what a job noted when it ran out, its trend before, what would help."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.growth import growth
from flatout.analyze.steps import read_ranks
from flatout.levers.catalogue import BY_ID
from flatout.memory.fit import fit_job
from flatout.memory.planning import CONTEXT_BYTES
from flatout.records.autopsy import Autopsy, OutOfMemory, read_out_of_memory
from flatout.records.fit import FitOption
from flatout.records.session import OUT_OF_MEMORY_SNAPSHOT, RANKS_FOLDER
from flatout.runtime.profiling import ProfileRequest
from flatout.runtime.trial import OnProgress

# What needs no guard.
_SAME = ("exact", "memory")


_LINES_NOT_KEPT = (
    "the GPU was far from full when it was last looked at: lines of what was asked for since are not known"
)


def autopsy(
    request: ProfileRequest, run: str, place: Path, on_progress: OnProgress, *, look_for_fixes: bool = True
) -> Autopsy | None:
    """Of the job that ran in `place` as `request` says, levers and all; None where memory did not run out."""
    found = [
        (int(folder.name.partition("-")[0]), folder, note)
        for folder in sorted((place / RANKS_FOLDER).glob("*-*"))
        if (note := read_out_of_memory(folder)) is not None
    ]
    if not found:
        return None
    rank, folder, noted = found[0]
    notes = [] if noted.stacks_kept else [_LINES_NOT_KEPT]
    fixes: tuple[FitOption, ...] = ()
    if look_for_fixes and noted.on_gpu and noted.device_bytes:
        try:
            imagined = fit_job(request, run, place, on_progress, max_memory_bytes=_ours(noted))
            on = request.order.get("levers", ())
            fixes = tuple(option for option in imagined.strategies if option.fits and not _is_on(option, on))
            if not imagined.strategies:
                notes.append(
                    "on an imagined GPU of this size it fits: something else holds memory, or it grows"
                )
            elif not fixes:
                notes.append(f"nothing tried makes it fit; the least is {imagined.least_by}")
        except Exception as error:  # noqa: BLE001 - why the job ended is told whatever imagining it does
            said = str(error).splitlines() or [type(error).__name__]
            notes.append(f"what would help could not be found: {said[0]}")
    steps = next((one.steps for one in read_ranks(place) if one.folder == folder), ())
    snapshot = folder / OUT_OF_MEMORY_SNAPSHOT
    return Autopsy(
        run=run,
        command=request.command.words,
        rank=rank,
        found=noted,
        others_bytes=_others(noted) if noted.device_bytes else None,
        fragmented_share=_fragmented(noted),
        growth_bytes_per_step=growth(steps, on_gpu=noted.on_gpu) if steps else None,
        fixes=fixes,
        snapshot=str(snapshot) if snapshot.exists() else None,
        notes=tuple(notes),
    )


def _others(noted: OutOfMemory) -> int:
    """What is neither free nor ours: other processes, and what drivers keep."""
    if noted.device_bytes is None or noted.free_bytes is None or noted.reserved_bytes is None:
        return 0
    return max(0, noted.device_bytes - noted.free_bytes - noted.reserved_bytes)


def _ours(noted: OutOfMemory) -> int | None:
    """What there was for this job, its own context among it: that is not seen apart from what others take."""
    others = _others(noted)
    return noted.device_bytes - others + min(CONTEXT_BYTES, others) if noted.device_bytes else None


def _is_on(option: FitOption, on: Sequence[dict[str, Any]]) -> bool:
    return bool(option.levers) and all(choice.order() in on for choice in option.levers)


def _fragmented(noted: OutOfMemory) -> float:
    """Of what is reserved, what is free in pieces that are too small."""
    if (
        not noted.reserved_bytes
        or noted.asked_bytes is None
        or noted.largest_cached_bytes >= noted.asked_bytes
    ):
        return 0.0
    return noted.cached_bytes / noted.reserved_bytes


def restart_with(autopsy: Autopsy) -> FitOption | None:
    """The least costly way that needs nobody, and no proof: the same computed again, and nothing else."""
    usable = [
        option
        for option in autopsy.fixes
        if option.levers and all(BY_ID[choice.id].safety in _SAME for choice in option.levers)
    ]
    return min(usable, key=lambda option: option.predicted_slowdown, default=None)
