"""Run folders are read as they are: growing, cut off in mid-line, with ranks that never trained."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.analyze.steps import StepsReader, calls_without_update, last_of_each, read_ranks, read_workers
from flatout.records.session import EVENTS_FILE, SESSION_FILE, WORKERS_FOLDER
from tests.unit.analyze.events import (
    MS,
    backward,
    closed,
    device,
    forward,
    rank_of,
    step,
    training,
    write_rank,
)


def written(events: list[tuple[object, ...]]) -> bytes:
    return b"".join(
        json.dumps(events[first : first + 3]).encode() + b"\n" for first in range(0, len(events), 3)
    )


def test_a_file_that_is_not_there_yet_has_no_steps(tmp_path: Path) -> None:
    reader = StepsReader(tmp_path / EVENTS_FILE)
    assert reader.read() == []
    (tmp_path / EVENTS_FILE).write_bytes(written(training(2)))
    assert [one["update"] for one in reader.read()] == [1, 2]
    assert reader.read() == []


@settings(deadline=None, max_examples=40)
@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_wherever_a_growing_file_is_read_the_steps_are_the_same(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = written(training(6))
    path = tmp_path_factory.mktemp("grows") / EVENTS_FILE
    reader, found, at = StepsReader(path), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(data)), len(data)]:
        with path.open("ab") as file:
            file.write(data[at:cut])
        at = max(at, cut)
        found += reader.read()
    assert found == StepsReader(path).read_all()
    assert [one["update"] for one in found] == [1, 2, 3, 4, 5, 6]


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_file_cut_in_mid_line_gives_the_steps_before_the_cut(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = written(training(6))
    path = tmp_path_factory.mktemp("cut") / EVENTS_FILE
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    found = StepsReader(path).read_all()
    assert [one["update"] for one in found] == list(range(1, len(found) + 1))
    complete = whole[:cut].rpartition(b"\n")[0]
    assert len(found) == complete.count(b'["step"')


def test_steps_are_given_in_order_also_where_device_times_never_came(tmp_path: Path) -> None:
    first, *rest = training(4)
    late = [device(1, None), device(3, 2.0)]
    write_rank(tmp_path, [first, ("clock", True), *rest, *late])
    [rank] = read_ranks(tmp_path)
    assert [one["update"] for one in rank.steps] == [1, 2, 3, 4]
    assert rank.device_ms() == [None, None, 2.0, None]


def test_a_step_with_an_evaluation_in_it_has_no_device_time_and_a_shorter_wall_time() -> None:
    rank = rank_of(
        [step(device_ms=5.0), step(device_ms=50.0, evaluations=1, evaluation_ns=40 * MS)],
    )
    assert rank.device_ms() == [5.0, None]
    assert rank.wall_ms() == [100.0, 60.0]


def test_ranks_come_in_order_and_those_that_never_trained_are_left_out(tmp_path: Path) -> None:
    write_rank(tmp_path, training(3), {"rank": 10}, name="10-7")
    write_rank(tmp_path, training(2), {"rank": 2}, name="2-900")
    write_rank(tmp_path, training(1), {"rank": 2}, name="2-88")
    write_rank(tmp_path, [("start", 0)], {"rank": 0}, name="0-5")
    ranks = read_ranks(tmp_path)
    assert [(one.rank, one.pid, len(one.steps)) for one in ranks] == [(2, 88, 1), (2, 900, 2), (10, 7, 3)]
    assert ranks[0].about == {"rank": 2}


def test_of_a_rank_that_was_started_again_the_last_process_counts(tmp_path: Path) -> None:
    write_rank(tmp_path, training(3), {"rank": 1, "unix_at_zero_s": 1000.0}, name="1-900")
    write_rank(tmp_path, training(3), {"rank": 1, "unix_at_zero_s": 2000.0}, name="1-88")
    write_rank(tmp_path, training(3), {"rank": 0, "unix_at_zero_s": 2000.0}, name="0-90")
    # Two that train at the same time, each by itself, are both there.
    write_rank(tmp_path, training(3), {"rank": 0, "unix_at_zero_s": 2000.0}, name="0-91")
    assert [(one.rank, one.pid) for one in last_of_each(read_ranks(tmp_path))] == [(0, 90), (0, 91), (1, 88)]


@pytest.mark.parametrize("text", ["", '{"rank": 0', "[1, 2]", None])
def test_a_rank_that_said_nothing_of_itself_still_has_its_steps(tmp_path: Path, text: str | None) -> None:
    place = write_rank(tmp_path, training(2))
    if text is not None:
        (place / SESSION_FILE).write_text(text)
    [rank] = read_ranks(tmp_path)
    assert rank.about == {}
    assert len(rank.steps) == 2


def test_no_folder_has_no_ranks(tmp_path: Path) -> None:
    assert read_ranks(tmp_path) == []
    assert calls_without_update(tmp_path) == (0, 0, 0)
    assert read_workers(tmp_path, 1) == []


def test_processes_without_an_update_are_counted_with_their_calls(tmp_path: Path) -> None:
    write_rank(tmp_path, training(2), name="0-1")
    write_rank(tmp_path, [("start", 0), forward(0, 1), backward(1, 2)], name="0-2")
    inference = [forward(place, place + 1, gradients=False) for place in range(5)]
    write_rank(tmp_path, [("start", 0), *inference], name="0-3")
    assert calls_without_update(tmp_path) == (2, 1, 5)


def test_calls_of_a_loss_do_not_count_as_a_models(tmp_path: Path) -> None:
    events = [("start", 0)]
    for at in range(0, 40, 10):
        events += [forward(at, at + 1), forward(at + 1, at + 2, root=1), backward(at + 2, at + 3)]
    write_rank(tmp_path, events, name="0-1")
    assert calls_without_update(tmp_path) == (1, 4, 0)


def test_workers_are_told_by_their_parent_and_damaged_reports_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / WORKERS_FOLDER
    folder.mkdir()
    for pid, parent, batches in ((1, 100, 4), (2, 100, 0), (3, 200, 9)):
        (folder / f"{pid}.json").write_text(
            json.dumps({"pid": pid, "parent_pid": parent, "batches": batches})
        )
    (folder / "4.json").write_text('{"pid": 4, "parent_')
    assert [worker["pid"] for worker in read_workers(tmp_path, 100)] == [1]


def test_a_closed_step_is_read_before_the_process_ends(tmp_path: Path) -> None:
    place = write_rank(tmp_path, [*training(1), closed(200 * MS, 2)])
    assert len(StepsReader(place / EVENTS_FILE).read()) == 2
