"""What a module remembers from call to call: trials must leave it as they found it."""

import types
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import torch

# What every module has, and no call of it changes.
EVERY_MODULES = frozenset(vars(torch.nn.Module()))
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
# Never looked into: they hold no state of a call, or other modules, which are looked at by themselves.
_CLOSED = (torch.nn.Module, type, types.ModuleType, types.FunctionType, types.MethodType, torch.Generator)
# Objects in objects, and all of them together.
_DEEPEST, _MOST = 5, 20_000


class State:
    """Buffers and everything else that a module's parts hold, as it is now."""

    def __init__(self, module: torch.nn.Module) -> None:
        named = dict(module.named_buffers())
        self._kept = {name: (one, one.detach().clone()) for name, one in named.items()}
        self._module = module
        known = _Known()
        self._rest = [
            (f"{place}.{name}" if place else name, part, name, known.kept(value, 0))
            for place, part in module.named_modules()
            for name, value in _own_values(part)
        ]
        self._names = {
            place: {name for name, _ in _own_values(part)} for place, part in module.named_modules()
        }

    @torch.no_grad()
    def changed(self) -> list[str]:
        """The names of buffers that calls have changed since; they are put back."""
        found = []
        now = dict(self._module.named_buffers())
        for name, (place, values) in self._kept.items():
            if now.get(name) is place and torch.equal(place, values):
                continue
            found.append(name)
            place.copy_(values)
            owner, _, own_name = name.rpartition(".")
            self._module.get_submodule(owner)._buffers[own_name] = place  # noqa: SLF001
        return found

    def other_values(self) -> list[str]:
        """The names of everything else that calls have changed since, as it stays."""
        found = [
            name
            for name, part, own, kept in self._rest
            if own not in vars(part) or not kept.same(vars(part)[own])
        ]
        for place, part in self._module.named_modules():
            new = {name for name, _ in _own_values(part)} - self._names.get(place, set())
            found += sorted(f"{place}.{name}" if place else name for name in new)
        return found

    @torch.no_grad()
    def put_back(self) -> None:
        """All of it."""
        self.changed()
        for place, part in self._module.named_modules():
            for name in {name for name, _ in _own_values(part)} - self._names.get(place, set()):
                del vars(part)[name]
        for _, part, name, kept in self._rest:
            vars(part)[name] = kept.as_it_was()


def _own_values(part: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in vars(part).items() if name not in EVERY_MODULES)


class _Kept:
    """A value: whether another is the same still, and the value as it was."""

    def __init__(self, same: Callable[[Any], bool], as_it_was: Callable[[], Any]) -> None:
        self.same, self.as_it_was = same, as_it_was


class _Known:
    """Keeps values, each once: objects may hold each other."""

    def __init__(self) -> None:
        # By identity; the values themselves, so that no other takes their place.
        self._seen: dict[int, Any] = {}

    def kept(self, value: Any, depth: int) -> _Kept:
        """The value, and what it holds."""
        if isinstance(value, _PLAIN):
            return _Kept(
                lambda now: now is value or (type(now) is type(value) and now == value), lambda: value
            )
        is_new = id(value) not in self._seen
        if not is_new or depth > _DEEPEST or len(self._seen) > _MOST or isinstance(value, _CLOSED):
            return _Kept(lambda now: now is value, lambda: value)
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            return _tensor(value)
        if isinstance(value, MutableMapping):
            return self._mapping(value, value, depth)
        if isinstance(value, list | tuple):
            return self._sequence(value, depth)
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict):
            return self._mapping(value, own, depth)
        return _Kept(lambda now: now is value, lambda: value)

    def _mapping(self, value: Any, items: MutableMapping[Any, Any], depth: int) -> _Kept:
        held = {name: self.kept(one, depth + 1) for name, one in items.items()}

        def same(now: Any) -> bool:
            return (
                now is value
                and list(items) == list(held)
                and all(one.same(items[name]) for name, one in held.items())
            )

        def as_it_was() -> Any:
            for name in [name for name in items if name not in held]:
                del items[name]
            for name, one in held.items():
                items[name] = one.as_it_was()
            return value

        return _Kept(same, as_it_was)

    def _sequence(self, value: Any, depth: int) -> _Kept:
        held = [self.kept(one, depth + 1) for one in value]

        def same(now: Any) -> bool:
            if now is not value or len(value) != len(held):
                return False
            return all(one.same(item) for one, item in zip(held, value, strict=True))

        def as_it_was() -> Any:
            items = [one.as_it_was() for one in held]
            if isinstance(value, list):
                value[:] = items
            return value

        return _Kept(same, as_it_was)


def _tensor(value: torch.Tensor) -> _Kept:
    values = value.detach().clone()

    def same(now: Any) -> bool:
        if now is not value or value.shape != values.shape:
            return False
        return bool(((value == values) | ((value != value) & (values != values))).all())

    def as_it_was() -> Any:
        if not same(value):
            with torch.no_grad():
                value.copy_(values) if value.shape == values.shape else value.set_(values)  # type: ignore[call-overload]
        return value

    return _Kept(same, as_it_was)
