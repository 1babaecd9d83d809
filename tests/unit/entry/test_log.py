"""`flatout.log` as a script uses it: where things go, who logs, and what must not happen."""

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.entry.log import Log
from flatout.records.errors import CallerMistake, MissingExtra
from flatout.records.points import Point, point_of
from flatout.records.session import SESSION_VARIABLE, Order

_PATIENCE_S = 30.0


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Log]]:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "FLATOUT_LOG_TO", SESSION_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    made: list[Log] = []

    def one() -> Log:
        made.append(Log())
        return made[-1]

    yield one
    for log in made:
        log.close()


def points_in(path: Path) -> list[Point]:
    found = [point_of(line) for line in path.read_text().splitlines()]
    assert None not in found
    return [point for point in found if point is not None]


def python(script: str, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=cwd,
        env={**{name: value for name, value in os.environ.items() if name != "RANK"}, **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


def test_a_plain_file_is_the_default_and_steps_are_counted(make: Callable[[], Log], tmp_path: Path) -> None:
    log = make()
    log({"loss": 1.0})
    log({"loss": 0.5, "lr": 1e-3})
    assert log.flush(_PATIENCE_S)
    [file] = (tmp_path / ".flatout" / "logs").glob("*.jsonl")
    assert [(point.step, dict(point.values)) for point in points_in(file)] == [
        (0, {"loss": 1.0}),
        (1, {"loss": 0.5, "lr": 1e-3}),
    ]


def test_chosen_sinks_take_the_place_of_the_default(make: Callable[[], Log], tmp_path: Path) -> None:
    log = make()
    log.to("jsonl", tmp_path / "a.jsonl")
    log({"loss": 1.0}, step=7)
    log.to("jsonl", tmp_path / "b.jsonl")  # later: from here on
    log({"loss": 2.0}, step=8)
    log.close()
    assert [point.step for point in points_in(tmp_path / "a.jsonl")] == [7, 8]
    assert [point.step for point in points_in(tmp_path / "b.jsonl")] == [8]
    assert not (tmp_path / ".flatout").exists()


def test_the_environment_chooses_where_the_script_does_not(
    make: Callable[[], Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_LOG_TO", f"jsonl:{tmp_path}/env.jsonl")
    log = make()
    log({"loss": 1.0})
    log.close()
    assert len(points_in(tmp_path / "env.jsonl")) == 1


def test_of_several_ranks_the_first_logs(
    make: Callable[[], Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    log = make()
    log.to("jsonl", tmp_path / "first.jsonl")
    log({"loss": 1.0})
    log.close()
    assert list(tmp_path.iterdir()) == []
    log.to("jsonl", tmp_path / "all.jsonl", every_rank=True)
    log({"loss": 1.0})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["all-rank1.jsonl"]


def test_a_trial_logs_nowhere(
    make: Callable[[], Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = tmp_path / "order.json"
    Order(folder=str(tmp_path / "trial"), trial=True).write(order)
    monkeypatch.setenv(SESSION_VARIABLE, str(order))
    monkeypatch.setenv("FLATOUT_LOG_TO", "wandb:from-the-environment")
    log = make()
    log.to("jsonl", tmp_path / "a.jsonl")
    log({"loss": 1.0})
    log.to("jsonl", tmp_path / "b.jsonl")
    log({"loss": 1.0})
    log.close()
    assert list(tmp_path.iterdir()) == [order]


def test_a_run_keeps_what_is_logged_in_its_folder(
    make: Callable[[], Log], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = tmp_path / "order.json"
    Order(folder=str(tmp_path / "job")).write(order)
    monkeypatch.setenv(SESSION_VARIABLE, str(order))
    log = make()
    log({"loss": 1.0}, step=3)
    log.close()
    assert points_in(tmp_path / "job" / "ranks" / f"0-{os.getpid()}" / "logged.jsonl")[0].step == 3
    assert not (tmp_path / ".flatout").exists()


@pytest.mark.parametrize(
    ("values", "step"),
    [({"a": 1.0}, 1.5), ({"a": 1.0}, "3"), ([1.0], None), ({1: 1.0}, None), ("loss", None), (1.0, None)],
)
def test_a_wrong_call_says_what_was_expected(make: Callable[[], Log], values: Any, step: Any) -> None:
    with pytest.raises(CallerMistake) as mistake:
        make()(values, step=step)
    assert mistake.value.remedy


def test_a_missing_tracker_is_told_when_it_is_chosen(
    make: Callable[[], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"flatout\[wandb\]"):
        make().to("wandb", "project")


def test_a_sink_that_cannot_write_is_off_and_the_others_go_on(
    make: Callable[[], Log], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    log = make()
    log.to("jsonl", tmp_path / "file" / "below.jsonl")
    log.to("jsonl", tmp_path / "good.jsonl")
    for step in range(3):
        log({"loss": 1.0}, step=step)
    assert not log.flush(_PATIENCE_S)
    assert len(points_in(tmp_path / "good.jsonl")) == 3
    assert capsys.readouterr().err.count("turned off") == 1


def test_threads_may_log_at_the_same_time(make: Callable[[], Log], tmp_path: Path) -> None:
    log = make()
    log.to("jsonl", tmp_path / "a.jsonl")

    def some(start: int) -> None:
        for step in range(start, start + 200):
            log({"loss": float(step)}, step=step)

    threads = [threading.Thread(target=some, args=(number * 200,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = points_in(tmp_path / "a.jsonl")
    assert sorted(point.step for point in found) == list(range(800))
    assert all(point.values["loss"] == point.step for point in found)


def test_importing_and_logging_numbers_loads_neither_torch_nor_trackers(tmp_path: Path) -> None:
    ended = python(
        """
        import sys
        import flatout
        assert not [name for name in sys.modules if name.startswith("flatout.monitor")]
        flatout.log({"loss": 1.0})
        heavy = {"torch", "numpy", "msgspec", "rich", "wandb", "mlflow", "tensorboard"} & set(sys.modules)
        assert not heavy, heavy
        """,
        tmp_path,
    )
    assert ended.returncode == 0, ended.stderr
    [file] = (tmp_path / ".flatout" / "logs").glob("*.jsonl")  # delivered at exit
    assert len(points_in(file)) == 1


_FORKS_AND_COMPILES = """
import os
import torch
import flatout

flatout.log.to("jsonl", "parent.jsonl")
loss = torch.tensor(1.5, dtype=torch.bfloat16)
flatout.log({"loss": loss}, step=0)
loss.add_(1)

child = os.fork()
if not child:
    flatout.log.to("jsonl", "child.jsonl")
    flatout.log({"loss": loss * 10}, step=0)
    flatout.log.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
flatout.log({"loss": loss}, step=1)

graphs = []

def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

@torch.compile(backend=backend)
def step(x):
    y = x * 2
    flatout.log({"inside": y.sum()}, step=2)
    return y + 1

for number in range(3):
    assert step(torch.full((2,), float(number))).tolist() == [2.0 * number + 1] * 2
print(len(graphs))
with torch.inference_mode():
    flatout.log({"loss": loss}, step=3)
"""


def test_forks_and_compiled_steps(tmp_path: Path) -> None:
    ended = python(_FORKS_AND_COMPILES, tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "2"  # before and after the call, and nothing of ours
    parent = [(point.step, *point.values.items()) for point in points_in(tmp_path / "parent.jsonl")]
    assert parent == [
        (0, ("loss", 1.5)),
        (1, ("loss", 2.5)),
        *((2, ("inside", 4.0 * number)) for number in range(3)),
        (3, ("loss", 2.5)),
    ]
    assert [dict(point.values) for point in points_in(tmp_path / "child.jsonl")] == [{"loss": 25.0}]


def test_a_script_that_raises_still_delivers(tmp_path: Path) -> None:
    ended = python('import flatout\nflatout.log({"loss": 1.0})\nraise SystemExit(7)', tmp_path)
    assert ended.returncode == 7
    [file] = (tmp_path / ".flatout" / "logs").glob("*.jsonl")
    assert json.loads(file.read_text())["values"] == {"loss": 1.0}
