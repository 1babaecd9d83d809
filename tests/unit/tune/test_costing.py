"""What a run cost, from its folder: while it runs, afterwards, and where there is nothing to count."""

import dataclasses
import io
import platform
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flatout.records.codec import encode
from flatout.records.energy import Cost, HourPrice
from flatout.records.live import (
    LIVE_FILE,
    LIVE_KIND,
    LIVE_VERSION,
    STEP_BUCKETS_S,
    LiveJob,
    LiveTotals,
    StepTimes,
)
from flatout.records.running import JobRun
from flatout.records.runs import RunFolder
from flatout.report.cost import draw_cost
from flatout.tune.costing import run_cost, together

JOB = LiveJob(
    run="r",
    name="train.py --lr 3e-4",
    run_folder="/r",
    host="h",
    pid=1,
    user="u",
    state="training",
    started_at_unix_s=0.0,
    written_at_unix_s=3600.0,
    updates=1000,
    updates_planned=4000,
    step_s=3.0,
    usd_per_hour=8.0,
    devices=("GPU-a", "GPU-b"),
    totals=LiveTotals(
        steps=StepTimes(counts=(1000, *(0,) * len(STEP_BUCKETS_S)), sum_s=3000.0),
        samples=64_000,
        device_s=7200.0,
        device_idle_s=900.0,
        data_wait_s=300.0,
        evaluation_s=400.0,
        before_first_step_s=150.0,
        energy_j=4.2e6,
        energy_source="counter",
        throttled_s={"power_cap": 60.0},
    ),
)


def folder_with(root: Path, live: LiveJob | None, done: JobRun | None = None) -> RunFolder:
    folder = RunFolder.create(root / ".flatout", command="run", arguments=())
    with folder.writing():
        if live is not None:
            (folder.path / LIVE_FILE).write_bytes(encode(LIVE_KIND, LIVE_VERSION, live))
        if done is not None:
            folder.write("job", 1, done)
    return RunFolder.open(folder.path)


def drawn(*runs: Any, width: int = 120) -> str:
    out = io.StringIO()
    draw_cost(together(list(runs)), Console(file=out, width=width))
    return out.getvalue()


def test_a_running_job_tells_dollars_a_step_and_to_the_end(tmp_path: Path) -> None:
    found = run_cost(folder_with(tmp_path, JOB))
    assert found.cost is not None
    assert found.cost.usd == pytest.approx(8.0)  # two GPUs for an hour, at the price of both
    assert found.cost.usd_per_step == pytest.approx(0.008)
    assert found.cost.usd_per_thousand_samples == pytest.approx(8 / 64)
    assert found.cost.usd_to_end is not None
    assert found.cost.usd_per_epoch is None
    text = drawn(found)
    for said in ("2 GPU hours", "0.008 USD", "before the first step", "waiting for data", "4200 J"):
        assert said in text


def test_the_users_price_and_epoch_go_before_what_was_kept(tmp_path: Path) -> None:
    found = run_cost(folder_with(tmp_path, JOB), own_usd=1.0, epoch_samples=32_000)
    assert found.cost is not None
    assert found.cost.usd == pytest.approx(2.0)
    assert found.cost.usd_per_epoch == pytest.approx(1.0)
    assert found.cost.price.source == "your own price"


def test_a_job_that_is_over_keeps_its_price_and_its_epochs(tmp_path: Path) -> None:
    kept = Cost(
        gpus=2,
        gpu_hours=2.0,
        price=HourPrice(usd_per_gpu_hour=3.0, source="the lowest listed"),
        usd_per_step=0.006,
        usd_per_epoch=3.0,
    )
    done = JobRun(run="r", steps=1000, exit_code=0, took_s=3600.0, levers=(), dropped_levers={}, cost=kept)
    found = run_cost(folder_with(tmp_path, dataclasses.replace(JOB, state="ended"), done))
    assert found.cost is not None
    assert found.cost.usd == pytest.approx(6.0)
    assert found.cost.usd_per_epoch == pytest.approx(3.0)


def test_a_job_without_a_gpu_or_an_account_says_why(tmp_path: Path) -> None:
    cpu = run_cost(folder_with(tmp_path, dataclasses.replace(JOB, devices=())))
    assert cpu.cost is None
    assert "no GPU" in cpu.unknown["cost"]
    older = run_cost(folder_with(tmp_path, None))
    assert older.cost is None
    assert "No cost: it was not run by" in drawn(older)


def test_several_runs_add_up_and_one_without_a_price_makes_the_sum_unknown(tmp_path: Path) -> None:
    one = run_cost(folder_with(tmp_path, JOB))
    two = run_cost(folder_with(tmp_path, dataclasses.replace(JOB, usd_per_hour=None)))
    both = together([one, two])
    assert both.gpu_hours == pytest.approx(4.0)
    assert both.usd is None
    assert both.unknown["usd"]
    assert together([one, one]).usd == pytest.approx(16.0)
    assert "all" in drawn(one, two)


def killed(root: Path, **changes: Any) -> RunFolder:
    """A run as `kill -9` leaves it: its folder says "running", and nobody holds its lock."""
    folder = RunFolder.create(root / ".flatout", command="run", arguments=())
    live = dataclasses.replace(JOB, host=platform.node(), pid=1 << 30, **changes)
    (folder.path / LIVE_FILE).write_bytes(encode(LIVE_KIND, LIVE_VERSION, live))
    return RunFolder.open(folder.path)


def test_a_run_that_was_killed_has_no_end_to_pay_for(tmp_path: Path) -> None:
    found = run_cost(killed(tmp_path))
    assert found.state == "died"
    assert found.cost is not None
    assert found.cost.usd_to_end is None
    text = drawn(found)
    assert ", died)" in text
    assert "to the end" not in text
    assert run_cost(killed(tmp_path, devices=())).state == "died"


def test_a_run_whose_folder_is_locked_and_whose_news_are_old_is_told_as_stalled(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    with folder.writing():
        found = run_cost(RunFolder.open(folder.path))
    assert found.state == "stalled"
    assert found.cost is not None
    assert found.cost.usd_to_end is not None
    now = killed(tmp_path, written_at_unix_s=time.time())
    with now.writing():
        assert run_cost(RunFolder.open(now.path)).state == "training"


@pytest.mark.parametrize("damaged", [b'{"schema": "flatout.live/1", "', b'{"schema": "flatout.live/9"}', b""])
def test_a_damaged_account_costs_its_own_run_alone(tmp_path: Path, damaged: bytes) -> None:
    bad = folder_with(tmp_path, JOB)
    (bad.path / LIVE_FILE).write_bytes(damaged)
    runs = [run_cost(folder_with(tmp_path, JOB)), run_cost(bad)]
    assert together(runs).gpu_hours == pytest.approx(2.0)
    assert runs[1].cost is None
    assert LIVE_FILE in runs[1].unknown["cost"]
    assert LIVE_FILE in "".join(drawn(*runs).split())


@pytest.mark.parametrize("width", [20, 80, 120])
def test_ids_and_figures_of_many_runs_stay_whole(tmp_path: Path, width: int) -> None:
    long = dataclasses.replace(
        JOB,
        name="pretrain.py --config configs/large.yaml --lr 3e-4 --seed 1",
        totals=dataclasses.replace(JOB.totals, device_s=2 * 1150.4 * 3600),
    )
    runs = [run_cost(folder_with(tmp_path, job)) for job in (long, JOB)]
    text = drawn(*runs, width=width)
    shown = text if width >= 80 else "".join(text.split())
    for whole in (*(run.run for run in runs), "2,301", "9203.20", "2,303"):
        assert whole in shown
    assert all(word in "".join(text.split()) for word in long.name.split())
    assert "e+0" not in text
    assert all(len(line) <= width for line in text.splitlines())
    assert "2,301 GPU hours" in drawn(runs[0])
