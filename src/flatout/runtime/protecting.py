"""Where a protected job keeps what it saves between its lives, and whether it is still the same job."""

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.errors import CallerMistake
from flatout.records.lock import folder_lock
from flatout.runtime.checkpoint.store import checkpoints
from flatout.runtime.command import JobCommand
from flatout.runtime.outliving import outliving

_SCRIPT_FILE = "script.sha256"
_REHEARSED_FILE = "rehearsed.sha256"
# The run folder of the life that was begun last.
_RUN_FILE = "run"


class Refuge:
    """One job's folder: named by its words, so that the same command finds it again."""

    def __init__(self, root: Path, command: JobCommand, script: str, script_sha256: str) -> None:
        words = command.given or command.words
        digest = hashlib.sha256("\0".join((str(Path.cwd()), *words)).encode()).hexdigest()[:10]
        self._script, self._sha256 = script, script_sha256
        self.path = (root / "protected" / f"{Path(script).stem}-{digest}").resolve()

    def begin(self, *, fresh: bool) -> int | None:
        """Make it ready; the update that the job will go on from, or None.

        Raises CallerMistake where the script has changed since, which would not come to the same place, and
        where an earlier life still runs, whose Flatout was killed.
        """
        self._insist_on_being_alone()
        if fresh:
            shutil.rmtree(self.path, ignore_errors=True)
        saved = checkpoints(self.path)
        if saved and not self.is_of_the_same_script():
            raise CallerMistake(
                f"{self._script} has changed since its update {saved[0].step} was saved",
                expected="the script that it was, which finds its way back to where it was",
                remedy="undo the change, or begin anew with --fresh",
            )
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / _SCRIPT_FILE, self._sha256.encode())
        return saved[0].step if saved else None

    def _insist_on_being_alone(self) -> None:
        with contextlib.suppress(OSError):
            before = Path((self.path / _RUN_FILE).read_text())
            job = outliving(before)
            if job is not None:
                raise CallerMistake(
                    f"this job still runs as process {job.main.pid}: its Flatout was killed, it was not",
                    expected="one such job at a time: two would save over each other",
                    remedy=f"flatout stop {before.name}   # it saves and ends; the same command then goes on",
                )

    def is_lived_in(self, run_folder: Path) -> None:
        """By the job of this run, from now on."""
        write_atomically(self.path / _RUN_FILE, str(run_folder.resolve()).encode())

    def is_of_the_same_script(self) -> bool:
        """Whether what lies here was saved by the script as it is now; one that left no word counts as it."""
        with contextlib.suppress(OSError):
            before = (self.path / _SCRIPT_FILE).read_text()
            return not before or before == self._sha256
        return True

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For as long as the job runs: the same one started twice would save over itself. Raises LockHeld."""
        self.path.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.path, name="running"):
            yield

    def is_rehearsed(self) -> bool:
        """Whether this script has shown that it can be brought back."""
        with contextlib.suppress(OSError):
            return (self.path / _REHEARSED_FILE).read_text() == self._sha256
        return False

    def has_rehearsed(self) -> None:
        """It has."""
        write_atomically(self.path / _REHEARSED_FILE, self._sha256.encode())

    def is_over(self) -> None:
        """The job has ended well: there is nothing to go back to."""
        shutil.rmtree(self.path, ignore_errors=True)
