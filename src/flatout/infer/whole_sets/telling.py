"""What tells one thing from another: functions by their code and what it refers to, modules by their parts.

Two things that would answer differently shall not look the same; and in another process, a thing shall look
as it did, so that no address and no order of a set counts.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import logging
import pathlib
import re
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

import torch

from flatout.infer.optimizing.optimized import Optimized
from flatout.infer.optimizing.state import EVERY_MODULES
from flatout.infer.whole_sets.checksums import checksum

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, slice),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, pathlib.PurePath, re.Pattern, enum.Enum),
)
_WRAPPERS = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel, Optimized)
# What every module has, and what is made of it for speed: neither says what it computes.
_EVERY_MODULES = EVERY_MODULES | {"_compiled_call_impl"}
_OURS = "_flatout"
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST = 40


def unwrapped(module: Any) -> Any:
    """The module inside of what makes it faster or puts it on several devices."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module


class Telling:
    """Takes in things, one after the other; `unknown` are those of which only the kind is known."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}
        self._depth = 0
        # In modules and libraries: what they hold beside weights and settings seldom changes an answer.
        self._forgives = 0
        self.unknown: list[str] = []

    def __str__(self) -> str:
        return self._digest.hexdigest()[:16]

    def add(self, value: Any) -> None:
        """Take in a thing, with all that it is made of."""
        if isinstance(value, _PLAIN):
            self._say(type(value).__qualname__, repr(value))
        elif id(value) in self._seen:
            self._say("again", self._seen[id(value)][0])
        elif self._depth > _DEEPEST:
            self._give_up(value)
        else:
            # With the thing itself: its address is its own only while it lives.
            self._seen[id(value)] = (len(self._seen), value)
            self._depth += 1
            self._say(type(value).__qualname__)
            self._add_one(value)
            self._depth -= 1

    def add_settings(self, module: torch.nn.Module) -> None:
        """A module's parts and what they hold beside weights."""
        self._say(_ADDRESS.sub("", repr(module)))
        self._forgives += 1
        for place, part in module.named_modules():
            self._say(place)
            if isinstance(part, torch.fx.GraphModule):
                self._say(part.code)
            for name, value in vars(part).items():
                if name not in _EVERY_MODULES and not name.startswith(_OURS):
                    self._say(name)
                    self.add(value)
        self._forgives -= 1

    def add_classes(self, module: torch.nn.Module) -> None:
        """The code of a module's parts."""
        self._forgives += 1
        for part in module.modules():
            self.add(type(part))
        self._forgives -= 1

    def add_weights(self, module: torch.nn.Module) -> None:
        """All numbers, also those that no checkpoint has."""
        for place, part in module.named_modules():
            for name, one in (*part._parameters.items(), *part._buffers.items()):  # noqa: SLF001
                self._say(place, name)
                if one is not None:
                    self._add_tensor(one)

    def _say(self, *words: Any) -> None:
        self._digest.update(repr(words).encode(errors="surrogatepass"))

    def _give_up(self, value: Any) -> None:
        name = type(value).__qualname__
        self._say(name)
        if not self._forgives:
            self.unknown.append(name)

    def _add_one(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._add_tensor(value)
        elif isinstance(value, _WRAPPERS):
            self.add(value.module)
        elif isinstance(value, torch.nn.Module):
            self.add_classes(value)
            self.add_settings(value)
            self.add_weights(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.add(key)
                self.add(item)
        elif isinstance(value, list | tuple):
            self._say(len(value))
            for item in value:
                self.add(item)
        elif isinstance(value, set | frozenset):
            self._say(sorted(self._apart(item) for item in value))
        elif not self._add_callable(value):
            self._add_object(value)

    def _apart(self, value: Any) -> str:
        other = Telling()
        other._forgives = self._forgives
        other.add(value)
        self.unknown.extend(other.unknown)
        return str(other)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        try:
            self._say(checksum(tensor))
        except (RuntimeError, NotImplementedError):  # of a kind that holds no memory
            self._say(tuple(tensor.shape))
            self._give_up(tensor)

    # Code

    def _add_callable(self, value: Any) -> bool:
        if isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self.add(value.__func__)
            self.add(value.__self__)
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, staticmethod | classmethod):
            self.add(value.__func__)
        elif isinstance(value, property):
            self.add((value.fget, value.fset))
        elif isinstance(value, functools.cached_property):
            self.add(value.func)
        elif isinstance(value, types.ModuleType | logging.Logger):
            self._say(value.__name__ if isinstance(value, types.ModuleType) else value.name)
        elif isinstance(value, types.BuiltinFunctionType):
            self._say(value.__qualname__)
            if not isinstance(value.__self__, types.ModuleType | None):
                self.add(value.__self__)
        elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
            self.add(value.__wrapped__)
        else:
            return False
        return True

    def _add_function(self, function: types.FunctionType) -> None:
        self._add_code(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # nothing was put into it yet
                self._say("empty")
        if _is_own(function.__code__.co_filename):
            known = function.__globals__
            for name in sorted(_globals_of(function.__code__) & known.keys()):
                self._say(name)
                self.add(known[name])

    def _add_code(self, code: types.CodeType) -> None:
        self._say(code.co_code, code.co_names)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:
                self.add(constant)

    def _add_class(self, kind: type) -> None:
        for one in kind.__mro__:
            if one is object or one.__module__.partition(".")[0] in ("torch", "builtins"):
                self._say(one.__module__, one.__qualname__)
                continue
            self._say(one.__qualname__)
            forgives, self._forgives = self._forgives, self._forgives + (not _is_own_class(one))
            for name, member in sorted(vars(one).items()):
                is_function = isinstance(member, types.FunctionType | staticmethod | classmethod | property)
                if is_function or (isinstance(member, _PLAIN) and not name.startswith("__")):
                    self._say(name)
                    self.add(member)
            self._forgives = forgives

    # Everything else

    def _add_object(self, value: Any) -> None:
        try:
            held = _held_by(value)
        except Exception:  # noqa: BLE001 - it is the caller's, and may say no in any way
            held = None
        if held is None:
            self._give_up(value)
            return
        self.add(type(value))
        self.add(held)


def _held_by(value: Any) -> Any:
    """What an object is made of; None where nobody knows."""
    if callable(getattr(value, "tobytes", None)):  # arrays, pictures
        said = [str(getattr(value, name, None)) for name in ("dtype", "shape", "mode", "size")]
        if said[0] == "object":
            return [said, value.tolist()]
        return [said, hashlib.sha256(value.tobytes()).hexdigest()]
    if callable(getattr(value, "to_dict", None)):  # settings, as transformers has them
        return value.to_dict()
    is_record = dataclasses.is_dataclass(value) or isinstance(value, types.SimpleNamespace)
    is_known = is_record or type(value).__name__ == "Namespace" or _is_own_class(type(value))
    return vars(value) if is_known and hasattr(value, "__dict__") else None


def _is_own_class(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ == "__main__" or _is_own(getattr(module, "__file__", None) or "")


@functools.cache
def _is_own(file: str) -> bool:
    """Whether the caller wrote it: what libraries refer to is theirs, and changes with their state."""
    if not file or file.startswith("<frozen"):
        return False
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    parts = pathlib.PurePath(file).parts
    inside = any(pathlib.PurePath(file).is_relative_to(one) for one in libraries if one)
    return not inside and "site-packages" not in parts and "dist-packages" not in parts


def _globals_of(code: types.CodeType) -> set[str]:
    names = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    nested = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return names.union(*(_globals_of(one) for one in nested))
