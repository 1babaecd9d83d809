"""Clocks: what holds them down now (heat, power, settings)."""

from collections.abc import Iterator

from flatout.hardware.health.check import Outcome
from flatout.records.device import Device, DeviceSample
from flatout.records.machine import Machine

_HARD = {
    "hardware_slowdown": "the hardware slows itself down (heat or power)",
    "thermal_hardware": "too hot: the hardware halves the clocks",
    "power_brake": "the power supply asked the GPU to brake",
}
_SOFT = {"thermal_software": "hot: the driver lowers the clocks"}
_SETTINGS = {"application_clocks": "application clocks are set below the maximum"}
_NEAR_SLOWDOWN_C = 5


def throttling(machine: Machine) -> Iterator[Outcome]:
    """Reads why each GPU's clocks are held down at this moment.

    Heat and power brakes cost speed in every step, and the job never learns of it. Reaching the power cap
    under full load is normal; idling is not a fault.
    """
    for device in _whole_gpus(machine):
        sample = machine.sample_of(device)
        if sample is None or sample.state == "down":
            continue
        if sample.throttle_reasons is None:
            yield Outcome(
                "unknown", sample.unknown.get("throttle_reasons", "the driver does not say"), device=device
            )
            continue
        yield _judge(device, sample.throttle_reasons)


def _judge(device: Device, reasons: tuple[str, ...]) -> Outcome:
    hard = [words for reason, words in _HARD.items() if reason in reasons]
    if hard:
        fix = f"nvidia-smi -q -d PERFORMANCE -i {device.index}   # then check fans, air flow, power cables"
        return Outcome("fail", "; ".join(hard), fix, device)
    soft = [words for reason, words in _SOFT.items() if reason in reasons]
    if soft:
        return Outcome(
            "warn", "; ".join(soft), "more air, or a lower power limit, keeps the clocks steady", device
        )
    settings = [words for reason, words in _SETTINGS.items() if reason in reasons]
    if settings:
        return Outcome(
            "warn", settings[0], f"sudo nvidia-smi --reset-applications-clocks -i {device.index}", device
        )
    if "power_cap" in reasons:
        return Outcome("ok", "at its power cap, as is normal under full load", device=device)
    others = [reason for reason in reasons if reason != "idle"]
    if others:
        return Outcome(
            "ok", f"not throttled by heat or power; clocks follow {', '.join(others)}", device=device
        )
    return Outcome("ok", "no throttling now", device=device)


def temperature(machine: Machine) -> Iterator[Outcome]:
    """Compares each GPU's temperature with the one at which it slows down."""
    for device in _whole_gpus(machine):
        sample = machine.sample_of(device)
        if sample is None or sample.temperature_c is None:
            continue
        threshold = device.temperature_slowdown_c
        now = f"{sample.temperature_c} C"
        if threshold is None:
            yield Outcome("unknown", f"{now}; where it slows down is not known", device=device)
        elif sample.temperature_c >= threshold - _NEAR_SLOWDOWN_C:
            evidence = f"{now}; it slows down at {threshold} C"
            yield Outcome("warn", evidence, "check fans and air flow; a lower power limit helps too", device)
        else:
            yield Outcome("ok", f"{now}; it slows down at {threshold} C", device=device)


def power_cap(machine: Machine) -> Iterator[Outcome]:
    """Compares the power limit in force with the card's default.

    Someone may have lowered it to save energy, and forgotten; a card at half its power runs matrix
    products far below its rated peak.
    """
    for device in _whole_gpus(machine):
        sample = machine.sample_of(device)
        if sample is None or sample.power_limit_mw is None or device.power_limit_default_mw is None:
            continue
        yield _judge_power(device, sample, sample.power_limit_mw, device.power_limit_default_mw)


def _judge_power(device: Device, sample: DeviceSample, limit_mw: int, default_mw: int) -> Outcome:
    limit, default = limit_mw / 1000, default_mw / 1000
    if limit_mw < default_mw:
        fix = f"sudo nvidia-smi -i {device.index} -pl {default:.0f}" if device.vendor == "nvidia" else ""
        return Outcome("warn", f"limited to {limit:.0f} W; the default is {default:.0f} W", fix, device)
    draw = f", drawing {sample.power_draw_mw / 1000:.0f} W" if sample.power_draw_mw is not None else ""
    return Outcome("ok", f"limit {limit:.0f} W{draw}", device=device)


def persistence(machine: Machine) -> Iterator[Outcome]:
    """Looks whether NVIDIA's driver stays loaded between jobs.

    Without persistence each first use of an idle GPU waits for the driver to come up: seconds per job,
    minutes on machines with eight GPUs.
    """
    for device in _whole_gpus(machine):
        sample = machine.sample_of(device)
        if sample is None or sample.persistence_mode is None:
            continue
        drawing = any(process.kind == "graphics" for process in sample.processes or ())
        if sample.persistence_mode or drawing:
            why = "" if sample.persistence_mode else ": a desktop runs on this GPU"
            yield Outcome("ok", f"the driver stays loaded{why}", device=device)
        else:
            yield Outcome("warn", "persistence is off: jobs start slowly", "sudo nvidia-smi -pm 1", device)


def _whole_gpus(machine: Machine) -> list[Device]:
    """GPUs without MIG instances, which have no clocks or power of their own."""
    return [device for device in machine.gpus if not device.parent_uuid]
