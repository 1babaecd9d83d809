"""`tune` from beginning to end: baseline, loader, levers by turns, guard, confirmation, plan."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from flatout.analyze.steps import read_ranks
from flatout.levers.catalogue import BY_ID, LEVERS
from flatout.levers.job import JobFacts
from flatout.records.plan import Choice, Plan
from flatout.records.profile import Profile
from flatout.records.session import TAPS
from flatout.records.tuning import GuardEvidence, LeverTrial, Pace, Rung, Tuning
from flatout.runtime.peaks import peaks_for
from flatout.runtime.profiling import TRIALS_FOLDER, ProfileRequest, profile_job
from flatout.runtime.progress import StopRule
from flatout.runtime.sweep import sweep_loader
from flatout.runtime.trial import OnProgress, TrialPlan, run_trial
from flatout.tune.arms import ArmResult, Ask
from flatout.tune.bench import Bench
from flatout.tune.facts import fingerprint, job_facts
from flatout.tune.guard import GuardRun, judge
from flatout.tune.search import WORTH, Finder, Limits

DEFAULT_SEED = 1234
_GUARD_STEPS = 30
_GUARD_UPDATES = 3
_TWINS = 3
_MEASURED = StopRule(precision=0.01, fewest_steps=20, fewest_seconds=2.0, most_seconds=12.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneRequest:
    """What to tune, and within which limits."""

    job: ProfileRequest
    budget_s: float = 300.0
    only: frozenset[str] = frozenset()
    skip: frozenset[str] = frozenset()
    job_steps: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Everything that tuning hands over."""

    tuning: Tuning
    plan: Plan | None


def order_of(levers: Sequence[Choice]) -> dict[str, Any]:
    """What a session is to do about these levers. The loader's settings belong to its constructor."""
    settings: dict[str, Any] = {}
    for choice in levers:
        if choice.id == "loader":
            settings |= choice.settings
    return {
        "levers": [choice.order() for choice in levers if choice.id != "loader"],
        "loader": settings,
    }


class Tuner:
    """One tuning of one job."""

    def __init__(self, request: TuneRequest, run: str, folder: Path, on_progress: OnProgress) -> None:
        self._request = request
        self._run = run
        self._folder = folder
        self._tell = on_progress
        self._began = time.monotonic()
        self._notes: list[str] = []
        self._draws = True

    def tune(self) -> Found:
        """The whole loop; raises JobFailed where the job cannot even be run as written."""
        baseline = self._profile("as written", {}, "1-profile")
        about = read_ranks(self._folder / TRIALS_FOLDER / "1-profile")[0].about
        on_gpu = str(about.get("device", "cpu")).startswith("cuda")
        peaks = peaks_for(about.get("device_uuid"), on_gpu=on_gpu, measure=False)
        job = job_facts(baseline, about, peaks)
        self._draws = bool(job.habit("draws"))
        loader, loader_trial = self._loader(job, baseline)
        base = (loader,) if loader is not None else ()
        finder = Finder(job, self._limits(), base)
        candidates = finder.candidates(LEVERS)
        if candidates:
            self._bench(finder, candidates, base)
        chosen = (*base, *finder.best)
        trials = [*([loader_trial] if loader_trial is not None else []), *finder.trials.values()]
        guard = GuardEvidence(verdict="not needed", paired=True, reason="nothing was changed")
        if chosen:
            chosen, guard, trials = self._guard(chosen, trials, baseline)
        best, pace = self._confirm(chosen, baseline, trials)
        return self._result(baseline, about, best, pace, guard, finder, trials)

    # The stages

    def _profile(self, what: str, order: Mapping[str, Any], place: str) -> Profile:
        self._say(f"{what}: running it", 0)
        job = dataclasses.replace(
            self._request.job,
            seconds=_MEASURED.most_seconds,
            seed=self._seed(),
            measure_limits=False,
            order={"taps": [*TAPS, "habits"], **order},
        )
        profile = profile_job(job, self._run, self._folder, self._tell)
        if profile.step_ms is None:
            from flatout.records.errors import JobFailed

            raise JobFailed(
                f"the job made {profile.updates} updates, too few to measure",
                expected="a job of at least a few dozen updates",
                remedy="give it more data or more steps for tuning",
            )
        assert place
        return profile

    def _loader(self, job: JobFacts, baseline: Profile) -> tuple[Choice | None, LeverTrial | None]:
        kind = BY_ID["loader"]
        limits = self._limits()
        reason = "left out by --skip" if "loader" in limits.skip else ""
        reason = reason or ("left out by --only" if limits.only and "loader" not in limits.only else "")
        reason = reason or kind.check(job)
        predicted = kind.predict(job, {})
        if reason:
            return None, LeverTrial(lever="loader", safety=kind.safety, verdict="skipped", reason=reason)
        swept = sweep_loader(
            dataclasses.replace(self._request.job, seed=self._seed()), baseline, self._folder, self._tell
        ).loader_sweep
        if swept is None or swept.best is None:
            why = swept.reason if swept is not None else "it could not be tried"
            return None, LeverTrial(
                lever="loader",
                safety=kind.safety,
                verdict="rejected",
                reason=why,
                predicted_speedup=predicted,
            )
        rates = {
            msgspec.json.encode(row.settings): row.samples_per_s for row in swept.rows if row.samples_per_s
        }
        before, after = rates.get(b"{}"), rates.get(msgspec.json.encode(swept.best))
        gain = after / before if before and after else None
        settings = {name: value for name, value in swept.best.items() if value is not None}
        choice = Choice(
            id="loader",
            settings=settings,
            predicted_speedup=predicted,
            measured_speedup=gain,
            reason="the loop waited for data",
        )
        trial = LeverTrial(
            lever="loader",
            safety=kind.safety,
            verdict="kept",
            reason=swept.reason,
            settings=settings,
            predicted_speedup=predicted,
            measured_speedup=gain,
        )
        return choice, trial

    def _bench(self, finder: Finder, candidates: Sequence[Choice], base: Sequence[Choice]) -> None:
        request = self._request.job
        asked: list[str] = []

        def on_ask(ask: Any) -> None:
            asked.append(ask.what)

        def tell(text: str, done: int, total: int) -> None:
            what = f"trying {asked[-1]}" if asked else "trying levers"
            self._tell(f"{what} · {text.partition(': ')[2]}{self._best_words(finder)}", done, total)

        bench = Bench(finder.search(candidates), on_ask, self._write_down)
        plan = TrialPlan(
            name="levers",
            command=request.command,
            stop=StopRule(most_seconds=1e9),
            order={**order_of(base), "bench": True, "seed": self._seed()},
            startup_s=request.startup_s,
            silence_s=request.silence_s,
            environment=request.environment,
            director=bench,
        )
        bench.run(plan, self._folder / TRIALS_FOLDER, tell)

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

    def _guard(
        self, chosen: tuple[Choice, ...], trials: list[LeverTrial], baseline: Profile
    ) -> tuple[tuple[Choice, ...], GuardEvidence, list[LeverTrial]]:
        """Guard the whole plan; where it fails, take out what fails alone, and guard the rest."""
        roundoff = max(BY_ID[choice.id].roundoff for choice in chosen)
        reference, *twins, candidate = self._guard_runs(
            [
                ("as written", (), 0.0, 0),
                *((f"twin {number}", (), roundoff, number) for number in range(1, _TWINS + 1)),
                ("the plan", chosen, 0.0, 0),
            ],
            baseline,
        )
        evidence = GuardEvidence(verdict="not needed", paired=True, reason="nothing was changed")
        for attempt in range(3):
            if attempt:
                [candidate] = self._guard_runs([("the rest of the plan", chosen, 0.0, 0)], baseline)
            exact = all(BY_ID[choice.id].safety == "exact" for choice in chosen)
            evidence = judge(reference, twins, candidate, roundoff=roundoff, exact=exact)
            if evidence.verdict != "unsafe":
                return chosen, evidence, trials
            culprits = self._culprits(chosen, reference, twins, roundoff, baseline)
            for choice, why in culprits:
                trials = [
                    msgspec.structs.replace(trial, verdict="unsafe", reason=why)
                    if trial.lever == choice.id and trial.verdict == "kept"
                    else trial
                    for trial in trials
                ]
            chosen = tuple(one for one in chosen if one.id not in {choice.id for choice, _ in culprits})
            if not chosen:
                break
        self._notes.append(f"the guard refused what was left: {evidence.reason}")
        return (), evidence, trials

    def _culprits(
        self,
        chosen: tuple[Choice, ...],
        reference: GuardRun,
        twins: Sequence[GuardRun],
        roundoff: float,
        baseline: Profile,
    ) -> list[tuple[Choice, str]]:
        """Who fails alone; where nobody does, the riskiest goes."""
        runs = self._guard_runs([(choice.words(), (choice,), 0.0, 0) for choice in chosen], baseline)
        found = []
        for choice, run in zip(chosen, runs, strict=True):
            verdict = judge(reference, twins, run, roundoff=roundoff)
            if verdict.verdict == "unsafe":
                found.append((choice, verdict.reason))
        riskiest = max(chosen, key=lambda choice: BY_ID[choice.id].roundoff)
        return found or [(riskiest, "with the others, the job no longer learns the same")]

    def _guard_runs(
        self, runs: Sequence[tuple[str, tuple[Choice, ...], float, int]], baseline: Profile
    ) -> list[GuardRun]:
        """Short, equally seeded runs; nobody is timed, so several go at once where memory allows."""
        job = self._request.job
        folder = self._folder / TRIALS_FOLDER
        done = 0

        def one(item: tuple[int, tuple[str, tuple[Choice, ...], float, int]]) -> GuardRun:
            nonlocal done
            number, (name, levers, perturb, which) = item
            plan = TrialPlan(
                name=f"guard: {name}",
                command=job.command,
                stop=StopRule(updates=_GUARD_STEPS),
                order={
                    **order_of(levers),
                    "seed": self._seed(),
                    "pair_updates": _GUARD_UPDATES,
                    "guard_updates": _GUARD_UPDATES,
                    "same_random": self._draws,
                    "perturb": perturb,
                    "perturbation": which,
                },
                startup_s=job.startup_s,
                silence_s=job.silence_s,
                environment=job.environment,
            )
            place = folder / f"{number}-guard"
            run_trial(plan, place)
            done += 1
            self._tell(f"guard: {done} of {len(runs)} runs", done, len(runs))
            return GuardRun.read(place)

        first = len(list(folder.iterdir())) + 1
        self._tell(f"guard: {', '.join(name for name, *_ in runs)}", 0, len(runs))
        with ThreadPoolExecutor(max_workers=self._at_once(baseline)) as pool:
            return list(pool.map(one, enumerate(runs, start=first)))

    def _at_once(self, baseline: Profile) -> int:
        """How many runs fit side by side."""
        memory = baseline.memory
        if baseline.device is None or not baseline.device.startswith("cuda"):
            return 2
        if not memory.reserved_peak_bytes or not memory.device_total_bytes:
            return 1
        return max(
            1, min(_TWINS + 2, int(0.85 * memory.device_total_bytes / (1.3 * memory.reserved_peak_bytes)))
        )

    def _confirm(
        self, chosen: tuple[Choice, ...], baseline: Profile, trials: list[LeverTrial]
    ) -> tuple[tuple[Choice, ...], Pace]:
        """The plan in a process of its own, against the baseline in its own."""
        as_written = pace_of(baseline)
        if not chosen:
            return (), as_written
        job = self._request.job
        folder = self._folder / TRIALS_FOLDER
        place = folder / f"{len(list(folder.iterdir())) + 1}-confirm"
        plan = TrialPlan(
            name="confirming the plan",
            command=job.command,
            stop=_MEASURED,
            order={**order_of(chosen), "seed": self._seed()},
            startup_s=job.startup_s,
            silence_s=job.silence_s,
            environment=job.environment,
        )
        trial = run_trial(plan, place, on_progress=self._tell)
        pace = measured_pace(place, baseline) if trial.updates > 2 else None
        if pace is None:
            self._notes.append(f"the plan could not be confirmed: the run ended as {trial.outcome!r}")
            return (), as_written
        gain = _ratio(pace.samples_per_s, as_written.samples_per_s) or as_written.step_ms / pace.step_ms
        if gain >= 1 + WORTH:
            return chosen, pace
        self._notes.append("in a process of its own the plan was no faster, so there is none")
        for number, one in enumerate(trials):
            if one.verdict == "kept":
                trials[number] = msgspec.structs.replace(
                    one, verdict="rejected", reason="not confirmed in a process of its own"
                )
        return (), as_written

    # The result

    def _result(
        self,
        baseline: Profile,
        about: Mapping[str, Any],
        chosen: tuple[Choice, ...],
        pace: Pace,
        guard: GuardEvidence,
        finder: Finder,
        trials: Sequence[LeverTrial],
    ) -> Found:
        as_written = pace_of(baseline)
        speedup = _ratio(pace.samples_per_s, as_written.samples_per_s) or as_written.step_ms / pace.step_ms
        took_s = time.monotonic() - self._began
        saved_s = (as_written.step_ms - pace.step_ms) / 1000
        ladder = _with_loader(finder.ladder, chosen, as_written) if chosen else ()
        plan = None
        if chosen:
            gains = {rung.lever: rung.gain for rung in ladder}
            plan = Plan(
                job=fingerprint(self._request.job.command, baseline, about),
                levers=tuple(
                    dataclasses.replace(
                        choice,
                        measured_speedup=gains.get(choice.words(), choice.measured_speedup),
                        reason=choice.reason or BY_ID[choice.id].title,
                    )
                    for choice in chosen
                ),
                baseline_samples_per_s=as_written.samples_per_s,
                samples_per_s=pace.samples_per_s,
                speedup=speedup,
            )
        tuning = Tuning(
            run=self._run,
            command=self._request.job.command.words,
            device=baseline.device_name or baseline.device or "cpu",
            baseline=as_written,
            best=pace,
            speedup=speedup if chosen else 1.0,
            trials=tuple(trials),
            ladder=tuple(ladder),
            guard=guard,
            tune_seconds=took_s,
            summary=_summary(chosen, speedup, trials),
            break_even_steps=round((took_s + finder.compile_s) / saved_s) if chosen and saved_s > 0 else None,
            compile_seconds=finder.compile_s or None,
            notes=tuple(self._notes),
            unknown={} if chosen else {"plan": "nothing helped", "break_even_steps": "there is no plan"},
        )
        return Found(tuning=tuning, plan=plan)

    # Small things

    def _limits(self) -> Limits:
        request = self._request
        return Limits(
            only=request.only,
            skip=request.skip,
            deadline=self._began + request.budget_s,
            job_steps=request.job_steps,
        )

    def _seed(self) -> int:
        return DEFAULT_SEED if self._request.job.seed is None else self._request.job.seed

    def _say(self, text: str, done: int) -> None:
        self._tell(text, done, 0)

    def _best_words(self, finder: Finder) -> str:
        return f" · best so far: {', '.join(one.words() for one in finder.best)}" if finder.best else ""


def pace_of(profile: Profile) -> Pace:
    """How the job went in a profile."""
    assert profile.step_ms is not None
    return Pace(
        step_ms=profile.step_ms.p50,
        samples_per_s=profile.samples_per_s,
        mfu=profile.mfu.of_rated if profile.mfu.of_rated is not None else profile.mfu.of_measured,
        gpu_busy_share=profile.device_use.kernel_running_share,
        peak_bytes=profile.memory.reserved_peak_bytes or profile.memory.host_peak_bytes,
    )


def measured_pace(folder: Path, baseline: Profile) -> Pace | None:
    """How the job went in a trial; the model's operations are the baseline's, whatever levers do to them."""
    from flatout.analyze.profile import build_profile
    from flatout.records.trial import Shield, Trial

    ranks = read_ranks(folder)
    if not ranks or len(ranks[0].steps) < 3:
        return None
    stand_in = Trial(
        name="",
        folder=str(folder),
        command=(),
        outcome="stopped",
        updates=len(ranks[0].steps),
        ranks=len(ranks),
        took_s=0.0,
        shield=Shield(kind="none"),
    )
    from flatout.analyze.profile import Peaks

    profile = build_profile("", stand_in, folder, Peaks())
    if profile.step_ms is None:
        return None
    before = pace_of(baseline)
    faster = before.step_ms / profile.step_ms.p50
    return dataclasses.replace(
        pace_of(profile), mfu=before.mfu * faster if before.mfu is not None else None, unknown={}
    )


def _with_loader(ladder: Sequence[Rung], chosen: Sequence[Choice], as_written: Pace) -> tuple[Rung, ...]:
    """The loader was measured in runs of its own: its rung goes below the others."""
    loader = next((one for one in chosen if one.id == "loader"), None)
    if loader is None or loader.measured_speedup is None:
        return tuple(ladder)
    gain = loader.measured_speedup
    first = Rung(lever=loader.words(), step_ms=as_written.step_ms / gain, gain=gain, speedup=gain)
    return (first, *(dataclasses.replace(rung, speedup=rung.speedup * gain) for rung in ladder))


def _summary(chosen: Sequence[Choice], speedup: float, trials: Sequence[LeverTrial]) -> str:
    if chosen:
        return f"{speedup:.2f}x faster with {', '.join(choice.words() for choice in chosen)}"
    tried = [trial for trial in trials if trial.verdict in ("rejected", "failed", "unsafe")]
    if tried:
        return f"nothing to gain: {len(tried)} levers were tried, none of which made the job faster"
    reasons = {trial.lever: trial.reason for trial in trials if trial.verdict == "skipped"}
    return "nothing to gain: no lever applies (" + "; ".join(f"{k}: {v}" for k, v in reasons.items()) + ")"


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def tune_job(request: TuneRequest, run: str, folder: Path, on_progress: OnProgress) -> Found:
    """Tune a job; everything that was tried lies in `folder`."""
    return Tuner(request, run, folder, on_progress).tune()
