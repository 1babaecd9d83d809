"""Energy from samples: the device's own counter where it has one, else the power it drew, summed up."""

from collections.abc import Sequence

from flatout.analyze.throttling import GAP_S, clock_was_set_back
from flatout.records.device import DeviceSample
from flatout.records.energy import Energy, EnergySource

# No device draws so much: a counter that grew faster began anew, or speaks nonsense.
_AT_MOST_W = 20_000.0


class EnergyFollower:
    """Takes samples one by one and keeps sums; samples of several devices may come mixed.

    A counter also covers the time between samples that are far apart, and the time in which a device did
    not answer. Where it began anew (the driver was loaded again), or was not read yet, power counts instead.
    What was told is never taken back: where power had told more than the counter does then, the sum waits.
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
        # The newest sample with another reading of the counter than before: until it is read anew, samples
        # repeat the last one.
        self._counted: DeviceSample | None = None
        self._by_counter = _Sum()
        self._by_power = _Sum()
        # By power since then, until the counter says it better.
        self._since = _Sum()
        self._resets = 0
        self._told_j = 0.0

    def add(self, sample: DeviceSample) -> None:
        last = self._last
        if last is not None and sample.state == "up" and clock_was_set_back(last, sample):
            self._go_on_from(sample)
            return
        if sample.state != "up" or (last is not None and sample.taken_at_unix_s <= last.taken_at_unix_s):
            return
        self._last = sample
        if last is not None:
            self._since.add(_drawn_j(last, sample), sample.taken_at_unix_s - last.taken_at_unix_s)
        if self._counted is None or sample.energy_total_mj is None:
            self._count_from(sample)
        elif sample.energy_total_mj != self._counted.energy_total_mj:
            self._count(self._counted, sample)

    def _go_on_from(self, sample: DeviceSample) -> None:
        """How long it is since the last sample, nobody knows: nothing is added."""
        self._last = sample
        if self._counted is not None and sample.energy_total_mj == self._counted.energy_total_mj:
            self._counted = sample  # not read anew: its growth will tell of the time before, too
        else:
            self._count_from(sample)

    def _count_from(self, sample: DeviceSample) -> None:
        """What came before is known by power alone."""
        self._by_power.take(self._since)
        self._since = _Sum()
        self._counted = sample if sample.energy_total_mj is not None else None

    def _count(self, before: DeviceSample, sample: DeviceSample) -> None:
        took_s = sample.taken_at_unix_s - before.taken_at_unix_s
        grown_j = ((sample.energy_total_mj or 0) - (before.energy_total_mj or 0)) / 1000
        if 0 <= grown_j <= _AT_MOST_W * took_s:
            self._by_counter.add(grown_j, took_s)
            self._since, self._counted = _Sum(), sample
        else:
            self._resets += 1
            self._count_from(sample)

    def total(self) -> Energy:
        counter, power = self._by_counter, _Sum()
        power.take(self._by_power)
        power.take(self._since)
        covered_s = counter.covered_s + power.covered_s
        self._told_j = max(self._told_j, counter.joules + power.joules)
        return Energy(
            joules=self._told_j if covered_s > 0 else None,
            source=_source(counter.covered_s > 0, power.covered_s > 0),
            covered_s=covered_s,
            missing_s=power.missing_s,
            resets=self._resets,
        )


class _Sum:
    def __init__(self) -> None:
        self.joules = self.covered_s = self.missing_s = 0.0

    def add(self, joules: float | None, took_s: float) -> None:
        if joules is None:
            self.missing_s += took_s
        else:
            self.joules += joules
            self.covered_s += took_s

    def take(self, other: "_Sum") -> None:
        self.joules += other.joules
        self.covered_s += other.covered_s
        self.missing_s += other.missing_s


def _drawn_j(last: DeviceSample, sample: DeviceSample) -> float | None:
    took_s = sample.taken_at_unix_s - last.taken_at_unix_s
    if last.power_draw_mw is None or sample.power_draw_mw is None or took_s > GAP_S:
        return None
    return (last.power_draw_mw + sample.power_draw_mw) / 2000 * took_s


def _source(counter: bool, power: bool) -> EnergySource:
    if counter and power:
        return "counter and power"
    return "counter" if counter else "power" if power else "none"
