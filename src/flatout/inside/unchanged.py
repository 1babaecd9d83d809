"""Whether a data set is still what its workers were given: a checksum of all that it holds.

The checksum is of its pickle, made and thrown away piece by piece. The script's own functions count with what
they close over and the globals that they name, its classes with what they hold: workers have their own copies
of these, too. What cannot be pickled is followed where it has parts, and else told by its identity: nobody
sees into an open file. Where a look would take longer than starting workers anew does, there is none, and
nothing is known.
"""

import hashlib
import pickle
import sys
import time
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from flatout.levers.places import is_users_file

_MOST_S = 0.25
_MOST_BYTES = 256 << 20
_PROTOCOL = 5
# Of a type that Python code has made.
_HEAP_TYPE = 1 << 9
_BY_IDENTITY = (type, ModuleType, BuiltinFunctionType)


def checksum_of(*parts: Any) -> bytes | None:
    """The same as long as nothing in them changes; None where that cannot be told in a short time."""
    sink = _Sink()
    try:
        _Pickler(sink).dump(parts)
    except Exception:  # noqa: BLE001 - objects may do anything when they are looked at
        return None
    return sink.digest()


class _TooMuch(Exception):
    """It takes too long to look at."""


class _Sink:
    """Takes bytes and keeps their checksum."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._bytes = 0
        self._deadline = time.perf_counter() + _MOST_S

    def write(self, data: Any) -> int:
        size = len(data)
        self._bytes += size
        if self._bytes > _MOST_BYTES or time.perf_counter() > self._deadline:
            raise _TooMuch
        self._hash.update(data)
        return size

    def make_room(self, size: int) -> None:
        """Raise where so many bytes more would be too many, before they are made."""
        if self._bytes + size > _MOST_BYTES:
            raise _TooMuch

    def digest(self) -> bytes:
        return self._hash.digest()


class _Pickler(pickle.Pickler):
    def __init__(self, sink: _Sink) -> None:
        super().__init__(sink, _PROTOCOL, buffer_callback=lambda buffer: bool(sink.write(buffer.raw()) < 0))
        self._sink = sink

    def reducer_override(self, obj: Any) -> Any:
        if obj is _same:
            return NotImplemented
        if isinstance(obj, type) and _is_users(obj.__module__):
            return _same, (id(obj),), (obj.__bases__, _held_by_class(obj))
        if isinstance(obj, _BY_IDENTITY):
            return _same, (id(obj),)
        if isinstance(obj, FunctionType):
            cells = [_contents(cell) for cell in obj.__closure__ or ()]
            held = (obj.__defaults__, obj.__kwdefaults__, cells, _globals_of(obj), vars(obj))
            return _same, (id(obj.__code__),), held
        if isinstance(obj, property):
            return _same, (id(obj),), (obj.fget, obj.fset)
        if isinstance(obj, MethodType | staticmethod | classmethod):
            return _same, (), (obj.__func__, getattr(obj, "__self__", None))
        wrapped = getattr(obj, "__dict__", {}).get("__wrapped__")
        if callable(wrapped):  # a cache around a function of the script's, say
            return _same, (id(obj),), (wrapped,)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            return _same, self._of_tensor(torch, obj)
        if torch is not None and isinstance(obj, torch.Generator):
            return _same, (bytes(obj.get_state().tolist()),)
        if _is_on_disk(obj):
            return _same, (id(obj), obj.shape)
        return self._of_object(obj)

    def _of_tensor(self, torch: Any, tensor: Any) -> tuple[Any, ...]:
        known = (tensor._version, tuple(tensor.shape), str(tensor.dtype))  # noqa: SLF001
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return (*known, id(tensor))
        self._sink.make_room(tensor.numel() * tensor.element_size())
        self._sink.write(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
        return known

    def _of_object(self, obj: Any) -> Any:
        kind = type(obj)
        if _is_plain(kind):
            return _same, (kind,), _all_of(obj)  # whatever it would hide of itself
        try:
            return obj.__reduce_ex__(_PROTOCOL)
        except Exception:  # noqa: BLE001 - a lock, a file, a connection
            return _same, (id(obj),), _all_of(obj)


def _same(*_parts: Any) -> None:
    """Stands for an object in a pickle that nobody reads."""


def _is_plain(kind: Any) -> bool:
    """Whether all that its objects hold are attributes, and it has no word of its own on how to save them."""
    if not all(one.__flags__ & _HEAP_TYPE for one in kind.__mro__[:-1]):
        return False
    return kind.__reduce_ex__ is object.__reduce_ex__ and bool(kind.__reduce__ is object.__reduce__)


def _all_of(obj: Any) -> dict[str, Any]:
    slots = [name for kind in type(obj).__mro__ for name in vars(kind).get("__slots__", ())]
    held = {name: getattr(obj, name, None) for name in slots if not name.startswith("__")}
    return {**getattr(obj, "__dict__", {}), **held}


def _is_users(module: str | None) -> bool:
    """Whether a module is the script's own."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return isinstance(file, str) and is_users_file(file)


def _held_by_class(kind: type) -> dict[str, Any]:
    """Its methods and values, without what Python makes for every class."""
    return {
        name: value
        for name, value in vars(kind).items()
        if isinstance(value, FunctionType) or not name.startswith("__")
    }


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """What a function of the script's names outside of itself, also in modules of the script's.

    Modules that it imports when it is called count, as do those within others (`project.settings.SIZE`).
    """
    if not is_users_file(function.__code__.co_filename):
        return {}
    names = set(_names_in(function.__code__))
    found = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    to_see, seen = [*found.values(), *_imported_by(function, names)], set()
    for module in to_see:
        if not isinstance(module, ModuleType) or module.__name__ in seen or not _is_users(module.__name__):
            continue
        seen.add(module.__name__)
        inside = {name: vars(module)[name] for name in sorted(names & vars(module).keys())}
        found |= {f"{module.__name__}.{name}": value for name, value in inside.items()}
        to_see += inside.values()
    return found


def _imported_by(function: FunctionType, names: set[str]) -> list[Any]:
    """Modules that its own import statements may mean, by their whole names or beside its own module."""
    package = str(function.__globals__.get("__package__") or "")
    around = [package.rsplit(".", up)[0] for up in range(package.count(".") + 1)] if package else []
    meant = (f"{place}.{name}" if place else name for name in sorted(names) for place in ("", *around))
    return [sys.modules[name] for name in meant if name in sys.modules]


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _is_on_disk(obj: Any) -> bool:
    """An array in a file: workers see what changes there, and it may be larger than memory."""
    return any(
        kind.__module__.startswith("numpy") and kind.__name__ == "memmap" for kind in type(obj).__mro__
    )
