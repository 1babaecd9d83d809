"""Recordings of steps, put where TensorBoard looks for profiles: plugins/profile/<run>/<rank>...json.gz."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

_OF_A_STEP = re.compile(r"^(?P<rank>rank\d+)-step(?P<step>\d+)\.pt\.trace\.json\.gz$")


def place_traces(folder: Path, run: str, recordings: Iterable[Path]) -> list[Path]:
    """Copies of those that are not there yet; each recorded step is a profile, with all ranks in it."""
    placed = []
    for recording in recordings:
        found = _OF_A_STEP.match(recording.name)
        name = f"{run}-step{found['step']}" if found else run
        file = f"{found['rank']}.pt.trace.json.gz" if found else recording.name
        place = folder / "plugins" / "profile" / name / file
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(f".{file}.part")  # who looks meanwhile sees a whole file or none
            shutil.copyfile(recording, part)
            placed.append(part.replace(place))
    return placed
