"""Times short bursts of work: device events on a GPU, the clock on a CPU, medians over bursts with rests.

A burst is short and preceded by a rest, so that the figure is the device's ceiling and not what its power
limit leaves after a second at full load. (On an H200, 8192-cubed bf16 products give 797 TFLOP/s for the first
20 ms and 677 TFLOP/s once the 700 W limit bites: the sustained figure is measured apart.)
"""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

WARMUP_CALLS = 3
MAX_REPEATS = 2000


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds per call: the median over bursts, and how far the middle half of them spreads."""

    median_s: float
    spread_share: float


class Stopwatch:
    """Times calls on one torch device."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch = torch
        self._kind = device.split(":", maxsplit=1)[0]
        self._module = getattr(torch, self._kind, None)

    @property
    def on_cpu(self) -> bool:
        """True where calls return only when they are done."""
        return self._kind == "cpu"

    def synchronize(self) -> None:
        """Wait for the device."""
        if not self.on_cpu and self._module is not None:
            self._module.synchronize()

    def burst(self, call: Callable[[], object], repeats: int, lead: int = 2) -> float:
        """Seconds per call over `repeats` calls, after `lead` calls that fill the queue."""
        for _ in range(lead):
            call()
        if self.on_cpu:
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats
        first, last = self._event(), self._event()
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / repeats

    def _event(self) -> Any:
        if self._kind == "mps":
            return self._torch.mps.event.Event(enable_timing=True)
        return self._module.Event(enable_timing=True)  # type: ignore[union-attr]

    def measure(
        self, call: Callable[[], object], *, burst_s: float, bursts: int, rest_s: float = 0.0
    ) -> Timing:
        """The median over `bursts` bursts of about `burst_s` each, with a rest before every one."""
        for _ in range(WARMUP_CALLS):
            call()
        self.synchronize()
        once_s = max(self.burst(call, 1, lead=1), 1e-7)
        repeats = int(min(MAX_REPEATS, max(1, burst_s / once_s)))
        seconds = []
        for _ in range(bursts):
            if rest_s:
                time.sleep(rest_s)
            seconds.append(self.burst(call, repeats))
        return summarize(seconds)

    def sustain(self, call: Callable[[], object], *, seconds: float, burst_s: float = 0.05) -> float:
        """Seconds per call once the device has worked without a pause: the median of the second half."""
        once_s = max(self.burst(call, 2), 1e-7)
        repeats = int(max(1, burst_s / once_s))
        taken: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(taken) < 2:
            taken.append(self.burst(call, repeats, lead=0))
        return statistics.median(taken[len(taken) // 2 :])


def summarize(seconds: list[float]) -> Timing:
    """Median, and the middle half's width as a share of it."""
    middle = statistics.median(seconds)
    if len(seconds) < 4:
        spread = max(seconds) - min(seconds)
    else:
        low, _, high = statistics.quantiles(seconds, n=4)
        spread = high - low
    return Timing(median_s=middle, spread_share=spread / middle)
