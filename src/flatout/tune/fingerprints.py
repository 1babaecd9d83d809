"""The fingerprint of a job: which script, which arguments, which device and versions."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flatout.records.plan import Fingerprint
from flatout.records.profile import Profile
from flatout.records.version import __version__
from flatout.runtime.command import JobCommand

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def fingerprint(command: JobCommand, profile: Profile | None, about: Mapping[str, Any]) -> Fingerprint:
    """Which job this is: its script by content, its arguments, its device and versions."""
    words = command.given or command.words
    device = profile.device_name or profile.device if profile is not None else _device_in(about)
    script, arguments = script_of(words)
    digest = hashlib.sha256(script.read_bytes()).hexdigest() if script is not None else ""
    return Fingerprint(
        script=str(script) if script is not None else _name_of(words),
        script_sha256=digest,
        arguments=tuple(arguments),
        device=device or "",
        torch=str(about.get("torch", "")),
        flatout=__version__,
    )


def _device_in(about: Mapping[str, Any]) -> str:
    return str(about.get("device_name") or about.get("device") or "")


def places_of_the_user(folder: Path, script: str, where: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Places in files of this folder and of the script's; a library is not the user's to patch."""
    here = folder.resolve()
    beside = (folder / script).resolve().parent
    found = {}
    for name, (file, line) in where.items():
        path = (folder / file).resolve()
        if not path.is_file() or "site-packages" in path.parts:
            continue
        if path.is_relative_to(here):
            found[name] = (str(path.relative_to(here)), int(line))
        elif script.endswith(".py") and path.is_relative_to(beside):
            found[name] = (str(path), int(line))
    return found


def script_of(words: tuple[str, ...]) -> tuple[Path | None, tuple[str, ...]]:
    """The script among the words of a command line, and what follows it; None where that is a module."""
    for place, word in enumerate(words):
        if _is_module(words, place):
            return None, tuple(words[place + 2 :])
        path = Path(word)
        if word.endswith((".py", ".sh", ".bash")) and path.is_file():
            return path, tuple(words[place + 1 :])
    return None, tuple(words[1:])


def _is_module(words: tuple[str, ...], place: int) -> bool:
    """Whether the job is a module, named here; launchers are modules too."""
    return words[place] == "-m" and place + 1 < len(words) and words[place + 1] not in _LAUNCHERS


def _name_of(words: tuple[str, ...]) -> str:
    """What stands for a script where there is none: `-m package.train`, or how the command begins."""
    module = next((place for place in range(len(words)) if _is_module(words, place)), 0)
    return " ".join(words[module : module + 2])
