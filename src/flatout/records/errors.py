"""The one tree of errors; `cli/main.py` catches it once and turns it into an exit code.

    FlatoutError
    ├── CallerMistake          exit 2   what the caller gave cannot be used
    │   ├── UnknownName                 a device, dtype, GPU or run that does not exist
    │   └── BadConfig                   a file of the user's with a wrong key, type or value
    ├── EnvironmentProblem     exit 3   the machine or its state stands in the way
    │   ├── MissingExtra                an optional package is not installed
    │   ├── CannotWrite                 a folder or disk refuses our file
    │   ├── CorruptFile                 a file of ours that cannot be read back
    │   ├── ForeignVersion              a file written by another version of Flatout
    │   ├── LockHeld                    another process works in the same folder
    │   └── ChildFailed                 a helper process died, hung or spoke nonsense
    └── JobFailed              exit 4   the user's own job ended in failure

Every error says what was received, what was expected and what to do next.
"""

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

EXIT_DONE = 0
EXIT_FINDING = 1
EXIT_CALLER = 2
EXIT_ENVIRONMENT = 3
EXIT_JOB = 4

_LIST_AT_MOST = 40


class FlatoutError(Exception):
    """Anything that Flatout says no to."""

    exit_code: ClassVar[int] = EXIT_ENVIRONMENT

    def __init__(self, received: str, *, expected: str, remedy: str) -> None:
        self.received = received
        self.expected = expected
        self.remedy = remedy
        super().__init__(f"{received}\n  expected: {expected}\n  try:      {remedy}")


class CallerMistake(FlatoutError):
    """What the caller gave cannot be used."""

    exit_code: ClassVar[int] = EXIT_CALLER


class UnknownName(CallerMistake):
    """A name that is not among the valid ones; the nearest is offered."""

    def __init__(self, kind: str, name: str, valid: Iterable[str], *, remedy: str = "") -> None:
        self.name = name
        self.valid = tuple(valid)
        near = nearest(name, self.valid)
        listed = _listed(name, self.valid)
        super().__init__(
            f"unknown {kind} {name!r}",
            expected=listed,
            remedy=remedy or (f"did you mean {near!r}?" if near else "choose one of these names"),
        )


class BadConfig(CallerMistake):
    """A file of the user's that breaks its rules, with the key and the line."""

    def __init__(
        self, path: Path, problem: str, *, expected: str, remedy: str, key: str = "", line: int | None = None
    ) -> None:
        self.path = path
        self.key = key
        self.line = line
        place = str(path) + (f", line {line}" if line else "") + (f", key {key!r}" if key else "")
        super().__init__(f"{place}: {problem}", expected=expected, remedy=remedy)


class EnvironmentProblem(FlatoutError):
    """The machine, or the state of a file on it, stands in the way."""


class MissingExtra(EnvironmentProblem):
    """An optional package is not installed."""

    def __init__(self, package: str, *, extra: str, wanted_for: str) -> None:
        self.extra = extra
        super().__init__(
            f"{package} is not installed",
            expected=f"{package}, for {wanted_for}",
            # A shell would take the sign of a version for a redirection.
            remedy=f"pip install {shlex.quote(package)}   # what flatout[{extra}] asks for",
        )


class CannotWrite(EnvironmentProblem):
    """A folder or disk refuses our file; whatever was there before is still there."""

    def __init__(self, path: Path, cause: OSError, *, remedy: str) -> None:
        self.path = path
        super().__init__(
            f"cannot write {path}: {cause.strerror or cause}",
            expected="a folder that this user may write to, on a disk with room",
            remedy=remedy,
        )


class CorruptFile(EnvironmentProblem):
    """A file of ours that cannot be read back. It is left as it is."""

    def __init__(self, path: Path, problem: str, *, remedy: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is damaged: {problem}", expected="a file as Flatout wrote it", remedy=remedy
        )


class ForeignVersion(EnvironmentProblem):
    """A file written by another version of Flatout, or by something else."""

    def __init__(self, path: Path, found: object, *, readable: str) -> None:
        self.path = path
        self.found = found
        super().__init__(
            f"{path} has format {found!r}",
            expected=f"{readable}, which this version of Flatout reads",
            remedy="read it with the version of Flatout that wrote it, or a newer one",
        )


class LockHeld(EnvironmentProblem):
    """Another living process works in the same folder."""

    def __init__(self, path: Path, holder: str) -> None:
        self.path = path
        super().__init__(
            f"{path} is in use by {holder}",
            expected="a folder that no other run is writing to",
            remedy="wait for that run to end, or start this one in another folder",
        )


class ChildFailed(EnvironmentProblem):
    """A helper process died, hung or spoke nonsense."""


class JobFailed(FlatoutError):
    """The user's own job ended in failure."""

    exit_code: ClassVar[int] = EXIT_JOB


def _listed(name: str, valid: tuple[str, ...]) -> str:
    if not valid:
        return "a name, but there is none to choose from"
    if len(valid) <= _LIST_AT_MOST:
        return f"one of: {', '.join(valid)}"
    like = difflib.get_close_matches(name, valid, n=8, cutoff=0.3) or list(valid[:8])
    return f"one of {len(valid)} names, among them: {', '.join(like)}"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None when nothing is close."""
    folded = {candidate.lower(): candidate for candidate in valid}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None
