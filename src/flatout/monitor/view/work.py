"""What runs: jobs and processes on GPUs as lines to walk through, and one job with everything known of it."""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Literal

from rich.text import Text

from flatout.monitor.view.drawing import cell, joined, said, text, wrapped
from flatout.monitor.view.marks import Marks
from flatout.records.live import LiveJob
from flatout.records.watched import JobRow, Mood, ProcessRow, figures_of, job_rows, process_rows
from flatout.records.watching import Frame
from flatout.records.words import age, duration, inert, memory_size, percent

Sorting = Literal["memory", "age", "name", "user", "GPU"]
SORTINGS: tuple[Sorting, ...] = ("memory", "age", "name", "user", "GPU")
_MOODS: dict[str, Mood] = {"running": "good", "orphan": "bad", "zombie": "bad", "unknown": "warn"}


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the user wants to see of it."""

    sorting: Sorting = "memory"
    filter: str = ""
    # The index of the only GPU whose processes are shown.
    gpu: int | None = None


@dataclasses.dataclass(frozen=True)
class WorkLine:
    """A line; `key` is empty where it cannot be chosen, and `job` is who can be opened and stopped there."""

    drawn: Text
    key: str = ""
    job: JobRow | None = None


def work_lines(frame: Frame, width: int, wish: Wish, marks: Marks) -> list[WorkLine]:
    """Jobs, then processes on GPUs."""
    jobs = [row for row in job_rows(frame) if _fits(wish.filter, row.name, row.user, str(row.pid or ""))]
    processes = [row for row in process_rows(frame) if _is_wanted(row, wish)]
    whose = {row.job.pid: row for row in jobs if row.job}
    lines = [WorkLine(cell(_heading(wish, marks), width, marks))]
    for row in _sorted_jobs(jobs, wish.sorting):
        lines.append(WorkLine(_job_line(row, width, marks), row.key, row))
        if row.live and (row.live.state_reason or row.live.finding):
            lines.append(WorkLine(_remark(row.live, width, marks)))
    if not jobs:
        words = "no job fits the filter" if wish.filter else "no training job runs here"
        lines.append(WorkLine(text(words, marks, "dim")))
    if processes:
        where = "GPUs" if wish.gpu is None else f"GPU {wish.gpu}"
        lines.append(WorkLine(cell(text(f"processes on {where}", marks, "dim"), width, marks)))
    for process in _sorted_processes(processes, wish.sorting):
        key = f"gpu-{process.device.index}-{process.process.pid}"
        job = whose.get(process.job.pid) if process.job else None
        lines.append(WorkLine(_process_line(process, width, marks), key, job))
    return lines


def _heading(wish: Wish, marks: Marks) -> Text:
    only = f", only what has {wish.filter!r}" if wish.filter else ""
    return text(f"jobs, by {wish.sorting}{only}", marks, "dim")


def _fits(wanted: str, *words: str) -> bool:
    return not wanted or any(wanted.lower() in word.lower() for word in words)


def _is_wanted(row: ProcessRow, wish: Wish) -> bool:
    if wish.gpu is not None and row.device.index != wish.gpu:
        return False
    process = row.process
    command = row.job.command if row.job else ""
    return _fits(wish.filter, str(process.pid), process.user or "", process.name or "", command)


def _sorted_jobs(rows: Sequence[JobRow], sorting: Sorting) -> list[JobRow]:
    """What Flatout runs comes first, whatever the sorting."""
    if sorting == "name":
        return sorted(rows, key=lambda row: (row.live is None, row.name))
    if sorting == "user":
        return sorted(rows, key=lambda row: (row.live is None, row.user, row.name))
    if sorting == "memory":
        return sorted(rows, key=lambda row: (row.live is None, -_held_by(row)))
    return sorted(rows, key=lambda row: (row.live is None, -(row.age_s or 0.0)))


def _held_by(row: JobRow) -> int:
    return sum(member.gpu_memory_bytes or 0 for member in row.job.processes) if row.job else 0


def _sorted_processes(rows: Sequence[ProcessRow], sorting: Sorting) -> list[ProcessRow]:
    keys = {
        "memory": lambda row: -(row.process.memory_bytes or 0),
        "age": lambda row: -(row.process.age_s or 0.0),
        "name": lambda row: row.job.command if row.job else row.process.name or "",
        "user": lambda row: row.process.user or "",
        "GPU": lambda row: row.device.index,
    }
    return sorted(rows, key=keys[sorting])


def _job_line(row: JobRow, width: int, marks: Marks) -> Text:
    name = cell(text(row.name, marks, bold=True), max(10, min(34, width // 3)), marks)
    state = cell(said(row.state, marks), 10, marks)
    parts = [name, state]
    if row.live:
        figures = figures_of(row.live)
        parts.append(joined([text(f"{key} {value}", marks) for key, value in figures]))
    else:
        about = [
            row.user,
            age(row.age_s) if row.age_s is not None else "",
            f"pid {row.pid}" if row.pid else "",
        ]
        held = _held_by(row)
        about.append(f"{memory_size(held)} on GPUs" if held else "")
        parts.append(text(", ".join(filter(None, about)), marks, "dim"))
    return cell(joined(parts, " "), width, marks)


def _remark(job: LiveJob, width: int, marks: Marks) -> Text:
    if job.state_reason:
        return cell(
            text(f"  {job.state_reason}", marks, "warn" if job.state == "stalled" else "dim"), width, marks
        )
    return cell(text(f"  {job.finding}", marks, "dim"), width, marks)


def _process_line(row: ProcessRow, width: int, marks: Marks) -> Text:
    process = row.process
    held = memory_size(process.memory_bytes) if process.memory_bytes is not None else "memory ?"
    active = process.active_share
    known = row.job.command if row.job else process.name
    parts = [
        cell(text(f"GPU {row.device.index}", marks), 6, marks),
        cell(text(str(process.pid), marks), 8, marks),
        cell(text(held, marks), 10, marks, right=True),
        cell(text(row.state, marks, _MOODS.get(row.state, "plain")), 8, marks),
    ]
    if width >= 60:
        parts.append(cell(text(process.user or "?", marks), 8, marks))
    if width >= 72:
        parts.append(
            cell(text(age(process.age_s) if process.age_s is not None else "", marks), 10, marks, right=True)
        )
    if width >= 110:
        words = f"kernel running {percent(active)}" if active is not None else ""
        parts.append(cell(text(words, marks), 20, marks))
    parts.append(text(known or process.unknown.get("name", "unknown process"), marks))
    return cell(joined(parts, " "), width, marks)


def job_lines(row: JobRow, width: int, marks: Marks) -> list[Text]:
    """Everything known of one job."""
    title = joined([text(row.name, marks, bold=True), said(row.state, marks)])
    about = [row.user, f"pid {row.pid}" if row.pid else "", age(row.age_s) if row.age_s is not None else ""]
    lines = [title, text(", ".join(filter(None, about)), marks, "dim"), Text()]
    if row.live:
        lines += _live_lines(row.live, width, marks)
    else:
        lines.append(
            text("it does not run under Flatout: `flatout run` shows steps, loss and MFU", marks, "dim")
        )
    if row.job:
        lines += [Text(), text("processes", marks, bold=True)]
        for member in row.job.processes:
            held = member.gpu_memory_bytes
            parts = [
                text(f"{member.pid:>8}", marks),
                cell(text(member.role, marks), 17, marks),
                cell(text(member.state, marks, _MOODS.get(member.state, "plain")), 8, marks),
                text(f"{memory_size(held)} on GPUs" if held else "", marks),
                text(member.command, marks, "dim"),
            ]
            lines.append(joined(parts, " "))
    return [cell(line, width, marks) for line in lines]


def _live_lines(job: LiveJob, width: int, marks: Marks) -> list[Text]:
    lines = [text(job.state_reason, marks, "warn")] if job.state_reason else []
    lines += wrapped([text(f"{name} {figure}", marks) for name, figure in figures_of(job)], width)
    more: list[tuple[str, str]] = [("run", job.run), ("life", str(job.life))]
    if job.updates_planned:
        more.append(("updates", f"{job.updates} of {job.updates_planned}"))
    if job.best_step_s is not None:
        more.append(("best step", duration(job.best_step_s)))
    if job.memory_peak_bytes is not None:
        more.append(("memory peak", memory_size(job.memory_peak_bytes)))
    if job.checkpoint_update is not None:
        more.append(("checkpoint", f"after update {job.checkpoint_update}"))
    if job.loss_scale is not None:
        more.append(("loss scale", f"{job.loss_scale:g}"))
    if job.usd_per_hour is not None:
        more.append(("costs", f"{job.usd_per_hour:.2f} $/h"))
    totals = job.totals
    counted = (
        ("losses not finite", totals.losses_not_finite),
        ("updates left out", totals.skipped_updates),
        ("out of memory", totals.out_of_memory),
        ("hangs", totals.hangs),
        ("slowdowns", totals.slowdowns),
    )
    more += [(name, str(count)) for name, count in counted if count]
    lines += [Text(), *wrapped([text(f"{name} {value}", marks) for name, value in more], width)]
    if job.finding:
        lines += [Text(), text("first finding of its last profile", marks, bold=True)]
        lines += [text(part, marks) for part in textwrap.wrap(inert(job.finding), max(20, width))]
    if job.ranks:
        lines += [Text(), text("ranks", marks, bold=True)]
        for rank in job.ranks:
            step = duration(rank.step_s) if rank.step_s is not None else "?"
            quiet = f"last step {duration(rank.silent_s)} ago" if rank.silent_s else ""
            lines.append(
                text(f"{rank.rank:>8}  pid {rank.pid}  {rank.updates} updates  step {step}  {quiet}", marks)
            )
    lines += [Text(), text(job.run_folder, marks, "dim")]
    return lines
