"""The runs that the guard judges, and what follows from its judgement."""

import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from flatout.hardware.host import cores_allowed, read_host
from flatout.levers.catalogue import BY_ID
from flatout.levers.job import JobFacts
from flatout.records.plan import Choice
from flatout.records.profile import Profile
from flatout.records.trial import Outcome
from flatout.records.tuning import GuardEvidence, LeverTrial
from flatout.runtime.progress import StopRule
from flatout.runtime.trial import OnProgress, run_trial
from flatout.tune.guard import bit_for_bit, judge
from flatout.tune.guard_runs import GuardRun, is_paired
from flatout.tune.request import TuneRequest
from flatout.tune.trajectory import last_losses, without_numbers
from flatout.tune.turns import Turns, room_for

# Updates of a run; fewer where they are slow, as few as still find every corruption that shows in them
# (benchmarks/results, guard-12-steps).
_STEPS, _FEWEST_STEPS = 30, 12
_LONG_ENOUGH_S = 6.0
_UPDATES = 3
_TWINS = 3
_ROUNDS = 3

NOT_NEEDED = GuardEvidence(verdict="not needed", paired=True, reason="nothing was changed")

# A run's name, its levers, by how much its parameters are changed before it starts, and which change it is.
Run = tuple[str, tuple[Choice, ...], float, int]
OnJudgement = Callable[[Sequence[Choice], GuardEvidence], None]


class Proof:
    """Shows that a plan learns the same, or takes out of it what does not."""

    def __init__(
        self,
        request: TuneRequest,
        folder: Path,
        baseline: Profile,
        job: JobFacts,
        on_progress: OnProgress,
        on_judgement: OnJudgement = lambda _levers, _evidence: None,
    ) -> None:
        self._on_judgement = on_judgement
        self._request = request
        self._folder = folder
        self._job = job
        self._room = room_for(baseline, threads_of(job), _TWINS + 2)
        self._environment = own_threads(baseline, self._room.started)
        self._steps = steps_of(baseline)
        # Compiled code draws other random numbers than code as written, unless it is told not to.
        self.draws = bool(job.habit("draws", True))
        self._tell = on_progress
        self.unsafe: dict[str, str] = {}
        # Of the runs as written: what they began with, and by how much their twins were changed.
        self.pairing: dict[str, Any] = {}
        self.roundoff = 0.0
        self._reference: GuardRun | None = None
        self._same_samples = False

    def prove(self, chosen: tuple[Choice, ...]) -> tuple[tuple[Choice, ...], GuardEvidence]:
        """What may stay, and the evidence for it.

        Levers that change the training stay out of the proof: the user has allowed them. How far they take
        the losses is measured all the same, and one that breaks the job goes.
        """
        allowed = tuple(choice for choice in chosen if BY_ID[choice.id].safety == "recipe")
        safe, evidence = self._prove(tuple(choice for choice in chosen if choice not in allowed))
        if not allowed:
            return safe, evidence
        kept = tuple(choice for choice in chosen if choice in (*safe, *allowed))
        reference = self._reference
        runs: list[Run] = [("with what you allowed", kept, 0.0, 0)]
        if reference is None:
            reference, candidate = self._run([("as written", (), 0.0, 0), *runs])
        else:
            [candidate] = self._run(runs)
        problem = candidate.failed or reference.failed or without_numbers(candidate.losses)
        if problem:
            self.unsafe |= {choice.id: problem for choice in allowed}
            return safe, evidence
        levers = [choice.words() for choice in allowed]
        told = {"levers": levers, **last_losses(reference.losses, candidate.losses)}
        curves = {**evidence.curves, "with what you allowed": list(candidate.losses)}
        return kept, dataclasses.replace(evidence, allowed=told, curves=curves)

    def _prove(self, chosen: tuple[Choice, ...]) -> tuple[tuple[Choice, ...], GuardEvidence]:
        if not chosen:
            return (), NOT_NEEDED
        roundoff = max(self._tolerance(choice) for choice in chosen)
        self._same_samples = any(BY_ID[choice.id].safety == "resampled" for choice in chosen)
        twins: list[Run] = [(f"twin {number}", (), roundoff, number) for number in range(1, _TWINS + 1)]
        as_written: Run = ("as written", (), 0.0, 0)
        if {BY_ID[choice.id].safety for choice in chosen} == {"exact"}:
            # What is the same bit for bit needs no measure of rounding.
            candidate, reference = self._run([("plan", chosen, 0.0, 0), as_written])
            self.pairing, self.roundoff, self._reference = dict(reference.pairing), roundoff, reference
            same = bit_for_bit(reference, candidate)
            if same is not None:
                return chosen, same
            others = self._run(twins)
        else:
            # The plan may have to compile: where not all run at once, that must not come last.
            candidate, reference, *others = self._run([("plan", chosen, 0.0, 0), as_written, *twins])
        self.pairing, self.roundoff, self._reference = dict(reference.pairing), roundoff, reference
        evidence = NOT_NEEDED
        for attempt in range(_ROUNDS):
            if attempt:
                [candidate] = self._run([("the rest of the plan", chosen, 0.0, 0)])
            classes = {BY_ID[choice.id].safety for choice in chosen}
            evidence = judge(
                reference,
                others,
                candidate,
                roundoff=roundoff,
                exact=classes == {"exact"},
                resampled="resampled" in classes,
            )
            self._on_judgement(chosen, evidence)
            repeatable = all(is_paired(reference, twin, others) for twin in others)
            if evidence.verdict == "weak" and "resampled" in classes and repeatable:
                evidence = self._apart_from_samples(chosen, reference, others, roundoff, evidence)
            if evidence.verdict != "unsafe":
                return chosen, evidence
            culprits = self._culprits(chosen, reference, others, roundoff, evidence)
            self.unsafe |= culprits
            chosen = tuple(choice for choice in chosen if choice.id not in culprits)
            if not chosen:
                break
        return (), evidence

    def _apart_from_samples(
        self,
        chosen: tuple[Choice, ...],
        reference: GuardRun,
        twins: Sequence[GuardRun],
        roundoff: float,
        weak: GuardEvidence,
    ) -> GuardEvidence:
        """A plan that draws other samples can only be held to a level: the rest of it, to more than that."""
        rest = tuple(choice for choice in chosen if BY_ID[choice.id].safety != "resampled")
        if not rest:
            return weak
        [candidate] = self._run([("the plan, with the samples as written", rest, 0.0, 0)])
        exact = {BY_ID[choice.id].safety for choice in rest} == {"exact"}
        evidence = judge(reference, twins, candidate, roundoff=roundoff, exact=exact)
        self._on_judgement(rest, evidence)
        if evidence.verdict != "same":
            return evidence if evidence.verdict == "unsafe" else weak
        resampled = ", ".join(choice.words() for choice in chosen if choice not in rest)
        reason = f"{evidence.reason}; {resampled} draws other samples: {weak.reason}"
        curves = {**evidence.curves, "with other samples": weak.curves.get("plan", [])}
        return dataclasses.replace(evidence, reason=reason, curves=curves)

    def _tolerance(self, choice: Choice) -> float:
        return BY_ID[choice.id].tolerance(self._job)

    def _culprits(
        self,
        chosen: tuple[Choice, ...],
        reference: GuardRun,
        twins: Sequence[GuardRun],
        roundoff: float,
        evidence: GuardEvidence,
    ) -> dict[str, str]:
        """Who fails alone; where nobody does, the riskiest goes."""
        if len(chosen) == 1:
            return {chosen[0].id: evidence.reason}
        runs = self._run([(choice.words(), (choice,), 0.0, 0) for choice in chosen])
        verdicts = {
            choice.id: judge(
                reference,
                twins,
                run,
                roundoff=roundoff,
                resampled=BY_ID[choice.id].safety == "resampled",
            )
            for choice, run in zip(chosen, runs, strict=True)
        }
        for choice in chosen:
            self._on_judgement((choice,), verdicts[choice.id])
        found = {name: verdict.reason for name, verdict in verdicts.items() if verdict.verdict == "unsafe"}
        riskiest = max(chosen, key=self._tolerance)
        return found or {riskiest.id: f"with the others: {evidence.reason}"}

    def _run(self, runs: Sequence[Run]) -> list[GuardRun]:
        """Short, equally seeded runs; nobody is timed, so they start together, and train as memory allows."""
        done = 0
        turns = Turns(self._room.training)
        first = len(list(self._folder.iterdir())) + 1

        def one(item: tuple[int, Run]) -> Outcome:
            nonlocal done
            number, (name, levers, perturb, which) = item
            place = self._folder / f"{number}-guard"
            with turns.taker() as taker:
                plan = self._request.trial(
                    f"guard: {name}",
                    StopRule(updates=self._steps),
                    levers,
                    director=taker,
                    takes_turns=True,
                    pair_updates=_UPDATES,
                    guard_updates=_UPDATES,
                    same_random=self.draws,
                    same_samples=self._same_samples,
                    perturb=perturb,
                    perturbation=which,
                )
                plan = dataclasses.replace(plan, environment={**plan.environment, **self._environment})
                trial = run_trial(plan, place)
            done += 1
            self._tell(f"guard: {done} of {len(runs)} runs done", done, len(runs))
            return trial.outcome

        self._tell(f"guard: {', '.join(name for name, *_ in runs)}", 0, len(runs))
        numbered = list(enumerate(runs, start=first))
        with ThreadPoolExecutor(max_workers=self._room.started) as pool:
            try:
                outcomes = list(pool.map(one, numbered))
            except BaseException:  # a Ctrl-C is not to wait for runs that nobody needs any more
                turns.end_all()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if self._room.started > 1:
            # Side by side they may have been short of memory: alone they are not.
            for item in [
                item
                for item, outcome in zip(numbered, outcomes, strict=True)
                if outcome in ("failed", "killed")
            ]:
                done -= 1
                shutil.rmtree(self._folder / f"{item[0]}-guard")
                one(item)
        return [GuardRun.read(self._folder / f"{number}-guard") for number, _ in numbered]


def steps_of(baseline: Profile) -> int:
    """How many updates a run of the guard makes."""
    if baseline.step_ms is None:
        return _STEPS
    return max(_FEWEST_STEPS, min(_STEPS, round(_LONG_ENOUGH_S / (baseline.step_ms.p50 / 1000))))


def own_threads(baseline: Profile, started: int) -> dict[str, str]:
    """Settings under which runs side by side on a GPU do not contend for the host's cores.

    Each would compute with as many threads as there are cores, which wait for each other at every operation.
    How many there are changes no result that a GPU computes, and is the same for all.
    """
    if started < 2 or not (baseline.device or "").startswith("cuda"):
        return {}
    fair = max(1, cores_allowed(read_host(places=())) // started)
    given = os.environ.get("OMP_NUM_THREADS", "")
    return {"OMP_NUM_THREADS": str(min(fair, int(given)) if given.isdigit() else fair)}


def threads_of(job: JobFacts) -> int:
    """With how many threads the job computes."""
    return int(job.habit("threads", 1))


def proof_seconds(baseline: Profile, job: JobFacts) -> float:
    """About how long the guard's runs will take: each starts as the baseline did, and computes as it did."""
    if baseline.step_ms is None:
        return 0.0
    starts = math.ceil((_TWINS + 2) / room_for(baseline, threads_of(job), _TWINS + 2).started)
    computing_s = (_TWINS + 2) * steps_of(baseline) * baseline.step_ms.p50 / 1000
    return starts * (baseline.trial.to_first_update_s or 0.0) + computing_s


def with_verdicts(trials: Sequence[LeverTrial], unsafe: dict[str, str]) -> list[LeverTrial]:
    """The trials, where the guard had something to say about one that was kept."""
    return [
        msgspec.structs.replace(trial, verdict="unsafe", reason=unsafe[trial.lever])
        if trial.verdict == "kept" and trial.lever in unsafe
        else trial
        for trial in trials
    ]
