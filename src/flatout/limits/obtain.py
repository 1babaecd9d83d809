"""From a request to limits: choose the device, take what was kept, or measure and keep."""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from flatout.hardware.catalogue import rated_for
from flatout.hardware.machine import default_sources
from flatout.hardware.protocol import DeviceSource
from flatout.limits.disturbance import Disturbance
from flatout.limits.link import measure_link
from flatout.limits.matmul import CPU_DTYPES, GPU_DTYPES
from flatout.limits.measure import Job, OnStage, measure_devices, torch_version
from flatout.limits.peers import Peers, choose_peers
from flatout.limits.store import METHOD, LimitsStore
from flatout.limits.target import Target, choose_target
from flatout.records.device import Device
from flatout.records.errors import CallerMistake, ChildFailed, UnknownName
from flatout.records.limits import DeviceLimits, Limits, RatedPeaks
from flatout.records.link import RanksLink
from flatout.records.rated import Dtype

# Beside a GPU, the CPU is measured only where the two are compared.
_COMPARED: tuple[Dtype, ...] = ("fp32", "bf16")
_NOT_ASKED = "not asked for: flatout limits measures it"

Found = list[tuple[Device, DeviceSource]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What the caller wants measured."""

    device: str | None = None
    dtypes: tuple[Dtype, ...] = ()
    fresh: bool = False
    use_cache: bool = True
    with_cpu: bool = True
    accept_disturbed: bool = False
    # Between this device and its like: it keeps all of them busy for some seconds. `ranks`: so many of them.
    with_link: bool = False
    ranks: int | None = None

    @property
    def complete(self) -> bool:
        """Only a whole measurement is kept: a part of one would be taken for all there is."""
        return self.use_cache and not self.dtypes and self.with_cpu


def parse_dtypes(text: str | None) -> tuple[Dtype, ...]:
    """Precisions from "bf16,fp8"; an unknown one is answered with the nearest."""
    if text is None:
        return ()
    known: dict[str, Dtype] = {dtype: dtype for dtype in GPU_DTYPES}
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in known:
            raise UnknownName("dtype", word, known)
    return tuple(dict.fromkeys(known[word] for word in words))


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
    try:
        found = [(device, source) for source in own for device in source.discover().devices]
        target = choose_target([device for device, _ in found], request.device, torch_version=version)
        peers = _peers(request, target, found)
        if request.complete and not request.fresh:
            kept = store.load(target.device, version)
            if kept is not None:
                return _kept(request, kept, target, peers, found, store, on_stage)
        _refuse_early(target, request.dtypes)
        with store.writing() if request.complete else contextlib.nullcontext():
            limits = _measure(request, target, peers, found, on_stage)
            _insist_on_figures(limits)
            keep = request.complete and (request.accept_disturbed or not limits.disturbed)
            return limits, store.save(target.device, _to_keep(request, limits)) if keep else None
    finally:
        for source in own:
            source.close()


def _peers(request: Request, target: Target, found: Found) -> Peers | str:
    """Whom a link is measured between, or why none is."""
    if not request.with_link:
        return _NOT_ASKED
    return choose_peers(target.device, [device for device, _ in found], request.ranks)


def _kept(
    request: Request,
    kept: Limits,
    target: Target,
    peers: Peers | str,
    found: Found,
    store: LimitsStore,
    on_stage: OnStage,
) -> tuple[Limits, Path | None]:
    """What was kept; a link that it lacks is measured, and kept with it."""
    kept = dataclasses.replace(kept, from_cache=True)
    path = store.path_for(target.device, kept.device.torch_version)
    if isinstance(peers, str):
        return (kept if kept.link else dataclasses.replace(kept, link_reason=peers)), path
    before = kept.link.ranks if kept.link is not None else 0
    if before == len(peers.members) or (request.ranks is None and before > len(peers.members)):
        return kept, path
    with store.writing():
        disturbance = _watched(peers, found)
        link = measure_link(peers, disturbance, on_stage=on_stage)
        whole = dataclasses.replace(kept, link=link, link_reason="")
        # Fewer ranks are an experiment: what was measured between more says more.
        if _is_worth_keeping(request, link) and link.ranks > before:
            store.save(target.device, dataclasses.replace(whole, from_cache=False))
    return whole, path


def _watched(peers: Peers, found: Found) -> Disturbance:
    """Who else is on the GPUs; looked at before we are."""
    disturbance = Disturbance()
    for gpu in peers.gpus:
        disturbance.look_at(gpu, _source_of(gpu, found))
    return disturbance


def _to_keep(request: Request, limits: Limits) -> Limits:
    """Without a link that failed or was disturbed: the next time measures it again."""
    if limits.link is None or _is_worth_keeping(request, limits.link):
        return limits
    why = limits.link.unknown.get("bus_bytes_per_s") or f"not kept: {limits.link.disturbed}"
    return dataclasses.replace(limits, link=None, link_reason=why)


def _is_worth_keeping(request: Request, link: RanksLink) -> bool:
    return link.bus_bytes_per_s is not None and (request.accept_disturbed or not link.disturbed)


def _refuse_early(target: Target, dtypes: Sequence[Dtype]) -> None:
    if "tf32" in dtypes and target.device.vendor != "nvidia":
        raise CallerMistake(
            f"TF32 cannot be measured on {target.device.name}",
            expected="a precision that the device has; TF32 is a mode of NVIDIA's tensor cores",
            remedy="--dtype fp32,bf16",
        )


def _insist_on_figures(limits: Limits) -> None:
    """A measurement without a product or without a bandwidth is a failure, not something to keep."""
    if limits.measured.matmul_flops_per_s and limits.measured.memory_bytes_per_s is not None:
        return
    reasons = list(dict.fromkeys(limits.measured.unknown.values()))
    raise ChildFailed(
        f"nothing could be measured on {limits.device.name}: {'; '.join(reasons[:3])}",
        expected="free memory on the device, and a torch that can use it",
        remedy="flatout doctor   # who holds its memory?",
    )


def _measure(request: Request, target: Target, peers: Peers | str, found: Found, on_stage: OnStage) -> Limits:
    on_cpu = target.device.vendor == "cpu"
    dtypes = request.dtypes or (CPU_DTYPES if on_cpu else GPU_DTYPES)
    jobs = [Job(target, dtypes, _source_of(target.device, found))]
    if request.with_cpu and not on_cpu:
        host = choose_target([device for device, _ in found], "cpu")
        jobs.append(Job(dataclasses.replace(host, environment={}), _COMPARED, _source_of(host.device, found)))
    disturbance = Disturbance()
    disturbance.look_at(target.device, _source_of(target.device, found))
    of_link = _watched(peers, found) if isinstance(peers, Peers) else None
    measured = measure_devices(jobs, on_stage=on_stage)
    cpu = measured[1] if len(measured) > 1 else None
    limits = combine(measured[0], cpu, target.device, disturbed=disturbance.words())
    if isinstance(peers, str):
        return dataclasses.replace(limits, link_reason=peers)
    link = measure_link(peers, of_link, on_stage=on_stage)
    return dataclasses.replace(limits, link=link, link_reason="", took_s=limits.took_s + link.took_s)


def _source_of(device: Device, found: Found) -> DeviceSource:
    return next(source for known, source in found if known == device)


def combine(device: DeviceLimits, cpu: DeviceLimits | None, physical: Device, *, disturbed: str) -> Limits:
    """The document: what was measured beside what the vendor promises."""
    rated = rated_peaks(physical)
    return Limits(
        device=device.device,
        measured=device.measured,
        rated=rated,
        rated_reason="" if rated else f"no rated figures for {physical.name!r} in the catalogue",
        matmuls=device.matmuls,
        clocks=device.clocks,
        cpu=cpu,
        measured_at=dt.datetime.now(dt.UTC).replace(microsecond=0),
        took_s=device.took_s + (cpu.took_s if cpu else 0.0),
        method=METHOD,
        disturbed=disturbed,
    )


def rated_peaks(physical: Device) -> RatedPeaks | None:
    """The vendor's figures for a device, where the catalogue has them."""
    entry = rated_for(physical)
    if entry is None:
        return None
    return RatedPeaks(
        id=entry.id,
        name=entry.name,
        dense_flops_per_s=dict(entry.dense_flops_per_s),
        memory_bytes_per_s=entry.memory_bandwidth_bytes_per_s,
        host_link_bytes_per_s=entry.host_link_bytes_per_s,
        source=entry.source,
        source_url=entry.source_url,
        note=entry.note,
        gpu_link=entry.gpu_link or "",
        gpu_link_one_way_bytes_per_s=entry.gpu_link_bytes_per_s / 2 if entry.gpu_link_bytes_per_s else None,
    )
