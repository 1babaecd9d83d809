"""What is written down while a job runs: over several lives, with GPUs, and when nothing can be written."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.records.codec import decode
from flatout.records.hang import Hang
from flatout.records.live import LIVE_FILE, LIVE_KIND, LIVE_VERSION, LiveJob
from flatout.runtime.checkpoint.store import Partial
from flatout.runtime.live_document import Promise
from flatout.runtime.living import Living
from flatout.runtime.own_devices import OwnDevices
from tests.detached import until
from tests.fakes.training_devices import H200_UUID, TwoBusyGpus
from tests.unit.analyze.events import training, write_rank

OFTEN_S = 0.02


def read(folder: Path) -> LiveJob:
    path = folder / LIVE_FILE
    return decode(path.read_bytes(), path, LIVE_KIND, LIVE_VERSION, LiveJob, remedy="")


def wait_for(folder: Path, **wanted: Any) -> LiveJob:
    def found() -> LiveJob | None:
        job = read(folder) if (folder / LIVE_FILE).exists() else None
        is_it = job is not None and all(getattr(job, name) == value for name, value in wanted.items())
        return job if is_it else None

    return until(found, f"a job with {wanted}")


def living(folder: Path, **more: Any) -> Living:
    promise = more.pop("promise", Promise(name="train.py", script="train.py"))
    return Living(folder, promise, every_s=OFTEN_S, **more)


def test_lives_add_up(tmp_path: Path) -> None:
    with living(tmp_path) as job:
        wait_for(tmp_path, state="starting", life=1, updates=0)
        with job.life(tmp_path / "job"):
            write_rank(tmp_path / "job", training(10), {"device": "cpu"})
            wait_for(tmp_path, state="training", updates=10)
        wait_for(tmp_path, state="starting", state_reason="it ended, and may be started again", updates=10)
        with job.life(tmp_path / "job-2"):
            assert wait_for(tmp_path, life=2, updates=0).totals.samples == 80
            write_rank(tmp_path / "job-2", training(4), {"device": "cpu"})
            wait_for(tmp_path, state="training", updates=4)
        job.ended(7, None)
    last = read(tmp_path)
    assert (last.state, last.exit_code, last.life, last.updates) == ("ended", 7, 2, 4)
    assert last.totals.samples == 14 * 8
    assert sum(last.totals.steps.counts) == 9 + 3
    assert job.seen.updates_made() == 14
    assert last.unknown["usd_per_hour"] == "it trains on the CPU"
    assert last.unknown["signal"] == "ended without one"


def test_a_hang_is_a_state_until_it_goes_on(tmp_path: Path) -> None:
    hang = Hang(after_update=3, silent_s=60.0, usual_s=0.1, ranks=(), culprit=None, reason="it sleeps")
    with living(tmp_path) as job, job.life(tmp_path / "job"):
        write_rank(tmp_path / "job", training(3))
        wait_for(tmp_path, state="training")
        job.hangs(hang)
        found = wait_for(tmp_path, state="stalled")
        assert "it sleeps" in found.state_reason
        assert found.totals.stalled_s is not None
        assert found.totals.stalled_s >= 60
        job.goes_on()
        assert wait_for(tmp_path, state="training").totals.hangs == 1


def test_a_plan_promises_and_its_mfu_goes_with_the_rate(tmp_path: Path) -> None:
    promise = Promise(name="a", samples_per_s=160.0, mfu=0.4, has_levers=True)
    with living(tmp_path, promise=promise) as job, job.life(tmp_path / "job"):
        write_rank(tmp_path / "job", training(40))
    found = read(tmp_path)
    assert found.samples_per_s == pytest.approx(80.0)
    assert found.mfu == pytest.approx(0.2)
    assert found.unknown["headroom"].startswith("levers are on")


def test_a_loss_comes_without_its_scale_and_one_that_is_not_finite_is_said(tmp_path: Path) -> None:
    with living(tmp_path) as job, job.life(tmp_path / "job"):
        write_rank(tmp_path / "job", training(3, loss=1024.0), {"loss_scale": 512.0})
        assert wait_for(tmp_path, loss_scale=512.0).loss == pytest.approx(2.0)
        shutil.rmtree(tmp_path / "job")
    with living(tmp_path) as job, job.life(tmp_path / "job"):
        write_rank(tmp_path / "job", training(3, loss=float("nan")))
    found = read(tmp_path)
    assert found.loss is None
    assert found.unknown["loss"] == "the last one was not finite"
    assert found.totals.losses_not_finite == 3


@pytest.mark.parametrize("told_by", ["the session", "the order"])
def test_the_newest_checkpoint_is_seen_where_the_job_saves(tmp_path: Path, told_by: str) -> None:
    folder = tmp_path / "saved"
    for step in (20, 40):
        Partial(folder, step, "token").commit({})
    about = {"checkpoints": str(folder)} if told_by == "the session" else {}
    promise = Promise(name="a", protected=None if about else folder)
    with living(tmp_path, promise=promise) as job, job.life(tmp_path / "job"):
        write_rank(tmp_path / "job", training(3), about)
    found = read(tmp_path)
    assert found.checkpoint_update == 40
    assert found.checkpoint_at_unix_s == pytest.approx(time.time(), abs=60)


def test_gpus_are_counted_and_paid_for(tmp_path: Path) -> None:
    own = OwnDevices([TwoBusyGpus()])
    with living(tmp_path, devices=own) as job, job.life(tmp_path / "job"):
        about = {"device": "cuda:0", "device_uuid": H200_UUID.removeprefix("GPU-")}
        write_rank(tmp_path / "job", training(3), about)
        until(lambda: wait_for(tmp_path, devices=(H200_UUID,)).totals.energy_j, "energy")
    found = read(tmp_path)
    assert found.totals.energy_j > 0
    assert found.totals.energy_source == "counter"
    assert found.totals.device_idle_s > 0
    assert found.totals.device_s == pytest.approx(found.written_at_unix_s - found.started_at_unix_s)
    assert found.usd_per_hour is not None


def test_a_folder_that_is_removed_is_said_once_and_not_made_again(tmp_path: Path) -> None:
    folder, said = tmp_path / "run", []
    folder.mkdir()
    with living(folder, tell=said.append) as job:
        wait_for(folder, state="starting")
        # In one piece: to empty a folder into which somebody writes may take several turns.
        folder.rename(tmp_path / "elsewhere")
        until(lambda: said, "a word about it")
        with job.life(folder / "job"):
            time.sleep(5 * OFTEN_S)
        job.ended(0, None)
    assert len(said) == 1
    assert "is gone" in said[0]
    assert not folder.exists()


def test_events_that_make_no_sense_harm_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    with living(tmp_path, tell=said.append) as job:
        with job.life(tmp_path / "job"):
            folder = write_rank(tmp_path / "job", training(3))
            with (folder / "events.jsonl").open("a") as file:
                file.write('nonsense\n[["step"]]\n')
            until(lambda: said, "a word about them")
            with (folder / "events.jsonl").open("a") as file:
                file.write(json.dumps(training(5)[-10:]) + "\n")
            wait_for(tmp_path, updates=5)
        job.ended(0, None)
    assert len(said) == 1
    assert read(tmp_path).state == "ended"


def test_whoever_tells_may_fail_as_well(tmp_path: Path) -> None:
    said: list[str] = []

    def broken(text: str) -> None:
        said.append(text)
        raise OSError("the terminal was closed")

    with living(tmp_path / "nowhere", tell=broken) as job, job.life(tmp_path / "nowhere" / "job"):
        until(lambda: said, "a word that cannot be told")
        time.sleep(3 * OFTEN_S)
    assert len(said) == 1


def test_an_end_by_an_exception_is_written_down(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), living(tmp_path) as job, job.life(tmp_path / "job"):
        raise KeyboardInterrupt
    found = read(tmp_path)
    assert (found.state, found.state_reason) == ("ended", "flatout run ended with KeyboardInterrupt")
