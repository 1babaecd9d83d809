"""The peaks of the device that a job trained on: rated by the catalogue, measured before or now."""

import contextlib
from collections.abc import Callable, Sequence

from flatout.analyze.profile import Peaks
from flatout.hardware.cpu import CpuSource
from flatout.hardware.machine import default_sources
from flatout.limits.measure import torch_version
from flatout.limits.obtain import Request, obtain_limits, rated_peaks
from flatout.limits.store import LimitsStore
from flatout.records.device import Device
from flatout.records.errors import FlatoutError
from flatout.records.limits import Limits

_NOT_KEPT = "this device's limits have not been measured; `flatout limits` does"


def peaks_for(
    uuid: str | None,
    *,
    on_gpu: bool,
    measure: bool,
    devices: Sequence[Device] | None = None,
    on_stage: Callable[[str, int, int], None] = lambda _stage, _done, _total: None,
) -> Peaks:
    """Both peaks; what cannot be had comes with its reason. Measuring takes half a minute, once a device."""
    device = _find(uuid, on_gpu=on_gpu, devices=devices)
    if device is None:
        unseen = "the GPU that the job used is not among those that the driver lists here"
        return Peaks(rated_reason=unseen, limits_reason=unseen)
    rated = rated_peaks(device)
    limits, reason = _limits(device, measure=measure, on_stage=on_stage)
    return Peaks(
        rated=rated,
        rated_reason="" if rated else f"no rated figures for {device.name!r} in the catalogue",
        limits=limits,
        limits_reason=reason,
        device_total_bytes=device.memory_total_bytes,
    )


def _find(uuid: str | None, *, on_gpu: bool, devices: Sequence[Device] | None) -> Device | None:
    if not on_gpu:
        return next(iter(CpuSource().discover().devices), None)
    if devices is None:
        devices = [device for source in default_sources() for device in source.discover().devices]
    gpus = [device for device in devices if device.vendor in ("nvidia", "amd")]
    same = [device for device in gpus if uuid and (device.uuid or "").endswith(uuid)]
    return same[0] if same else gpus[0] if len(gpus) == 1 else None


def _limits(
    device: Device, *, measure: bool, on_stage: Callable[[str, int, int], None]
) -> tuple[Limits | None, str]:
    try:
        with contextlib.suppress(FlatoutError):  # damaged or unreadable: measure, but do not touch the file
            kept = LimitsStore().load(device, torch_version())
            if kept is not None:
                return kept, ""
        if not measure:
            return None, _NOT_KEPT
        name = "cpu" if device.vendor == "cpu" else device.uuid
        return obtain_limits(Request(device=name), on_stage=on_stage)[0], ""
    except FlatoutError as error:
        return None, f"measuring its limits failed: {error.received}"
