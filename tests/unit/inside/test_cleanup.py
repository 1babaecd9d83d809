"""Cached memory goes back before an evaluation, where memory is short and there is something to give."""

from types import SimpleNamespace
from typing import Any

import pytest

from flatout.inside.cleanup import CleanupTap

GIB = 1 << 30


class Device:
    """The memory of a GPU, in place of one."""

    def __init__(self, *, free: float, cached: float) -> None:
        self.free, self.cached, self.emptied = free, cached, 0

    def mem_get_info(self, _device: Any) -> tuple[int, int]:
        return int(self.free * GIB), 80 * GIB

    def memory_reserved(self, _device: Any) -> int:
        return int((30 + self.cached) * GIB)

    def memory_allocated(self, _device: Any) -> int:
        return 30 * GIB

    def empty_cache(self) -> None:
        self.emptied += 1
        self.free, self.cached = self.free + self.cached, 0.0


def session_on(device: Device, *, on_gpu: bool = True) -> Any:
    return SimpleNamespace(torch=SimpleNamespace(cuda=device), device="cuda:0", on_gpu=on_gpu, facts={})


def test_what_it_gave_is_counted() -> None:
    device = Device(free=2, cached=40)
    session = session_on(device)
    tap = CleanupTap(session)
    for _ in range(3):
        tap.before_evaluation()
        device.free, device.cached = 2, 40
    assert session.facts["cleanups"] == {"evaluations": 3, "freed_bytes": 120 * GIB}


@pytest.mark.parametrize(
    ("free", "cached", "on_gpu"),
    [(20, 40, True), (2, 1, True), (2, 40, False)],
    ids=["room", "full", "no GPU"],
)
def test_where_it_would_not_help_nothing_is_touched(free: float, cached: float, on_gpu: bool) -> None:
    device = Device(free=free, cached=cached)
    session = session_on(device, on_gpu=on_gpu)
    CleanupTap(session).before_evaluation()
    assert not device.emptied
    assert session.facts == {}
