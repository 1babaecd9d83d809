"""Training loops of other people, run bare and watched: Lightning, transformers, Accelerate.

They import much, so they are slower than the rest of the zoo. Each needs its framework, and is skipped where
it is missing. The framework is looked for, not imported: its warnings would be errors in the tests' process.
"""

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.records.session import RANKS_FOLDER, SESSION_FILE, Order
from tests.e2e.test_zoo import ZOO, run, steps_of, training_ranks

ALONE = (sys.executable,)
# Two ways to the same launcher.
COMMAND = (str(Path(sys.executable).with_name("accelerate")), "launch")
MODULE = (sys.executable, "-m", "accelerate.commands.launch")
# `--cpu` starts one process whatever the number (more would need MPI); `--multi_gpu` starts as many as asked.
ONE_PROCESS = ("--cpu", "--num_processes", "1")
TWO_PROCESSES = ("--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
SAYS_ALL = ("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")


@dataclasses.dataclass(frozen=True)
class Loop:
    """A script, how it is started, and what a watcher must see of each of its ranks."""

    name: str
    needs: str
    script: str
    updates: int
    samples: int
    losses_a_step: int = 1
    arguments: tuple[str, ...] = ()
    starts: tuple[str, ...] = ALONE
    ranks: int = 1


LOOPS = (
    # 32 samples in eights, twice; validation before, between and after.
    Loop("lightning", "lightning", "lightning_trainer", updates=8, samples=8),
    Loop(
        "lightning-checkpoints",
        "lightning",
        "lightning_trainer",
        updates=4,
        samples=16,
        losses_a_step=2,
        arguments=("--keep",),
    ),
    Loop("transformers", "transformers", "hf_trainer", updates=5, samples=8, losses_a_step=2),
    # 48 samples in fours.
    Loop("accelerate", "accelerate", "accelerated", updates=12, samples=4, arguments=("1",)),
    Loop(
        "accelerate-accumulation",
        "accelerate",
        "accelerated",
        updates=4,
        samples=12,
        losses_a_step=3,
        arguments=("3",),
    ),
    Loop(
        "accelerate-launch-one",
        "accelerate",
        "accelerated",
        updates=12,
        samples=4,
        arguments=("1",),
        starts=(*MODULE, *ONE_PROCESS, *SAYS_ALL),
    ),
    Loop(
        "accelerate-launch-two",
        "accelerate",
        "accelerated",
        updates=3,
        samples=8,
        losses_a_step=2,
        arguments=("2",),
        starts=(*COMMAND, *TWO_PROCESSES, *SAYS_ALL),
        ranks=2,
    ),
    Loop(
        "accelerate-torchrun",
        "accelerate",
        "accelerated",
        updates=6,
        samples=4,
        arguments=("1",),
        starts=(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        ranks=2,
    ),
)


def left_in(folder: Path) -> dict[str, int]:
    """The files that a script left, and their sizes: checkpoints hold the same weights in as many bytes."""
    return {
        str(file.relative_to(folder)): file.stat().st_size if file.is_file() else 0
        for file in folder.rglob("*")
    }


RARE = {
    "accelerate",
    "lightning",
    "transformers",
    "accelerate-torchrun",
    "lightning-checkpoints",
    "accelerate-launch-one",
    "accelerate-launch-two",
    "accelerate-accumulation",
}


@pytest.mark.parametrize(
    "loop",
    [pytest.param(loop, marks=pytest.mark.full) if loop.name in RARE else loop for loop in LOOPS],
    ids=lambda loop: loop.name,
)
def test_a_framework_trains_as_ever_and_its_steps_are_seen(loop: Loop, tmp_path: Path) -> None:
    if importlib.util.find_spec(loop.needs) is None:
        pytest.skip(f"{loop.needs} is not installed")
    command = [*loop.starts, str(ZOO / f"{loop.script}.py"), *loop.arguments]
    bare_place, place = tmp_path / "bare", tmp_path / "watched"
    bare_place.mkdir()
    place.mkdir()
    order, folder = tmp_path / "order.json", tmp_path / "run"
    Order(folder=str(folder)).write(order)
    seen = run(command, place, order)
    bare = run(command, bare_place, None)
    assert bare.returncode == 0, bare.stderr
    assert (seen.returncode, seen.stdout) == (bare.returncode, bare.stdout), seen.stderr
    if loop.ranks == 1:
        assert seen.stderr == bare.stderr
    assert left_in(place) == left_in(bare_place)
    assert not order.with_name("order.json.failed").exists()

    ranks = training_ranks(folder / RANKS_FOLDER)
    assert ranks == sorted((folder / RANKS_FOLDER).iterdir())  # what starts the ranks is left alone
    about: list[dict[str, Any]] = [json.loads((rank / SESSION_FILE).read_text()) for rank in ranks]
    assert [(one["rank"], one["world_size"]) for one in about] == [
        (number, loop.ranks) for number in range(loop.ranks)
    ]
    for rank, one in zip(ranks, about, strict=True):
        assert one["failed_taps"] == {}
        steps = steps_of(rank)
        assert one["updates"] == len(steps) == loop.updates
        assert {step["samples"] for step in steps} == {loop.samples}
        assert {len(step["losses"]) for step in steps} == {loop.losses_a_step}
    printed = [float.fromhex(text) for text in re.findall(r"^loss (\S+)$", seen.stdout, re.MULTILINE)]
    assert [loss for step in steps_of(ranks[0]) for loss in step["losses"]] == printed
