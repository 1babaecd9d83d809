"""What clock limits cost: how long a reason was given, and how much of its clock a device did not have.

A clock is held against the highest that the device had while it worked and nothing limited it. One that was
limited all the time is held against the highest that it is rated for.
"""

from collections.abc import Iterable, Sequence

from flatout.records.device import Device, DeviceSample
from flatout.records.energy import LIMIT_KINDS, LimitKind, Throttling

# Between samples further apart than this nothing is known.
GAP_S = 10.0
# Samples may come twice, or a look late; one that is older by more was taken after the clock was set back.
BACK_S = 5.0

NO_LIMIT = frozenset({"idle"})
_THERMAL = frozenset({"thermal_software", "thermal_hardware"})
_POWER = frozenset({"power_cap", "power_brake"})
_SEEN = "the highest clock that was seen without a limit"
_RATED = "the highest clock that the device is rated for: it was limited all the time"
_HIGHEST = "the highest clock that was seen: it was limited all the time"


def limit_kind(reasons: Iterable[str]) -> LimitKind | None:
    """What holds the clock down, where something does; heat comes first, as it is the most urgent.

    `hardware_slowdown` is the sum of others, and counts for itself only where none of them is named.
    """
    given = set(reasons) - NO_LIMIT
    if not given:
        return None
    if given & _THERMAL:
        return "thermal"
    return "power" if given & _POWER else "other"


def clock_was_set_back(last: DeviceSample, sample: DeviceSample) -> bool:
    """Whether the machine's clock was, between these two samples of a device: a new beginning."""
    return last.taken_at_unix_s - sample.taken_at_unix_s > BACK_S


class ThrottlingFollower:
    """Takes samples one by one and keeps sums: days need no more memory than seconds.

    Samples of several devices may come in any mixture, each device's own in the order of time.
    """

    def __init__(self, devices: Sequence[Device] = ()) -> None:
        self._rated = {device.uuid or f"{device.index}": device.clock_compute_max_hz for device in devices}
        self._by_device: dict[str, _OneDevice] = {}

    def add(self, sample: DeviceSample) -> None:
        """The next sample of a device; one that is stale says nothing new."""
        key = sample.uuid or f"{sample.index}"
        if key not in self._by_device:
            self._by_device[key] = _OneDevice(self._rated.get(key))
        self._by_device[key].add(sample)

    def total(self) -> Throttling:
        """Over all devices, up to the newest sample of each."""
        return _sum([one.total() for one in self._by_device.values()])

    def of(self, uuid: str) -> Throttling:
        """One device's own."""
        one = self._by_device.get(uuid)
        return one.total() if one else Throttling()


class _OneDevice:
    def __init__(self, rated_hz: int | None) -> None:
        self._rated_hz = rated_hz
        self._last: DeviceSample | None = None
        self._given_s: dict[str, float] = {}
        # Busy seconds under a limit, and the same times their clock, so that the loss follows from whatever
        # the highest clock turns out to be.
        self._limited_s: dict[LimitKind, float] = dict.fromkeys(LIMIT_KINDS, 0.0)
        self._limited_cycles: dict[LimitKind, float] = dict.fromkeys(LIMIT_KINDS, 0.0)
        self._observed_s = 0.0
        self._unobserved_s = 0.0
        self._clock_unknown_s = 0.0
        self._free_hz = 0
        self._highest_hz = 0

    def add(self, sample: DeviceSample) -> None:
        last = self._last
        if last is not None and sample.state != "stale" and clock_was_set_back(last, sample):
            last = None
        if sample.state == "stale" or (last is not None and sample.taken_at_unix_s <= last.taken_at_unix_s):
            return
        self._last = sample
        self._note_clock(sample)
        if last is None:
            return
        took_s = sample.taken_at_unix_s - last.taken_at_unix_s
        if last.throttle_reasons is None or sample.state == "down" or took_s > GAP_S:
            self._unobserved_s += took_s
            return
        self._observed_s += took_s
        for reason in set(last.throttle_reasons) - NO_LIMIT:
            self._given_s[reason] = self._given_s.get(reason, 0.0) + took_s
        self._note_limit(last, took_s)

    def _note_clock(self, sample: DeviceSample) -> None:
        clock, reasons = sample.clock_compute_hz, sample.throttle_reasons
        if clock is None or reasons is None or sample.state != "up" or "idle" in reasons:
            return
        self._highest_hz = max(self._highest_hz, clock)
        if limit_kind(reasons) is None:
            self._free_hz = max(self._free_hz, clock)

    def _note_limit(self, sample: DeviceSample, took_s: float) -> None:
        kind = limit_kind(sample.throttle_reasons or ())
        if kind is None:
            return
        # A device on which no kernel runs loses nothing by a low clock.
        busy = 1.0 if sample.kernel_running_share is None else sample.kernel_running_share
        if sample.clock_compute_hz is None:
            self._clock_unknown_s += took_s * busy
            return
        self._limited_s[kind] += took_s * busy
        self._limited_cycles[kind] += took_s * busy * sample.clock_compute_hz

    def total(self) -> Throttling:
        reference, source = self._reference()
        limited = any(self._limited_s.values())
        lost: dict[LimitKind, float] | None = None
        if not self._clock_unknown_s and self._observed_s and (reference or not limited):
            lost = {
                kind: max(self._limited_s[kind] - self._limited_cycles[kind] / reference, 0.0)
                if reference
                else 0.0
                for kind in LIMIT_KINDS
            }
        unknown = {"lost_s": "a limit was given while the clock was unknown"} if self._clock_unknown_s else {}
        return Throttling(
            given_s=dict(self._given_s),
            lost_s=lost,
            observed_s=self._observed_s,
            unobserved_s=self._unobserved_s,
            reference_hz=reference or None,
            reference_source=source,
            unknown=unknown,
        )

    def _reference(self) -> tuple[int, str]:
        # A limit can be reported while the clock is as high as ever: the higher of both is what it can have.
        if self._free_hz:
            return max(self._free_hz, self._highest_hz), _SEEN
        if self._rated_hz and self._rated_hz >= self._highest_hz and self._highest_hz:
            return self._rated_hz, _RATED
        return self._highest_hz, _HIGHEST if self._highest_hz else ""


def _sum(parts: Sequence[Throttling]) -> Throttling:
    if not parts:
        return Throttling()
    given: dict[str, float] = {}
    lost: dict[LimitKind, float] = {}
    known = [part for part in parts if part.lost_s is not None]
    for part in parts:
        for reason, seconds in part.given_s.items():
            given[reason] = given.get(reason, 0.0) + seconds
        for kind, seconds in (part.lost_s or {}).items():
            lost[kind] = lost.get(kind, 0.0) + seconds
    highest = max(parts, key=lambda part: part.reference_hz or 0)
    without = next((part for part in parts if part.lost_s is None), None)
    return Throttling(
        given_s=given,
        lost_s=lost if len(known) == len(parts) else None,
        observed_s=sum(part.observed_s for part in parts),
        unobserved_s=sum(part.unobserved_s for part in parts),
        reference_hz=highest.reference_hz,
        reference_source=highest.reference_source,
        unknown={"lost_s": without.unknown["lost_s"]} if without else {},
    )
