"""Which line of a source adds to something."""

from pathlib import Path

import pytest

from flatout.inside.retaining.growing_lines import Wanted, line_that_grows


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ("losses = []\nfor x in y:\n    losses.append(x)\n", "losses", 3),
        ("losses = []\nlosses += [x]\n", "losses", 2),
        ("cache = {}\n\ncache[key] = x\n", "cache", 3),
        ("cache = {}\ncache['a']['b'].extend(x)\n", "cache", 2),
        ("cache = {}\ncache.setdefault(key, []).append(x)\n", "cache", 2),
        ("total = 0\ntotal = total + loss\n", "total", 2),
        ("h = None\nout, h = rnn(x, h)\n", "h", 2),
        ("seen = [1]\nseen = [*seen, x]\n", "seen", 2),
        ("kept: list = []\nother.append(kept)\n", "kept", 1),
        ("with a:\n    if b:\n        kept.add(x)\n", "kept", 3),
    ],
)
def test_a_variable(tmp_path: Path, source: str, name: str, line: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    found = line_that_grows(str(file), Wanted(name))
    assert found is not None
    assert found.number == line
    assert found.adds == (line > 1)


def test_an_attribute_is_no_variable_of_that_name(tmp_path: Path) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(
        "history.append(1)\nclass A:\n    def step(self, x):\n        self.history['a'].append(x)\n"
    )
    found = line_that_grows(str(file), Wanted("history", attribute=True))
    assert found is not None
    assert (found.number, found.function) == (4, "step")
    found = line_that_grows(str(file), Wanted("history"))
    assert found is not None
    assert found.number == 1


def test_another_functions_variable_of_the_same_name_is_another(tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text("def a():\n    out = []\n    out.append(1)\ndef b():\n    out = []\n    out.append(2)\n")
    found = line_that_grows(str(file), Wanted("out", scope=(4, 6)))
    assert found is not None
    assert (found.number, found.function) == (6, "b")


@pytest.mark.parametrize("call", ["note(kept, x)", "self.note(kept, x)", "note(x=x, store=kept)"])
def test_what_is_handed_to_a_function_is_followed_there(tmp_path: Path, call: str) -> None:
    parameters = "self, store, x" if "self" in call else "store, x"
    source = f"def note({parameters}):\n    store.append(x)\ndef train():\n    kept = []\n    {call}\n"
    file = tmp_path / "handed.py"
    file.write_text(source)
    found = line_that_grows(str(file), Wanted("kept", scope=(3, 5)))
    assert found is not None
    assert (found.number, found.function, found.adds) == (2, "note", True)


def test_without_a_readable_source_there_is_no_line(tmp_path: Path) -> None:
    assert line_that_grows("<stdin>", Wanted("kept")) is None
    file = tmp_path / "broken.py"
    file.write_text("kept.append(\n")
    assert line_that_grows(str(file), Wanted("kept")) is None
    file = tmp_path / "silent.py"
    file.write_text("pass\n")
    assert line_that_grows(str(file), Wanted("kept")) is None
