"""Where nothing trains, a step is a call: the outermost of the largest model, or one whole `generate`.

Which model leads is known when one of them comes around again: until then ends of calls are held, so that a
pipeline of several counts as one step.
"""

import functools
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, clock, undo_all, unseen
from flatout.levers.places import locals_of

if TYPE_CHECKING:
    from flatout.inside.session import Session


class CallsTap:
    """Tells the session of each call of the leading model that has ended."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._patched: set[type] = set()
        # Of each model, when its first call ended, until it is known who leads; and how large it is.
        self._held: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._lead: int | None = None
        # Models whose calls come from their own `generate`: that is the step.
        self._generating: set[int] = set()
        self._inside = 0

    def install(self) -> None:
        """Nothing yet: models are seen when they are called."""

    def remove(self) -> None:
        """Leave `generate` as it was found."""
        undo_all(self._patches)

    def begins(self, module: Any) -> None:
        """A model is called for the first time."""
        self._sizes[id(module)] = sum(int(parameter.numel()) for parameter in module.parameters())
        kind = type(module)
        if callable(getattr(kind, "generate", None)) and kind not in self._patched:
            self._patched.add(kind)
            self._patches.append(Patch(kind, "generate", self._watched(kind.generate)))
            if _is_called_by_generate(module):  # the one that is under way is not seen to end
                self._generating.add(id(module))

    def ended(self, module: Any, now: int) -> None:
        """A call of a model has ended."""
        if not self._inside and id(module) not in self._generating:
            self._step(id(module), now)

    def _step(self, key: int, now: int) -> None:
        session = self._session
        if key == self._lead:
            if session.watching:
                session.close_step(now)
            else:
                session.close_unwatched(now)
        elif self._lead is None and self._sizes.get(key):
            if key not in self._held:
                self._held[key] = now
                return
            self._lead = max(self._held, key=lambda one: self._sizes[one])
            first, self._held = self._held[self._lead], {}
            session.close_step(first, late=True)
            if key == self._lead:
                session.close_step(now)

    def flush(self) -> None:
        """The process ends before any model came around again: what is held is a step."""
        if self._lead is None and self._held:
            self._lead = max(self._held, key=lambda one: self._sizes[one])
            self._session.close_step(self._held[self._lead], late=True)

    def _watched(self, real: Any) -> Any:
        tap = self

        @functools.wraps(real)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            tap._sizes.setdefault(id(model), 1)
            tap._inside += 1
            try:
                result = real(model, *args, **kwargs)
            finally:
                tap._inside -= 1
            if not tap._inside:
                tap._session.guarded("calls", tap._step, id(model), clock())
            return result

        return unseen(generate)


def _is_called_by_generate(module: Any) -> bool:
    """Whether the call that is under way comes from the model's own `generate`."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if frame.f_code.co_name == "generate" and locals_of(frame).get("self") is module:
            return True
        frame = frame.f_back
    return False
