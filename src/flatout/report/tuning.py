"""`tune` for a terminal: from baseline to best, lever by lever; what was tried; why it learns the same."""

from rich.console import Console
from rich.table import Table

from flatout.records.tuning import LeverTrial, Pace, Tuning
from flatout.records.words import memory_size, percent, three_digits, with_settings
from flatout.report.plain import inert, is_narrow, line

_BAR = 24
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
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("from baseline to best", overflow="fold")
    table.add_column("a step", justify="right")
    table.add_column("gain", justify="right")
    table.add_column("in all", justify="right")
    if not is_narrow(console):
        table.add_column("", no_wrap=True)
    rows: list[tuple[str, float, float | None, float]] = [("as written", tuning.baseline.step_ms, None, 1.0)]
    rows += [(rung.lever, rung.step_ms, rung.gain, rung.speedup) for rung in tuning.ladder]
    for name, step_ms, gain, speedup in rows:
        bar = "█" * max(1, round(_BAR * speedup / widest))
        cells = [
            f"+ {name}" if gain else name,
            _ms(step_ms),
            f"{gain:.2f}x" if gain else "",
            f"{speedup:.2f}x",
        ]
        table.add_row(*map(line, [*cells, *([] if is_narrow(console) else [bar])]))
    console.print(table)
    console.print()


def _draw_trials(trials: tuple[LeverTrial, ...], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("lever", "verdict", "predicted", "measured"):
        table.add_column(name, justify="right" if name in ("predicted", "measured") else "left")
    table.add_column("why", overflow="fold")
    for trial in sorted(trials, key=lambda one: list(_STYLES).index(one.verdict)):
        style = _STYLES[trial.verdict]
        name = with_settings(trial.lever, trial.settings)
        cells = [name, trial.verdict, _times(trial.predicted_speedup), _times(trial.measured_speedup)]
        table.add_row(*(line(cell, style) for cell in [*cells, inert(trial.reason)]))
    console.print(table)
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
    if tuning.break_even_steps is not None:
        took += f"; paid back after {tuning.break_even_steps:,} steps"
    found.append(took)
    if tuning.plan:
        found.append(f"plan: {tuning.plan}; `flatout run` runs the job with it")
    return found


def _pace(pace: Pace) -> str:
    parts = [f"{_ms(pace.step_ms)} a step"]
    if pace.samples_per_s is not None:
        parts.append(f"{three_digits(pace.samples_per_s)} samples/s")
    if pace.mfu is not None:
        parts.append(f"MFU {percent(pace.mfu)}")
    if pace.gpu_busy_share is not None:
        parts.append(f"some kernel ran {percent(pace.gpu_busy_share)}")
    if pace.peak_bytes is not None:
        parts.append(memory_size(pace.peak_bytes))
    return ", ".join(parts)


def _times(value: float | None) -> str:
    return f"{value:.2f}x" if value is not None else ""


def _ms(value: float) -> str:
    return f"{three_digits(value)} ms"
