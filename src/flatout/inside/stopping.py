"""How a trial ends: all ranks at the same update, without running what would save, and with nobody left."""

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from flatout.records.session import KEEPER_VARIABLE, STOP_FILE, STOPPED_FILE

_OTHERS_S = 20.0
_KEEPER_GONE, _LOOP_GONE = 97, 98
_LOOK_S = 1.0


def asked_to_stop_after(folder: Path) -> int | None:
    """The update after which Flatout wants all ranks to stop, or None."""
    try:
        return int(json.loads((folder / STOP_FILE).read_text())["after_update"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def wait_for_other_ranks(folder: Path, world_size: int) -> None:
    """A rank that leaves early breaks the others' collectives: wait until all have come this far."""
    with contextlib.suppress(OSError):
        (folder / STOPPED_FILE).touch()
        deadline = time.monotonic() + _OTHERS_S
        while world_size > 1 and time.monotonic() < deadline:
            if len(list(folder.parent.glob(f"*/{STOPPED_FILE}"))) >= world_size:
                return
            time.sleep(0.02)


def leave() -> None:
    """End the process here: loader workers first, by pid, then ourselves."""
    with contextlib.suppress(Exception):
        workers = _loader_workers()
        with contextlib.suppress(ValueError):  # not the main thread: there the handler does not run either
            # torch's handler raises when a worker dies: the first kill would save the second worker's life.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for worker in workers:
            worker.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def _loader_workers() -> list[Any]:
    """Processes that DataLoaders of this process have started: they alone know them from other children."""
    module: Any = sys.modules.get("torch.utils.data.dataloader")
    if module is None:
        return []
    kind = module._MultiProcessingDataLoaderIter  # noqa: SLF001
    iterators = [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]
    ours = {child.pid for child in multiprocessing.active_children()}
    workers = [worker for iterator in iterators for worker in getattr(iterator, "_workers", ())]
    return [worker for worker in workers if worker.pid in ours]


def end_if_the_keeper_is_gone() -> None:
    """A trial whose keeper was killed has nobody to end it but itself."""
    pid = os.environ.get(KEEPER_VARIABLE, "").partition(":")[0]
    if pid.isdigit():
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            os._exit(_KEEPER_GONE)
        except PermissionError:
            return


def end_with_the_loop() -> None:
    """For a loader's worker, which may be stuck in the user's code when all who could end it are killed.

    torch's own workers look for their parent between two batches alone.
    """
    parent, started_by = multiprocessing.parent_process(), os.getppid()

    def watch() -> None:
        while True:
            time.sleep(_LOOK_S)
            end_if_the_keeper_is_gone()
            if os.getppid() != started_by or (parent is not None and not parent.is_alive()):
                os._exit(_LOOP_GONE)

    threading.Thread(target=watch, name="flatout-worker", daemon=True).start()
