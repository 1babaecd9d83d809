"""From a trial's files to a `Profile`: the steady steps, where their time went, and how far from the peak."""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.growth import growth_of, holders_in
from flatout.analyze.mfu import mfu
from flatout.analyze.parts import device_parts, host_parts, waterfall
from flatout.analyze.rank_use import rank_use
from flatout.analyze.steps import NS_PER_MS, RankSteps, last_of_each, read_ranks, read_workers
from flatout.analyze.window import Window, step_times, window_of
from flatout.records.limits import Limits, RatedPeaks
from flatout.records.profile import CompileUse, DeviceUse, LoaderUse, MemoryUse, Profile
from flatout.records.step import StepTimes
from flatout.records.trial import Trial

_LIST_AT_MOST = 2000
_STARTING = -1
# Steps at the start that may compile: forward, backward, an optimizer, sizes that turn out to change.
_COMPILES_AT_FIRST = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks:
    """The peaks of the job's device, each with a reason where it is not known."""

    rated: RatedPeaks | None = None
    rated_reason: str = ""
    limits: Limits | None = None
    limits_reason: str = ""
    device_total_bytes: int | None = None


def build_profile(
    run: str,
    trial: Trial,
    folder: Path,
    peaks: Peaks,
    device_use: DeviceUse | None = None,
    *,
    counted_in: Path | None = None,
) -> Profile:
    """The profile of a trial that made at least one update; operations may have been counted in another."""
    ranks = last_of_each(read_ranks(folder))
    lead = ranks[0]
    about = lead.about
    window = window_of(lead)
    step = step_times(window)
    on_gpu = str(about.get("device", "cpu")).startswith("cuda")
    wall_s = sum(_training_ns(one) for one in window.chosen) / 1e9
    evaluated = [one for one in window.steps if one["evaluations"]]
    samples = _mean([one["samples"] for one in window.watched])
    flops, reason = _flops(ranks, samples)
    held = about.get("holders")
    if counted_in is not None:
        counted = read_ranks(counted_in)
        flops, reason = _flops(counted, samples) if flops is None else (flops, reason)
        held = held or next((rank.about.get("holders") for rank in counted), None)
    return Profile(
        run=run,
        steps=len(window.chosen),
        updates=len(window.steps),
        steady_from=window.steady.start + 1,
        steady=window.steady.reached,
        steady_reason=window.steady.reason,
        pace_shifted_at=window.steady.shifted_at + 1 if window.steady.shifted_at is not None else None,
        step_ms=step,
        device=about.get("device"),
        device_name=about.get("device_name"),
        samples_per_step=samples,
        samples_per_s=_rate(window, step, "samples", wall_s, len(ranks)),
        tokens_per_s=_rate(window, step, "tokens", wall_s, len(ranks)),
        micro_batches=_mean([one["backwards"] for one in window.watched]) or 0.0,
        skipped_updates=sum(one["skipped_updates"] for one in window.steps),
        waterfall=waterfall(window.watched, step, on_gpu=on_gpu),
        host=host_parts(window.watched),
        device_parts=device_parts(window.watched),
        evaluation_ms=_mean([one["evaluation_ns"] / NS_PER_MS for one in evaluated]),
        evaluations=len(evaluated),
        mfu=mfu(
            flops,
            reason,
            step.mean / 1000 if step else None,
            devices=len(ranks) if on_gpu else 1,
            on_cpu=not on_gpu,
            rated=peaks.rated,
            rated_reason=peaks.rated_reason,
            limits=peaks.limits,
            limits_reason=peaks.limits_reason,
            made_fp8=_is_applied("fp8", about),
        ),
        memory=_memory(window.steps, {**about, "holders": held}, peaks),
        loaders=_loaders(lead, folder),
        compile=_compiles(window, about),
        device_use=device_use or DeviceUse(samples=0),
        collector_ms=_mean([one["collector_ns"] / NS_PER_MS for one in window.watched]) or 0.0,
        losses=tuple(_mean(one["losses"]) for one in window.steps[:_LIST_AT_MOST] if one["watched"]),
        gradient_norms=tuple(
            _mean(one["gradient_norms"]) for one in window.steps[:_LIST_AT_MOST] if one["gradient_norms"]
        ),
        ranks=tuple(rank_use(rank) for rank in ranks),
        trial=trial,
        parameters=(about.get("holds") or {}).get("parameters"),
        optimizers=tuple(about.get("optimizers") or ()),
        roots=tuple(about.get("roots") or ()),
        largest_batch=max(
            (one["samples"] / max(1, one["backwards"]) for one in window.watched if one["samples"]),
            default=None,
        ),
    )


def _is_applied(lever: str, about: Mapping[str, Any]) -> bool:
    """Whether a lever was on to the end."""
    told = (about.get("levers") or {}).get(lever) or {}
    return bool(told.get("applied")) and "dropped" not in told


def _training_ns(step: dict[str, Any]) -> int:
    return int(step["ended_ns"] - step["started_ns"] - step["evaluation_ns"])


def _rate(window: Window, step: StepTimes | None, field: str, wall_s: float, ranks: int) -> float | None:
    """Samples a second of the whole job: by the device's clock where that timed the steps."""
    count = _mean([one[field] for one in window.watched])
    if not count or step is None:
        return None
    seconds = step.mean / 1000 if window.on_device else wall_s / len(window.chosen)
    return count / seconds * ranks if seconds > 0 else None


def _flops(ranks: Sequence[RankSteps], samples: float | None) -> tuple[dict[str, Any] | None, str]:
    """Operations of one step of all ranks, or why they are not known.

    Of a mean step: the one that was counted may have had another batch, such as an epoch's last.
    """
    counted = [rank.about["flops"] for rank in ranks if rank.about.get("flops")]
    if not counted or len(counted) < len(ranks):
        given = next((r.about["flops_reason"] for r in ranks if r.about.get("flops_reason")), "")
        reason = f"the step could not run while its operations were counted ({given})" if given else ""
        return None, reason or "the script ended before the operations of a step could be counted"
    whole = dict(counted[0])
    for other in counted[1:]:
        whole["flops"] += other["flops"]
        whole["recomputed_flops"] += other["recomputed_flops"]
    of_counted = next((one["samples"] for one in ranks[0].steps if one["update"] == whole.get("update")), 0)
    if samples and of_counted and samples != of_counted:
        whole["of_counted"] = samples / of_counted
        for name in ("flops", "recomputed_flops"):
            whole[name] = round(whole[name] * whole["of_counted"])
    return whole, ""


def _memory(steps: Sequence[dict[str, Any]], about: dict[str, Any], peaks: Peaks) -> MemoryUse:
    def most(name: str) -> int | None:
        return max((step[name] for step in steps if step.get(name) is not None), default=None)

    holds = about.get("holds") or {}
    allocated = most("allocated_peak_bytes")
    slope = growth_of(steps, on_gpu=allocated is not None)
    known = [holds.get(name, 0) for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")]
    unknown = (
        {}
        if holds
        else dict.fromkeys(
            ("parameter_bytes", "gradient_bytes", "optimizer_bytes"), "told apart at the second update"
        )
    )
    return MemoryUse(
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=most("reserved_peak_bytes"),
        device_total_bytes=peaks.device_total_bytes if allocated is not None else None,
        host_peak_bytes=most("host_peak_bytes"),
        parameter_bytes=holds.get("parameter_bytes"),
        gradient_bytes=holds.get("gradient_bytes"),
        optimizer_bytes=holds.get("optimizer_bytes"),
        activation_bytes=max(0, allocated - sum(known)) if allocated is not None and holds else None,
        allocation_retries=most("allocation_retries"),
        growth_bytes_per_step=slope.steady if slope is not None else None,
        growth_low_bytes_per_step=slope.low if slope is not None else None,
        growth_high_bytes_per_step=slope.high if slope is not None else None,
        holders=holders_in(about),
        unknown=unknown,
    )


def _loaders(rank: RankSteps, folder: Path) -> tuple[LoaderUse, ...]:
    kinds = rank.about.get("loaders") or ()
    taken: dict[int, list[int]] = {}
    for step in rank.steps:
        for number, (batches, wait_ns) in step["loaders"].items():
            so_far = taken.setdefault(int(number), [0, 0])
            so_far[0] += batches
            so_far[1] += wait_ns
    used = [(entry, *taken[place]) for place, entry in enumerate(kinds) if place in taken]
    # Those that only evaluated count too: what it costs to make a batch is known for a whole process.
    with_workers = sum(bool(entry["num_workers"]) for entry in kinds)
    without = len(kinds) - with_workers
    workers = read_workers(folder, rank.pid)
    found = []
    for entry, batches, wait_ns in used:
        making: list[dict[str, Any]] = []
        if entry["num_workers"] and with_workers == 1:
            making = workers
        elif not entry["num_workers"] and without == 1 and rank.about.get("in_loop"):
            making = [rank.about["in_loop"]]
        found.append(_loader_use(entry, batches, wait_ns, making, sum(map(_training_ns, rank.steps))))
    started, starting_ns = taken.get(_STARTING, (0, 0))
    if len(found) == 1 and started:
        # The first start belongs to no step that is timed; later ones come with every epoch.
        found = [dataclasses.replace(found[0], starts=started, start_ms=starting_ns / started / NS_PER_MS)]
    return tuple(found)


def _loader_use(
    entry: dict[str, Any], batches: int, wait_ns: int, making: Sequence[dict[str, Any]], training_ns: int
) -> LoaderUse:
    settings = {name: value for name, value in entry.items() if name != "data_set"}
    made = sum(worker["batches"] for worker in making)
    busy_ns = sum(worker["busy_ns"] for worker in making)
    # Of the time in which the loop trained: a worker lives through starts and evaluations too.
    could_ns = entry["num_workers"] * training_ns
    unknown = {} if entry["num_workers"] else {"workers_busy_share": "the loader has no workers"}
    return LoaderUse(
        data_set=entry["data_set"],
        settings=settings,
        batches=batches,
        wait_ms=wait_ns / batches / NS_PER_MS,
        load_ms=sum(w["load_ns"] for w in making) / made / NS_PER_MS if made else None,
        collate_ms=sum(w["collate_ns"] for w in making) / made / NS_PER_MS if made else None,
        workers_busy_share=min(1.0, busy_ns / made * batches / could_ns) if made and could_ns else None,
        unknown=unknown,
    )


def _compiles(window: Window, about: dict[str, Any]) -> CompileUse:
    return CompileUse(
        compiles=sum(step["compiles"] for step in window.steps),
        recompiles=sum(step["recompiles"] for step in window.steps),
        compile_s=sum(step["compile_ns"] for step in window.steps) / 1e9,
        # Not of the steady steps, which begin after the last of all compilations.
        compiles_in_steady_state=sum(bool(step["compiles"]) for step in window.steps[_COMPILES_AT_FIRST:]),
        graph_breaks=about.get("graph_breaks") or {},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
