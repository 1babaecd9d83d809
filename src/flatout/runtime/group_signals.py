"""Whether a signal was meant for us alone, or for our whole process group, in which the job has it already.

The kernel does not say: a Ctrl-C in a terminal, a notebook's interrupt and a scheduler's signal to all look
like a supervisor's to us. So a process stands beside us in the group that only waits for the end of its
input: a signal to all ends it, too.
"""

import contextlib
import subprocess

# Of the two of us, we may be told first.
_LATER_S = 0.2


class Lookout:
    """Sees signals that reach the whole group."""

    def __init__(self) -> None:
        self._waiting: subprocess.Popen[bytes] | None = None
        # Came to all while another one was looked into, and was not asked for yet.
        self._ahead: int | None = None
        self._post()

    def saw_it(self, number: int) -> bool:
        """Whether this signal, which has just come to us, came to all: to be asked of each that comes."""
        if self._ahead == number:
            self._ahead = None
            return True
        waiting = self._waiting
        if waiting is None:
            return False
        try:
            code = waiting.wait(_LATER_S)
        except subprocess.TimeoutExpired:
            return False
        if waiting is self._waiting:  # else another signal came meanwhile, and was looked into first
            self._relieve()
            self._post()
            self._ahead = -code if code < 0 and code != -number else None
        return code == -number

    def end(self) -> None:
        """Nobody has to see any more."""
        if self._waiting is not None:
            self._relieve()

    def _post(self) -> None:
        self._waiting = None
        with contextlib.suppress(OSError):
            # Ours is the only end of its input: it goes however we go.
            self._waiting = subprocess.Popen(
                ("cat",), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )

    def _relieve(self) -> None:
        assert self._waiting is not None
        assert self._waiting.stdin is not None
        with contextlib.suppress(OSError):
            self._waiting.stdin.close()
        self._waiting.wait()
