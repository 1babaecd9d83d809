"""The step clock: one update is one step, however an optimizer's class is built."""

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.session import Session  # noqa: E402
from flatout.records.session import Order  # noqa: E402


class Calling(torch.optim.SGD):
    """Its step calls its parent's, and can fail."""

    broken = False

    def step(self, closure=None):
        super().step(closure)
        if self.broken:
            raise RuntimeError("planted")


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(torch, Order(folder=str(tmp_path)))
    session.arm()
    yield session
    session.finish()
    session.disarm()
    assert not session.failed


@pytest.fixture
def parameters() -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.ones(3))]
    # Torch hooks the step of a class when its first optimizer is made: from here on both steps are hooked.
    torch.optim.SGD(parameters, lr=0.1)
    return parameters


def update(optimizer: torch.optim.Optimizer, times: int) -> None:
    for _ in range(times):
        for group in optimizer.param_groups:
            group["params"][0].sum().backward()
        optimizer.step()


def test_a_step_that_calls_its_parents_is_one_update(session: Session, parameters: list) -> None:
    update(Calling(parameters, lr=0.1), 6)
    assert session.updates == 6


def test_so_it_is_when_nobody_looks_closely(session: Session, parameters: list) -> None:
    optimizer = Calling(parameters, lr=0.1)
    update(optimizer, 3)
    session.updates, session.watching = 1000, False
    update(optimizer, 40)
    assert session.updates == 1040


@pytest.mark.parametrize("watching", [True, False])
def test_a_step_that_raised_is_not_taken_for_one_under_way(
    session: Session, parameters: list, watching: bool
) -> None:
    optimizer = Calling(parameters, lr=0.1)
    update(optimizer, 3)
    session.watching = watching
    optimizer.broken = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted"):
            optimizer.step()
    optimizer.broken = False
    update(optimizer, 4)
    assert session.updates == 7


def test_an_optimizer_inside_another_is_a_step_of_its_own(session: Session, parameters: list) -> None:
    class Around(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            self.inner.step(closure)

    update(Around(torch.optim.SGD(parameters, lr=0.1)), 5)
    assert session.updates == 5


@pytest.mark.parametrize("hook", ["before", "after"])
def test_a_clock_that_fails_leaves_the_update_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    def planted(*_: object, **__: object) -> None:
        raise ValueError("planted")

    registered = importlib.import_module("torch.optim.optimizer")
    before = len(registered._global_optimizer_pre_hooks), len(registered._global_optimizer_post_hooks)
    others: list[str] = []
    failing = Session(torch, Order(folder=str(tmp_path)))
    failing.arm()
    # Somebody's own hook after ours: torch must get to it.
    mine = [
        registered.register_optimizer_step_pre_hook(lambda *_: others.append("before")),
        registered.register_optimizer_step_post_hook(lambda *_: others.append("after")),
    ]
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    if hook == "before":
        failing.detailed = True
        monkeypatch.setattr(failing.gpu, "mark", planted)
    else:
        monkeypatch.setattr(failing, "close_step", planted)
    for _ in range(3):
        optimizer.step()
    assert others == ["before", "after"] * 3
    assert failing.failed["steps"] == "ValueError: planted"
    for handle in mine:
        handle.remove()
    failing.disarm()
    after = len(registered._global_optimizer_pre_hooks), len(registered._global_optimizer_post_hooks)
    assert after == before


@pytest.mark.filterwarnings("ignore:This process")
def test_a_fork_after_a_session_has_ended_starts_nothing(tmp_path: Path) -> None:
    session = Session(torch, Order(folder=str(tmp_path)))
    session.arm()
    session.folder()
    forked()
    assert "flatout-writer" in {one.name for one in threading.enumerate()}
    session.finish()
    session.disarm()
    forked()
    assert "flatout-writer" not in {one.name for one in threading.enumerate()}


def test_a_forked_rank_has_a_heart_of_its_own(tmp_path: Path) -> None:
    session = Session(torch, Order(folder=str(tmp_path), heartbeat=True))
    session.arm()
    session.begin_heart(tmp_path)
    assert forked(lambda: session.heart is None) == 0
    session.disarm()


def forked(check: Callable[[], bool] = lambda: True) -> int:
    """The exit code of a child that checks something; 0 where it holds."""
    child = os.fork()
    if not child:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_what_fails_in_learning_habits_leaves_memory_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: list
) -> None:
    monkeypatch.setattr("flatout.inside.habits.numa.describe", lambda *_: 1 / 0)
    session = Session(torch, Order(folder=str(tmp_path), taps=("steps", "memory", "habits")))
    session.arm()
    update(torch.optim.SGD(parameters, lr=0.1), 4)
    session.disarm()
    assert list(session.failed) == ["habits"]
    assert session.facts["holds"]["parameters"] == 3
