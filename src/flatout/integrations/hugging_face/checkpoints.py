"""The newest checkpoint of a Trainer that is complete: it writes in place, and a kill leaves half of one."""

import json
import re
import struct
import zipfile
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)")
# Written last: what comes before it is there.
_STATE = "trainer_state.json"
_LENGTH = struct.Struct("<Q")


def newest_checkpoint(folder: str | Path) -> str | None:
    """Of the checkpoints in an output folder the newest that is complete, or None.

        trainer.train(resume_from_checkpoint=newest_checkpoint("out"))

    Nothing is unpickled: files are looked at for whether they end where they should.
    """
    found = [
        (int(match[1]), path)
        for path in Path(folder).glob("checkpoint-*")
        if path.is_dir() and (match := _NAME.fullmatch(path.name))
    ]
    return next((str(path) for _, path in sorted(found, reverse=True) if not damage_in(path)), None)


def damage_in(checkpoint: Path) -> str:
    """Why training cannot go on from here, or nothing."""
    state = checkpoint / _STATE
    try:
        json.loads(state.read_bytes())
    except (OSError, ValueError):
        return f"{_STATE} is not there, or not whole"
    # Sharded optimizers are folders, and written by torch.distributed.checkpoint.
    if not any(checkpoint.glob("optimizer*")) and not any(checkpoint.glob("global_step*")):
        return "it holds a model and no optimizer (save_only_model)"
    broken = [path.name for path in sorted(checkpoint.iterdir()) if path.is_file() and not _is_whole(path)]
    return f"{broken[0]} is cut off" if broken else ""


def _is_whole(path: Path) -> bool:
    if path.suffix == ".safetensors":
        return _is_whole_safetensors(path)
    if path.suffix in (".pt", ".pth", ".bin"):  # their table of contents stands at the end
        return zipfile.is_zipfile(path)
    return path.suffix != ".json" or path.stat().st_size > 0


def _is_whole_safetensors(path: Path) -> bool:
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            return False
        (length,) = _LENGTH.unpack(start)
        if length > size:
            return False
        try:
            header = json.loads(file.read(length))
        except ValueError:
            return False
    ends: list[int] = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
    whole: int = _LENGTH.size + length + max(ends, default=0)
    return size == whole
