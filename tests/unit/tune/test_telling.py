"""What a tuning has to tell of itself beside its figures."""

import pytest

from flatout.tune.telling import told_of_allowed, told_of_moods


@pytest.mark.parametrize(
    ("as_written_ms", "base_ms", "told"),
    [
        (10.0, [], []),
        (10.0, [9.0, 12.0], []),
        (10.0, [10.0, 20.0], ["10.0 ms to 20.0 ms"]),
        # Slow from the beginning, and quiet since.
        (30.0, [10.0, 11.0], ["10.0 ms to 30.0 ms"]),
    ],
)
def test_a_machine_that_does_other_work_is_told_of(
    as_written_ms: float, base_ms: list[float], told: list[str]
) -> None:
    found = told_of_moods(as_written_ms, base_ms)
    assert len(found) == len(told)
    assert all(words in note for words, note in zip(told, found, strict=True))


def test_what_was_allowed_is_told_with_what_it_did_to_the_loss() -> None:
    assert told_of_allowed({}) == []
    assert "no loss was seen" in told_of_allowed({"levers": ["fp8"]})[0]
    [note] = told_of_allowed({"levers": ["fp8"], "allowed": 2.5, "as_written": 2.4, "steps": 10.0})
    assert note.endswith("over the last of 10 updates the loss is 2.5, as written 2.4")
