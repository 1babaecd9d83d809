"""The index of a folder of outputs: what lies in which file, and what it was made with."""

import dataclasses
from typing import Literal

FORMATS = ("safetensors", "npy")
INDEX = "index.json"
KIND, VERSION = "outputs", 1

Format = Literal["safetensors", "npy"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
    """One output of a sample."""

    dtype: str
    # Without the samples.
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """Whole files with the outputs of consecutive samples."""

    first: int
    samples: int
    # By output; with safetensors they share one file.
    files: dict[str, str]
    sizes_bytes: dict[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """What outputs were made with: others do not belong into the same folder."""

    # Checksums of what outputs follow from: code, settings, weights, inputs and some samples.
    model: str
    batch_size: int
    shard_samples: int
    format: Format
    # None where the data set does not say how long it is.
    samples: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputIndex:
    """All of it, written anew after each shard."""

    made: Made
    outputs: dict[str, Output]
    shards: tuple[Shard, ...]
    is_complete: bool
    # Parts that batches are computed in since memory ran out; None for whole ones.
    part_size: int | None = None

    @property
    def samples(self) -> int:
        """Samples whose outputs are here."""
        return sum(one.samples for one in self.shards)
