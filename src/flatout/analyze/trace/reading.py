"""Reads trace files into one table: pieces decoded side by side, on every core that is allowed."""

import concurrent.futures
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flatout.analyze.trace.chunks import LARGEST_EVENT_BYTES, NotATrace, Piece, pieces
from flatout.analyze.trace.events import Columns, CutWrongly, decode
from flatout.analyze.trace.nsys import read_nsys
from flatout.analyze.trace.sources import source_of

# Waiting pieces are held in memory: a few, so that no core waits.
_AHEAD = 3
_COLUMNS = (
    "category",
    "name",
    "thread",
    "start",
    "length",
    "correlation",
    "external",
    "sequence",
    "stream",
    "device",
    "bytes",
)
_SMALL_BYTES = 32 << 20

# How often a worker looks whether whoever started it still lives.
_LOOKS_EVERY_S = 1.0

OnRead = Callable[[int, int], None]


def read_trace(
    path: Path, *, processes: int | None = None, on_read: OnRead = lambda _done, _all: None
) -> Columns:
    """Everything of one file. Raises NotATrace where there is nothing to be read."""
    if source_of(path) == "nsys":
        return read_nsys(path, on_read=on_read)
    size = path.stat().st_size if path.exists() else 0
    count = processes if processes is not None else _cores()
    if size <= _SMALL_BYTES:
        count = 1
    parts: list[Columns] = []
    for part in _decoded(path, count):
        parts.append(part)
        on_read(min(part.upto, size), size)
        if part.ended:
            break
    whole = _joined(parts)
    if not len(whole.start):
        raise NotATrace(path, "it has no event with a beginning and a length")
    return whole


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decoded(path: Path, processes: int) -> Iterator[Columns]:
    """The pieces in their order, each decoded; one that was cut wrongly grows until it ends well."""
    if processes <= 1:
        yield from _mended((piece, None) for piece in pieces(path))
        return
    with concurrent.futures.ProcessPoolExecutor(processes, initializer=_end_with_the_parent) as pool:
        try:
            yield from _mended(_in_flight(pool, pieces(path), _AHEAD * processes))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _end_with_the_parent() -> None:
    """In a worker: a parent that is killed tells nobody, and a pool's workers would wait for it for ever."""
    parent = os.getppid()

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOKS_EVERY_S)
        os._exit(1)

    threading.Thread(target=look, daemon=True).start()


def _in_flight(pool: Any, found: Iterable[Piece], at_most: int) -> Iterator[tuple[Piece, Any]]:
    waiting: deque[tuple[Piece, Any]] = deque()
    for piece in found:
        waiting.append((piece, pool.submit(decode, piece, last=False)))
        if len(waiting) >= at_most:
            yield waiting.popleft()
    yield from waiting


def _mended(found: Iterator[tuple[Piece, Any]]) -> Iterator[Columns]:
    begun: Piece | None = None
    for piece, future in found:
        if begun is None:
            try:
                yield future.result() if future is not None else decode(piece, last=False)
                continue
            except CutWrongly:
                begun = piece
                continue
        begun = Piece(begun.path, begun.start, piece.end, begun.read() + piece.read())
        try:
            # Something that never ends must not take the rest of the file with it.
            yield decode(begun, last=begun.end - begun.start > LARGEST_EVENT_BYTES)
            begun = None
        except CutWrongly:
            continue
    if begun is not None:
        yield decode(begun, last=True)


def _joined(parts: list[Columns]) -> Columns:
    names: dict[str, int] = {}
    threads: dict[tuple[Any, Any], int] = {}
    for part in parts:
        part.name = _renumbered(part.name, part.names, names)
        part.thread = _renumbered(part.thread, part.threads, threads)
    columns: dict[str, Any] = {}
    for column in _COLUMNS:
        columns[column] = np.concatenate([getattr(part, column) for part in parts] or [np.empty(0, np.int64)])
        for part in parts:  # one copy at a time
            setattr(part, column, None)
    return Columns(
        **columns,
        names=list(names),
        threads=list(threads),
        called=dict(itertools.chain.from_iterable(part.called.items() for part in parts)),
        skipped=sum(part.skipped for part in parts),
        first_skip=next((part.first_skip for part in parts if part.first_skip is not None), None),
        upto=parts[-1].upto if parts else 0,
        ended=any(part.ended for part in parts),
    )


def _renumbered(column: Any, own: list[Any], known: dict[Any, int]) -> Any:
    numbers = np.fromiter((known.setdefault(key, len(known)) for key in own), np.int32, len(own))
    return numbers[column] if len(own) else column
