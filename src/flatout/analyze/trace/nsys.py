"""What `nsys export --type sqlite` wrote, in the columns that a Chrome trace has.

Versions of nsys differ in their tables and columns, and make a table only where there is something to put in
it: each is looked for before it is read, and a note says what the export does not have. Names become those
that Kineto writes, so that whatever looks at a trace need not know where it came from.
"""

import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.trace.events import CODES, Columns

_ROWS = 1 << 12
# Nanoseconds; sums of a few such still fit.
_LATEST = 1 << 60
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
_RANGES = "NVTX_EVENTS"
_TABLES = (_KERNELS, _GRAPHS, _COPIES, _SETS, _CALLS, _RANGES)
# What stands in every export, whatever was recorded.
_MARKS = {"StringIds", "META_DATA_CAPTURE", "META_DATA_EXPORT", "TARGET_INFO_GPU", *_TABLES}
_ON_DEVICE = {
    "device": ("deviceId",),
    "stream": ("streamId",),
    "correlation": ("correlationId",),
    "process": ("globalPid",),
}
_NAMES = ("demangledName", "shortName", "mangledName", "name")
# CUPTI's numbers for the way of a copy, nsys's own for the kinds of memory (where no table tells them).
_WAYS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
    10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
_MEMORY = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
# Ranges that were pushed and popped, or started and ended; marks and names of threads are none.
_RANGE_TYPES = "59, 60"
# `cudaLaunchKernel_v7000`: the version in which a call came into the world.
_VERSION = re.compile(r"_v\d{4,}(_pt[ds][sz])?$")
_STEP = re.compile(r"^step (\d+)$")
# What Flatout's own ranges are called where traces are looked at (`inside/ranges.py`).
_OWN_RANGES = {"data": "flatout.input", "optimizer": "Optimizer.step"}

OnRead = Callable[[int, int], None]


def read_nsys(path: Path, *, on_read: OnRead = lambda _done, _all: None) -> Columns:
    """Everything of one export. Raises NotATrace where SQLite or nsys had no hand in it."""
    try:
        # Immutable: a read-only folder will do, and nothing is left beside the file.
        address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda data: data.decode(errors="replace")
            return _Export(path, database).read(on_read)
    except (sqlite3.Error, ValueError) as error:  # not even what SQLite says of it need be text
        reason = str(error) if isinstance(error, sqlite3.Error) else "it is damaged"
        raise NotATrace(path, f"SQLite cannot read it: {reason}") from error


class _Export:
    """One export on its way into columns."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self._path = path
        self._database = database
        rows = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        tables = {str(name) for (name,) in rows}
        if not tables & _MARKS:
            raise NotATrace(path, "a database, but none that nsys exported: it has no table of its")
        self._columns = {table: self._columns_of(table) for table in tables}
        self._strings: dict[int, str] = {}
        if {"id", "value"} <= self._columns.get("StringIds", set()):
            self._strings = dict(database.execute("SELECT id, value FROM StringIds"))
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[Any, Any], int] = {}
        self._notes: list[str] = []

    def read(self, on_read: OnRead) -> Columns:
        """All tables, one after the other; of several processes, the one that kept the device busiest."""
        size = self._path.stat().st_size
        parts: list[dict[str, Any]] = []
        for done, read in enumerate(
            (self._kernels, self._graphs, self._copies, self._sets, self._calls, self._ranges), start=1
        ):
            parts += [part for part in [read()] if part is not None and len(part["start"])]
            on_read(size * done // len(_TABLES), size)
        parts = [
            part for part in map(self._of_one_process(parts), map(_in_time, parts)) if len(part["start"])
        ]
        if not parts:
            raise NotATrace(self._path, "nsys recorded no kernel, no call of CUDA and no NVTX range")
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        whole["length"] = np.where(whole["end"] >= whole["start"], whole["end"] - whole["start"], -1)
        nothing = np.full(len(whole["start"]), -1, np.int64)
        return Columns(
            names=list(self._names),
            threads=list(self._threads),
            category=whole["category"],
            name=whole["name"],
            thread=whole["thread"],
            start=whole["start"],
            length=whole["length"],
            correlation=whole["correlation"],
            external=nothing,
            sequence=nothing,
            stream=_small(whole["stream"]),
            device=_small(whole["device"]),
            bytes=whole["bytes"],
            called={},
            upto=size,
            ended=True,
            notes=tuple(self._notes),
            device_name=self._device_name(whole),
        )

    # One table each

    def _kernels(self) -> dict[str, Any] | None:
        found = self._numbers(_KERNELS, {**_ON_DEVICE, "string": _NAMES})
        if found is None:
            return None
        return self._device_part("kernel", found, self._by_string(found["string"], "a kernel without a name"))

    def _graphs(self) -> dict[str, Any] | None:
        """CUDA graphs whose kernels were not recorded: each launch as one kernel."""
        # Where the driver could not tell the times, both are zero.
        wanted = {**_ON_DEVICE, "graph": ("graphId", "graphExecId")}
        found = self._numbers(_GRAPHS, wanted, where='"end" > 0')
        if found is None or not len(found["start"]):
            return None
        self._notes.append(
            "CUDA graphs were recorded as wholes, without their kernels: nsys profile --cuda-graph-trace=node"
        )
        return self._device_part("kernel", found, self._by_key(found["graph"], "CUDA graph {}".format))

    def _copies(self) -> dict[str, Any] | None:
        kinds = {"way": ("copyKind",), "source": ("srcKind",), "target": ("dstKind",), "bytes": ("bytes",)}
        found = self._numbers(_COPIES, {**_ON_DEVICE, **kinds})
        if found is None:
            return None
        memory = self._memory()

        def called(key: int) -> str:
            way, source, target = key >> 16, key >> 8 & 0xFF, key & 0xFF
            return (
                f"Memcpy {_WAYS.get(way, 'unknown')} "
                f"({memory.get(source, 'Unknown')} -> {memory.get(target, 'Unknown')})"
            )

        key = (found["way"] & 0xFF) << 16 | (found["source"] & 0xFF) << 8 | found["target"] & 0xFF
        return self._device_part("gpu_memcpy", found, self._by_key(key, called))

    def _sets(self) -> dict[str, Any] | None:
        found = self._numbers(_SETS, {**_ON_DEVICE, "kind": ("memKind",), "bytes": ("bytes",)})
        if found is None:
            return None
        memory = self._memory()
        names = self._by_key(found["kind"] & 0xFF, lambda kind: f"Memset ({memory.get(kind, 'Unknown')})")
        return self._device_part("gpu_memset", found, names)

    def _calls(self) -> dict[str, Any] | None:
        wanted = {"string": ("nameId",), "correlation": ("correlationId",), "thread": ("globalTid",)}
        found = self._numbers(_CALLS, wanted)
        if found is None:
            return None
        names = self._by_string(found["string"], "a call without a name", lambda name: _VERSION.sub("", name))
        on_driver = np.array([not name.startswith("cuda") for name in self._names], bool)[names]
        category = np.where(on_driver, CODES["cuda_driver"], CODES["cuda_runtime"]).astype(np.uint8)
        return self._host_part(category, found, names)

    def _ranges(self) -> dict[str, Any] | None:
        # A range that was open when the recording ended has no length, and is no loss.
        where = '"end" IS NOT NULL'
        if "eventType" in self._columns.get(_RANGES, ()):
            where += f' AND "eventType" IN ({_RANGE_TYPES})'
        texts: list[str | None] = []
        found = self._numbers(
            _RANGES, {"thread": ("globalTid",), "string": ("textId",)}, where=where, text="text", into=texts
        )
        if found is None:
            self._notes.append("no NVTX ranges were recorded, so no steps: nsys profile --trace=cuda,nvtx")
            return None
        said = [
            text or self._strings.get(number) or ""
            for text, number in zip(texts, found["string"].tolist(), strict=True)
        ]
        called = _as_kineto(set(said))
        names = np.fromiter((self._number(called[text]) for text in said), np.int32, len(said))
        category = np.full(len(names), CODES["user_annotation"], np.uint8)
        return self._host_part(category, found, names)

    # From a table to columns

    def _numbers(
        self,
        table: str,
        wanted: Mapping[str, Sequence[str]],
        *,
        where: str = "",
        text: str = "",
        into: list[str | None] | None = None,
    ) -> dict[str, Any] | None:
        """Some columns of a table, by the first of their names that it has; -1 for what is not there."""
        has = self._columns.get(table)
        if has is None:
            return None
        if not {"start", "end"} <= has:
            self._notes.append(f"{table} was passed over: it does not say when things began and ended")
            return None
        chosen = {"start": "start", "end": "end"}
        for field, names in wanted.items():
            name = next((name for name in names if name in has), None)
            if name is not None:
                chosen[field] = name
            else:
                self._notes.append(f"this export has no {names[0]} in {table}")
        query = ", ".join(f'CAST(IFNULL("{name}", -1) AS INTEGER)' for name in chosen.values())
        if text in has and into is not None:
            query += f', CAST("{text}" AS TEXT)'
        # Every name in it is one of ours.
        condition = f" WHERE {where}" if where else ""
        cursor = self._database.execute(f'SELECT {query} FROM "{table}"{condition}')  # noqa: S608
        pieces: dict[str, list[Any]] = {field: [] for field in chosen}
        count = 0
        while rows := cursor.fetchmany(_ROWS):
            count += len(rows)
            columns = list(zip(*rows, strict=True))
            for field, values in zip(chosen, columns, strict=False):
                pieces[field].append(np.array(values, np.int64))
            if into is not None:
                into += columns[-1] if text in has else [None] * len(rows)
        found = {field: np.concatenate(values or [np.empty(0, np.int64)]) for field, values in pieces.items()}
        return {field: found.get(field, np.full(count, -1, np.int64)) for field in ("start", "end", *wanted)}

    def _device_part(self, category: str, found: dict[str, Any], names: Any) -> dict[str, Any]:
        count = len(names)
        keys = (found["device"] & 0xFFFF) << 32 | found["stream"] & 0xFFFFFFFF
        return {
            "category": np.full(count, CODES[category], np.uint8),
            "name": names,
            "thread": self._by_key(keys, lambda key: (key >> 32, key & 0xFFFFFFFF), self._thread),
            "process": np.where(found["process"] >= 0, _process(found["process"]), -1),
            "bytes": found.get("bytes", np.full(count, -1, np.int64)),
            **{field: found[field] for field in ("start", "end", "device", "stream", "correlation")},
        }

    def _host_part(self, category: Any, found: dict[str, Any], names: Any) -> dict[str, Any]:
        nothing = np.full(len(names), -1, np.int64)

        def both(thread: int) -> tuple[int, int]:
            return (thread >> 24 & 0xFFFFFF, thread & 0xFFFFFF) if thread >= 0 else (0, 0)

        return {
            "category": category,
            "name": names,
            "thread": self._by_key(found["thread"], both, self._thread),
            "process": np.where(found["thread"] >= 0, _process(found["thread"]), -1),
            "bytes": nothing,
            "start": found["start"],
            "end": found["end"],
            "device": nothing,
            "stream": nothing,
            "correlation": found.get("correlation", nothing),
        }

    def _by_string(self, numbers: Any, nameless: str, change: Callable[[str], str] = str) -> Any:
        return self._by_key(numbers, lambda number: change(self._strings.get(number) or nameless))

    def _by_key(
        self, keys: Any, called: Callable[[int], Any], number: Callable[[Any], int] | None = None
    ) -> Any:
        """A number for what each key stands for, each of which is worked out once."""
        some, places = np.unique(keys, return_inverse=True)
        numbers = [(number or self._number)(called(key)) for key in some.tolist()]
        return np.array(numbers, np.int32)[places.reshape(-1)] if numbers else np.empty(0, np.int32)

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _thread(self, thread: tuple[Any, Any]) -> int:
        return self._threads.setdefault(thread, len(self._threads))

    # What is the same for all rows

    def _of_one_process(self, parts: list[dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """Keeps one process's rows: the steps of several ranks in one file would count as one rank's."""
        busy: dict[int, int] = {}
        for part in parts:
            on_device = part["device"] >= 0
            for process in np.unique(part["process"][on_device]):
                mine = on_device & (part["process"] == process)
                taken = int((part["end"][mine] - part["start"][mine]).sum())
                busy[int(process)] = busy.get(int(process), 0) + taken
        if len(busy) < 2:
            return lambda part: part
        chosen = max(busy, key=busy.__getitem__)
        self._notes.append(
            f"{len(busy)} processes used a GPU: this is process {chosen}, which kept it busiest"
        )
        return lambda part: {name: column[part["process"] == chosen] for name, column in part.items()}

    def _device_name(self, whole: dict[str, Any]) -> str | None:
        if not {"id", "name"} <= self._columns.get("TARGET_INFO_GPU", set()):
            return None
        names = dict(self._database.execute("SELECT id, name FROM TARGET_INFO_GPU"))
        used = whole["device"][whole["device"] >= 0]
        if not names or not len(used):
            return None
        device = int(np.bincount(_small(used) & 0xFFFF).argmax())
        if {"cudaId", "gpuId"} <= self._columns.get("TARGET_INFO_CUDA_DEVICE", set()):
            places = dict(self._database.execute("SELECT cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE"))
            device = places.get(device, device)
        name = names.get(device) or next(iter(names.values()))
        return str(name) if name else None

    def _memory(self) -> dict[int, str]:
        if {"id", "label"} <= self._columns.get("ENUM_CUDA_MEM_KIND", set()):
            found = dict(self._database.execute("SELECT id, label FROM ENUM_CUDA_MEM_KIND"))
            return {**_MEMORY, **{number: str(label) for number, label in found.items() if label}}
        return _MEMORY

    def _columns_of(self, table: str) -> set[str]:
        quoted = table.replace('"', '""')
        return {str(row[1]) for row in self._database.execute(f'PRAGMA table_info("{quoted}")')}


def _as_kineto(ranges: Iterable[str]) -> dict[str, str]:
    """What ranges are called in a trace of torch.profiler; its own marks of steps go before ours."""
    ranges = set(ranges)
    marked = any(name.startswith("ProfilerStep#") for name in ranges)
    return {
        name: _OWN_RANGES.get(name, name)
        if marked
        else _STEP.sub(r"ProfilerStep#\1", _OWN_RANGES.get(name, name))
        for name in ranges
    }


def _in_time(part: dict[str, Any]) -> dict[str, Any]:
    """Without what began before the recording did, or beyond all time."""
    some = (part["start"] >= 0) & (part["start"] < _LATEST) & (part["end"] < _LATEST)
    return part if some.all() else {name: column[some] for name, column in part.items()}


def _process(numbers: Any) -> Any:
    """Of a process or thread by nsys's number, the process by the system's."""
    return numbers >> 24 & 0xFFFFFF


def _small(values: Any) -> Any:
    return np.clip(values, -1, np.iinfo(np.int32).max).astype(np.int32)
