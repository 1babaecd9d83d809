"""The child process that measures for lessons and reports on a pipe, as JSON lines.

A crash in a driver, an out-of-memory or a hang ends this process and not the user's command.
"""

import os
import sys
import threading
import time
from typing import Any

import msgspec

from flatout.learn.bench import Bench, BenchOrder
from flatout.learn.catalogue import BY_ID
from flatout.limits.worker import measurable
from flatout.records.errors import FlatoutError

_PARENT_CHECK_S = 0.5


def _follow_parent(parent: int) -> None:
    """End when the command that asked for this is gone, with all that was started here."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.killpg(0, 9)


def main(pipe: int, order: BenchOrder) -> None:
    """Measure for one lesson after the other, and write JSON lines to the file descriptor `pipe`."""

    def send(event: dict[str, Any]) -> None:
        os.write(pipe, msgspec.json.encode(event) + b"\n")

    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    bench = Bench(order, lambda words: send({"event": "stage", "name": words}))
    for name in order.lessons:
        lesson = BY_ID[name]
        started = time.perf_counter()
        refusal = measurable(bench.torch, order.device) if lesson.on_device else ""
        if refusal:
            send({"event": "refused", "reason": refusal})
            return
        try:
            found = lesson.measure(bench)
        except FlatoutError as error:
            send({"event": "failed", "parts": [error.received, error.expected, error.remedy]})
            return
        took_s = time.perf_counter() - started
        send({"event": "measured", "lesson": name, "found": found, "took_s": took_s})
        if lesson.on_device:
            bench.free()


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=BenchOrder))
