"""What the user typed, taken apart: the program itself, and what a launcher in front of it was told."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from flatout.records.errors import CallerMistake
from flatout.records.launch import Program

_TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# They would ask for machines a second time.
_SCHEDULERS = ("srun", "sbatch", "salloc", "kubectl", "sky", "flatout")
# Who meets whom: the file says it.
_MEETING = (
    "node-rank",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "master-addr",
    "master-port",
)
# Which torchrun does by itself; of its forerunner, torch.distributed.launch.
_ANYHOW = ("standalone", "use-env")
_FLAGS = (*_ANYHOW, "module", "no-python", "run-path", "virtual-local-rank")
# As torchrun shortens them.
_SHORT = {"-m": "module", "-t": "tee", "-r": "redirects"}


@dataclasses.dataclass(frozen=True)
class Typed:
    """A program, and how many nodes and processes its torchrun was told; None where nothing was said."""

    program: Program
    nodes: int | None = None
    processes_per_node: int | None = None


def typed(words: Sequence[str], *, as_module: bool) -> Typed:
    """Take the words of a command line apart; what cannot be run elsewhere is refused."""
    _insist_on_text(words)
    if as_module:
        return Typed(Program(kind="module", words=tuple(words)))
    first, rest = words[0], list(words[1:])
    name = Path(first).name
    if name.startswith("python") and rest[:1] == ["-m"]:
        first, name, rest = rest[1] if len(rest) > 1 else "", rest[1] if len(rest) > 1 else "", rest[2:]
        if name not in _TORCHRUN:
            return Typed(Program(kind="module", words=(first, *rest)))
    if name in _TORCHRUN:
        return _under_torchrun(rest)
    if name in _SCHEDULERS:
        raise CallerMistake(
            f"the job begins with {name}, which would ask for machines once more",
            expected="what is to run on each node: a script, or torchrun and a script",
            remedy="flatout launch --to slurm --nodes 2 train.py --lr 3e-4",
        )
    if name.startswith("python") and rest and rest[0].endswith(".py"):
        first, rest = rest[0], rest[1:]
    if first.endswith((".py", ".pyz")) or (Path(first) / "__main__.py").is_file():
        return Typed(Program(kind="script", words=(first, *rest)))
    return Typed(Program(kind="command", words=tuple(words)))


def _under_torchrun(words: list[str]) -> Typed:
    """torchrun's own options end where the script begins."""
    kept: list[str] = []
    said: dict[str, str] = {}
    is_module = False
    place = 0
    while place < len(words) and words[place].startswith("-"):
        option, equals, value = words[place].partition("=")
        name = _SHORT.get(option, option.lstrip("-").replace("_", "-"))
        given = [words[place]]
        if not equals and name not in _FLAGS:
            value = words[place + 1] if place + 1 < len(words) else ""
            given.append(value)
        place += len(given)
        if name in _MEETING:
            raise CallerMistake(
                f"torchrun was given {option}",
                expected="no word on who meets whom: the file that is written says it",
                remedy=f"leave {option} away; --nodes and --gpus say how many",
            )
        if name == "module":
            is_module = True
        elif name in ("nnodes", "nproc-per-node"):
            said[name] = value
        elif name not in _ANYHOW:
            kept += given
    if place >= len(words):
        raise CallerMistake(
            "torchrun was given no script",
            expected="torchrun, its options, a script and its arguments",
            remedy="flatout launch --to slurm -- torchrun --nproc-per-node 8 train.py",
        )
    program = Program(
        kind="module" if is_module else "script",
        words=tuple(words[place:]),
        torchrun_options=tuple(kept),
        wants_torchrun=True,
    )
    return Typed(program, _count(said.get("nnodes"), "nnodes"), _count(said.get("nproc-per-node"), "nproc"))


def _count(value: str | None, option: str) -> int | None:
    if value is None or value in ("auto", "gpu"):  # as many as there are: what --gpus says
        return None
    if not value.isdigit() or not int(value):
        raise CallerMistake(
            f"torchrun was given --{option}={value}",
            expected="one number: machines are asked for before the job starts",
            remedy="--nodes 2 --gpus 8",
        )
    return int(value)


def _insist_on_text(words: Sequence[str]) -> None:
    """A word of bytes that are no text cannot stand in YAML."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise CallerMistake(
                f"the word {os.fsencode(word)!r} is no text in UTF-8",
                expected="words that a file can hold",
                remedy="rename the file, or read its name from another one",
            ) from error


def insist_on_ranks_that_can_meet(program: Program, nodes: int) -> None:
    """On several nodes it is torchrun that starts the processes: it must be something that it can start."""
    if nodes == 1 or program.kind != "command":
        return
    name = Path(program.words[0]).name
    scripts = [word for word in program.words[1:] if word.endswith(".py")]
    raise CallerMistake(
        f"{name} cannot be started on {nodes} nodes",
        expected="a Python script or module: torchrun starts its processes and lets them meet",
        remedy=f"name the script itself: {scripts[0] if scripts else 'train.py'}; "
        "scripts for accelerate and Lightning run under torchrun too",
    )
