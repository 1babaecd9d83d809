"""Counting without the compiler, which hides operators: it is off meanwhile, and looks into no count.

A job that has not loaded it does not load it for this: that would take as long as loading torch.
"""

# ruff: noqa: SLF001 - the compiler's settings have no public names in torch

import contextlib
import functools
import importlib
from collections.abc import Iterator
from typing import Any

from flatout.inside.imports import after_import
from flatout.inside.tap import Patch


class CompilerOff:
    """Runs compiled code eagerly, since within a compiled graph operators do not come by.

    All but torch's own use of the compiler, to find what the functions given to a higher-order operator
    capture: without it, `torch.cond` and FlexAttention would lose the gradients of those.
    """

    def __init__(self, torch: Any) -> None:
        within: Any = importlib.import_module("torch._higher_order_ops.utils")
        self._torch = torch
        self._ours: Any = None
        self._ended = False
        after_import("torch._dynamo", self._begin)
        self._patch: Patch | None = None
        if hasattr(within, "_set_compilation_env"):
            self._patch = Patch(within, "_set_compilation_env", self._as_found(within._set_compilation_env))

    def end(self) -> None:
        """Take the stance that was found, unless the user has taken another since: that one stays."""
        self._ended = True
        if self._patch is not None:
            self._patch.undo()
        if self._ours is not None:
            probe = self._torch.compiler.set_stance("default")
            (self._ours if probe.prev is self._ours.stance else probe).__exit__(None, None, None)

    def _begin(self, _dynamo: Any) -> None:
        """At once, or when the job loads the compiler while we count."""
        if not self._ended:
            self._ours = self._torch.compiler.set_stance("force_eager")

    def _as_found(self, real: Any) -> Any:
        @functools.wraps(real)
        @contextlib.contextmanager
        def as_found(*args: Any, **kwargs: Any) -> Iterator[None]:
            ours = self._ours
            if ours is None:  # whoever comes by here without the compiler has no use for it
                with real(*args, **kwargs):
                    yield
                return
            ours.__exit__(None, None, None)
            try:
                with real(*args, **kwargs):
                    yield
            finally:
                ours.__enter__()

        return as_found


def hide_from_the_compiler(mode_type: Any) -> None:
    """Once it is there: torch hides every mode's dispatch, and loads the compiler for that at once."""
    hidden = mode_type.__torch_dispatch__
    plain = getattr(hidden, "__wrapped__", None)
    if plain is not None:
        mode_type.__torch_dispatch__ = plain
        after_import("torch._dynamo", lambda _dynamo: setattr(mode_type, "__torch_dispatch__", hidden))
