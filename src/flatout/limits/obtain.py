"""From a request to limits: choose the device, take what was kept, or measure and keep."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from flatout.hardware.machine import default_sources
from flatout.hardware.protocol import DeviceSource
from flatout.limits.matmul import GPU_DTYPES
from flatout.limits.measure import OnStage, combine, measure_device, torch_version
from flatout.limits.store import LimitsStore
from flatout.limits.target import Target, choose_target
from flatout.records.device import Device
from flatout.records.errors import UnknownName
from flatout.records.limits import Limits
from flatout.records.rated import Dtype


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the caller wants measured."""

    device: str | None = None
    dtypes: tuple[Dtype, ...] = ()
    fresh: bool = False
    use_cache: bool = True
    with_cpu: bool = True


def parse_dtypes(text: str | None) -> tuple[Dtype, ...]:
    """Precisions from "bf16,fp8"; an unknown one is answered with the nearest."""
    if not text:
        return ()
    chosen: list[Dtype] = []
    for word in (part.strip().lower() for part in text.split(",")):
        found = next((dtype for dtype in get_args(Dtype) if dtype == word and dtype in GPU_DTYPES), None)
        if found is None:
            raise UnknownName("dtype", word, GPU_DTYPES)
        chosen.append(found)
    return tuple(chosen)


def obtain_limits(
    request: Request,
    *,
    sources: Sequence[DeviceSource] | None = None,
    store: LimitsStore | None = None,
    on_stage: OnStage = lambda _stage, _done, _total: None,
) -> tuple[Limits, Path | None]:
    """The limits, and the file they are kept in (None when they are not kept)."""
    version = torch_version()
    own = default_sources() if sources is None else list(sources)
    store = store or LimitsStore()
    keep = request.use_cache and not request.dtypes and request.with_cpu
    try:
        devices, owner = _discover(own)
        target = choose_target(devices, request.device)
        if keep and not request.fresh:
            kept = store.load(target.device, version)
            if kept is not None:
                return dataclasses.replace(kept, from_cache=True), store.path_for(target.device, version)
        if keep:
            store.ensure_writable()
        limits = _measure(request, target, devices, owner, on_stage)
    finally:
        for source in own:
            source.close()
    return limits, store.save(target.device, limits) if keep else None


def _discover(sources: Sequence[DeviceSource]) -> tuple[list[Device], dict[int, DeviceSource]]:
    """All devices, and which source each came from (by identity of the record)."""
    devices: list[Device] = []
    owner: dict[int, DeviceSource] = {}
    for source in sources:
        for device in source.discover().devices:
            devices.append(device)
            owner[id(device)] = source
    return devices, owner


def _measure(
    request: Request,
    target: Target,
    devices: Sequence[Device],
    owner: dict[int, DeviceSource],
    on_stage: OnStage,
) -> Limits:
    source = owner[id(target.device)]
    measured = measure_device(target, dtypes=request.dtypes, source=source, on_stage=on_stage)
    cpu = None
    if request.with_cpu and target.device.vendor != "cpu":
        host = choose_target(devices, "cpu")
        cpu = measure_device(
            host,
            dtypes=("fp32", "bf16"),
            source=owner[id(host.device)],
            on_stage=lambda stage, done, total: on_stage(f"CPU: {stage}", done, total),
        )
    return combine(measured, cpu, target.device)
