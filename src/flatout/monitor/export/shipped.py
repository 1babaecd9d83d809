"""Files that come with Flatout for those who run it: dashboards, alerts, and what starts the exporter."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.errors import CallerMistake


def shipped_files() -> dict[str, bytes]:
    """By their path in the folder that they are written to."""
    root = resources.files("flatout.monitor") / "shipped"
    return dict(sorted(_below(root, "")))


def write_shipped(folder: Path, *, force: bool = False) -> list[Path]:
    """Write them all; those that somebody changed are left alone, and said, unless forced."""
    files = shipped_files()
    changed = [name for name, data in files.items() if _differs(folder / name, data)]
    if changed and not force:
        raise CallerMistake(
            f"{len(changed)} files in {folder} are not as they come with Flatout: {', '.join(changed[:4])}",
            expected="a folder without them, or with the same ones",
            remedy="name another folder, or overwrite them with --force",
        )
    for name, data in files.items():
        write_atomically(folder / name, data)
    return [folder / name for name in files]


def _below(folder: Traversable, path: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        name = f"{path}{entry.name}"
        if entry.is_dir():
            found += _below(entry, f"{name}/") if entry.name != "__pycache__" else []
        else:
            found.append((name, entry.read_bytes()))
    return found


def _differs(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() != data
    except FileNotFoundError:
        return False
    except OSError:
        return True
