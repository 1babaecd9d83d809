"""From tensors up to what the source calls their holders."""

import collections
import functools
import gc
import threading
import time
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.retaining.search import Search  # noqa: E402

EVERYWHERE: list[Any] = []


class Trainer:
    """Keeps things."""

    shared: list[Any] = []  # noqa: RUF012

    def __init__(self) -> None:
        self.history: dict[str, list[Any]] = {"loss": []}
        self.outputs: list[Any] = []


class Output:
    """One of many."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    """Has no dict."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: list[Any] = []


class Remembering(torch.nn.Module):
    """Keeps a buffer."""


@functools.lru_cache
def remembered(number: int) -> Any:
    return torch.ones(number)


def with_default(value: Any, kept: list[Any] = []) -> None:  # noqa: B006
    kept.append(value)


def closing_over() -> Any:
    activations: list[Any] = []

    def hook(value: Any) -> None:
        activations.append(value)

    return hook


def generating() -> Iterator[int]:
    inner = [torch.ones(2) for _ in range(4)]
    yield len(inner)
    yield id(inner)


def names_of(tensors: list[Any]) -> set[tuple[str, str]]:
    search = Search(tensors, deadline=time.monotonic() + 60)
    found = search.go()
    assert search.complete
    assert set(found) == set(range(len(tensors)))
    return {(one.name.text, one.name.kind) for names in found.values() for one in names}


def some() -> list[Any]:
    """Tensors that nobody but their list holds."""
    return [torch.ones(3) for _ in range(4)]


def test_a_variable_of_a_function_that_runs() -> None:
    losses = collections.deque(some())
    assert names_of([losses[0], losses[3]]) == {("losses", "local")}


def test_a_variable_of_another_thread() -> None:
    known, done = threading.Event(), threading.Event()
    at_hand: list[Any] = []

    def work() -> None:
        of_a_thread = some()
        at_hand.extend(map(id, of_a_thread))
        known.set()
        done.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        known.wait(30)
        there = [one for one in gc.get_objects() if id(one) in at_hand and type(one) is torch.Tensor]
        assert names_of(there) == {("of_a_thread", "local")}
    finally:
        done.set()
        thread.join()


def test_a_global_and_what_is_nested_in_it() -> None:
    EVERYWHERE.extend({"out": one} for one in some())
    try:
        assert names_of([EVERYWHERE[0]["out"], EVERYWHERE[3]["out"]]) == {("EVERYWHERE", "global")}
    finally:
        EVERYWHERE.clear()


def test_attributes_with_and_without_a_dict() -> None:
    trainers, slotted = (Trainer(),), (Slotted(),)
    trainers[0].history["loss"] += some()
    slotted[0].kept += some()
    assert names_of(trainers[0].history["loss"][:2]) == {("Trainer.history", "attribute")}
    assert names_of(slotted[0].kept[:2]) == {("Slotted.kept", "attribute")}
    vars(trainers[0])  # from here on it has a dict of its own
    assert names_of(trainers[0].history["loss"][:2]) == {("Trainer.history", "attribute")}


def test_of_many_objects_of_a_kind_what_holds_them() -> None:
    outputs = [Output(one) for one in some()]
    assert names_of([one.value for one in outputs]) == {("outputs", "local")}
    trainers = (Trainer(),)
    trainers[0].outputs, outputs = outputs, []
    assert names_of([one.value for one in trainers[0].outputs]) == {("Trainer.outputs", "attribute")}


def test_a_class_and_a_module() -> None:
    Trainer.shared += some()
    assert names_of(Trainer.shared[:3]) == {("Trainer.shared", "class attribute")}
    modules = (Remembering(),)
    modules[0].register_buffer("cache", torch.ones(3))
    assert names_of([modules[0].cache]) == {("Remembering.cache", "attribute")}


def test_a_closure_a_default_and_a_cache() -> None:
    hooks = (closing_over(),)
    for one in some():
        hooks[0](one)
    del one
    kept = hooks[0].__closure__[0].cell_contents[:3]
    assert names_of(kept) == {("activations", "closure")}
    with_default(torch.ones(3))
    kept = (with_default.__defaults__ or ())[0][:1]
    assert names_of(kept) == {("kept", "default argument")}
    kept = [remembered(3), remembered(4)]
    assert names_of(kept) == {("remembered()", "cache")}


def test_a_generator_that_waits() -> None:
    generators = (generating(),)
    next(generators[0])
    address = next(generators[0])
    inner = next(one for one in gc.get_objects() if id(one) == address)
    tensors = list(inner[:2])
    del inner
    assert names_of(tensors) == {("inner", "local")}


def test_nothing_of_the_scripts_is_called() -> None:
    class Touchy:
        """Raises whatever is asked of it."""

        def __init__(self, kept: Any) -> None:
            object.__setattr__(self, "kept", kept)

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("==")

        def __hash__(self) -> int:
            raise RuntimeError("hash")

        def __bool__(self) -> bool:
            raise RuntimeError("bool")

    touchy = (Touchy(some()),)
    kept = object.__getattribute__(touchy[0], "kept")
    two = kept[:2]
    del kept
    assert names_of(two) == {(f"{Touchy.__qualname__}.kept", "attribute")}


def test_what_a_function_holds_is_gone_when_it_returns() -> None:
    def searching() -> "weakref.ref[Any]":
        mine = some()
        names_of(mine[:2])
        return weakref.ref(mine[0])

    gc.disable()
    try:
        assert searching()() is None
    finally:
        gc.enable()


def test_what_a_function_lets_go_of_is_not_kept_by_the_search() -> None:
    held = types.SimpleNamespace(tensors=some())
    alive = torch.ones(5)
    names_of(held.tensors[:1])
    address = id(alive)
    del alive
    assert not any(id(one) == address and type(one) is torch.Tensor for one in gc.get_objects())
