"""What a running job does in a window of time: its steps, and what its devices draw meanwhile."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from flatout.analyze.energy import EnergyFollower
from flatout.hardware.protocol import DeviceSource
from flatout.records.device import Device, DeviceSample
from flatout.records.live import LiveJob
from flatout.records.power import PaceSource, PowerPoint

_LOOK_S = 0.5
_FEWEST_LOOKS = 8
_FEWEST_STEPS = 5
# A window that saw too few steps goes on, for so many times its length.
_LONGEST = 6.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """The job under measurement."""

    name: str
    devices: tuple[Device, ...]
    # How it does now; None where it does not run under `flatout run`, or has ended.
    live: Callable[[], LiveJob | None]
    is_alive: Callable[[], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One window; `pace` is in steps or in shares of the memory's traffic a second."""

    point: PowerPoint
    pace: float | None
    source: PaceSource


class JobEnded(Exception):
    """The job is over: there is nothing left to measure."""


class Measurer:
    """Looks at a job's devices twice a second; `beat` is called each time, and may raise."""

    def __init__(
        self,
        job: Watched,
        source: DeviceSource,
        *,
        beat: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
        look_s: float = _LOOK_S,
    ) -> None:
        self._job = job
        self._source = source
        self._sleep = sleep
        self._look_s = look_s
        self.beat = beat

    def settle(self, seconds: float) -> None:
        """Let clocks, temperatures and queues come to rest."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._tick(min(self._look_s, seconds))

    def window(self, cap_mw: int, seconds: float) -> Measured:
        """Measure for so long, and longer where steps are slow. Raises JobEnded."""
        energy = EnergyFollower()
        samples: list[DeviceSample] = []
        first = last = self._job.live()
        began, looks = time.monotonic(), 0
        while True:
            took = time.monotonic() - began
            steps = _steps_between(first, last)
            seen = first is None or steps >= _FEWEST_STEPS or took >= _LONGEST * seconds
            if took >= seconds and seen and looks >= _FEWEST_LOOKS:
                break
            looks += 1
            found = [one for one in self._source.sample(self._job.devices) if one.state == "up"]
            for sample in found:
                energy.add(sample)
            samples += found
            last = self._job.live() or last
            self._tick(min(self._look_s, seconds / _FEWEST_LOOKS))
        return _measured(cap_mw, took, first, last, energy, samples, len(self._job.devices))

    def _tick(self, pause_s: float) -> None:
        if not self._job.is_alive():
            raise JobEnded(f"{self._job.name} has ended")
        self.beat()
        self._sleep(pause_s)


def _measured(
    cap_mw: int,
    took_s: float,
    first: LiveJob | None,
    last: LiveJob | None,
    energy: EnergyFollower,
    samples: Sequence[DeviceSample],
    gpus: int,
) -> Measured:
    steps = _steps_between(first, last)
    step_s = (
        (last.totals.steps.sum_s - first.totals.steps.sum_s) / steps if first and last and steps else None
    )
    total = energy.total()
    joules = total.mean_watts * step_s * gpus if total.mean_watts is not None and step_s else None
    taken = last.totals.samples - first.totals.samples if first and last else 0
    traffic = _mean([sample.memory_bandwidth_share for sample in samples])
    clock = _mean([sample.clock_compute_hz for sample in samples])
    reasons = {reason for sample in samples for reason in sample.throttle_reasons or ()} - {"idle"}
    point = PowerPoint(
        cap_mw=cap_mw,
        seconds=took_s,
        steps=steps,
        step_s=step_s,
        watts=total.mean_watts,
        joules_per_step=joules,
        samples_per_joule=taken / steps / joules if joules and taken and steps else None,
        clock_hz=round(clock) if clock is not None else None,
        temperature_max_c=max(
            (s.temperature_c for s in samples if s.temperature_c is not None), default=None
        ),
        limited=tuple(sorted(reasons)),
        energy_source=total.source,
        unknown=_reasons(first, steps, total.unknown),
    )
    if step_s:
        return Measured(point=point, pace=1 / step_s, source="steps")
    if traffic and first is None:
        return Measured(point=point, pace=traffic, source="memory traffic")
    return Measured(point=point, pace=None, source="none")


def _reasons(first: LiveJob | None, steps: int, energy: dict[str, str]) -> dict[str, str]:
    why = "it does not run under `flatout run`, which tells its steps" if first is None else "no step ended"
    reasons = {} if steps else dict.fromkeys(("step_s", "joules_per_step", "samples_per_joule"), why)
    return reasons | ({"watts": energy["joules"]} if "joules" in energy else {})


def _steps_between(first: LiveJob | None, last: LiveJob | None) -> int:
    if first is None or last is None or last.life != first.life:
        return 0
    return max(sum(last.totals.steps.counts) - sum(first.totals.steps.counts), 0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
