"""`fleet` for a terminal: one screen with all machines, or the same as plain output with the evidence."""

import datetime as dt
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from flatout.records.fleet import URGENT, Fleet, FleetAction, FleetJob, FleetMachine
from flatout.records.words import age, duration
from flatout.report.fleet_words import (
    counted,
    headline,
    job_progress,
    machine_gpus,
    machine_memory,
    machine_waste,
    plural,
    share,
    waste_line,
    watts,
    worth,
)
from flatout.report.plain import NARROW, inert, line

_MACHINES = 12
_ACTIONS = 10
_RANKS = 16
_LEGEND = "kernel: time with some kernel running; SMs: share at work (means of 15 min)"


def draw_fleet(fleet: Fleet, console: Console, *, everything: bool = False) -> None:
    """Print it, with the evidence of each action; `everything`: no list is cut short."""
    width = console.width
    for text in _head(fleet, width):
        console.print(text)
    console.print()
    console.print(_machines(fleet.machines, width, len(fleet.machines) if everything else _MACHINES))
    if width >= NARROW:
        console.print(line(_LEGEND, "dim"))
    console.print()
    if fleet.job:
        for job in fleet.jobs:
            _draw_job(job, console)
    if not fleet.actions:
        console.print(line("nothing to do: nothing is broken, idle or held up", "green"))
    shown = fleet.actions if everything else fleet.actions[:_ACTIONS]
    if shown:
        console.print(line("what to do, by what waiting costs", "bold"))
    for number, action in enumerate(shown, 1):
        _draw_action(number, action, console)
    if len(shown) < len(fleet.actions):
        console.print(line(f"and {len(fleet.actions) - len(shown)} more: --all", "dim"))
    for note in fleet.notes:
        console.print(line(note, "yellow"))
    if fleet.prices:
        console.print(line(f"prices: {fleet.prices}", "dim"))


def fleet_screen(fleet: Fleet, *, width: int, height: int, problem: str = "") -> RenderableType:
    """One screen that does not scroll: for a live view. `problem` is why it may be old."""
    head = list(_head(fleet, width))[: max(2, height // 3)]
    tail = [_one_line(problem, "bold red", width)] if problem else []
    # Beside the rows of machines and actions: two empty lines, the table's head, and "and so many more".
    room = max(2, height - len(head) - len(tail) - (4 if width >= NARROW else 3))
    wanted = min(max(1, len(fleet.actions)), max(1, room // 2))
    rows = max(1, min(len(fleet.machines), room - wanted))
    actions = _compact_actions(fleet.actions, width, max(1, room - rows))
    machines = _machines(fleet.machines, width, rows)
    return Group(*head, Text(""), machines, Text(""), *actions, *tail)


def _head(fleet: Fleet, width: int) -> Iterator[Text]:
    asked = dt.datetime.fromtimestamp(fleet.asked_at_unix_s, dt.UTC)
    title = line(headline(fleet), "bold")
    about = f"  {asked:%H:%M:%S} UTC" + (f"  job {fleet.job}" if fleet.job else "")
    title.append_text(line(about, "dim"))
    yield _cut(title, width)
    yield from _wrapped(f"not used: {waste_line(fleet)}", width)
    wrong = Text()
    for place, (kind, words) in enumerate(counted(fleet)):
        wrong.append(", " if place else "")
        wrong.append(words, style="red" if kind in URGENT else "yellow")
    yield from wrong.wrap(Console(width=width), width)


def _machines(machines: Sequence[FleetMachine], width: int, most: int) -> RenderableType:
    shown = machines[:most]
    rest = machines[most:]
    if width < NARROW:
        listed: RenderableType = Group(*(_narrow(machine, width) for machine in shown))
    else:
        listed = _table(shown, width)
    if not rest:
        return listed
    calm = sum(not (machine.broken or machine.throttled or machine.idle) for machine in rest)
    more = f"and {plural(len(rest), 'machine')} more, {calm} of them with nothing to say"
    return Group(listed, _one_line(more, "dim", width))


def _table(machines: Sequence[FleetMachine], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("machine", no_wrap=True, overflow="ellipsis", max_width=max(14, width - 64))
    for name in ("GPUs", "jobs", "kernel", "SMs", "memory", "power", "throttled", "not used"):
        table.add_column(name, justify="right", no_wrap=True)
    for machine in machines:
        table.add_row(*_cells(machine))
    return table


def _cells(machine: FleetMachine) -> tuple[Text, ...]:
    is_well = machine.state == "up" and not machine.broken
    if machine.state != "up":
        return (
            line(machine.name, "red"),
            Text(machine_gpus(machine), "red"),
            *(Text("") for _ in range(5)),
            Text("no answer", "red"),
            Text(machine_waste(machine)),
        )
    throttled = Text(str(machine.throttled), "yellow") if machine.throttled else Text("-", "dim")
    theirs = "flatout" not in machine.sources
    return (
        line(machine.name, "" if is_well else "red"),
        Text(machine_gpus(machine), "" if is_well else "red"),
        Text("?" if theirs else str(machine.jobs)),
        Text(share(machine.kernel_running_share), "yellow" if machine.idle else ""),
        Text(share(machine.sm_active_share)),
        Text(machine_memory(machine)),
        Text(watts(machine.power_w)),
        Text("?", "dim") if theirs else throttled,
        Text(machine_waste(machine)),
    )


def _narrow(machine: FleetMachine, width: int) -> Text:
    if machine.state != "up":
        return _one_line(f"{machine.name}  no answer, {plural(machine.gpus, 'GPU')}", "red", width)
    words = f"{machine.name}  {machine_gpus(machine)} GPUs, kernel {share(machine.kernel_running_share)}"
    return _one_line(f"{words}, {machine_waste(machine)} not used", "red" if machine.broken else "", width)


def _draw_action(number: int, action: FleetAction, console: Console) -> None:
    cost = worth(action)
    title = Text.assemble(
        line(f"{cost}  " if cost else "", "yellow"),
        line(f"{action.machine}: ", "bold red" if action.is_urgent else "bold"),
        line(action.says, "bold"),
    )
    _hang(f"{number:>2}. ", title, console)
    _hang("    ", line(action.because), console)
    _hang("    ", line(f"on {action.machine}: {action.command}", "cyan"), console)
    # To be pasted: never broken into lines of ours.
    console.print(line(f"    {action.query}", "dim"), soft_wrap=True)


def _hang(mark: str, text: Text, console: Console) -> None:
    """Under its mark, however many lines it takes."""
    for part in text.wrap(console, max(20, console.width - len(mark))):
        part.rstrip()
        console.print(Text.assemble(mark, part))
        mark = " " * len(mark)


def _compact_actions(actions: Sequence[FleetAction], width: int, room: int) -> list[Text]:
    if not actions:
        return [line("nothing to do", "green")]
    shown = actions[: room if len(actions) <= room or room < 2 else room - 1]
    lines = []
    for number, action in enumerate(shown, 1):
        text = Text.assemble(
            line(f"{number:>2}. "),
            line(f"{worth(action):>16} " if worth(action) else " " * 17, "yellow"),
            line(f" {action.machine}: ", "bold red" if action.is_urgent else "bold"),
            line(action.says),
        )
        lines.append(_cut(text, width))
    if len(shown) < len(actions) and room > 1:
        lines.append(_one_line(f"and {len(actions) - len(shown)} more", "dim", width))
    return lines


def _draw_job(job: FleetJob, console: Console) -> None:
    console.print(line(f"{job.name}  ({job.run})", "bold"))
    pairs = [
        ("on", f"{job.machine}, {plural(job.gpus, 'GPU')}, {job.user or 'user not known'}"),
        ("state", job.state + (f", silent for {age(job.silent_s)}" if job.silent_s is not None else "")),
        ("updates", job_progress(job)),
        ("step", duration(job.step_s) if job.step_s is not None else "?"),
        ("MFU", share(job.mfu)),
        ("no kernel", f"{share(job.idle_share)} of its GPUs' time"),
        (
            "checkpoint",
            f"{age(job.checkpoint_age_s)} old" if job.checkpoint_age_s is not None else "none known",
        ),
    ]
    for name, words in pairs:
        console.print(line(f"  {name:<11}{words}"), no_wrap=True, overflow="ellipsis")
    if job.ranks:
        console.print(line(f"  slowest of {job.rank_count} ranks", "dim"))
    for rank in job.ranks[:_RANKS]:
        took = f"{duration(rank.step_s):>8}  {rank.times_the_others:.2f}x"
        console.print(
            line(f"  {inert(rank.rank):>6}  {took}  {rank.machine}"), no_wrap=True, overflow="ellipsis"
        )
    console.print()


def _wrapped(text: str, width: int) -> Iterator[Text]:
    yield from line(text).wrap(Console(width=width), width)


def _one_line(text: str, style: str, width: int) -> Text:
    return _cut(line(text, style), width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text
