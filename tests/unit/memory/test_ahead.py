"""Answers that are there, or on their way, before they are asked for."""

import threading
import time
from pathlib import Path

import pytest

from flatout.memory.ahead import Ahead
from flatout.memory.imagining import Imaginer
from flatout.records.ledger import LedgerFile
from flatout.records.plan import Choice
from flatout.runtime.command import job_command
from flatout.runtime.profiling import ProfileRequest

ONE, TWO, THREE = (
    (Choice(id="bf16"),),
    (Choice(id="compile", settings={"mode": "default"}),),
    (Choice(id="tf32"),),
)


def test_several_are_under_way_at_once_and_each_is_answered_once() -> None:
    asked: list[str] = []
    together = threading.Barrier(2, timeout=60)

    def imagine(levers: tuple[Choice, ...]) -> LedgerFile | None:
        asked.append(levers[0].id)
        together.wait()
        return LedgerFile(events=[], places=[], owners={}, updates=len(levers[0].id))

    with Ahead(imagine, [(), ONE, TWO, ONE], 2) as answers:
        assert [getattr(answers(one), "updates", None) for one in (TWO, ONE, ONE)] == [7, 4, 4]
    assert sorted(asked) == ["bf16", "compile"]


def test_what_nobody_thought_of_is_asked_then() -> None:
    with Ahead(lambda _levers: None, [ONE], 1) as answers:
        assert answers(THREE) is None


def test_what_was_not_begun_is_not_begun_and_errors_reach_whoever_asks() -> None:
    begun: list[str] = []
    is_over = threading.Event()

    def imagine(levers: tuple[Choice, ...]) -> LedgerFile | None:
        begun.append(levers[0].id)
        if levers is not ONE:
            assert is_over.wait(60)  # under way when it ends, which lets it come to its own end
        raise ValueError("no such job")

    def end() -> None:
        with Ahead(imagine, [ONE, TWO, THREE], 1) as answers:
            shutdown = answers._pool.shutdown

            def closing(**how: bool) -> None:
                shutdown(**{**how, "wait": False})
                is_over.set()
                shutdown(**how)

            answers._pool.shutdown = closing  # type: ignore[method-assign,assignment]
            answers(ONE)

    with pytest.raises(ValueError, match="no such job"):
        end()
    assert len(begun) < 3


def test_a_job_that_is_imagined_when_somebody_interrupts_is_ended(tmp_path: Path) -> None:
    script, begun = tmp_path / "sleeps.py", tmp_path / "trials" / "1-imagined" / "stdout.txt"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(3600)\n")
    request = ProfileRequest(command=job_command([str(script)]))
    imaginer = Imaginer(request, tmp_path / "trials", lambda *_: None)

    def interrupted() -> None:
        with Ahead(imaginer.ledger, [ONE], 1, imaginer.call_off):
            while not begun.exists() or not begun.read_text():
                time.sleep(0.05)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not begun.with_name("trial.json").exists()
