"""A rule: a code that never changes, and a function from what a run showed to a finding, or nothing."""

import dataclasses
import inspect
import sys
from collections import Counter
from collections.abc import Callable

from flatout.analyze.straggling import straggler, straggler_of_traces
from flatout.diagnose import policy
from flatout.levers.job import JobFacts, amdahl
from flatout.records.finding import Finding, Place, Severity
from flatout.records.profile import Profile
from flatout.records.ranks import Straggler


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What a run showed."""

    profile: Profile
    job: JobFacts
    # File and line of the user's source, by what happened there.
    where: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    # An earlier profile to compare with.
    earlier: Profile | None = None

    def share(self, part: str) -> float:
        """A part's share of the step, in the waterfall."""
        return next((one.share for one in self.profile.waterfall if one.part == part), 0.0)

    def faster_products(self, now: str, then: str, *, of_products: float = 1.0) -> tuple[float, str] | None:
        """What it gives when some of the products run in another dtype, by the time that they take.

        None where not all kernels were recorded, or a peak is not known.
        """
        trace = self.profile.trace
        before, after = self.job.rate_in_training(now), self.job.rate_in_training(then)
        is_whole = trace is not None and bool(trace.kernels) and trace.busy_share is not None
        if not is_whole or not before or not after:
            return None
        return without(self.share("matmul") * of_products, after / before)

    def straggler(self) -> Straggler | None:
        """The rank that the others wait for, by their own parts or by their recorded steps."""
        trace = self.profile.trace
        found = straggler(self.profile.ranks, self.profile.roots, policy.STRAGGLER)
        if found is None and trace is not None:
            found = straggler_of_traces(trace.ranks, policy.STRAGGLER)
        return found

    def waits_for_a_slow_rank(self) -> float:
        """The share of the step in which the rank that is shown may wait for a slower one."""
        slow = self.straggler()
        if slow is None or slow.rank == self._rank_shown():
            return 0.0
        return (slow.ms - slow.others_ms) / slow.step_ms

    def _rank_shown(self) -> int:
        ranks = self.profile.trace.ranks if self.profile.trace is not None else ()
        shown = ((rank.rank, place) for place, rank in enumerate(ranks) if rank.shown)
        return next((place if rank is None else rank for rank, place in shown), 0)

    def place(self, name: str) -> tuple[Place, ...]:
        """Where something happened in the user's source; nothing where that is not known."""
        found = self.where.get(name)
        return (Place(file=found[0], line=found[1]),) if found is not None else ()

    def lines(self, *operators: str, at_most: int = 3) -> tuple[Place, ...]:
        """The lines that call some operators most often."""
        calls: Counter[tuple[str, int, str]] = Counter()
        for one in self.profile.lines:
            if one.operator in operators:
                calls[one.file, one.line, one.function] += one.calls
        return tuple(
            Place(file=file, line=line, function=function)
            for (file, line, function), _ in calls.most_common(at_most)
        )


Look = Callable[[Seen], Finding | None]


@dataclasses.dataclass(frozen=True)
class Rule:
    """One rule. Its page is made from the docstring of its file."""

    code: str
    title: str
    look: Look
    # Levers that answer it.
    levers: tuple[str, ...] = ()
    # Whether a recording of kernels is all that it needs.
    needs_only_a_trace: bool = False
    # Rules that say the same with more to go by: where one of them has spoken, this one is silent.
    silent_beside: tuple[str, ...] = ()
    # The job dies of it, or learns something else than is meant: told before all that only takes time.
    harms: bool = False

    @property
    def explanation(self) -> str:
        """What it sees, why that costs, what it needs to know, and when it can be wrong."""
        return inspect.cleandoc(sys.modules[self.look.__module__].__doc__ or "")

    def finding(
        self,
        evidence: str,
        fix: str,
        *,
        speedup: float | None = None,
        arithmetic: str = "",
        where: tuple[Place, ...] = (),
        severity: Severity | None = None,
    ) -> Finding:
        """A finding of this rule; as severe as what taking it away should give."""
        return Finding(
            code=self.code,
            title=self.title,
            severity=severity or severity_of(speedup),
            evidence=evidence,
            fix=fix,
            where=where,
            predicted_speedup=speedup,
            arithmetic=arithmetic,
        )


def severity_of(speedup: float | None) -> Severity:
    """By what it should give."""
    if speedup is None or speedup < policy.MEDIUM:
        return "low"
    return "high" if speedup >= policy.HIGH else "medium"


def without(share: float, factor: float = 20.0) -> tuple[float, str]:
    """What a part of the step gives when it nearly goes away, and the arithmetic of that."""
    share = min(0.95, share)
    speedup = amdahl(share, factor)
    return speedup, f"1 / (1 - {share:.3f} + {share:.3f} / {factor:g}) = {speedup:.2f}"
