"""What goes back to an agent: bounded, whole somewhere, and with nothing to obey in it."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.cli.agents.answers import bounded, harmless

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
    max_leaves=30,
)


def size(document: dict[str, Any]) -> int:
    return len(json.dumps(document).encode())


def test_terminal_codes_directions_and_tags_are_shown_and_words_are_kept() -> None:
    name = "kernel\x1b]0;title\x07\u202e\U000e0041\u200b\ud800 déjà vu\nline"
    shown = harmless({name: [name]})
    [(key, [value])] = shown.items()
    assert key == value
    assert all(one not in value for one in "\x1b\x07\u202e\U000e0041\u200b\ud800")
    assert "\\x1b]0;title\\x07\\u202e" in value
    assert value.endswith("déjà vu\nline")
    json.dumps(shown).encode()


def test_a_short_answer_is_left_as_it_is(tmp_path: Path) -> None:
    document = {"schema": "flatout.ps/1", "jobs": [1, 2, 3]}
    assert bounded(document, 1000, tmp_path, "x") == document
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_costs_the_file_alone(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    document = {"schema": "flatout.ps/1", "jobs": ["long"] * 1000}
    cut = bounded(document, 1500, tmp_path / "taken", "x")["cut"]
    assert cut["path"] is None
    assert "cannot write" in cut["path_reason"]


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    document = {"schema": "flatout.ps/1", "jobs": ["long"] * 1000}
    for number in range(40):
        bounded(document, 1500, tmp_path, f"{number:03}")
    assert [path.stem for path in sorted(tmp_path.iterdir())] == [f"{n:03}" for n in range(8, 40)]


@settings(max_examples=20, deadline=None)
@given(body=st.dictionaries(st.text(max_size=8), JSON, max_size=30))
def test_every_answer_is_within_its_bound_and_says_what_it_is(
    body: dict[str, Any], tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.getbasetemp()
    document = harmless({**body, "schema": "flatout.profile/1"})
    found = bounded(document, 2500, folder, "same")
    assert size(found) <= 2 * 2500  # json.dumps writes characters as escapes; the bound is in UTF-8
    assert found["schema"] == "flatout.profile/1"
    if found != document:
        assert json.loads(Path(found["cut"]["path"]).read_text()) == document
