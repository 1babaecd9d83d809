"""An imagined job as torch's own snapshots have it: torch's own tools must read it, and its viewer could."""

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.memory.allocator import MIB
from flatout.memory.replaying import replay
from flatout.memory.snapshot import snapshot, write_snapshot
from flatout.records.ledger import LedgerFile

pytest.importorskip("torch")

from torch.cuda import _memory_viz as torchs

# What the viewer's own reader of pickles knows (`unpickle` in torch/utils/viz/MemoryViz.js).
READABLE = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NEWTRUE", "NEWFALSE", "NONE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"),
}
MAIN, FORWARD = ("/home/me/train.py", 9, "main"), ("/home/me/model.py", 4, "Model.forward")


def ledger(*events: list[int], **owners: list[int]) -> LedgerFile:
    return LedgerFile(
        events=list(events),
        places=[(*MAIN, ""), (*FORWARD, "aten::mm")],
        stacks=[[0], [0, 1]],
        frames=[MAIN, FORWARD],
        owners=owners,
        updates=1,
    )


LEDGER = ledger(
    [1, 30 * MIB, 0],
    [2, 700, 1],
    [3, 16 * MIB + 5, 1],
    [2],
    [4, 100, 1],
    [5, 40 * MIB, 1],  # the peak
    [5],
    [-1],
    parameters=[1],
)


def taken(found: LedgerFile) -> dict[str, Any]:
    return snapshot(found, replay(found).peak_event)


def test_its_state_is_that_of_the_peak() -> None:
    found, replayed = taken(LEDGER), replay(LEDGER)
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    held = [block for block in blocks if block["state"] == "active_allocated"]
    assert sum(segment["total_size"] for segment in found["segments"]) == replayed.reserved_bytes
    assert sum(block["size"] for block in held) == replayed.allocated_bytes
    assert sorted(block["requested_size"] for block in held) == [100, 16 * MIB + 5, 30 * MIB, 40 * MIB]
    for segment in found["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
        assert address == segment["address"] + segment["total_size"]


def test_its_history_leads_from_nothing_to_that_state() -> None:
    found = taken(LEDGER)
    [trace] = found["device_traces"]
    held: dict[int, int] = {}
    segments: dict[int, int] = {}
    for entry in trace:
        if entry["action"] == "alloc":
            assert entry["addr"] not in held
            held[entry["addr"]] = entry["size"]
            assert any(start <= entry["addr"] < start + size for start, size in segments.items())
        elif entry["action"] == "free_completed":
            del held[entry["addr"]]
        elif entry["action"] == "segment_alloc":
            segments[entry["addr"]] = entry["size"]
    blocks = [block for segment in found["segments"] for block in segment["blocks"]]
    assert held == {
        one["address"]: one["requested_size"] for one in blocks if one["state"] == "active_allocated"
    }
    assert segments == {segment["address"]: segment["total_size"] for segment in found["segments"]}


def test_requests_know_their_calls_the_innermost_first_and_their_category() -> None:
    [trace] = taken(LEDGER)["device_traces"]
    asked = [entry for entry in trace if entry["action"] == "alloc"]
    assert [frame["name"] for frame in asked[1]["frames"]] == ["aten::mm", "Model.forward", "main"]
    assert [frame["name"] for frame in asked[0]["frames"]] == ["main"]
    assert [entry["category"] for entry in asked[:2]] == ["parameters", "activations"]
    # The viewer fails without it where there are categories.
    assert trace[-1]["category"] == "unknown"


def test_torchs_own_tools_read_it(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    write_snapshot(LEDGER, replay(LEDGER).peak_event, path)
    found = pickle.loads(path.read_bytes())
    assert "total_allocated: 86.0MiB" in torchs.segsum(found)
    assert "cudaMalloc(" in torchs.trace(found)
    flames = torchs.memory(found, format_flamegraph=lambda lines: lines)
    assert f"train.py:9:main;model.py:4:Model.forward;torch:0:aten::mm {40 * MIB}" in flames
    assert "seg_" in torchs.segments(found, format_flamegraph=lambda lines: lines)
    assert torchs.compare([], found["segments"], format_flamegraph=lambda lines: lines)
    for page in (
        torchs.trace_plot(found),
        torchs.segment_plot(found),
        torchs.trace_plot(found, plot_segments=True),
    ):
        assert "snapshot.pickle" in page


def test_the_viewers_reader_knows_every_opcode_and_number(tmp_path: Path) -> None:
    path = tmp_path / "memory.pickle"
    write_snapshot(LEDGER, 5, path)
    for opcode, argument, _ in pickletools.genops(path.read_bytes()):
        assert opcode.name in READABLE
        if opcode.name == "PROTO":
            assert argument <= 4
        if opcode.name == "LONG1":
            assert 0 <= argument < 2**53


def test_of_a_job_that_asked_for_nothing_it_is_empty() -> None:
    found = taken(ledger([-1]))
    assert found["segments"] == []
    assert "segments: 0" in torchs.segsum(found)


sizes = st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 8)), min_size=1, max_size=60)


@settings(max_examples=60)
@given(asked=sizes)
def test_whatever_is_asked_torch_agrees_on_what_is_reserved_and_held(asked: list[tuple[int, int]]) -> None:
    events: list[list[int]] = []
    held: list[int] = []
    for number, (size, drops) in enumerate(asked, start=1):
        events.append([number, size, number % 2])
        held.append(number)
        while drops % 3 and len(held) > drops:
            events.append([held.pop(drops)])
    job = ledger(*events)
    found, replayed = taken(job), replay(job)
    assert sum(segment["allocated_size"] for segment in found["segments"]) == replayed.allocated_bytes
    assert sum(segment["total_size"] for segment in found["segments"]) <= replayed.reserved_bytes
    torchs.segsum(found)
    torchs.trace(found)
