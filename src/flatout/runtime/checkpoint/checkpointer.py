"""`flatout.Checkpointer`: a training that can be killed at any instant and goes on where it was."""

import contextlib
import json
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flatout.records.atomic import ensure_writable
from flatout.records.errors import CallerMistake, CorruptFile, EnvironmentProblem
from flatout.records.lock import folder_lock
from flatout.runtime.checkpoint.layout import BadFile, Layout, lay_out, read_header
from flatout.runtime.checkpoint.plain import Apart, NotPlain, NotTrusted, Ref, Together
from flatout.runtime.checkpoint.position import Loader
from flatout.runtime.checkpoint.random_states import put_back, random_states
from flatout.runtime.checkpoint.snapshot import Copier, Snapshot
from flatout.runtime.checkpoint.store import Damaged, Stored, newest_complete, read_manifest, verify
from flatout.runtime.checkpoint.writer import at_work_in
from flatout.runtime.checkpoint.writing import SharedMemory, Writer, WriterDied
from flatout.runtime.stopping import Stopped, current, stop_requested

STATE_FILE = "state.json"
_OURS = ("random", "step")


class Checkpointer:
    """Saves a training as it goes, and finds it again.

        checkpointer = flatout.Checkpointer("checkpoints", model=model, optimizer=optimizer, loader=loader)
        step = checkpointer.resume()                     # 0, or where the newest complete one was
        while step < steps:
            for batch in checkpointer.loader:
                ...
                step += 1
                checkpointer.step(step)                  # saves every `every` steps, and when asked to stop
        checkpointer.close()

    Whatever has `state_dict()` and `load_state_dict()` can be handed over by any name: models, optimizers,
    schedulers, scalers. Beside them it keeps all random numbers and, of a `loader`, the place in the data.

    Training stops only for as long as a copy takes: another process writes it to disk, under another name
    until all of it is there, so that a kill at any instant leaves the last complete one. Nothing is pickled,
    unless `trust` says so: tensors are safetensors files, the rest is JSON.

    A SIGTERM, SIGINT or SIGUSR1 is answered at the end of the step: it is saved, and `flatout.Stopped`, a
    SystemExit with the signal's code, ends the training.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int | None = 1000,
        keep: int = 2,
        trust: bool = False,
        loader: Any = None,
        **parts: Any,
    ) -> None:
        import torch

        self._torch = torch
        self._folder = Path(folder)
        self._every = every
        self._keep = keep
        self._trust = trust
        self._parts = _with_state(parts)
        self.loader = Loader(torch, loader) if loader is not None else None
        self._memory = SharedMemory()
        self._copier = Copier(torch, self._memory)
        self._writer = Writer(self._memory)
        self._layout: tuple[Any, Layout] | None = None
        self._under_way: Snapshot | None = None
        self._saved_step: int | None = None
        # What went wrong since somebody asked.
        self._problem = ""
        ensure_writable(self._folder, remedy="choose a folder that this user may write to")
        self._held = contextlib.ExitStack()
        self._held.enter_context(folder_lock(self._folder))
        if current().listen():
            self._held.callback(current().leave)

    # Saving

    def step(self, step: int) -> bool:
        """To be called after each step: saves when it is time, and ends the training when asked to stop.

        Says what went wrong with the checkpoint before; whether it has saved.
        """
        self._look()
        if stop_requested():
            if step != self._saved_step:
                self.save(step)
            self.wait()
            raise Stopped(current().exit_code)
        if self._problem:
            sys.stderr.write(f"flatout: a checkpoint could not be written: {self._problem}\n")
            self._problem = ""
        if not self._every or step % self._every or step == self._saved_step:
            return False
        self.save(step)
        return True

    def save(self, step: int) -> None:
        """Save now, as training goes on; where the one before is still being written, that is waited for."""
        self.wait()
        apart = Apart(self._torch, pickles=self._trust)
        try:
            plain = apart.take(self._state(step))
            layout = self._lay_out(apart.tensors)
        except (NotPlain, ValueError) as problem:
            raise CallerMistake(
                str(problem),
                expected="tensors, numbers, text, and lists and dicts of them",
                remedy="leave it out of state_dict(), or pass trust=True to have it pickled",
            ) from problem
        order = {
            "folder": str(self._folder.resolve()),
            "step": step,
            "size": layout.size,
            "files": [(file.name, file.start, file.size) for file in layout.files],
            "texts": {STATE_FILE: json.dumps(plain, allow_nan=False)},
            "about": {"torch": self._torch.__version__, "parts": sorted(self._parts)},
            "keep": self._keep,
        }
        self._writer.start()
        self._saved_step = step
        self._under_way = self._copier.copy(apart.tensors, layout, lambda: self._writer.send(order))

    def wait(self) -> None:
        """Until what was saved is on the disk, or could not be."""
        if self._under_way is not None:
            try:
                self._under_way.wait()
            except Exception as error:  # noqa: BLE001 - told at the next step
                self._problem = f"{type(error).__name__}: {error}" if not _is_ours(error) else str(error)
            self._under_way = None
        self._note(self._writer.answer(None))

    def close(self) -> None:
        """Wait, and end; raises EnvironmentProblem where the last checkpoint could not be written."""
        try:
            self.wait()
            self._writer.close()
        finally:
            self._copier.close()
            self._memory.close()
            self._held.close()
        if self._problem:
            raise EnvironmentProblem(
                f"the last checkpoint could not be written: {self._problem}",
                expected=f"room for it in {self._folder}",
                remedy="free some room or choose another folder",
            )

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _look(self) -> None:
        if self._under_way is not None and self._under_way.is_done:
            with contextlib.suppress(Exception):
                self._under_way.wait()
            if self._under_way.problem is not None:
                self._problem = str(self._under_way.problem)
            self._under_way = None
        if self._under_way is None:
            self._note(self._writer.answer(0.0))

    def _note(self, answer: dict[str, Any] | None) -> None:
        if answer is not None and "failed" in answer:
            self._problem = answer["failed"]

    def _state(self, step: int) -> dict[str, Any]:
        state = {name: part.state_dict() for name, part in self._parts.items()}
        if self.loader is not None:
            state["loader"] = self.loader.state_dict()
        return {**state, "random": random_states(self._torch), "step": step}

    def _lay_out(self, tensors: dict[Ref, Any]) -> Layout:
        """As last time, where the tensors are of the same names, shapes and types."""
        shape = [(ref, one.dtype, one.shape) for ref, one in tensors.items()]
        if self._layout is None or self._layout[0] != shape:
            self._layout = shape, lay_out(tensors)
        return self._layout[1]

    # Resuming

    def resume(self, which: str | Path = "latest") -> int:
        """Load the newest complete checkpoint into what was handed over; its step, or 0 without any."""
        with self._not_while_written():
            if which == "latest":
                found = newest_complete(self._folder, self._tell_of_damage)
                if found is None:
                    return 0
                stored, _ = found
            else:
                stored = _named(self._folder, which)
            state = read_state(self._torch, stored, trust=self._trust)
        missing = sorted({*self._parts} - {*state})
        if missing:
            raise CallerMistake(
                f"{stored.path} has no {', '.join(missing)}",
                expected=f"what it has: {', '.join(sorted({*state} - {*_OURS}))}",
                remedy="hand over what was saved, by the same names",
            )
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        if self.loader is not None and "loader" in state:
            self.loader.load_state_dict(state["loader"])
        word = put_back(self._torch, state["random"])
        if word:
            sys.stderr.write(f"flatout: {word}\n")
        self._saved_step = int(state["step"])
        return self._saved_step

    @contextlib.contextmanager
    def _not_while_written(self) -> Iterator[None]:
        """The process that wrote for a killed training may still be at it: what it writes is the newest."""
        self.wait()
        with at_work_in(self._folder):
            yield

    def _tell_of_damage(self, stored: Stored, problem: str) -> None:
        sys.stderr.write(f"flatout: {stored.path.name} cannot be used: {problem}\n")


def read_state(torch: Any, stored: Stored, *, trust: bool = False) -> dict[str, Any]:
    """All of a checkpoint, on the host; it was verified. Raises CorruptFile, or CallerMistake for pickles."""
    files: dict[str, tuple[dict[str, Any], Any]] = {}
    listed = read_manifest(stored.path)["files"]

    def tensor(ref: Ref) -> Any:
        file, name = ref
        if f"{file}.safetensors" not in listed:
            raise ValueError(f"its manifest knows of no {file!r}")
        if file not in files:
            files[file] = _open(torch, stored.path / f"{file}.safetensors")
        header, whole = files[file]
        place = header[name]
        part = whole[place.start : place.end]
        return part.view(getattr(torch, place.dtype)).view(place.shape).clone()

    path = stored.path / STATE_FILE
    try:
        return Together(torch, tensor, trust=trust).state(json.loads(path.read_bytes()))
    except NotTrusted as problem:
        raise CallerMistake(
            f"{path}: {problem}",
            expected="a checkpoint of plain data and tensors",
            remedy="pass trust=True if you wrote it",
        ) from problem
    except (OSError, ValueError, KeyError, TypeError, IndexError, BadFile, RecursionError) as problem:
        raise CorruptFile(stored.path, str(problem), remedy="resume from an older one") from problem


def _open(torch: Any, path: Path) -> tuple[dict[str, Any], Any]:
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return read_header(memoryview(memory)), torch.frombuffer(memory, dtype=torch.uint8)


def _named(folder: Path, which: str | Path) -> Stored:
    path = Path(which) if Path(which).is_dir() else folder / which
    if not path.is_dir():
        raise CallerMistake(
            f"no checkpoint {str(which)!r}", expected=f"a folder in {folder}", remedy='resume("latest")'
        )
    try:
        manifest = verify(path)
    except Damaged as problem:
        raise CorruptFile(path, str(problem), remedy="resume from an older one") from problem
    return Stored(manifest["step"], path)


def _with_state(parts: dict[str, Any]) -> dict[str, Any]:
    for name, part in parts.items():
        if name in (*_OURS, "loader") or not name.isidentifier():
            raise CallerMistake(
                f"{name!r} is a name of our own", expected="another name", remedy=f"call it my_{name}"
            )
        if not callable(getattr(part, "state_dict", None)) or not callable(
            getattr(part, "load_state_dict", None)
        ):
            raise CallerMistake(
                f"{name} is a {type(part).__name__}, which has no state_dict() and load_state_dict()",
                expected="models, optimizers, schedulers and the like",
                remedy="wrap it in an object with these two methods",
            )
    return dict(parts)


def _is_ours(error: Exception) -> bool:
    return isinstance(error, WriterDied)
