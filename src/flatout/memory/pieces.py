"""What a model's file is made of, whatever its format; and what is said of one that cannot be read."""

import dataclasses
import shlex
from pathlib import Path

from flatout.records.errors import CallerMistake
from flatout.records.load import LoadFormat

_LONGEST_PROBLEM = 1000
_AGAIN = "copy or download it again, and compare its size with the original's"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Piece:
    """One storage of a file, with the tensors in it: those that share memory are one piece."""

    # Keys on the way to the first tensor in it; empty where no tensor was found.
    path: tuple[str, ...]
    tensor_count: int
    # None where only the bytes are known.
    dtype: str | None
    element_count: int
    stored_bytes: int
    # What its tensors reach: less than is stored where they are views of something larger.
    used_bytes: int
    # Where it was when it was saved; empty where the file does not say.
    device: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFile:
    """One file, and what is in it."""

    path: Path
    format: LoadFormat
    file_bytes: int
    pieces: tuple[Piece, ...]
    # Names for which torch.load would refuse it with weights_only=True.
    unfamiliar: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def stored_bytes(self) -> int:
        """Bytes of all its tensors, as they are stored."""
        return sum(piece.stored_bytes for piece in self.pieces)


def fault(path: Path, problem: str, *, expected: str, remedy: str = _AGAIN) -> CallerMistake:
    """What is wrong with a file of the user's, to be raised; names in it can be as long as it likes."""
    if len(problem) > _LONGEST_PROBLEM:
        problem = problem[:_LONGEST_PROBLEM] + " ..."
    return CallerMistake(f"{path}: {problem}", expected=expected, remedy=remedy)


def unreadable(path: Path, cause: OSError | ValueError) -> CallerMistake:
    """A file that the system does not let us read, to be raised."""
    said = cause.strerror if isinstance(cause, OSError) else None
    return fault(
        path,
        f"cannot be read: {said or cause}",
        expected="a file that this user may read",
        remedy=f"ls -l {shlex.quote(str(path))}",
    )
