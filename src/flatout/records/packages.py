"""A module that became a package: what was ordered, what the package takes, and how it was proven."""

import dataclasses
from pathlib import Path

# The key of what we say of a package in its own metadata.
METADATA = "flatout"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOrder:
    """What to export: `module:function` or `file.py:function`, and where to."""

    factory: str
    inputs: str
    out: str
    fixed_batch: bool
    device: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputLook:
    """One tensor that a package takes; `batch` says that its first dimension may vary."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    batch: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackageLook:
    """What a package takes, kept in it."""

    device: str
    torch_version: str
    inputs: tuple[InputLook, ...]
    # Samples that it was proven with, from and to; equal where the batch is fixed.
    fewest_samples: int | None
    most_samples: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """The document of `flatout export-model`."""

    package: str
    size_bytes: int
    look: PackageLook
    dynamic_batch: bool
    # Where the batch is fixed although it need not be: why, with torch's own words.
    fixed_reason: str
    # The largest error against the module over all inputs that were compared, and what rounding explains.
    error: float
    allowed_error: float
    compared: int
    took_s: float
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(self.package)
