"""Bandwidth: every byte that moves is counted once, and buffers exceed the cache."""

from pathlib import Path

import pytest
import torch

from flatout.limits import memory
from flatout.limits.timing import Stopwatch, Timing


class OneSecond(Stopwatch):
    def __init__(self) -> None:
        super().__init__(torch, "cpu")
        self.results: list[object] = []

    def measure(self, call: object, **schedule: float) -> Timing:  # type: ignore[override]
        self.results.append(call())  # type: ignore[operator]
        return Timing(median_s=1.0, spread_share=0.0)


def test_copy_moves_two_streams_read_one_and_triad_three(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 * 3_000_001  # not a multiple of the noise block
    monkeypatch.setattr(memory, "buffer_bytes", lambda _torch, _device: size)
    rates = dict(memory.measure_memory(torch, "cpu", OneSecond()))
    assert rates == {
        "memory_copy_bytes_per_s": 2 * size,
        "memory_read_bytes_per_s": size,
        "memory_triad_bytes_per_s": 3 * size,
    }


def test_the_buffers_hold_noise_to_the_last_element() -> None:
    noise = memory._noise(torch, "cpu", 2_500_003)
    assert noise.numel() == 2_500_003
    assert noise[-3:].std() > 0
    assert abs(noise.mean().item()) < 0.1
    assert 0.9 < noise.std().item() < 1.1


def test_the_largest_cache_is_found(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "2048K", "300M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    (tmp_path / "index9").mkdir()
    (tmp_path / "index9" / "size").write_text("garbage")
    assert memory.cpu_cache_bytes(tmp_path) == 300 << 20
    assert memory.cpu_cache_bytes(tmp_path / "nothing") == 0


def test_cpu_buffers_are_several_caches_large_and_leave_most_memory_free() -> None:
    import psutil

    size = memory.buffer_bytes(torch, "cpu")
    assert size >= min(4 * memory.cpu_cache_bytes(), psutil.virtual_memory().available // 9)
    assert 3 * size < psutil.virtual_memory().available / 2
