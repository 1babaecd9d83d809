"""Real jobs under `flatout run`, looked at from outside while they run, after they ended, and killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.records.live import LIVE_FILE
from flatout.runtime.live_jobs import live_jobs
from tests.e2e.conftest import Run
from tests.e2e.jobs import QUICK

Live = dict[str, Any]


def steady(updates: int) -> str:
    return f"{QUICK}\nfor number in range({updates}):\n    update()\n    time.sleep(0.02)\nprint('done')\n"


@contextlib.contextmanager
def begun(place: Path, script: str, *options: str) -> Iterator["subprocess.Popen[str]"]:
    (place / "train.py").write_text(script)
    job = subprocess.Popen(
        [sys.executable, "-m", "flatout", "run", "--as-written", *options, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env={**os.environ, "FLATOUT_CACHE_DIR": str(place / "cache"), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        yield job
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def live_of(place: Path) -> Live | None:
    for path in (place / ".flatout" / "runs").glob(f"*/{LIVE_FILE}"):
        found: Live = json.loads(path.read_text())
        return found
    return None


def wait_for(place: Path, is_it: Callable[[Live], bool], *, at_most_s: float = 60) -> Live:
    deadline = time.monotonic() + at_most_s
    live = None
    while time.monotonic() < deadline:
        live = live_of(place)
        if live is not None and is_it(live):
            return live
        time.sleep(0.05)
    raise AssertionError(f"it never came so far: {live}")


# Waits at three places until it was seen there, however seldom somebody looks.
SEEN = (
    QUICK
    + """
import os
def until_seen(name):
    while not os.path.exists(name):
        time.sleep(0.01)
until_seen("starting")
for number in range(250):
    update()
    time.sleep(0.02)
    if number == 40:
        until_seen("training")
    if number == 80:
        until_seen("later")
"""
)


def test_a_job_is_seen_to_start_train_and_end(tmp_path: Path) -> None:
    with begun(tmp_path, SEEN) as job:
        wait_for(tmp_path, lambda live: live["state"] == "starting" and not live["updates"])
        (tmp_path / "starting").touch()
        first = wait_for(tmp_path, lambda live: live["state"] == "training" and live["updates"] > 20)
        (tmp_path / "training").touch()
        assert first["pid"] == job.pid
        assert first["exit_code"] is None
        later = wait_for(tmp_path, lambda live: live["updates"] > first["updates"])
        (tmp_path / "later").touch()
        assert later["state"] == "training"
        _, told = job.communicate(timeout=60)
        assert job.returncode == 0, told
    last = live_of(tmp_path)
    assert last is not None
    assert (last["state"], last["exit_code"], last["updates"], last["life"]) == ("ended", 0, 250, 1)
    assert last["totals"]["samples"] == 250 * 8
    assert sum(last["totals"]["steps"]["counts"]) == 249
    assert 0.02 <= last["step_s"] < 1
    assert last["loss"] > 0
    assert last["memory_peak_bytes"] > 0
    assert last["unknown"]["usd_per_hour"] == "it trains on the CPU"
    assert last["unknown"]["finding"] == "no profile of this script: flatout profile train.py"
    [ended] = live_jobs(roots=[tmp_path / ".flatout"])
    assert (ended.state, ended.exit_code) == ("ended", 0)


CRASHES = QUICK + (
    """
import os
lives = len(open("lives").read()) if os.path.exists("lives") else 0
open("lives", "a").write("x")
for number in range(20 + 20 * lives):
    update()
    time.sleep(0.01)
if not lives:
    raise SystemExit(7)
"""
)


@pytest.mark.full
def test_totals_carry_over_when_a_job_is_started_again_and_its_document_has_the_account(
    flatout: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(CRASHES)
    done = flatout("run", "--as-written", "--retries", "2", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    live = live_of(tmp_path)
    assert live is not None
    assert (live["state"], live["life"], live["updates"]) == ("ended", 2, 40)
    assert live["totals"]["samples"] == (20 + 40) * 8
    assert sum(live["totals"]["steps"]["counts"]) == 19 + 39
    document = json.loads(done.stdout)
    assert document["cost"] is None
    assert document["unknown"]["cost"] == "it trains on the CPU"
    assert document["unknown"]["epoch_s"]


@pytest.mark.full
def test_a_job_that_is_killed_with_flatout_is_told_as_that(tmp_path: Path) -> None:
    with begun(tmp_path, steady(100_000)) as job:
        wait_for(tmp_path, lambda live: live["state"] == "training")
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            [found] = live_jobs(roots=[tmp_path / ".flatout"])
            if found.state == "stalled":
                break
            time.sleep(0.5)
        assert found.state == "stalled"
        assert found.state_reason.startswith("whoever wrote this is gone")
        assert found.updates > 0


@pytest.mark.full
def test_a_run_folder_that_cannot_be_written_to_harms_no_job(tmp_path: Path) -> None:
    """What is in the way of the file is a folder: not even root can write there."""
    with begun(tmp_path, steady(150)) as job:
        run = Path(wait_for(tmp_path, lambda live: live["state"] == "starting")["run_folder"])
        (run / LIVE_FILE).unlink()
        (run / LIVE_FILE / "in-the-way").mkdir(parents=True)
        out, told = job.communicate(timeout=60)
    assert job.returncode == 0, told
    assert out == "done\n"
    assert told.count("cannot be written down") == 1
    assert "150 steps" in told


EPOCHS = """
import flatout, torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
checkpointer = flatout.Checkpointer("saved", model=model, optimizer=optimizer, every=10)
step = 0
for epoch in range(5):
    for (batch,) in DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8):
        loss = model(batch).square().mean()
        scaler.scale(loss * (float("inf") if epoch == 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        step += 1
        checkpointer.step(step)
checkpointer.close()
"""


def test_epochs_a_scalers_scale_and_checkpoints_are_seen_and_a_report_tells_them_again(
    flatout: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(EPOCHS)
    done = flatout("run", "--as-written", "train.py")
    assert done.returncode == 0, done.stderr
    assert "a pass over the data takes" in " ".join(done.stderr.split())
    live = live_of(tmp_path)
    assert live is not None
    assert live["loss_scale"] == 1024.0 / 2**8
    assert live["totals"]["skipped_updates"] == 8
    assert live["checkpoint_update"] == 40
    assert live["totals"]["losses_not_finite"] >= 1
    again = flatout("report", "latest")
    assert "a pass over the data takes" in " ".join(again.stdout.split())


RANKS = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
dist.destroy_process_group()
"""


@pytest.mark.full
def test_two_ranks_are_seen_with_the_samples_of_both(tmp_path: Path) -> None:
    with begun(tmp_path, RANKS, "--nproc-per-node", "2") as job:
        out, told = job.communicate(timeout=250)
        assert job.returncode == 0, told + out
    live = live_of(tmp_path)
    assert live is not None
    assert [(rank["rank"], rank["updates"]) for rank in live["ranks"]] == [(0, 60), (1, 60)]
    assert live["totals"]["samples"] == 2 * 60 * 8
    assert sum(live["totals"]["steps"]["counts"]) == 59


HUGGING_FACE = """
import torch, transformers
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def forward(self, x=None, labels=None):
        return {"loss": (self.layer(x).squeeze(-1) - labels).square().mean()}
data = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(48)]
settings = transformers.TrainingArguments(
    "out", num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to=[],
    save_strategy="no", use_cpu=True)
transformers.Trainer(Model(), settings, train_dataset=data).train()
"""
LIGHTNING = """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(48, 4)), batch_size=4)
lightning.Trainer(
    max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
).fit(Model(), data)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("package", "script", "planned"), [("transformers", HUGGING_FACE, 12), ("lightning", LIGHTNING, 36)]
)
def test_a_trainer_says_how_many_updates_are_planned(
    flatout: Run, tmp_path: Path, package: str, script: str, planned: int
) -> None:
    pytest.importorskip(package)
    (tmp_path / "train.py").write_text(script)
    done = flatout("run", "--as-written", "train.py")
    assert done.returncode == 0, done.stderr
    live = live_of(tmp_path)
    assert live is not None
    assert (live["updates_planned"], live["updates"]) == (planned, planned)
