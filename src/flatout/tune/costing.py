"""What runs cost, from what `flatout run` left in their folders: while they run, and afterwards."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from flatout.analyze.cost import cost_of, job_time_of
from flatout.records.codec import decode
from flatout.records.energy import Cost, CostReport, HourPrice, RunCost
from flatout.records.errors import FlatoutError
from flatout.records.index import DIED, status_of
from flatout.records.live import LIVE_FILE, LIVE_KIND, LIVE_VERSION, LiveJob
from flatout.records.running import JobRun
from flatout.records.runs import RunFolder
from flatout.runtime.live_jobs import as_of_now

_REMEDY = "flatout report   # lists the runs that can be read"
_NO_GPU = "it trained on no GPU that can be priced"


def run_cost(folder: RunFolder, *, own_usd: float | None = None, epoch_samples: int | None = None) -> RunCost:
    """The account of one run, at the price that it was kept with or at the user's own."""
    live, why_not = _live_of(folder.path)
    done = _job_of(folder)
    name = live.name if live is not None else folder.manifest.id
    kept = done.cost if done is not None else None
    if live is None or not (live.devices or (kept is not None and kept.gpus)):
        why = (done.unknown.get("cost") if done is not None else None) or (
            _NO_GPU if live is not None else why_not
        )
        steps = sum(live.totals.steps.counts) if live is not None else 0
        return RunCost(
            run=folder.manifest.id,
            name=name,
            state=_state(folder, live),
            steps=steps,
            cost=None,
            unknown={"cost": why},
        )
    spent, state = job_time_of(live), _state(folder, live)
    if state == DIED:
        spent = dataclasses.replace(spent, steps_left=None)  # it makes none of them
    if kept is not None:
        spent = dataclasses.replace(
            spent,
            gpus=kept.gpus,
            energy=kept.energy if kept.energy.joules is not None else spent.energy,
            steps_per_epoch=_steps_per_epoch(kept),
        )
    if epoch_samples is not None:
        spent = dataclasses.replace(spent, samples_per_epoch=epoch_samples, steps_per_epoch=None)
    return RunCost(
        run=folder.manifest.id,
        name=name,
        state=state,
        steps=spent.steps,
        cost=cost_of(spent, _price(live, kept, own_usd)),
        throttled_s=live.totals.throttled_s,
    )


def together(runs: Sequence[RunCost]) -> CostReport:
    """Several runs; dollars of all only where all have a price."""
    costs = [run.cost for run in runs if run.cost is not None]
    usd = [cost.usd for cost in costs]
    wasted = [cost.usd_unused for cost in costs]
    return CostReport(
        runs=tuple(runs),
        gpu_hours=sum(cost.gpu_hours for cost in costs),
        unused_gpu_hours=sum(sum(cost.unused_gpu_hours.values()) for cost in costs),
        usd=_sum(usd),
        usd_unused=_sum(wasted),
    )


def _price(live: LiveJob, kept: Cost | None, own_usd: float | None) -> HourPrice:
    if own_usd is not None:
        return HourPrice(usd_per_gpu_hour=own_usd, source="your own price")
    if kept is not None:
        return kept.price
    if live.usd_per_hour is None or not live.devices:
        return HourPrice(usd_per_gpu_hour=None, source=live.unknown.get("usd_per_hour", "no price is known"))
    source = "as it was looked up when the job began"
    return HourPrice(usd_per_gpu_hour=live.usd_per_hour / len(live.devices), source=source)


def _steps_per_epoch(kept: Cost) -> float | None:
    if kept.usd_per_epoch is None or not kept.usd_per_step:
        return None
    return kept.usd_per_epoch / kept.usd_per_step


def _state(folder: RunFolder, live: LiveJob | None) -> str:
    """What it does now: a run that was killed could not say so."""
    if status_of(folder) == DIED:
        return DIED
    return live.state if live is not None else "unknown"


def _live_of(path: Path) -> tuple[LiveJob | None, str]:
    """Its own account of its time as of now, or why there is none."""
    try:
        data = (path / LIVE_FILE).read_bytes()
        live = decode(data, path / LIVE_FILE, LIVE_KIND, LIVE_VERSION, LiveJob, remedy=_REMEDY)
    except OSError:
        return None, "it was not run by `flatout run`, or by an older one"
    except FlatoutError as error:
        return None, error.received
    return as_of_now(live, path, time.time()), ""


def _job_of(folder: RunFolder) -> JobRun | None:
    if "job" not in folder.manifest.documents:
        return None
    try:
        return folder.read("job", 1, JobRun)
    except FlatoutError:
        return None  # the live file alone tells most of it


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
