"""Findings of a trace alone: what kernels, copies, waits and gaps show of a job that nobody else looked at.

Only rules that need nothing but a recording are asked. What they would like to know beside it (the script's
own ways, its memory, its loader) stays unknown, as does where in the source something happens, unless the
trace has Python's stacks.
"""

import dataclasses

from flatout.diagnose.catalogue import RULES
from flatout.diagnose.engine import findings_of
from flatout.diagnose.rule import Seen
from flatout.hardware.catalogue import catalogue
from flatout.levers.job import JobFacts
from flatout.records.profile import CompileUse, DeviceUse, MemoryUse, Mfu, Profile
from flatout.records.rated import RatedGpu
from flatout.records.trace import TraceSummary
from flatout.records.trial import Shield, Trial

_COMPILED = "triton_"


def with_findings(summary: TraceSummary) -> TraceSummary:
    """The same with what it shows; nothing without marked steps, since anything may lie between them.

    Nor of a recording that lacks kernels: what they would have hidden seems to stand free.
    """
    if summary.step_ms is None or (summary.kernels and summary.busy_share is None):
        return summary
    rules = [rule for rule in RULES if rule.needs_only_a_trace]
    return dataclasses.replace(summary, findings=findings_of(_seen(summary), rules))


def _seen(summary: TraceSummary) -> Seen:
    card = _card(summary.device_name)
    assert summary.step_ms is not None
    job = JobFacts(
        device="cuda:0" if summary.kernels else "cpu",
        capability=_capability(card),
        step_ms=summary.step_ms.p50,
        busy_share=summary.busy_share,
        peaks={str(dtype): rate for dtype, rate in card.dense_flops_per_s.items()} if card else {},
        habits={"compiles": any(one.name.startswith(_COMPILED) for one in summary.kernels)},
    )
    return Seen(profile=_profile(summary), job=job)


def _card(name: str | None) -> RatedGpu | None:
    """By its name alone: cards that share it, with more or less memory, have one generation and one peak."""
    return next((entry for entry in catalogue() if name in entry.matches), None)


def _capability(card: RatedGpu | None) -> tuple[int, int] | None:
    major, _, minor = ((card.compute_capability if card else None) or "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _profile(summary: TraceSummary) -> Profile:
    """What a trace says, where profiles say it."""
    untold = "a trace alone was read"
    return Profile(
        run="",
        steps=summary.steps,
        updates=summary.steps,
        steady_from=0,
        steady=True,
        steady_reason=untold,
        pace_shifted_at=None,
        step_ms=summary.step_ms,
        device="cuda:0" if summary.kernels else "cpu",
        device_name=summary.device_name,
        samples_per_step=None,
        samples_per_s=None,
        tokens_per_s=None,
        micro_batches=1.0,
        skipped_updates=0,
        waterfall=summary.waterfall,
        host=(),
        device_parts=(),
        evaluation_ms=None,
        evaluations=0,
        mfu=Mfu(of_rated=None, of_measured=None, peak_dtype=None, flops_per_step=None, reason=untold),
        memory=MemoryUse(),
        loaders=(),
        compile=CompileUse(
            compiles=0, recompiles=0, compile_s=0.0, compiles_in_steady_state=0, graph_breaks={}
        ),
        device_use=DeviceUse(samples=0),
        collector_ms=0.0,
        losses=(),
        gradient_norms=(),
        ranks=(),
        trial=Trial(
            name="trace",
            folder="",
            command=(),
            outcome="ended",
            updates=summary.steps,
            ranks=len(summary.ranks) or 1,
            took_s=0.0,
            shield=Shield(kind="none", reason=untold),
        ),
        trace=summary,
    )
