"""Whether a life repeats what the one before did."""

from pathlib import Path

import pytest

from flatout.runtime.protect.journal import Journal, Lines
from flatout.runtime.protect.verifying import Verdict, Verifying


def after(tmp_path: Path) -> Verifying:
    journal = Journal(tmp_path / "journal.jsonl")
    for number in (4, 5):
        journal.note("train.py:9", number / 10)
        journal.updated(number, proof(number / 10))
    journal.close()
    verifying = Verifying()
    verifying.against(Lines(tmp_path / "journal.jsonl").cut(3))
    verifying.begins_with(proof(0.3))
    return verifying


def proof(value: float, digest: str = "abc") -> str:
    """Of a weight that hardly changes, and one that does."""
    return f"{digest}:[100.0, {value!r}]"


def test_the_same_is_said_once_when_all_is_compared(tmp_path: Path) -> None:
    verifying = after(tmp_path)
    assert verifying.wants_proof(4)
    assert verifying.updated(4, [["train.py:9", 0.4]], proof(0.4)) is None
    verdict = verifying.updated(5, [["train.py:9", 0.5]], proof(0.5))
    assert verdict == Verdict(True, "the 2 updates that it had already made since then come out the same")
    assert verifying.updated(6, [["train.py:9", 0.6]], "") is None


@pytest.mark.parametrize(
    ("reads", "now", "repeats", "words"),
    [
        ([["train.py:9", 0.40001]], proof(0.4001, "abd"), None, ""),
        ([["train.py:9", 0.7]], proof(0.4), False, "train.py:9 read 0.7, and had read 0.4"),
        ([["train.py:12", 0.4]], proof(0.4), False, "it is at train.py:12, and was at train.py:9"),
        ([["train.py:9", 0.4]], proof(9.0, "xyz"), False, "what it has learned after update 4"),
        # Little beside the weights, and half of what the update changed.
        ([["train.py:9", 0.4]], proof(0.35, "xyz"), False, "what it has learned after update 4"),
        # As an earlier version noted it.
        ([["train.py:9", 0.4]], "xyz:1.25", None, ""),
    ],
    ids=["rounding", "value", "place", "parameters", "half of an update", "another version"],
)
def test_what_differs_is_named(
    tmp_path: Path, reads: list[list[object]], now: str, repeats: bool | None, words: str
) -> None:
    verifying = after(tmp_path)
    verdict = verifying.updated(4, reads, now)
    assert (verdict.repeats if verdict is not None else None) == repeats
    assert words in (verdict.words if verdict is not None else "")
    if repeats is None:
        end = verifying.updated(5, [["train.py:9", 0.5]], proof(0.5))
        assert end is not None
        assert end.words.endswith("the same but for rounding")


def test_with_nothing_to_compare_nothing_is_said() -> None:
    verifying = Verifying()
    assert verifying.updated(1, [["a:1", 1]], "") is None
