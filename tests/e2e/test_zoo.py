"""Scripts of many shapes, run bare and watched: the same output and exit code, and the right steps seen.

The zoo's scripts print each loss as `loss <hex>`, so that losses can be compared bit for bit.
"""

import dataclasses
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.steps import StepsReader
from flatout.records.session import EVENTS_FILE, RANKS_FOLDER, SESSION_FILE, SESSION_VARIABLE, Order

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
    # Calls of a model that evaluates, by step.
    evaluations: tuple[int, ...] | None = None


SHAPES = (
    Shape("plain", updates=8, samples=16),
    Shape("accumulation", updates=6, samples=16, losses_a_step=4),
    Shape("gan", updates=5, losses_a_step=2),
    Shape("lbfgs", updates=3, losses_a_step=-1),
    Shape("workers", updates=6, samples=4),
    Shape("evaluation", updates=6, samples=7, evaluations=(3, 0, 3, 0, 3, 0)),
    Shape("own_compile", updates=5),
    Shape("module_compile", updates=5),
    Shape("copies", updates=5, samples=4),
    Shape("leaves", updates=7, samples=3, exit_code=3, arguments=("--steps", "7")),
    Shape("crashes", updates=3, samples=3, exit_code=1),
    Shape("no_loader", updates=12, samples=10),
    Shape("iterable", updates=12, samples=5),
    Shape("sampler", updates=6, samples=4),
    Shape("several_loaders", updates=10, samples=16),  # 4 labelled and 12 not, each by a call of its own
    Shape("evaluation_first", updates=9, samples=6),
    Shape("autocast", updates=6, samples=8),
    Shape("ema", updates=6, samples=4),
    Shape("exits", updates=4, samples=9, exit_code=5, arguments=("--rate", "0.05")),
    Shape("catches_everything", updates=4, samples=5, exit_code=7),
    Shape("own_signals", updates=6, samples=3),
    Shape("two_optimizers", updates=7, samples=5),
    Shape("sam", updates=6, samples=16, losses_a_step=2),  # the same 8 twice
    Shape("custom_optimizer", updates=8, samples=11),
    Shape("profiles_itself", updates=10, samples=12),
    Shape("reads_stdin", updates=4, samples=6),
    Shape("threads", updates=6, samples=13),
    Shape("background_loader", updates=12, samples=5),
    Shape("actor_and_learner", updates=12, samples=9),
    Shape("folds", updates=15, samples=6),
    Shape("hooks", updates=5, samples=7),
    Shape("perceptual", updates=5, samples=3),
    Shape("warns", updates=4, samples=1),
    # All updates of one backward pass are one step, however many optimizers make them.
    Shape("optimizer_in_backward", updates=6, samples=10, arguments=("1",)),
    Shape("optimizer_in_backward", updates=6, samples=10, arguments=("30",)),
)


# Ranks on gloo abort now and then when they leave, watched or bare: one run in twenty on a busy machine.
TORCHS_OWN_ABORT = "terminate called without an active exception"


def run(command: list[str], cwd: Path, order: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE}
    environment["OMP_NUM_THREADS"] = "1"
    if order is not None:
        environment[SESSION_VARIABLE] = str(order)
        # Where flatout is only importable and not installed, its sitecustomize stands for the .pth file.
        site = Path(__file__).parents[2] / "src" / "flatout" / "entry" / "site"
        environment["PYTHONPATH"] = os.pathsep.join([str(site), environment.get("PYTHONPATH", "")])
    for _ in range(3):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env=environment,
            timeout=250,
        )
        if TORCHS_OWN_ABORT not in done.stderr:
            break
        if order is not None:
            shutil.rmtree(Order.read(order).folder)
    return done


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
    return StepsReader(rank / EVENTS_FILE).read_all()


def training_ranks(ranks: Path) -> list[Path]:
    return [rank for rank in sorted(ranks.iterdir()) if steps_of(rank)]


# Rarer shapes: each takes ten seconds, and `make test-all` runs them too.
RARE = {
    "copies", "leaves", "sam", "custom_optimizer", "profiles_itself", "threads", "background_loader",
    "actor_and_learner", "folds", "hooks", "perceptual", "warns", "optimizer_in_backward", "module_compile",
    "several_loaders", "crashes", "evaluation_first", "no_loader", "exits", "own_signals", "two_optimizers",
    "own_compile", "autocast", "catches_everything", "accumulation",
    "lbfgs", "sampler", "ema", "iterable", "reads_stdin", "gan", "evaluation",
}  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, marks=pytest.mark.full) if shape.script in RARE else shape for shape in SHAPES],
    ids=lambda shape: shape.script,
)
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
    if shape.evaluations is not None:
        assert tuple(step["evaluations"] for step in steps) == shape.evaluations
        assert [step["forwards"] for step in steps] == [1] * shape.updates
    if shape.script == "plain":
        insist_that_each_instant_is_inside(steps)


def insist_that_each_instant_is_inside(steps: list[dict[str, Any]]) -> None:
    """A step begins where the one before ended, and has all of its parts."""
    for step in steps:
        parts = ("loader_ns", "forward_ns", "backward_ns", "optimizer_ns")
        assert all(step[part] > 0 for part in parts)
        assert sum(step[part] for part in parts) <= step["ended_ns"] - step["started_ns"]
    for earlier, later in itertools.pairwise(steps):
        assert earlier["ended_ns"] == later["started_ns"]


@pytest.mark.parametrize(
    "script",
    [
        "background_loader",
        *(pytest.param(name, marks=pytest.mark.full) for name in ("actor_and_learner", "sam")),
    ],
)
def test_no_time_is_counted_twice(script: str, tmp_path: Path) -> None:
    _, ranks = watched(tmp_path, [sys.executable, str(ZOO / f"{script}.py")])
    [rank] = training_ranks(ranks)
    for step in steps_of(rank):
        parts = [step[f"{part}_ns"] for part in ("loader", "forward", "backward", "optimizer", "evaluation")]
        assert min(parts) >= 0
        assert sum(parts) <= step["ended_ns"] - step["started_ns"]


def test_an_evaluation_before_the_first_update_or_after_the_last_is_no_training(tmp_path: Path) -> None:
    _, ranks = watched(tmp_path, [sys.executable, str(ZOO / "evaluation_first.py")])
    [rank] = training_ranks(ranks)
    # Two calls each: before step 1, after 3 and 6, and after the last, which no step follows.
    assert [step["evaluations"] for step in steps_of(rank)] == [2, 0, 0, 2, 0, 0, 2, 0, 0]
    assert [step["forwards"] for step in steps_of(rank)] == [1] * 9


@pytest.mark.full
def test_an_update_that_the_scaler_skipped_is_counted_and_is_no_step(tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / "grad_scaler.py")]
    seen, ranks = watched(tmp_path, command)
    assert seen.stdout == run(command, tmp_path, None).stdout
    [rank] = training_ranks(ranks)
    steps = steps_of(rank)
    assert len(steps) == 5
    assert [step["skipped_updates"] for step in steps] == [0, 0, 1, 0, 0]
    assert [step["forwards"] for step in steps] == [1, 1, 2, 1, 1]


@pytest.mark.full
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


@pytest.mark.full
def test_ranks_that_the_script_spawns_itself_are_told_apart(tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / "mp_spawn_ddp.py")]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert (seen.returncode, seen.stdout) == (bare.returncode, bare.stdout) == (0, bare.stdout), seen.stderr
    training = training_ranks(ranks)
    about = [json.loads((rank / SESSION_FILE).read_text()) for rank in training]
    assert [(one["rank"], one["world_size"], one["updates"]) for one in about] == [(0, 2, 6), (1, 2, 6)]
    assert {step["samples"] for rank in training for step in steps_of(rank)} == {4}
    printed = re.findall(r"^losses (\S+) (\S+)$", seen.stdout, re.MULTILINE)
    for rank, losses in zip(training, zip(*printed, strict=True), strict=True):
        assert [step["losses"] for step in steps_of(rank)] == [[float.fromhex(loss)] for loss in losses]


def test_a_script_that_refuses_its_arguments_says_so_as_ever(tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / "exits.py"), "--shape", "box"]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert bare.returncode == 2
    assert "usage: exits" in bare.stderr
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert not ranks.exists() or training_ranks(ranks) == []


@pytest.mark.full
def test_a_script_that_is_answered_on_its_input_takes_the_answer(tmp_path: Path) -> None:
    command = ["sh", "-c", f"echo 0.25 | '{sys.executable}' '{ZOO / 'reads_stdin.py'}'"]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert "uses 0.25" in seen.stdout
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    [rank] = training_ranks(ranks)
    assert len(steps_of(rank)) == 4


def test_an_error_within_the_model_reaches_the_user_as_it_was(tmp_path: Path) -> None:
    command = [sys.executable, str(ZOO / "crashes_in_forward.py")]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert (seen.returncode, seen.stdout) == (bare.returncode, bare.stdout) == (1, bare.stdout)
    # Frames of ours may stand between the user's own; these are all there, in order, with the same last line.
    frames = re.compile(r'^  File ".*/zoo/.*$|^\w*Error: .*$', re.MULTILINE)
    assert frames.findall(seen.stderr) == frames.findall(bare.stderr)
    assert len(frames.findall(bare.stderr)) == 4
    [rank] = training_ranks(ranks)
    assert len(steps_of(rank)) == 3


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.mark.full
def test_a_package_run_as_a_module_finds_itself_and_leaves_what_it_leaves_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pkg.train", "6", "--flag"]
    bare_place, place = tmp_path / "bare", tmp_path / "watched"
    for folder in (bare_place, place):
        folder.mkdir()
        shutil.copytree(ZOO / "pkg", folder / "pkg", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "order.json"
    Order(folder=str(tmp_path / "run")).write(path)
    seen = run(command, place, path)
    bare = run(command, bare_place, None)
    assert "['6', '--flag'] __main__ pkg pkg.train pkg.model" in bare.stdout
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert sorted(files_in(place)) == sorted(files_in(bare_place))
    [rank] = training_ranks(tmp_path / "run" / RANKS_FOLDER)
    assert [step["samples"] for step in steps_of(rank)] == [5] * 4


@pytest.mark.full
def test_each_training_that_a_shell_script_starts_is_seen(tmp_path: Path) -> None:
    command = ["env", f"PYTHON={sys.executable}", "sh", str(ZOO / "train.sh")]
    seen, ranks = watched(tmp_path, command)
    bare = run(command, tmp_path, None)
    assert bare.returncode == 0, bare.stderr
    assert (seen.returncode, seen.stdout, seen.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    printed = [float.fromhex(text) for text in re.findall(r"^loss (\S+)$", seen.stdout, re.MULTILINE)]
    of_each = [[loss for step in steps_of(rank) for loss in step["losses"]] for rank in training_ranks(ranks)]
    assert sorted(of_each, key=len) == [printed[:3], printed[3:]]


@pytest.mark.full
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


@pytest.mark.full
def test_a_tap_that_fails_turns_itself_off_and_the_others_go_on(tmp_path: Path) -> None:
    breaks = tmp_path / "breaks"
    breaks.mkdir()
    (breaks / "sitecustomize.py").write_text(
        "import flatout.inside.loader as loader\n"
        "def fail(self, *_): raise ValueError('a defect of ours')\n"
        "loader.LoaderTap._learn = fail\n"
    )
    command = [sys.executable, str(ZOO / "plain.py")]
    bare = run(command, tmp_path, None)
    path, folder = tmp_path / "order.json", tmp_path / "run"
    Order(folder=str(folder)).write(path)
    environment = {**os.environ, SESSION_VARIABLE: str(path), "OMP_NUM_THREADS": "1"}
    site = Path(__file__).parents[2] / "src" / "flatout" / "entry" / "site"
    environment["PYTHONPATH"] = os.pathsep.join([str(site), str(breaks), os.environ.get("PYTHONPATH", "")])
    seen = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=250)
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
