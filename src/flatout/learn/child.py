"""Flatout's side of a measurement: starts the child, listens, and makes an error of a child that died."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import msgspec

from flatout.hardware.command import end_child, end_process_group, start_worker
from flatout.learn.bench import BenchOrder
from flatout.records.errors import ChildFailed, EnvironmentProblem

# For each lesson; a stuck driver must not keep the reader for ever.
TIMEOUT_S = 180.0

# (what is being measured, lessons done, lessons in all)
OnStage = Callable[[str, int, int], None]


def measured_in_child(
    order: BenchOrder, environment: Mapping[str, str], on_stage: OnStage, *, timeout_s: float = TIMEOUT_S
) -> Iterator[tuple[str, Any, float]]:
    """(lesson, what was found, seconds) for each lesson of the order, as they are done."""
    words = msgspec.json.encode(order).decode()
    child, events = start_worker("flatout.learn.worker", words, environment)
    complaints = _Complaints(child.stderr)
    late = threading.Timer(timeout_s * len(order.lessons), end_process_group, (child.pid,))
    late.daemon = True
    late.start()
    try:
        with events:
            yield from _listen(order, events, on_stage)
        if child.wait() != 0:
            raise _died(child.returncode, complaints.last_line())
    finally:
        late.cancel()
        end_child(child)


def _listen(order: BenchOrder, events: IO[bytes], on_stage: OnStage) -> Iterator[tuple[str, Any, float]]:
    done, total = 0, len(order.lessons)
    for line in events:
        try:
            event: dict[str, Any] = msgspec.json.decode(line)
        except msgspec.DecodeError:
            return  # cut off in mid-line: the child died, and its exit code says how
        if event["event"] == "stage":
            on_stage(f"{order.lessons[done]}: {event['name']}", done, total)
        elif event["event"] == "refused":
            raise ChildFailed(
                event["reason"],
                expected="a torch build that can use this device",
                remedy="flatout doctor   # says what is wrong; --device cpu measures the CPU",
            )
        elif event["event"] == "failed":
            received, expected, remedy = event["parts"]
            raise EnvironmentProblem(received, expected=expected, remedy=remedy)
        else:
            done += 1
            yield event["lesson"], event["found"], event["took_s"]


class _Complaints:
    """The end of what the child says on its standard error, read as it comes so that no pipe fills up."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream = stream
        self._kept = b""
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        for chunk in self._stream or ():
            self._kept = (self._kept + chunk)[-4096:]

    def last_line(self) -> str:
        self._reader.join(timeout=1)
        lines = self._kept.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


def _died(code: int, words: str) -> ChildFailed:
    how = f"died of signal {-code}" if code < 0 else f"ended with {code}"
    return ChildFailed(
        f"the process that measures {how}" + (f": {words}" if words else ""),
        expected="a result within seconds",
        remedy="flatout doctor   # is the device healthy, and is its memory free?",
    )
