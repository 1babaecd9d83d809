"""The plan in a process of its own, beside the job as written: what was found by turns holds there too."""

import dataclasses

from flatout.records.plan import Choice
from flatout.records.tuning import ENDED_BY_CTRL_C, Pace
from flatout.records.words import memory_size
from flatout.tune.conclusions import WORTH
from flatout.tune.measuring import Measurer
from flatout.tune.pace import Measured, fastest, gain, input_wait

NOT_CONFIRMED = "not confirmed in a process of its own"
# From run to run a machine that does other work, too, differs by so much.
_CLEAR_GAIN = 1.15


@dataclasses.dataclass(frozen=True)
class Confirmed:
    """What is left of a plan, and how it goes; nothing where it is no better than the job as written."""

    chosen: tuple[Choice, ...]
    # None where nothing is left, and where nobody waited for a run of it.
    pace: Pace | None
    # Of a step under the plan.
    input_wait: float
    notes: tuple[str, ...] = ()
    # The job as written beside it, where that was measured once more.
    as_written: Pace | None = None
    # Why nothing is left of it, where nothing is.
    why: str = ""
    interrupted: bool = False


def confirm(
    measurer: Measurer, chosen: tuple[Choice, ...], as_written: Pace, known: Measured | None = None
) -> Confirmed:
    """Measure the plan, unless that is `known`; again where it seems to be no faster.

    After a Ctrl-C, what was measured until then says what is left of the plan.
    """
    confirming = _Confirming(measurer, chosen, as_written, known)
    try:
        return confirming.run()
    except KeyboardInterrupt:
        return dataclasses.replace(confirming.so_far(), interrupted=True)


class _Confirming:
    def __init__(
        self, measurer: Measurer, chosen: tuple[Choice, ...], as_written: Pace, known: Measured | None
    ) -> None:
        self._measurer = measurer
        self._as_written = as_written
        # What is left of the plan, and the last run of just that.
        self._chosen = chosen
        self._measured = known
        self._notes: list[str] = []

    def run(self) -> Confirmed:
        """To its end."""
        measured = self._measured or self._measure("confirming the plan")
        why = NOT_CONFIRMED
        while measured.pace is not None and self._measurer.is_too_large(measured.pace) and self._chosen:
            size = memory_size(measured.pace.peak_bytes or 0)
            self._notes.append(f"{size} is more than --max-memory: without {self._chosen[-1].words()}")
            why = f"the plan takes {size}: more than --max-memory"
            self._chosen, self._measured = _lighter(self._chosen), None
            if self._chosen:
                measured = self._measure("with less memory")
        pace = measured.pace
        if self._chosen and pace is None:
            why = f"under the plan {measured.ending}"
            self._notes.append(f"the plan could not be confirmed: {why}")
        elif self._chosen and pace is not None:
            if self._is_worth_it(pace):
                return self._kept(pace)
            before, after, note = _once_more(self._measurer, self._chosen, self._as_written, pace)
            self._notes += filter(None, [note])
            if after is not None:
                return self._kept(after, before)
        return self._nothing(why)

    def so_far(self) -> Confirmed:
        """What is known of the plan when nobody waits any longer."""
        pace = self._measured.pace if self._measured is not None else None
        if not self._chosen:
            return self._nothing(ENDED_BY_CTRL_C)
        request = self._measurer.request
        if pace is None and (request.max_memory_bytes is not None or request.goal == "memory"):
            self._notes.append("ended by Ctrl-C before it was known how much memory the plan takes")
            return self._nothing(ENDED_BY_CTRL_C)
        if pace is None:
            self._notes.append(
                "ended by Ctrl-C before the plan ran in a process of its own: figures are those by turns"
            )
            return Confirmed(self._chosen, None, 0.0, tuple(self._notes))
        if not self._measurer.is_too_large(pace) and self._is_worth_it(pace):
            return self._kept(pace)
        self._notes.append("ended by Ctrl-C after a run in which the plan was not clearly better")
        return self._nothing(NOT_CONFIRMED)

    def _measure(self, what: str) -> Measured:
        self._measured = self._measurer.measure(what, self._chosen, self._as_written)
        return self._measured

    def _is_worth_it(self, pace: Pace) -> bool:
        # A plan that is to fit is worth its time.
        if self._measurer.request.goal == "memory" or self._measurer.is_too_large(self._as_written):
            return True
        return gain(self._as_written, pace) >= (_CLEAR_GAIN if _by_runs_alone(self._chosen) else 1 + WORTH)

    def _kept(self, pace: Pace, as_written: Pace | None = None) -> Confirmed:
        waits = input_wait(self._measured) if self._measured is not None else 0.0
        return Confirmed(self._chosen, pace, waits, tuple(self._notes), as_written)

    def _nothing(self, why: str) -> Confirmed:
        return Confirmed((), None, 0.0, tuple(self._notes), why=why)


def _by_runs_alone(chosen: tuple[Choice, ...]) -> bool:
    """Whether nothing of a plan was compared by turns: its runs are minutes apart."""
    return all(one.id == "loader" for one in chosen)


def _once_more(
    measurer: Measurer, chosen: tuple[Choice, ...], as_written: Pace, pace: Pace
) -> tuple[Pace | None, Pace | None, str]:
    """The baseline ran minutes ago, and other work may have come and gone since: each of them again.

    Where nothing was compared by turns, only the fastest of both, run by turns, can tell a little gain.
    """
    now = measurer.measure("as written, once more", (), as_written).pace
    if now is not None and gain(now, pace) >= 1 + WORTH and not _by_runs_alone(chosen):
        if gain(as_written, pace) >= 1 + WORTH:
            return fastest(as_written, now), pace, ""
        return now, pace, "the machine became slower while tuning: other work runs on it"
    again = measurer.measure("the plan, once more", chosen, as_written).pace
    if now is not None and again is not None:
        before, after = fastest(as_written, now), fastest(pace, again)
        if gain(before, after) >= 1 + WORTH:
            disturbed = gain(as_written, pace) < 1 + WORTH
            slowed = "other work on this machine slowed some of the runs: the fastest of each count"
            return before, after, slowed if disturbed else ""
    return None, None, "in a process of its own the plan was no faster, so there is none"


def _lighter(chosen: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Without what takes memory for speed: CUDA graphs first, then the last lever."""
    last = chosen[-1]
    if last.id == "compile" and last.settings.get("mode") != "default":
        return (*chosen[:-1], dataclasses.replace(last, settings={"mode": "default"}))
    return chosen[:-1]
