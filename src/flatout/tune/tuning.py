"""`tune` from beginning to end: baseline, loader, levers by turns, guard, confirmation, batch size, plan."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.analyze.steps import read_ranks
from flatout.hardware.host import read_host
from flatout.levers.catalogue import BY_ID, LEVERS
from flatout.levers.job import JobFacts
from flatout.records.errors import JobFailed
from flatout.records.plan import Choice, Fingerprint
from flatout.records.profile import Profile
from flatout.records.session import TAPS
from flatout.records.tuning import LeverTrial, Pace
from flatout.records.words import duration, memory_size
from flatout.runtime.peaks import peaks_for
from flatout.runtime.profiling import TRIALS_FOLDER, profile_job
from flatout.runtime.progress import StopRule
from flatout.runtime.samples import DeviceSampler
from flatout.runtime.sweep import sweep_loader, workers_needed
from flatout.runtime.trial import OnProgress, run_trial
from flatout.tune.arms import ArmResult, Ask
from flatout.tune.batching import BATCH_SIZE, as_trials, climb, consequence
from flatout.tune.bench import Answers, Bench
from flatout.tune.facts import fingerprint, job_facts
from flatout.tune.journal import Journal, read_answers, write_job
from flatout.tune.pace import Measured, gain, measured_in, pace_of
from flatout.tune.proof import Proof, with_verdicts
from flatout.tune.request import TuneRequest, order_of
from flatout.tune.result import Found, Stages, result_of
from flatout.tune.search import OUT_OF_TIME, WORTH, Finder, Limits, conflict

# A loop that waits for data for less than this has a loader that keeps up.
_WAITS = 0.03
# A plan for less memory may cost so much time, and must save so much memory.
_SLOWER_AT_MOST = 0.05
_LESS_AT_LEAST = 0.01


def tune_job(request: TuneRequest, run: str, folder: Path, on_progress: OnProgress) -> Found:
    """Tune a job; everything that was tried lies in `folder`."""
    return _Tuner(request, run, folder, on_progress).tune()


class _Tuner:
    def __init__(self, request: TuneRequest, run: str, folder: Path, on_progress: OnProgress) -> None:
        self._request = request
        self._run = run
        self._folder = folder
        self._trials_folder = folder / TRIALS_FOLDER
        self._tell = on_progress
        self._journal = Journal(folder)
        self._began = time.monotonic()
        self._limits = Limits(
            only=request.only,
            skip=request.skip,
            deadline=self._began + request.budget_s,
            job_steps=request.job_steps,
        )
        # A baseline that takes half of the time allowed leaves little to try.
        most_s = min(12.0, max(3.0, request.budget_s / 10))
        self._measured = StopRule(precision=0.01, fewest_steps=20, fewest_seconds=2.0, most_seconds=most_s)
        self._notes: list[str] = []
        self._answers: Answers = {}

    def tune(self) -> Found:
        """The whole loop; raises JobFailed where the job cannot even be run as written."""
        baseline = self._baseline()
        as_written = pace_of(baseline)
        about = read_ranks(self._trials_folder / "1-profile")[0].about
        on_gpu = str(about.get("device", "cpu")).startswith("cuda")
        peaks = peaks_for(about.get("device_uuid"), on_gpu=on_gpu, measure=False)
        job = job_facts(baseline, about, peaks)
        loader, loader_trial = self._loader(job, baseline, ())
        base = (loader,) if loader is not None else ()
        self._resume(fingerprint(self._request.job.command, baseline, about), base)
        finder = Finder(_with_workers(job, loader), self._limits)
        candidates = finder.candidates(LEVERS)
        if self._request.goal == "memory":
            # A loader's workers serve speed, and take memory.
            found, measured = self._lean(finder, candidates, (), as_written)
        else:
            if candidates:
                self._bench(finder, candidates, base)
            found, measured = (*base, *finder.best), None
            if found and loader is None and finder.best:
                measured = self._measure("the plan", found, as_written)
                loader, later = self._loader_on_top(job, measured, found)
                if loader is not None:
                    loader_trial, found, measured = later, (loader, *found), None
        chosen, guard, unsafe = self._prove(job, baseline, found)
        trials = with_verdicts([loader_trial, *finder.trials.values()], unsafe)
        confirmed = None
        if chosen:
            known = measured if chosen == found else None
            chosen, confirmed = self._confirm(chosen, as_written, known)
            if not chosen:
                trials = [_unconfirmed(trial) for trial in trials]
        batch, with_batch, sizes = self._batch(baseline, chosen, confirmed or as_written)
        if batch is not None:
            chosen, confirmed = (*chosen, batch), confirmed or as_written
        return result_of(
            self._request,
            self._run,
            Stages(
                baseline=baseline,
                as_written=as_written,
                about=about,
                chosen=chosen,
                confirmed=confirmed,
                with_batch=with_batch,
                guard=guard,
                ladder=finder.ladder,
                trials=[trial for trial in trials if trial.lever != BATCH_SIZE] + sizes,
                compile_s=finder.compile_s if any(one.id == "compile" for one in chosen) else 0.0,
                took_s=time.monotonic() - self._began,
                notes=tuple(self._notes),
            ),
        )

    # The stages

    def _baseline(self) -> Profile:
        self._tell("as written: running it", 0, 0)
        job = dataclasses.replace(
            self._request.job,
            seconds=self._measured.most_seconds,
            seed=self._request.seed,
            measure_limits=False,
            order={"taps": [*TAPS, "habits"]},
        )
        profile = profile_job(job, self._run, self._folder, self._tell)
        if profile.step_ms is None or profile.trial.outcome not in ("stopped", "ended"):
            said = "".join(f"\n    {line}" for line in profile.trial.said[-8:])
            last = f"; the last it said:{said}" if said and profile.trial.outcome == "failed" else ""
            raise JobFailed(
                f"the job made {profile.updates} updates and then ended as {profile.trial.outcome!r}{last}",
                expected="a job that trains for a few dozen updates",
                remedy=f"flatout check {self._request.job.command.typed()}",
            )
        return profile

    def _loader(
        self, job: JobFacts, profile: Profile, levers: tuple[Choice, ...]
    ) -> tuple[Choice | None, LeverTrial]:
        """Settings of the DataLoader, each in a run of its own, under these levers."""
        kind = BY_ID["loader"]
        reason = self._limits.refusal("loader") or kind.check(job)
        if reason:
            return None, LeverTrial(lever="loader", safety=kind.safety, verdict="skipped", reason=reason)
        predicted = kind.predict(job, {})
        request = dataclasses.replace(
            self._request.job,
            seed=self._request.seed,
            seconds=self._measured.most_seconds,
            order=order_of(levers),
        )
        counts = _worker_counts(profile)
        swept = sweep_loader(request, profile, self._folder, self._tell, counts).loader_sweep
        assert swept is not None
        trial = LeverTrial(
            lever="loader",
            safety=kind.safety,
            verdict="rejected",
            reason=swept.reason,
            predicted_speedup=predicted,
            on_top_of=tuple(one.words() for one in levers),
        )
        if swept.best is None:
            return None, trial
        rates = [
            next((row.samples_per_s for row in swept.rows if row.settings == settings), None)
            for settings in ({}, swept.best)
        ]
        measured = rates[1] / rates[0] if rates[0] and rates[1] else None
        settings = {name: value for name, value in swept.best.items() if value is not None}
        choice = Choice(
            id="loader",
            settings=settings,
            predicted_speedup=predicted,
            measured_speedup=measured,
            reason="the loop waited for data",
        )
        kept = msgspec.structs.replace(trial, verdict="kept", settings=settings, measured_speedup=measured)
        return choice, kept

    def _loader_on_top(
        self, job: JobFacts, measured: Measured, levers: tuple[Choice, ...]
    ) -> tuple[Choice | None, LeverTrial]:
        """A loader that kept up with a slow job may not keep up with a fast one."""
        profile = measured.profile
        nothing = LeverTrial(lever="loader", safety="resampled", verdict="skipped", reason="not needed")
        if profile is None or time.monotonic() > self._limits.deadline:
            return None, nothing
        shares = {share.part: share.share for share in profile.waterfall}
        waits = shares.get("input_wait", 0.0)
        if waits < _WAITS:
            return None, nothing
        facts = dataclasses.replace(job, host_shares={**job.host_shares, "input_wait": waits})
        return self._loader(facts, profile, levers)

    def _resume(self, job: Fingerprint, base: Sequence[Choice]) -> None:
        write_job(self._folder, job, base)
        if self._request.resume is not None:
            self._answers, problem = read_answers(self._request.resume, job, base)
            if problem:
                self._notes.append(problem)

    def _bench(self, finder: Finder, candidates: Sequence[Choice], base: Sequence[Choice]) -> None:
        asked = ["levers"]

        def tell(text: str, done: int, total: int) -> None:
            best = ", ".join(choice.words() for choice in finder.best)
            so_far = f" · best so far: {best}" if best else ""
            left_s = max(0.0, self._limits.deadline - time.monotonic())
            now = text.partition(": ")[2]
            self._tell(f"trying {asked[-1]} · {now}{so_far} · {duration(left_s)} left", done, total)

        bench = Bench(
            finder.search(candidates),
            lambda ask: asked.append(ask.what),
            self._write_down,
            self._answers,
        )
        plan = self._request.trial("levers", StopRule(most_seconds=1e9), base, director=bench, bench=True)
        try:
            bench.run(plan, self._trials_folder, tell)
        except KeyboardInterrupt:
            # What was found is worth a minute of proof; a second Ctrl-C ends that too.
            self._notes.append("the search was ended by Ctrl-C: this is the best until then")
            self._tell("ended by Ctrl-C: proving the best so far (Ctrl-C again ends this too)", 0, 0)

    def _write_down(self, ask: Ask, results: Sequence[ArmResult], took_s: float) -> None:
        self._journal.add(ask, results, at_s=time.monotonic() - self._began, took_s=took_s)

    def _lean(
        self, finder: Finder, candidates: Sequence[Choice], base: tuple[Choice, ...], as_written: Pace
    ) -> tuple[tuple[Choice, ...], Measured | None]:
        """For less memory: each lever in a process of its own, kept where the peak falls."""
        best, found = as_written, base
        last: Measured | None = None
        for choice in candidates:
            if time.monotonic() > self._limits.deadline:
                finder.conclude(choice, "skipped", OUT_OF_TIME)
                continue
            if any(one.id == choice.id or conflict(one, choice) for one in found):
                finder.conclude(choice, "skipped", "another setting of it, or what conflicts with it, is in")
                continue
            measured = self._measure(f"memory with {choice.words()}", (*found, choice), as_written)
            pace = measured.pace
            if pace is None:
                finder.conclude(choice, "failed", f"the run ended as {measured.outcome!r}")
                continue
            if pace.peak_bytes is None or best.peak_bytes is None:
                finder.conclude(choice, "skipped", "how much memory the job takes is not known here")
                continue
            less, slower = 1 - pace.peak_bytes / best.peak_bytes, as_written.step_ms / pace.step_ms
            words = f"{memory_size(best.peak_bytes)} -> {memory_size(pace.peak_bytes)}"
            measured_result = ArmResult(step_ms=pace.step_ms, speedup=slower)
            if less < _LESS_AT_LEAST:
                finder.conclude(choice, "rejected", f"{words}: no less", measured_result, found)
            elif slower < 1 - _SLOWER_AT_MOST:
                finder.conclude(choice, "rejected", f"{words}, but {slower:.2f}x", measured_result, found)
            else:
                finder.conclude(choice, "kept", f"{less:.0%} less: {words}", measured_result, found)
                best, found, last = pace, (*found, choice), measured
        return found, last

    def _prove(self, job: JobFacts, baseline: Profile, found: tuple[Choice, ...]) -> Any:
        proof = Proof(
            self._request,
            self._trials_folder,
            baseline,
            draws=bool(job.habit("draws", True)),
            threads=int(job.habit("threads", 1)),
            on_progress=self._tell,
        )
        chosen, guard = proof.prove(found)
        self._journal.write_losses(baseline, guard, proof)
        return chosen, guard, proof.unsafe

    def _confirm(
        self, chosen: tuple[Choice, ...], as_written: Pace, known: Measured | None
    ) -> tuple[tuple[Choice, ...], Pace | None]:
        """The plan in a process of its own; nothing where it is no better there than the baseline was."""
        measured = known or self._measure("confirming the plan", chosen, as_written)
        while measured.pace is not None and self._is_too_large(measured.pace) and chosen:
            lighter = _lighter(chosen)
            self._notes.append(
                f"{memory_size(measured.pace.peak_bytes or 0)} is more than --max-memory: "
                f"without {chosen[-1].words()}"
            )
            chosen = lighter
            if chosen:
                measured = self._measure("with less memory", chosen, as_written)
        pace = measured.pace
        if not chosen:
            return (), None
        if pace is None:
            self._notes.append(f"the plan could not be confirmed: the run ended as {measured.outcome!r}")
            return (), None
        if self._request.goal == "memory":
            return chosen, pace
        if gain(as_written, pace) >= 1 + WORTH:
            return chosen, pace
        # The baseline ran minutes ago: has the machine become slower since?
        now = self._measure("as written, once more", (), as_written).pace
        if now is not None and gain(now, pace) >= 1 + WORTH:
            self._notes.append("the machine became slower while tuning: other work runs on it")
            return chosen, pace
        self._notes.append("in a process of its own the plan was no faster, so there is none")
        return (), None

    def _batch(
        self, baseline: Profile, chosen: tuple[Choice, ...], now: Pace
    ) -> tuple[Choice | None, Pace | None, list[LeverTrial]]:
        """A larger batch, where the user allows that: on top of the plan, up to the knee of throughput."""
        refusal = self._refuses_batch(baseline)
        if refusal:
            return None, None, [_skipped_batch(refusal)]
        size = round((baseline.samples_per_step or 0) / max(1.0, baseline.micro_batches))
        # Compiling for each size would take minutes: sizes are compared without, and the choice is confirmed.
        light = tuple(one for one in chosen if one.id != "compile")
        base = self._measure("batch size: as it is", light, now) if light != chosen else None
        base_pace = base.pace if base is not None and base.pace is not None else now

        samples_per_step: dict[str, float] = {}

        def measure(choice: Choice) -> tuple[Pace | None, float | None, str]:
            found = self._measure(choice.words(), (*light, choice), now)
            if found.pace is None or found.profile is None or found.profile.samples_per_step is None:
                return None, None, f"the run ended as {found.outcome!r}"
            if self._is_too_large(found.pace):
                return None, None, f"{memory_size(found.pace.peak_bytes or 0)}: more than --max-memory"
            samples = found.profile.samples_per_step / max(1.0, found.profile.micro_batches)
            samples_per_step[choice.words()] = found.profile.samples_per_step
            return found.pace, samples, ""

        room = self._request.max_memory_bytes or baseline.memory.device_total_bytes
        choice, tried, reason = climb(self._request.job.command, size, base_pace, room, measure)
        trials = as_trials(tried, choice, base_pace, reason)
        if choice is None:
            return None, None, trials or [_skipped_batch(reason)]
        whole = self._measure(f"the plan with {choice.words()}", (*chosen, choice), now).pace
        if whole is None or self._is_too_large(whole) or gain(now, whole) < 1 + WORTH:
            self._notes.append("with the whole plan a larger batch was no faster")
            return None, None, [_rejected(trial) for trial in trials]
        times = samples_per_step[choice.words()] / (baseline.samples_per_step or 1.0)
        told = consequence(choice, times)
        self._notes.append(told)
        measured = dataclasses.replace(choice, measured_speedup=gain(now, whole), reason=told)
        kept = [
            msgspec.structs.replace(trial, measured_speedup=measured.measured_speedup)
            if trial.verdict == "kept"
            else trial
            for trial in trials
        ]
        return measured, whole, kept

    def _refuses_batch(self, baseline: Profile) -> str:
        if BATCH_SIZE not in self._request.allow:
            return BY_ID[BATCH_SIZE].check(JobFacts())
        refusal = self._limits.refusal(BATCH_SIZE) if BATCH_SIZE in self._request.skip else ""
        if refusal:
            return refusal
        if self._request.goal != "throughput":
            return f"it serves throughput, not {self._request.goal}"
        if not baseline.samples_per_step or not baseline.samples_per_s:
            return "how many samples reach the model is not known"
        return ""

    # Measuring

    def _measure(self, what: str, levers: tuple[Choice, ...], as_written: Pace) -> Measured:
        place = self._trials_folder / f"{len(list(self._trials_folder.iterdir())) + 1}-measure"
        plan = self._request.trial(what, self._measured, levers)
        with DeviceSampler() as sampler:
            trial = run_trial(plan, place, on_progress=self._tell)
        return measured_in(trial, as_written, sampler.samples)

    def _is_too_large(self, pace: Pace) -> bool:
        most = self._request.max_memory_bytes
        return most is not None and pace.peak_bytes is not None and pace.peak_bytes > most


def _with_workers(job: JobFacts, loader: Choice | None) -> JobFacts:
    """The facts as they are with the loader's new settings."""
    if loader is None:
        return job
    return dataclasses.replace(
        job, loaders=tuple({**settings, **loader.settings} for settings in job.loaders)
    )


def _worker_counts(profile: Profile) -> list[int] | None:
    """From what a batch takes to make, and a step without the wait for it; None where that is not known."""
    loader = max(profile.loaders, key=lambda one: one.batches, default=None)
    if loader is None or loader.load_ms is None or profile.step_ms is None:
        return None
    made_ms = loader.load_ms + (loader.collate_ms or 0.0)
    batches = max(1.0, profile.micro_batches)
    rest_ms = max(0.05 * profile.step_ms.p50, profile.step_ms.p50 - loader.wait_ms * batches)
    return workers_needed(made_ms * batches, rest_ms, read_host(places=()))


def _lighter(chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Without what takes memory for speed: CUDA graphs first, then the last lever."""
    last = chosen[-1]
    if last.id == "compile" and last.settings.get("mode") != "default":
        return (*chosen[:-1], dataclasses.replace(last, settings={"mode": "default"}))
    return chosen[:-1]


def _unconfirmed(trial: LeverTrial) -> LeverTrial:
    if trial.verdict != "kept":
        return trial
    return msgspec.structs.replace(trial, verdict="rejected", reason="not confirmed in a process of its own")


def _rejected(trial: LeverTrial) -> LeverTrial:
    return msgspec.structs.replace(trial, verdict="rejected") if trial.verdict == "kept" else trial


def _skipped_batch(reason: str) -> LeverTrial:
    return LeverTrial(lever=BATCH_SIZE, safety="recipe", verdict="skipped", reason=reason)
