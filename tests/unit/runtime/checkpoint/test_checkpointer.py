"""A training that is saved as it goes, and found again."""

import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout.records.errors import CallerMistake, CorruptFile, EnvironmentProblem, LockHeld
from flatout.runtime.checkpoint.checkpointer import Checkpointer
from flatout.runtime.checkpoint.reading import read_state
from flatout.runtime.checkpoint.store import STATE_FILE, Partial, checkpoints, verify
from flatout.runtime.stopping import Stopped


class Training:
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    def steps(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            loss = self.model(torch.randn(6, 4)).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            losses.append(loss.item())
        return losses

    def checkpointer(self, folder: Path, **settings: Any) -> Checkpointer:
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return Checkpointer(folder, **{**parts, **settings})


def test_a_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    whole = Training().steps(12)
    first = Training()
    with first.checkpointer(tmp_path, every=5) as checkpointer:
        assert checkpointer.resume() == 0
        losses = []
        for step in range(1, 8):
            losses += first.steps(1)
            checkpointer.step(step)
    assert losses == whole[:7]
    second = Training(seed=99)
    with second.checkpointer(tmp_path) as checkpointer:
        assert checkpointer.resume() == 5
        assert second.steps(7) == whole[5:]


def test_what_is_saved_is_the_step_and_not_what_came_after(tmp_path: Path) -> None:
    training = Training()
    with training.checkpointer(tmp_path) as checkpointer:
        training.steps(2)
        saved = {name: one.clone() for name, one in training.model.state_dict().items()}
        checkpointer.save(2)
        training.steps(3)
        checkpointer.wait()
        checkpointer.resume()
        assert all(torch.equal(saved[name], one) for name, one in training.model.state_dict().items())


def test_as_many_are_kept_as_asked_for(tmp_path: Path) -> None:
    training = Training()
    with training.checkpointer(tmp_path, every=1, keep=3) as checkpointer:
        for step in range(1, 7):
            checkpointer.step(step)
    assert [one.step for one in checkpoints(tmp_path)] == [6, 5, 4]
    assert all(verify(one.path) for one in checkpoints(tmp_path))


def test_a_damaged_one_is_passed_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training = Training()
    with training.checkpointer(tmp_path, every=1) as checkpointer:
        checkpointer.step(1)
        checkpointer.step(2)
        checkpointer.wait()
        with (tmp_path / "step-000000002" / "model.safetensors").open("r+b") as file:
            file.seek(-3, os.SEEK_END)
            file.write(b"x")
        assert checkpointer.resume() == 1
        assert "step-000000002 cannot be used" in capfd.readouterr().err
        with pytest.raises(CorruptFile):
            checkpointer.resume("step-000000002")


def test_what_was_saved_after_the_step_that_it_went_back_to_is_set_aside(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training()
    with training.checkpointer(tmp_path, every=1, keep=3) as checkpointer:
        for step in (1, 2, 3):
            training.steps(1)
            checkpointer.step(step)
        checkpointer.wait()
        assert checkpointer.resume("step-000000001") == 1
        assert checkpoints(tmp_path)[0].step == 3  # a look alone changes nothing
        training.steps(2)
        weight = training.model[0].weight.detach().clone()
        checkpointer.step(2)
        checkpointer.wait()
        assert "now abandoned-step-000000003" in capfd.readouterr().err
        assert [one.step for one in checkpoints(tmp_path)] == [2, 1]
        assert verify(tmp_path / "abandoned-step-000000003")["step"] == 3
        training.steps(1)
        assert checkpointer.resume() == 2
        assert torch.equal(training.model[0].weight, weight)


def filled(training: Training, value: float) -> None:
    with torch.no_grad():
        training.model[0].weight.fill_(value)


def resumed_with(folder: Path) -> tuple[int, float]:
    again = Training()
    with again.checkpointer(folder) as checkpointer:
        return checkpointer.resume(), again.model[0].weight[0, 0].item()


def test_a_step_that_is_saved_again_is_as_it_was_last(tmp_path: Path) -> None:
    training = Training()
    with training.checkpointer(tmp_path, every=10, keep=1) as checkpointer:
        filled(training, 1.0)
        checkpointer.step(10)
        filled(training, 2.0)
        checkpointer.save(10)
    assert resumed_with(tmp_path) == (10, 2.0)
    assert [path.name for path in tmp_path.glob("*step*")] == ["step-000000010"]


def test_a_training_that_resumed_nothing_keeps_its_own_and_leaves_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = Training()
    with first.checkpointer(tmp_path, every=5) as checkpointer:
        filled(first, 1.0)
        checkpointer.step(5)
        checkpointer.step(10)
    second = Training()
    with second.checkpointer(tmp_path, every=5) as checkpointer:
        filled(second, 7.0)
        checkpointer.step(5)
        checkpointer.wait()
        told = "saved by another training, which was not resumed, now "
        assert f"{told}abandoned-step-000000010, abandoned-step-000000005" in capfd.readouterr().err
        assert names_in(tmp_path) == ["step-000000005"]
        checkpointer.step(10)
    assert resumed_with(tmp_path) == (10, 7.0)
    assert verify(tmp_path / "abandoned-step-000000010")["step"] == 10
    assert "another training" not in capfd.readouterr().err


def names_in(folder: Path) -> list[str]:
    return [one.path.name for one in checkpoints(folder)]


def test_what_another_training_saved_stays_until_the_first_of_this_one_is_there(tmp_path: Path) -> None:
    with Training().checkpointer(tmp_path, every=5) as checkpointer:
        checkpointer.step(10)
    training = Training()
    checkpointer = training.checkpointer(tmp_path)
    assert checkpointer.roll_back() is None  # nothing here is its own
    checkpointer._memory.hold(1 << 20)  # it is to be the disk that refuses
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        checkpointer.save(5)
        checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "File too large" in checkpointer.problem()
    assert names_in(tmp_path) == ["step-000000010"]
    checkpointer._writer.close()
    checkpointer.save(5)
    checkpointer.close()
    assert names_in(tmp_path) == ["step-000000005"]


def test_another_checkpointer_of_a_training_that_goes_on_sets_nothing_aside(tmp_path: Path) -> None:
    training = Training()
    with training.checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5)
    with Checkpointer(tmp_path, model=training.model) as checkpointer:
        checkpointer.save(6)
    assert names_in(tmp_path) == ["step-000000006", "step-000000005"]


def test_a_disk_that_refuses_is_told_of_at_the_next_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    training = Training()
    checkpointer = training.checkpointer(tmp_path, every=1)
    checkpointer.step(1)
    checkpointer.wait()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer._writer.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        checkpointer.step(2)
        checkpointer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    checkpointer.step(3)
    told = "a checkpoint could not be written: OSError: [Errno 27] File too large"
    assert told in capfd.readouterr().err
    # Asked to stop, it says so, too.
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped):
        checkpointer.step(4)
    assert told in capfd.readouterr().err
    checkpointer.save(5)
    checkpointer.wait()
    assert [path.name for path in tmp_path.glob(".partial*")] == []
    with pytest.raises(EnvironmentProblem, match="could not be written"):
        checkpointer.close()
    assert [one.step for one in checkpoints(tmp_path)] == [1]


def test_a_writer_that_was_killed_is_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    training = Training()
    with training.checkpointer(tmp_path, every=1) as checkpointer:
        checkpointer.step(1)
        checkpointer.wait()
        writer = checkpointer._writer._process
        assert writer is not None
        writer.kill()
        writer.wait()
        checkpointer.step(2)
    assert checkpoints(tmp_path)[0].step == 2


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    with Training().checkpointer(tmp_path), pytest.raises(LockHeld):
        Training().checkpointer(tmp_path)
    Training().checkpointer(tmp_path).close()


def test_a_schedule_that_counts_its_milestones_goes_on(tmp_path: Path) -> None:
    schedules = torch.optim.lr_scheduler

    def made() -> tuple[Any, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
        parts = [schedules.LinearLR(optimizer, total_iters=4), schedules.MultiStepLR(optimizer, [2, 4])]
        return optimizer, schedules.SequentialLR(optimizer, parts, [4])

    def rates(optimizer: Any, schedule: Any, count: int) -> list[float]:
        found = []
        for _ in range(count):
            optimizer.step()
            schedule.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    whole = rates(*made(), 10)
    optimizer, schedule = made()
    with Checkpointer(tmp_path, optimizer=optimizer, schedule=schedule) as checkpointer:
        assert rates(optimizer, schedule, 2) == whole[:2]
        checkpointer.save(2)
    optimizer, schedule = made()
    with Checkpointer(tmp_path, optimizer=optimizer, schedule=schedule) as checkpointer:
        checkpointer.resume()
    assert rates(optimizer, schedule, 8) == whole[2:]


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)

    mark = ""

    def state_dict(self) -> dict[str, Any]:
        return {"it": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""


def test_nothing_pickled_is_read_without_trust(tmp_path: Path) -> None:
    hostile = Hostile()
    hostile.mark = str(tmp_path / "executed")
    refused = Checkpointer(tmp_path / "a", it=hostile)
    with pytest.raises(CallerMistake, match=r"it\.it is a .*Hostile"):
        refused.save(1)
    refused.close()
    with Checkpointer(tmp_path / "b", it=hostile, trust=True) as checkpointer:
        checkpointer.save(1)
    with (
        Checkpointer(tmp_path / "b", it=hostile) as checkpointer,
        pytest.raises(CallerMistake, match="trust"),
    ):
        checkpointer.resume()
    assert not (tmp_path / "executed").exists()


def test_no_file_outside_of_a_checkpoint_is_read(tmp_path: Path) -> None:
    training = Training()
    with training.checkpointer(tmp_path / "c", every=1) as checkpointer:
        checkpointer.step(1)
        checkpointer.wait()
        [one] = checkpoints(tmp_path / "c")
        plain = json.loads((one.path / STATE_FILE).read_text())
        plain["model"]["0.weight"] = {"$tensor": ["../../secret", "w"]}

        forged = Partial(tmp_path / "c", 2, "forged")
        forged.add(STATE_FILE, lambda: iter((json.dumps(plain).encode(),)))
        forged.commit({})
        with pytest.raises(CorruptFile, match="knows of no"):
            checkpointer.resume()


@pytest.mark.parametrize(
    ("parts", "word"),
    [({"step": nn.Linear(1, 1)}, "name of our own"), ({"numbers": [1, 2]}, "no state_dict")],
)
def test_what_cannot_be_saved_is_refused_at_once(tmp_path: Path, parts: Any, word: str) -> None:
    with pytest.raises(CallerMistake, match=word):
        Checkpointer(tmp_path, **parts)


def test_what_was_not_saved_cannot_be_resumed(tmp_path: Path) -> None:
    training = Training()
    with Checkpointer(tmp_path, model=training.model) as checkpointer:
        checkpointer.save(1)
    with training.checkpointer(tmp_path) as other, pytest.raises(CallerMistake, match="has no optimizer"):
        other.resume()


def test_a_rank_more_than_there_were_has_the_place_in_the_data_and_no_random_numbers(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4)
    with Checkpointer(tmp_path, loader=loader) as checkpointer:
        assert len([*checkpointer.loader, *checkpointer.loader]) == 4
        checkpointer.save(4)
        checkpointer.wait()
        [stored] = checkpoints(tmp_path)
        state = read_state(torch, stored, rank=1)
        assert state["loader"]["passes"] == 2
        assert "random" not in state


STEPS = 150
# Of one that is ended: ten of those do not come to the end.
STEPS_A_LIFE = 12
KILLED = """
import os, random, sys, time
import numpy as np, torch
import flatout
from torch import nn
from torch.utils.data import DataLoader, Dataset
from flatout.runtime.checkpoint.checkpointer import Checkpointer
torch.set_num_threads(1)
torch.manual_seed(1); random.seed(2); np.random.seed(3)
class Drawn(Dataset):
    def __len__(self): return 60
    def __getitem__(self, place):
        return torch.randn(8) + random.random() + float(np.random.rand()) + place / 60
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Drawn(), batch_size=4, shuffle=True, num_workers=int(sys.argv[3]))
with Checkpointer(sys.argv[1], every=2, model=model, optimizer=optimizer, loader=loader) as checkpointer:
    step = checkpointer.resume()
    log = open(sys.argv[2], "a")
    # A life that is to be ended goes no further than this: it waits for its end, however late that comes.
    last = step + int(sys.argv[5])
    os.write(1, b"from %d\\n" % step)
    while step < int(sys.argv[4]):
        for batch in checkpointer.loader:
            loss = model(batch).pow(2).mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            step += 1
            log.write(f"{step} {loss.item().hex()}\\n"); log.flush()
            while step == last and not flatout.stop_requested():
                time.sleep(0.001)
            checkpointer.step(step)
            if step == int(sys.argv[4]): break
"""


# Has loaded all that takes time, and gives birth to one training after the other.
NURSERY = """
import json, os, sys, traceback
import random, numpy, torch
from flatout.runtime.checkpoint.checkpointer import Checkpointer
torch.set_num_threads(1)
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
script = compile(json.loads(sys.stdin.readline()), "killed.py", "exec")
for line in sys.stdin:
    life = os.fork()
    if life:
        os.write(1, b"life %d\\n" % life)  # whole lines: the training writes there, too
        os.write(1, b"code %d\\n" % os.waitstatus_to_exitcode(os.waitpid(life, 0)[1]))
        continue
    code = 1
    try:
        sys.argv = ["killed.py", *json.loads(line)]
        exec(script, {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)
"""


class Nursery:
    """Trainings by the dozen, in half a second each."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._send(KILLED)

    def _send(self, words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def run(
        self,
        folder: Path,
        workers: int,
        after_s: float | None,
        number: int = signal.SIGKILL,
        steps: int = STEPS,
    ) -> int:
        """One life, ended after so long by a signal; its exit code."""
        most = STEPS_A_LIFE if after_s is not None else 10**9
        words = [str(folder / "kept"), str(folder / "losses"), str(workers), str(steps), str(most)]
        self._send(words)
        assert self._process.stdout is not None
        life = 0
        for line in self._process.stdout:
            word, value = line.split()
            if word == "life":
                life = int(value)
            elif word == "code":
                return int(value)
            elif after_s is not None:  # it trains
                time.sleep(after_s)
                while not life:
                    life = int(self._process.stdout.readline().split()[1])
                os.kill(life, number)
        raise AssertionError("the nursery has closed")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory, nursery: Nursery
) -> Callable[[int], dict[str, set[str]]]:
    """The losses of a training that nobody disturbs, by workers."""

    @functools.cache
    def made(workers: int) -> dict[str, set[str]]:
        folder = tmp_path_factory.mktemp("whole")
        assert nursery.run(folder, workers, None) == 0
        return losses(folder)

    return made


def losses(folder: Path) -> dict[str, set[str]]:
    """Each step's loss, as often as it was made; a line that a kill cut short is none."""
    found: dict[str, set[str]] = {}
    for line in (folder / "losses").read_text().splitlines():
        step, _, loss = line.partition(" ")
        if "p" in loss:
            found.setdefault(step, set()).add(loss)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_killed_ten_times_it_learns_what_it_would_have(
    tmp_path: Path, workers: int, nursery: Nursery, uninterrupted: Callable[[int], dict[str, set[str]]]
) -> None:
    chance = random.Random(workers)
    codes = [nursery.run(tmp_path, workers, chance.uniform(0, 0.06)) for _ in range(10)]
    assert codes == [-signal.SIGKILL] * 10
    assert nursery.run(tmp_path, workers, None) == 0
    assert losses(tmp_path) == uninterrupted(workers)
    assert len(losses(tmp_path)) == STEPS


@pytest.mark.timeout(300)
def test_asked_to_stop_ten_times_it_saves_each_time_and_goes_on(
    tmp_path: Path, nursery: Nursery, uninterrupted: Callable[[int], dict[str, set[str]]]
) -> None:
    chance, codes = random.Random(1), []
    signals = [signal.SIGTERM] * 8 + [signal.SIGUSR1, signal.SIGINT]
    for number in signals:
        codes.append(nursery.run(tmp_path, 0, chance.uniform(0, 0.02), number))
        newest = checkpoints(tmp_path / "kept")[0]
        assert str(newest.step) == (tmp_path / "losses").read_text().splitlines()[-1].split()[0]
    assert codes == [128 + number for number in signals]
    assert nursery.run(tmp_path, 0, None) == 0
    assert losses(tmp_path) == uninterrupted(0)
