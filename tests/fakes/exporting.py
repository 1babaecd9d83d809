"""`flatout export` in a process of its own, on GPUs that are not there.

Run as `python -m tests.fakes.exporting GPUS ARGUMENTS...`. Orders come on standard input, one JSON list a
line: a method of FakeNvml and its arguments, or ["xid", GPU, NUMBER], ["release"] for all that blocks,
["fired", FILE] to have written down which planted faults fired.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from flatout.cli.main import main
from flatout.hardware.cpu import CpuSource
from flatout.hardware.nvidia.session import NvmlSession
from flatout.hardware.nvidia.source import NvidiaSource
from flatout.hardware.protocol import DeviceSource
from flatout.monitor import sampling
from tests.fakes.nvml import FakeNvml


def obey(nvml: FakeNvml) -> None:
    """Until standard input ends."""
    blocked: list[threading.Event] = []
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        if name == "release":
            nvml._blocks.clear()
            for event in blocked:
                event.set()
        elif name == "block":
            blocked.append(nvml.block(*arguments))
        elif name == "fired":
            Path(arguments[0]).write_text(json.dumps(nvml.fired))
        elif name == "xid":
            nvml.xids.append((arguments[0], arguments[1]))
        else:
            getattr(nvml, name)(*arguments)


def begin(words: list[str]) -> None:
    nvml = FakeNvml(int(words[0]))

    def sources() -> list[DeviceSource]:
        return [NvidiaSource(session=NvmlSession(nvml), call_timeout_s=0.5), CpuSource()]

    replaced: Any = sampling
    replaced.default_sources = sources
    threading.Thread(target=obey, args=(nvml,), daemon=True).start()
    main(["export", *words[1:]])


if __name__ == "__main__":
    begin(sys.argv[1:])
