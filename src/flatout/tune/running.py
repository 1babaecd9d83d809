"""`run`: a whole job under its plan, and how that went against what was promised."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flatout.analyze.profile import Peaks, build_profile
from flatout.analyze.recorded import recordings
from flatout.analyze.steps import RankSteps, last_of_each, loss_of, read_ranks
from flatout.analyze.straggling import straggler
from flatout.diagnose import policy
from flatout.memory.autopsy import restart_with
from flatout.records.autopsy import Autopsy
from flatout.records.finite import PATIENCE, Updates
from flatout.records.plan import Fingerprint, Plan
from flatout.records.protection import Protected, Protection
from flatout.records.running import Alarm, Cleanups, Continued, JobRun
from flatout.records.session import MEMORY_HISTORY_FILE, RANKS_FOLDER, TAPS
from flatout.records.trial import Shield, Trial
from flatout.runtime.alarms import alarms_in
from flatout.runtime.checkpoint.store import checkpoints
from flatout.runtime.command import JobCommand
from flatout.runtime.finite.stopped import not_finite_in
from flatout.runtime.running import Care, Ending, run_to_the_end
from flatout.tune.batching import BATCH_SIZE
from flatout.tune.continuing import judge_first_steps
from flatout.tune.debugging import environment_of
from flatout.tune.fingerprints import fingerprint
from flatout.tune.journal import SeenLosses, read_losses
from flatout.tune.request import command_of, order_of

JOB_FOLDER = "job"
# Else torch's profiler would write to the script's own output whenever some steps are recorded.
_QUIET_PROFILER = {"KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99")}


def run_job(
    plan: Plan,
    command: JobCommand,
    run: str,
    folder: Path,
    *,
    output_to_stderr: bool = False,
    environment: dict[str, str] | None = None,
    watch_every: int = 0,
    on_alarm: Callable[[Alarm], None] = lambda _alarm: None,
    life: int = 1,
    protect: Protection | None = None,
    care: Care | None = None,
    on_nan: str = "",
    patience: int = PATIENCE,
    debug: Sequence[str] = (),
) -> JobRun:
    """Run it to its end; every so many updates record some, and tell when steps become slower."""
    place = place_of_life(folder, life)
    ending = run_to_the_end(
        command_of(command, plan.levers),
        place,
        {
            **order_of(plan.levers),
            "check_levers": True,
            "infer": plan.infer,
            "pair_updates": 1,
            "watch_every": watch_every,
            "heartbeat": True,
            "taps": (*TAPS, "autopsy", "cleanup"),
            "protect": dataclasses.asdict(protect) if protect is not None else None,
            "on_nan": on_nan,
            "patience": patience,
            "debug": tuple(debug),
        },
        output_to_stderr=output_to_stderr,
        environment={
            **(_QUIET_PROFILER if watch_every else {}),
            **environment_of(debug),
            **(environment or {}),
        },
        on_alarm=on_alarm,
        care=care,
    )
    seen = read_losses(folder.parent / plan.run) if plan.run else None
    try:
        done = _job_run(plan, command, run, place, ending, seen)
        return _protected(done, protect, place) if protect is not None else done
    except Exception as error:  # noqa: BLE001 - how the job ended is told whatever its figures are
        return _bare(plan, run, ending, f"its figures are missing: {type(error).__name__}: {error}")


def _bare(plan: Plan, run: str, ending: Ending, note: str) -> JobRun:
    """What is known without a look at its steps."""
    return JobRun(
        run=run,
        steps=None,
        exit_code=ending.exit_code,
        signal=ending.signal,
        took_s=ending.took_s,
        levers=tuple(choice.words() for choice in plan.levers),
        dropped_levers={},
        hangs=ending.hangs,
        ended_by_us=ending.ended_by_us,
        asked=ending.asked,
        ended_workers=ending.killed_workers,
        notes=(note,),
        unknown={"steps": note},
    )


def _protected(done: JobRun, wish: Protection, place: Path) -> JobRun:
    """With how its protection went; a life that goes on in the middle has no first steps to compare."""
    ranks = read_ranks(place)
    told = (ranks[0].about.get("protection") or {}) if ranks else {}
    known = {field.name for field in dataclasses.fields(Protected)}
    told = {name: value for name, value in told.items() if name in known}
    on_disk = checkpoints(Path(wish.folder))
    if on_disk:  # a process that was killed has not told of its last
        told["saved_at"] = on_disk[0].step
    found = Protected(folder=wish.folder, **told)
    guard = done.guard
    if guard is not None and found.resumed_at is not None:
        guard = Continued(verdict="unknown", steps=0, reason=f"it went on after update {found.resumed_at}")
    return dataclasses.replace(done, protection=found, guard=guard)


def place_of_life(folder: Path, life: int) -> Path:
    """Where a job leaves its steps: each time that it is started, another place."""
    return folder / (JOB_FOLDER if life == 1 else f"{JOB_FOLDER}-{life}")


def plan_after(plan: Plan, found: Autopsy) -> Plan | None:
    """The plan with whatever is predicted to make it fit; None where nothing would that needs nobody."""
    way = restart_with(found)
    had = {choice.id for choice in plan.levers}
    levers = tuple(choice for choice in way.levers if choice.id not in had) if way is not None else ()
    return dataclasses.replace(plan, levers=(*plan.levers, *levers)) if levers else None


def _job_run(
    plan: Plan, command: JobCommand, run: str, place: Path, ending: Ending, seen: SeenLosses | None
) -> JobRun:
    everyone = read_ranks(place)
    ranks = last_of_each(everyone)
    about = ranks[0].about if ranks else {}
    told = about.get("levers") or {}
    dropped = {name: facts["dropped"] for name, facts in told.items() if "dropped" in facts}
    refused = [one["reason"] for one in about.get("loader_overrides", ()) if not one["applied"]]
    if refused:
        dropped["loader"] = refused[0]
    before = [one for one in everyone if one not in ranks and one.rank == ranks[0].rank]
    steps = sum(len(one.steps) for one in (*before, *ranks[:1]))
    profile = None
    if ranks and len(ranks[0].steps) >= 3:
        trial = Trial(
            name="run",
            folder=str(place),
            command=command.words,
            outcome="ended",
            updates=steps,
            ranks=len(ranks),
            took_s=ending.took_s,
            shield=Shield(kind="none"),
        )
        profile = build_profile(run, trial, place, Peaks())
    samples_per_s = profile.samples_per_s if profile is not None else None
    several = profile if profile is not None and len(ranks) > 1 else None
    now = fingerprint(command, None, about)
    no_promise = plan.job.why_no_promise(now)
    promised = None if no_promise else plan.samples_per_s
    return JobRun(
        run=run,
        steps=steps,
        exit_code=ending.exit_code,
        signal=ending.signal,
        took_s=ending.took_s,
        levers=tuple(choice.words() for choice in plan.levers if choice.id not in dropped),
        dropped_levers=dropped,
        samples_per_s=samples_per_s,
        promised_samples_per_s=promised,
        # The model's operations for a sample are what they were when the plan was made.
        mfu=plan.mfu * samples_per_s / promised if plan.mfu and promised and samples_per_s else None,
        guard=_continued(plan, now, everyone, seen) if plan.levers else None,
        alarms=tuple(alarms_in(place)),
        hangs=ending.hangs,
        ended_by_us=ending.ended_by_us,
        asked=ending.asked,
        losses_not_finite=_losses_not_finite(everyone),
        updates=Updates(**about["finite_updates"]) if "finite_updates" in about else None,
        not_finite=not_finite_in(place),
        debug=about.get("debug") or {},
        memory_histories=tuple(
            str(path) for path in sorted(place.glob(f"{RANKS_FOLDER}/*/{MEMORY_HISTORY_FILE}"))
        ),
        cleanups=Cleanups(**about["cleanups"]) if "cleanups" in about else Cleanups(),
        recordings=tuple(str(path) for path in recordings(place, "rank*-step*.pt.trace.json.gz")),
        ended_workers=ending.killed_workers,
        ranks=several.ranks if several else (),
        straggler=straggler(several.ranks, several.roots, policy.STRAGGLER) if several else None,
        notes=(*plan.job.differences(now), *_notes_of_levers(told)),
        unknown={
            **({"guard": "no step was seen"} if not ranks else {}),
            **({} if "finite_updates" in about else {"updates": "not looked at: flatout run --on-nan skip"}),
            "not_finite": "it was not stopped for that",
            **({} if plan.levers else {"guard": "it ran as written"}),
            **({"samples_per_s": "too few steps"} if samples_per_s is None else {}),
            **({"promised_samples_per_s": no_promise, "mfu": no_promise} if no_promise else {}),
            "straggler": "no rank is behind the others" if several else "one rank, or too few steps",
            **({"asked": "nobody asked it to end"} if ending.asked is None else {}),
            **({"signal": "ended without one"} if ending.signal is None else {}),
            **({"exit_code": "ended by a signal"} if ending.exit_code is None else {}),
        },
    )


def _notes_of_levers(told: Mapping[str, Any]) -> list[str]:
    """What of them did not work, where the rest did."""
    return [f"{name}: {note}" for name, facts in told.items() for note in facts.get("notes", ())]


def _losses_not_finite(ranks: Sequence[RankSteps]) -> int:
    """In how many of the steps that were looked at the loss of some rank was not finite."""
    losses = [loss for rank in ranks for step in rank.steps if (loss := loss_of(step)) is not None]
    return sum(not math.isfinite(loss) for loss in losses)


def _continued(
    plan: Plan, now: Fingerprint, ranks: Sequence[RankSteps], seen: SeenLosses | None
) -> Continued | None:
    if not ranks:
        return None
    if any(choice.id == BATCH_SIZE for choice in plan.levers):
        return Continued(verdict="unknown", steps=0, reason="another batch size is another training")
    lead = ranks[0]
    losses = [loss_of(step) for step in lead.steps]
    found = judge_first_steps(losses, seen, lead.about.get("pairing") or {})
    if found.verdict == "left" and plan.job.arguments != now.arguments:
        reason = "its arguments are not those that it was tuned with: losses cannot be compared"
        return Continued(verdict="unknown", steps=0, reason=reason)
    return found
