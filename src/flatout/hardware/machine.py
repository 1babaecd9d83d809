"""Gathers a whole machine at once: devices of all vendors, host, frameworks, settings."""

import dataclasses
import getpass
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flatout.hardware.amd.source import AmdSource
from flatout.hardware.apple import AppleSource
from flatout.hardware.cpu import CpuSource
from flatout.hardware.frameworks import FRAMEWORKS, Probe
from flatout.hardware.host import read_host
from flatout.hardware.intel import IntelSource
from flatout.hardware.kernel_log import kernel_xids
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.protocol import DeviceSource, Discovery
from flatout.hardware.torch_devices import complete_with_torch
from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.machine import FrameworkName, Machine, VendorStatus

# Variables that change how a job runs. Values that could be secret are never taken.
_RELEVANT = re.compile(
    r"(CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|TORCH|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|TRITON|OMP|KMP|GOMP|MKL|OPENBLAS|"
    r"NUMEXPR|HIP|ROCR|HSA|AMD|MIOPEN|ZE|SYCL|XLA|TF|JAX|GLOO|MALLOC)_"
    r"|(LD_PRELOAD|PYTHON(MALLOC|DEVMODE)|SLURM_JOB_ID|PBS_JOBID|LSB_JOBID)$"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL", re.IGNORECASE)


def default_sources() -> list[DeviceSource]:
    """Every vendor that we know, the CPU last."""
    return [NvidiaSource(), AmdSource(), IntelSource(), AppleSource(), CpuSource()]


def discover_devices(
    sources: Sequence[DeviceSource],
) -> tuple[list[Device], list[DeviceSample], list[VendorStatus]]:
    """All devices, a sample of each, and how each vendor's driver answered."""
    devices: list[Device] = []
    samples: list[DeviceSample] = []
    vendors: list[VendorStatus] = []
    for source in sources:
        found = source.discover()
        devices += found.devices
        samples += source.sample(found.devices) if found.devices else []
        vendors += vendor_statuses(source.vendor, found)
    return devices, samples, vendors


def vendor_statuses(vendor: Vendor, found: Discovery) -> tuple[VendorStatus, ...]:
    """How a vendor's driver answered: a status for each problem, or one that says that there is none."""
    return tuple(
        VendorStatus(vendor=vendor, problem_code=p.code, problem=p.evidence, fix=p.fix)
        for p in found.problems
    ) or (VendorStatus(vendor=vendor, absent_reason=found.absent_reason),)


def gather_machine(
    *,
    sources: Sequence[DeviceSource] | None = None,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
    frameworks: Sequence[FrameworkName] = FRAMEWORKS,
    on_done: Callable[[str], None] = lambda _what: None,
) -> Machine:
    """Everything that the checks need; `on_done` hears of each part."""
    environment = os.environ if environment is None else environment
    own = default_sources() if sources is None else list(sources)
    # The probes take seconds, most of it to import torch: they run while we look at the rest.
    probes = [Probe(name, python=python) for name in frameworks]
    found = []
    try:
        devices, samples, vendors = discover_devices(own)
        samples = [_without(sample, {probe.pid for probe in probes}) for sample in samples]
        host = read_host(places=important_places(environment))
        xids, log_reason = kernel_xids()
        on_done("devices")
        for probe in probes:
            found.append(probe.result())
            on_done(probe.name)
    finally:
        for probe in probes:
            probe.cancel()
        for source in own:
            source.close()
    whole, sampled = complete_with_torch(devices, samples, found)
    return Machine(
        devices=whole,
        samples=sampled,
        vendors=tuple(vendors),
        host=host,
        frameworks=tuple(found),
        environment=relevant_environment(environment),
        kernel_xids=xids,
        unknown={} if xids is not None else {"kernel_xids": log_reason},
    )


def _without(sample: DeviceSample, pids: set[int | None]) -> DeviceSample:
    """A sample without our own probes, which may hold the GPU by now."""
    if not sample.processes:
        return sample
    others = tuple(process for process in sample.processes if process.pid not in pids)
    return dataclasses.replace(sample, processes=others)


def relevant_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change how a job runs, without anything that looks secret."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _RELEVANT.match(name) and not _SECRET.search(name)
    }


def important_places(environment: Mapping[str, str]) -> tuple[tuple[str, Path], ...]:
    """The folders that a job fills: where it runs, temporary files, the compile caches."""
    temporary = Path(tempfile.gettempdir())
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    inductor = environment.get("TORCHINDUCTOR_CACHE_DIR") or str(temporary / f"torchinductor_{user}")
    try:
        working = (("working folder", Path.cwd()),)
    except FileNotFoundError:  # deleted under our feet
        working = (("working folder", Path("(deleted)")),)
    return (*working, ("temporary files", temporary), ("compile cache", Path(inductor)))
