"""A life of a job is followed through the files of its ranks, whatever state these are in."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.records.hang import HEARTBEAT, HEARTBEAT_FILE
from flatout.records.session import EVENTS_FILE, OUT_OF_MEMORY_FILE, RANKS_FOLDER
from flatout.runtime.following import Life
from tests.unit.analyze.events import MS, closed, device, forward, training, write_rank

GONE = 4_194_305  # above the highest pid that Linux gives


def looked_at(place: Path) -> Life:
    life = Life(place)
    life.look()
    return life


def beat(folder: Path, updates: int, at_s: float) -> None:
    (folder / HEARTBEAT_FILE).write_bytes(HEARTBEAT.pack(updates, at_s, at_s))


def test_a_job_that_has_not_begun_has_no_ranks(tmp_path: Path) -> None:
    life = looked_at(tmp_path / "not-there")
    assert life.ranks() == []
    assert sum(life.totals().steps.counts) == 0


def test_time_is_that_of_the_first_rank_and_samples_are_those_of_all(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, training(20), {"device": "cpu"}, name=f"{rank}-{100 + rank}")
    life = looked_at(tmp_path)
    assert [(one.rank, one.pid, one.updates()) for one in life.ranks()] == [(0, 100, 20), (1, 101, 20)]
    totals = life.totals()
    assert sum(totals.steps.counts) == 19
    assert totals.samples == 2 * 20 * 8
    assert totals.data_wait_s == pytest.approx(0.2)


def test_a_line_that_is_still_being_written_is_read_the_next_time(tmp_path: Path) -> None:
    folder = write_rank(tmp_path, training(5))
    file, whole = folder / EVENTS_FILE, (folder / EVENTS_FILE).read_bytes()
    file.write_bytes(whole[:-20])
    life = looked_at(tmp_path)
    assert life.ranks()[0].updates() == 4
    file.write_bytes(whole)
    life.look()
    assert life.ranks()[0].updates() == 5


def test_the_process_that_made_the_last_update_is_the_rank_and_the_one_before_a_sum(tmp_path: Path) -> None:
    """A script that trains several models, each in a process of its own."""
    first = write_rank(tmp_path, training(10), name=f"0-{GONE}")
    beat(first, 10, 100.0)
    life = looked_at(tmp_path)
    second = write_rank(tmp_path, training(4), name=f"0-{os.getpid()}")
    beat(second, 4, 200.0)
    life.look()
    assert [one.pid for one in life.ranks()] == [os.getpid()]
    assert life.totals().samples == 14 * 8
    life.look()
    assert life.totals().samples == 14 * 8
    assert sum(life.totals().steps.counts) == 9 + 3


def test_a_training_that_came_back_counts_from_there(tmp_path: Path) -> None:
    write_rank(tmp_path, training(3), {"protection": {"resumed_at": 500}})
    assert looked_at(tmp_path).ranks()[0].updates() == 503


def test_silence_is_since_the_last_update(tmp_path: Path) -> None:
    folder = write_rank(tmp_path, training(10))
    now_s = time.monotonic()
    beat(folder, 12, now_s - 30)
    [rank] = looked_at(tmp_path).ranks()
    live = rank.live(now_s)
    assert live.updates == 12  # the file of events is a little behind
    assert live.silent_s == pytest.approx(30)


@pytest.mark.parametrize(
    ("about", "scale", "skipped"),
    [
        ({}, None, 0),
        ({"loss_scale": 512.0}, 512.0, 0),
        ({"loss_scale": 512.0, "finite_updates": {"loss_scale": 64.0, "skipped": 3}}, 64.0, 3),
        ({"finite_updates": None, "loss_scale": "nonsense"}, None, 0),
    ],
)
def test_what_scalers_and_on_nan_say(
    tmp_path: Path, about: dict[str, Any], scale: float | None, skipped: int
) -> None:
    write_rank(tmp_path, training(3), about)
    life = looked_at(tmp_path)
    assert life.ranks()[0].loss_scale() == scale
    assert life.totals().skipped_updates == skipped


def test_steps_that_wait_for_a_device_come_when_the_job_has_ended(tmp_path: Path) -> None:
    write_rank(tmp_path, [("clock", True), *training(4), device(1, 90.0), device(2, 90.0)])
    life = looked_at(tmp_path)
    assert life.totals().samples == 2 * 8
    life.close()
    assert life.totals().samples == 4 * 8


def test_an_evaluation_is_seen_while_it_goes_on(tmp_path: Path) -> None:
    evaluation = forward(300 * MS, 310 * MS, gradients=False, training=False)
    folder = write_rank(tmp_path, [*training(3), evaluation])
    life = looked_at(tmp_path)
    assert life.ranks()[0].is_evaluating()
    with (folder / EVENTS_FILE).open("a") as file:
        file.write(json.dumps([closed(400 * MS, 4)]) + "\n")
    life.look()
    assert not life.ranks()[0].is_evaluating()


def test_a_rank_that_ran_out_of_memory_is_seen(tmp_path: Path) -> None:
    folder = write_rank(tmp_path, training(3))
    life = looked_at(tmp_path)
    assert not life.ran_out_of_memory()
    (folder / OUT_OF_MEMORY_FILE).write_text("{}")
    assert life.ran_out_of_memory()


def test_files_that_are_no_ranks_are_left_alone(tmp_path: Path) -> None:
    write_rank(tmp_path, training(2))
    (tmp_path / RANKS_FOLDER / "notes-of-mine").mkdir()
    assert len(looked_at(tmp_path).ranks()) == 1
