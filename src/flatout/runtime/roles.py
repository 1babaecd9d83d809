"""What a process does in its job, how it is called, and whether those it worked for are gone.

Only what is certain is said. A script that was started with `nohup` belongs to nobody either: it is no
orphan, and neither is a worker whose parent is the first process of a container.
"""

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from flatout.records.processes import Role
from flatout.records.session import KEEPER_VARIABLE, SESSION_VARIABLE
from flatout.runtime.process_table import RANK_VARIABLE, TORCHRUN_VARIABLE, Seen, Table

# torch gives these names to its processes (2.6 and newer).
_LOADER_WORKER, _TORCHRUN = "pt_data_worker", "pt_elastic"
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "colossalai"}
_TORCHRUN_MODULE = "torch.distributed.run"
_LAUNCHER_MODULES = {
    *(_TORCHRUN_MODULE, "torch.distributed.launch", "accelerate.commands.launch"),
    *("deepspeed.launcher.launch", "deepspeed.launcher.runner"),
}
_KEEPER = "flatout.runtime.keeper"
_WRITER = "flatout.runtime.checkpoint.writer"
# Commands of Flatout's own that have a script running below them.
_RUNS_SCRIPTS = {"run", "tune", "profile", "check", "batch", "fit"}
_MULTIPROCESSING = "from multiprocessing."
_OPTIONS_WITH_VALUES = {"-W", "-X", "--check-hash-based-pycs"}
# Roles of processes that are of no use once their parent is gone.
WORKERS: frozenset[Role] = frozenset({"loader worker", "compile worker", "worker"})
# Roles of processes that a user has started, or ordered to be started.
PROGRAMS: frozenset[Role] = frozenset({"launcher", "script", "rank"})


def role_of(process: Seen, table: Table) -> Role:
    """What it does."""
    parent = table.parent_of(process)
    program = program_of(process.words) if process.is_python else ()
    if process.name == _LOADER_WORKER:
        return "loader worker"
    if "torch._inductor.compile_worker" in " ".join(program[:2]) or "compile_worker" in process.name:
        return "compile worker"
    if _is_multiprocessing(process) or _is_forked_by(process, parent):
        below_compiler = parent is not None and "torch._inductor.compile_worker" in " ".join(parent.words)
        return "compile worker" if below_compiler else "worker"
    if program[:2] == ("-m", _KEEPER):
        return "keeper"
    if process.is_python and any(_WRITER in word for word in process.words[1:]):
        return "checkpoint writer"
    if flatout_command(process) in _RUNS_SCRIPTS:
        return "flatout"
    if process.name == _TORCHRUN or _is_launcher(program):
        return "launcher"
    if process.is_python and process.variable(RANK_VARIABLE) is not None:
        return "rank"
    trains = process.holds_torch or process.variable(SESSION_VARIABLE) or process.variable(KEEPER_VARIABLE)
    return "script" if process.is_python and trains else "helper"


def why_orphan(process: Seen, role: Role, table: Table) -> str:
    """Why it is certain that those it worked for are gone; "" where it is not."""
    parent = table.parent_of(process)
    if process.zombie or process.parent == 0:  # started from outside of what we see
        return ""
    if role in WORKERS:
        return _why_left_behind(process, parent, table)
    if role == "rank" and process.variable(TORCHRUN_VARIABLE) is not None and not _is_of_torchrun(parent):
        return f"a rank of torchrun ({_whose(process)}), which is gone"
    return ""


def _why_left_behind(process: Seen, parent: Seen | None, table: Table) -> str:
    named = _named_parent(process.words)
    if named is not None and table.get(named) is None:
        return f"process {named}, which it compiled for, is gone"
    if parent is None:
        return "its parent is gone"
    if not parent.is_python and not parent.zombie:
        # Only a Python process starts such workers; this one was handed over when that one died.
        return f"its parent is gone; {parent.name} ({parent.pid}) inherited it"
    inherited = flatout_command(parent) or program_of(parent.words)[:2] == ("-m", _KEEPER)
    copied = process.forked and not _is_multiprocessing(parent) and process.words != parent.words
    if inherited or (copied and process.words and parent.words):
        return f"its parent is gone; another process ({parent.pid}) inherited it"
    return ""


def _is_of_torchrun(parent: Seen | None) -> bool:
    """Whether a rank's parent can be torchrun, or a program between the two."""
    if parent is None or parent.is_python:
        return parent is not None
    if parent.variables is None:
        return parent.pid != 1  # nothing is known of it, and the first process is nobody's wrapper
    return TORCHRUN_VARIABLE in parent.variables


def _is_multiprocessing(process: Seen) -> bool:
    """Whether Python's multiprocessing has started it: by spawn, by its fork server, or to keep track."""
    return process.is_python and (
        "--multiprocessing-fork" in process.words
        or any(word.startswith(_MULTIPROCESSING) for word in process.words[1:6])
    )


def _is_forked_by(process: Seen, parent: Seen | None) -> bool:
    """Whether it is a copy of its parent; or was one of a parent that is gone, in whose group it still is.

    Whoever leaves its parent in order to live on takes a session of its own, as daemons do.
    """
    if not process.forked or not process.is_python:
        return False
    if parent is not None and parent.is_python:
        return True
    return process.group not in (process.pid, process.session)


def _is_launcher(program: Sequence[str]) -> bool:
    if not program:
        return False
    if program[0] == "-m":
        return len(program) > 1 and program[1] in _LAUNCHER_MODULES
    name = PurePath(program[0]).name
    return name in _LAUNCHERS and (name != "accelerate" or tuple(program[1:2]) == ("launch",))


def flatout_command(process: Seen) -> str:
    """Which command of ours it is: "run", "ps"; "" for everything else."""
    program = program_of(process.words) if process.is_python else ()
    if program[:2] == ("-m", "flatout"):
        program = program[1:]
    elif not program or PurePath(program[0]).name != "flatout":
        return ""
    return program[1] if len(program) > 1 else ""


def program_of(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a Python process without the interpreter and its own options."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in _OPTIONS_WITH_VALUES else 1
    return tuple(words[at:])


def short_command(process: Seen, *, at_most: int = 60) -> str:
    """What it was started as, for a line: without the interpreter and the folders."""
    words = program_of(process.words) if process.is_python else process.words
    if not words:
        return process.name
    if _is_launcher(words):
        script = _launched(words)
        launcher = (
            PurePath(words[0]).name if words[0] != "-m" else words[1].replace(_TORCHRUN_MODULE, "torchrun")
        )
        shown = [launcher, *script] if script else list(words)
    elif words[0] == "-m":
        shown = list(words)
    elif words[0] == "-c":
        shown = ["python", "-c", "..."]
    else:
        shown = [PurePath(words[0]).name, *words[1:]]
    text = shlex.join(shown).replace("'...'", "...")
    return text if len(text) <= at_most else text[: at_most - 3] + "..."


def script_name(process: Seen) -> str:
    """The script's file, or the module: what a user would call the job; "" where there is none."""
    words = program_of(process.words) if process.is_python else process.words
    if not words or words[0] == "-c":
        return ""
    if _is_launcher(words) and (launched := _launched(words)):
        return launched[0]
    return words[1] if words[0] == "-m" and len(words) > 1 else PurePath(words[0]).name


def _launched(words: Sequence[str]) -> tuple[str, ...]:
    """The script that a launcher runs, and its arguments; nothing where it cannot be told from options."""
    at = next((at for at, word in enumerate(words) if at and word.endswith(".py")), None)
    return (PurePath(words[at]).name, *words[at + 1 :]) if at is not None else ()


def _named_parent(words: Sequence[str]) -> int | None:
    found = [word.removeprefix("--parent=") for word in words if word.startswith("--parent=")]
    return int(found[0]) if found and found[0].isdigit() else None


def _whose(process: Seen) -> str:
    return f"rank {process.variable(RANK_VARIABLE)}"
