"""Updates that are not finite, on a GPU: left out by the optimizer's own kernel, and nobody waits for it."""

import contextlib
import copy
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flatout
from flatout.inside.session import Session
from flatout.records.session import Order
from flatout.runtime.finite.guest import FiniteUpdates

NAN, INF = math.nan, math.inf


def network(**settings: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).cuda()
    return model, torch.optim.AdamW(model.parameters(), **{"lr": 0.01, "fused": True, **settings})


def state(model: nn.Module, optimizer: Any) -> list[torch.Tensor]:
    states = [one for values in optimizer.state.values() for one in values.values()]
    return [one.detach().clone() for one in (*model.parameters(), *states)]


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(some) == len(others) and all(
        torch.equal(one, two) for one, two in zip(some, others, strict=True)
    )


@contextlib.contextmanager
def nobody_waits() -> Iterator[None]:
    """Any synchronization that torch knows of is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_harness_sees_a_wait() -> None:
    waits = torch.ones(1, device="cuda")
    with nobody_waits(), pytest.raises(RuntimeError, match="synchronizing"):
        waits.item()


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_skipping_with_a_fused_optimizer_waits_for_nothing(clip: float | None, scaled: bool) -> None:
    model, optimizer = network()
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0) if scaled else None
    update = flatout.Update(model, optimizer, scaler=scaler, clip_norm=clip)
    data = torch.randn(16, 64, device="cuda")
    factors = [torch.tensor(one, device="cuda") for one in (1.0, 1.0, NAN, INF, 1.0)]

    def step(factor: torch.Tensor) -> None:
        loss = model(data).pow(2).mean() * factor
        (scaler.scale(loss) if scaler is not None else loss).backward()
        update.step(loss)

    step(factors[0])  # what is made once is made now: states, pinned memory
    step(factors[1])
    before = state(model, optimizer)
    with nobody_waits():
        step(factors[2])
        step(factors[3])
    assert equal(state(model, optimizer), before)
    with nobody_waits():
        step(factors[4])
    assert not equal(state(model, optimizer), before)
    counts = update.counts
    assert (counts.made, counts.skipped, counts.most_in_a_row) == (3, 2, 2)
    if scaler is not None:
        assert scaler.get_scale() == 256.0


def test_the_first_update_of_a_fused_sgd_leaves_no_momentum_behind() -> None:
    torch.manual_seed(0)
    models = [nn.Linear(64, 1).cuda() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9, fused=True) for one in models]
    update = flatout.Update(models[0], optimizers[0])
    data = torch.randn(16, 64, device="cuda")
    (models[0](data).mean() * NAN).backward()
    update.step()
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(data).pow(2).mean().backward()
            if optimizer is optimizers[0]:
                update.step()
            else:
                optimizer.step()
                optimizer.zero_grad()
    assert update.counts.skipped == 1
    assert torch.equal(models[0].weight, models[1].weight)


@pytest.mark.parametrize("settings", [{"fused": False}, {"fused": False, "foreach": False}, {"fused": True}])
def test_scheduler_and_average_go_with_the_optimizer(settings: dict[str, Any]) -> None:
    model, optimizer = network(**settings)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    average = torch.optim.swa_utils.AveragedModel(model)
    update = flatout.Update(model, optimizer, scheduler=scheduler, ema=average, clip_norm=1.0)
    data = torch.randn(16, 64, device="cuda")
    for step in range(6):
        loss = model(data).pow(2).mean() * (INF if step in (1, 4) else 1.0)
        loss.backward()
        update.step(loss)
    assert (update.counts.made, update.counts.skipped) == (4, 2)
    assert scheduler.last_epoch == int(average.n_averaged) == 4


def test_a_fused_optimizer_stops_one_update_late_with_the_state_of_the_last_good_one() -> None:
    model, optimizer = network()
    update = flatout.Update(model, optimizer, on_nan="stop")
    data = torch.randn(16, 64, device="cuda")
    made = []

    def train() -> None:
        for step in range(6):
            if step == 3:
                made.extend(state(model, optimizer))
            loss = model(data).pow(2).mean()
            loss.backward()
            if step == 3:
                model[2].weight.grad[0, 0] = NAN
            update.step(loss)
            made.append(torch.tensor(step))

    with pytest.raises(flatout.NotFinite) as raised:
        train()
    assert int(made.pop()) == 3  # step 4 is where it is raised
    assert equal(state(model, optimizer), [one for one in made if one.is_cuda])
    assert (raised.value.diagnosis.update, raised.value.diagnosis.parameters) == (4, ("2.weight",))


@pytest.mark.parametrize("scaled", [False, True])
def test_an_unmodified_script_with_a_fused_optimizer_waits_for_nothing(tmp_path: Path, scaled: bool) -> None:
    session = Session(torch, Order(folder=str(tmp_path), on_nan="skip", patience=9))
    session.arm()
    guest = FiniteUpdates(session)
    guest.install()
    try:
        model, optimizer = network()
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0) if scaled else None
        data = torch.randn(16, 64, device="cuda")
        factors = [torch.tensor(one, device="cuda") for one in (1.0, 1.0, 1.0, NAN, 1.0)]

        def step(factor: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss = model(data).pow(2).mean() * factor
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        for factor in factors[:3]:
            step(factor)
        before = state(model, optimizer)
        with nobody_waits():
            step(factors[3])
        assert equal(state(model, optimizer), before)
        with nobody_waits():
            step(factors[4])
        guest.close()
        found = copy.deepcopy(session.facts["finite_updates"])
        assert (found["made"], found["skipped"]) == (4, 1)
    finally:
        guest.remove()
        session.finish()
        session.disarm()


SWITCHED = """
import os, torch
model = torch.nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    loss.item()
    str(loss)
print(os.environ["CUDA_LAUNCH_BLOCKING"], torch.cuda.get_sync_debug_mode())
"""


def test_switches_of_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SWITCHED)
    words = ["run", "--as-written", "--debug", "blocking,sync,memory-history", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "flatout", *words], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 1\n"
    lines = SWITCHED.splitlines()
    for text in ("    loss.item()", "    str(loss)"):
        place = f"train.py:{lines.index(text) + 1} makes the host wait for the device"
        assert done.stderr.count(place) == 1
    [path] = tmp_path.glob(".flatout/runs/*/job.json")
    [history] = json.loads(path.read_text())["memory_histories"]
    assert (tmp_path / history).stat().st_size > 0
