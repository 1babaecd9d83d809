"""A job in the hands of a keeper, seen from Flatout: start it, hear how it goes, and have it ended."""

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

from flatout.records.session import SESSION_VARIABLE
from flatout.runtime.job import Job
from flatout.runtime.processes import end_job_of

_END_WITHIN_S = 20.0


class KeptJob:
    """One keeper process and its job; always left by `end`, which leaves nobody behind."""

    def __init__(self, job: Job) -> None:
        self._mark = job.mark
        environment = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "flatout.runtime.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        self.closed = False
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(job.line())
            self._process.stdin.flush()

    def wait(self, seconds: float) -> None:
        """Wait until the keeper says something, at most `seconds`, and take in what it says."""
        said = select.poll()  # `select` has no room for more than 1024 descriptors
        said.register(self._output, select.POLLIN)
        if said.poll(seconds * 1000):
            self._take_in(os.read(self._output.fileno(), 1 << 16))

    def event(self, name: str) -> dict[str, Any] | None:
        """The last event of this name, or None."""
        return next((event for event in reversed(self.events) if event["event"] == name), None)

    def end(self) -> None:
        """Have everything ended, and wait for it; safe to call twice."""
        process = self._process
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(timeout=_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            while not self.closed:
                self.wait(0.1)
        if self.event("ended") is None and self.event("started") is not None:
            end_job_of(process.pid, self._mark)  # the keeper was killed, and could not see to it
        self._output.close()

    def _take_in(self, data: bytes) -> None:
        self.closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.events += [json.loads(line) for line in lines if line]
