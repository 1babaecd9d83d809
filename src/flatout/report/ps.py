"""`ps` for a terminal: who holds each GPU, then each job as a tree, then what can be done."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from flatout.records.processes import HeldDevice, Holder, JobHere, JobProcess, ProcessesHere
from flatout.records.words import age, memory_size
from flatout.report.plain import is_narrow, line

_STYLES = {"running": "green", "idle": "", "orphan": "red", "zombie": "red", "unknown": "yellow"}
# Less than this a driver keeps for itself.
_MUCH_BYTES = 1 << 30
_TOGETHER = ("loader worker", "compile worker", "worker")
# Of a process on a GPU, before its job.
_FIGURES: dict[str, JustifyMethod] = {
    "  pid": "left",
    "user": "left",
    "memory": "right",
    "age": "right",
    "state": "left",
}
_USER_AT_MOST = 12
_GAP = 2


def draw_ps(found: ProcessesHere, console: Console, *, everything: bool) -> None:
    """Print it. Below 80 columns, tables become lists."""
    for device in found.devices:
        _draw_device(device, console)
    if not found.devices:
        console.print(line("no GPU can be seen here", "dim"))
        console.print()
    if found.jobs:
        for job in found.jobs:
            _draw_job(job, console, everything=everything)
    else:
        console.print(line("no training job runs here"))
    for note in found.notes:
        console.print(line(note, "yellow"))
    for hint in _hints(found):
        console.print(line(hint, "dim"))


def _draw_device(device: HeldDevice, console: Console) -> None:
    console.print(line(f"GPU {device.index}  {device.name}, {_room(device)}", "bold"))
    if device.processes is None:
        console.print(line(f"  who holds it is not known: {device.unknown['processes']}", "yellow"))
    elif not device.processes:
        console.print(line("  no process is listed on it", "dim"))
    elif is_narrow(console):
        for holder in device.processes:
            console.print(
                line(f"  {holder.pid} {_memory(holder.memory_bytes)} {holder.state} {holder.job or ''}")
            )
    else:
        console.print(_holders(device.processes, console.width))
    for holder in device.processes or ():
        if holder.state in ("unknown", "zombie"):
            console.print(line(f"  {holder.pid}: {holder.state_reason}", "yellow"))
    if device.unlisted_bytes is not None and device.unlisted_bytes >= _MUCH_BYTES:
        console.print(
            line(
                f"  {memory_size(device.unlisted_bytes)} more are held by what cannot be seen from here",
                "yellow",
            )
        )
    console.print()


def _room(device: HeldDevice) -> str:
    if device.memory_used_bytes is None:
        return f"memory in use not known: {device.unknown['memory_used_bytes']}"
    total = device.memory_total_bytes
    return f"{memory_size(device.memory_used_bytes)} {f'of {memory_size(total)} ' if total else ''}in use"


def _holders(holders: Sequence[Holder], width: int) -> Table:
    rows = [_figures(holder) for holder in holders]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    room = width
    # What tells one process from another is never shortened: its job has what is left.
    for place, (heading, side) in enumerate(_FIGURES.items()):
        longest = max(cell_len(text) for text in (heading, *(row[place].plain for row in rows)))
        table.add_column(heading, justify=side, no_wrap=True, min_width=longest, max_width=longest)
        room -= longest + _GAP
    table.add_column("job", no_wrap=True)
    for holder, row in zip(holders, rows, strict=True):
        table.add_row(*row, _job(holder, room))
    return table


def _figures(holder: Holder) -> tuple[Text, ...]:
    """In the order of _FIGURES."""
    user = line(holder.user or "?")
    user.truncate(_USER_AT_MOST, overflow="ellipsis")
    return (
        line(f"  {holder.pid}"),
        user,
        line(_memory(holder.memory_bytes)),
        line(age(holder.age_s) if holder.age_s is not None else "?"),
        Text(holder.state, style=_STYLES[holder.state]),
    )


def _job(holder: Holder, room: int) -> Text:
    """Its name, shortened to the room, and its first process where that is another one."""
    first = f" [{holder.job_pid}]" if holder.job_pid not in (None, holder.pid) else ""
    name = line(holder.job or "(not known)")
    name.truncate(max(1, room - len(first)), overflow="ellipsis")
    return name.append(first)


def _draw_job(job: JobHere, console: Console, *, everything: bool) -> None:
    title = job.name if job.run is None else f"{job.command}  ({job.run})"
    about = ", ".join(
        filter(None, (job.user or "", age(job.age_s) if job.age_s is not None else "", job.state))
    )
    heading = Text.assemble(line(title, "bold"), "  ", line(about, _STYLES[job.state]))
    if len(heading) > console.width:
        heading = Text.assemble(
            line(title[: max(10, console.width - len(about) - 5)], "bold"), "...  ", line(about)
        )
    heading.truncate(console.width, overflow="ellipsis")
    console.print(heading)
    depths = _depths(job.processes)
    for group in _grouped(job.processes, everything=everything):
        first, depth = group[0], depths[group[0].pid]
        console.print(_process_line(group, depth, console.width))
        if first.state in ("orphan", "zombie", "unknown") or "stopped" in first.state_reason:
            reason = line(f"{'  ' * (depth + 1)}{first.state_reason}", "yellow")
            reason.truncate(console.width, overflow="ellipsis")
            console.print(reason)
    console.print()


def _depths(processes: Sequence[JobProcess]) -> dict[int, int]:
    depths: dict[int, int] = {}
    for process in processes:
        depths[process.pid] = depths.get(process.parent_pid, 0) + 1
    return depths


def _grouped(processes: Sequence[JobProcess], *, everything: bool) -> Iterator[list[JobProcess]]:
    """Workers of one parent that do the same are one line."""
    groups: dict[object, list[JobProcess]] = {}
    for process in processes:
        alike = process.role in _TOGETHER and not everything
        key = (process.parent_pid, process.role, process.state) if alike else process.pid
        groups.setdefault(key, []).append(process)
    yield from groups.values()


def _process_line(group: Sequence[JobProcess], depth: int, width: int) -> Text:
    first = group[0]
    pids = str(first.pid) if len(group) == 1 else f"{first.pid} ... {group[-1].pid}"
    role = first.role if len(group) == 1 else f"{len(group)} {first.role}s"
    parts = [f"{'  ' * depth}{pids}", role]
    if first.role == "helper":
        parts[1] = f"{first.name}"
    figures = list(filter(None, (_cpu(group), _host_memory(group), _gpu_memory(group))))
    state = Text(first.state, style=_STYLES[first.state])
    text = Text("  ").join([line("  ".join(parts)), state, line(", ".join(figures), "dim")])
    text.truncate(width, overflow="ellipsis")
    return text


def _cpu(group: Sequence[JobProcess]) -> str:
    shares = [one.cpu_share for one in group if one.cpu_share is not None]
    return f"{100 * sum(shares):.0f} % of a core" if sum(shares) > 0 else ""


def _host_memory(group: Sequence[JobProcess]) -> str:
    sizes = [one.host_memory_bytes for one in group if one.host_memory_bytes]
    # Workers share pages with their parent: their sum would be wrong.
    return f"{memory_size(max(sizes))}{' each' if len(group) > 1 else ''}" if sizes else ""


def _gpu_memory(group: Sequence[JobProcess]) -> str:
    held = sum(one.gpu_memory_bytes or 0 for one in group)
    return f"{memory_size(held)} on GPUs" if held else ""


def _hints(found: ProcessesHere) -> Iterator[str]:
    processes = [one for job in found.jobs for one in job.processes]
    left = [one for one in processes if one.state == "orphan"]
    if left:
        yield f"{_count(left)} left behind by jobs that are gone: flatout stop --orphans"
    # What the first process inherits, it lets go of soon.
    for zombie in [one for one in processes if one.state == "zombie" and one.parent_pid != 1][:3]:
        yield f"{zombie.pid} has ended; it goes when {zombie.parent_pid} takes notice, or ends"
    for device in found.devices:
        for holder in device.processes or ():
            if holder.state == "zombie" and holder.job_pid is None:
                yield (
                    f"memory of {holder.pid} on GPU {device.index} belongs to nobody: others may share "
                    f"it (fuser -v /dev/nvidia{device.index}), else the GPU needs a reset"
                )
    jobs = [job for job in found.jobs if job.state in ("running", "idle", "unknown")]
    if jobs:
        idle = next((job for job in jobs if job.state == "idle"), jobs[0])
        yield f"to end a job and keep its work: flatout stop PID, such as flatout stop {idle.pid}"


def _count(processes: Sequence[JobProcess]) -> str:
    return "1 process was" if len(processes) == 1 else f"{len(processes)} processes were"


def _memory(held: int | None) -> str:
    return memory_size(held) if held is not None else "?"
