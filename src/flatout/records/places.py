"""Where Flatout keeps things: a cache for the machine, `.flatout` for a project."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

CACHE_VARIABLE = "FLATOUT_CACHE_DIR"
PROJECT_FOLDER = ".flatout"


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
