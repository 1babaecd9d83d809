"""The calls that lead to where a script is: the user's own, and what libraries do below them."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import flatout  # noqa: E402
from flatout.inside.calls import Files, calls_now, way_of  # noqa: E402

LIBRARY = """
class Trainer:
    def fit(self, step):
        return step()

def layer(ask):
    return ask()
"""
SCRIPT = """
import torch, trainer

class Deep(torch.nn.Module):
    def forward(self, times):
        return self.forward(times - 1) if times else ask()

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(Deep())

    def forward(self, times):
        return self.inner(times)

def main(times):
    return Outer()(times)

found = main(TIMES)
in_a_trainer = trainer.Trainer().fit(lambda: ask())
in_a_layer = trainer.layer(ask)
"""


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script with so many calls of itself; what its names stand for, ways as (file, line, function)."""
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "trainer.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.delitem(sys.modules, "trainer", raising=False)
    script = tmp_path / "train.py"
    files = Files(torch)

    def run(times: int) -> dict[str, Any]:
        script.write_text(SCRIPT.replace("TIMES", str(times)))
        return runpy.run_path(str(script), {"ask": lambda: calls_now(files)})

    return run


def told(calls: Any, folder: Path) -> tuple[str, list[str]]:
    """The line, and the way from the script on."""
    line, way = way_of([(is_users, call) for is_users, call in calls if call[0].startswith(str(folder))])
    assert line is not None
    return f"{line[2]}:{line[1]}", [f"{function}:{number}" for _, number, function in way]


def test_the_users_own_calls_the_outermost_first_without_torch(ran: Any, tmp_path: Path) -> None:
    line, way = told(ran(0)["found"], tmp_path)
    assert line == "Deep.forward:6"
    assert way == ["<module>:19", "main:17", "Outer.forward:14", "Deep.forward:6"]


def test_libraries_between_the_users_calls_are_left_out(ran: Any, tmp_path: Path) -> None:
    line, way = told(ran(0)["in_a_trainer"], tmp_path)
    assert line == "<lambda>:20"
    assert way == ["<module>:20", "<lambda>:20"]


def test_libraries_below_the_users_last_call_are_told(ran: Any, tmp_path: Path) -> None:
    line, way = told(ran(0)["in_a_layer"], tmp_path)
    assert line == "<module>:21"
    assert way == ["<module>:21", "layer:7"]


def test_nothing_of_torch_python_or_ours_is_in_it(ran: Any) -> None:
    files = {call[0] for _, call in ran(0)["found"]}
    ours = str(Path(flatout.__file__).parent)  # a clone may lie in a folder of this name, too
    assert not any("/torch/" in file or file.startswith(ours) or "runpy" in file for file in files)


def test_of_recursion_the_innermost_calls_are_kept(ran: Any) -> None:
    _, way = way_of(ran(200)["found"])
    assert len(way) == 48
    assert {function for _, _, function in way[1:-1]} == {"Deep.forward"}


def test_where_nothing_is_the_users_a_librarys_call_stands_for_it() -> None:
    assert way_of([(False, "inner"), (False, "outer")]) == ("inner", ("outer", "inner"))
    assert way_of([]) == (None, ())
