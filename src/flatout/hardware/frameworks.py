"""Asks torch, TensorFlow and JAX, each in a child process with a deadline, whether they really compute."""

import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from flatout.hardware.command import end_process_group
from flatout.records.machine import Framework, FrameworkName

FRAMEWORKS: tuple[FrameworkName, ...] = ("torch", "tensorflow", "jax")
PROBE_TIMEOUT_S = 90.0
_MARK = b"FLATOUT-PROBE "


def probe_framework(
    name: FrameworkName,
    *,
    python: str = sys.executable,
    timeout_s: float = PROBE_TIMEOUT_S,
    extra_environment: Mapping[str, str] | None = None,
    program: Path | None = None,
) -> Framework:
    """What `python`'s framework says of itself and its devices; a hang or a crash is an answer too."""
    source = program or Path(str(resources.files("flatout.hardware.probes") / "compute.py"))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(extra_environment or {})}
    try:
        child = subprocess.Popen(
            [python, str(source), name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Framework(name=name, installed=False, problem=f"{python} cannot be started: {error.strerror}")
    with child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            problem = f"using {name} gave no answer within {timeout_s:g} s"
            return Framework(name=name, installed=True, problem=problem)
        finally:
            end_process_group(child.pid)
    return _understand(name, out, err, child.returncode)


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
