"""Files as `nsys export --type sqlite` writes them: its tables and columns, with events made up by hand."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SPAN = "start INTEGER NOT NULL, end INTEGER NOT NULL, "
_WHERE = (
    _SPAN + "deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER, correlationId INTEGER, "
    "globalPid INTEGER, "
)
# As nsys of 2024 declares them, with what nobody here reads left away.
SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER NOT NULL, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": _WHERE + "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, "
    "mangledName INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _WHERE + "graphId INTEGER, graphExecId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": _WHERE + "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, "
    "srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": _WHERE + "value INTEGER NOT NULL, bytes INTEGER NOT NULL, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": _SPAN + "eventClass INTEGER NOT NULL, globalTid INTEGER, "
    "correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
    "text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER",
}
PROCESS = 4711
PUSH_POP, START_END, MARK = 59, 60, 34


def global_pid(process: int) -> int:
    """As nsys packs it: hardware, virtual machine, process, and no thread."""
    return 1 << 56 | process << 24


class Export:
    """Collects rows; times in milliseconds."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._strings: dict[str, int] = {}
        self.row("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA H200")
        self.row("TARGET_INFO_CUDA_DEVICE", gpuId=0, cudaId=0, pid=PROCESS)
        self.row("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value="3.11.2")
        labels = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
        for number, label in enumerate(labels):
            self.row("ENUM_CUDA_MEM_KIND", id=number, name=f"CUDA_MEMOPR_MEMORY_KIND_{number}", label=label)

    def row(self, table: str, **cells: Any) -> None:
        self.rows.setdefault(table, []).append(cells)

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.row("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def on_device(self, kind: str, start: float, length: float, process: int = PROCESS, **cells: Any) -> None:
        own = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": global_pid(process), **cells}
        self.row(f"CUPTI_ACTIVITY_KIND_{kind}", **_span(start, length), **own)

    def kernel(self, name: str, start: float, length: float, **cells: Any) -> None:
        number = self.string(name)
        self.on_device("KERNEL", start, length, demangledName=number, shortName=number, **cells)

    def call(self, name: str, start: float, length: float, process: int = PROCESS, **cells: Any) -> None:
        own = {"eventClass": 0, "returnValue": 0, "globalTid": global_pid(process) | process, **cells}
        self.row("CUPTI_ACTIVITY_KIND_RUNTIME", **_span(start, length), nameId=self.string(name), **own)

    def range(
        self, text: str | None, start: float, length: float | None, process: int = PROCESS, **cells: Any
    ) -> None:
        own = {"eventType": PUSH_POP, "text": text, "globalTid": global_pid(process) | process, **cells}
        span = _span(start, length or 0.0)
        self.row("NVTX_EVENTS", **{**span, "end": span["end"] if length is not None else None}, **own)

    def write(self, path: Path, *, without: Sequence[str] = ()) -> Path:
        """The file; `without` names tables, or columns as `TABLE.column`, that this version does not have."""
        path.unlink(missing_ok=True)
        database = sqlite3.connect(path)
        for table, rows in self.rows.items():
            if table in without:
                continue
            declared = [
                part for part in SCHEMA[table].split(", ") if f"{table}.{part.split()[0]}" not in without
            ]
            names = [part.split()[0] for part in declared]
            database.execute(f'CREATE TABLE "{table}" ({", ".join(declared)})')
            places = ", ".join("?" * len(names))
            database.executemany(
                f'INSERT INTO "{table}" VALUES ({places})',
                [
                    [row.get(name, _default(part)) for name, part in zip(names, declared, strict=True)]
                    for row in rows
                ],
            )
        database.commit()
        database.close()
        return path


def _span(start: float, length: float) -> dict[str, int]:
    return {"start": round(start * 1e6), "end": round((start + length) * 1e6)}


def _default(declared: str) -> int | None:
    return 0 if "NOT NULL" in declared else None
