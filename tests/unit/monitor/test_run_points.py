"""What is known of a job and of its GPUs, as points; unknown is absent, never 0."""

import math
from pathlib import Path
from typing import Any

from flatout.monitor.sinks.lines_read import LoggedLines
from flatout.monitor.sinks.run_points import job_point, loss_points
from flatout.monitor.sinks.traces import place_traces
from flatout.records.device import Device, DeviceSample
from flatout.records.live import LiveJob
from flatout.records.points import Point, line_of


def step(update: int, *losses: float | None) -> dict[str, Any]:
    return {"update": update, "losses": list(losses), "ended_ns": update * 1_000_000_000}


def live(**known: Any) -> LiveJob:
    return LiveJob(
        run="r",
        name="train.py",
        run_folder="/r",
        host="h",
        pid=1,
        user="u",
        state="training",
        started_at_unix_s=0.0,
        written_at_unix_s=50.0,
        updates=70,
        **known,
    )


def sample(**known: Any) -> DeviceSample:
    return DeviceSample(index=0, uuid="GPU-1", taken_at_unix_s=49.0, **known)


GPU = Device(index=0, vendor="nvidia", name="NVIDIA H200", uuid="GPU-1")


def test_losses_come_at_their_update_without_a_scalers_factor() -> None:
    steps = [step(1, 2.0, 4.0), step(2, None), step(3), step(4, math.nan)]
    found = loss_points(steps, after_update=100, loss_scale=2.0, unix_at_zero_s=1000.0)
    assert [(point.step, point.at_unix_s) for point in found] == [(101, 1001.0), (104, 1004.0)]
    assert found[0].values == {"flatout/loss": 1.5}
    assert math.isnan(found[1].values["flatout/loss"])


def test_of_very_many_losses_some_are_sent() -> None:
    steps = [step(update, float(update)) for update in range(1, 10_001)]
    found = loss_points(steps, after_update=0, loss_scale=None, unix_at_zero_s=0.0)
    assert 100 <= len(found) <= 200
    assert loss_points([], after_update=0, loss_scale=None, unix_at_zero_s=0.0) == []


def test_a_row_holds_what_is_known_of_job_and_device_side_by_side() -> None:
    job = live(step_s=0.5, samples_per_s=64.0, data_wait_share=0.1, loss_scale=1024.0)
    found = job_point(job, 30.0, [(GPU, sample(power_draw_mw=700_000, temperature_c=60))])
    assert found == Point(
        70,
        50.0,
        {
            "flatout/step_seconds": 0.5,
            "flatout/samples_per_second": 64.0,
            "flatout/data_wait_ratio": 0.1,
            "flatout/loss_scale": 1024.0,
            "flatout/epoch_seconds": 30.0,
            "flatout/gpu0/power_watts": 700.0,
            "flatout/gpu0/temperature_celsius": 60.0,
        },
    )


def test_a_device_that_is_lost_tells_nothing() -> None:
    lost = sample(state="down", power_draw_mw=700_000)
    assert job_point(live(), None, [(GPU, lost)]).values == {}


def test_lines_that_are_not_whole_yet_are_read_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "ranks" / "0-12" / "logged.jsonl"
    file.parent.mkdir(parents=True)
    lines = LoggedLines(tmp_path)
    assert lines.look() == []
    first, second = line_of(Point(1, 0.0, {"a": 1.0})), line_of(Point(2, 0.0, {"a": 2.0}))
    file.write_text(f"{first}\n{second[:9]}")
    assert [point.step for point in lines.look()] == [1]
    assert lines.look() == []
    file.write_text(f"{first}\n{second}\nnonsense\n")
    assert [point.step for point in lines.look()] == [2]


def test_recordings_lie_where_tensorboard_looks_and_are_copied_once(tmp_path: Path) -> None:
    made = [
        tmp_path / "a" / "rank0-step500.pt.trace.json.gz",
        tmp_path / "b" / "rank1-step500.pt.trace.json.gz",
        tmp_path / "a" / "rank0.pt.trace.json.gz",
    ]
    for path in made:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(path.name.encode())
    board = tmp_path / "board"
    placed = place_traces(board, "run-1", made)
    assert sorted(str(path.relative_to(board)) for path in placed) == [
        "plugins/profile/run-1-step500/rank0.pt.trace.json.gz",
        "plugins/profile/run-1-step500/rank1.pt.trace.json.gz",
        "plugins/profile/run-1/rank0.pt.trace.json.gz",
    ]
    assert placed[1].read_bytes() == b"rank1-step500.pt.trace.json.gz"
    assert place_traces(board, "run-1", made) == []
    assert not list(board.rglob("*.part"))
