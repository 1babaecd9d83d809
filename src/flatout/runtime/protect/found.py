"""What a training consists of, found where the script keeps it: in variables of the functions under way.

Everything gets the name of the way to it (`train.py:main.trainer.model`), by which it is found again in
another life of the script, at the same place of its loop.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from flatout.levers.places import locals_of

# How far into objects, and at how many of them, is looked.
_DEEPEST = 6
_MOST = 200_000
# A larger tensor that nobody has written to since it was made will be made again.
_SMALL = 1 << 20
# Longer lists are data, or a history; but one of so many small tensors is what an epoch has come to.
_LONG, _LONGEST = 256, 4096
_TINY = 16


class Found:
    """By name: modules, what has a state of its own, generators of random numbers, and other tensors."""

    def __init__(self) -> None:
        self.modules: dict[str, Any] = {}
        self.stateful: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}


def look_around(torch: Any, frame: FrameType | None) -> Found:
    """From the functions that are under way, the outermost first."""
    walk = _Walk(torch)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    seen: dict[str, int] = {}
    for one in reversed(frames):
        if not is_a_script(torch, one):
            continue
        name = f"{Path(one.f_code.co_filename).name}:{one.f_code.co_name}"
        seen[name] = count = seen.get(name, 0) + 1
        name = name if count == 1 else f"{name}#{count}"
        if one.f_code.co_name != "<module>":
            walk.names(locals_of(one), name)
        walk.names(one.f_globals, Path(one.f_code.co_filename).name)
    return walk.done()


_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
OWN_FILES = f"{Path(__file__).parents[2]}{os.sep}"


def is_a_script(torch: Any, frame: FrameType) -> bool:
    """Not torch, not the standard library, not us."""
    name = frame.f_code.co_filename
    if name.startswith(("<", str(Path(torch.__file__).parent), OWN_FILES)):
        return False
    return "site-packages" in name or not name.startswith(_STANDARD)


class _Walk:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._found = Found()
        # Kept alive: an id is one only as long as its object lives.
        self._seen: dict[int, Any] = {}
        self._numpy: Any = sys.modules.get("numpy.random")
        self._of_every_module = set(vars(torch.nn.Module()))
        # What keeps a state, the ways there and how far they are.
        self._to_look_beside: list[tuple[Any, str, int]] = []

    def names(self, variables: dict[str, Any], prefix: str) -> None:
        if id(variables) in self._seen:
            return
        self._seen[id(variables)] = variables
        for name, value in list(variables.items()):
            if not name.startswith("__"):
                self._look(value, f"{prefix}.{name}", 0)

    def _look(self, value: Any, path: str, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN or isinstance(value, ModuleType | type) or id(value) in self._seen:
            return
        if len(self._seen) >= _MOST:
            return
        self._seen[id(value)] = value
        torch, found = self._torch, self._found
        if isinstance(value, torch.nn.Module):
            found.modules[path] = value
            self._to_look_beside.append((value, path, depth + 1))
            return
        if isinstance(value, torch.Tensor):
            found.tensors[path] = value
            return
        if isinstance(value, torch.Generator) or self._is_a_generator(value):
            found.generators[path] = value
            return
        if isinstance(value, torch.utils.data.DataLoader | torch.utils.data.Dataset):
            return  # a loader is followed by itself, and data is made again
        if callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None)):
            found.stateful[path] = value
            if not kind.__module__.startswith("torch."):
                self._to_look_beside.append((value, path, depth + 1))
            return
        if depth < _DEEPEST:
            for name, inner in _inner(value):
                self._look(inner, f"{path}{name}", depth + 1)

    def _look_beside(self, root: Any, path: str, depth: int) -> None:
        """What modules hold beside parameters and buffers: sums of a metric, losses of an epoch.

        What has a state of another kind is looked into where its state is numbers alone, as that of a loop.
        """
        if not isinstance(root, self._torch.nn.Module):
            if not _holds(self._torch.Tensor, root.state_dict()):
                for name, inner in _inner(root):
                    self._look(inner, f"{path}{name}", depth)
            return
        for name, module in root.named_modules():
            way = f"{path}.{name}" if name else path
            for own, value in list(vars(module).items()):
                if own not in self._of_every_module:
                    self._look(value, f"{way}.{own}", depth)

    def _is_a_generator(self, value: Any) -> bool:
        import random

        if isinstance(value, random.Random):
            return True
        numpy = self._numpy
        return numpy is not None and isinstance(value, numpy.Generator | numpy.RandomState)

    def done(self) -> Found:
        found = self._found
        while self._to_look_beside:
            one, path, depth = self._to_look_beside.pop(0)
            if depth <= _DEEPEST:
                self._look_beside(one, path, depth)
        parts = {id(part) for one in found.modules.values() for part in list(one.modules())[1:]}
        found.modules = {path: one for path, one in found.modules.items() if id(one) not in parts}
        held = {
            id(tensor) for one in found.modules.values() for tensor in (*one.parameters(), *one.buffers())
        }
        found.tensors = {
            path: one
            for path, one in found.tensors.items()
            if id(one) not in held and (_was_written(one) or one.grad_fn is not None or _size(one) <= _SMALL)
        }
        return found


_PLAIN = (int, float, bool, str, bytes, type(None), complex)


def _holds(kind: type, state: Any) -> bool:
    if isinstance(state, dict):
        return any(_holds(kind, one) for one in state.values())
    if isinstance(state, list | tuple):
        return any(_holds(kind, one) for one in state)
    return isinstance(state, kind)


def _was_written(tensor: Any) -> bool:
    return bool(tensor.is_inference() or tensor._version)  # noqa: SLF001


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_of_small_tensors(value: Any) -> bool:
    last = value[-1]
    has_elements = callable(getattr(last, "numel", None)) and hasattr(last, "grad_fn")
    return len(value) <= _LONGEST and has_elements and last.numel() <= _TINY


def _inner(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in list(value.items()):
            if isinstance(key, str | int):
                yield f"[{key!r}]", one
    elif isinstance(value, list | tuple):
        if len(value) > _LONG and not _is_of_small_tensors(value):
            return
        for at, one in enumerate(value):
            yield f"[{at}]", one
    else:
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            for name, one in list(own.items()):
                yield f".{name}", one
