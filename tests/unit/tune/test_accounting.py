"""What a run cost, put together from what was followed; unknown with its reason where no GPU trained."""

from pathlib import Path
from typing import Any

import pytest

from flatout.records.plan import Choice, Fingerprint, Plan
from flatout.records.running import JobRun
from flatout.runtime.command import JobCommand
from flatout.runtime.live_document import Promise
from flatout.runtime.living import Living
from flatout.runtime.own_devices import OwnDevices
from flatout.tune.accounting import promise_of, with_account
from tests.detached import until
from tests.fakes.training_devices import H200_UUID, TwoBusyGpus
from tests.unit.analyze.events import MS, START, loader, training, write_rank


def job_run() -> JobRun:
    return JobRun(run="a", steps=24, exit_code=0, took_s=1.0, levers=(), dropped_levers={})


def lived(folder: Path, about: dict[str, Any]) -> Living:
    events = training(24)
    for place in (0, 8, 16):  # three epochs begin
        events.append(loader(place * 100 * MS, place * 100 * MS + 1, START))
    events.sort(key=lambda event: event[2] if len(event) > 2 and event[0] != "step" else event[1])
    with Living(folder, Promise(name="a"), devices=OwnDevices([TwoBusyGpus()]), every_s=0.02) as living:
        with living.life(folder / "job"):
            write_rank(folder / "job", events, about)
            until(lambda: living.own.energy().joules or about["device"] == "cpu", "energy")
        living.ended(0, None)
    return living


def test_a_run_on_a_gpu_has_its_cost_energy_and_limits(tmp_path: Path) -> None:
    about = {"device": "cuda:0", "device_uuid": H200_UUID.removeprefix("GPU-")}
    living = lived(tmp_path, about)
    done = with_account(job_run(), living)
    assert living.latest is not None
    cost = done.cost
    assert cost is not None
    assert cost.price.usd_per_gpu_hour is not None
    assert cost.usd == pytest.approx(
        cost.price.usd_per_gpu_hour * living.latest.totals.device_s / 3600, rel=1e-6
    )
    assert cost.usd_per_step == pytest.approx(cost.usd / 24)
    assert cost.usd_per_thousand_samples == pytest.approx(cost.usd / (24 * 8) * 1000)
    assert cost.usd_per_epoch == pytest.approx(cost.usd / 3)
    assert cost.unknown["usd_per_million_tokens"] == "no tokens were counted"
    assert cost.energy.joules is not None
    assert cost.joules_per_step == pytest.approx(cost.energy.joules / 24)
    assert done.throttling is not None
    assert done.epoch_s == pytest.approx(0.8)


def test_a_run_on_the_cpu_says_why_it_has_none(tmp_path: Path) -> None:
    done = with_account(job_run(), lived(tmp_path, {"device": "cpu"}))
    assert done.cost is None
    assert done.unknown["cost"] == done.unknown["throttling"] == "it trains on the CPU"
    assert done.epoch_s == pytest.approx(0.8)


def test_a_plan_for_another_script_promises_nothing() -> None:
    now = Fingerprint(script="train.py", script_sha256="a")
    command = JobCommand(("/usr/bin/python", "/far/away/train.py", "--lr", "1"), own_python=True)
    own = Plan(job=now, levers=(Choice(id="tf32"),), samples_per_s=100.0, mfu=0.5)
    promise = promise_of(command, own, now, None)
    assert (promise.samples_per_s, promise.mfu, promise.has_levers) == (100.0, 0.5, True)
    other = Plan(job=Fingerprint(script="other.py", script_sha256="b"), samples_per_s=100.0, mfu=0.5)
    assert promise_of(command, other, now, None).samples_per_s is None


def test_a_long_command_is_shortened_for_lists() -> None:
    now = Fingerprint(script="train.py", script_sha256="a")
    given = ("train.py", *("--a-long-option",) * 20)
    promise = promise_of(JobCommand(given, own_python=True, given=given), Plan(job=now), now, None)
    assert len(promise.name) == 80
    assert promise.name.startswith("train.py --a-long-option")
