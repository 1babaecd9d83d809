"""Watches temperatures, warns before clocks fall, and where it may, lowers the power cap a little in time.

A job is never paused: processes that are stopped in the middle of a collective run into the timeouts of the
others, and whoever watches for hangs would take them for one. A lower cap slows the job by a few percent
instead, evenly, and the cap goes up again as soon as there is room.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from flatout.analyze.thermal_forecast import ThermalFollower, ThermalForecast
from flatout.analyze.throttling import limit_kind
from flatout.hardware.power_limits import PowerRefused
from flatout.monitor.power.custody import PowerCustody, SomebodyElse
from flatout.records.device import Device, DeviceSample
from flatout.records.thermal import ThermalEvent

# Clocks fall a little before the temperature that devices name.
MARGIN_C = 2
# Whoever is told two minutes ahead can do something.
HORIZON_S = 120.0
_STEP = 0.07
_LOWER_EVERY_S = 20.0
_RAISE_EVERY_S = 60.0
_ROOM_C = 6
_QUIET_S = 60.0

Change = Callable[[Device, int], None]


@dataclasses.dataclass
class _Guarded:
    device: Device
    follower: ThermalFollower
    found_mw: int | None
    min_mw: int
    now_mw: int | None
    may_cap: bool
    warned_at_s: float | None = None
    hot_at_s: float | None = None
    changed_at_s: float | None = None


class ThermalGuard:
    """Takes samples as they come, and says what it did about them."""

    def __init__(
        self,
        devices: Sequence[Device],
        custody: PowerCustody | None = None,
        *,
        horizon_s: float = HORIZON_S,
    ) -> None:
        self._custody = custody
        self._horizon_s = horizon_s
        self._guarded: dict[str, _Guarded] = {}
        self.events_at_start: list[ThermalEvent] = []
        for device in devices:
            self._guarded[_key(device)] = self._taken(device)

    def _taken(self, device: Device) -> _Guarded:
        slowdown_c = device.temperature_slowdown_c
        follower = ThermalFollower(slowdown_c - MARGIN_C if slowdown_c is not None else None)
        plain = _Guarded(device, follower, None, 0, None, may_cap=False)
        if self._custody is None:
            return plain
        try:
            limits = self._custody.take(device)
        except PowerRefused as refused:
            self.events_at_start.append(_event(device, 0.0, "cannot cap", f"only warns: {refused.reason}"))
            return plain
        return _Guarded(device, follower, limits.limit_mw, limits.min_mw, limits.limit_mw, may_cap=True)

    def look(self, samples: Iterable[DeviceSample]) -> list[ThermalEvent]:
        """The next sample of each device."""
        events: list[ThermalEvent] = []
        for sample in samples:
            one = self._guarded.get(sample.uuid or f"index-{sample.index}")
            if one is not None and sample.state == "up":
                one.follower.add(sample)
                events += self._judge(one, sample)
        return events

    def _judge(self, one: _Guarded, sample: DeviceSample) -> list[ThermalEvent]:
        now_s, course = sample.taken_at_unix_s, one.follower.forecast()
        if not self._is_hot(course, sample):
            quiet = one.hot_at_s is None or now_s - one.hot_at_s > _QUIET_S
            one.warned_at_s = None if quiet else one.warned_at_s
            return self._raised(one, course, now_s)
        one.hot_at_s = now_s
        events = []
        if one.warned_at_s is None:
            one.warned_at_s = now_s
            events.append(_event(one.device, now_s, "warned", _warning(course, sample), course))
        return [*events, *self._lowered(one, sample, now_s)]

    def _is_hot(self, course: ThermalForecast, sample: DeviceSample) -> bool:
        if course.course == "at the limit" or limit_kind(sample.throttle_reasons or ()) == "thermal":
            return True
        return course.course == "reaches" and (course.reaches_in_s or 0.0) <= self._horizon_s

    def _lowered(self, one: _Guarded, sample: DeviceSample, now_s: float) -> list[ThermalEvent]:
        if not one.may_cap or one.now_mw is None or _since(one, now_s) < _LOWER_EVERY_S:
            return []
        # A cap above what it draws would change nothing.
        from_mw = min(one.now_mw, sample.power_draw_mw or one.now_mw)
        wanted = max(round(from_mw * (1 - _STEP) / 1000) * 1000, one.min_mw)
        return self._changed(one, wanted, now_s, "capped") if wanted < one.now_mw else []

    def _raised(self, one: _Guarded, course: ThermalForecast, now_s: float) -> list[ThermalEvent]:
        if one.now_mw is None or one.found_mw is None or one.now_mw >= one.found_mw:
            return []
        room = course.course in ("steady", "stays below", "cooling")
        cool = course.limit_c is not None and (course.temperature_c or 999) <= course.limit_c - _ROOM_C
        if not (room and cool) or _since(one, now_s) < _RAISE_EVERY_S:
            return []
        wanted = min(round(one.now_mw * (1 + _STEP) / 1000) * 1000, one.found_mw)
        return self._changed(one, wanted, now_s, "raised")

    def _changed(
        self, one: _Guarded, wanted_mw: int, now_s: float, what: Literal["capped", "raised"]
    ) -> list[ThermalEvent]:
        if self._custody is None or not one.may_cap:
            return []
        try:
            self._custody.set(one.device, wanted_mw)
        except (PowerRefused, SomebodyElse) as error:
            one.may_cap, one.now_mw = False, None
            return [_event(one.device, now_s, "cannot cap", f"only warns from now on: {error}")]
        was_mw, one.now_mw, one.changed_at_s = one.now_mw or 0, wanted_mw, now_s
        one.follower.forget()
        text = f"power cap {was_mw / 1000:g} W -> {wanted_mw / 1000:g} W"
        if wanted_mw == one.found_mw:
            text += ", as it was found"
        return [_event(one.device, now_s, what, text)]


def _since(one: _Guarded, now_s: float) -> float:
    return float("inf") if one.changed_at_s is None else now_s - one.changed_at_s


def _warning(course: ThermalForecast, sample: DeviceSample) -> str:
    if limit_kind(sample.throttle_reasons or ()) == "thermal":
        return f"at {sample.temperature_c} °C its clocks are lowered because of heat"
    if course.course == "at the limit":
        return f"{sample.temperature_c} °C: clocks fall from {(course.limit_c or 0) + MARGIN_C} °C on"
    return (
        f"{sample.temperature_c} °C and rising: {course.limit_c} °C in about "
        f"{course.reaches_in_s or 0:.0f} s; clocks fall from {(course.limit_c or 0) + MARGIN_C} °C on"
    )


def _event(
    device: Device,
    at_s: float,
    what: Literal["warned", "capped", "raised", "cannot cap"],
    text: str,
    course: ThermalForecast | None = None,
) -> ThermalEvent:
    return ThermalEvent(
        index=device.index,
        uuid=device.uuid,
        at_unix_s=at_s,
        what=what,
        text=text,
        reaches_in_s=course.reaches_in_s if course is not None else None,
        unknown={"reaches_in_s": (course.reason if course else "") or "not forecast"},
    )


def _key(device: Device) -> str:
    return device.uuid or f"index-{device.index}"
