"""Which files of a folder look like jobs. However large the folder is, the work is bounded."""

import dataclasses
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from flatout.analyze.job_source import JobSource, read_job_source
from flatout.records.next_step import ScriptHere

# How far a first look goes: folders below this one, entries in all, files that are parsed, and how long.
_DEEPEST = 2
_MOST_ENTRIES = 5000
_MOST_PARSED = 60
_LARGEST_BYTES = 1 << 20
_LONGEST_S = 0.5
# These are looked at whatever the time: a small folder on a busy machine is not a large one.
_FIRST_LOOKS = 20
# Never a job of the user's own.
_NOT_THEIRS = frozenset(
    {"__pycache__", "node_modules", "site-packages", "build", "dist", "wandb", "mlruns", "tests", "test"}
)
_BESIDE = frozenset({"benchmark", "benchmarks", "bench", "scripts", "tools", "docs"})
_MARKS = (b"torch", b"lightning", b"transformers", b"accelerate")
_MODELS = (".safetensors", ".gguf", ".pt", ".pth")


@dataclasses.dataclass(frozen=True)
class Scripts:
    """What was found, the likeliest first, and what was left out."""

    found: tuple[ScriptHere, ...]
    notes: tuple[str, ...]
    # A model's file in the folder itself, where there is one.
    model: str = ""


class _Budget:
    """What is left of a first look; `spent` names what ran out first."""

    def __init__(self) -> None:
        self._entries, self._parsed = _MOST_ENTRIES, _MOST_PARSED
        self._looks = 0
        self._until = time.monotonic() + _LONGEST_S
        self.spent = ""

    def entry(self) -> bool:
        self._entries -= 1
        return self._is_left(self._entries >= 0, f"{_MOST_ENTRIES} files and folders")

    def parse(self) -> bool:
        self._parsed -= 1
        return self._is_left(self._parsed >= 0, f"{_MOST_PARSED} files that name torch")

    def _is_left(self, left: bool, what: str) -> bool:
        self._looks += 1
        late = self._looks > _FIRST_LOOKS and time.monotonic() > self._until
        if not left or late:
            self.spent = self.spent or (f"{_LONGEST_S:g} s" if left else what)
        return left and not late


def scripts_in(folder: Path) -> Scripts:
    """Jobs in a folder and the two levels below it."""
    budget, model = _Budget(), ""
    notes: list[str] = []
    found = []
    for path, depth in _files(folder, budget, notes):
        if path.suffix in _MODELS and not depth:
            model = model or path.name
        if path.suffix != ".py":
            continue
        source = _read(path, folder, budget, notes)
        script = _judged(str(path.relative_to(folder)), source) if source is not None else None
        if script is not None:
            found.append((_rank(script, depth), script))
        if budget.spent:
            break
    if budget.spent:
        notes.append(f"this folder is large: the look at it ended after {budget.spent}")
    ordered = tuple(script for _, script in sorted(found, key=lambda pair: pair[0]))
    return Scripts(ordered, tuple(notes), model)


def _files(folder: Path, budget: _Budget, notes: list[str]) -> Iterator[tuple[Path, int]]:
    """Files by level, each folder in the order of its names; links to folders are not followed."""
    waiting = deque([(folder, 0)])
    while waiting:
        where, depth = waiting.popleft()
        entries: list[os.DirEntry[str]] = []
        try:
            with os.scandir(where) as listed:
                for entry in listed:
                    if not budget.entry():
                        break
                    entries.append(entry)
        except OSError as error:
            notes.append(f"{where.name or where} cannot be read: {error.strerror}")
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEEPEST and _is_theirs(entry):
                    waiting.append((Path(entry.path), depth + 1))
            elif not entry.name.startswith("."):
                yield Path(entry.path), depth
        if budget.spent:
            return


def _is_theirs(entry: os.DirEntry[str]) -> bool:
    hidden = entry.name.startswith(".") or entry.name in _NOT_THEIRS
    return not hidden and not os.path.lexists(os.path.join(entry.path, "pyvenv.cfg"))  # noqa: PTH118


def _read(path: Path, folder: Path, budget: _Budget, notes: list[str]) -> JobSource | None:
    name = path.relative_to(folder)
    if path.name.startswith(("test_", "conftest")):
        return None
    try:
        if not path.is_file():  # a pipe would wait for its writer
            return None
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
        if not any(mark in data for mark in _MARKS) or not budget.parse():
            return None
        if len(data) > _LARGEST_BYTES:
            notes.append(f"{name} is too large to be looked at")
            return None
        return read_job_source(data.decode())
    except OSError as error:
        notes.append(f"{name} cannot be read: {error.strerror}")
    except SyntaxError as error:
        notes.append(f"{name} is no Python that this Python reads: {error.msg} (line {error.lineno})")
    except (ValueError, RecursionError, MemoryError) as error:  # bytes that are no text, or nested too deeply
        notes.append(f"{name} cannot be read as Python: {type(error).__name__}")
    return None


def _judged(path: str, source: JobSource) -> ScriptHere | None:
    """As a job, or None for a file that only happens to use torch."""
    seen, kind = source.trains or source.trains_elsewhere, "training"
    if not seen:
        seen, kind = source.infers, "inference"
    if not seen or not (source.starts or source.trains):
        return None
    certain = bool(source.starts) and (bool(source.trains) or kind == "inference")
    return ScriptHere(
        path=path,
        kind=kind,  # type: ignore[arg-type]
        likelihood="likely" if certain else "possible",
        reasons=(f"uses {', '.join(source.libraries)}", seen, source.starts or "nothing in it starts that"),
    )


def _rank(script: ScriptHere, depth: int) -> tuple[bool, bool, bool, int, bool, str]:
    """Trainings before inferences, likely ones first, near ones first, and one that is called `train`.

    What only measures or serves the project comes behind its own jobs.
    """
    named, kind = Path(script.path).stem.lower(), script.kind != "training"
    is_named_so = "train" in named or named == "main"
    is_beside = bool(_BESIDE & set(Path(script.path).parts[:-1]))
    return script.likelihood != "likely", is_beside, kind, depth, not is_named_so, script.path
