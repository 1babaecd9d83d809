"""`tune` from beginning to end: baseline, loader, levers by turns, guard, confirmation, plan."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.analyze.steps import read_ranks
from flatout.levers.catalogue import BY_ID, LEVERS
from flatout.levers.job import JobFacts
from flatout.records.errors import JobFailed
from flatout.records.plan import Choice, Plan
from flatout.records.profile import Profile
from flatout.records.session import TAPS
from flatout.records.tuning import GuardEvidence, LeverTrial, Pace, Rung, Tuning
from flatout.runtime.peaks import peaks_for
from flatout.runtime.profiling import TRIALS_FOLDER, profile_job
from flatout.runtime.progress import StopRule
from flatout.runtime.sweep import sweep_loader
from flatout.runtime.trial import OnProgress, run_trial
from flatout.tune.arms import ArmResult, Ask
from flatout.tune.bench import Bench
from flatout.tune.facts import fingerprint, job_facts, places_below
from flatout.tune.pace import faster, gain, pace_in, pace_of
from flatout.tune.proof import Proof, with_verdicts
from flatout.tune.request import TuneRequest
from flatout.tune.search import WORTH, Finder, Limits

# Two measures of the same plan that differ by more than this are worth a word.
_DISAGREE = 0.15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Everything that tuning hands over."""

    tuning: Tuning
    plan: Plan | None


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

    def tune(self) -> Found:
        """The whole loop; raises JobFailed where the job cannot even be run as written."""
        baseline = self._baseline()
        about = read_ranks(self._trials_folder / "1-profile")[0].about
        on_gpu = str(about.get("device", "cpu")).startswith("cuda")
        peaks = peaks_for(about.get("device_uuid"), on_gpu=on_gpu, measure=False)
        job = job_facts(baseline, about, peaks)
        finder = Finder(job, self._limits)
        loader, loader_trial = self._loader(job, baseline)
        base = (loader,) if loader is not None else ()
        candidates = finder.candidates(LEVERS)
        if candidates:
            self._bench(finder, candidates, base)
        proof = Proof(
            self._request,
            self._trials_folder,
            baseline,
            draws=bool(job.habit("draws", True)),
            on_progress=self._tell,
        )
        chosen, guard = proof.prove((*base, *finder.best))
        trials = with_verdicts([loader_trial, *finder.trials.values()], proof.unsafe)
        best = self._confirm(chosen, pace_of(baseline)) if chosen else None
        if chosen and best is None:
            chosen = ()
            trials = [
                msgspec.structs.replace(
                    trial, verdict="rejected", reason="not confirmed in a process of its own"
                )
                if trial.verdict == "kept"
                else trial
                for trial in trials
            ]
        return self._result(baseline, about, chosen, best, guard, finder, trials)

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
            raise JobFailed(
                f"the job made {profile.updates} updates and then ended as {profile.trial.outcome!r}",
                expected="a job that trains for a few dozen updates",
                remedy=f"flatout check {self._request.job.command.typed()}",
            )
        return profile

    def _loader(self, job: JobFacts, baseline: Profile) -> tuple[Choice | None, LeverTrial]:
        """Settings of the DataLoader, each in a run of its own."""
        kind = BY_ID["loader"]
        reason = self._limits.refusal("loader") or kind.check(job)
        if reason:
            return None, LeverTrial(lever="loader", safety=kind.safety, verdict="skipped", reason=reason)
        predicted = kind.predict(job, {})
        request = dataclasses.replace(self._request.job, seed=self._request.seed)
        swept = sweep_loader(request, baseline, self._folder, self._tell).loader_sweep
        assert swept is not None
        trial = LeverTrial(
            lever="loader",
            safety=kind.safety,
            verdict="rejected",
            reason=swept.reason,
            predicted_speedup=predicted,
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

    def _bench(self, finder: Finder, candidates: Sequence[Choice], base: Sequence[Choice]) -> None:
        asked = ["levers"]

        def tell(text: str, done: int, total: int) -> None:
            best = ", ".join(choice.words() for choice in finder.best)
            so_far = f" · best so far: {best}" if best else ""
            self._tell(f"trying {asked[-1]} · {text.partition(': ')[2]}{so_far}", done, total)

        bench = Bench(finder.search(candidates), lambda ask: asked.append(ask.what), self._write_down)
        plan = self._request.trial("levers", StopRule(most_seconds=1e9), base, director=bench, bench=True)
        try:
            bench.run(plan, self._trials_folder, tell)
        except KeyboardInterrupt:
            # What was found is worth a minute of proof; a second Ctrl-C ends that too.
            self._notes.append("the search was ended by Ctrl-C: this is the best until then")
            self._tell("ended by Ctrl-C: proving the best so far (Ctrl-C again ends this too)", 0, 0)

    def _write_down(self, ask: Ask, results: Sequence[ArmResult], took_s: float) -> None:
        """Every comparison, as it was answered: for those who want to know exactly."""
        entry = {
            "at_s": time.monotonic() - self._began,
            "took_s": took_s,
            "what": ask.what,
            "arms": [
                {"levers": [choice.words() for choice in arm], **dataclasses.asdict(result)}
                for arm, result in zip(ask.arms, results, strict=True)
            ],
        }
        with (self._folder / "comparisons.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")

    def _confirm(self, chosen: tuple[Choice, ...], as_written: Pace) -> Pace | None:
        """The plan in a process of its own; None where it is no faster there than the baseline was."""
        pace, outcome = self._measure("confirming the plan", chosen, as_written)
        if pace is None:
            self._notes.append(f"the plan could not be confirmed: the run ended as {outcome!r}")
            return None
        if gain(as_written, pace) >= 1 + WORTH:
            return pace
        # The baseline ran minutes ago: has the machine become slower since?
        now, _ = self._measure("as written, once more", (), as_written)
        if now is not None and gain(now, pace) >= 1 + WORTH:
            self._notes.append("the machine became slower while tuning: other work runs on it")
            return pace
        self._notes.append("in a process of its own the plan was no faster, so there is none")
        return None

    def _measure(self, what: str, levers: tuple[Choice, ...], as_written: Pace) -> tuple[Pace | None, str]:
        place = self._trials_folder / f"{len(list(self._trials_folder.iterdir())) + 1}-confirm"
        trial = run_trial(self._request.trial(what, self._measured, levers), place, on_progress=self._tell)
        return pace_in(trial, as_written), trial.outcome

    # The result

    def _result(
        self,
        baseline: Profile,
        about: Mapping[str, Any],
        chosen: tuple[Choice, ...],
        confirmed: Pace | None,
        guard: GuardEvidence,
        finder: Finder,
        trials: Sequence[LeverTrial],
    ) -> Found:
        as_written = pace_of(baseline)
        best, speedup = as_written, 1.0
        ladder: tuple[Rung, ...] = ()
        if confirmed is not None:
            best, speedup, ladder = self._best(as_written, confirmed, chosen, finder.ladder)
        plan = None
        if chosen:
            plan = Plan(
                job=fingerprint(self._request.job.command, baseline, about),
                levers=tuple(_told(choice, ladder) for choice in chosen),
                where=places_below(Path.cwd(), (about.get("habits") or {}).get("where") or {}),
                baseline_samples_per_s=as_written.samples_per_s,
                samples_per_s=best.samples_per_s,
                speedup=speedup,
                mfu=best.mfu,
            )
        took_s = time.monotonic() - self._began
        saved_s = (as_written.step_ms - best.step_ms) / 1000
        tuning = Tuning(
            run=self._run,
            command=self._request.job.command.words,
            device=baseline.device_name or baseline.device or "cpu",
            baseline=as_written,
            best=best,
            speedup=speedup,
            trials=tuple(trials),
            ladder=ladder,
            guard=guard,
            tune_seconds=took_s,
            summary=_summary(chosen, speedup, trials),
            break_even_steps=round((took_s + finder.compile_s) / saved_s) if saved_s > 0 else None,
            compile_seconds=finder.compile_s or None,
            notes=tuple(self._notes),
            unknown={} if chosen else {"plan": "nothing helped", "break_even_steps": "there is no plan"},
        )
        return Found(tuning=tuning, plan=plan)

    def _best(
        self, as_written: Pace, confirmed: Pace, chosen: Sequence[Choice], measured: Sequence[Rung]
    ) -> tuple[Pace, float, tuple[Rung, ...]]:
        """By turns in one run is the better measure: the machine's moods cancel. Else what was confirmed."""
        alone = gain(as_written, confirmed)
        ladder = _whole_ladder(measured, chosen, as_written)
        if [rung.lever for rung in ladder] != [choice.words() for choice in chosen]:
            return confirmed, alone, ()  # the guard took a rung out, and the others were measured with it
        speedup = ladder[-1].speedup
        if abs(alone / speedup - 1) > _DISAGREE:
            self._notes.append(
                f"in a process of its own the plan was {alone:.2f}x as fast as the script; "
                f"by turns in one process {speedup:.2f}x, which is what counts"
            )
        return faster(as_written, speedup, confirmed), speedup, ladder


def _whole_ladder(ladder: Sequence[Rung], chosen: Sequence[Choice], as_written: Pace) -> tuple[Rung, ...]:
    """Every rung from the baseline up. The loader was measured in runs of its own: its rung is the lowest."""
    loader = next((choice for choice in chosen if choice.id == "loader"), None)
    by = loader.measured_speedup if loader is not None and loader.measured_speedup is not None else 1.0
    whole = [dataclasses.replace(rung, speedup=rung.speedup * by) for rung in ladder]
    if loader is not None and loader.measured_speedup is not None:
        whole.insert(0, Rung(lever=loader.words(), step_ms=0.0, gain=by, speedup=by))
    # Times as of the baseline's own run: ratios are what was measured by turns.
    return tuple(dataclasses.replace(rung, step_ms=as_written.step_ms / rung.speedup) for rung in whole)


def _told(choice: Choice, ladder: Sequence[Rung]) -> Choice:
    """A lever of the plan, with what it gave and why it is there."""
    gains = {rung.lever: rung.gain for rung in ladder}
    return dataclasses.replace(
        choice,
        measured_speedup=gains.get(choice.words(), choice.measured_speedup),
        reason=choice.reason or BY_ID[choice.id].title,
    )


def _summary(chosen: Sequence[Choice], speedup: float, trials: Sequence[LeverTrial]) -> str:
    if chosen:
        return f"{speedup:.2f}x faster with {', '.join(choice.words() for choice in chosen)}"
    tried = [trial for trial in trials if trial.verdict in ("rejected", "failed", "unsafe")]
    if tried:
        return f"nothing to gain: {len(tried)} levers were tried, none of which made the job faster"
    reasons = [f"{trial.lever}: {trial.reason}" for trial in trials if trial.verdict == "skipped"]
    return f"nothing to gain: no lever applies ({'; '.join(reasons)})"
