"""What an object calls the objects that it refers to: a global, an attribute, a closure's variable.

Nothing of the script's is called: no property, no comparison, no `repr`. Only places that Python itself fills
are looked at, and what is there is compared by identity.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any

from flatout.inside.retaining.variables import Name, lines_of, variable, variables
from flatout.records.memory_growth import HolderKind

# A name, and the address of what it stands for.
Given = Iterator[tuple[Name, int]]
# Where a module keeps its buffers, its parameters and its parts; the source knows them as attributes.
_MODULES_OWN = ("_buffers", "_parameters", "_modules")
_CACHE = type(functools.lru_cache(lambda: None))


@dataclasses.dataclass(frozen=True)
class Below:
    """What lies below an object on the ways up to it, by address."""

    # Everything on these ways.
    known: Collection[int]
    # Of a dict: the key of what it holds, and the address of that.
    keys: dict[int, tuple[str, int]]


def names_given(holder: Any, children: Collection[int], below: Below) -> Given:
    """What `holder` calls some of its referents, or what lies below them; nothing where it has no names."""
    kind = type(holder)
    if issubclass(kind, dict) and is_namespace(holder):
        file = str(holder.get("__file__") or "")
        for key, address in entries(holder, children):
            yield Name(key, "global", "", file), address
        return
    for known, named in _BY_KIND:
        if issubclass(kind, known):
            yield from named(holder, children, below)
            return
    if not issubclass(kind, _CONTAINERS):
        yield from _of_object(holder, children, below)


def is_namespace(one: dict[Any, Any]) -> bool:
    """Whether a dict holds the globals of a module."""
    return "__builtins__" in one and type(one.get("__name__")) is str


def entries(one: dict[Any, Any], children: Collection[int]) -> list[tuple[str, int]]:
    """The keys that are text under which a dict holds some objects."""
    return [
        (key, id(value)) for key, value in list(one.items()) if id(value) in children and type(key) is str
    ]


def _of_frame(frame: FrameType | None, children: Collection[int], _below: Below) -> Given:
    """One that nobody runs now: of an exception that is kept, or of a generator."""
    for name, address in variables(frame) if frame is not None else ():
        if frame is not None and address in children:
            yield variable(name, frame.f_code), address


def _of_generator(generator: Any, children: Collection[int], below: Below) -> Given:
    for name in ("gi_frame", "cr_frame", "ag_frame"):
        yield from _of_frame(getattr(generator, name, None), children, below)


def _of_function(function: FunctionType, _children: Collection[int], below: Below) -> Given:
    code = function.__code__
    scope = f"{code.co_qualname}()"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        if id(cell) in below.known:
            held = next((address for address in map(id, _contents(cell)) if address in below.known), None)
            if held is not None:  # the variable is that of a function around this one
                yield Name(name, "closure", scope, code.co_filename), held
    arguments = code.co_varnames[: code.co_argcount]
    for name, value in zip(reversed(arguments), reversed(function.__defaults__ or ()), strict=False):
        if id(value) in below.known:
            yield Name(name, "default argument", scope, code.co_filename, lines_of(code)), id(value)


def _contents(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # an empty one
        return ()


def _of_cache(cache: Any, _children: Collection[int], _below: Below) -> Given:
    code = getattr(cache.__wrapped__, "__code__", None)
    if code is not None:
        yield Name(f"{code.co_qualname}()", "cache", "", code.co_filename, lines_of(code)), id(cache)


def _of_class(kind: type, children: Collection[int], below: Below) -> Given:
    for address in children:
        if address in below.keys:
            key, held = below.keys[address]
            yield _attribute(key, kind, "class attribute"), held


def _of_object(holder: Any, children: Collection[int], below: Below) -> Given:
    kind = type(holder)
    try:
        space = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        space = None
    if type(space) is dict:
        held = entries(space, children)
        if id(space) in children and id(space) in below.keys:
            held.append(below.keys[id(space)])
        for name, address in held:
            known_as, value = below.keys.get(address, ("", 0)) if name in _MODULES_OWN else ("", 0)
            yield _attribute(known_as or name, kind), value or address
    yield from _in_slots(holder, children)


def _in_slots(holder: Any, children: Collection[int]) -> Given:
    kind = type(holder)
    for base in kind.__mro__:
        for name, member in list(vars(base).items()):
            if inspect.ismemberdescriptor(member):
                try:
                    address = id(member.__get__(holder, kind))
                except AttributeError:  # an empty one
                    continue
                if address in children:
                    yield _attribute(name, kind), address


def _attribute(name: str, kind: type, how: HolderKind = "attribute") -> Name:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Name(f"{kind.__qualname__}.{name}", how, kind.__qualname__, file or "")


# What has names of another kind than attributes.
_BY_KIND: tuple[tuple[type, Callable[[Any, Collection[int], Below], Given]], ...] = (
    (FrameType, _of_frame),
    (GeneratorType, _of_generator),
    (CoroutineType, _of_generator),
    (AsyncGeneratorType, _of_generator),
    (FunctionType, _of_function),
    (_CACHE, _of_cache),
    (type, _of_class),
)
# What has elements, and no names for them.
_CONTAINERS = (list, tuple, dict, set, frozenset)
