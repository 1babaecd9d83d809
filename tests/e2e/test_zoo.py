"""Scripts of many shapes, run bare and watched: the same output and exit code, and the right steps seen.

The zoo's scripts print each loss as `loss <hex>`, so that losses can be compared bit for bit.
"""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.records.session import RANKS_FOLDER, SESSION_FILE, SESSION_VARIABLE, STEPS_FILE, Order

ZOO = Path(__file__).parent / "zoo"


@dataclasses.dataclass(frozen=True)
class Shape:
    """A script, and what a watcher must see of it."""

    script: str
    updates: int
    samples: int | None = None
    exit_code: int = 0
    arguments: tuple[str, ...] = ()
    losses_a_step: int = 1


SHAPES = (
    Shape("plain", updates=8, samples=16),
    Shape("accumulation", updates=6, samples=16, losses_a_step=4),
    Shape("gan", updates=5, losses_a_step=2),
    Shape("lbfgs", updates=3, losses_a_step=-1),
    Shape("workers", updates=6, samples=4),
    Shape("evaluation", updates=6, samples=7),
    Shape("own_compile", updates=5),
    Shape("module_compile", updates=5),
    Shape("copies", updates=5, samples=4),
    Shape("leaves", updates=7, samples=3, exit_code=3, arguments=("--steps", "7")),
    Shape("crashes", updates=3, samples=3, exit_code=1),
)


def run(command: list[str], cwd: Path, order: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE}
    environment["OMP_NUM_THREADS"] = "1"
    if order is not None:
        environment[SESSION_VARIABLE] = str(order)
        # Where flatout is only importable and not installed, its sitecustomize stands for the .pth file.
        site = Path(__file__).parents[2] / "src" / "flatout" / "entry" / "site"
        environment["PYTHONPATH"] = os.pathsep.join([str(site), environment.get("PYTHONPATH", "")])
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=100)


def watched(
    tmp_path: Path, command: list[str], **order: Any
) -> tuple[subprocess.CompletedProcess[str], Path]:
    path = tmp_path / "order.json"
    folder = tmp_path / "run"
    Order(folder=str(folder), **order).write(path)
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    done = run(command, place, path)
    assert list(place.iterdir()) == []  # the user's folder is as it was
    assert not path.with_name("order.json.failed").exists()
    return done, folder / RANKS_FOLDER


def steps_of(rank: Path) -> list[dict[str, Any]]:
    file = rank / STEPS_FILE
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def training_ranks(ranks: Path) -> list[Path]:
    return [rank for rank in sorted(ranks.iterdir()) if steps_of(rank)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.script)
def test_a_watched_script_behaves_as_a_bare_one_and_its_steps_are_seen(shape: Shape, tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / f"{shape.script}.py"), *shape.arguments]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert bare.returncode == shape.exit_code, bare.stderr
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)

    [rank] = training_ranks(ranks)
    about = json.loads((rank / SESSION_FILE).read_text())
    assert about["failed_taps"] == {}
    assert about["updates"] == shape.updates
    steps = steps_of(rank)
    assert [step["update"] for step in steps] == list(range(1, shape.updates + 1))
    if shape.samples is not None:
        assert {step["samples"] for step in steps} == {shape.samples}
    printed = [float.fromhex(text) for text in re.findall(r"^loss (\S+)$", seen.stdout, re.MULTILINE)]
    if printed:
        assert [loss for step in steps for loss in step["losses"]] == printed
    if shape.losses_a_step > 0:
        assert {len(step["losses"]) for step in steps} == {shape.losses_a_step}


def test_each_instant_of_a_step_is_inside_it(tmp_path: Path) -> None:
    _, ranks = watched(tmp_path, [sys.executable, str(ZOO / "plain.py")])
    [rank] = training_ranks(ranks)
    steps = steps_of(rank)
    for step in steps:
        parts = ("loader_ns", "forward_ns", "backward_ns", "optimizer_ns")
        assert all(step[part] > 0 for part in parts)
        assert sum(step[part] for part in parts) <= step["ended_ns"] - step["started_ns"]
    for earlier, later in itertools.pairwise(steps):
        assert earlier["ended_ns"] == later["started_ns"]


def test_evaluation_is_told_from_training(tmp_path: Path) -> None:
    _, ranks = watched(tmp_path, [sys.executable, str(ZOO / "evaluation.py")])
    [rank] = training_ranks(ranks)
    assert [step["evaluations"] for step in steps_of(rank)] == [3, 0, 3, 0, 3, 0]
    assert [step["forwards"] for step in steps_of(rank)] == [1] * 6


def test_an_update_that_the_scaler_skipped_is_counted_and_is_no_step(tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / "grad_scaler.py")]
    seen, ranks = watched(tmp_path, command)
    assert seen.stdout == run(command, tmp_path, None).stdout
    [rank] = training_ranks(ranks)
    steps = steps_of(rank)
    assert len(steps) == 5
    assert [step["skipped_updates"] for step in steps] == [0, 0, 1, 0, 0]
    assert [step["forwards"] for step in steps] == [1, 1, 2, 1, 1]


def test_spawned_and_forked_processes_that_train_each_have_their_own_steps(tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / "spawns.py")]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert sorted(len(steps_of(rank)) for rank in training_ranks(ranks)) == [3, 4, 4, 6]


def test_every_rank_of_torchrun_is_seen_and_its_supervisor_is_left_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command.append(str(ZOO / "ranks.py"))
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert seen.returncode == bare.returncode == 0, seen.stderr
    assert seen.stdout == bare.stdout
    assert [rank.name.split("-")[0] for rank in sorted(ranks.iterdir())] == ["0", "1"]
    assert [len(steps_of(rank)) for rank in sorted(ranks.iterdir())] == [5, 5]


def test_a_trial_stops_at_the_asked_update_without_running_what_would_save(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "try:\n"
        "    for number in range(1000):\n"
        "        model(torch.ones(1, 2)).sum().backward()\n"
        "        optimizer.step()\n"
        "finally:\n"
        "    torch.save(model.state_dict(), 'model.pt')\n"
    )
    done, ranks = watched(tmp_path, [sys.executable, str(script)], stop_after_updates=5)
    assert done.returncode == 0
    [rank] = training_ranks(ranks)
    assert len(steps_of(rank)) == 5
    assert json.loads((rank / SESSION_FILE).read_text())["ended"] == "stopped"


def test_a_tap_that_fails_turns_itself_off_and_the_others_go_on(tmp_path: Path) -> None:
    breaks = tmp_path / "breaks"
    breaks.mkdir()
    (breaks / "sitecustomize.py").write_text(
        "import flatout.inside.loader as loader\n"
        "def fail(self, *_): raise ValueError('a defect of ours')\n"
        "loader.LoaderTap._note = fail\n"
    )
    command = [sys.executable, str(ZOO / "plain.py")]
    bare = run(command, tmp_path, None)
    path, folder = tmp_path / "order.json", tmp_path / "run"
    Order(folder=str(folder)).write(path)
    environment = {**os.environ, SESSION_VARIABLE: str(path), "OMP_NUM_THREADS": "1"}
    site = Path(__file__).parents[2] / "src" / "flatout" / "entry" / "site"
    environment["PYTHONPATH"] = os.pathsep.join([str(site), str(breaks), os.environ.get("PYTHONPATH", "")])
    seen = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=100)
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    [rank] = training_ranks(folder / RANKS_FOLDER)
    about = json.loads((rank / SESSION_FILE).read_text())
    assert about["failed_taps"] == {"loader": "ValueError: a defect of ours"}
    assert about["updates"] == 8


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine ran')")
    site = Path(__file__).parents[2] / "src" / "flatout" / "entry" / "site"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(tmp_path)])}
    done = subprocess.run(
        [sys.executable, "-c", "import sitecustomize; print(sitecustomize.__file__)"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stdout.splitlines() == ["mine ran", str(tmp_path / "sitecustomize.py")]
