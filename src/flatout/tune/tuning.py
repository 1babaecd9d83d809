"""`tune` from beginning to end: baseline, loader, levers by turns, guard, confirmation, batch size, plan."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.analyze.facts import job_facts
from flatout.analyze.steps import read_ranks
from flatout.diagnose.engine import diagnose
from flatout.levers.catalogue import LEVERS
from flatout.levers.job import JobFacts
from flatout.levers.loader import Loader
from flatout.records.errors import JobFailed
from flatout.records.finding import Finding
from flatout.records.plan import Choice, Fingerprint
from flatout.records.profile import Profile
from flatout.records.tuning import ENDED_BY_CTRL_C, LeverTrial, Pace
from flatout.records.words import duration
from flatout.runtime.peaks import peaks_for
from flatout.runtime.profiling import TRIALS_FOLDER, learned_in, profile_job
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress
from flatout.tune.arms import ArmResult, Ask
from flatout.tune.batching import BATCH_SIZE
from flatout.tune.bench import Answers, Bench
from flatout.tune.by_turns import pace_by_turns
from flatout.tune.confirming import Confirmed, confirm
from flatout.tune.fingerprints import fingerprint
from flatout.tune.journal import Journal, earlier_loader, read_answers, write_job
from flatout.tune.larger_batch import LargerBatch, larger_batch
from flatout.tune.lean import lean
from flatout.tune.limits import JOB_ENDED, Limits
from flatout.tune.loading import NOT_NEEDED, WAITS_LONG, Loaded, LoaderStage, can_repeat_batches, with_workers
from flatout.tune.measuring import Measurer
from flatout.tune.pace import Measured, pace_of
from flatout.tune.proof import Proof, proof_seconds, with_verdicts
from flatout.tune.request import TuneRequest
from flatout.tune.result import Found, Stages, result_of
from flatout.tune.search import Finder
from flatout.tune.telling import told_of_allowed, told_of_moods
from flatout.tune.within_memory import make_room

# Of the budget, whatever came before and the proof will take.
_FOR_THE_SEARCH = 0.35
_FOR_ONE_COMPARISON = 0.1
_FOR_THE_BATCH = 0.5


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
            allow=request.allow,
            deadline=self._began + request.budget_s,
            comparison_s=_FOR_ONE_COMPARISON * request.budget_s,
            for_memory=request.goal == "memory",
        )
        self._measurer = Measurer(request, self._trials_folder, on_progress)
        self._notes: list[str] = []
        self._spent_s: dict[str, float] = {}
        self._answers: Answers = {}
        self._input_wait = 0.0
        # What the job without levers took, comparison by comparison.
        self._base_ms: list[float] = []
        self._interrupted = False
        # As the user says, else the trainer that the script uses.
        self._job_steps: int | None = None

    def tune(self) -> Found:
        """The whole loop; raises JobFailed where the job cannot even be run as written."""
        with self._stage("as written"):
            baseline = self._baseline()
        if baseline.disturbance:
            self._notes.append(baseline.disturbance)
        as_written = pace_of(baseline)
        about = learned_in(self._trials_folder)
        on_gpu = str(about.get("device", "cpu")).startswith("cuda")
        peaks = peaks_for(about.get("device_uuid"), on_gpu=on_gpu, measure=False)
        job = job_facts(baseline, about, peaks)
        self._job_steps = self._request.job_steps or about.get("updates_planned")
        self._limits = dataclasses.replace(self._limits, job_steps=self._job_steps)
        findings = diagnose(baseline, about, peaks)
        searched = self._search(
            baseline, job, fingerprint(self._request.job.command, baseline, about), findings
        )
        finder, found = searched.finder, searched.found
        with self._stage("guard"):
            chosen, guard, unsafe = self._prove(job, baseline, found)
        trials = with_verdicts(searched.trials, unsafe)
        repeats, waits = can_repeat_batches(job), job.host_shares.get("input_wait", 0.0)
        confirmed = None
        if chosen:
            known = searched.measured if chosen == found else None
            with self._stage("confirming"):
                done = self._confirm(chosen, as_written, known, finder, waits if repeats else 0.0)
            chosen, confirmed, self._input_wait = done.chosen, done.pace, done.input_wait
            as_written = done.as_written or as_written
            self._notes += done.notes
            if not chosen:
                trials = [_unconfirmed(trial, done.why) for trial in trials]
        larger = self._larger_batch(baseline, chosen, confirmed or as_written)
        self._notes += told_of_moods(as_written.step_ms * (1 - waits), self._base_ms)
        if larger.note:
            self._notes.append(larger.note)
        if larger.choice is not None:
            chosen, confirmed = (*chosen, larger.choice), confirmed or as_written
        return result_of(
            self._request,
            self._run,
            Stages(
                baseline=baseline,
                as_written=as_written,
                about=about,
                chosen=chosen,
                input_wait=self._input_wait,
                repeated=repeats and not self._had_its_own_batches(),
                confirmed=confirmed,
                with_batch=larger.pace,
                guard=guard,
                ladder=finder.ladder,
                trials=[trial for trial in trials if trial.lever != BATCH_SIZE] + larger.trials,
                compile_s=finder.compile_s if any(one.id == "compile" for one in chosen) else 0.0,
                took_s=time.monotonic() - self._began,
                spent_s=self._spent_s,
                notes=tuple(self._notes),
                findings=findings,
                interrupted=self._interrupted,
                job_steps=self._job_steps,
            ),
        )

    def _search(
        self, baseline: Profile, job: JobFacts, this_job: Fingerprint, findings: tuple[Finding, ...]
    ) -> "_Searched":
        """What is fastest, or smallest: the loader's settings, then levers, then the loader under them."""
        as_written = pace_of(baseline)
        repeats = can_repeat_batches(job)
        loading = LoaderStage(self._measurer, self._limits, self._folder, baseline, self._stage)
        # How many workers are needed shows when the levers are on. Without any, nothing could be ready ahead
        # of time, and levers that depend on that could not be tried: until then as many as reckoned.
        later_on = repeats and self._request.goal != "memory"
        if later_on:
            loaded = loading.reckon(job)
        else:
            with self._stage("loader"):
                loaded = self._loaded_earlier(this_job, job) or self._loaded(loading, job, baseline)
        base = (loaded.choice,) if loaded.choice is not None else ()
        self._resume(this_job, base, repeats)
        self._leave_time_for_the_proof(baseline, job)
        finder = Finder(with_workers(job, loaded.choice), self._limits)
        candidates = finder.candidates(LEVERS, findings)
        if self._request.goal == "memory":
            with self._stage("levers"):
                deadline = self._limits.deadline
                conclusions, stop = finder.conclusions, self._end_the_search
                found, measured = lean(conclusions, candidates, self._measurer, deadline, as_written, stop)
            return _Searched(finder, loaded, found, measured)
        with self._stage("levers"):
            if self._interrupted:
                finder.conclusions.leave_out(candidates, ENDED_BY_CTRL_C)
            elif candidates:
                self._bench(finder, candidates, base, repeat_batches=repeats)
        if self._interrupted:  # the best so far is to be proven, and nothing else tried
            known = loaded.measured if not finder.best else None
            return _Searched(finder, loaded, (*base, *finder.best), known)
        try:
            loaded, found, measured = loading.on_top(job, finder, loaded, later_on=later_on)
        except KeyboardInterrupt:
            self._end_the_search()
            return _Searched(finder, loaded, (*base, *finder.best), None)
        try:
            found, measured, tried = self._make_room(job, as_written, found, measured)
        except KeyboardInterrupt:  # whether it fits is seen when it is confirmed
            self._end_the_search()
            return _Searched(finder, loaded, found, measured)
        return _Searched(finder, loaded, found, measured, tried)

    def _loaded(self, loading: LoaderStage, job: JobFacts, baseline: Profile) -> Loaded:
        try:
            return loading.tune(job, baseline, ())
        except KeyboardInterrupt:
            self._end_the_search()
            return Loaded(msgspec.structs.replace(NOT_NEEDED, reason=ENDED_BY_CTRL_C))

    def _confirm(
        self,
        chosen: tuple[Choice, ...],
        as_written: Pace,
        known: Measured | None,
        finder: Finder,
        input_wait: float,
    ) -> Confirmed:
        """What was measured by turns and proven is kept, even if nobody waits for its own process."""
        done = confirm(self._measurer, chosen, as_written, known)
        self._interrupted = self._interrupted or done.interrupted
        if not done.chosen or done.pace is not None:
            return done
        pace = pace_by_turns(done.chosen, finder, as_written, input_wait)
        if pace is None:
            return Confirmed(
                (), None, 0.0, ("ended by Ctrl-C before the plan was timed",), why=ENDED_BY_CTRL_C
            )
        return dataclasses.replace(done, pace=pace)

    def _make_room(
        self, job: JobFacts, as_written: Pace, found: tuple[Choice, ...], measured: Measured | None
    ) -> tuple[tuple[Choice, ...], Measured | None, tuple[LeverTrial, ...]]:
        """Where the plan takes more than --max-memory, what makes it take less."""
        most = self._request.max_memory_bytes
        if most is None:
            return found, measured, ()
        only = self._request.only
        with self._stage("memory"):
            now = measured or (
                self._measurer.measure("the plan's memory", found, as_written)
                if found
                else Measured(as_written, None, "stopped")
            )
            if now.pace is None or not self._measurer.is_too_large(now.pace):
                return found, now if found else measured, ()
            room = make_room(
                found,
                now,
                most,
                job,
                lambda lever: lever in self._request.skip or bool(only and lever not in only),
                lambda what, levers: self._measurer.measure(what, levers, as_written),
                self._limits.deadline,
            )
        if room.note:
            self._notes.append(room.note)
        return room.chosen, room.measured if room.chosen else measured, room.trials

    def _larger_batch(self, baseline: Profile, chosen: tuple[Choice, ...], now: Pace) -> LargerBatch:
        # On top of the budget, since it was asked for by name; but not without an end.
        deadline = self._began + (1 + _FOR_THE_BATCH) * self._request.budget_s - self._run_s(baseline)

        def search(left_out: str) -> LargerBatch:
            return larger_batch(self._measurer, baseline, chosen, now, deadline=deadline, left_out=left_out)

        with self._stage("batch size"):
            try:
                return search(ENDED_BY_CTRL_C if self._interrupted else "")
            except KeyboardInterrupt:
                self._interrupted = True
                return search(ENDED_BY_CTRL_C)

    @contextlib.contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._spent_s[name] = self._spent_s.get(name, 0.0) + time.monotonic() - began

    # The stages

    def _baseline(self) -> Profile:
        self._tell("as written: running it", 0, 0)
        job = dataclasses.replace(
            self._request.job,
            seconds=self._measurer.rule.most_seconds,
            seed=self._request.seed,
            measure_limits=False,
        )
        profile = profile_job(job, self._run, self._folder, self._tell)
        if profile.step_ms is None or not profile.trial.went_well:
            said = "".join(f"\n    {line}" for line in profile.trial.said[-8:])
            last = f"; the last it said:{said}" if said and profile.trial.outcome == "failed" else ""
            raise JobFailed(
                f"the job made {profile.updates} updates and then ended as {profile.trial.outcome!r}{last}",
                expected="a job that trains for a few dozen updates"
                if profile.trial.outcome != "failed"
                else "a job that runs as written",
                remedy=f"flatout check {self._request.job.command.typed()}",
            )
        return profile

    def _leave_time_for_the_proof(self, baseline: Profile, job: JobFacts) -> None:
        """The budget is for everything, and the guard and the confirmation come last."""
        # A run of the guard compiles too, which takes about as long as to start.
        start_s = baseline.trial.to_first_update_s or 0.0
        left_s = proof_seconds(baseline, job) + start_s + self._run_s(baseline)
        if job.host_shares.get("input_wait", 0.0) > WAITS_LONG:
            left_s += self._run_s(baseline)  # one setting of the loader more than the one that is chosen
        budget_s = self._request.budget_s
        deadline = max(time.monotonic() + _FOR_THE_SEARCH * budget_s, self._began + budget_s - left_s)
        self._limits = dataclasses.replace(self._limits, deadline=deadline)

    def _run_s(self, baseline: Profile) -> float:
        """About how long the job under a plan is measured: it starts, compiles about as long, and goes."""
        return 2 * (baseline.trial.to_first_update_s or 0.0) + self._measurer.rule.fewest_seconds

    def _loaded_earlier(self, job: Fingerprint, facts: JobFacts) -> Loaded | None:
        """What the tuning that is resumed had found for the loader, where it had come that far."""
        resumed = self._request.resume
        choice, had_looked = earlier_loader(resumed, job) if resumed is not None else (None, False)
        if not had_looked or "loader" in self._request.skip or Loader.check(facts):
            return None
        trial = msgspec.structs.replace(
            NOT_NEEDED, verdict="kept" if choice else "rejected", reason="as in the tuning that is resumed"
        )
        if choice is not None:
            trial = msgspec.structs.replace(
                trial,
                settings=choice.settings,
                predicted_speedup=choice.predicted_speedup,
                measured_speedup=choice.measured_speedup,
            )
        return Loaded(trial, choice)

    def _resume(self, job: Fingerprint, base: Sequence[Choice], repeated: bool) -> None:
        # No lever was tried yet: whoever interrupted it until now did so while the loader was looked at.
        is_done = not self._interrupted
        write_job(self._folder, job, base, repeated=repeated, loader_is_done=is_done)
        if self._request.resume is not None:
            self._answers, problem = read_answers(self._request.resume, job, base, repeated=repeated)
            if problem:
                self._notes.append(problem)

    def _bench(
        self, finder: Finder, candidates: Sequence[Choice], base: Sequence[Choice], **order: Any
    ) -> None:
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
        plan = self._request.trial(
            "levers", StopRule(most_seconds=1e9), base, director=bench, bench=True, **order
        )
        try:
            trials = bench.run(plan, self._trials_folder, tell)
            if not bench.finished:
                reason = f"{JOB_ENDED} {len(trials)} times while levers were tried"
                finder.conclusions.leave_out(candidates, reason)
        except KeyboardInterrupt:
            finder.conclusions.leave_out(candidates, ENDED_BY_CTRL_C)
            self._end_the_search()

    def _end_the_search(self) -> None:
        """What was found is worth a minute of proof; a second Ctrl-C ends that too."""
        self._interrupted = True
        self._notes.append("the search was ended by Ctrl-C: this is the best until then")
        self._tell("ended by Ctrl-C: proving the best so far (Ctrl-C again ends this too)", 0, 0)

    def _had_its_own_batches(self) -> bool:
        """Whether batches could not be repeated after all while levers took turns."""
        places = self._trials_folder.glob("*-bench")
        return any("batches_not_repeated" in rank.about for place in places for rank in read_ranks(place))

    def _write_down(self, ask: Ask, results: Sequence[ArmResult], took_s: float) -> None:
        self._journal.add(ask, results, at_s=time.monotonic() - self._began, took_s=took_s)
        if not ask.arms[0] and results[0].step_ms is not None:
            self._base_ms.append(results[0].step_ms)

    def _prove(self, job: JobFacts, baseline: Profile, found: tuple[Choice, ...]) -> Any:
        judged = self._journal.add_judgement
        proof = Proof(self._request, self._trials_folder, baseline, job, self._tell, judged)
        chosen, guard = proof.prove(found)
        self._notes += told_of_allowed(guard.allowed)
        self._journal.write_losses(baseline, guard, proof)
        return chosen, guard, proof.unsafe


@dataclasses.dataclass(frozen=True)
class _Searched:
    """What a search found; measured, where its last run was of just that."""

    finder: Finder
    loaded: Loaded
    found: tuple[Choice, ...]
    measured: Measured | None
    # What was tried to make room.
    tried: tuple[LeverTrial, ...] = ()

    @property
    def trials(self) -> list[LeverTrial]:
        """What became of every lever."""
        later = {one.lever for one in self.tried}
        earlier = [one for one in self.finder.conclusions.trials.values() if one.lever not in later]
        return [self.loaded.trial, *earlier, *self.tried]


def _unconfirmed(trial: LeverTrial, why: str) -> LeverTrial:
    if trial.verdict != "kept":
        return trial
    return msgspec.structs.replace(trial, verdict="rejected", reason=why)
