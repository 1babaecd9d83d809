"""`flatout.Checkpointer`: a training that can be killed at any instant and goes on where it was."""

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flatout.records.atomic import ensure_writable
from flatout.records.errors import CallerMistake, EnvironmentProblem
from flatout.records.lock import folder_lock
from flatout.records.session import SESSION_VARIABLE
from flatout.runtime.checkpoint.layout import Layout, lay_out
from flatout.runtime.checkpoint.plain import Apart, NotPlain, Ref
from flatout.runtime.checkpoint.position import Loader
from flatout.runtime.checkpoint.random_states import put_back, random_states
from flatout.runtime.checkpoint.ranks import Ranks
from flatout.runtime.checkpoint.reading import is_in_a_pass, named, read_state, spread
from flatout.runtime.checkpoint.snapshot import Copier, Snapshot
from flatout.runtime.checkpoint.store import (
    PARTS_FILE,
    STATE_FILE,
    Stored,
    complete,
    give_up_newer,
    newest_complete,
    read_manifest,
    set_aside_newer,
)
from flatout.runtime.checkpoint.writer import at_work_in
from flatout.runtime.checkpoint.writing import SharedMemory, Writer, WriterDied
from flatout.runtime.stopping import Stopped, current, stop_requested

_OURS = ("random", "step")
_OF_EACH_RANK = ("random", "loader")

# By folder: up to which step this process has saved there, or resumed.
_gone_to: dict[Path, int] = {}


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
    schedulers, scalers. Beside them it keeps all random numbers and, of a `loader`, the place in the data:
    a torch DataLoader, also behind `flatout.prefetch`. A pass that the loop leaves (`break`, `islice`) is
    over: save after leaving it.

    Training stops only for as long as a copy takes: another process writes it to disk, under another name
    until all of it is there, so that a kill at any instant leaves the last complete one. Nothing is pickled,
    unless `trust` says so: tensors are safetensors files, the rest is JSON. A step that is saved again takes
    the place of what was saved of it before. Checkpoints of another training, which was not resumed, are set
    aside under other names once the first of this one is complete.

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
        self.loader: Any = Loader(torch, loader) if loader is not None else None
        self._memory = SharedMemory()
        self._copier = Copier(torch, self._memory)
        self._writer = Writer(self._memory)
        self._layout: tuple[Any, Layout] | None = None
        self._under_way: Snapshot | None = None
        self._saved_step: int | None = None
        self._being_saved = 0
        # Resumed at this step, and not saved since.
        self._went_on_from: int | None = None
        # Whether what the folder holds is this training's: it was resumed, or has saved.
        self._is_ours = False
        self._saves = 0
        # What went wrong since somebody asked.
        self._problem = ""
        # Asked before each save, on every rank alike: why this state must not be kept, or nothing.
        self.refusals: list[Callable[[], str]] = []
        # Told after a state was loaded.
        self.loaded: list[Callable[[], None]] = []
        self._ranks = Ranks(torch)
        self._held = contextlib.ExitStack()
        self._token = self._ranks.agree(self._begin)
        _tell_the_session(self._folder)
        if current().listen():
            self._held.callback(current().leave)

    def _begin(self) -> str:
        """Make the folder ours, on the first rank; a word by which its files are known as this training's."""
        ensure_writable(self._folder, remedy="choose a folder that this user may write to")
        self._held.enter_context(folder_lock(self._folder))
        return secrets.token_hex(8)

    # Saving

    def step(self, step: int) -> bool:
        """To be called after each step: saves when it is time, and ends the training when asked to stop.

        Says what went wrong with the checkpoint before; whether it has saved.
        """
        self._look()
        if stop_requested():
            if step != self._saved_step and not self._refused(step):
                self.save(step)
            self.wait()
            self._tell_of_problems()
            raise Stopped(current().exit_code)
        self._tell_of_problems()
        if not self._every or step % self._every or step == self._saved_step or self._refused(step):
            return False
        self.save(step)
        return True

    def _tell_of_problems(self) -> None:
        problem = self.problem()
        if problem:
            sys.stderr.write(f"flatout: a checkpoint could not be written: {problem}\n")

    def _refused(self, step: int) -> bool:
        """Whether somebody has a reason not to keep this state; then it is said, and the last one stays."""
        why = next((word for refusal in self.refusals if (word := refusal())), "")
        if why and self._ranks.is_first:
            sys.stderr.write(f"flatout: step {step} is not saved: {why}\n")
        return bool(why)

    def save(self, step: int) -> None:
        """Save now, as training goes on; where the one before is still being written, that is waited for."""
        self.wait()
        self._saves += 1
        apart = Apart(self._torch, pickles=self._trust)
        try:
            plain = apart.take(self._state(step))
            tensors = apart.tensors
            if not self._ranks.is_first:
                own = _OF_EACH_RANK
                tensors = {ref: one for ref, one in tensors.items() if ref in apart.parts or ref[0] in own}
            layout = self._lay_out(tensors)
        except (NotPlain, ValueError) as problem:
            raise CallerMistake(
                str(problem),
                expected="tensors, numbers, text, and lists and dicts of them",
                remedy="leave it out of state_dict(), or pass trust=True to have it pickled",
            ) from problem
        ranks = self._ranks
        order = {
            "folder": str(self._folder.resolve()),
            "step": step,
            "rank": ranks.rank,
            "ranks": ranks.count,
            "token": self._token,
            "turn": self._saves,
            "begins_anew": not self._is_ours and not self._continues_at(step),
            "size": layout.size,
            "files": [(ranks.name(file.name), file.start, file.size) for file in layout.files],
            "texts": self._texts(plain, apart),
            "about": {
                "torch": self._torch.__version__,
                "parts": sorted(self._parts),
                "ranks": ranks.count,
            },
            "keep": self._keep,
        }
        self._leave_what_is_newer()
        self._writer.start()
        self._saved_step = self._being_saved = step
        self._under_way = self._copier.copy(tensors, layout, lambda: self._writer.send(order))

    def _leave_what_is_newer(self) -> None:
        """Once training that went back goes on, what it had saved after that place is no more its own."""
        if self._went_on_from is not None and self._ranks.is_first:
            for path in set_aside_newer(self._folder, self._went_on_from):
                sys.stderr.write(f"flatout: saved after step {self._went_on_from}, now {path.name}\n")
        self._went_on_from = None

    def _continues_at(self, step: int) -> bool:
        """Whether another Checkpointer of this process has saved here, and training went on from there."""
        before = _gone_to.get(self._folder.resolve())
        return before is not None and step > before

    def _has_gone_to(self, step: int) -> None:
        self._is_ours = True
        _gone_to[self._folder.resolve()] = step

    def _texts(self, plain: dict[str, Any], apart: Apart) -> dict[str, str]:
        ranks = self._ranks
        if not ranks.is_first:  # what all have alike, the first one stores
            plain = {name: plain[name] for name in _OF_EACH_RANK if name in plain}
        texts = {ranks.name(STATE_FILE): json.dumps(plain, allow_nan=False)}
        if apart.parts:
            parts: dict[str, dict[str, Any]] = {}
            for (file, name), part in apart.parts.items():
                parts.setdefault(file, {})[name] = part.plain()
            texts[ranks.name(PARTS_FILE)] = json.dumps(parts)
        return texts

    def problem(self) -> str:
        """What went wrong with a checkpoint since this was last asked, or ""."""
        problem, self._problem = self._problem, ""
        return problem

    @property
    def is_saving(self) -> bool:
        """Whether what was saved is still on its way to the disk."""
        self._look()
        return self._under_way is not None or self._writer.is_busy

    def wait(self) -> None:
        """Until what was saved is on the disk, or could not be."""
        self._end_copy()
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
        if self._under_way is None or self._under_way.is_done:
            self._end_copy()
            self._note(self._writer.answer(0.0))

    def _end_copy(self) -> None:
        if self._under_way is None:
            return
        try:
            self._under_way.wait()
        except Exception as error:  # noqa: BLE001 - told at the next step
            is_ours = isinstance(error, WriterDied)
            self._problem = str(error) if is_ours else f"{type(error).__name__}: {error}"
        self._under_way = None

    def _note(self, answer: dict[str, Any] | None) -> None:
        if answer is None:
            return
        if "failed" in answer:
            self._problem = answer["failed"]
            return
        self._has_gone_to(self._being_saved)
        if answer["set_aside"]:
            names = ", ".join(answer["set_aside"])
            sys.stderr.write(f"flatout: saved by another training, which was not resumed, now {names}\n")

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
        """Load the newest complete checkpoint into what was handed over; its step, or 0 without any.

        Of an older one (`"step-000000500"`), what was saved later is set aside at the next save.
        """
        with self._not_while_written():
            name = self._ranks.agree(lambda: self._choose(which))
            if not name:
                self._went_on_from = 0
                self._has_gone_to(0)
                return 0
            stored = Stored(read_manifest(Path(name))["step"], Path(name))
            state = read_state(self._torch, stored, rank=self._ranks.rank, trust=self._trust)
        self._insist_on_as_many_ranks(stored)
        self._load(stored, state)
        if self.loader is not None and "loader" in state:
            as_many = read_manifest(stored.path).get("ranks", 1) == self._ranks.count
            self.loader.load_state_dict(state["loader"], as_many_ranks=as_many)
        if "random" in state:
            word = put_back(self._torch, state["random"])
        else:
            word = "this rank had no random numbers in the checkpoint: they begin anew"
        if word:
            sys.stderr.write(f"flatout: {word}\n")
        self._saved_step = self._went_on_from = int(state["step"])
        self._has_gone_to(self._saved_step)
        return self._saved_step

    def roll_back(self, is_sound: Callable[[], bool] = lambda: True) -> int | None:
        """Load the newest checkpoint that is sound into what was handed over; its step, or None without any.

        The place in the data and random numbers stay where they are: training goes on with what comes next.
        Newer checkpoints are given up; to those of another training, which was not resumed, it does not go
        back. All ranks must call it.
        """
        with self._not_while_written():
            for name in json.loads(self._ranks.agree(self._whole)):
                stored = Stored(read_manifest(Path(name))["step"], Path(name))
                state = read_state(self._torch, stored, rank=self._ranks.rank, trust=self._trust)
                self._load(stored, state)
                if is_sound():
                    if self._ranks.is_first:
                        give_up_newer(self._folder, stored)
                    self._saved_step = stored.step
                    return stored.step
        return None

    def _whole(self) -> str:
        """All complete ones of this training, the newest first, as ranks tell each other."""
        if not self._is_ours:
            return "[]"
        return json.dumps([str(one.path) for one in complete(self._folder, self._tell_of_damage)])

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        found = newest_complete(self._folder, lambda _stored, _problem: None)
        return found.path if found is not None else None

    def parts(self) -> list[Any]:
        """What was handed over."""
        return list(self._parts.values())

    def _load(self, stored: Stored, state: dict[str, Any]) -> None:
        missing = sorted({*self._parts} - {*state})
        if missing:
            raise CallerMistake(
                f"{stored.path} has no {', '.join(missing)}",
                expected=f"what it has: {', '.join(sorted({*state} - {*_OURS}))}",
                remedy="hand over what was saved, by the same names",
            )
        for name, part in self._parts.items():
            part.load_state_dict(spread(self._torch, part, state[name]))
        for tell in self.loaded:
            tell()

    def _choose(self, which: str | Path) -> str:
        if which != "latest":
            return str(named(self._folder, which).path)
        found = newest_complete(self._folder, self._tell_of_damage)
        return str(found.path) if found is not None else ""

    def _insist_on_as_many_ranks(self, stored: Stored) -> None:
        had = read_manifest(stored.path).get("ranks", 1)
        if self.loader is not None and had != self._ranks.count and is_in_a_pass(stored):
            raise CallerMistake(
                f"{stored.path} was saved by {had} ranks in the middle of a pass over the data; "
                f"there are {self._ranks.count}",
                expected="as many ranks, so that each goes on where it was",
                remedy="resume with as many until the pass is over, or without the loader",
            )

    @contextlib.contextmanager
    def _not_while_written(self) -> Iterator[None]:
        """The process that wrote for a killed training may still be at it: what it writes is the newest."""
        self.wait()
        with at_work_in(self._folder) if self._ranks.is_first else contextlib.nullcontext():
            yield

    def _tell_of_damage(self, stored: Stored, problem: str) -> None:
        sys.stderr.write(f"flatout: {stored.path.name} cannot be used: {problem}\n")


def _tell_the_session(folder: Path) -> None:
    """Under `flatout run`, whoever watches from outside can see what was saved last."""
    if SESSION_VARIABLE in os.environ:
        from flatout.inside.armed import armed_session

        session = armed_session()
        if session is not None:
            session.facts["checkpoints"] = str(folder.resolve())


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
