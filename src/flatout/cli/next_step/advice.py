"""What to do next: suggestions in the order in which they matter. The first is the one, some follow it."""

import dataclasses
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from flatout.cli.next_step.past_runs import PastRun, is_still_the_same_job, why_resumable
from flatout.records.next_step import (
    CheckpointHere,
    MachineHere,
    PlanHere,
    RunHere,
    ScriptHere,
    Suggestion,
)

MOST_OTHERS = 3
# What a new script goes through, and why.
_LADDER = {
    "check": "is it ready? A few small steps show whether it runs and learns; your files stay as they are",
    "profile": "where its time goes, and how far it is from what this machine can do",
    "tune": "makes it faster without changing what it learns, and writes a plan",
}
_AT_ITS_TOP = "the whole job, watched: it is told when steps become slower, or stand still"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Here:
    """All that was seen."""

    machine: MachineHere
    scripts: tuple[ScriptHere, ...] = ()
    model: str = ""
    plan: PlanHere | None = None
    # Newest first; `last` is the first of them, in words.
    runs: tuple[PastRun, ...] = ()
    last: RunHere | None = None
    running: tuple[RunHere, ...] = ()
    checkpoint: CheckpointHere | None = None

    def command(self, name: str, job: str) -> str:
        """A command with a job, under the Python that has torch."""
        python = f" --python {shlex.quote(self.machine.python)}" if self.machine.python else ""
        return f"flatout {name}{python} {job}"


def suggestions(here: Here) -> list[Suggestion]:
    """The suggestion, and at most three others."""
    found: dict[str, Suggestion] = {}
    for one in _all(here):
        found.setdefault(one.command, one)
        if len(found) > MOST_OTHERS:
            break
    return list(found.values())


def _all(here: Here) -> Iterator[Suggestion]:
    if here.running:
        yield from _while_it_runs(here.running[0])
        return
    if here.machine.problems:
        yield Suggestion(command="flatout doctor", why=f"GPUs cannot be read: {here.machine.problems[0]}")
    if here.machine.torch is None and (here.scripts or here.runs):
        yield Suggestion(
            command=f"{shlex.quote(sys.executable)} -m pip install 'torch>=2.10'",
            why="this Python has no torch; another one that has is named with --python PATH",
        )
    if here.checkpoint is not None:
        yield _from_the_checkpoint(here.checkpoint)
    if here.last is not None:
        yield from _after(here.runs[0], here.last, here)
    if here.plan is not None and here.plan.job:
        yield from _under_the_plan(here.plan, here)
    yield from _for_scripts(here)
    if here.model:
        yield Suggestion(
            command=f"flatout fit --load {shlex.quote(here.model)}", why="what loading this model takes"
        )
    yield from _for_the_machine(here)


def _while_it_runs(run: RunHere) -> Iterator[Suggestion]:
    yield Suggestion(command="flatout watch", why=f"flatout {run.command} {run.job} is running here".rstrip())
    yield Suggestion(command="flatout ps", why="who holds each GPU, and which processes belong to the job")
    yield Suggestion(command=f"flatout stop {run.id}", why="asks it to save and end")


def _from_the_checkpoint(saved: CheckpointHere) -> Suggestion:
    if saved.same_script:
        return Suggestion(command=saved.command, why=f"goes on after update {saved.update}, which is saved")
    why = f"begins anew: the script has changed since update {saved.update} was saved"
    return Suggestion(command=saved.command, why=why)


def _after(run: PastRun, last: RunHere, here: Here) -> Iterator[Suggestion]:
    """What the last run leads to; nothing where it went well."""
    again = f"flatout report {last.id}"
    if not run.words or last.outcome == "done":
        return
    if last.outcome == "out of memory":
        yield Suggestion(
            command=here.command("fit", last.job),
            why=f"{last.about}: what would make it fit, on this GPU or on others",
        )
        yield Suggestion(command=again, why="what held the memory when it ran out, line by line")
        yield Suggestion(
            command=here.command("batch", last.job), why="the batch size that fits and is fastest"
        )
    elif why_resumable(run) and is_still_the_same_job(run):
        yield Suggestion(command=run.again(resume=last.id), why=f"{last.about}: it goes on from there")
    elif last.outcome == "interrupted":
        yield Suggestion(
            command=here.command("tune", last.job),
            why="the last tuning was interrupted, and the script has changed since: it begins anew",
        )
    elif last.outcome == "not finite":
        yield Suggestion(
            command=run.again(on_nan="skip"),
            why=f"{last.about}; so, updates that are not finite are left out",
        )
        yield Suggestion(command=again, why="where the first of them came from")
    elif last.outcome == "hung":
        yield Suggestion(command=again, why=f"{last.about}; where each rank stood")
    elif last.outcome in ("stopped", "killed") and last.command == "run" and here.checkpoint is None:
        why = (
            "it begins anew" if "--protect" in run.options else "so, the same command could go on from there"
        )
        yield Suggestion(command=run.again(protect=""), why=f"{last.about}, and nothing was saved; {why}")
    elif last.outcome in ("stopped", "killed"):
        return
    else:
        command = here.command("check", last.job)
        yield Suggestion(command=command, why=f"{last.command}: {last.about}; a few small steps show why")
        yield Suggestion(command=again, why="what is known of that run")


def _under_the_plan(plan: PlanHere, here: Here) -> Iterator[Suggestion]:
    run = here.command("run", plan.job)
    if plan.state == "stale":
        why = f"the plan no longer holds: {plan.differences[0]}"
        yield Suggestion(command=here.command("tune", plan.job), why=why)
        yield Suggestion(command=run, why="under the old plan; each of its levers is checked again")
        return
    gain = (
        f"{plan.speedup:.2f}x with {', '.join(plan.levers)}" if plan.speedup and plan.levers else "as written"
    )
    yield Suggestion(command=run, why=f"the whole job under the plan: {gain}")
    if plan.levers:
        yield Suggestion(command="flatout patch", why="the plan as a diff of your own source")
        left = here.command(f"profile --plan {plan.path}", plan.job)
        yield Suggestion(command=left, why="what still holds it up under the plan")


def _for_scripts(here: Here) -> Iterator[Suggestion]:
    for place, script in enumerate(here.scripts[: MOST_OTHERS + 1]):
        if script.kind == "inference":
            why = "makes the inference faster; outputs stay the same"
            yield Suggestion(command=here.command("tune --infer", script.path), why=why)
            continue
        done, job = _done_with(script, here)
        todo = [name for name in _LADDER if name not in done] or ["run"]
        perhaps = "it may train; " if script.likelihood == "possible" else ""
        # Of several scripts, which one is meant is not known: the first step of each.
        for name in todo if len(here.scripts) == 1 else todo[:1]:
            why = (
                f"the same for another: {script.reasons[1]}"
                if place
                else perhaps + _LADDER.get(name, _AT_ITS_TOP)
            )
            yield Suggestion(command=here.command(name, job), why=why)


def _done_with(script: ScriptHere, here: Here) -> tuple[set[str], str]:
    """What was done with a script already, later rungs count for earlier ones; and how it was called last."""
    place = Path(script.path).resolve()
    own = [run for run in here.runs if run.script == place]
    well = {run.command for run in own if run.status == "done"}
    if well & {"profile", "tune", "run"}:
        well.add("check")
    if "tune" in well:
        well.add("profile")
    return well, own[0].job() if own else shlex.quote(script.path)


def _for_the_machine(here: Here) -> Iterator[Suggestion]:
    yield Suggestion(
        command="flatout doctor", why="what this machine is, what is wrong with it, how to fix it"
    )
    if here.machine.gpus:
        yield Suggestion(command="flatout limits", why="what its GPU can really do, against the rated peaks")
    yield Suggestion(command="flatout gpus", why="GPUs that people use: rated peaks, memory, price")
    yield Suggestion(command="flatout --help", why="every command")
