"""`stop` for a terminal: who was signalled, who is gone, and what memory came back."""

from collections.abc import Iterator

from rich.console import Console

from flatout.records.stopping import MemoryBack, StoppedJob, StoppedProcess, Stops
from flatout.records.words import duration, memory_size
from flatout.report.plain import line


def draw_stops(stops: Stops, console: Console) -> None:
    """Print it."""
    for job in stops.jobs:
        console.print(line(_headline(job, dry_run=stops.dry_run), "bold"))
        for note in job.notes:
            console.print(line(f"  {note}", "yellow"))
        for process in job.processes:
            for text in _words(process, dry_run=stops.dry_run):
                console.print(line(f"  {text}", "red" if process.gone is False else ""))
    for device in stops.devices:
        for text in _memory_words(device):
            console.print(line(text))
    if stops.dry_run:
        console.print(line("Nothing was touched. The same without --dry-run does it.", "dim"))
    elif not stops.devices:
        console.print(line("They held no GPU memory that could be seen.", "dim"))


def _headline(job: StoppedJob, *, dry_run: bool) -> str:
    count = len(job.processes)
    whole = f"{job.name}: {count} process{'es' if count > 1 else ''}"
    if dry_run:
        return f"{whole} would end"
    left = sum(process.gone is False for process in job.processes)
    took = f" after {duration(job.took_s)}" if job.took_s is not None else ""
    return f"{whole}, {left} still there{took}" if left else f"{whole} ended{took}"


def _words(process: StoppedProcess, *, dry_run: bool) -> Iterator[str]:
    who = f"{process.pid} {process.role}: {process.command}"
    if dry_run:
        yield who
        yield f"    {', '.join(process.signals)}"
        yield f"    because {process.why}"
        return
    sent = ", ".join(process.signals) or "ended with the others"
    left = "" if process.gone else "; it is still there, perhaps in the driver or on a dead disk"
    yield f"{who}: {sent}{left}"


def _memory_words(device: MemoryBack) -> Iterator[str]:
    held, after = device.held_before_bytes, device.held_after_bytes
    if held is not None and after is not None:
        if after:
            yield f"GPU {device.index}: {memory_size(after)} of {memory_size(held)} have not come back"
        else:
            yield f"GPU {device.index}: {memory_size(held)} came back"
        return
    yield f"GPU {device.index}: how much came back cannot be known: {device.unknown['held_before_bytes']}"
    if device.used_before_bytes is not None and device.used_after_bytes is not None:
        was, now = memory_size(device.used_before_bytes), memory_size(device.used_after_bytes)
        yield f"  in use by everybody: {was} before, {now} now"
