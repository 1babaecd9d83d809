"""What a script loads, and when that is a way of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.runtime.protect import loads
from flatout.runtime.protect.loads import Loads
from flatout.runtime.stopping import current


@pytest.fixture(autouse=True)
def before_the_first_update(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch, "load", torch.load)  # put back as it was
    current().at_once = True
    yield
    current().at_once = False


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Loads, list[str]]]:
    """Another life of a script, after one that has loaded `then`; and what was told of it."""
    real = torch.load

    def begin(then: list[Any] | None = None) -> tuple[Loads, list[str]]:
        monkeypatch.setattr(torch, "load", real)
        current().at_once = True
        strange: list[str] = []
        found = Loads(torch)
        found.install(then, strange.append)
        return found, strange

    return begin


Live = Callable[..., tuple[Loads, list[str]]]


def begin_with(path: Path) -> Any:
    return torch.load(path)


def test_the_same_file_with_the_same_content_is_no_news(live: Live, tmp_path: Path) -> None:
    torch.save({"weights": torch.ones(3)}, tmp_path / "pretrained.pt")
    first, _ = live()
    begin_with(tmp_path / "pretrained.pt")
    begin_with(tmp_path / "pretrained.pt")
    (tmp_path / "pretrained.pt").touch()
    second, strange = live(first.seen)
    torch.load(tmp_path / "pretrained.pt")  # at another line
    begin_with(tmp_path / "pretrained.pt")
    assert strange == []
    _, strange = live(second.seen)
    begin_with(tmp_path / "pretrained.pt")
    assert strange == []


def test_a_file_that_has_changed_since_is_its_own_way_as_a_new_one_is(live: Live, tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "last.pt")
    first, _ = live()
    begin_with(tmp_path / "last.pt")
    torch.save({"epoch": 5}, tmp_path / "last.pt")
    _, strange = live(first.seen)
    begin_with(tmp_path / "last.pt")
    assert strange == [str(tmp_path / "last.pt")]
    torch.save({}, tmp_path / "new.pt")
    _, strange = live(first.seen)
    begin_with(tmp_path / "new.pt")
    assert strange == [str(tmp_path / "new.pt")]


def test_what_the_loop_saves_and_loads_again_may_change_and_counts_where_a_script_begins_with_it(
    live: Live, tmp_path: Path
) -> None:
    life = None
    for epoch in (3, 5, 7):
        torch.save({"epoch": epoch}, tmp_path / "best.pt")
        is_first = life is None
        life, strange = live(life.seen if life is not None else None)
        current().at_once = not is_first  # an update was made, or it is on its way back
        begin_with(tmp_path / "best.pt")
        assert strange == []
    assert life is not None
    _, strange = live(life.seen)
    begin_with(tmp_path / "best.pt")
    assert strange == [str(tmp_path / "best.pt")]


def test_names_alone_are_not_compared(live: Live, tmp_path: Path) -> None:
    torch.save({}, tmp_path / "a.pt")
    _, strange = live([str(tmp_path / "a.pt")])
    begin_with(tmp_path / "a.pt")
    assert strange == []


def test_of_a_large_file_pieces_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "_READ_WHOLE", 1000)
    monkeypatch.setattr(loads, "_PIECE", 16)
    path = tmp_path / "large"
    path.write_bytes(bytes(5000))
    before = loads._content(str(path))
    path.write_bytes(bytes(4999) + b"x")
    assert loads._content(str(path)) != before
    path.write_bytes(bytes(5000))
    assert loads._content(str(path)) == before
    assert loads._content(str(tmp_path / "none")) == ""
