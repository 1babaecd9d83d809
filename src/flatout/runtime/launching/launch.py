"""`flatout launch`: a job's file for a scheduler, checked, written, and handed in where that is asked for."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.records.launch import Launch, LaunchJob, Target
from flatout.runtime.launching.checking import check_draft
from flatout.runtime.launching.draft import Draft
from flatout.runtime.launching.kubernetes import draft_kubernetes
from flatout.runtime.launching.skypilot import draft_skypilot
from flatout.runtime.launching.slurm import draft_slurm

_DRAFTS: dict[Target, Callable[[LaunchJob], Draft]] = {
    "slurm": draft_slurm,
    "kubernetes": draft_kubernetes,
    "skypilot": draft_skypilot,
}
# Handing in waits for a server, which may wait for machines.
_PATIENCE_S = 600.0


def launch(job: LaunchJob, notes: tuple[str, ...], *, out: Path | None, force: bool, submit: bool) -> Launch:
    """The file of a job; with `submit`, handed to the target's own tool."""
    draft = _DRAFTS[job.target](job)
    if submit:
        _insist_on_tool(draft.submit[0], job.target)
    place = out or (Path(f"{job.name}{draft.suffix}") if submit else None)
    checks = check_draft(draft, job.target)
    if place is not None:
        _write(place, draft.text, force=force)
    shown = place or Path(f"{job.name}{draft.suffix}")
    found = Launch(
        target=job.target,
        name=job.name,
        nodes=job.nodes,
        gpus_per_node=job.gpus.per_node,
        processes_per_node=job.processes_per_node,
        file=str(place) if place is not None else None,
        text=draft.text,
        submit=(*draft.submit, _as_argument(shown)),
        checks=checks,
        notes=(*notes, *draft.notes),
    )
    return _handed_in(found) if submit and found.is_sound else found


def _as_argument(path: Path) -> str:
    return f"./{path}" if str(path).startswith("-") else str(path)


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write it, unless another file has that name: it may be somebody's work."""
    data = text.encode()
    if path.is_dir():
        raise CallerMistake(
            f"{path} is a folder", expected="the name of a file", remedy=f"--out {path / 'job'}"
        )
    if path.exists() and path.read_bytes() == data:
        return
    if path.exists() and not force:
        raise CallerMistake(
            f"{path} is there already, with other content",
            expected="a new name, or the same content",
            remedy=f"--force overwrites it; --out {path.with_stem(path.stem + '-2')} does not",
        )
    write_atomically(path, data)


def _insist_on_tool(tool: str, target: Target) -> None:
    if shutil.which(tool) is None:
        raise EnvironmentProblem(
            f"there is no {tool} on this machine",
            expected=f"{tool}, which hands jobs to {target}",
            remedy="without --submit the file is written, to be handed in where it is",
        )


def _handed_in(found: Launch) -> Launch:
    import dataclasses

    try:
        done = subprocess.run(
            found.submit, capture_output=True, timeout=_PATIENCE_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise EnvironmentProblem(
            f"{found.submit[0]} gave no answer within {_PATIENCE_S:.0f} s",
            expected="a scheduler that answers",
            remedy=" ".join(found.submit),
        ) from error
    said = (done.stdout + done.stderr).decode(errors="replace").strip()
    if done.returncode:
        raise EnvironmentProblem(
            f"{found.submit[0]} refused {found.file}: {said}",
            expected=f"a {found.target} that takes the job",
            remedy=f"the file is written: change it or the options, then {' '.join(found.submit)}",
        )
    return dataclasses.replace(found, submitted=True, answer=said)
