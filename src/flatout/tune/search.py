"""Which levers to try, in which combinations: a search that asks for comparisons and draws conclusions.

It runs as a generator. What it yields is a comparison that it wants; what it is sent is what the job
answered. First each lever alone, then those that helped together and each of them left out once, then the
compiler on top, then what was rejected once more where the compiler has changed the picture, then the
compiler's autotuning where there is time for it. At the end a ladder, from the baseline up, lever by lever.
"""

import dataclasses
import time
from collections.abc import Generator, Iterable, Sequence
from typing import Any

from flatout.diagnose.catalogue import BY_CODE
from flatout.levers.catalogue import BY_ID
from flatout.levers.compile import WITH_GRAPHS, Compile
from flatout.levers.job import JobFacts
from flatout.levers.lever import Lever
from flatout.records.finding import Finding
from flatout.records.plan import Choice
from flatout.records.tuning import Rung
from flatout.tune.arms import Arm, ArmResult, Ask
from flatout.tune.bench import Search
from flatout.tune.combining import conflict, ordered
from flatout.tune.conclusions import WORTH, Conclusions, interval
from flatout.tune.limits import OUT_OF_TIME, Limits

# What Amdahl's law promises less than this for is not tried.
_CANNOT_MATTER = 1.005
# What is tried on top of the compiler is compiled anew: that takes as long as all that came before.
_WORTH_COMPILING = 1.02
# To autotune is to compile and time a dozen kernels for each product: so many times as long.
_AUTOTUNING_TAKES = 3.0
# It gives a few percent: not for more than so many comparisons' time.
_COMPARISONS_FOR_AUTOTUNING = 1.5
_ARMS_AT_A_TIME = 6
# What promises so much may begin late, by so many comparisons' time.
_MUCH = 1.3
_LATE = 2.5
# What seems to give so much, and could be chance, is compared once more.
_WORTH_ANOTHER_LOOK = 1.05
_HOST_IS_IDLE = 0.4
# What is tried on top of the rest, in this order: each changes what the one before has left. Without its head
# a model is another graph: before the compiler, it need not be compiled twice.
_ON_TOP = ("linear-cross-entropy", "compile", "fp8", "sdpa-backend")
_JUDGED_LATER = ("sdpa-backend",)

Answered = Generator[Ask, list[ArmResult], list[ArmResult]]
# Where products are in half precision, there are none left for this.
_BELOW_TF32 = ("bf16", "fp16", "bf16-parameters")


class Finder:
    """One search: what it tried, what it concluded, and the best so far at any moment."""

    def __init__(self, job: JobFacts, limits: Limits) -> None:
        self._job = job
        self._limits = limits
        self.best: Arm = ()
        self.conclusions = Conclusions()
        self.ladder: list[Rung] = []
        self.compile_s = 0.0
        # What the first mode took that was tried: later ones find some of its work in the compiler's cache.
        self._first_compile_s: float | None = None
        self._evicted: list[Choice] = []
        # What would save too little of the job as written.
        self._small: list[Choice] = []
        self._host_share: float | None = None
        # Of the job without levers.
        self._launch_share = 0.0
        # Of the best so far.
        self._step_ms: float | None = None

    def candidates(self, levers: Iterable[type[Lever]], findings: Sequence[Finding] = ()) -> list[Choice]:
        """Every lever that may be tried, with its settings; the others get their verdict at once.

        Those that should give most come first, by their own arithmetic or by that of a finding they answer.
        """
        promised: dict[str, float] = {}
        for finding in findings:
            for name in BY_CODE[finding.code].levers if finding.code in BY_CODE else ():
                promised[name] = max(promised.get(name, 1.0), finding.predicted_speedup or 1.0)
        found = []
        for lever in levers:
            if not lever.switchable:
                continue
            reason = self._limits.refusal(lever.id, self._job)
            if reason:
                self.conclusions.conclude(Choice(id=lever.id), "skipped", reason)
                continue
            for settings in lever.variants(self._job):
                predicted = lever.predict(self._job, settings)
                choice = Choice(id=lever.id, settings=settings, predicted_speedup=predicted)
                # What little of a slow step may be much of the step that the others leave is judged then.
                # What was allowed by name is tried: it may be wanted for its memory.
                is_for_speed = lever.safety != "memory" and lever.id not in self._limits.allow
                if predicted < _CANNOT_MATTER and is_for_speed and lever.id not in _JUDGED_LATER:
                    gain = f"{100 * (predicted - 1):.1f} %" if predicted > 1.0 else "nothing"
                    self.conclusions.conclude(
                        choice, "skipped", f"Amdahl's law promises {gain}: less than 0.5 %"
                    )
                    if lever.id not in _ON_TOP:
                        self._small.append(choice)
                else:
                    found.append(choice)
        return sorted(
            found, key=lambda choice: -max(choice.predicted_speedup or 0.0, promised.get(choice.id, 0.0))
        )

    def search(self, candidates: Sequence[Choice]) -> Search:
        """Ask, conclude, ask again."""
        cheap = [choice for choice in candidates if choice.id not in _ON_TOP]
        later = [choice for name in _ON_TOP for choice in candidates if choice.id == name]
        yield from self._singles(cheap)
        yield from self._together()
        for choice in self._graphs_in_their_place(later):
            if reason := self._needless(choice):
                self.conclusions.conclude(choice, "skipped", reason)
            else:
                yield from self._on_top(choice)
        if any(choice.id == "compile" for choice in self.best):
            for choice in cheap:
                if self._may_pay_now(choice):
                    yield from self._on_top(choice)
        for choice in self._small:
            if self._is_much_of_what_is_left(choice):
                yield from self._on_top(choice)
        yield from self._autotuned()
        yield from self._climb()

    # The stages

    def _singles(self, choices: Sequence[Choice]) -> Search:
        alone_ms: dict[str, float | None] = {}
        for start in range(0, len(choices), _ARMS_AT_A_TIME):
            some = choices[start : start + _ARMS_AT_A_TIME]
            if not self._has_time(choices[start:]):
                break
            results = yield from self._compared((), [(choice,) for choice in some], _listed(some))
            self._host_share, self._step_ms = results[0].host_share, results[0].step_ms
            self._launch_share = results[0].host_share or 0.0
            for choice, result in zip(some, results[1:], strict=True):
                self.conclusions.judge(choice, result, ())
                alone_ms[choice.words()] = result.step_ms
        kept = [choice for choice in choices if self.conclusions.is_kept(choice)]
        fastest: dict[str, Choice] = {}
        for choice in sorted(kept, key=lambda one: self.conclusions.of(one).measured_speedup or 0.0):
            slower = fastest.get(choice.id)
            if slower is not None:
                self.conclusions.conclude(slower, "rejected", f"{choice.words()} is faster")
            fastest[choice.id] = choice
        self.best = ordered(self._without_conflicts(list(fastest.values())))
        if len(self.best) == 1:
            self._step_ms = alone_ms[self.best[0].words()]

    def _without_conflicts(self, slowest_first: list[Choice]) -> list[Choice]:
        kept: list[Choice] = []
        for choice in reversed(slowest_first):
            rival = next((one for one in kept if conflict(choice, one)), None)
            if rival is None:
                kept.append(choice)
            else:
                self.conclusions.conclude(
                    choice, "rejected", f"it conflicts with {rival.words()}, which is faster"
                )
        return kept

    def _together(self) -> Search:
        """What helped alone may not help together: leave each out once."""
        if len(self.best) < 2 or not self._has_time(()):
            return
        together = self.best
        others = [tuple(one for one in together if one is not left) for left in together]
        results = yield self._ask(
            together, *others[: _ARMS_AT_A_TIME + 1], what="together", threshold=1.0 - WORTH / 2
        )
        if results[0].failed:
            self.best = (max(together, key=lambda one: self.conclusions.of(one).measured_speedup or 0.0),)
            for choice in together:
                if choice not in self.best:
                    rest = _listed([one for one in together if one is not choice])
                    self.conclusions.conclude(choice, "rejected", f"beside {rest}: {results[0].failed}")
            return
        self._host_share, self._step_ms = results[0].host_share, results[0].step_ms
        evicted = []
        for left, result in zip(together, results[1:], strict=False):
            if (
                result.speedup is not None
                and (result.high or 0.0) >= 1.0
                and result.speedup > 1.0 - WORTH / 2
            ):
                gain = 1 / result.speedup
                reason = f"beside the others it gives {gain:.3f}x: they do its work"
                evicted.append((gain, left, reason))
        # One at a time: two that replace each other must not both go.
        for _, left, reason in sorted(evicted, key=lambda one: one[0])[:1]:
            self.best = tuple(one for one in self.best if one is not left)
            self.conclusions.conclude(left, "rejected", reason, on_top_of=self.best)
            self._evicted.append(left)
        if evicted and len(self.best) > 1:
            yield from self._together()

    def _on_top(self, choice: Choice) -> Search:
        """One more lever, or another setting of one that is in, on top of the best."""
        if not self._has_time((choice,)):
            return
        # Another setting of it, and what must not be on beside it, make room.
        without = tuple(one for one in self.best if one.id != choice.id and not conflict(one, choice))
        arm = ordered((*without, choice))
        results = yield from self._compared(self.best, [arm], f"{choice.words()} on top")
        result = results[1]
        if choice.id == "compile" and self._first_compile_s is None and not result.failed:
            self._first_compile_s = result.compile_s
        if not self._pays_back(result, results[0]):
            self.conclusions.conclude(
                choice, "rejected", self._no_payback(result, results[0]), result, self.best
            )
            return
        replaced = next((one for one in self.best if one.id == choice.id), None)
        if self.conclusions.judge(choice, result, self.best):
            if replaced is not None:
                reason = f"{choice.words()} is {result.speedup:.2f}x faster"
                self.conclusions.conclude(replaced, "rejected", reason, on_top_of=without)
            self.best, self._step_ms = arm, result.step_ms
            if choice.id == "compile":
                self.compile_s = result.compile_s
                self._host_share = result.host_share

    def _autotuned(self) -> Search:
        """The mode that won, with kernels chosen by timing them: minutes, so only where they are left."""
        won = next((one for one in self.best if one.id == "compile"), None)
        settings = Compile.autotuned(self._job, won.settings) if won is not None else None
        if settings is None:
            return
        predicted = Compile.predict(self._job, settings)
        choice = Choice(id="compile", settings=settings, predicted_speedup=predicted)
        needed_s = _AUTOTUNING_TAKES * (self._first_compile_s or self.compile_s)
        left_s = max(0.0, self._limits.deadline - time.monotonic())
        if needed_s + self._limits.comparison_s > left_s:
            self.conclusions.conclude(
                choice, "skipped", f"about {needed_s:.0f} s to compile, {left_s:.0f} s are left"
            )
        elif needed_s > _COMPARISONS_FOR_AUTOTUNING * self._limits.comparison_s:
            reason = f"about {needed_s:.0f} s to compile: a longer --budget has room for that"
            self.conclusions.conclude(choice, "skipped", reason)
        else:
            yield from self._on_top(choice)

    def _climb(self) -> Search:
        """The waterfall: every rung from the baseline up, by turns in one run."""
        rungs = [self.best[:count] for count in range(len(self.best) + 1)]
        if len(rungs) == 1:
            return
        results = yield self._ask(*rungs, what="baseline to best", most_cycles=8, threshold=None)
        if not results[-1].failed and not results[-1].is_faster(WORTH):
            results = yield self._ask_longer(*rungs, what="baseline to best", threshold=None)
        if not results[-1].failed and not results[-1].is_faster(WORTH):
            self._nothing_after_all(results[-1])
            return
        times = [result.step_ms for result in results]
        if any(value is None for value in times):
            failed = next(result.failed for result in results if result.failed)
            self.ladder = []
            self.conclusions.conclude(self.best[-1], "failed", f"in the ladder: {failed}")
            self.best = self.best[:-1]
            yield from self._climb()
            return
        known = [value for value in times if value is not None]
        gains = [known[number] / known[number + 1] for number in range(len(self.best))]
        worst = min(range(len(gains)), key=gains.__getitem__)
        is_last = worst == len(self.best) - 1
        if gains[worst] < 1.0 + WORTH and len(self.best) > 1 and (is_last or self._has_time(())):
            # On its rung it gives nothing. What comes after may need it: is the plan as fast without?
            left = self.best[worst]
            others = tuple(one for one in self.best if one is not left)
            without: float | None = 1 / gains[worst]
            if not is_last:
                results = yield self._ask(self.best, others, what=f"without {left.words()}", threshold=1.0)
                without = results[1].speedup
            if without is not None and without > 1.0 - WORTH / 2:
                self.best = others
                reason = f"beside the others it gives {1 / without:.3f}x"
                self.conclusions.conclude(left, "rejected", reason, on_top_of=others)
                yield from self._climb()
                return
        self.ladder = [
            Rung(
                lever=choice.words(),
                step_ms=known[number + 1],
                gain=gains[number],
                speedup=known[0] / known[number + 1],
            )
            for number, choice in enumerate(self.best)
        ]
        for choice, rung in zip(self.best, self.ladder, strict=True):
            self.conclusions.stands_in_the_plan(choice, rung)

    # What follows from it

    def _nothing_after_all(self, result: ArmResult) -> None:
        """What seemed to help, one by one, does not show where all of it stands beside the job as written."""
        reason = f"the whole plan by turns with the job as written: {interval(result)}"
        for choice in self.best:
            self.conclusions.conclude(choice, "rejected", reason, result)
        self.best, self.ladder, self.compile_s = (), [], 0.0

    def _graphs_in_their_place(self, choices: list[Choice]) -> list[Choice]:
        """Where launches hold the job up, CUDA graphs come first: each mode takes long to compile.

        Where time is short, what promises less than the compiler waits for it.
        """
        host_share = self._host_share if self._host_share is not None else 1.0
        graphs_first = host_share >= _HOST_IS_IDLE
        is_short = self._limits.deadline - time.monotonic() < 2 * self._limits.comparison_s
        compiled = max((one.predicted_speedup or 1.0 for one in choices if one.id == "compile"), default=0.0)

        def place(choice: Choice) -> tuple[bool, int, bool]:
            waits = is_short and (choice.predicted_speedup or 1.0) < compiled and choice.id != "compile"
            return (waits, _ON_TOP.index(choice.id), _with_graphs(choice) != graphs_first)

        return sorted(choices, key=place)

    def _needless(self, choice: Choice) -> str:
        """Why what comes on top need not be tried after what was shown before."""
        if choice.id == "sdpa-backend":
            now = dataclasses.replace(self._job, step_ms=self._step_ms or self._job.step_ms)
            predicted = BY_ID[choice.id].predict(now, choice.settings)
            if predicted < _WORTH_COMPILING:
                return f"of a step of {now.step_ms:.1f} ms it would save {100 * (1 - 1 / predicted):.1f} %"
        if choice.id == "fp8" and not any(one.id == "compile" for one in self.best):
            return "it pays only beside torch.compile, which is not in the plan"
        if choice.id != "compile":
            return ""
        if _with_graphs(choice):
            # Graphs take launches away; where the host is idle half of the time, none holds the job up.
            idle = self._host_share is not None and self._host_share < _HOST_IS_IDLE
            return "the host keeps up: launches are not what holds the job up" if idle else ""
        if any(one.id == "compile" and _with_graphs(one) for one in self.best):
            return "reduce-overhead is the same code without its launches, which hold this job up"
        return ""

    def _may_pay_now(self, choice: Choice) -> bool:
        """Whether what was rejected is worth compiling once more for.

        What cost more than it gave may pay now that the compiler fuses it away; what gave nothing to a job
        that waited for its launches may give something to one that does not. The rest gives nothing twice.
        """
        trial = self.conclusions.of(choice)
        if trial.verdict != "rejected" or choice in self._evicted:
            return False
        if choice.id == "tf32" and any(one.id in _BELOW_TF32 for one in self.best):
            return False
        costs = trial.measured_speedup is not None and trial.measured_speedup < 1.0 - WORTH
        return costs or self._launch_share >= _HOST_IS_IDLE

    def _is_much_of_what_is_left(self, choice: Choice) -> bool:
        """Whether what it saves, little of the job as written, is some of the step that the others leave."""
        if self._step_ms is None or not self.best or any(conflict(choice, one) for one in self.best):
            return False
        saves_ms = self._job.step_ms * (1 - 1 / (choice.predicted_speedup or 1.0))
        return saves_ms > (1 - 1 / _WORTH_COMPILING) * self._step_ms

    def _pays_back(self, result: ArmResult, base: ArmResult) -> bool:
        steps = self._limits.job_steps
        if steps is None or result.step_ms is None or base.step_ms is None:
            return True
        return steps * (base.step_ms - result.step_ms) / 1000 > result.compile_s

    def _no_payback(self, result: ArmResult, base: ArmResult) -> str:
        saved_s = ((base.step_ms or 0.0) - (result.step_ms or 0.0)) / 1000 * (self._limits.job_steps or 0)
        return (
            f"compiling takes {result.compile_s:.0f} s and saves {max(0.0, saved_s):.0f} s "
            f"in the job's {self._limits.job_steps} steps"
        )

    def _has_time(self, choices: Sequence[Choice]) -> bool:
        # What comes on top comes last: with a promise like this it must not be lost to what came before.
        late = [one for one in choices if one.id in _ON_TOP and (one.predicted_speedup or 0) >= _MUCH]
        if time.monotonic() < self._limits.deadline + (_LATE * self._limits.comparison_s if late else 0.0):
            return True
        self.conclusions.leave_out(choices, OUT_OF_TIME)
        return False

    def _compared(self, base: Arm, arms: Sequence[Arm], what: str) -> Answered:
        """Ask; once more, and for longer, of what would be worth much and could still be chance."""
        results = yield self._ask(base, *arms, what=what)
        unclear = [number for number, result in enumerate(results) if _promises_much_and_is_unclear(result)]
        if unclear and time.monotonic() < self._limits.deadline:
            again = yield self._ask_longer(base, *(arms[number - 1] for number in unclear), what=what)
            results = [again[0] if not again[0].failed else results[0], *results[1:]]
            for number, result in zip(unclear, again[1:], strict=True):
                results[number] = result
        return results

    def _ask_longer(self, *arms: Arm, what: str, **more: Any) -> Ask:
        more = {"most_cycles": 24, "most_seconds": 2 * self._limits.comparison_s, **more}
        return self._ask(*arms, what=f"{what}, once more", **more)

    def _ask(self, *arms: Arm, what: str, **more: Any) -> Ask:
        more = {"threshold": 1.0 + WORTH, "most_seconds": self._limits.comparison_s, **more}
        return Ask(arms=tuple(arms), what=what, **more)


def _promises_much_and_is_unclear(result: ArmResult) -> bool:
    is_clear = result.is_faster(WORTH) or (result.high is not None and result.high < 1.0 + WORTH)
    return not result.failed and not is_clear and (result.speedup or 0.0) >= _WORTH_ANOTHER_LOOK


def _with_graphs(choice: Choice) -> bool:
    return choice.settings.get("mode") in WITH_GRAPHS


def _listed(choices: Sequence[Choice]) -> str:
    return ", ".join(choice.words() for choice in choices)
