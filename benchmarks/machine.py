"""What every result file says about where it came from."""

import datetime as dt
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

from flatout import __version__
from flatout.hardware.machine import default_sources

RESULTS = Path(__file__).parent / "results"


def describe() -> dict[str, Any]:
    """Date, machine and versions."""
    devices = [device for source in default_sources() for device in source.discover().devices]
    versions = {}
    for name in ("torch", "click", "msgspec", "nvidia-ml-py"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "devices": [device.name for device in devices],
        "driver": next((device.driver_version for device in devices if device.driver_version), None),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "flatout": __version__,
        "versions": versions,
    }


def write(subject: str, result: dict[str, Any], out: str | None) -> None:
    """Write one dated result file, or where `out` says: a file, or a folder that is there."""
    machine = describe()
    short = re.sub(r"[^a-z0-9]+", "-", machine["devices"][0].lower()).strip("-")
    path = Path(out) if out else RESULTS / f"{machine['date'][:10]}-{short}-{subject}.json"
    if path.is_dir():
        path /= f"{subject}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: whoever presses Ctrl-C keeps the last one.
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    partial.replace(path)
    print(f"wrote {path}")
