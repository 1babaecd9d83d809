"""Events of a piece, decoded by type and laid out in columns."""

import functools
import operator
from typing import Any

import msgspec
import numpy as np

from flatout.analyze.trace.chunks import Piece, scan

Number = int | float | str | None

# Of everything that Kineto writes, what is read; the rest is passed over.
CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation",
    "python_function", "gpu_user_annotation", "overhead",
)  # fmt: skip
CODES = {name: code for code, name in enumerate(CATEGORIES)}
# Other tools' names for the same.
CODES |= {"Kernel": 0, "Memcpy": 1, "Memset": 2, "Runtime": 3, "operator": 5, "Operator": 5, "hip_runtime": 3}
OTHER = 255
# More nanoseconds than an integer of 64 bits holds.
_LATEST_MICROSECONDS = 9.0e15


_RENAMED = {"external": "External id", "sequence": "Sequence number"}


class Details(msgspec.Struct, gc=False, frozen=True, rename=_RENAMED):
    """Of an event's `args`, what is of use here."""

    correlation: Number = -1
    external: Number = -1
    sequence: Number = -1
    stream: Number = -1
    device: Number = -1
    bytes: Number = -1


_NOTHING = Details()


class Complete(msgspec.Struct, tag_field="ph", tag="X", gc=False):
    """Something with a beginning and a length."""

    ts: Number
    name: str = ""
    cat: str = ""
    pid: Number = 0
    tid: Number = 0
    dur: Number = None
    args: Details = _NOTHING


class Described(msgspec.Struct, gc=False, frozen=True):
    """What a process or thread is called."""

    name: str = ""


_NAMELESS = Described()


class Meta(msgspec.Struct, tag_field="ph", tag="M", gc=False):
    """A name of a process or thread."""

    name: str = ""
    pid: Number = 0
    tid: Number = 0
    args: Described = _NAMELESS


class _Passed(msgspec.Struct, tag_field="ph", gc=False):
    """Flows, counters, instants: known, and of no use here."""


_PASSED = [
    msgspec.defstruct(f"Passed{number}", [], bases=(_Passed,), tag_field="ph", tag=tag, gc=False)
    for number, tag in enumerate("BEiICbnestfPONDVvRc")
]
_Event: Any = functools.reduce(operator.or_, _PASSED, Complete | Meta)
_ALL: "msgspec.json.Decoder[list[Any]]" = msgspec.json.Decoder(list[_Event], strict=True)
_ONE: "msgspec.json.Decoder[Any]" = msgspec.json.Decoder(_Event, strict=True)


class Columns(msgspec.Struct, kw_only=True):
    """Complete events, one row each, in the order of the file; -1 stands for what is not there."""

    # Every name once, and every thread, as its process and its own number.
    names: list[str]
    threads: list[tuple[Any, Any]]
    # Places in `CATEGORIES`, `names` and `threads`.
    category: Any
    name: Any
    thread: Any
    # Nanoseconds.
    start: Any
    length: Any
    correlation: Any
    external: Any
    # What an operator has in common with the one that derives it in a backward pass.
    sequence: Any
    stream: Any
    device: Any
    bytes: Any
    # What threads and processes are called.
    called: dict[tuple[Any, Any], str]
    skipped: int = 0
    # Of the first that was skipped: its place in the file, and why.
    first_skip: tuple[int, str] | None = None
    # How far the piece was read, and whether the list of events ended there.
    upto: int = 0
    ended: bool = False
    # What a reader has to say of its file, and the device where no head names it.
    notes: tuple[str, ...] = ()
    device_name: str | None = None


class CutWrongly(Exception):
    """The piece does not end where an event ends."""


def decode(piece: Piece, *, last: bool) -> Columns:
    """The events of a piece: all at once, and where that fails one by one."""
    data = piece.read()
    text = data.strip()
    if text.endswith(b","):
        try:
            events = _ALL.decode(b"".join((b"[", text[:-1], b"]")))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # a bad event, or a cut in the wrong place
        else:
            found = _columns(events)
            found.upto = piece.end
            return found
    return _one_by_one(piece, data, last=last)


def _one_by_one(piece: Piece, data: bytes, *, last: bool) -> Columns:
    scanned = scan(data)
    if scanned.upto < len(data) and not scanned.ended and not last:
        raise CutWrongly
    events: list[Any] = []
    skipped, first = 0, None
    for start, end in scanned.objects:
        try:
            events.append(_ONE.decode(data[start:end]))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            skipped += 1
            first = first or (piece.start + start, str(error)[:200])
    found = _columns(events)
    found.skipped, found.first_skip = skipped, first
    found.upto, found.ended = piece.start + scanned.upto, scanned.ended
    return found


class _Numbers(dict[Any, int]):
    """A number for each new key."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


def _columns(events: list[Any]) -> Columns:
    rows = [event for event in events if type(event) is Complete]
    names, threads = _Numbers(), _Numbers()
    code = CODES.get

    def column(field: str, dtype: Any = np.int64) -> Any:
        values = map(operator.attrgetter(field), rows)
        try:
            return np.fromiter(values, dtype, len(rows))
        except (TypeError, ValueError, OverflowError):  # text, nothing, or more than fits
            values = map(operator.attrgetter(field), rows)
            return np.fromiter(map(_whole, values), dtype, len(rows))

    pairs = zip(map(operator.attrgetter("pid"), rows), map(operator.attrgetter("tid"), rows), strict=True)
    return Columns(
        category=np.fromiter((code(row.cat, OTHER) for row in rows), np.uint8, len(rows)),
        name=np.fromiter((names[row.name] for row in rows), np.int32, len(rows)),
        thread=np.fromiter((threads[pair] for pair in pairs), np.int32, len(rows)),
        start=_nanoseconds(rows, "ts"),
        length=_nanoseconds(rows, "dur"),
        correlation=column("args.correlation"),
        external=column("args.external"),
        sequence=column("args.sequence", np.int32),
        stream=column("args.stream", np.int32),
        device=column("args.device", np.int32),
        bytes=column("args.bytes"),
        names=list(names),
        threads=list(threads),
        called={
            (event.pid, event.tid if event.name == "thread_name" else None): event.args.name
            for event in events
            if type(event) is Meta and event.name in ("thread_name", "process_name")
        },
    )


def _nanoseconds(rows: list[Any], field: str) -> Any:
    values = map(operator.attrgetter(field), rows)
    try:
        micro = np.fromiter(values, np.float64, len(rows))
    except (TypeError, ValueError, OverflowError):
        values = map(operator.attrgetter(field), rows)
        micro = np.fromiter(map(_number, values), np.float64, len(rows))
    with np.errstate(invalid="ignore"):
        known = (micro >= 0) & (micro < _LATEST_MICROSECONDS)
        return np.where(known, np.rint(micro * 1000), -1).astype(np.int64)


def _number(value: Number) -> float:
    try:
        return float(value) if value is not None else -1.0
    except (TypeError, ValueError, OverflowError):
        return -1.0


def _whole(value: Number) -> int:
    number = _number(value)
    return int(number) if -(2.0**31) < number < 2.0**31 else -1
