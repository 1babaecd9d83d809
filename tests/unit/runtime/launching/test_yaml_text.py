"""What a YAML parser reads is what was written."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.runtime.launching.yaml_text import as_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.one_of(TEXT, st.integers(), st.booleans(), st.none())
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXT, TREES, max_size=4))
def test_any_tree_reads_as_it_was_written(tree: dict[str, Any]) -> None:
    assert yaml.safe_load(as_yaml(tree)) == tree


@pytest.mark.parametrize(
    "word", ["no", "on", "null", "1e3", "0x1f", "2026-11-16", "~", "- a", "# a", "a: b", ""]
)
def test_a_text_is_never_read_as_something_else(word: str) -> None:
    assert yaml.safe_load(as_yaml({word: [word]})) == {word: [word]}


@pytest.mark.parametrize(
    "block",
    ["a\nb\n", "a\n\n  b\n", "# a\n---\nb: c\n", "a\n b\n\n", " a\nb\n", "a \nb\n", "\na\n", "a\tb\nc\n"],
)
def test_texts_of_several_lines_come_through(block: str) -> None:
    documents = ({"run": block, "list": [block]}, {"more": block})
    assert list(yaml.safe_load_all(as_yaml(*documents))) == list(documents)


def test_a_script_can_be_read_by_people() -> None:
    assert as_yaml({"run": "one\n  two\n"}) == "run: |\n  one\n    two\n"
