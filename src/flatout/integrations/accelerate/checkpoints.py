"""Checkpoints of `Accelerator.save_state`, under another name until they are complete."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from flatout.integrations.packing import packed, unpacked

_NAME = re.compile(r"step-(\d+)")
_OWN = "flatout-{rank}.json"


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest that is complete, for `load_state`, or None."""
    return next(iter(_complete(Path(folder))), None)


def _complete(folder: Path) -> list[Path]:
    found = [(int(match[1]), one) for one in folder.glob("step-*") if (match := _NAME.fullmatch(one.name))]
    return [path for _, path in sorted(found, reverse=True)]


def save(accelerator: Any, folder: Path, step: int, own: dict[str, Any], *, keep: int) -> Path:
    """Save what was prepared, and `own` of each rank, all of which must call it.

    The newest are kept, this one in any case.
    """
    place, under_way = folder / f"step-{step}", folder / f".step-{step}.part"
    if accelerator.is_main_process:
        for left in folder.glob(".step-*.part"):  # by a save that was killed
            shutil.rmtree(left, ignore_errors=True)
        under_way.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(under_way))
    (under_way / _OWN.format(rank=accelerator.process_index)).write_text(json.dumps(packed(own)))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(place, ignore_errors=True)  # of a training that went back and comes by again
        os.replace(under_way, place)  # noqa: PTH105
        for old in _complete(folder)[max(keep, 1) :]:
            shutil.rmtree(old, ignore_errors=True)
    accelerator.wait_for_everyone()
    return place


def load(accelerator: Any, checkpoint: Path) -> dict[str, Any] | None:
    """Load into what was prepared; what this rank had kept for itself, where it had."""
    accelerator.load_state(str(checkpoint))
    own = checkpoint / _OWN.format(rank=accelerator.process_index)
    return unpacked(json.loads(own.read_text())) if own.exists() else None
