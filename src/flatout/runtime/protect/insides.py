"""What lies inside of a value, with the ways there: elements, attributes, variables that a function keeps."""

import functools
import itertools
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

SEQUENCES = (list, tuple, deque)
# Of which nothing is to be saved: a script has them again.
PLAIN = (int, float, bool, str, bytes, type(None), complex)
# How far is looked to tell what something is made of, and at how many things.
_NESTED, _MOST = 3, 1 << 15


def inner(value: Any) -> Iterator[tuple[str, Any]]:
    """All that is to be found in another life by the same way."""
    if isinstance(value, dict):
        for at, (key, one) in enumerate(list(value.items())):
            # Other keys, such as parameters, are named by nothing that lasts; their order does.
            yield (f"[{key!r}]" if isinstance(key, str | int) else f".values()[{at}]"), one
    elif isinstance(value, SEQUENCES):
        for at, one in enumerate(list(value)):
            yield f"[{at}]", one
    else:
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            for name, one in list(own.items()):
                yield f".{name}", one
        yield from _slots(value)
        yield from _kept(value)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        if "__slots__" not in vars(kind):
            continue
        for name, slot in list(vars(kind).items()):
            if isinstance(slot, MemberDescriptorType):
                try:
                    yield f".{name}", slot.__get__(value, kind)
                except AttributeError:  # not set
                    continue


def _kept(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function has beside its arguments: variables of the one that made it, its object, its words."""
    if isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f"({name})", cell.cell_contents
            except ValueError:  # not set
                continue
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))


def within(
    kinds: tuple[type, ...], value: Any, most: int = _MOST, *, but: tuple[type, ...] = ()
) -> Iterator[Any]:
    """What is of these kinds, not far inside, and in none of those: it tells what something is made of."""
    waiting = deque([(value, 0)])
    while waiting and most:
        most -= 1
        one, depth = waiting.popleft()
        if isinstance(one, kinds):
            yield one
        elif depth < _NESTED and not isinstance(one, but):
            of_a_set = isinstance(one, set | frozenset)
            parts = itertools.islice(one if of_a_set else (part for _, part in inner(one)), most)
            waiting.extend((part, depth + 1) for part in parts if not _is_plain(part))


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or isinstance(value, type | ModuleType)
