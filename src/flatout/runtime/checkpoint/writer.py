"""The process that writes checkpoints: orders come by its input, tensors in memory that it shares.

It needs neither torch nor the trainer: an order that it has taken is carried out even when the trainer has
died.
"""

import contextlib
import fcntl
import functools
import json
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flatout.runtime.checkpoint.store import (
    AT_ONCE,
    Partial,
    Stored,
    checkpoints,
    drop_replaced,
    prune,
    replaced,
    set_aside_others,
    verify,
)
from flatout.runtime.checkpoint.writing import END

WRITER_LOCK = ".writer"
_PIECE = 32 << 20
_NICE = 10
_FOR_OTHER_RANKS_S = 600.0
# The same when all were killed, unless more of their files is seen to come.
_FOR_THE_KILLED_S = 20.0


def main(descriptor: int, trainer: int) -> None:
    """Carry out one order after the other, until there are no more; `trainer` is who gives them, by pid."""
    # A Ctrl-C, or a scheduler's first signal, reaches the whole group: what was begun is to be finished.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    # Hashing keeps cores busy that the training may want; it is in no hurry.
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    while order := sys.stdin.buffer.readline():
        if not order.endswith(b"\n"):
            return  # the trainer died while it wrote the order: what it wanted stored may not be all there
        if order == END:
            return
        began = time.monotonic()
        try:
            stored, aside = carry_out(json.loads(order), descriptor, trainer)
            answer = {"path": str(stored.path), "took_s": time.monotonic() - began}
            answer["set_aside"] = [path.name for path in aside]
        except Exception as error:  # noqa: BLE001 - whatever it was, the trainer is told
            answer = {"failed": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(OSError):  # nobody listens any more: the checkpoint is there all the same
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()


def carry_out(order: dict[str, Any], descriptor: int, trainer: int) -> tuple[Stored, list[Path]]:
    """One checkpoint, from shared memory to disk; also those of another training, by their new names."""
    folder = Path(order["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    rank, ranks = order["rank"], order["ranks"]
    # The first rank writes last: whoever resumes need wait for it alone.
    with at_work_in(folder) if rank == 0 else contextlib.nullcontext():
        partial = Partial(folder, order["step"], f"{order['token']}.{order['turn']}")
        try:
            with _shared(descriptor, order["size"]) as memory, ThreadPoolExecutor(AT_ONCE) as pool:
                adding = [
                    pool.submit(partial.add, name, functools.partial(_pieces, memory, start, size))
                    for name, start, size in order["files"]
                ]
                for one in adding:
                    one.result()
            for name, text in order["texts"].items():
                partial.add(name, lambda text=text: iter((text.encode(),)))  # type: ignore[misc]
            if rank:
                partial.finish_rank(rank)
                return Stored(order["step"], partial.path), []
            others = _OtherRanks(partial.path, trainer)
            partial.gather(ranks, wait_s=_FOR_OTHER_RANKS_S, is_needed=others.may_come)
            stored = partial.commit(order["about"])
        except BaseException:
            partial.give_up()
            raise
        return stored, _make_room(folder, stored, order)


def _make_room(folder: Path, stored: Stored, order: dict[str, Any]) -> list[Path]:
    """Old ones go only when the disk gives back what was meant to replace them."""
    others = order["begins_anew"] and any(one.path != stored.path for one in checkpoints(folder))
    if order["keep"] or others or replaced(stored) is not None:
        verify(stored.path)
    aside = set_aside_others(folder, stored) if others else []
    drop_replaced(folder, stored)
    if order["keep"]:
        prune(folder, order["keep"], token=order["token"], protect=stored)
    return aside


class _OtherRanks:
    """Who may still write their parts: while the trainer lives, and after its death while they are at it."""

    def __init__(self, folder: Path, trainer: int) -> None:
        self._folder = folder
        self._trainer = trainer
        self._size = -1
        self._grown_s = 0.0

    def may_come(self) -> bool:
        if os.getppid() == self._trainer:
            return True
        size, now_s = 0, time.monotonic()
        with contextlib.suppress(OSError):
            size = sum(path.stat().st_size for path in self._folder.iterdir())
        if size != self._size:
            self._size, self._grown_s = size, now_s
        return now_s - self._grown_s < _FOR_THE_KILLED_S


@contextlib.contextmanager
def at_work_in(folder: Path) -> Iterator[None]:
    """While it lasts, whoever resumes from this folder waits."""
    descriptor = os.open(folder / WRITER_LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with contextlib.suppress(OSError):  # a disk without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _shared(descriptor: int, size: int) -> Iterator[memoryview]:
    if not size:
        yield memoryview(b"")
        return
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as memory, memoryview(memory) as view:
        yield view


def _pieces(memory: memoryview, start: int, size: int) -> Iterator[memoryview]:
    for at in range(start, start + size, _PIECE):
        with memory[at : min(at + _PIECE, start + size)] as piece:
            yield piece
