"""`tune` for a terminal: from baseline to best, lever by lever; what was tried; why it learns the same."""

import shlex

from rich.console import Console
from rich.table import Table

from flatout.records.places import DEFAULT_PLAN
from flatout.records.tuning import LeverTrial, Pace, Rung, Tuning, not_tried
from flatout.records.words import memory_size, percent, three_digits, with_settings
from flatout.report.figures import milliseconds, times
from flatout.report.plain import inert, is_narrow, line

_BAR = 24
_WIDE = 105
# Fewer trials of a lever say nothing about its predictions.
_SOME = 3
# In the order in which people want to read them.
_STYLES = {"kept": "green", "unsafe": "red", "failed": "yellow", "rejected": "default", "skipped": "dim"}


def draw_tuning(tuning: Tuning, console: Console) -> None:
    """Print it all."""
    console.print(line(inert(tuning.summary), "bold"))
    console.print()
    _draw_ladder(tuning, console)
    for name, pace in (("as written", tuning.baseline), ("with the plan", tuning.best)):
        if name == "as written" or tuning.speedup != 1.0:
            console.print(line(f"{name:<14} {_pace(pace)}"))
    console.print()
    _draw_trials(tuning.trials, console)
    for text in _endings(tuning):
        console.print(line(inert(text)))


def _draw_ladder(tuning: Tuning, console: Console) -> None:
    if not tuning.ladder:
        return
    widest = max(rung.speedup for rung in tuning.ladder)
    start = Rung(
        lever="as written",
        step_ms=tuning.baseline.step_ms,
        gain=1.0,
        speedup=1.0,
        samples_per_s=tuning.baseline.samples_per_s,
        mfu=tuning.baseline.mfu,
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("from baseline to best", overflow="fold")
    # What the room is enough for; the page has everything.
    names = ["a step", "gain", "in all"]
    if console.width >= _WIDE:
        names = ["a step", "predicted", "gain", "in all", "samples/s", "MFU"]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    if not is_narrow(console):
        table.add_column("", no_wrap=True)
    for rung in (start, *tuning.ladder):
        cells = _cells(rung, is_lever=rung is not start)
        bar = "█" * max(1, round(_BAR * rung.speedup / widest))
        name = f"+ {rung.lever}" if rung is not start else rung.lever
        row = [name, *(cells[column] for column in names), *([] if is_narrow(console) else [bar])]
        table.add_row(*map(line, row))
    console.print(table)
    console.print()


def _cells(rung: Rung, *, is_lever: bool) -> dict[str, str]:
    return {
        "a step": milliseconds(rung.step_ms),
        "predicted": times(rung.predicted),
        "gain": times(rung.gain) if is_lever else "",
        "in all": times(rung.speedup),
        "samples/s": three_digits(rung.samples_per_s) if rung.samples_per_s is not None else "",
        "MFU": percent(rung.mfu) if rung.mfu is not None else "",
    }


def _draw_trials(trials: tuple[LeverTrial, ...], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("lever", "verdict", "predicted", "measured"):
        table.add_column(name, justify="right" if name in ("predicted", "measured") else "left")
    table.add_column("why", overflow="fold")
    tried = [trial for trial in trials if trial.verdict != "skipped"]
    for trial in sorted(tried, key=lambda one: list(_STYLES).index(one.verdict)):
        style = _STYLES[trial.verdict]
        name = with_settings(trial.lever, trial.settings)
        cells = [name, trial.verdict, times(trial.predicted_speedup), times(trial.measured_speedup)]
        table.add_row(*(line(cell, style) for cell in [*cells, inert(trial.reason)]))
    if tried:
        console.print(table)
        console.print()
    skipped = not_tried(trials)
    if skipped:
        console.print(line("not tried", "bold"))
        for reason, names in skipped.items():
            console.print(line(f"{', '.join(names)}: {inert(reason)}", _STYLES["skipped"]))
        console.print()


def _endings(tuning: Tuning) -> list[str]:
    found = []
    if tuning.guard.verdict != "not needed":
        words = {
            "same": "learns the same",
            "unsafe": "does not learn the same",
            "weak": "learns the same, weakly shown",
        }
        found.append(f"guard: {words[tuning.guard.verdict]}: {tuning.guard.reason}")
    found += tuning.notes
    took = f"tuning took {tuning.tune_seconds:.0f} s"
    stages = [f"{name} {seconds:.0f}" for name, seconds in tuning.spent_seconds.items() if seconds >= 1]
    if stages:
        took += f" ({', '.join(stages)})"
    if tuning.break_even_steps is not None:
        took += f"; paid back after {tuning.break_even_steps:,} steps"
        if tuning.compile_seconds:
            compiling = f"compiling alone, {tuning.compile_seconds:.0f} s at each start,"
            took += f", {compiling} after {_compiled(tuning):,} (--job-steps says how long yours is)"
    if tuning.gpu_hours is not None and tuning.break_even_gpu_hours is not None:
        took += f" ({tuning.gpu_hours:.3f} GPU hours; worth it from {tuning.break_even_gpu_hours:.2f} on)"
    found.append(took)
    off = {name: known for name, known in tuning.calibration.items() if known.trials >= _SOME}
    if off:
        ratios = [f"{name} {one.measured_over_predicted:.2f} ({one.trials})" for name, one in off.items()]
        found.append(f"measured over predicted here so far (trials): {', '.join(ratios)}")
    if tuning.plan:
        given = "" if tuning.plan == DEFAULT_PLAN else f" --plan {shlex.quote(tuning.plan)}"
        found.append(f"plan: {tuning.plan}; `flatout run{given}` runs the job with it")
    return found


def _compiled(tuning: Tuning) -> int:
    """Steps after which a job under the plan has made up for compiling: by what that alone saves of each."""
    rung = next((one for one in tuning.ladder if one.lever.startswith("compile")), None)
    saved_ms = (
        rung.step_ms * (rung.gain - 1)
        if rung is not None
        else tuning.baseline.step_ms * (1 - 1 / tuning.speedup)
    )
    return round(1000 * (tuning.compile_seconds or 0.0) / saved_ms) if saved_ms > 0 else 0


def _pace(pace: Pace) -> str:
    parts = [f"{milliseconds(pace.step_ms)} a step"]
    if pace.samples_per_s is not None:
        parts.append(f"{three_digits(pace.samples_per_s)} samples/s")
    if pace.mfu is not None:
        parts.append(f"MFU {percent(pace.mfu)}")
    if pace.gpu_busy_share is not None:
        parts.append(f"some kernel ran {percent(pace.gpu_busy_share)}")
    if pace.peak_bytes is not None:
        parts.append(memory_size(pace.peak_bytes))
    return ", ".join(parts)
