"""What is here and what to do next, for a terminal."""

import datetime as dt
import textwrap

from rich.console import Console
from rich.text import Text

from flatout.records.next_step import MachineHere, NextStep, PlanHere, RunHere, ScriptHere
from flatout.records.words import age, memory_size
from flatout.report.plain import inert, line

_MOST_SCRIPTS = 5
_MOST_NOTES = 4
_NAME = 14


def draw_next_step(found: NextStep, console: Console) -> None:
    """Print the machine, the folder, and the command to paste. Commands are never wrapped."""
    console.print(line(machine_line(found.machine), "bold"))
    for problem in found.machine.problems:
        console.print(line(f"  {problem}", "yellow"))
    console.print(line(found.folder, "dim"))
    for name, text in _rows(found):
        console.print(
            Text.assemble("  ", (inert(name).ljust(_NAME), "bold"), "  ", inert(text)), soft_wrap=True
        )
    for note in found.notes[:_MOST_NOTES]:
        console.print(line(f"  {note}", "yellow"), soft_wrap=True)
    if len(found.notes) > _MOST_NOTES:
        console.print(line(f"  and {len(found.notes) - _MOST_NOTES} more like these", "yellow"))
    console.print()
    console.print(line(found.suggestion.command, "bold green"), soft_wrap=True)
    console.print(_below(found.suggestion.why, console.width))
    if found.others:
        console.print(line("or", "dim"))
    width = max((len(one.command) for one in found.others), default=0)
    beside = width + 4 + max((len(one.why) for one in found.others), default=0) <= console.width
    for one in found.others:
        if beside:
            console.print(line(f"{one.command.ljust(width)}    {one.why}"), soft_wrap=True)
        else:
            console.print(line(one.command), soft_wrap=True)
            console.print(_below(one.why, console.width, "dim"))


def _below(text: str, width: int, style: str = "") -> Text:
    """What belongs to the line above, as many lines as it takes."""
    wrapped = textwrap.wrap(inert(text), max(20, width - 2), initial_indent="  ", subsequent_indent="  ")
    return Text("\n".join(wrapped), style=style)


def machine_line(machine: MachineHere) -> str:
    """Such as `NVIDIA H200, 140.4 GiB; 16 cores, 128.0 GiB; torch 2.13.0`."""
    gpus = [f"{gpu.name}, {_memory(gpu.memory_total_bytes)}" for gpu in machine.gpus]
    counted = [f"{gpus.count(gpu)} x {gpu}" if gpus.count(gpu) > 1 else gpu for gpu in dict.fromkeys(gpus)]
    without = "GPUs unknown" if machine.problems else "no GPU"
    parts = [*(counted or [without])]
    if machine.cores is not None:
        parts.append(f"{machine.cores} cores, {_memory(machine.memory_total_bytes)}")
    where = f" in {machine.python}" if machine.python else ""
    parts.append(f"torch {machine.torch}{where}" if machine.torch else "no torch in this Python")
    return "; ".join(parts)


def _memory(count: int | None) -> str:
    return memory_size(count) if count is not None else "memory unknown"


def _rows(found: NextStep) -> list[tuple[str, str]]:
    rows = [(script.path, _script_words(script)) for script in found.scripts[:_MOST_SCRIPTS]]
    more = len(found.scripts) - _MOST_SCRIPTS
    if more > 0:
        rows.append(("", f"and {more} more files that look like jobs"))
    if found.plan is not None:
        rows.append((found.plan.path, _plan_words(found.plan)))
    rows += [("running", f"{_run_words(run)}: {run.about}") for run in found.running]
    if found.last_run is not None and found.last_run.outcome != "running":
        rows.append(("last run", f"{_run_words(found.last_run)}: {found.last_run.about}"))
    if found.checkpoint is not None:
        rows.append(
            ("saved", f"update {found.checkpoint.update} of a protected job, in {found.checkpoint.folder}")
        )
    return rows or [("", "neither a training script nor a run in here")]


def _script_words(script: ScriptHere) -> str:
    perhaps = "" if script.likelihood == "likely" else "perhaps "
    return f"{perhaps}{script.kind}: {'; '.join(script.reasons)}"


def _plan_words(plan: PlanHere) -> str:
    if plan.state == "unreadable":
        return f"a plan that cannot be read: {plan.differences[0]}"
    gain = f", {plan.speedup:.2f}x" if plan.speedup else ""
    levers = f" with {', '.join(plan.levers)}" if plan.levers else ""
    state = "nothing has changed since" if plan.state == "fresh" else "; ".join(plan.differences)
    return f"the plan for {plan.job or 'another job'}{gain}{levers}: {state}"


def _run_words(run: RunHere) -> str:
    seconds = (dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(run.created_at)).total_seconds()
    return f"flatout {run.command} {run.job}".rstrip() + f", {age(max(0.0, seconds))} ago"
