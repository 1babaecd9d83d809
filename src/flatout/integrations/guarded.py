"""Hooks of ours in other people's trainers: what goes wrong in one is told once, and reaches nobody."""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def tell(text: str) -> None:
    """A line for whoever reads the training's output."""
    # It may be closed, full, or not there at all (pythonw, some notebooks): training goes on all the same.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"flatout: {text}\n")


def guarded(hook: F) -> F:
    """The hook, turned off for its object by its first error. A stop that was asked for is no error."""
    name = hook.__name__

    @functools.wraps(hook)
    def calm(self: Any, *args: Any, **kwargs: Any) -> Any:
        broken: set[str] = self.__dict__.setdefault("_broken_hooks", set())
        if name in broken:
            return None
        try:
            return hook(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - training goes on, whatever becomes of us
            broken.add(name)
            tell(f"{type(self).__name__}.{name} failed, and is off: {type(error).__name__}: {error}")
            return None

    return cast(F, calm)
