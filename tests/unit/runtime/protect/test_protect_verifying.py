"""Whether a life repeats what the one before did."""

from pathlib import Path

import pytest

from flatout.runtime.protect.journal import Journal, Lines
from flatout.runtime.protect.verifying import Verdict, Verifying


def after(tmp_path: Path) -> Verifying:
    journal = Journal(tmp_path / "journal.jsonl")
    for number in (4, 5):
        journal.note("train.py:9", number / 10)
        journal.updated(number, f"abc:{number}.5")
    journal.close()
    verifying = Verifying()
    verifying.against(Lines(tmp_path / "journal.jsonl").cut(3))
    return verifying


def test_the_same_is_said_once_when_all_is_compared(tmp_path: Path) -> None:
    verifying = after(tmp_path)
    assert verifying.wants_proof(4)
    assert verifying.updated(4, [["train.py:9", 0.4]], "abc:4.5") is None
    verdict = verifying.updated(5, [["train.py:9", 0.5]], "abc:5.5")
    assert verdict == Verdict(True, "the 2 updates that it had already made since then come out the same")
    assert verifying.updated(6, [["train.py:9", 0.6]], "") is None


@pytest.mark.parametrize(
    ("reads", "proof", "repeats", "words"),
    [
        ([["train.py:9", 0.40001]], "abd:4.5001", None, ""),
        ([["train.py:9", 0.7]], "abc:4.5", False, "train.py:9 read 0.7, and had read 0.4"),
        ([["train.py:12", 0.4]], "abc:4.5", False, "it is at train.py:12, and was at train.py:9"),
        ([["train.py:9", 0.4]], "xyz:9.5", False, "what it has learned after update 4"),
    ],
    ids=["rounding", "value", "place", "parameters"],
)
def test_what_differs_is_named(
    tmp_path: Path, reads: list[list[object]], proof: str, repeats: bool | None, words: str
) -> None:
    verifying = after(tmp_path)
    verdict = verifying.updated(4, reads, proof)
    assert (verdict.repeats if verdict is not None else None) == repeats
    assert words in (verdict.words if verdict is not None else "")
    if repeats is None:
        end = verifying.updated(5, [["train.py:9", 0.5]], "abc:5.5")
        assert end is not None
        assert end.words.endswith("the same but for rounding")


def test_with_nothing_to_compare_nothing_is_said() -> None:
    verifying = Verifying()
    assert verifying.updated(1, [["a:1", 1]], "") is None
