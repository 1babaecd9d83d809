"""Notes of limits that we changed, one file a device, on the disk before the limit is.

`claim-*` are of a command that runs, or that died: whoever finds one without its command puts the limit back.
`kept-*` are of limits that were kept on purpose (`--apply`), with what was before.
"""

import contextlib
import os
import re
from pathlib import Path
from typing import Literal

from flatout.records.atomic import write_atomically
from flatout.records.codec import decode, encode
from flatout.records.errors import FlatoutError
from flatout.records.power import CLAIM_KIND, CLAIM_VERSION, PowerClaim

Purpose = Literal["claim", "kept"]

NEWS = "news.txt"


def write_claim(folder: Path, claim: PowerClaim, purpose: Purpose = "claim") -> None:
    """Have the note on the disk; a limit is changed only after this has returned."""
    write_atomically(path_of(folder, claim.uuid, purpose), encode(CLAIM_KIND, CLAIM_VERSION, claim))


def read_claims(folder: Path, purpose: Purpose = "claim") -> tuple[list[PowerClaim], list[str]]:
    """All notes of this purpose, and a sentence about each that cannot be read."""
    found: list[PowerClaim] = []
    problems: list[str] = []
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except OSError:
        return [], []
    for name in names:
        if not (name.startswith(f"{purpose}-") and name.endswith(".json")):
            continue
        path = folder / name
        try:
            data = path.read_bytes()
            remedy = f"nvidia-smi -q -d POWER   # then set the limit by hand, and remove {path}"
            found.append(decode(data, path, CLAIM_KIND, CLAIM_VERSION, PowerClaim, remedy=remedy))
        except FileNotFoundError:
            continue  # whoever it belonged to has just put the limit back
        except (OSError, FlatoutError) as error:
            problems.append(f"{path} cannot be read, and its limit was not put back: {error}")
    return found, problems


def read_claim(folder: Path, uuid: str, purpose: Purpose) -> PowerClaim | None:
    """The note of one device."""
    return next((claim for claim in read_claims(folder, purpose)[0] if claim.uuid == uuid), None)


def drop_claim(folder: Path, uuid: str, purpose: Purpose = "claim") -> None:
    """The limit is no longer ours."""
    path_of(folder, uuid, purpose).unlink(missing_ok=True)


def path_of(folder: Path, uuid: str, purpose: Purpose) -> Path:
    """A uuid comes from a driver: nothing in it may lead elsewhere."""
    return folder / f"{purpose}-{_harmless(uuid)}.json"


def add_news(folder: Path, text: str) -> None:
    """What happened while nobody looked; the next command tells it."""
    with contextlib.suppress(OSError), (folder / NEWS).open("a", encoding="utf-8") as file:
        file.write(text.replace("\n", " ") + "\n")


def take_news(folder: Path) -> list[str]:
    """Once."""
    path = folder / NEWS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        path.unlink()
    except OSError:
        return []
    return lines


def boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """A name that the machine gives itself at each start; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _harmless(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text).strip(".")
