"""What a frame means, in words and rows: for the live view and for plain text alike.

A percentage is never shown bare: every share comes with the name of what was measured.
"""

import dataclasses
import signal
from collections.abc import Sequence
from typing import Literal

from flatout.records.device import Device, DeviceProcess, DeviceSample
from flatout.records.live import LIVE_STALE_S, LiveJob
from flatout.records.processes import JobHere, JobProcess
from flatout.records.watching import Frame
from flatout.records.words import byte_rate, duration, memory_size, percent, three_digits

# How much a reader should care; a view gives it a colour, and the words say it without one.
Mood = Literal["good", "plain", "dim", "warn", "bad"]

# From how much of its slowdown threshold on a temperature is worth a look, in degrees below.
_NEAR_SLOWDOWN_C = 5
# Signals by which somebody, or a batch system, asks a job to end.
_ASKED = frozenset({signal.SIGINT, signal.SIGTERM})
# Almost no room left.
_FULL_SHARE = 0.97

# Clocks that are low because nothing runs are limited by nothing.
_NO_LIMIT = frozenset({"idle"})
_LIMITS: dict[str, tuple[str, Mood]] = {
    "application_clocks": ("set clocks", "dim"),
    "power_cap": ("power cap", "warn"),
    "hardware_slowdown": ("hardware slowdown", "bad"),
    "sync_boost": ("sync boost", "dim"),
    "thermal_software": ("heat", "bad"),
    "thermal_hardware": ("heat (hardware)", "bad"),
    "power_brake": ("power brake", "bad"),
    "display_clocks": ("display clocks", "dim"),
}


@dataclasses.dataclass(frozen=True)
class Said:
    """Words, and how much they matter."""

    words: str
    mood: Mood = "plain"


@dataclasses.dataclass(frozen=True)
class Activity:
    """A share with the name of what it is a share of; `share` is None where nothing is known."""

    measured: str
    share: float | None
    # The series of a device's history that holds it.
    series: str = ""

    @property
    def words(self) -> str:
        """Such as "SM active 87 %"."""
        return f"{self.measured} {percent(self.share)}" if self.share is not None else self.measured


def gpus_of(frame: Frame) -> list[tuple[Device, DeviceSample]]:
    """Every device that is not the CPU, with its sample."""
    pairs = zip(frame.devices, frame.samples, strict=False)
    return [(device, sample) for device, sample in pairs if device.vendor != "cpu"]


def activities(sample: DeviceSample) -> list[Activity]:
    """What is known of how busy a device is, the most telling first."""
    candidates = (
        Activity("SM active", sample.sm_active_share, "sm_active_share"),
        Activity("tensor active", sample.tensor_active_share, "tensor_active_share"),
        Activity("kernel running", sample.kernel_running_share, "kernel_running_share"),
        Activity("DRAM busy", sample.memory_bandwidth_share, "memory_bandwidth_share"),
    )
    found = [one for one in candidates if one.share is not None]
    return found or [Activity("activity unknown", None, "kernel_running_share")]


def memory_words(device: Device, sample: DeviceSample) -> Said:
    """Such as "101.2 of 139.8 GiB"."""
    used, total = sample.memory_used_bytes, device.memory_total_bytes
    if used is None:
        return Said("memory unknown", "dim")
    if not total:
        return Said(memory_size(used))
    shown, unit = memory_size(total).split()
    size = {"GiB": 1 << 30, "MiB": 1 << 20}.get(unit, 1024)
    return Said(
        f"{used / size:.{1 if unit == 'GiB' else 0}f} of {shown} {unit}",
        "warn" if used / total >= _FULL_SHARE else "plain",
    )


def power_words(sample: DeviceSample) -> Said:
    """Such as "640 of 700 W"."""
    if sample.power_draw_mw is None:
        return Said("power unknown", "dim")
    draw = f"{sample.power_draw_mw / 1000:.0f}"
    limit = sample.power_limit_mw
    return Said(f"{draw} of {limit / 1000:.0f} W" if limit else f"{draw} W")


def heat_words(device: Device, sample: DeviceSample) -> Said:
    """Such as "64 of 89 °C": the second is where it begins to slow down."""
    if sample.temperature_c is None:
        return Said("heat unknown", "dim")
    threshold = device.temperature_slowdown_c
    if threshold is None:
        return Said(f"{sample.temperature_c} °C")
    near = sample.temperature_c >= threshold - _NEAR_SLOWDOWN_C
    over = sample.temperature_c >= threshold
    return Said(f"{sample.temperature_c} of {threshold} °C", "bad" if over else "warn" if near else "plain")


def limit_words(sample: DeviceSample) -> Said:
    """What keeps its clocks low: "" where nothing does."""
    if sample.throttle_reasons is None:
        return Said("limits unknown", "dim")
    reasons = [reason for reason in sample.throttle_reasons if reason not in _NO_LIMIT]
    known = [_LIMITS.get(reason, (reason.replace("_", " "), "warn")) for reason in reasons]
    worst: Mood = next((mood for mood in ("bad", "warn", "dim") if any(m == mood for _, m in known)), "plain")
    return Said(", ".join(words for words, _ in known), worst)


def clock_words(device: Device, sample: DeviceSample) -> str:
    """Such as "1980 of 1980 MHz"."""
    if sample.clock_compute_hz is None:
        return ""
    now = f"{sample.clock_compute_hz / 1e6:.0f}"
    most = device.clock_compute_max_hz
    return f"{now} of {most / 1e6:.0f} MHz" if most else f"{now} MHz"


def link_words(device: Device, sample: DeviceSample) -> Said:
    """PCIe as it is now against what it could be, what goes over it, and direct links between GPUs."""
    parts = []
    mood: Mood = "plain"
    if sample.pcie_generation and sample.pcie_width:
        words = f"PCIe {sample.pcie_generation} x{sample.pcie_width}"
        # The generation falls while nothing runs; a width that is short never comes back.
        if device.pcie_width_max and sample.pcie_width < device.pcie_width_max:
            words, mood = f"{words} of x{device.pcie_width_max}", "warn"
        parts.append(words)
    rates = (("out", sample.pcie_sent_bytes_per_s), ("in", sample.pcie_received_bytes_per_s))
    parts += [f"{name} {byte_rate(rate)}" for name, rate in rates if rate is not None]
    if sample.gpu_links:
        active = sum(link.active for link in sample.gpu_links)
        parts.append(f"{active} of {len(sample.gpu_links)} GPU links")
        mood = "warn" if 0 < active < len(sample.gpu_links) else mood
    return Said(", ".join(parts), mood)


def state_words(sample: DeviceSample, now_unix_s: float) -> Said | None:
    """What is wrong with a device that does not answer; None for one that does."""
    if sample.state == "up":
        return None
    if sample.state == "down":
        return Said(f"DOWN: {sample.state_reason or 'it does not answer'}", "bad")
    old_s = max(0.0, now_unix_s - sample.taken_at_unix_s)
    return Said(f"STALE, {duration(old_s) if old_s else 'just now'} old: {sample.state_reason}", "warn")


# Processes and jobs


@dataclasses.dataclass(frozen=True)
class ProcessRow:
    """A process on a device, with what the machine knows of it."""

    device: Device
    process: DeviceProcess
    # None for what belongs to no job that can be seen from here.
    job: JobHere | None
    member: JobProcess | None

    @property
    def state(self) -> str:
        """As `flatout ps` has it."""
        if self.process.gone:
            return "zombie"
        return self.member.state if self.member else "unknown"


@dataclasses.dataclass(frozen=True)
class JobRow:
    """A job that runs here, that Flatout runs, or both."""

    job: JobHere | None
    live: LiveJob | None
    now_unix_s: float

    @property
    def key(self) -> str:
        """By what it is known from one frame to the next."""
        return self.live.run if self.live else f"pid-{self.job.pid if self.job else 0}"

    @property
    def name(self) -> str:
        """What it is called in lists."""
        if self.live:
            return self.live.name
        return self.job.command or self.job.name if self.job else ""

    @property
    def pid(self) -> int | None:
        """The process at its head; None for a job of another machine."""
        return self.job.pid if self.job else None

    @property
    def user(self) -> str:
        """Whose it is."""
        return (self.job.user if self.job else None) or (self.live.user if self.live else "") or "?"

    @property
    def age_s(self) -> float | None:
        """Since it was started."""
        if self.live:
            return max(0.0, self.now_unix_s - self.live.started_at_unix_s)
        return self.job.age_s if self.job else None

    @property
    def silent_s(self) -> float | None:
        """For how long nothing was heard of it, where that is too long."""
        if self.live is None or self.live.state == "ended":
            return None
        old = self.now_unix_s - self.live.written_at_unix_s
        return old if old > LIVE_STALE_S else None

    @property
    def state(self) -> Said:
        """What it does at the moment."""
        if self.live is None:
            state = self.job.state if self.job else "unknown"
            moods: dict[str, Mood] = {"running": "good", "orphan": "bad", "zombie": "bad", "unknown": "warn"}
            return Said(state, moods.get(state, "plain"))
        if self.silent_s is not None and self.live.state != "stalled":
            return Said("no news", "warn")
        if self.live.state == "ended":
            if self.live.signal in _ASKED or self.live.exit_code in {128 + number for number in _ASKED}:
                return Said("stopped", "warn")
            failed = bool(self.live.exit_code) or self.live.signal is not None
            return Said("failed" if failed else "ended", "bad" if failed else "dim")
        return Said(self.live.state, {"training": "good", "stalled": "bad"}.get(self.live.state, "plain"))  # type: ignore[arg-type]


def process_rows(frame: Frame) -> list[ProcessRow]:
    """Every process on every GPU that its driver lists."""
    whose = {member.pid: (job, member) for job in frame.jobs for member in job.processes}
    rows = []
    for device, sample in gpus_of(frame):
        for process in sample.processes or ():
            # A pid may be of another namespace: only one that was recognised is the one that we know here.
            known = process.name is not None and not process.gone
            job, member = whose.get(process.pid, (None, None)) if known else (None, None)
            rows.append(ProcessRow(device, process, job, member))
    return rows


def job_rows(frame: Frame) -> list[JobRow]:
    """Jobs that Flatout runs first, then all others that run here."""
    here = {job.run: job for job in frame.jobs if job.run}
    live = {job.run: job for job in frame.live_jobs}
    rows = [JobRow(here.get(run), job, frame.taken_at_unix_s) for run, job in live.items()]
    return rows + [JobRow(job, None, frame.taken_at_unix_s) for job in frame.jobs if job.run not in live]


def figures_of(job: LiveJob) -> list[tuple[str, str]]:
    """How a job trains, as pairs of a name and a figure; what is unknown is left out."""
    found: list[tuple[str, str]] = []
    if job.step_s is not None:
        found.append(("step", duration(job.step_s)))
    if job.tokens_per_s is not None:
        found.append(("tokens/s", _count(job.tokens_per_s)))
    elif job.samples_per_s is not None:
        found.append(("samples/s", _count(job.samples_per_s)))
    if job.mfu is not None:
        found.append(("MFU", percent(job.mfu)))
    if job.loss is not None:
        found.append(("loss", f"{job.loss:.4g}"))
    if job.updates_planned:
        found.append(("done", percent(job.updates / job.updates_planned)))
    else:
        found.append(("updates", str(job.updates)))
    if job.headroom is not None:
        found.append(("headroom", f"{job.headroom:.2g}x"))
    if job.data_wait_share is not None and job.data_wait_share >= 0.01:
        found.append(("waits for data", percent(job.data_wait_share)))
    return found


def _count(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{three_digits(value / (1e3 if unit == 'k' else size))}{unit}"
    return three_digits(value)


def remarks(frame: Frame) -> list[Said]:
    """What must not be missed: drivers that do not answer, no GPU at all, what cannot be seen."""
    found = [Said(status.problem, "bad") for status in frame.vendors if status.problem]
    if not gpus_of(frame):
        reasons = [status.absent_reason for status in frame.vendors if status.vendor == "nvidia"]
        why = f" ({reasons[0]})" if reasons and reasons[0] else ""
        found.append(Said(f"no GPU can be seen here{why}: the CPU, the host and jobs are shown"))
    return found + [Said(note, "warn") for note in frame.notes]


def only_devices(frame: Frame, wanted: Sequence[str]) -> Frame:
    """The frame with these devices alone, by index, uuid or its beginning; the CPU stays. All for no wish."""
    if not wanted:
        return frame
    kept = [
        (device, sample)
        for device, sample in zip(frame.devices, frame.samples, strict=False)
        if device.vendor == "cpu" or any(is_called(device, name) for name in wanted)
    ]
    return dataclasses.replace(
        frame, devices=tuple(device for device, _ in kept), samples=tuple(sample for _, sample in kept)
    )


def is_called(device: Device, name: str) -> bool:
    """Whether a user who says `name` means this device."""
    if device.vendor == "cpu":
        return False
    return name == str(device.index) or (
        len(name) >= 4 and (device.uuid or "").lower().startswith(name.lower())
    )
