"""From a request to lessons: choose the device, have the child measure, find the words."""

import dataclasses
import tempfile

import msgspec

from flatout.hardware.catalogue import catalogue, select
from flatout.hardware.machine import default_sources
from flatout.learn.bench import BenchOrder
from flatout.learn.catalogue import BY_ID, chosen
from flatout.learn.child import OnStage, measured_in_child
from flatout.learn.lesson import Setting
from flatout.limits.disturbance import Disturbance
from flatout.limits.measure import torch_version
from flatout.limits.obtain import rated_peaks
from flatout.limits.store import LimitsStore
from flatout.limits.target import Target, choose_target
from flatout.records.errors import FlatoutError
from flatout.records.learn import LearnDevice, Learned, Taught
from flatout.records.limits import Measured
from flatout.records.rated import RatedGpu

# Compared with where nothing else is asked for: one of each kind that people ask about.
_COMPARED = ("rtx4090", "a100-80gb-sxm", "h100-80gb-sxm", "h200-sxm", "b200-sxm", "mi300x")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Which lessons, on which device, compared with what, for what job."""

    lessons: tuple[str, ...]
    device: str | None = None
    gpu_names: tuple[str, ...] = ()
    params: float = 7e9
    gpus: int = 8
    tokens: int = 8192
    # Measure also what `flatout limits` has kept.
    fresh: bool = False


def learn(request: Request, *, on_stage: OnStage = lambda _stage, _done, _total: None) -> Learned:
    """Take the lessons, one after the other."""
    lessons = chosen(request.lessons)
    compared = _compared(request.gpu_names)
    version = torch_version()
    target = _target(request.device, version)
    setting = Setting(
        device=_device(target, version, asked=request.device is not None),
        rated=rated_peaks(target.device),
        compared=compared,
        params=request.params,
        gpus=request.gpus,
        tokens=request.tokens,
    )
    disturbance = Disturbance()
    taught: list[Taught] = []
    with tempfile.TemporaryDirectory(prefix="flatout-learn-") as scratch:
        order = BenchOrder(
            lessons=tuple(lesson.id for lesson in lessons),
            device=target.torch_device,
            known=None if request.fresh else _known(target, version),
            scratch=scratch,
        )
        for name, found, took_s in measured_in_child(order, target.environment, on_stage):
            lesson = BY_ID[name]
            made = lesson.teach(msgspec.convert(found, lesson.record), setting)
            taught.append(dataclasses.replace(made, took_s=took_s))
    # What is counted and not timed is the same on a busy machine.
    disturbed = disturbance.words() if any(lesson.on_device for lesson in lessons) else ""
    return Learned(device=setting.device, lessons=tuple(taught), disturbed=disturbed)


def _compared(names: tuple[str, ...]) -> tuple[RatedGpu, ...]:
    if names:
        return tuple(select(names))
    by_id = {entry.id: entry for entry in catalogue()}
    return tuple(by_id[name] for name in _COMPARED)


def _target(wanted: str | None, version: str) -> Target:
    sources = default_sources()
    try:
        devices = [device for source in sources for device in source.discover().devices]
        return choose_target(devices, wanted, torch_version=version)
    finally:
        for source in sources:
            source.close()


def _device(target: Target, version: str, *, asked: bool) -> LearnDevice:
    if asked:
        reason = "as asked"
    elif target.device.vendor == "cpu":
        reason = "no GPU can be used here (flatout doctor says why), so the CPU is measured"
    else:
        reason = "the first GPU"
    return LearnDevice(
        name=target.device.name,
        torch_device=target.torch_device,
        vendor=target.device.vendor,
        torch_version=version,
        reason=reason,
    )


def _known(target: Target, version: str) -> Measured | None:
    """What `flatout limits` has kept; a file that cannot be read is measured around, not refused."""
    try:
        kept = LimitsStore().load(target.device, version)
    except FlatoutError:
        return None
    return kept.measured if kept is not None else None
