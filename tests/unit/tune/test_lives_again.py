"""When a job is started again, after which pause, and when not."""

import dataclasses

import pytest

from flatout.records.running import JobRun
from flatout.tune.lives import Retries, run_lives

ENDED = JobRun(run="r", steps=10, exit_code=0, took_s=1.0, levers=(), dropped_levers={})


def ended(
    code: int | None, *, steps: int | None = 10, signal: int | None = None, asked: int | None = None
) -> JobRun:
    return dataclasses.replace(ENDED, exit_code=code, steps=steps, signal=signal, asked=asked)


def lived(retries: int, *lives: JobRun) -> tuple[JobRun, list[float], list[str]]:
    pauses: list[float] = []
    told: list[str] = []
    done = run_lives(lambda life: lives[life - 1], Retries(retries), told.append, pauses.append)
    return done, pauses, told


def test_pauses_double_until_it_ends_well() -> None:
    done, pauses, told = lived(9, *(ended(1, steps=number) for number in range(1, 9)), ended(0))
    assert (done.exit_code, done.lives) == (0, 9)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert told[0] == "it ended with code 1; starting it again in 1 s (1 of 9)"


@pytest.mark.parametrize(
    "life", [ended(0), ended(2), ended(93), ended(1, asked=15), ended(None, signal=2)],
    ids=["well", "called-wrongly", "cannot-go-on", "asked", "ctrl-c"],
)  # fmt: skip
def test_what_is_not_started_again(life: JobRun) -> None:
    done, pauses, told = lived(5, life)
    assert (done.lives, pauses, told) == (1, [], [])


def test_the_same_end_without_coming_further_is_the_last() -> None:
    done, pauses, told = lived(9, ended(None, signal=11), ended(None, signal=11))
    assert (done.lives, pauses) == (2, [1])
    assert "was killed by SIGSEGV twice without coming further" in told[-1]


def test_no_more_than_was_allowed() -> None:
    done, pauses, told = lived(2, *(ended(1, steps=number) for number in range(1, 9)))
    assert (done.lives, len(pauses)) == (3, 2)
    assert told[-1].endswith("no more")


def test_lives_of_which_nobody_knows_how_far_they_came_are_not_held_to_stand_still() -> None:
    done, pauses, _ = lived(2, ended(1, steps=None), ended(1, steps=None), ended(0))
    assert (done.exit_code, pauses) == (0, [1, 2])
