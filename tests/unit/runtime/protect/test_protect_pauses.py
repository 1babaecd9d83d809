"""Before a long pause between two updates, a job is saved."""

from flatout.runtime.protect.pauses import Pauses


def expected(
    pauses_after: set[int], *, steps: int = 40, step_s: float = 0.1, pause_s: float = 30.0
) -> list[int]:
    pauses, now_s, found = Pauses(), 0.0, []
    for number in range(1, steps + 1):
        now_s += step_s
        if pauses.is_before_one(number, now_s):
            found.append(number)
        if number in pauses_after:
            now_s += pause_s
    return found


def test_a_rhythm_is_known_after_two() -> None:
    assert expected({10, 20, 30, 40}) == [30, 40]


def test_one_pause_makes_no_rhythm_and_short_ones_do_not_count() -> None:
    assert expected({10}) == []
    assert expected({10, 20, 30}, pause_s=2.0) == []


def test_a_job_whose_every_update_takes_long_has_no_pauses() -> None:
    assert expected(set(), step_s=60.0) == []
