"""How many runs start and train side by side, and that the others wait."""

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from flatout.records.profile import MemoryUse
from flatout.records.session import TURN_FILE, WAITING_FILE
from flatout.runtime.command import job_command
from flatout.runtime.progress import Progress, StopRule
from flatout.runtime.trial import TrialPlan, run_trial
from flatout.tune import turns
from flatout.tune.turns import NotNeeded, Room, Turns, room_for
from tests.e2e.jobs import QUICK_SGD
from tests.profiles import profile

GIB = 1 << 30
CORES = 16


@pytest.fixture(autouse=True)
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "cores_allowed", lambda _host: CORES)


def on_gpu(peak: float, parameters: float, total: float = 140, host: float = 0.1) -> Room:
    memory = MemoryUse(
        reserved_peak_bytes=int(peak * GIB),
        parameter_bytes=int(parameters * GIB),
        device_total_bytes=int(total * GIB),
        host_peak_bytes=int(host * GIB),
    )
    return room_for(profile(device="cuda:0", memory=memory), 1, 5)


@pytest.mark.parametrize(
    ("peak", "parameters", "expected"),
    [
        (4, 0.5, Room(5, 5)),
        # Two train; the other three have their model on the device, and wait.
        (47, 0.5, Room(5, 2)),
        (100, 5, Room(2, 1)),
        (139, 26, Room(1, 1)),
    ],
)
def test_as_many_start_as_have_room_to_wait(peak: float, parameters: float, expected: Room) -> None:
    assert on_gpu(peak, parameters) == expected


def test_runs_are_bound_by_the_hosts_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "available_memory_bytes", lambda: 100 * GIB)
    assert on_gpu(47, 0.5, host=30) == Room(2, 2)
    assert on_gpu(47, 0.5, host=60) == Room(1, 1)
    assert room_for(profile(device="cpu", memory=MemoryUse(host_peak_bytes=30 * GIB)), 1, 5) == Room(2, 2)


def test_on_a_cpu_each_has_cores_of_its_own() -> None:
    job = profile(device="cpu")
    assert room_for(job, 8, 5) == Room(2, 2)
    assert room_for(job, 64, 5) == Room(1, 1)


SCRIPT = (
    QUICK_SGD
    + """
model = torch.nn.Linear(4, 1)
optimizer = Sgd(model.parameters())
for _ in range(1000):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""
)


def test_one_trains_after_the_other(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    all_turns = Turns(1)

    def one(number: int) -> tuple[int, int]:
        folder = tmp_path / f"run-{number}"
        with all_turns.taker() as taker:
            plan = TrialPlan(
                name="guard",
                command=job_command([str(script)]),
                stop=StopRule(updates=20),
                order={"takes_turns": True},
                director=taker,
                startup_s=60.0,
            )
            assert run_trial(plan, folder).updates == 20
        [events] = folder.glob("ranks/*/events.jsonl")
        lines = [json.loads(line) for line in events.read_text().splitlines()]
        calls = [event for line in lines for event in line if event[0] == "forward"]
        return calls[0][1], calls[-1][2]

    with ThreadPoolExecutor(3) as pool:
        trained = sorted(pool.map(one, range(3)))
    for (_, ended), (began, _) in itertools.pairwise(trained):
        assert ended < began


def test_runs_that_nobody_needs_end_wherever_they_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\n\ntime.sleep(600)\n")
    all_turns = Turns(1)

    def one() -> None:
        with all_turns.taker() as taker:
            command, stop = job_command([str(script)]), StopRule(updates=20)
            plan = TrialPlan(name="guard", command=command, stop=stop, director=taker)
            run_trial(plan, tmp_path / "run")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(one)
        while not (tmp_path / "run").exists() and not running.done():
            time.sleep(0.01)
        all_turns.end_all()
        with pytest.raises(NotNeeded):
            running.result(timeout=60)
    assert not any(str(script) in words for words in running_now())


def running_now() -> Iterator[str]:
    """What processes were started with; those of others may end while we look."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            yield " ".join(process.cmdline())


def test_waiting_for_a_turn_is_not_starting_slowly(tmp_path: Path) -> None:
    (tmp_path / WAITING_FILE).touch()
    progress = Progress(tmp_path)
    began, progress.started = progress.started, 0.0
    turns = Turns(1)
    with turns.taker() as first, turns.taker() as second:
        assert not first.look(tmp_path, progress)
        assert (tmp_path / TURN_FILE).exists()
        (tmp_path / TURN_FILE).unlink()
        progress.started = 0.0
        assert not second.look(tmp_path, progress)
        assert not (tmp_path / TURN_FILE).exists()
        assert progress.started >= began
