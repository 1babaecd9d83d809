"""The trainer's side of the process that writes checkpoints."""

import contextlib
import json
import mmap
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

# Where this package lies: the writer need not find it by itself.
_SOURCE = str(Path(__file__).resolve().parents[3])
_START = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from flatout.runtime.checkpoint.writer import main; main(int(sys.argv[1]), int(sys.argv[3]))"
)

# After its last order; a newline for an end that is all there.
END = b"end\n"


class WriterDied(Exception):
    """The process that writes is gone, in words."""


class SharedMemory:
    """Memory that the writer can read, also when the trainer has died; it grows, and never shrinks."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("flatout-checkpoint", os.MFD_CLOEXEC)
        self._size = 0
        self.map: mmap.mmap | None = None

    def hold(self, size: int) -> bool:
        """Room for so many bytes; whether the memory is another than before."""
        if size <= self._size:
            return False
        os.ftruncate(self.descriptor, size)
        # Views of the old one may live on; so does it, until they do not.
        self.map = mmap.mmap(self.descriptor, size)
        self._size = size
        return True

    def close(self) -> None:
        """Give it back."""
        self.map = None
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


class Writer:
    """One process, one order at a time."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._process: subprocess.Popen[bytes] | None = None
        self.is_busy = False

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        descriptor = self._memory.descriptor
        # In a session of its own: what a terminal or a scheduler sends to the job is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(descriptor), _SOURCE, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(descriptor,),
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")},
        )
        self.is_busy = False

    def send(self, order: dict[str, Any]) -> None:
        """Hand it an order; raises WriterDied."""
        self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WriterDied(f"the process that writes checkpoints is gone ({error.strerror})") from error
        self.is_busy = True

    def answer(self, timeout_s: float | None = 0.0) -> dict[str, Any] | None:
        """What became of the order, if it is known by then; None waits for as long as it takes."""
        if not self.is_busy or self._process is None or self._process.stdout is None:
            return None
        answered = select.poll()  # `select` has no room for more than 1024 descriptors
        answered.register(self._process.stdout, select.POLLIN)
        if not answered.poll(None if timeout_s is None else timeout_s * 1000):
            return None
        self.is_busy = False
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            return {"failed": f"the process that writes checkpoints ended with {code}"}
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """It finishes what it has, and ends."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # it is gone already
            # In words: children that were forked since hold the pipe open.
            process.stdin.write(END)
            process.stdin.flush()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        process.wait()
