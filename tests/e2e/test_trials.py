"""`flatout profile` and `flatout check` on real scripts: right figures, and no trace of a trial anywhere."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jobs import (
    QUICK,
    TWO_RANKS,
    Place,
    document,
    furnish,
    insist_on_writes,
    losses_in,
    place_in,
    torchrun,
)
from tests.unit.runtime.house import Who, shield_refusal


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


def usual_shield() -> str:
    """What this machine allows, by a test of its own."""
    myself = Who(uid=os.getuid(), gid=os.getgid(), python=sys.executable)
    return "redirect" if shield_refusal(myself) else "overlay"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("check", "--steps", "2"), marks=pytest.mark.full),
        ("profile", "--no-limits", "--steps", "2"),
    ],
)
def test_a_trial_leaves_every_file_as_it_was(place: Place, command: tuple[str, ...]) -> None:
    furnish(place)
    before = place.snapshot()
    done = place.flatout(*command, "--json", "train.py")
    assert done.returncode == 0, done.stderr
    assert place.snapshot() == before
    for trial in place.trial("").iterdir():
        insist_on_writes(place, place.said(trial.name))
    whole = document(done)
    for trial in whole.get("trials") or [whole["trial"]]:
        assert trial["shield"]["kind"] == usual_shield(), trial["shield"]


class Profiled:
    """One script, run bare and profiled, for several questions."""

    steps = 5

    def __init__(self, place: Place) -> None:
        self.place = place
        script = (
            "import os\n"
            "for name, value in os.environ.items():\n"
            "    if name.startswith(('WANDB', 'MLFLOW', 'NEPTUNE', 'HF_')): print('env', name, value)\n"
            + QUICK
            + "steps = int(os.environ.get('STEPS', 10**9))\n"
            "try:\n"
            "    for _ in range(steps): print('loss', update().hex(), flush=True)\n"
            "finally:\n"
            "    print('finally ran', flush=True)\n"
        )
        place.script(script)
        self.bare = place.bare("train.py", STEPS=str(self.steps))
        self.done = place.flatout(
            "profile", "--no-limits", "--json", "--steps", str(self.steps), "train.py", WANDB_MODE="online"
        )
        self.document = document(self.done)
        self.said = place.said()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Profiled]:
    with place_in(tmp_path_factory.mktemp("profiled")) as place:
        yield Profiled(place)


def test_a_trial_ends_after_the_asked_update_and_runs_no_finally_block(profiled: Profiled) -> None:
    assert profiled.done.returncode == 0, profiled.done.stderr
    assert profiled.document["updates"] == 5
    assert profiled.document["trial"]["outcome"] == "stopped"
    assert profiled.document["trial"]["exit_code"] == 0
    # One more than were timed, in which the operations are counted.
    assert len(losses_in(profiled.said)) in (5, 6)
    assert "finally ran" in profiled.bare.stdout
    assert "finally ran" not in profiled.said


def test_the_losses_are_those_of_the_bare_script_bit_for_bit(profiled: Profiled) -> None:
    assert profiled.bare.returncode == 0, profiled.bare.stderr
    printed = losses_in(profiled.bare.stdout)
    assert len(set(printed)) == 5
    assert [loss.hex() for loss in profiled.document["losses"]] == printed


def test_a_profile_document_has_what_others_rely_on(profiled: Profiled) -> None:
    whole = profiled.document
    assert whole["schema"] == "flatout.profile/1"
    assert whole["run"] == profiled.place.trial().parents[1].name
    assert 1 <= whole["steps"] <= 5
    assert 0 < whole["step_ms"]["p50"] <= whole["step_ms"]["p95"]
    parts = {part["part"]: part for part in whole["waterfall"]}
    assert list(parts) == ["input_wait", "optimizer", "host_compute", "unattributed"]
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1.0)
    assert all(part["share"] >= 0 and part["ms"] >= 0 for part in parts.values())
    assert sum(part["ms"] for part in parts.values()) == pytest.approx(whole["step_ms"]["mean"])
    mfu = whole["mfu"]
    assert {"of_rated", "of_measured", "peak_dtype", "flops_per_step", "reason"} <= set(mfu)
    # A product of 8x4 by 4x1 in both directions, without one for the input's gradient.
    assert mfu["flops_per_step"] == 2 * (2 * 8 * 4)
    assert mfu["of_measured"] is None
    assert "not been measured" in mfu["unknown"]["of_measured"]
    assert whole["findings"] == []
    page = profiled.place.trial().parents[1] / "report.html"
    assert whole["report"].endswith(f"{page.parent.name}/report.html")
    assert "Where the time goes" in page.read_text()
    assert [rank["rank"] for rank in whole["ranks"]] == [0]


def test_every_null_of_a_profile_has_a_reason(profiled: Profiled) -> None:
    nothing = [name for name, value in profiled.document.items() if value is None]
    assert nothing
    assert all(profiled.document["unknown"][name] for name in nothing)


def test_trackers_are_offline_whatever_the_user_has_set(profiled: Profiled) -> None:
    seen = dict(line.split(" ", 2)[1:] for line in profiled.said.splitlines() if line.startswith("env "))
    assert seen["WANDB_MODE"] == "disabled"
    assert seen["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert seen["MLFLOW_TRACKING_URI"].startswith("file:///")
    for name in ("MLFLOW_TRACKING_URI", "WANDB_DIR", "NEPTUNE_DATA_DIRECTORY"):
        folder = Path(seen[name].removeprefix("file://"))
        assert profiled.place.temporary in folder.parents
        assert not folder.exists()
    assert "HF_HUB_OFFLINE" not in seen  # downloads stay possible


def test_a_saved_profile_is_drawn_again_as_it_was(profiled: Profiled) -> None:
    shown = profiled.place.flatout("report", profiled.document["run"])
    assert shown.returncode == 0, shown.stderr
    assert "Linear, 5 parameters, Sgd on cpu" in shown.stdout
    for part in ("forward", "backward", "optimizer"):
        assert re.search(rf"^{part} .*%", shown.stdout, re.MULTILINE)
    assert "MFU: unknown" in shown.stdout
    again = json.loads(profiled.place.flatout("report", profiled.document["run"], "--json").stdout)
    assert again["documents"]["profile"] == profiled.document


@pytest.mark.full
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(("--steps", "6"), id="steps"),
        pytest.param(("--seconds", "1.5"), id="seconds", marks=pytest.mark.full),
    ],
)
def test_all_ranks_stop_at_the_same_update(place: Place, how: tuple[str, ...]) -> None:
    place.script(TWO_RANKS)
    before = place.snapshot()
    done = place.flatout("profile", "--no-limits", "--json", *how, *torchrun("train.py"))
    assert done.returncode == 0, done.stderr
    whole = document(done)
    assert [rank["rank"] for rank in whole["ranks"]] == [0, 1]
    first, second = (rank["updates"] for rank in whole["ranks"])
    assert first == second
    assert whole["updates"] == 6 if how[0] == "--steps" else whole["updates"] > 6
    assert whole["trial"]["ranks"] == 2
    assert whole["trial"]["outcome"] == "stopped"
    assert len({rank["pid"] for rank in whole["ranks"]}) == 2
    # A count of both ranks together.
    assert whole["mfu"]["flops_per_step"] == 2 * 2 * (2 * 8 * 4)
    assert "finally ran" not in place.said()
    assert place.snapshot() == before


def checks_in(whole: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in whole["checks"]}


def test_a_sound_script_passes_its_check_and_the_check_is_drawn_again(place: Place) -> None:
    place.script(QUICK + "while True: update()\n")
    done = place.flatout("check", "--steps", "3", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flatout profile train.py" in done.stdout
    shown = place.flatout("report", "latest")
    assert shown.returncode == 0, shown.stderr
    assert done.stdout.strip() in shown.stdout
    saved = json.loads(place.flatout("report", "latest", "--json").stdout)["documents"]["check"]
    assert saved["schema"] == "flatout.check/1"
    assert {check["status"] for check in saved["checks"]} == {"ok"}
    assert len(saved["losses"]) == saved["updates"] == 3
    assert [trial["name"] for trial in saved["trials"]] == ["first run", "second run"]
    assert {p["name"] for p in saved["parameters"]} == {"weight", "bias"}


def test_check_names_a_parameter_that_no_gradient_reaches(place: Place) -> None:
    script = QUICK.replace(
        "model = torch.nn.Linear(4, 1)",
        "model = torch.nn.Linear(4, 1)\nmodel.unused = torch.nn.Parameter(torch.zeros(2))",
    )
    place.script(script + "while True: update()\n")
    done = place.flatout("check", "--json", "train.py")
    assert done.returncode == 1, done.stderr
    whole = document(done)
    assert whole["schema"] == "flatout.check/1"
    check = checks_in(whole)["gradients.reach"]
    assert check["status"] == "fail"
    assert check["evidence"] == "no gradient reaches 1 of 3 parameters: unused"
    assert check["fix"]
    assert [c["id"] for c in whole["checks"] if c["status"] == "fail"] == ["gradients.reach"]


def test_check_finds_a_loss_that_is_not_a_number(place: Place) -> None:
    script = QUICK.replace(".square()", ".sub(10).sqrt()")
    assert script != QUICK
    place.script(script + "while True: update()\n")
    done = place.flatout("check", "--json", "train.py")
    assert done.returncode == 1, done.stderr
    whole = document(done)
    check = checks_in(whole)["loss.finite"]
    assert check["status"] == "fail"
    assert check["evidence"] == "the loss of backward 1 is nan"
    assert whole["losses"][0] is None
    assert whole["nulls"]["losses.0"] == "not a number"
    assert checks_in(whole)["gradients.finite"]["status"] == "fail"


@pytest.mark.full
def test_check_names_a_parameter_without_optimizer_and_batches_without_seed(place: Place) -> None:
    script = QUICK.replace("Sgd(model.parameters())", "Sgd([model.weight])")
    script = script.replace("torch.randn(8, 4)", "torch.randn(8, 4, generator=unseeded)")
    assert script.count("unseeded") == script.count("model.weight") == 1
    seed = "import os\nunseeded = torch.Generator().manual_seed(int.from_bytes(os.urandom(4)))\n"
    place.script(script + seed + "while True: update()\n")
    done = place.flatout("check", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    checks = checks_in(document(done))
    assert checks["optimizer.covers"]["status"] == "warn"
    assert checks["optimizer.covers"]["evidence"] == "no optimizer updates bias"
    assert checks["determinism"]["status"] == "warn"
    assert checks["determinism"]["evidence"].endswith("see different batches, first in update 1")
    assert {c["status"] for c in checks.values()} == {"ok", "warn"}


SLOW_DATA = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((4,), float(index % 7))
"""
STREAM = """
class Slow(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.01)
            yield torch.ones(4)
"""
LOADING = """
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.full
def test_the_sweep_finds_that_workers_help_a_slow_data_set(place: Place) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("on one core the sweep tries one worker at most")
    place.script(QUICK + SLOW_DATA + LOADING)
    done = place.flatout("profile", "--no-limits", "--json", "--loader", "--seconds", "3", "train.py")
    assert done.returncode == 0, done.stderr
    whole = document(done)
    assert whole["loaders"][0]["settings"]["num_workers"] == 0
    parts = {part["part"]: part["share"] for part in whole["waterfall"]}
    assert parts["input_wait"] > 0.9
    sweep = whole["loader_sweep"]
    rows = {row["settings"].get("num_workers", "as written"): row for row in sweep["rows"]}
    assert {"as written", 1, 2} <= set(rows)
    assert all(row["outcome"] == "measured" for row in rows.values())
    assert sweep["best"]["num_workers"] >= 2
    assert rows[2]["samples_per_s"] > 1.5 * rows["as written"]["samples_per_s"]
    assert re.fullmatch(r"\d+% more samples a second than as written", sweep["reason"])
    shown = place.flatout("report", "latest")
    assert re.search(r"best: DataLoader\(\.\.\., num_workers=\d", shown.stdout)


@pytest.mark.full
def test_the_sweep_refuses_workers_for_a_stream_that_would_come_twice(place: Place) -> None:
    place.script(QUICK + STREAM + LOADING)
    done = place.flatout("profile", "--no-limits", "--json", "--loader", "--seconds", "2", "train.py")
    assert done.returncode == 0, done.stderr
    sweep = document(done)["loader_sweep"]
    written, refused = sweep["rows"]
    assert (written["settings"], written["outcome"]) == ({}, "measured")
    assert (refused["settings"]["num_workers"], refused["outcome"]) == (1, "refused")
    assert "never asks get_worker_info would yield everything twice" in refused["reason"]
    assert sweep["best"] is None


OBSERVED = """
import gc, json, os, sys, torch
import flatout
import torch.optim.optimizer as optimizers
from torch.utils.data import DataLoader

def looks():
    own = [torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.optim.SGD, DataLoader,
        torch.autograd, torch.amp.GradScaler, torch.nn.utils, torch.utils.data.dataloader,
        torch.utils.data._utils.worker, torch.utils.data._utils.fetch, torch]
    return ([dict(vars(one)) for one in own], list(gc.callbacks), dict(vars(model)), dict(vars(optimizer)),
        dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for batch in DataLoader(torch.ones(8 * steps, 4), batch_size=8):
        optimizer.zero_grad()
        model(batch.to("cpu")).square().mean().backward()
        optimizer.step()
train(1)
before = looks()
to, call = torch.Tensor.to, torch.nn.Module.__call__
with flatout.observe() as seen:
    inside = looks()
    train(6)
after = looks()
assert torch.Tensor.to is to and torch.nn.Module.__call__ is call

def differences(one, other):
    # Modules gain names when their lazy parts are loaded; all else must be as it was.
    found = [name for a, b in zip(one[0], other[0]) for name in (a if "__spec__" in a else {**a, **b})
        if name not in a or b.get(name) is not a[name]]
    found += [place for place in range(1, 6) if one[place] != other[place]]
    return sorted(map(str, found))

print("put in place", json.dumps(differences(before, inside)))
print("left", json.dumps(differences(before, after)))
print("updates", seen.profile.updates, seen.run)
child = os.fork()
if child == 0: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
try:
    with flatout.observe(show=False) as failing:
        train(2)
        raise KeyError("the user's own")
except KeyError as error:
    print("passed", error.args, failing.profile.updates)
with flatout.observe(show=False) as idle: pass
print("idle", idle.profile, idle.reason)
print("left", json.dumps(differences(before, looks())))
"""


def test_observe_shows_a_block_and_puts_everything_back(place: Place) -> None:
    place.script(OBSERVED)
    done = place.bare("-W", "error", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    in_place = json.loads(said["put"].removeprefix("in place "))
    assert "to" in in_place
    assert {"1", "4", "5"} <= set(in_place)  # the collector's callbacks, and the optimizers' global hooks
    assert re.findall(r"^left (.*)$", done.stdout, re.MULTILINE) == ["[]", "[]"]
    assert said["updates"].startswith("6 ")
    assert "Linear, 5 parameters, SGD on cpu" in done.stdout
    assert re.search(r"^backward .*%", done.stdout, re.MULTILINE)
    assert said["passed"] == '("the user\'s own",) 2'
    assert said["idle"] == "None no optimizer update happened in the block"
    runs = json.loads(place.flatout("report", "--json").stdout)["runs"]
    assert sorted(run["status"] for run in runs) == ["done", "done", "failed"]
    assert {run["command"] for run in runs} == {"observe"}
    shown = place.flatout("report", said["updates"].split()[1])
    assert "Linear, 5 parameters, SGD on cpu" in shown.stdout
