"""What the newest profile of the same script said: its first finding, and how fast a step could be."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout.records.codec import schema_name
from flatout.records.runs import runs_under

# Newest runs that are looked through: a project may have thousands.
_AT_MOST = 50
_KINDS = ("profile", "tune")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastProfile:
    """As far as it goes; what it does not say has a reason."""

    finding: str | None = None
    floor_s: float | None = None
    samples_per_step: float | None = None
    finding_reason: str = ""
    floor_reason: str = ""

    def headroom(self, step_s: float | None, samples_per_step: float | None) -> float | None:
        """How many times faster than it goes now; a batch of another size has another floor."""
        if not step_s or not self.floor_s:
            return None
        same = samples_per_step and self.samples_per_step
        floor_s = self.floor_s * (samples_per_step / self.samples_per_step if same else 1.0)  # type: ignore[operator]
        return max(step_s / floor_s, 1.0)


def last_profile(root: Path, script: str) -> LastProfile:
    """Of the runs in a project's folder; nothing in there can make this fail."""
    findings, floors = _first(root, script, _KINDS), _first(root, script, ("profile",))
    without = f"no profile of this script: flatout profile {script}"
    found = LastProfile(finding_reason=without, floor_reason=without)
    if findings is not None:
        first = next(iter(findings.findings), None)
        found = dataclasses.replace(
            found,
            finding=f"{first.code} {first.title}" if first is not None else None,
            finding_reason="its last profile found nothing" if first is None else "",
        )
    if floors is not None:
        floor_ms = floors.floors.as_written_ms
        found = dataclasses.replace(
            found,
            floor_s=floor_ms / 1000 if floor_ms else None,
            samples_per_step=floors.samples_per_step,
            floor_reason=floors.floors.unknown.get("as_written_ms", "its last profile knows no floor"),
        )
    return found


# Of these documents, what is needed here: they can be large.
class _Finding(msgspec.Struct, frozen=True):
    code: str
    title: str


class _Floors(msgspec.Struct, frozen=True):
    as_written_ms: float | None = None
    unknown: dict[str, str] = {}


class _Trial(msgspec.Struct, frozen=True):
    command: tuple[str, ...] = ()


class _Document(msgspec.Struct, frozen=True):
    schema: str
    findings: tuple[_Finding, ...] = ()
    floors: _Floors = _Floors()
    samples_per_step: float | None = None
    trial: _Trial = _Trial()
    command: tuple[str, ...] = ()


def _first(root: Path, script: str, kinds: Sequence[str]) -> _Document | None:
    documents = (one for one in _documents(root, kinds) if _is_of(one.trial.command or one.command, script))
    return next(documents, None)


def _documents(root: Path, kinds: Sequence[str]) -> Iterator[_Document]:
    folders = (path for path in runs_under(root) if any(f"-{kind}-" in path.name for kind in kinds))
    for folder in itertools.islice(folders, _AT_MOST):
        for kind in kinds:
            with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
                found = msgspec.json.decode((folder / f"{kind}.json").read_bytes(), type=_Document)
                if found.schema == schema_name(kind, 1):
                    yield found


def _is_of(command: Sequence[str], script: str) -> bool:
    """By where the script lies; a module or another program by its words."""
    if not script:
        return False
    if script.endswith((".py", ".sh", ".bash")):
        wanted = Path(script).absolute()
        return any(word.endswith(wanted.suffix) and Path(word).absolute() == wanted for word in command)
    return " ".join(command[: len(script.split())]) == script or script in " ".join(command[:3])
