"""Tries power caps under a running job, from what it draws downwards, and finds the one that costs least."""

import dataclasses
from collections.abc import Callable, Sequence

from flatout.analyze.power_curve import best_cap, between, caps_to_try, compared, enough
from flatout.hardware.power_limits import PowerControls, PowerLimits, PowerRefused
from flatout.monitor.power.custody import PowerCustody, SomebodyElse
from flatout.monitor.power.measuring import JobEnded, Measured, Measurer, Watched
from flatout.records.power import PowerNow, PowerPoint, PowerSweep

# How far the job's own pace may move before a comparison is doubtful.
_DRIFT = 0.02

Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepWish:
    """What the user asked for."""

    slowdown: float = 0.02
    caps_mw: tuple[int, ...] = ()
    settle_s: float = 5.0
    window_s: float = 20.0
    apply: bool = False


class Sweep:
    """One sweep; limits are put back by the custody that it works in."""

    def __init__(
        self,
        job: Watched,
        measurer: Measurer,
        custody: PowerCustody,
        wish: SweepWish,
        progress: Progress = lambda _name, _done, _total: None,
    ) -> None:
        self._job, self._measurer, self._custody, self._wish = job, measurer, custody, wish
        self._progress = progress
        self._points: list[PowerPoint] = []
        self._notes: list[str] = []
        self._base: Measured | None = None
        self._drift: float | None = None
        self._applied = False
        self._limits: list[PowerLimits] = []

    def run(self, devices: Sequence[PowerNow]) -> PowerSweep:
        """Sweep, and choose. Raises PowerRefused where the first device's limit may not be set."""
        self._limits = [self._custody.take(device) for device in self._job.devices]
        best, ended_early = best_cap((), self._wish.slowdown), ""
        try:
            self._measure_all()
            best = best_cap(self._points, self._wish.slowdown)
            self._apply(best.cap_mw)
        except (PowerRefused, SomebodyElse, JobEnded) as stopped:
            ended_early = str(stopped)
            self._notes.append(f"the sweep ended early: {ended_early}")
            best = best_cap(self._points, self._wish.slowdown)
        return PowerSweep(
            job=self._job.name,
            devices=tuple(devices),
            pace_source=self._base.source if self._base else "none",
            slowdown_bound=self._wish.slowdown,
            points=tuple(self._points),
            best_mw=best.cap_mw,
            best_reason=best.reason,
            applied=self._applied,
            drift=self._drift,
            ended_early=ended_early,
            notes=tuple(self._notes),
            unknown={"drift": "the sweep ended before the limit that was found was measured again"},
        )

    def _measure_all(self) -> None:
        found_mw = max(limits.limit_mw for limits in self._limits)
        lowest_mw = max(limits.min_mw for limits in self._limits)
        self._progress(f"measuring at {found_mw / 1000:g} W, as found", 0, 0)
        self._base = self._measurer.window(found_mw, self._wish.window_s)
        base = self._base
        self._points.append(compared(base.point, base.point, base.pace, base.pace))
        if base.pace is None:
            self._notes.append(f"no caps were tried: {base.point.unknown.get('step_s', 'no pace was seen')}")
            return
        draw_mw = base.point.watts * 1000 if base.point.watts is not None else None
        caps = list(self._wish.caps_mw) or caps_to_try(found_mw, draw_mw, lowest_mw)
        for number, cap_mw in enumerate(caps, 1):
            self._try(cap_mw, number, len(caps))
            if not self._wish.caps_mw and enough(self._points, self._wish.slowdown):
                break
        middle = None if self._wish.caps_mw else between(self._points, self._wish.slowdown)
        if middle is not None:
            self._try(middle, len(caps), len(caps))
        self._look_again(found_mw, base)

    def _try(self, cap_mw: int, number: int, total: int) -> None:
        self._progress(f"measuring at {cap_mw / 1000:g} W", number, total + 1)
        try:
            self._set_all(cap_mw)
        except PowerRefused as refused:
            outcome = "lost" if refused.kind == "lost" else "refused"
            self._points.append(
                PowerPoint(cap_mw=cap_mw, outcome=outcome, reason=f"{refused.kind}: {refused.reason}")  # type: ignore[arg-type]
            )
            raise
        self._measurer.settle(self._wish.settle_s)
        found = self._measurer.window(cap_mw, self._wish.window_s)
        for device in self._job.devices:
            self._custody.check(device)  # a window under somebody else's limit says nothing of this one
        assert self._base is not None
        self._points.append(compared(found.point, self._base.point, found.pace, self._base.pace))

    def _look_again(self, found_mw: int, base: Measured) -> None:
        """The first look once more: a job changes by itself, and that is not the caps' doing."""
        self._progress(f"measuring at {found_mw / 1000:g} W again", 1, 1)
        for device, limits in zip(self._job.devices, self._limits, strict=True):
            self._custody.set(device, limits.limit_mw)
        self._measurer.settle(self._wish.settle_s)
        again = self._measurer.window(found_mw, self._wish.window_s)
        if again.pace is not None and base.pace is not None:
            self._drift = base.pace / again.pace - 1.0
            if abs(self._drift) > max(_DRIFT, self._wish.slowdown):
                self._notes.append(
                    f"the job's own pace moved by {self._drift:+.1%} meanwhile: sweep again for a sure answer"
                )

    def _set_all(self, cap_mw: int) -> None:
        for device, limits in zip(self._job.devices, self._limits, strict=True):
            self._custody.set(device, min(limits.within(cap_mw), limits.limit_mw))

    def _apply(self, best_mw: int | None) -> None:
        found_mw = max(limits.limit_mw for limits in self._limits)
        if not self._wish.apply or best_mw is None or best_mw >= found_mw:
            return
        for device, limits in zip(self._job.devices, self._limits, strict=True):
            self._custody.keep(device, min(limits.within(best_mw), limits.limit_mw))
            self._applied = True  # also where a later one refuses: --restore puts this one back


def measured_only(
    job: Watched,
    measurer: Measurer,
    wish: SweepWish,
    controls: PowerControls,
    devices: Sequence[PowerNow],
    refused: PowerRefused | None = None,
) -> PowerSweep:
    """Joules a step and samples a joule at the limit as it is, where limits cannot or shall not be set."""
    limit_mw = max((now.limit_mw for now in devices if now.limit_mw is not None), default=0)
    try:
        base = measurer.window(limit_mw, wish.window_s)
        points: tuple[PowerPoint, ...] = (compared(base.point, base.point, base.pace, base.pace),)
        source = base.source
        notes: tuple[str, ...] = ()
    except JobEnded as ended:
        points, source, notes = (), "none", (str(ended),)
    commands = [
        controls.for_device(device).command_for(device.uuid or "", round(limit_mw * 0.8 / 5000) * 5000)
        for device in job.devices
        if limit_mw and refused is not None
    ]
    return PowerSweep(
        job=job.name,
        devices=tuple(devices),
        pace_source=source,
        slowdown_bound=wish.slowdown,
        points=points,
        best_reason="limits cannot be set here, so no cap was tried"
        if refused is not None
        else "no cap was tried, as was asked (--measure)",
        permitted=refused is None,
        refusal=refused.reason if refused is not None else "",
        admin_commands=tuple(command for command in commands if command),
        notes=notes,
    )
