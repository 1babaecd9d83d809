"""What a comparison says of a lever: worth it, not worth it, or failed; and why, in words."""

import dataclasses
from collections.abc import Sequence

import msgspec

from flatout.levers.catalogue import BY_ID
from flatout.records.plan import Choice
from flatout.records.tuning import LeverTrial, Rung, Verdict
from flatout.tune.arms import Arm, ArmResult

# Less than this is not worth a change of anybody's job.
WORTH = 0.01
# With ends of its interval further apart than this, a speedup is none.
_APART = 4.0
UNEVEN = "its steps took too different times to compare: a quieter machine, or a longer --budget, tells"


class Conclusions:
    """What became of each lever and setting so far; a later conclusion replaces an earlier one."""

    def __init__(self) -> None:
        self.trials: dict[str, LeverTrial] = {}

    def of(self, choice: Choice) -> LeverTrial:
        """What was concluded last."""
        return self.trials[choice.words()]

    def knows(self, choice: Choice) -> bool:
        """Whether anything was concluded."""
        return choice.words() in self.trials

    def is_kept(self, choice: Choice) -> bool:
        """Whether it was found to help."""
        return self.knows(choice) and self.of(choice).verdict == "kept"

    def judge(self, choice: Choice, result: ArmResult, base: Arm) -> bool:
        """Conclude from a comparison; whether it helps."""
        if result.failed:
            self.conclude(choice, "failed", result.failed, result, base)
            return False
        assert result.speedup is not None
        if result.is_faster(WORTH):
            self.conclude(choice, "kept", f"{result.speedup:.2f}x faster", result, base)
            return True
        if is_uneven(result):  # its figures would say anything
            told = dataclasses.replace(result, speedup=None, low=None, high=None)
            self.conclude(choice, "rejected", UNEVEN, told, base)
            return False
        self.conclude(choice, "rejected", _why_not(result), result, base)
        return False

    def conclude(
        self,
        choice: Choice,
        verdict: Verdict,
        reason: str,
        result: ArmResult | None = None,
        on_top_of: Arm = (),
    ) -> None:
        """What became of a lever with some settings."""
        known = self.trials.get(choice.words())
        self.trials[choice.words()] = LeverTrial(
            lever=choice.id,
            safety=BY_ID[choice.id].safety,
            verdict=verdict,
            reason=reason,
            settings=choice.settings,
            predicted_speedup=choice.predicted_speedup,
            measured_speedup=result.speedup
            if result is not None
            else getattr(known, "measured_speedup", None),
            low=result.low if result is not None else None,
            high=result.high if result is not None else None,
            on_top_of=tuple(one.words() for one in on_top_of),
        )

    def stands_in_the_plan(self, choice: Choice, rung: Rung) -> None:
        """By turns with its neighbours in the plan: that counts, and the first comparison's interval not."""
        self.trials[choice.words()] = msgspec.structs.replace(
            self.of(choice),
            measured_speedup=rung.gain,
            low=None,
            high=None,
            reason=f"{rung.gain:.2f}x in the plan",
        )

    def leave_out(self, choices: Sequence[Choice], reason: str) -> None:
        """Conclude that those of which nothing is known yet were not tried."""
        for choice in choices:
            if not self.knows(choice):
                self.conclude(choice, "skipped", reason)


def is_uneven(result: ArmResult) -> bool:
    """Whether steps took so different times that the comparison says nothing."""
    return not result.low or result.high is None or result.high > _APART * result.low


def interval(result: ArmResult) -> str:
    """A speedup that may be none, with its ends."""
    if is_uneven(result):
        return UNEVEN
    ends = f"{result.low or 0.0:.3f} to {result.high:.3f}" if result.high is not None else "no interval"
    return f"{result.speedup or 0.0:.3f}x, but it could be chance ({ends})"


def _why_not(result: ArmResult) -> str:
    speedup = result.speedup or 0.0
    if speedup < 1.0 - WORTH / 2:
        return f"{'slower' if (result.high or 1.0) < 1.0 else 'no faster'}: {speedup:.3f}x"
    if speedup < 1.0 + WORTH or result.low is None or result.high is None:
        return f"{speedup:.3f}x: less than {WORTH:.0%} is not worth a change"
    return interval(result)
