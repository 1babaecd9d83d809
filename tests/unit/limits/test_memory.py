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


def cpu(root: Path, number: int, sizes: dict[str, tuple[str, str]]) -> None:
    for index, (size, sharers) in sizes.items():
        folder = root / f"cpu{number}" / "cache" / index
        folder.mkdir(parents=True)
        (folder / "size").write_text(size + "\n")
        (folder / "shared_cpu_list").write_text(sharers + "\n")


def test_all_last_level_caches_are_added_up_and_shared_ones_count_once(tmp_path: Path) -> None:
    for number in range(4):
        sharers = "0-1" if number < 2 else "2-3"
        cpu(tmp_path, number, {"index0": ("48K", str(number)), "index3": ("32M", sharers)})
    cpu(tmp_path, 9, {"index3": ("garbage", "9")})
    assert memory.cpu_cache_bytes(tmp_path) == 64 << 20
    assert memory.cpu_cache_bytes(tmp_path / "nothing") == 0


def test_cpu_buffers_are_several_caches_large_and_leave_most_memory_free() -> None:
    import psutil

    size = memory.buffer_bytes(torch, "cpu")
    assert size >= min(4 * memory.cpu_cache_bytes(), psutil.virtual_memory().available // 9)
    assert 3 * size < psutil.virtual_memory().available / 2


def test_a_containers_limit_bounds_the_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "cpu_cache_bytes", lambda: 8 << 20)
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 1 << 30)
    assert memory.buffer_bytes(torch, "cpu") == 128 << 20


def test_where_buffers_would_fit_into_the_cache_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "cpu_cache_bytes", lambda: 300 << 20)
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 2 << 30)
    with pytest.raises(RuntimeError, match="too little memory is free"):
        memory.buffer_bytes(torch, "cpu")
