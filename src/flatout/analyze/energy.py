"""Energy from samples: the device's own counter where it has one, else the power it drew, summed up."""

from collections.abc import Iterable, Sequence

from flatout.analyze.throttling import GAP_S
from flatout.records.device import DeviceSample
from flatout.records.energy import Energy, EnergySource

# No device draws so much: a counter that grew faster began anew, or speaks nonsense.
_AT_MOST_W = 20_000.0


class EnergyFollower:
    """Takes samples one by one and keeps sums; samples of several devices may come mixed.

    A counter also covers the time between samples that are far apart, and the time in which a device did
    not answer. Where it began anew (the driver was loaded again), the power of both ends counts instead.
    """

    def __init__(self) -> None:
        self._by_device: dict[str, _OneDevice] = {}

    def add(self, sample: DeviceSample) -> None:
        """The next sample of a device; one that is stale says nothing new."""
        self._by_device.setdefault(sample.uuid or f"{sample.index}", _OneDevice()).add(sample)

    def total(self) -> Energy:
        """Over all devices, up to the newest sample of each."""
        return sum_energy([one.total() for one in self._by_device.values()])

    def of(self, uuid: str) -> Energy:
        """One device's own."""
        one = self._by_device.get(uuid)
        return one.total() if one else Energy()


def energy(samples: Iterable[DeviceSample]) -> Energy:
    """What all of these samples' devices drew between their first and their last."""
    follower = EnergyFollower()
    for sample in samples:
        follower.add(sample)
    return follower.total()


def sum_energy(parts: Sequence[Energy]) -> Energy:
    """Several devices', or several lives', together. What is missing in one stays missing in the sum."""
    known = [part for part in parts if part.joules is not None]
    sources = {name for part in known for name in part.source.split(" and ")}
    return Energy(
        joules=sum(part.joules or 0.0 for part in known) if known else None,
        source=_source("counter" in sources, "power" in sources),
        covered_s=sum(part.covered_s for part in parts),
        missing_s=sum(part.missing_s for part in parts),
        resets=sum(part.resets for part in parts),
    )


class _OneDevice:
    def __init__(self) -> None:
        self._last: DeviceSample | None = None
        self._counter_j = 0.0
        self._power_j = 0.0
        self._counter_s = 0.0
        self._power_s = 0.0
        self._missing_s = 0.0
        self._resets = 0

    def add(self, sample: DeviceSample) -> None:
        if sample.state != "up":
            return
        last, self._last = self._last, sample
        if last is None:
            return
        took_s = sample.taken_at_unix_s - last.taken_at_unix_s
        if took_s <= 0:
            self._last = last
            return
        by_counter = self._grown_j(last, sample, took_s)
        by_power = _drawn_j(last, sample, took_s)
        if by_counter is not None:
            self._counter_j += by_counter
            self._counter_s += took_s
        elif by_power is not None:
            self._power_j += by_power
            self._power_s += took_s
        else:
            self._missing_s += took_s

    def _grown_j(self, last: DeviceSample, sample: DeviceSample, took_s: float) -> float | None:
        if last.energy_total_mj is None or sample.energy_total_mj is None:
            return None
        grown_j = (sample.energy_total_mj - last.energy_total_mj) / 1000
        if grown_j < 0 or grown_j > _AT_MOST_W * took_s:
            self._resets += 1
            return None
        return grown_j

    def total(self) -> Energy:
        covered_s = self._counter_s + self._power_s
        return Energy(
            joules=self._counter_j + self._power_j if covered_s > 0 else None,
            source=_source(self._counter_s > 0, self._power_s > 0),
            covered_s=covered_s,
            missing_s=self._missing_s,
            resets=self._resets,
        )


def _drawn_j(last: DeviceSample, sample: DeviceSample, took_s: float) -> float | None:
    if last.power_draw_mw is None or sample.power_draw_mw is None or took_s > GAP_S:
        return None
    return (last.power_draw_mw + sample.power_draw_mw) / 2000 * took_s


def _source(counter: bool, power: bool) -> EnergySource:
    if counter and power:
        return "counter and power"
    return "counter" if counter else "power" if power else "none"
