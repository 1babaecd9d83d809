"""A data set that has changed is told from one that has not, whatever it is made of."""

import functools
import importlib
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from flatout.inside import unchanged
from flatout.inside.unchanged import checksum_of


class Plain:
    def __init__(self) -> None:
        self.epoch = 0
        self.samples = [("a.jpg", 1), ("b.jpg", 2)]
        self.scale = {"by": [1.0, 2.0]}


class Hides(Plain):
    """Says less of itself when it is pickled."""

    def __getstate__(self) -> Any:
        return {"samples": self.samples}


class Slotted:
    __slots__ = ("epoch",)

    def __init__(self) -> None:
        self.epoch = 0


def set_epoch(one: Any) -> None:
    one.epoch += 1


def append(one: Any) -> None:
    one.samples.append(("c.jpg", 3))


def rescale(one: Any) -> None:
    one.scale["by"][1] = 3.0


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (Plain, set_epoch),
        (Plain, append),
        (Plain, rescale),
        (Hides, set_epoch),
        (Slotted, set_epoch),
        (lambda: TensorDataset(torch.zeros(4, 2)), lambda one: one.tensors[0].add_(1)),
        (lambda: TensorDataset(torch.zeros(4, 2)), lambda one: one.tensors[0].numpy().fill(1)),
        (lambda: TensorDataset(torch.zeros(4).bfloat16()), lambda one: one.tensors[0].fill_(2)),
        (lambda: Subset(Plain(), [1, 2, 3]), lambda one: set_epoch(one.dataset)),  # type: ignore[arg-type]
        (lambda: Subset(Plain(), [1, 2, 3]), lambda one: one.indices.reverse()),  # type: ignore[arg-type]
        (
            lambda: ConcatDataset([TensorDataset(torch.zeros(2))]),
            lambda one: one.datasets[0].tensors[0].fill_(1),
        ),
        (lambda: random.Random(3), lambda one: one.random()),
        (torch.Generator, lambda one: torch.rand(2, generator=one)),
    ],
)
def test_a_change_is_seen_and_none_where_there_is_none(
    make: Callable[[], Any], change: Callable[[Any], Any]
) -> None:
    one = make()
    before = checksum_of(one, None)
    assert before is not None
    assert checksum_of(one, None) == before
    change(one)
    assert checksum_of(one, None) not in (None, before)


def test_arrays_of_numpy_are_looked_into() -> None:
    numpy = pytest.importorskip("numpy")
    one = Plain()
    one.samples = numpy.zeros((100, 3))
    before = checksum_of(one)
    one.samples[99, 2] = 1.0  # type: ignore[call-overload]
    assert checksum_of(one) not in (None, before)


def test_what_a_function_closes_over_counts() -> None:
    strength = 1

    def transform(x: int) -> int:
        return x * strength

    one = Plain()
    one.transform = [lambda x: x + 1, functools.partial(transform)]  # type: ignore[attr-defined]
    before = checksum_of(one)
    assert before is not None
    assert checksum_of(one) == before
    strength = 2
    assert checksum_of(one) not in (None, before)


LONGEST = 3


class Crops(Plain):
    size = 32

    def __getitem__(self, _: int) -> int:
        return min(LONGEST, settings.longest, self.size)

    @property
    def area(self) -> int:
        return AREAS[self.size]


AREAS = {32: 1024}
settings = ModuleType("settings")


def shorten(batch: list[int]) -> list[int]:
    return [batch[place] for place in range(LONGEST)]


@pytest.fixture
def a_module_of_the_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.__file__ = str(tmp_path / "settings.py")
    settings.longest = 4  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "settings", settings)


@pytest.mark.usefixtures("a_module_of_the_scripts")
@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys.modules[__name__], "LONGEST", 9),
        (Crops, "size", 64),
        (AREAS, 32, 1),
        (settings, "longest", 5),
    ],
)
def test_what_its_methods_name_outside_of_it_counts(
    owner: Any, name: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Crops()
    before = checksum_of(one, None)
    assert before is not None
    assert checksum_of(one, None) == before
    (monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr)(owner, name, value)
    assert checksum_of(one, None) not in (None, before)


def test_what_a_function_names_outside_of_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = checksum_of(shorten)
    assert checksum_of(shorten) == before
    monkeypatch.setattr(sys.modules[__name__], "LONGEST", 9)
    assert checksum_of(shorten) not in (None, before)


PROJECT = {
    "settings.py": "STRENGTH = 1",
    "sets.py": """
import functools
import a_project.settings
from a_project import settings

def stronger(x):
    return x * stronger.by

stronger.by = 1

@functools.lru_cache
def table(x):
    return x * settings.STRENGTH

class Within:
    def __getitem__(self, x):
        return x * a_project.settings.STRENGTH

class Imports:
    def __getitem__(self, x):
        from a_project.settings import STRENGTH
        return x * STRENGTH

class ImportsBeside:
    def __getitem__(self, x):
        from .settings import STRENGTH
        return x * STRENGTH

class Cached:
    def __getitem__(self, x):
        return table(x)

class Attribute:
    def __getitem__(self, x):
        return stronger(x)
""",
}


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    package = tmp_path / "a_project"
    package.mkdir()
    for name, text in PROJECT.items():
        (package / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("a_project.sets")
    for name in [name for name in sys.modules if name.partition(".")[0] == "a_project"]:
        del sys.modules[name]


@pytest.mark.parametrize("kind", ["Within", "Imports", "ImportsBeside", "Cached", "Attribute"])
def test_what_modules_of_the_script_hold_counts_however_it_is_reached(sets: Any, kind: str) -> None:
    one = getattr(sets, kind)()
    before = checksum_of(one, None)
    assert before is not None
    assert checksum_of(one, None) == before
    if kind == "Attribute":
        sets.stronger.by = 2
    else:
        sets.settings.STRENGTH = 2
    assert checksum_of(one, None) not in (None, before)


def test_what_cannot_be_pickled_is_told_by_what_it_is() -> None:
    class Local:
        pass

    with tempfile.TemporaryFile() as file:
        one = Plain()
        one.lock, one.file, one.local = threading.Lock(), file, Local()  # type: ignore[attr-defined]
        before = checksum_of(one)
        assert before is not None
        assert checksum_of(one) == before
        one.local.epoch = 1  # type: ignore[attr-defined]
        assert checksum_of(one) not in (None, before)


def test_a_file_in_memory_is_not_read(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    one = Plain()
    one.samples = numpy.memmap(tmp_path / "tokens", dtype="uint16", mode="w+", shape=(1 << 30,))
    before = checksum_of(one)
    assert before is not None
    assert checksum_of(one) == before


def test_what_takes_too_long_or_refuses_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

        def __reduce_ex__(self, _protocol: Any) -> Any:
            raise RuntimeError("no")

    assert checksum_of(Refuses()) is None
    monkeypatch.setattr(unchanged, "_MOST_BYTES", 100)
    assert checksum_of(torch.zeros(1000)) is None


def test_what_is_too_large_is_not_copied_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda _: pytest.fail("it was copied"))
    assert checksum_of(torch.zeros(1).expand(1 << 30)) is None
