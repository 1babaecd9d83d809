"""The plan that tuning found, and its file: flatout.toml, made to be read and edited by people.

flatout.toml
  [job]         what it was measured on: script, arguments, device, versions
  [measured]    what it gave there
  [[lever]]     one for each change, with its settings; the comment above it says why it is there
"""

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.records.atomic import write_atomically
from flatout.records.config import read_toml
from flatout.records.errors import BadConfig
from flatout.records.words import as_utf8, with_settings

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")

PLAN_VERSION = 1
# Of command lines with more words than this, those that are the same are left out where they are compared.
_MANY_WORDS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """One lever of a plan."""

    id: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    predicted_speedup: float | None = None
    measured_speedup: float | None = None
    # Why it is there, in a line; written as a comment, and not read back.
    reason: str = ""

    def order(self) -> dict[str, Any]:
        """What a session needs to know of it."""
        return {"id": self.id, "settings": self.settings}

    def words(self) -> str:
        """As in a sentence: `compile (reduce-overhead)`."""
        return with_settings(self.id, self.settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a plan was measured on. Elsewhere each lever is checked again."""

    script: str
    script_sha256: str
    arguments: tuple[str, ...] = ()
    device: str = ""
    torch: str = ""
    flatout: str = ""

    def differences(self, other: "Fingerprint") -> list[str]:
        """In words, what is not the same now."""
        found = []
        if self.is_of_another_script(other):
            found.append(f"it was made for another script: {self.script}")
        elif self.script_sha256 and other.script_sha256 and self.script_sha256 != other.script_sha256:
            found.append("the script has changed since")
        for field in dataclasses.fields(self):
            before, now = getattr(self, field.name), getattr(other, field.name)
            if before == now or (field.name != "arguments" and not (before and now)):
                continue  # a device that is not known yet is no other device
            if field.name in ("script", "script_sha256"):
                continue
            if field.name == "arguments":
                found.append(_other_arguments(before, now))
            else:
                found.append(f"it was made on {field.name} {before}, not {now}")
        return found

    def why_no_promise(self, other: "Fingerprint") -> str:
        """Why what was measured says nothing of how fast another job is; empty where it does."""
        if self.is_of_another_script(other):
            return "the plan was made for another script"
        if self.script_sha256 and other.script_sha256 and self.script_sha256 != other.script_sha256:
            return "the script has changed since it was tuned"
        if self.arguments != other.arguments:
            return "its arguments are not those that it was tuned with"
        if self.device and other.device and self.device != other.device:
            return f"it was tuned on {self.device}, not {other.device}"
        return ""

    def is_of_another_script(self, other: "Fingerprint") -> bool:
        """By name and content: a script may move, unless it is still where it was, and it may change."""
        if not (self.script and other.script) or self.script == other.script:
            return False
        if self.script_sha256 and self.script_sha256 == other.script_sha256:
            return False
        had_moved = (
            not Path(self.script).is_file() or Path(self.script).resolve() == Path(other.script).resolve()
        )
        return Path(self.script).name != Path(other.script).name or not had_moved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Which levers, in the order in which they were found, and what they promise."""

    job: Fingerprint
    levers: tuple[Choice, ...] = ()
    # File and line of the script's own source where the model is called and the optimizer made.
    where: dict[str, tuple[str, int]] = dataclasses.field(default_factory=dict)
    baseline_samples_per_s: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None
    # Whether the job infers: a step is then a call of its model.
    infer: bool = False
    # The run that found it: what it proved lies there.
    run: str = ""
    # At that rate, of the peak that `flatout profile` names.
    mfu: float | None = None

    def write(self, path: Path) -> None:
        """Write the file, with a comment for each lever."""
        write_atomically(path, as_toml(self).encode())


class _Version(msgspec.Struct):
    version: Any = None


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    script: str
    script_sha256: str
    arguments: tuple[str, ...] = ()
    device: str = ""
    torch: str = ""
    flatout: str = ""


class _Measured(msgspec.Struct, forbid_unknown_fields=True):
    run: str = ""
    baseline_samples_per_s: float | None = None
    samples_per_s: float | None = None
    speedup: float | None = None
    mfu: float | None = None


class _Lever(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    settings: dict[str, Any] = {}
    predicted_speedup: float | None = None
    measured_speedup: float | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """flatout.toml, key by key."""

    version: int
    job: _Job
    measured: _Measured = msgspec.field(default_factory=_Measured)
    where: dict[str, tuple[str, int]] = {}
    infer: bool = False
    lever: tuple[_Lever, ...] = ()


def as_toml(plan: Plan) -> str:
    """The plan as the text of its file."""
    lines = [
        f"# What `flatout tune` found for {_in_a_line(plan.job.script)}. `flatout run` applies it.",
        "# Take out whatever you don't want.",
        f"version = {PLAN_VERSION}",
        *(["infer = true"] if plan.infer else []),
        "",
        "[job]",
    ]
    lines += [
        f"{field.name} = {_value(getattr(plan.job, field.name))}" for field in dataclasses.fields(plan.job)
    ]
    measured = {
        name: getattr(plan, name)
        for name in ("run", "baseline_samples_per_s", "samples_per_s", "speedup", "mfu")
        if getattr(plan, name) not in (None, "")
    }
    if measured:
        lines += ["", "[measured]", *(f"{name} = {_value(value)}" for name, value in measured.items())]
    if plan.where:
        lines += ["", "# Where `flatout patch` makes its changes.", "[where]"]
        lines += [f"{_key(name)} = {_value(place)}" for name, place in plan.where.items()]
    for choice in plan.levers:
        lines += [
            "",
            *(f"# {_in_a_line(line)}" for line in _comment(choice)),
            "[[lever]]",
            f"id = {_value(choice.id)}",
        ]
        lines += [
            f"{name} = {_value(getattr(choice, name))}"
            for name in ("predicted_speedup", "measured_speedup")
            if getattr(choice, name) is not None
        ]
        if choice.settings:
            inline = ", ".join(f"{_key(name)} = {_value(value)}" for name, value in choice.settings.items())
            lines.append(f"settings = {{ {inline} }}")
    return "\n".join(lines) + "\n"


def read_plan(path: Path) -> Plan:
    """Read a plan; of a broken one the key and the line are named."""
    remedy = "flatout tune SCRIPT   # writes a new one"
    if not os.path.lexists(path):
        raise BadConfig(
            path,
            "there is no such file",
            expected="a plan as `flatout tune` writes it",
            remedy=f"{remedy}; flatout run --as-written runs without a plan",
        )
    version = read_toml(path, _Version, remedy=remedy).version  # others may have other keys
    if version != PLAN_VERSION:
        raise BadConfig(
            path,
            f"it has version {version!r}",
            expected=f"version {PLAN_VERSION}",
            remedy=f"a newer Flatout, or: {remedy}",
            key="version",
        )
    found = read_toml(path, _File, remedy=remedy)
    return Plan(
        job=Fingerprint(**msgspec.structs.asdict(found.job)),
        levers=tuple(Choice(**msgspec.structs.asdict(one)) for one in found.lever),
        where=found.where,
        infer=found.infer,
        **msgspec.structs.asdict(found.measured),
    )


def _comment(choice: Choice) -> list[str]:
    lines = [choice.reason] if choice.reason else []
    told = [
        f"{word} {speedup:.2f}x"
        for word, speedup in (
            ("predicted", choice.predicted_speedup),
            ("measured", choice.measured_speedup),
        )
        if speedup is not None
    ]
    return [*lines, *([", ".join(told)] if told else [])]


def _in_a_line(text: str) -> str:
    """Text for a comment: whatever would end it is left out."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    """A TOML value. JSON's strings, numbers and booleans are TOML's too."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, float):
        return repr(round(value, 4))
    if isinstance(value, str):
        value = as_utf8(value)
    # JSON lets the one control character pass that TOML does not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _other_arguments(before: Sequence[str], now: Sequence[str]) -> str:
    """Of long command lines only what is not in both."""
    was, here = before, now
    if len(before) + len(now) > _MANY_WORDS:
        was, here = [one for one in before if one not in now], [one for one in now if one not in before]
    if not was and not here:  # another order
        was, here = before, now
    return f"it was made with the arguments {' '.join(was)!r}, not {' '.join(here)!r}"
