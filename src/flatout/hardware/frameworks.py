"""Asks torch, TensorFlow and JAX, each in a child process with a deadline, whether they really compute."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from flatout.hardware.command import end_child, run_tool
from flatout.records.machine import Framework, FrameworkName

FRAMEWORKS: tuple[FrameworkName, ...] = ("torch", "tensorflow", "jax")
PROBE_TIMEOUT_S = 90.0
_MARK = b"FLATOUT-PROBE "


class Probe:
    """A child that looks at one framework. Started at once; `result` waits for it, `cancel` ends it."""

    def __init__(
        self,
        name: FrameworkName,
        *,
        python: str = sys.executable,
        timeout_s: float = PROBE_TIMEOUT_S,
        extra_environment: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._refusal = ""
        self._is_over = False
        source = program or Path(str(resources.files("flatout.hardware.probes") / "compute.py"))
        try:
            self._child = subprocess.Popen(
                [python, str(source), name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(extra_environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            self._refusal = f"{python} cannot be started: {error.strerror}"

    @property
    def pid(self) -> int | None:
        """The child's PID, or None when it could not be started."""
        return self._child.pid if self._child else None

    def result(self) -> Framework:
        """What the framework says of itself and its devices; a hang or a crash is an answer too."""
        if self._child is None:
            return Framework(name=self.name, installed=False, problem=self._refusal)
        try:
            out, err = self._child.communicate(timeout=max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            problem = f"using {self.name} gave no answer within {self._timeout_s:g} s"
            return Framework(name=self.name, installed=True, problem=problem)
        finally:
            self.cancel()
        return _understand(self.name, out, err, self._child.returncode)

    def cancel(self) -> None:
        """End the child and everything it started. Safe to call at any time."""
        # Once: after that, its number may be somebody else's.
        if self._child is not None and not self._is_over:
            self._is_over = True
            end_child(self._child)


def is_python(path: str) -> bool:
    """Whether a program answers as a Python interpreter does."""
    if path == sys.executable:
        return True
    return run_tool([path, "-c", "print(6 * 7)"], timeout_s=20).text == "42\n"


def _understand(name: FrameworkName, out: bytes, err: bytes, returncode: int) -> Framework:
    line = next((line for line in reversed(out.splitlines()) if line.startswith(_MARK)), None)
    if line is None:
        words = err.decode(errors="replace").strip().splitlines()
        said = f": {words[-1]}" if words else ""
        how = f"died of signal {-returncode}" if returncode < 0 else f"ended with {returncode}"
        return Framework(name=name, installed=True, problem=f"a process that used {name} {how}{said}")
    try:
        plain = msgspec.json.decode(line[len(_MARK) :])
        return msgspec.convert({**plain, "name": name}, Framework)
    except (msgspec.DecodeError, msgspec.ValidationError, TypeError) as error:
        return Framework(name=name, installed=True, problem=f"the probe of {name} was garbled: {error}")
