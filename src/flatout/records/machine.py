"""A whole machine as `doctor` sees it: devices, host, frameworks, and the settings that matter."""

import dataclasses
from typing import Literal

from flatout.records.device import Device, DeviceSample, Vendor
from flatout.records.unknown import fill_reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that matters to a job: how much room it has, and whether this user may write there."""

    purpose: str
    path: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    writable: bool | None = None
    filesystem: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """The computer around the devices, and the part of it that this process may use."""

    system: str
    python_version: str
    cpu_count: int | None = None
    cpu_affinity_count: int | None = None
    cpu_quota: float | None = None
    cpu_governor: str | None = None
    cpu_frequency_driver: str | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_limit_used_bytes: int | None = None
    shm_total_bytes: int | None = None
    shm_free_bytes: int | None = None
    container: bool | None = None
    pci_gpu_vendors: tuple[Vendor, ...] | None = None
    places: tuple[Place, ...] = ()
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeProof:
    """What came of really computing on a device: a small product, checked against the CPU's."""

    device: str
    name: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    computed: bool = False
    problem: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


FrameworkName = Literal["torch", "tensorflow", "jax"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework, as a child process saw it."""

    name: FrameworkName
    installed: bool
    version: str | None = None
    python_version: str = ""
    build: str | None = None
    architectures: tuple[str, ...] = ()
    proofs: tuple[ComputeProof, ...] = ()
    switches: dict[str, str] = dataclasses.field(default_factory=dict)
    import_s: float | None = None
    problem: str = ""
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelXid:
    """One Xid line from the kernel's log."""

    pci_bus_id: str
    xid: int
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class VendorStatus:
    """How one vendor's driver answered: which problems, or why there is nothing."""

    vendor: Vendor
    absent_reason: str = ""
    problem_code: str = ""
    problem: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Everything that the checks look at. A machine can be saved and checked elsewhere."""

    devices: tuple[Device, ...]
    samples: tuple[DeviceSample, ...]
    vendors: tuple[VendorStatus, ...]
    host: Host
    frameworks: tuple[Framework, ...]
    environment: dict[str, str]
    kernel_xids: tuple[KernelXid, ...] | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self)

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The devices that are not the CPU."""
        return tuple(device for device in self.devices if device.vendor != "cpu")

    def framework(self, name: FrameworkName) -> Framework | None:
        """One framework by name; None when nobody looked for it."""
        return next((found for found in self.frameworks if found.name == name), None)

    def sample_of(self, device: Device) -> DeviceSample | None:
        """The sample that belongs to a device."""
        pairs = zip(self.devices, self.samples, strict=True)
        return next((sample for known, sample in pairs if known == device), None)


CheckStatus = Literal["ok", "warn", "fail", "unknown"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One thing that was looked at. `fix` can be pasted; it is empty where there is nothing to do."""

    id: str
    status: CheckStatus
    evidence: str
    fix: str = ""
    device_index: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorReport:
    """What `doctor` found: the machine's devices and host, and every check."""

    devices: tuple[Device, ...]
    samples: tuple[DeviceSample, ...]
    host: Host
    frameworks: tuple[Framework, ...]
    checks: tuple[CheckResult, ...]
    rated: dict[str, str] = dataclasses.field(default_factory=dict)
