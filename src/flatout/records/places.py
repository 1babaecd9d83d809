"""Where Flatout keeps things: a cache for the machine, `.flatout` and a plan for a project."""

import os
import platform
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "FLATOUT_CACHE_DIR"
PROJECT_FOLDER = ".flatout"
# The plan that `flatout tune` writes and other commands look for.
DEFAULT_PLAN = "flatout.toml"
# Gone after a restart of the machine, as power limits are; and never on a disk that several machines share.
SYSTEM_POWER_FOLDER = Path("/run/flatout/power")


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """FLATOUT_CACHE_DIR, or XDG_CACHE_HOME/flatout, or ~/.cache/flatout; a temporary one without a home."""
    environment = os.environ if environment is None else environment
    if environment.get(CACHE_VARIABLE):
        return Path(environment[CACHE_VARIABLE])
    base = environment.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "flatout"
    try:
        return Path("~/.cache/flatout").expanduser()
    except RuntimeError:  # a container's user without an entry in passwd, and no HOME
        return Path(tempfile.gettempdir()) / f"flatout-{os.getuid()}"


def power_folder(environment: Mapping[str, str] | None = None, *, user: int | None = None) -> Path:
    """Where notes of changed power limits are: /run for root, who alone may set most, else in the cache."""
    environment = os.environ if environment is None else environment
    user = os.geteuid() if user is None else user
    if user == 0 and not environment.get(CACHE_VARIABLE):
        return SYSTEM_POWER_FOLDER
    # A home can be on a disk that several machines have: each has its own folder.
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node()).strip(".")
    return cache_folder(environment) / "power" / (host or "here")


def power_notes() -> bool:
    """Whether there is anything in these folders that somebody must look after; costs two system calls."""
    for folder in {power_folder(), SYSTEM_POWER_FOLDER}:
        try:
            with os.scandir(folder) as entries:
                if any(entry.name.startswith(("claim-", "news")) for entry in entries):
                    return True
        except OSError:
            continue
    return False
