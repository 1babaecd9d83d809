"""What the user typed after the command's own options: a script, `-m module`, or a whole command line."""

import dataclasses
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from flatout.records.errors import CallerMistake, nearest

_SHELLS = (".sh", ".bash")


@dataclasses.dataclass(frozen=True)
class JobCommand:
    """The command line of the job, and whether its Python is the one that runs Flatout."""

    words: tuple[str, ...]
    own_python: bool
    given: tuple[str, ...] = ()

    def typed(self) -> str:
        """As the user typed it, to be pasted after another command."""
        import shlex

        plain = self.given[0] == "-m" or self.given[0].endswith((".py", *_SHELLS))
        return ("" if plain else "-- ") + shlex.join(self.given)


def job_command(words: Sequence[str], *, python: str = sys.executable) -> JobCommand:
    """The command line for `words`; what cannot be run is refused here, before anything starts."""
    if not words:
        raise CallerMistake(
            "no script was named",
            expected="a script and its arguments, or -- and a whole command line",
            remedy="flatout profile train.py --lr 3e-4   # or: flatout profile -- torchrun train.py",
        )
    first = words[0]
    if shutil.which(python) is None:
        raise CallerMistake(
            f"no Python {python!r}",
            expected="a Python interpreter that this user may start",
            remedy="check the path, or leave --python away",
        )
    if first == "-m":
        return JobCommand((python, *words), own_python=_is_ours(python), given=tuple(words))
    path = Path(first)
    if first.endswith((".py", ".pyz")) or (path.is_dir() and (path / "__main__.py").is_file()):
        _insist_on_a_script(path)
        return JobCommand((python, *words), own_python=_is_ours(python), given=tuple(words))
    if first.endswith(_SHELLS):
        _insist_on_a_script(path)
        return JobCommand((shutil.which("bash") or "sh", *words), own_python=False, given=tuple(words))
    program = shutil.which(first)
    if program is None:
        raise CallerMistake(
            f"no program or script {first!r}",
            expected="a Python script (train.py), -m module, or a program on PATH (torchrun, accelerate)",
            remedy=_like(path) or "check the spelling and the folder",
        )
    return JobCommand((program, *words[1:]), own_python=_is_ours(program), given=tuple(words))


def _is_ours(program: str) -> bool:
    return Path(program).absolute().parent == Path(sys.executable).absolute().parent


def _insist_on_a_script(path: Path) -> None:
    if path.is_dir() and (path / "__main__.py").is_file():
        return
    if not path.exists():
        raise CallerMistake(
            f"no script {str(path)!r} in {Path.cwd()}",
            expected="the path of an existing script",
            remedy=_like(path) or "check the spelling and the folder",
        )
    if not path.is_file():
        raise CallerMistake(f"{str(path)!r} is no file", expected="a script", remedy="name the file in it")
    if not os.access(path, os.R_OK):
        raise CallerMistake(
            f"{str(path)!r} cannot be read",
            expected="a script that this user may read",
            remedy=f"ls -l {path}",
        )


def _like(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".py", *_SHELLS)]
    except OSError:
        return ""
    near = nearest(path.name, names)
    return f"did you mean {str(path.parent / near)!r}?" if near else ""
