"""`profile` for a terminal, on one screen: the step, where it goes, how far from the limit, what to do."""

from rich.console import Console
from rich.table import Table

from flatout.records.profile import LoaderSweep, Profile
from flatout.report.figures import milliseconds, number
from flatout.report.findings import draw_findings
from flatout.report.kernels import draw_kernels, draw_modules, draw_waits
from flatout.report.parts import draw_parts
from flatout.report.plain import inert, is_narrow, line
from flatout.report.profile_words import (
    device_lines,
    floors_line,
    headlines,
    loader_line,
    memory_lines,
    mfu_lines,
    notes,
)
from flatout.report.ranks import draw_ranks

# The page has all of them.
_FINDINGS, _KERNELS, _MODULES, _WAITS = 3, 5, 4, 3


def draw_profile(profile: Profile, console: Console) -> None:
    """Print what matters most; below 80 columns without bars."""
    for text in headlines(profile):
        # A terminal without Unicode would show an escape for each sign.
        plain = text.replace("±", "+/-") if console.options.ascii_only else text
        console.print(line(plain, "bold"))
    console.print()
    _draw_step(profile, console)
    draw_ranks(profile.ranks, console)
    if profile.evaluations and profile.evaluation_ms is not None:
        each = milliseconds(profile.evaluation_ms)
        often = f"{profile.evaluations} times, {each} each" if profile.evaluations > 1 else f"once, {each}"
        console.print(line(f"evaluation, beside the steps: {often}"))
        console.print()
    for text in (floors_line(profile), *mfu_lines(profile), *memory_lines(profile), *device_lines(profile)):
        console.print(line(text))
    for loader in profile.loaders:
        console.print(line(loader_line(loader)))
    if profile.trace is not None:
        draw_waits(profile.trace.syncs, console, top=_WAITS)
    if profile.loader_sweep is not None:
        console.print()
        _draw_sweep(profile.loader_sweep, console)
    _draw_findings(profile, console)
    console.print()
    for note in notes(profile):
        console.print(line(note, "dim"))


def _draw_step(profile: Profile, console: Console) -> None:
    """Where a step goes: by kernels where they were recorded, else by the script's own parts."""
    if profile.trace is not None and profile.trace.kernels and profile.waterfall:
        draw_parts("where the time goes", profile.waterfall, console)
        draw_kernels(profile.trace, console, top=_KERNELS)
        draw_modules(profile.trace, console, top=_MODULES)
        return
    draw_parts("on the device", profile.device_parts, console)
    draw_parts("on the host", profile.host, console)


def _draw_findings(profile: Profile, console: Console) -> None:
    """The first few; all of them where there is no page that has the rest."""
    shown = len(profile.findings) if profile.report is None else _FINDINGS
    draw_findings(profile.findings[:shown], console)
    more = len(profile.findings) - shown
    if more > 0:
        console.print(line(f"and {more} more: in the report"))


def _draw_sweep(sweep: LoaderSweep, console: Console) -> None:
    rows = [
        (
            ", ".join(f"{name}={value}" for name, value in row.settings.items()) or "as written",
            f"{number(row.samples_per_s)} samples/s" if row.samples_per_s is not None else row.outcome,
            f"waits {milliseconds(row.wait_ms)}" if row.wait_ms is not None else row.reason,
        )
        for row in sweep.rows
    ]
    if is_narrow(console):
        for cells in rows:
            console.print(line("; ".join(cells)))
    elif rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("loader settings")
        table.add_column("", justify="right", no_wrap=True)
        table.add_column("a step")
        for cells in rows:
            table.add_row(*map(inert, cells))
        console.print(table)
    best = sweep.best
    if best is None:
        console.print(line(f"keep the loader as it is: {sweep.reason}", "bold"))
    else:
        chosen = ", ".join(f"{name}={value}" for name, value in best.items())
        console.print(line(f"best: DataLoader(..., {chosen}): {sweep.reason}", "bold"))
