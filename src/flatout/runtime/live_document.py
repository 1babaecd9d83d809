"""Puts together what is known of a job at this moment: the record that others read."""

import contextlib
import dataclasses
import getpass
import math
import os
import platform
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from flatout.records.live import LiveJob, LiveTotals
from flatout.runtime.checkpoint.store import MANIFEST, checkpoints
from flatout.runtime.following import Followed
from flatout.runtime.last_profile import LastProfile
from flatout.runtime.lives_seen import JobEnd, LivesSeen
from flatout.runtime.own_devices import OwnDevices

_NOT_SAVED = "neither --protect nor flatout.Checkpointer has saved it"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promise:
    """What is known of a job before it starts."""

    # The words by which it is known in lists, and its script.
    name: str
    script: str = ""
    samples_per_s: float | None = None
    # At that rate, where a plan says so.
    mfu: float | None = None
    # Whether levers are on, which move the floor of a step.
    has_levers: bool = False
    # Where `flatout run --protect` saves it.
    protected: Path | None = None


def live_job(
    folder: Path,
    began_unix_s: float,
    seen: LivesSeen,
    own: OwnDevices,
    promise: Promise,
    profile: LastProfile,
) -> LiveJob:
    """Everything, as of now."""
    lead, price = seen.lead, own.price()
    state, why = seen.state()
    end = seen.end or JobEnd(why="it has not ended")
    now_unix_s, now_s = time.time(), time.monotonic()
    usd = price.usd_per_gpu_hour
    fields = _of_steps(seen, promise, profile) if lead is not None else {}
    return LiveJob(
        run=folder.name,
        name=promise.name,
        run_folder=str(folder),
        host=platform.node(),
        pid=os.getpid(),
        user=_user(),
        state=state,
        state_reason=why,
        started_at_unix_s=began_unix_s,
        written_at_unix_s=now_unix_s,
        life=max(seen.number, 1),
        exit_code=end.exit_code,
        signal=end.signal,
        updates=lead.updates() if lead is not None else 0,
        promised_samples_per_s=promise.samples_per_s,
        finding=profile.finding,
        usd_per_hour=usd * len(own.devices) if usd is not None else None,
        ranks=tuple(one.live(now_s) for one in seen.ranks),
        devices=tuple(device.uuid for device in own.devices if device.uuid),
        totals=_totals(seen, own, now_unix_s - began_unix_s),
        unknown={
            **(_reasons_of_steps(lead, promise, profile) if lead is not None else {}),
            "finding": profile.finding_reason,
            "promised_samples_per_s": "no plan promises anything for this script",
            "usd_per_hour": price.source,
            "checkpoint_at_unix_s": _NOT_SAVED,
            "checkpoint_update": _NOT_SAVED,
            "exit_code": end.why or "ended by a signal",
            "signal": end.why or "ended without one",
        },
        **_of_checkpoints(seen.ranks, promise.protected),
        **fields,
    )


def _of_steps(seen: LivesSeen, promise: Promise, profile: LastProfile) -> dict[str, Any]:
    lead, ranks = seen.ranks[0], seen.ranks
    step_s, loss = lead.pace.blocks.median_s(), lead.pace.loss
    if loss is not None:  # a loss is seen as it goes into backward(), which is after a scaler
        loss /= lead.loss_scale() or 1.0
    samples_per_s = _sum([one.pace.samples_per_s() for one in ranks])
    is_told = samples_per_s and promise.samples_per_s and promise.mfu
    held = [one.pace.memory_peak_bytes for one in ranks if one.pace.memory_peak_bytes is not None]
    planned = lead.about.get("updates_planned")
    return {
        "updates_planned": planned if isinstance(planned, int) and planned > 0 else None,
        "step_s": step_s,
        "best_step_s": seen.best_step_s,
        "samples_per_s": samples_per_s,
        "tokens_per_s": _sum([one.pace.tokens_per_s() for one in ranks]),
        # The model's operations for a sample are what they were when the plan was made.
        "mfu": promise.mfu * samples_per_s / promise.samples_per_s if is_told else None,  # type: ignore[operator]
        "headroom": None if promise.has_levers else profile.headroom(step_s, lead.pace.samples_per_step()),
        "loss": loss if loss is not None and math.isfinite(loss) else None,
        "loss_scale": lead.loss_scale(),
        "data_wait_share": _mean([one.pace.data_wait_share() for one in ranks]),
        "memory_peak_bytes": max(held, default=None),
    }


def _reasons_of_steps(lead: Followed, promise: Promise, profile: LastProfile) -> dict[str, str]:
    return {
        "updates_planned": "the script does not say how many it will make",
        "samples_per_s": "no batch was seen on its way into a model",
        "tokens_per_s": "its samples are no tokens",
        "best_step_s": "too few steps",
        "mfu": "no plan says how many operations a sample takes",
        "headroom": "levers are on: the floors of a profile are those of the job as written"
        if promise.has_levers
        else profile.floor_reason,
        "loss": "no loss was seen" if lead.pace.loss is None else "the last one was not finite",
        "loss_scale": "no GradScaler was seen at work",
    }


def _of_checkpoints(ranks: Sequence[Followed], protected: Path | None) -> dict[str, Any]:
    """The newest that was committed, wherever the job saves."""
    told = {Path(one.about["checkpoints"]) for one in ranks if one.about.get("checkpoints")}
    found = []
    for folder in told | ({protected} if protected is not None else set()):
        with contextlib.suppress(OSError):
            newest = next(iter(checkpoints(folder)), None)
            if newest is not None:
                found.append(((newest.path / MANIFEST).stat().st_mtime, newest.step))
    at_unix_s, update = max(found, default=(None, None))
    return {"checkpoint_at_unix_s": at_unix_s, "checkpoint_update": update}


def _totals(seen: LivesSeen, own: OwnDevices, held_s: float) -> LiveTotals:
    """With what the devices tell; they are paid for from the job's start, whatever it did on them."""
    drawn = own.energy()
    return dataclasses.replace(
        seen.totals(),
        throttled_s=own.throttling().given_s,
        energy_j=drawn.joules or 0.0,
        energy_source=drawn.source,
        device_s=held_s * len(own.devices),
        device_idle_s=own.idle_s,
    )


def _sum(rates: Collection[float | None]) -> float | None:
    """Of all ranks; unknown while one of them is."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _mean(shares: Collection[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
