"""The machine in a line, quickly: GPUs by their drivers' own word, and torch without loading it."""

import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flatout.hardware.deadline import DeadlinePassed, Worker
from flatout.hardware.machine import default_sources
from flatout.hardware.protocol import DeviceSource, Discovery
from flatout.records.next_step import GpuHere, MachineHere

# A driver that wakes its GPUs up takes a second or two; one that has not answered by then is told of.
_LONGEST_S = 3.0


class MachineLook:
    """A look that has begun; the folder can be read meanwhile."""

    def __init__(
        self, sources: Sequence[DeviceSource] | None = None, *, longest_s: float = _LONGEST_S
    ) -> None:
        self._sources = default_sources() if sources is None else list(sources)
        self._longest_s = longest_s
        self._worker = Worker("machine")
        self._pending = self._worker.submit(self._discover)

    def result(self) -> MachineHere:
        """What was seen. Never raises, and never waits for long: a wedged driver is one of the problems."""
        torch, python = _torch_and_its_python()
        try:
            found = self._worker.wait(self._pending, self._longest_s)
        except DeadlinePassed:
            late = f"a driver has not answered within {self._longest_s:g} s"
            return MachineHere(torch=torch, python=python, problems=(late,))
        devices = [device for one in found for device in one.devices]
        cpu = next((device for device in devices if device.vendor == "cpu"), None)
        return MachineHere(
            gpus=tuple(
                GpuHere(name=device.name, memory_total_bytes=device.memory_total_bytes)
                for device in devices
                if device.vendor != "cpu"
            ),
            cpu=cpu.name if cpu else "",
            cores=cpu.core_count if cpu else None,
            memory_total_bytes=cpu.memory_total_bytes if cpu else None,
            problems=tuple(problem.evidence for one in found for problem in one.problems),
            torch=torch,
            python=python,
        )

    def _discover(self) -> list[Discovery]:
        try:
            return [source.discover() for source in self._sources]
        finally:
            for source in self._sources:
                source.close()


def _torch_and_its_python() -> tuple[str | None, str]:
    """The torch that jobs would have; and the Python of this folder that has it, where ours has none."""
    try:
        return importlib.metadata.version("torch"), ""
    except importlib.metadata.PackageNotFoundError:
        return next(_of_other_environments(), (None, ""))


def _of_other_environments() -> Iterator[tuple[str, str]]:
    for name in (os.environ.get("VIRTUAL_ENV", ""), ".venv", "venv"):
        if not name or Path(name).resolve() == Path(sys.prefix).resolve():
            continue
        for found in sorted(Path(name).glob("lib/python3*/site-packages/torch-*.dist-info")):
            python = Path(name) / "bin" / "python"
            if os.access(python, os.X_OK):
                yield found.name.removeprefix("torch-").removesuffix(".dist-info"), str(python)
