"""`watch --once` for a terminal or a pipe: one look at a machine in plain lines."""

import datetime as dt

from rich.console import Console
from rich.text import Text

from flatout.records.device import Device, DeviceSample
from flatout.records.live import LiveJob
from flatout.records.watched import (
    JobRow,
    Mood,
    ProcessRow,
    Said,
    activities,
    clock_words,
    figures_of,
    gpus_of,
    heat_words,
    job_rows,
    limit_words,
    link_words,
    memory_words,
    power_words,
    process_rows,
    remarks,
    state_words,
)
from flatout.records.watching import Frame
from flatout.records.words import age, memory_size, percent
from flatout.report.plain import line

_STYLES: dict[Mood, str] = {"good": "green", "plain": "", "dim": "dim", "warn": "yellow", "bad": "red"}


def draw_frame(frame: Frame, console: Console) -> None:
    """Print it; lines that are too long for the terminal wrap between words."""
    at = dt.datetime.fromtimestamp(frame.taken_at_unix_s).astimezone()
    console.print(line(f"{frame.host}  {at:%Y-%m-%d %H:%M:%S}  {host_words(frame)}", "bold"))
    for remark in remarks(frame):
        console.print(line(remark.words, _STYLES[remark.mood]))
    processes = process_rows(frame)
    for device, sample in gpus_of(frame):
        console.print()
        _draw_gpu(device, sample, [row for row in processes if row.device == device], frame, console)
    rows = job_rows(frame)
    console.print()
    for row in rows:
        _draw_job(row, console)
    if not rows:
        console.print(line("no training job runs here", "dim"))


def host_words(frame: Frame) -> str:
    """The machine around the GPUs."""
    machine = frame.machine
    parts = []
    if machine.cpu_share is not None:
        parts.append(f"CPU busy {percent(machine.cpu_share)}")
    if machine.memory_used_bytes is not None and machine.memory_total_bytes:
        parts.append(
            f"memory {memory_size(machine.memory_used_bytes)} of {memory_size(machine.memory_total_bytes)}"
        )
    return ", ".join(parts)


def _draw_gpu(
    device: Device, sample: DeviceSample, processes: list[ProcessRow], frame: Frame, console: Console
) -> None:
    console.print(line(f"GPU {device.index}  {device.name}", "bold"))
    trouble = state_words(sample, frame.taken_at_unix_s)
    if trouble:
        _say(trouble, console)
    if sample.state == "down":
        return
    _say(Said(", ".join(one.words for one in activities(sample))), console)
    limited = limit_words(sample)
    figures = [memory_words(device, sample), power_words(sample), heat_words(device, sample)]
    parts = [line(said.words, _STYLES[said.mood]) for said in figures if said.words]
    if clock := clock_words(device, sample):
        parts.append(line(clock))
    if limited.words:
        parts.append(line(f"limited by {limited.words}", _STYLES[limited.mood]))
    console.print(Text("  ") + Text(", ").join(parts))
    link = link_words(device, sample)
    if link.words:
        _say(link, console)
    for row in processes:
        _say(
            Said(_process_words(row), "warn" if row.state in ("zombie", "orphan", "unknown") else "plain"),
            console,
        )


def _process_words(row: ProcessRow) -> str:
    process = row.process
    held = memory_size(process.memory_bytes) if process.memory_bytes is not None else "memory unknown"
    parts = [str(process.pid), process.user or "?", held, row.state]
    if process.age_s is not None:
        parts.append(age(process.age_s))
    parts.append(row.job.command if row.job else process.name or process.unknown.get("name", ""))
    return "  ".join(parts)


def _draw_job(row: JobRow, console: Console) -> None:
    about = [row.user, *([f"pid {row.pid}"] if row.pid else []), *([age(row.age_s)] if row.age_s else [])]
    state = row.state
    console.print(
        Text.assemble(
            line(row.name, "bold"),
            "  ",
            line(", ".join(about), "dim"),
            "  ",
            line(state.words, _STYLES[state.mood]),
        )
    )
    if row.live:
        for said in _live_words(row.live, row):
            _say(said, console)


def _live_words(job: LiveJob, row: JobRow) -> list[Said]:
    found = []
    if row.silent_s is not None:
        found.append(Said(f"what follows is {age(row.silent_s)} old", "warn"))
    if job.state_reason:
        found.append(Said(job.state_reason, "warn" if job.state == "stalled" else "plain"))
    found.append(Said(", ".join(f"{name} {figure}" for name, figure in figures_of(job))))
    if job.finding:
        found.append(Said(job.finding))
    return found


def _say(said: Said, console: Console) -> None:
    console.print(Text("  ") + line(said.words, _STYLES[said.mood]))
