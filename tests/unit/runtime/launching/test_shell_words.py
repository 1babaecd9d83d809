"""What bash hands to a program is what was given."""

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.runtime.launching.shell import array, joined, quoted

HOSTILE = [
    "it's",
    '"; rm -rf / #',
    "$(touch owned)",
    "`touch owned`",
    "${HOME}",
    "-n",
    "--",
    "",
    " ",
    "two\nlines\r\n",
    "\x1b[31m",
    "a\\b",
    "!!",
    "*",
    "日本 é 🙂",
    "\u2028\u00a0\ufeff",
    "#SBATCH --nodes=99",
    "~",
    "\t",
    "'\n'",
]
WORDS = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), max_size=12)


def received(script: str) -> list[str]:
    done = subprocess.run(["bash"], input=script.encode(), capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=40, deadline=None)
@given(WORDS)
def test_any_words_come_through_bash(words: list[str]) -> None:
    assert received(f"printf '%s\\0' end {joined(words)}") == ["end", *words]


def test_hostile_words_come_through_an_array_of_bash() -> None:
    lines = array("words", [quoted(word) for word in HOSTILE])
    assert received("\n".join([*lines, "printf '%s\\0' \"${words[@]}\""])) == HOSTILE


@pytest.mark.parametrize("word", HOSTILE)
def test_every_word_stays_on_its_line(word: str) -> None:
    assert len(quoted(word).splitlines()) == 1
