"""The workers tap: what making a batch costs, loading and collating apart, in workers or in the loop.

A worker writes its totals to a file of its own now and then; nothing passes through the loader's queues.
"""

import contextlib
import functools
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.inside.tap import Patch, undo_all
from flatout.records.session import WORKERS_FOLDER

if TYPE_CHECKING:
    from flatout.inside.session import Session

# A worker that is young writes often, one that has worked for days does not.
_WRITE_EVERY_NS, _AT_THE_LATEST_NS = 100_000_000, 5_000_000_000
_SHARE_OF_ITS_AGE = 20


class WorkersTap:
    """Times the fetchers of torch's loaders: items first, then `collate_fn`."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._patches: list[Patch] = []
        self._totals = {"batches": 0, "load_ns": 0, "collate_ns": 0, "busy_ns": 0, "started_ns": 0}
        self._collate_ns = 0
        self._written_ns = 0
        self._in_worker = False

    def install(self) -> None:
        """Patch both kinds of fetcher: they run in the workers, or in the loop where there are none."""
        fetch: Any = importlib.import_module("torch.utils.data._utils.fetch")
        base = fetch._BaseDatasetFetcher  # noqa: SLF001
        self._patches = [Patch(base, "__init__", self._with_timed_collate(base.__init__))]
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):  # noqa: SLF001
            self._patches.append(Patch(fetcher, "fetch", self._timed_fetch(fetcher.fetch)))

    def remove(self) -> None:
        """Put the methods back."""
        undo_all(self._patches)

    def enter_worker(self) -> None:
        """This process is a loader's worker: count for it alone."""
        self._in_worker = True
        self._totals = dict.fromkeys(self._totals, 0)
        self._totals["started_ns"] = time.perf_counter_ns()

    def totals(self) -> dict[str, int]:
        """What this process has spent on making batches."""
        return dict(self._totals)

    def _with_timed_collate(self, real: Callable[..., None]) -> Callable[..., None]:
        tap = self

        @functools.wraps(real)
        def __init__(fetcher: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            real(fetcher, *args, **kwargs)
            collate = fetcher.collate_fn

            @functools.wraps(collate, updated=())
            def timed_collate(*values: Any, **named: Any) -> Any:
                started = time.perf_counter_ns()
                try:
                    return collate(*values, **named)
                finally:
                    tap._collate_ns += time.perf_counter_ns() - started

            fetcher.collate_fn = timed_collate

        return __init__

    def _timed_fetch(self, real: Callable[..., Any]) -> Callable[..., Any]:
        tap = self

        @functools.wraps(real)
        def fetch(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
            if not tap._session.watching and not tap._in_worker:
                return real(fetcher, *args, **kwargs)
            tap._collate_ns = 0
            started = time.perf_counter_ns()
            result = real(fetcher, *args, **kwargs)
            if "workers" not in tap._session.failed:
                try:
                    tap._note(started, time.perf_counter_ns())
                except Exception as error:  # noqa: BLE001 - observing never breaks a job
                    tap._session.fail("workers", error)
            return result

        return fetch

    def _note(self, started_ns: int, ended_ns: int) -> None:
        totals, took = self._totals, ended_ns - started_ns
        totals["batches"] += 1
        totals["busy_ns"] += took
        totals["collate_ns"] += self._collate_ns
        totals["load_ns"] += took - self._collate_ns
        age_ns = ended_ns - totals["started_ns"]
        every_ns = min(_AT_THE_LATEST_NS, max(_WRITE_EVERY_NS, age_ns // _SHARE_OF_ITS_AGE))
        if self._in_worker and ended_ns - self._written_ns > every_ns:
            self._written_ns = ended_ns
            self.write()

    def write(self) -> None:
        """Leave the totals where the session's reader finds them."""
        folder = Path(self._session.order.folder) / WORKERS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        whole = {
            **self._totals,
            "pid": os.getpid(),
            "parent_pid": os.getppid(),
            "seen_ns": time.perf_counter_ns(),
            "own_bytes": _own_bytes(),
        }
        fresh = folder / f".{os.getpid()}.tmp"
        fresh.write_text(json.dumps(whole))
        os.replace(fresh, folder / f"{os.getpid()}.json")  # noqa: PTH105


def leave_workers_alone(session: "Session") -> Patch:
    """A DataLoader worker is known by its loop, not by being a child: ranks are children too."""
    worker: Any = importlib.import_module("torch.utils.data._utils.worker")
    real = worker._worker_loop  # noqa: SLF001

    @functools.wraps(real)  # and so pickled by its name, for workers that are spawned
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        tap = session.enter_worker()
        if tap is None:
            return real(*args, **kwargs)
        tap.enter_worker()
        try:
            return real(*args, **kwargs)
        finally:
            with contextlib.suppress(Exception):
                tap.write()

    return Patch(worker, "_worker_loop", _worker_loop)


def _own_bytes() -> int | None:
    """Resident memory that is not shared: what one more worker would add."""
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
