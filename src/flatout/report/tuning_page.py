"""`tune` as one offline page: from baseline to best, what was tried, why it learns the same, what it cost."""

import dataclasses
import math
import shlex
from collections.abc import Sequence
from typing import Any

from flatout.records.places import DEFAULT_PLAN
from flatout.records.tuning import LeverTrial, Pace, Tuning, not_tried
from flatout.records.words import duration, memory_size, percent, three_digits, with_settings
from flatout.report.charts import (
    LARGEST,
    Axis,
    Chart,
    Dot,
    Shape,
    drawable,
    labelled,
    positive,
)
from flatout.report.figures import milliseconds, times
from flatout.report.guard_evidence import evidence_lines, loss_charts
from flatout.report.page import environment

# A bar's own units; the page stretches it to the room there is.
BAR_SPAN, BAR_HEIGHT = 1000.0, 20.0
# What is left of a bar stays visible, however fast the job became.
_THINNEST = 2.0
# In the order in which people want to read them.
_VERDICTS = ("kept", "unsafe", "failed", "rejected")
_GUARD_WORDS = {
    "same": "Learns the same",
    "unsafe": "Does not learn the same",
    "weak": "Learns the same, weakly shown",
    "not needed": "Nothing to prove",
}
_LONG_SUMMARY = 90


@dataclasses.dataclass(frozen=True)
class Bar:
    """A row of the waterfall: what is left of the step, what went, and the numbers beside it."""

    kind: str
    name: str
    left: float
    gone: float
    time: str
    gain: str
    total: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table of before and after; a reason stands where a value is missing."""

    label: str
    before: str
    after: str
    change: str
    before_reason: str
    after_reason: str


def tuning_page(tuning: Tuning) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    templates = environment()
    templates.filters.update(span=_span)
    has_gain = bool(tuning.ladder) or tuning.speedup != 1.0
    tried = [trial for trial in tuning.trials if trial.verdict != "skipped"]
    trials = sorted(tried, key=lambda trial: _VERDICTS.index(trial.verdict))
    return templates.get_template("tuning.html.j2").render(
        tuning=tuning,
        command=f"flatout tune {tuning.typed}" if tuning.typed else shlex.join(tuning.command),
        is_long=len(tuning.summary) > _LONG_SUMMARY,
        has_gain=has_gain,
        bars=waterfall(tuning),
        bar={"span": BAR_SPAN, "height": BAR_HEIGHT},
        rows=_rows(tuning),
        trials=[(trial, _name(trial), _interval(trial)) for trial in trials],
        not_tried=not_tried(tuning.trials),
        measured_again=any(_is_outside(trial) for trial in trials),
        scatter=scatter(trials),
        guard_words=_GUARD_WORDS[tuning.guard.verdict],
        charts=loss_charts(tuning.guard),
        evidence=[
            ("the first updates", evidence_lines(tuning.guard.same_state)),
            ("the losses", evidence_lines(tuning.guard.trajectory)),
        ],
        payback=_payback(tuning),
        go_on=_go_on(tuning),
    )


# The waterfall


def waterfall(tuning: Tuning) -> list[Bar]:
    """The baseline, each rung with what it took away, and the plan."""
    written, best = _length(tuning.baseline.step_ms), _length(tuning.best.step_ms)
    has_gain = bool(tuning.ladder) or tuning.speedup != 1.0
    longest = max([written, best, *(_length(rung.step_ms) for rung in tuning.ladder)]) or 1.0

    def bar(kind: str, name: str, ms: float, before: float, gain: str, total: str) -> Bar:
        left = min(BAR_SPAN, max(_THINNEST, round(BAR_SPAN * _length(ms) / longest, 2)))
        gone = max(0.0, round(BAR_SPAN * before / longest - left, 2))
        return Bar(kind, name, left, gone, milliseconds(ms), gain, total)

    bars = [bar("written", "as written", tuning.baseline.step_ms, 0.0, "", times(1.0) if has_gain else "")]
    before = written
    for rung in tuning.ladder:
        bars.append(
            bar("rung", f"+ {rung.lever}", rung.step_ms, before, times(rung.gain), times(rung.speedup))
        )
        before = _length(rung.step_ms)
    if has_gain:
        bars.append(bar("plan", "with the plan", tuning.best.step_ms, written, "", times(tuning.speedup)))
    return bars


def _length(ms: float) -> float:
    """A time that can be drawn."""
    return min(ms, LARGEST) if math.isfinite(ms) and ms > 0 else 0.0


# Before and after


def _rows(tuning: Tuning) -> list[Row]:
    return [
        _row(tuning, "a step", "step_ms", milliseconds, relative=True),
        _row(tuning, "samples/s", "samples_per_s", three_digits, relative=True),
        _row(tuning, "MFU", "mfu", percent, relative=False),
        _row(tuning, "time in which some kernel ran", "gpu_busy_share", percent, relative=False),
        _row(tuning, "memory at its peak", "peak_bytes", memory_size, relative=True),
    ]


def _row(tuning: Tuning, label: str, field: str, words: Any, *, relative: bool) -> Row:
    before, after = (_reading(pace, field) for pace in (tuning.baseline, tuning.best))
    change = ""
    if before is not None and after is not None and not (relative and before <= 0):
        by = after / before - 1 if relative else after - before
        size = percent(abs(by)) if relative else f"{100 * abs(by):.1f} points"
        is_nothing = abs(by) < 0.0005
        change = "the same" if is_nothing else f"{'+' if by > 0 else '−'}{size}"  # noqa: RUF001
    return Row(
        label=label,
        before=words(before) if before is not None else "",
        after=words(after) if after is not None else "",
        change=change,
        before_reason=tuning.baseline.unknown.get(field, "not measured in this run"),
        after_reason=tuning.best.unknown.get(field, "not measured in this run"),
    )


def _reading(pace: Pace, field: str) -> float | None:
    value: float | None = getattr(pace, field)
    return value if value is not None and math.isfinite(value) else None


# What was tried


def _name(trial: LeverTrial) -> str:
    return with_settings(trial.lever, trial.settings)


def _interval(trial: LeverTrial) -> str:
    low, high = drawable(trial.low), drawable(trial.high)
    return f"{low:.2f}–{high:.2f}" if low is not None and high is not None else ""  # noqa: RUF001


def _is_outside(trial: LeverTrial) -> bool:
    """Whether the measured one is not of the comparison that the interval is of."""
    low, high, measured = trial.low, trial.high, trial.measured_speedup
    return low is not None and high is not None and measured is not None and not low <= measured <= high


def scatter(trials: Sequence[LeverTrial]) -> Chart | None:
    """Predicted against measured, both on log scales; None where there is nothing to compare."""
    known = []
    for trial in trials:
        predicted, measured = positive(trial.predicted_speedup), positive(trial.measured_speedup)
        if predicted is not None and measured is not None:
            low, high = positive(trial.low), positive(trial.high)
            # Of another comparison than the dot is: it would float beside it.
            fits = low is not None and high is not None and low <= measured <= high
            between = (low or measured, high or measured) if fits else None
            known.append((trial, predicted, measured, between))
    if len(known) < 2:
        return None
    area = {"left": 62.0, "top": 14.0, "right": 486.0, "bottom": 306.0}
    values = [1.0, *(v for _, predicted, measured, between in known for v in (predicted, measured))]
    values += [v for *_, between in known if between is not None for v in between]
    # Equal ranges, so that the diagonal is where both agree.
    x = Axis(values, area["left"], area["right"], log=True)
    y = Axis(values, area["bottom"], area["top"], log=True)
    dots = [
        Dot(
            x=x.at(predicted),
            y=y.at(measured),
            verdict=trial.verdict,
            title=f"{_name(trial)}: predicted {times(predicted)}, measured {times(measured)}",
            whisker=(y.at(between[0]), y.at(between[1])) if between is not None else None,
            label=_name(trial),
            label_x=0.0,
            label_y=0.0,
            anchor="start",
        )
        for trial, predicted, measured, between in known
    ]
    ends = f"{area['left']},{area['bottom']} {area['right']},{area['top']}"
    return Chart(
        title="Predicted against measured",
        x_label="predicted",
        y_label="measured",
        width=500.0,
        height=352.0,
        area=area,
        x_ticks=x.ticks("x"),
        y_ticks=y.ticks("x"),
        lines=[Shape("diagonal", ends)],
        dots=labelled(dots, area),
    )


# The cost, and how to go on


def _payback(tuning: Tuning) -> str:
    """When the plan has paid for the search."""
    steps = tuning.break_even_steps
    if steps is None:
        return ""
    seconds = steps * tuning.best.step_ms / 1000
    lasting = f", which take {_span(seconds)} with the plan" if math.isfinite(seconds) else ""
    return f"{steps:,} steps{lasting}"


def _go_on(tuning: Tuning) -> list[tuple[str, str]]:
    """Commands to paste, each with what it is for."""
    job = tuning.typed or f"-- {shlex.join(tuning.command)}"
    again = (f"flatout report {shlex.quote(tuning.run)}", "shows this result again, in a terminal")
    if not tuning.plan:
        return [(f"flatout profile {job}", "shows where the time goes"), again]
    option = "" if tuning.plan == DEFAULT_PLAN else f"--plan {shlex.quote(tuning.plan)}"
    run = " ".join(part for part in ("flatout run", option, job) if part)
    patch = " ".join(part for part in ("flatout patch", option) if part)
    return [
        (run, "runs the whole job with the plan; the script stays as it is"),
        (patch, "prints the plan as a diff of your own source"),
        again,
    ]


# Numbers and text


def _span(seconds: float) -> str:
    """A longer time: `207 s`, `12.5 min`, `3.20 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 5 * size:
            return f"{three_digits(seconds / size)} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else duration(seconds)
