"""Steps under torch's profiler, at the end of a trial: kernels alone, then with shapes, memory and stacks.

A profiler slows the steps that it records, the more the closer it looks. So nothing is timed inside, and what
the device did is taken from the recording that looks least. The first step of each is a warm-up, and not
marked as a step. Python's stacks are recorded only where they are asked for: following every call costs most.
"""

import contextlib
import functools
import gzip
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.inside.module_marks import ModuleMarks
from flatout.inside.tap import Patch, undo_all
from flatout.records.session import DETAILS_FILE, RECORDING_FILE, TRACE_FILE

if TYPE_CHECKING:
    from flatout.inside.session import Session

_WARM_UP = 1
_STEPS, _STEPS_IN_DETAIL = 3, 2
# Steps that take longer than this are recorded once.
_SLOW_S = 3.0
_CHUNK = 1 << 20


def is_profiling(torch: Any) -> bool:
    """Whether a profiler records now: there can be one at a time."""
    return bool(torch.autograd._profiler_enabled())  # noqa: SLF001


def start_quietly(torch: Any, profiler: Any) -> None:
    """Start a profiler of ours without the warning that torch up to 2.12 has for the first one.

    The script did not ask for it: where it makes errors of warnings, it would be the one to end. Filters of
    warnings stay as they are, for changing them makes Python forget which it has shown.
    """
    module = torch.profiler.profiler
    quiet = [Patch(module, "_warn_once", lambda *_, **__: None)] if hasattr(module, "_warn_once") else []
    try:
        profiler.start()
    finally:
        undo_all(quiet)


class Window:
    """One recording."""

    def __init__(self, session: "Session", *, details: bool, name: str = "") -> None:
        self._session = session
        self._details = details
        self._file = name or (DETAILS_FILE if details else TRACE_FILE)
        self._profiler: Any = None
        self._mark: Any = None
        self._patches: list[Patch] = []
        self._marks = ModuleMarks(session)
        self._passed = 0
        self.name = "details" if details else "trace"
        self.steps = 0
        self.path: Path | None = None

    @property
    def is_over(self) -> bool:
        """Whether all of its steps have passed."""
        return self._passed >= self.steps

    def begin(self) -> None:
        """Record from here on; raises where nothing can be recorded."""
        torch = self._session.torch
        if is_profiling(torch):
            raise RuntimeError("the script profiles itself, and there can be one profiler at a time")
        steps = _STEPS_IN_DETAIL if self._details else _STEPS
        self.steps = _WARM_UP + (1 if self._session.ending.step_s() > _SLOW_S else steps)
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, *([kinds.CUDA] if self._session.on_gpu else [])]
        self._profiler = torch.profiler.profile(
            activities=activities,
            with_stack=self._details and self._session.order.record == "stacks",
            record_shapes=self._details,
            profile_memory=self._details,
        )
        (self._session.folder() / RECORDING_FILE).touch()
        try:
            start_quietly(torch, self._profiler)
        except BaseException:
            self.abandon()
            raise
        self._make_way()
        if self._details:
            self._marks.begin(self._session.roots())

    def _make_way(self) -> None:
        """There can be one profiler at a time: if the script starts one of its own, ours ends first."""
        kind, ours = self._session.torch.profiler.profile.__mro__[1], self._profiler

        def making_way(real: Any) -> Any:
            @functools.wraps(real)
            def starting(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                if profiler is not ours:
                    self.abandon()
                return real(profiler, *args, **kwargs)

            return starting

        for name in ("prepare_trace", "start_trace"):
            self._patches.append(Patch(kind, name, making_way(getattr(kind, name))))

    def step(self) -> None:
        """A step boundary inside the window."""
        self._passed += 1
        self._end_mark()
        if self._profiler is not None and _WARM_UP <= self._passed < self.steps:
            number = self._passed - _WARM_UP
            self._mark = self._session.torch.profiler.record_function(f"ProfilerStep#{number}")
            self._mark.__enter__()
            if self._session.records is not None:
                self._session.records.add(-1)

    def end(self) -> None:
        """Stop, and write the file."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._marks.end()
        self._end_mark()
        undo_all(self._patches)
        if self._session.on_gpu:
            # What the last step launched must end inside: a kernel that is cut off counts nowhere.
            self._session.torch.cuda.synchronize(self._session.device)
        folder = self._session.folder()
        try:
            profiler.stop()
            name = self._file.format(rank=self._session.rank_and_world_size()[0])
            part = folder / f"writing-{name}"
            plain = part.with_suffix("")
            profiler.export_chrome_trace(str(plain))
            _packed(plain, part)
            self.path = part.rename(folder / name)
        finally:
            (folder / RECORDING_FILE).unlink(missing_ok=True)

    def abandon(self) -> None:
        """The script raised: leave no profiler behind."""
        profiler, self._profiler = self._profiler, None
        with contextlib.suppress(Exception):
            undo_all(self._patches)
            self._marks.end()
            self._end_mark()
        with contextlib.suppress(Exception):
            if profiler is not None:
                profiler.stop()
        with contextlib.suppress(Exception):
            (self._session.folder() / RECORDING_FILE).unlink(missing_ok=True)

    def _end_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            if self._session.records is not None:
                self._session.records.add(+1)
            mark.__exit__(None, None, None)


def _packed(plain: Path, packed: Path) -> None:
    """torch packs what it writes line by line, as tightly as it goes: twenty times slower than this."""
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as target:
        shutil.copyfileobj(source, target, _CHUNK)
    plain.unlink()
