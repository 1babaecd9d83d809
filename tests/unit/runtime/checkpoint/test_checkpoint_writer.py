"""The process that writes: it ends when it is told to, and waits for nobody who cannot come."""

import os
import resource
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.runtime.checkpoint import writer as writer_process
from flatout.runtime.checkpoint.store import Partial, checkpoints
from flatout.runtime.checkpoint.writer import carry_out
from flatout.runtime.checkpoint.writing import SharedMemory, Writer


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory()
    yield made
    made.close()


def order(folder: Path, *, ranks: int = 1, size: int = 0) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "step": 5,
        "rank": 0,
        "ranks": ranks,
        "token": "mine",
        "turn": 1,
        "begins_anew": False,
        "size": size,
        "files": [("model.safetensors", 0, size)] if size else [],
        "texts": {"state.json": "{}"},
        "about": {},
        "keep": 0,
    }


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2000:
        pytest.skip("not so many descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(2000, before[0]), before[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for one in held:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_it_ends_though_children_hold_its_pipe_and_has_written_before(
    tmp_path: Path, memory: SharedMemory
) -> None:
    writer = Writer(memory)
    writer.send(order(tmp_path))
    assert writer._process is not None
    assert writer._process.stdin is not None
    held = os.dup(writer._process.stdin.fileno())  # as a child does that was forked since
    try:
        answer = writer.answer(None)
        assert answer is not None
        assert "failed" not in answer
        closing = threading.Thread(target=writer.close, daemon=True)
        closing.start()
        closing.join(timeout=30)
        assert not closing.is_alive()
    finally:
        os.close(held)
    assert [one.step for one in checkpoints(tmp_path)] == [5]


def test_the_error_of_the_disk_is_told_and_none_of_our_own(tmp_path: Path, memory: SharedMemory) -> None:
    memory.hold(4096)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            carry_out(order(tmp_path, size=4096), memory.descriptor, os.getppid())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_ranks_that_cannot_come_any_more_are_not_waited_for(
    tmp_path: Path, memory: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = subprocess.Popen(["true"])
    trainer.wait()
    monkeypatch.setattr(writer_process, "_FOR_THE_KILLED_S", 0.1)
    with pytest.raises(TimeoutError, match="rank 1"):
        carry_out(order(tmp_path, ranks=2), memory.descriptor, trainer.pid)
    assert list(tmp_path.glob(".partial*")) == []


def test_a_rank_that_gave_up_is_not_waited_for(tmp_path: Path) -> None:
    first, second = (Partial(tmp_path, 7, "mine") for _ in range(2))
    second.give_up()
    with pytest.raises(FileNotFoundError, match="another rank"):
        first.gather(2, wait_s=30.0)
