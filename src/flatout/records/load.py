"""Will loading these model files fit, and how to load them leaner: the document of `flatout fit --load`."""

import dataclasses
from typing import Literal

from flatout.records.unknown import fill_reasons

# What torch.save writes is "torch"; what it wrote before version 1.6 is "legacy".
LoadFormat = Literal["safetensors", "torch", "torchscript", "legacy"]
LoadRole = Literal["model", "optimizer", "other"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedFile:
    """One file that would be loaded."""

    path: str
    format: LoadFormat
    file_bytes: int
    stored_bytes: int
    tensor_count: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadDtype:
    """All that is stored in one dtype; "unknown" where only the bytes are known."""

    dtype: str
    tensor_count: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadGroup:
    """All that is stored under one key at the top."""

    name: str
    role: LoadRole
    tensor_count: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadWay:
    """A way to load it, and the host memory that it takes at its peak."""

    name: str
    # Memory that must be there.
    host_bytes: int
    # Pages of the file, which the system drops when it needs the room.
    page_bytes: int
    fits: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadOption:
    """One GPU: do the tensors fit? None where it is too close to say."""

    gpu: str
    memory_bytes: int
    # Everything in the files, the weights alone, and the weights in bfloat16.
    fits_stored: bool | None
    fits_weights: bool | None
    fits_bf16: bool | None
    usd_per_hour: float | None = None
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        fill_reasons(self, default="too close to say", reasons={"usd_per_hour": "no price is known"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeanerLoad:
    """Something to do, and what it saves."""

    what: str
    # Lines of Python.
    how: tuple[str, ...]
    host_saved_bytes: int = 0
    device_saved_bytes: int = 0
    # What to look out for.
    mind: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """What is in a model's files, what loading it takes, and how it takes less."""

    files: tuple[LoadedFile, ...]
    dtypes: tuple[LoadDtype, ...]
    groups: tuple[LoadGroup, ...]
    tensor_count: int
    # Elements of the weights.
    parameter_count: int
    # On a device: everything as stored, the weights alone, and the weights in bfloat16.
    stored_bytes: int
    weights_bytes: int
    bf16_bytes: int
    host_available_bytes: int
    # The usual way first.
    ways: tuple[LoadWay, ...]
    options: tuple[LoadOption, ...]
    # What saves most comes first.
    leaner: tuple[LeanerLoad, ...]
    notes: tuple[str, ...] = ()
    took_s: float = 0.0
