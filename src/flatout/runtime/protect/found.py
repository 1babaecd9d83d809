"""What a training consists of, found where the script keeps it: in variables of the functions under way.

Everything gets the name of the way to it (`train.py:main.trainer.model`), by which it is found again in
another life of the script, at the same place of its loop. What lies beyond the limits of the search is named.
"""

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from flatout.levers.places import locals_of
from flatout.runtime.protect.insides import PLAIN, SEQUENCES, inner, within
from flatout.runtime.protect.long_lists import LONG, Parameters, is_state, is_worth_a_look, was_made_here

# How far into objects, and at how many of them, is looked.
_DEEPEST = 6
_MOST = 200_000
# What lies beyond that is named: at so much of each is looked to know, and so many names are enough.
_MOST_LOOKED_AT, _MOST_NAMES = 256, 20
# A larger tensor that nobody has written to since it was made will be made again.
_SMALL = 1 << 20


class Found:
    """By name: modules, what has a state of its own, generators of random numbers, and other tensors."""

    def __init__(self) -> None:
        self.modules: dict[str, Any] = {}
        self.stateful: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}


class OutOfReach:
    """What no limit of the search lets in. Its state is not plain: it is told of as what is not saved."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing that can be saved."""
        return {"self": self}


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
    return _is_of_a_script(torch, frame.f_code.co_filename)


def _is_of_a_script(torch: Any, name: str) -> bool:
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
        # Lists of which the models must tell whether they are more than data.
        self._long: list[tuple[Any, str, int]] = []
        self._out_of_reach: dict[str, Any] = {}
        self._is_full = False

    def names(self, variables: dict[str, Any], prefix: str) -> None:
        if id(variables) in self._seen:
            return
        self._seen[id(variables)] = variables
        for name, value in list(variables.items()):
            if not name.startswith("__"):
                self._look(value, f"{prefix}.{name}", 0)

    def _look(self, value: Any, path: str, depth: int) -> None:
        kind = type(value)
        if kind in PLAIN or isinstance(value, ModuleType | type) or id(value) in self._seen:
            return
        if len(self._seen) >= _MOST:
            if not self._is_full:
                self._out_of_reach[f"{path} and what comes after it"] = None
            self._is_full = True
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
        if isinstance(value, FunctionType) and not _is_of_a_script(torch, value.__code__.co_filename):
            return
        if depth >= _DEEPEST:
            self._out_of_reach[path] = self._seen.pop(id(value))  # there may be a shorter way
        elif isinstance(value, set | frozenset):  # has no order
            self._out_of_reach[path] = value
        elif isinstance(value, SEQUENCES) and len(value) > LONG:
            self._long.append((value, path, depth))
        else:
            self._look_into(value, path, depth + 1)

    def _look_into(self, value: Any, path: str, depth: int) -> None:
        for name, one in inner(value):
            self._look(one, f"{path}{name}", depth)

    def _look_beside(self, root: Any, path: str, depth: int) -> None:
        """What modules hold beside parameters and buffers: sums of a metric, losses of an epoch.

        What has a state of another kind is looked into where its state is numbers alone, as that of a loop.
        """
        if not isinstance(root, self._torch.nn.Module):
            if not _holds(self._torch.Tensor, root.state_dict()):
                self._look_into(root, path, depth)
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
        while self._to_look_beside or self._long:
            while self._to_look_beside:
                one, path, depth = self._to_look_beside.pop(0)
                if depth <= _DEEPEST:
                    self._look_beside(one, path, depth)
            self._look_into_long_lists()
        parts = {id(part) for one in found.modules.values() for part in list(one.modules())[1:]}
        found.modules = {path: one for path, one in found.modules.items() if id(one) not in parts}
        held = {
            id(tensor) for one in found.modules.values() for tensor in (*one.parameters(), *one.buffers())
        }
        found.tensors = {
            path: one for path, one in found.tensors.items() if id(one) not in held and _is_worth(one)
        }
        known = {
            *held,
            *parts,
            *(id(one) for kind in vars(found).values() for one in kind.values()),
        }
        self._name_what_is_out_of_reach(known)
        return found

    def _name_what_is_out_of_reach(self, known: set[int]) -> None:
        missed = [
            path for path, one in self._out_of_reach.items() if one is None or self._holds_more(one, known)
        ]
        for path in missed[:_MOST_NAMES]:
            self._found.stateful[path] = OutOfReach()
        if len(missed) > _MOST_NAMES:
            self._found.stateful[f"{len(missed) - _MOST_NAMES} more"] = OutOfReach()

    def _look_into_long_lists(self) -> None:
        parameters = Parameters(self._found.modules.values()) if self._long else None
        lists, self._long = self._long, []
        for value, path, depth in lists:
            assert parameters is not None
            if is_worth_a_look(self._torch, value, parameters):
                self._look_into(value, path, depth + 1)
            elif is_state(self._torch, value, path):
                self._out_of_reach[path] = value

    def _holds_more(self, value: Any, known: set[int]) -> bool:
        """Whether something lies in it that is found nowhere else, and that would have been saved."""
        torch = self._torch
        kinds = (torch.Tensor, torch.nn.Module, torch.Generator)
        data = torch.utils.data
        of_loaders = (data.DataLoader, data.Dataset, data.Sampler)
        return any(
            id(one) not in known and (not isinstance(one, torch.Tensor) or _is_worth(one))
            for one in within(kinds, value, _MOST_LOOKED_AT, but=of_loaders)
        )


def _holds(kind: type, state: Any) -> bool:
    if isinstance(state, dict):
        return any(_holds(kind, one) for one in state.values())
    if isinstance(state, list | tuple):
        return any(_holds(kind, one) for one in state)
    return isinstance(state, kind)


def _is_worth(tensor: Any) -> bool:
    return was_made_here(tensor) or _size(tensor) <= _SMALL


def _size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())
