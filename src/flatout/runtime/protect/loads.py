"""What a script loads: one that finds its own checkpoint needs nobody to bring it back."""

import functools
import os
from collections.abc import Callable
from typing import Any

from flatout.inside.imports import after_import
from flatout.inside.tap import Patch, unseen

_LOADING = (("torch", "load"), ("safetensors.torch", "load_file"))


class Loads:
    """Files from which tensors were loaded."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.seen: list[str] = []
        self._then: list[str] | None = None
        self._on_strange: Callable[[str], None] = lambda _path: None

    def install(self, then: list[str] | None, on_strange: Callable[[str], None]) -> None:
        """Begin to look; `on_strange` is told of what was not loaded in an earlier life."""
        self._then, self._on_strange = then, on_strange
        for module, name in _LOADING:
            after_import(module, functools.partial(self._watch, name))

    def _watch(self, name: str, module: Any) -> None:
        real = getattr(module, name, None)
        if real is None:
            return
        loads = self

        @functools.wraps(real)
        def load(file: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, str | os.PathLike):
                path = os.path.abspath(os.fspath(file))  # noqa: PTH100 - links are followed by whoever opens
                if loads._then is not None and path not in loads._then:
                    loads._then = None
                    loads._on_strange(path)
                loads.seen.append(path)
            return real(file, *args, **kwargs)

        Patch(module, name, unseen(load))
