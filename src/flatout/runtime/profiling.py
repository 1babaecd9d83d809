"""`profile` and `check` as sequences of trials in one run folder."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from flatout.analyze.device_use import device_use
from flatout.analyze.growth import growth
from flatout.analyze.profile import build_profile
from flatout.analyze.recorded import recordings, with_recordings
from flatout.analyze.steps import calls_without_update, read_ranks
from flatout.analyze.window import window_of
from flatout.hardware.host import cores_allowed, read_host
from flatout.records.errors import EnvironmentProblem, JobFailed
from flatout.records.profile import Profile
from flatout.records.session import RANKS_FOLDER, RECORDING_FILE, TAPS
from flatout.records.trial import Trial
from flatout.runtime.command import JobCommand
from flatout.runtime.neighbours import cores_of_others
from flatout.runtime.peaks import peaks_for
from flatout.runtime.progress import StopRule
from flatout.runtime.samples import DeviceSampler
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial

# What a training stands on; any other module may be the script's own.
_NO_MODULE = re.compile(r"No module named '(torch|transformers|accelerate|lightning|pytorch_lightning)'")
_NO_PART = re.compile(r"No module named '([A-Za-z_]\w*)[.\w]*'")
# What torch says to a script that asks for a GPU where it has none.
_NO_GPU = ("not compiled with CUDA enabled", "no NVIDIA driver", "No CUDA GPUs are available")
TRIALS_FOLDER = "trials"
# Updates that a script must make for recordings and a count after the second of them.
_ENOUGH_TO_RECORD = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """What to profile, and how thoroughly."""

    command: JobCommand
    steps: int | None = None
    seconds: float = 60.0
    startup_s: float = 900.0
    silence_s: float = 180.0
    seed: int | None = None
    nvtx: bool = False
    # The script infers: a step is a call of its model.
    infer: bool = False
    measure_limits: bool = True
    # Record some steps under torch's profiler, after those that are timed.
    record: Literal["", "kernels", "stacks"] = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # More for the session: taps, levers.
    order: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def stop_rule(self) -> StopRule:
        """Some updates, or until the median is known."""
        return StopRule(updates=self.steps, most_seconds=self.seconds)


def profile_job(request: ProfileRequest, run: str, folder: Path, on_progress: OnProgress) -> Profile:
    """Run the job for a while and say what it showed; raises JobFailed where it showed nothing."""
    plan = TrialPlan(
        name="profile",
        command=request.command,
        stop=request.stop_rule(),
        order={
            "count_flops": True,
            "record": request.record,
            "seed": request.seed,
            "nvtx": request.nvtx,
            "infer": request.infer,
            "taps": [*TAPS, "habits"],
            **request.order,
        },
        startup_s=request.startup_s,
        silence_s=request.silence_s,
        environment=request.environment,
    )
    place = folder / TRIALS_FOLDER / "1-profile"
    others = cores_of_others()
    with DeviceSampler() as sampler:
        trial = run_trial(plan, place, on_progress=on_progress)
        died = _died_of_a_recording(trial, place)
        if died:
            place.rename(place.with_name("recording-that-failed"))
            plan = dataclasses.replace(plan, order={**plan.order, "record": ""})
            trial = run_trial(plan, place, on_progress=_prefixed(on_progress, "once more, unrecorded: "))
        sampler.write(place / "samples.jsonl")
        devices = sampler.devices
    insist_on_updates(trial, place)
    lead = read_ranks(place)[0]
    on_gpu = str(lead.about.get("device", "cpu")).startswith("cuda")
    if trial.outcome == "ended" and trial.updates > 2:
        grew = bool(growth(lead.steps, on_gpu=on_gpu))
        recorded = trial.updates >= _ENOUGH_TO_RECORD
        _look_apart(plan, folder, on_progress, recording=recorded, find_holders=grew)
    peaks = peaks_for(
        lead.about.get("device_uuid"),
        on_gpu=on_gpu,
        measure=request.measure_limits,
        devices=devices if on_gpu else None,
        on_stage=_prefixed(on_progress, "this device's limits, once: "),
    )
    use = device_use(lead, window_of(lead).chosen, sampler.samples, devices)
    counted = folder / TRIALS_FOLDER / "2-count"
    counted_in = counted if counted.exists() else None
    profile = build_profile(run, trial, place, peaks, use, counted_in=counted_in)
    profile = dataclasses.replace(profile, others_cores=others, cores=cores_allowed(read_host(places=())))
    recorded_in = place if counted_in is None or recordings(place) else counted_in
    about = learned_in(place.parent)
    if died:
        about["trace_reason"] = died
    return with_recordings(profile, recorded_in, about, peaks)


def _died_of_a_recording(trial: Trial, place: Path) -> str:
    """How a job ended while a profiler recorded it, or nothing: some cannot bear one."""
    if trial.outcome not in ("failed", "killed", "silent") or not trial.updates:
        return ""
    if not any((place / RANKS_FOLDER).glob(f"*/{RECORDING_FILE}")):
        return ""
    ended = {"killed": f"was killed by signal {trial.signal}", "silent": "hung"}.get(trial.outcome, "failed")
    return f"the job {ended} while torch's profiler recorded it, so it was run once more without"


def learned_in(trials: Path) -> dict[str, Any]:
    """What the session of a profile learned; operations may have been counted in a trial of their own."""
    about = read_ranks(trials / "1-profile")[0].about
    counted = trials / "2-count"
    if "flops" not in about and counted.exists():
        lead = next(iter(read_ranks(counted)), None)  # none, where it made no step
        about = {**about, "flops": (lead.about.get("flops") if lead is not None else None) or {}}
    return about


def _look_apart(
    plan: TrialPlan, folder: Path, on_progress: OnProgress, *, recording: bool, find_holders: bool
) -> None:
    """A script that came to its own end could not be asked for more steps: look in a trial of its own."""
    order = {**plan.order, "find_holders": find_holders, **({} if recording else {"record": ""})}
    counting = dataclasses.replace(plan, name="counting", stop=StopRule(updates=2), order=order)
    run_trial(counting, folder / TRIALS_FOLDER / "2-count", on_progress=on_progress)


def _prefixed(on_progress: OnProgress, prefix: str) -> Callable[[str, int, int], None]:
    return lambda text, done, total: on_progress(prefix + text, done, total)


def insist_on_updates(trial: Trial, folder: Path) -> None:
    """A job that made no update has nothing to show: say why, as far as it can be told."""
    if trial.updates > 0:
        return
    insist_on_libraries(trial)
    words = _words_for(trial, folder)
    tail = "\n".join(f"    {line}" for line in trial.said[-12:])
    received = words[0] + (f"; the last it said:\n{tail}" if tail else "")
    raise JobFailed(received, expected=words[1], remedy=words[2])


def insist_on_libraries(trial: Trial) -> None:
    """Whoever has no torch has the wrong Python, and nothing is wrong with the script: say that alone."""
    missing = next(filter(None, map(_NO_MODULE.search, reversed(trial.said))), None)
    if trial.outcome == "failed" and missing is not None:
        program = trial.command[0]
        python = program if Path(program).name.startswith("python") else "its Python"
        raise EnvironmentProblem(
            f"{missing[1]} is not installed where the script runs, in {python}",
            expected=f"a Python with {missing[1]}",
            remedy=f"--python PATH   # of one that has it; or: pip install {missing[1]}",
        )


def _lies_here(trial: Trial) -> str:
    """A package or module of the working folder that the script looked for in vain."""
    missing = next(filter(None, map(_NO_PART.search, reversed(trial.said))), None)
    if missing is None:
        return ""
    here = Path(missing[1]).is_dir() or Path(f"{missing[1]}.py").is_file()
    return missing[1] if here else ""


def _words_for(trial: Trial, folder: Path) -> tuple[str, str, str]:
    output = f"what it said is in {folder}"
    expected = "a script that trains: optimizer.step(), or model.zero_grad() between updates by hand"
    said = "\n".join(trial.said)
    if trial.outcome == "silent":
        waited = f"the script made no optimizer update within {trial.took_s:.0f} s and was ended"
        return waited, expected, f"--startup-limit gives it longer; {output}"
    if trial.outcome == "killed":
        return f"the script was killed by signal {trial.signal} before its first update", expected, output
    if trial.outcome == "failed" and "EOFError" in said:
        return (
            "the script reads from standard input, which a trial does not have",
            "a script that needs no typing",
            "answer by arguments, or from a file: flatout profile -- sh -c 'python train.py < answers.txt'",
        )
    if trial.outcome == "failed" and trial.exit_code is None:
        return (
            "the script could not be started, or the process that keeps it was killed",
            "a command that can be started, and to be left alone",
            f"is the machine out of memory? dmesg | tail; {output}",
        )
    lies_here = _lies_here(trial)
    if trial.outcome == "failed" and lies_here:
        return (
            f"the script does not find {lies_here}, which lies in this folder",
            "a search path with it: Python adds the script's own folder, not the one that you are in",
            f"PYTHONPATH=. flatout ...   # as you would for python itself; {output}",
        )
    if trial.outcome == "failed" and any(words in said for words in _NO_GPU):
        return (
            "the script asks for a GPU, and torch sees none",
            "a script that runs on what this machine has",
            f"tell it to use the CPU, if it has an option for that; else flatout doctor; {output}",
        )
    if trial.outcome == "failed":
        first = f" ({trial.culprit})" if trial.culprit else ""
        ended = f"the script ended with exit code {trial.exit_code} before its first update{first}"
        return ended, expected, f"run it without Flatout first; {output}"
    processes, training, calls = calls_without_update(folder)
    if not processes:
        why = "it ended without loading torch in a process that Flatout could watch"
        return (
            f"the script made no optimizer update: {why}",
            expected,
            "flatout doctor   # is this its Python?",
        )
    if calls and not training:
        seen = (
            f"the script came to its end without an optimizer update; it called a model {calls} times or more"
        )
        infer = "flatout profile --infer, or tune --infer: a step is then a call of the model"
        return seen, expected, infer
    seen = f" ({training} training calls of a model were seen)" if training else ""
    return f"the script came to its end without an optimizer update{seen}", expected, output
