"""`check`: two short, equally seeded trials of a new script, looked at closely."""

from pathlib import Path

from flatout.analyze.inspection import read_inspected
from flatout.analyze.readiness import check_first_updates
from flatout.hardware.machine import default_sources
from flatout.records.check import CheckReport
from flatout.records.errors import JobFailed
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest, insist_on_updates
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

DEFAULT_SEED = 1234


def check_job(request: ProfileRequest, run: str, folder: Path, on_progress: OnProgress) -> CheckReport:
    """Look at the first updates of a script; raises JobFailed where it makes none."""
    updates = request.steps or 5
    order = {
        "seed": DEFAULT_SEED if request.seed is None else request.seed,
        "pair_updates": updates,
        "inspect_updates": updates,
    }
    plan = TrialPlan(
        name="first run",
        command=request.command,
        stop=StopRule(updates=updates),
        order=order,
        startup_s=request.startup_s,
        silence_s=request.silence_s,
        environment=request.environment,
    )
    first = folder / TRIALS_FOLDER / "1-check"
    trial = run_trial(plan, first, on_progress=on_progress)
    insist_on_updates(trial, first)
    seen = read_inspected(first)
    if seen is None:
        raise JobFailed("the trial's files are gone", expected=f"steps under {first}", remedy="run it again")
    # Without the close look, and so without its synchronizations: the same numbers must come out.
    again_plan = TrialPlan(
        name="second run",
        command=plan.command,
        stop=plan.stop,
        order={**order, "inspect_updates": 0},
        startup_s=plan.startup_s,
        silence_s=plan.silence_s,
        environment=plan.environment,
    )
    second = folder / TRIALS_FOLDER / "2-check"
    trial_again = run_trial(again_plan, second, on_progress=on_progress)
    devices = [device for source in default_sources() for device in source.discover().devices]
    gpus = [device for device in devices if device.vendor != "cpu"]
    hidden = request.environment.get("CUDA_VISIBLE_DEVICES") == ""
    own = [d for d in gpus if (d.uuid or "").endswith(seen.rank.about.get("device_uuid") or "?")]
    checks = check_first_updates(
        trial,
        seen,
        read_inspected(second),
        gpus=0 if hidden else len(gpus),
        device_total_bytes=own[0].memory_total_bytes if own else None,
    )
    failed = any(check.status == "fail" for check in checks)
    return CheckReport(
        run=run,
        checks=tuple(checks),
        updates=trial.updates,
        losses=seen.losses,
        calls=seen.calls,
        parameters=seen.parameters,
        trials=(trial, trial_again),
        next="mend what failed, and check again" if failed else f"flatout profile {request.command.typed()}",
    )
