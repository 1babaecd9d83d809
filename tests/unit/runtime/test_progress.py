"""A running trial is followed by its files, told when it has shown enough, and stopped at one update."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.stopping import asked_to_stop_after
from flatout.records.session import EVENTS_FILE, RANKS_FOLDER
from flatout.runtime.progress import Progress, StopRule
from tests.unit.analyze.events import MS, Event, backward, closed, device, loader, optimizer

RULE = StopRule(precision=0.01, fewest_steps=30, fewest_seconds=1.0, most_seconds=1000.0)


class Rank:
    """A rank that writes as it goes."""

    def __init__(self, folder: Path, name: str = "0-100") -> None:
        self.path = folder / RANKS_FOLDER / name / EVENTS_FILE
        self.path.parent.mkdir(parents=True)
        self.at = 0
        self.update = 0
        self.write([("start", 0)])

    def write(self, events: list[Event]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(events) + "\n")

    def steps(self, times_ms: list[float], *, evaluation_ms: float = 0.0, compiled: bool = False) -> None:
        for ms in times_ms:
            start, self.at = self.at, self.at + round((ms + evaluation_ms) * MS)
            self.update += 1
            events: list[Event] = []
            if evaluation_ms:
                end = start + round(evaluation_ms * MS)
                events = [("forward", start, end, 0, False, False, (8, 3), True, 1)]
            if compiled:
                events.append(("compile", self.at - 3, self.at - 2, False))
            events += [loader(self.at - 2, self.at - 1), optimizer(self.at - 1, self.at)]
            self.write([*events, closed(self.at, self.update)])


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    return Progress(tmp_path)


def steady(count: int, level: float = 100.0, noise: float = 0.002) -> list[float]:
    rng = random.Random(3)
    return [level * (1 + rng.gauss(0, noise)) for _ in range(count)]


# Following --------------------------------------------------------------------------------------------------


def test_before_the_first_update_there_is_nothing_to_tell(progress: Progress, tmp_path: Path) -> None:
    assert not progress.look()
    Rank(tmp_path)
    assert not progress.look()
    assert (progress.updates, progress.median_ms(), progress.first_update) == (0, None, None)
    assert not progress.enough(RULE)


def test_steps_are_taken_in_as_they_are_written(progress: Progress, tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.steps([100.0, 100.0])
    assert progress.look()
    assert progress.updates == 2
    assert progress.first_update is not None
    assert not progress.look()
    rank.steps([300.0] * 60)
    assert progress.look()
    assert progress.updates == 62
    assert progress.median_ms() == pytest.approx(300.0)


def test_half_a_line_waits_for_its_other_half(progress: Progress, tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.steps([100.0])
    text = rank.path.read_text()
    rank.path.write_text(text[:-7])
    assert not progress.look()
    rank.path.write_text(text)
    assert progress.look()
    assert progress.updates == 1


def test_the_rank_that_is_furthest_counts(progress: Progress, tmp_path: Path) -> None:
    first, second = Rank(tmp_path, "0-100"), Rank(tmp_path, "1-101")
    first.steps([100.0] * 3)
    second.steps([100.0] * 5)
    progress.look()
    assert progress.updates == 5


def test_a_process_that_never_trains_hides_nobody(progress: Progress, tmp_path: Path) -> None:
    Rank(tmp_path, "0-1")  # it loaded torch, and comes first by name
    Rank(tmp_path, "0-100").steps(steady(60))
    progress.look()
    assert progress.median_ms() == pytest.approx(100.0, rel=0.01)
    assert progress.enough(RULE)


def test_an_update_is_news_before_its_device_times_have_come(progress: Progress, tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.write([("clock", True)])
    rank.steps([60_000.0])  # a slow job must not be taken for one that never starts
    assert progress.look()
    assert progress.updates == 1
    assert progress.first_update is not None
    assert (progress.median_ms(), progress.enough(RULE)) == (None, False)
    assert not progress.look()
    rank.write([device(1, None)])
    assert progress.look()
    assert progress.median_ms() == pytest.approx(60_000.0)


# Enough -----------------------------------------------------------------------------------------------------


def enough(folder: Path, write: Callable[[Rank], Any], rule: StopRule = RULE) -> bool:
    progress = Progress(folder)
    write(Rank(folder))
    progress.look()
    return progress.enough(rule)


def test_a_steady_job_has_shown_enough(tmp_path: Path) -> None:
    assert enough(tmp_path, lambda rank: rank.steps(steady(60)))


def test_too_few_steps_or_seconds_are_not_enough(tmp_path: Path) -> None:
    assert not enough(tmp_path / "few", lambda rank: rank.steps(steady(31)))
    assert not enough(tmp_path / "short", lambda rank: rank.steps(steady(60, level=5.0)))
    assert enough(tmp_path / "many", lambda rank: rank.steps(steady(400, level=5.0)))


def test_a_median_that_is_not_known_well_enough_is_not_enough(tmp_path: Path) -> None:
    noisy = steady(60, noise=0.2)
    assert not enough(tmp_path / "a", lambda rank: rank.steps(noisy))
    rough = StopRule(precision=0.2, fewest_steps=30, fewest_seconds=1.0)
    assert enough(tmp_path / "b", lambda rank: rank.steps(noisy), rough)


def test_a_job_that_compiles_or_changes_its_pace_has_not_shown_enough(tmp_path: Path) -> None:
    def compiles(rank: Rank) -> None:
        rank.steps(steady(40))
        rank.steps([100.0], compiled=True)
        rank.steps(steady(10))

    def shifts(rank: Rank) -> None:
        rank.steps(steady(60))
        rank.steps(steady(30, level=140.0))

    assert not enough(tmp_path / "compiles", compiles)
    assert not enough(tmp_path / "shifts", shifts)


def test_evaluations_do_not_disturb_the_judgement(tmp_path: Path) -> None:
    def evaluates(rank: Rank) -> None:
        for _ in range(12):
            rank.steps(steady(4))
            rank.steps([100.0], evaluation_ms=3000.0)

    assert enough(tmp_path, evaluates)


def test_device_times_of_steps_with_an_evaluation_in_them_do_not_count(tmp_path: Path) -> None:
    def on_gpu(rank: Rank) -> None:
        rank.write([("clock", True)])
        for _ in range(40):
            rank.steps([100.0], evaluation_ms=300.0 if rank.update % 2 else 0.0)
            rank.write([device(rank.update, 400.0 if not rank.update % 2 else 100.0)])

    assert enough(tmp_path, on_gpu)


def test_time_is_up_whatever_was_shown(tmp_path: Path) -> None:
    hurried = StopRule(most_seconds=0.0)
    assert enough(tmp_path, lambda rank: rank.steps([100.0]), hurried)


def test_a_rule_of_updates_is_left_to_the_session(tmp_path: Path) -> None:
    counted = StopRule(updates=5, most_seconds=0.0)
    assert not enough(tmp_path, lambda rank: rank.steps(steady(60)), counted)


# Stopping ---------------------------------------------------------------------------------------------------


def test_a_single_rank_stops_at_its_next_update(progress: Progress, tmp_path: Path) -> None:
    Rank(tmp_path).steps([100.0] * 7)
    progress.look()
    progress.ask_to_stop()
    assert asked_to_stop_after(tmp_path) == 8
    assert progress.asked_to_stop


def test_several_ranks_stop_at_one_update_that_none_has_reached(progress: Progress, tmp_path: Path) -> None:
    for rank in range(2):
        Rank(tmp_path, f"{rank}-{rank}").steps([50.0] * (10 + rank))
    progress.look()
    progress.ask_to_stop()
    # A second and a half of notice, at 50 ms a step, from the one that is furthest.
    assert asked_to_stop_after(tmp_path) == 11 + 1 + 30


def test_updates_whose_device_times_are_outstanding_were_reached_too(
    progress: Progress, tmp_path: Path
) -> None:
    for number in range(2):
        rank = Rank(tmp_path, f"{number}-{number}")
        rank.write([("clock", True)])
        rank.steps([2000.0] * 9)
        rank.write([device(1, None), device(2, 2000.0)])
    progress.look()
    assert progress.updates == 9
    progress.ask_to_stop()
    asked = asked_to_stop_after(tmp_path)
    assert asked is not None
    assert asked > 9


def test_an_order_to_stop_is_given_once(progress: Progress, tmp_path: Path) -> None:
    rank = Rank(tmp_path)
    rank.steps([100.0] * 3)
    progress.look()
    progress.ask_to_stop()
    rank.steps([100.0] * 10)
    progress.look()
    progress.ask_to_stop()
    assert asked_to_stop_after(tmp_path) == 4


def test_news_are_remembered_for_the_watch(progress: Progress, tmp_path: Path) -> None:
    before = progress.last_news
    Rank(tmp_path).write([backward(0, 1)])
    assert not progress.look()
    assert progress.last_news == before
    time.sleep(0.01)
    Rank(tmp_path, "0-7").steps([1.0])
    progress.look()
    assert progress.last_news > before
