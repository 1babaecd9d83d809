"""Ranks meet before they take each other's words; those of an earlier life are not taken."""

import signal
import threading

import pytest

from flatout.runtime.meeting import Meeting
from flatout.runtime.stopping import Stop
from tests.fakes.rank_store import RankStore


def met(ranks: list[Meeting]) -> list[str]:
    """All at once, each as quickly as it can."""
    lives = [""] * len(ranks)

    def meet(place: int) -> None:
        lives[place] = ranks[place].meet()

    threads = [threading.Thread(target=meet, args=(place,)) for place in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return lives


@pytest.mark.parametrize("count", [2, 5])
def test_all_know_the_same_life(count: int) -> None:
    store = RankStore()
    lives = met([Meeting(store, rank, count) for rank in range(count)])
    assert len(set(lives)) == 1
    assert lives[0]


@pytest.mark.parametrize("first_looks", [0, 1])
def test_words_of_the_life_before_are_not_taken(first_looks: int) -> None:
    store = RankStore()
    before = met([Meeting(store, rank, 2) for rank in range(2)])[0]
    again = [Meeting(store, rank, 2) for rank in range(2)]
    assert again[first_looks].look() == ""
    assert again[1 - first_looks].look() == ""
    after = met(again)
    assert len(set(after)) == 1
    assert after[0] not in ("", before)


def test_the_first_answers_who_came_late_and_not_who_was_there_before() -> None:
    store = RankStore()
    Meeting(store, 1, 2)  # it showed itself, and was killed
    first = Meeting(store, 0, 2)
    assert first.look() == ""
    assert first.look() == ""
    late = Meeting(store, 1, 2)
    assert len(set(met([first, late]))) == 1


def test_nobody_goes_on_before_the_last_has_come() -> None:
    store = RankStore()
    first, second = Meeting(store, 0, 3), Meeting(store, 1, 3)
    for _ in range(5):
        assert (first.look(), second.look()) == ("", "")
    third = Meeting(store, 2, 3)
    assert len(set(met([first, second, third]))) == 1


def test_a_stop_waits_for_the_meeting_but_not_for_who_never_asks() -> None:
    stop = Stop()
    stop.listen = lambda: False  # type: ignore[method-assign]
    stop.signal = signal.SIGTERM
    answers = [stop.requested("") for _ in range(30)]
    assert not any(answers[:20])
    assert all(answers[20:])
