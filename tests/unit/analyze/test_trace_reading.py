"""Traces are read whatever their size and shape: cut anywhere, the same events; broken, a word, no crash."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.analyze.trace import chunks
from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.trace.events import CATEGORIES, Columns
from flatout.analyze.trace.reading import read_trace

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10.5, "dur": 2.25,
          "args": {"correlation": 3, "stream": 7, "device": 0}}  # fmt: skip


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def trace(*events: Any, **more: Any) -> str:
    return json.dumps({"schemaVersion": 1, **more, "traceEvents": list(events), "traceName": "x"}, indent=1)


def shown(found: Columns) -> list[tuple[Any, ...]]:
    """Rows as one would write them down."""
    return [
        (
            CATEGORIES[found.category[row]] if found.category[row] < len(CATEGORIES) else "",
            found.names[found.name[row]],
            found.threads[found.thread[row]],
            int(found.start[row]),
            int(found.length[row]),
            int(found.correlation[row]),
        )
        for row in range(len(found.start))
    ]


def test_a_kernel_and_what_is_passed_over(tmp_path: Path) -> None:
    flow = {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 9, "cat": "ac2g", "name": "ac2g"}
    named = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "args": {"name": "stream 7"}}
    found = read_trace(written(tmp_path / "t.json", trace(KERNEL, flow, named)))
    assert shown(found) == [("kernel", "k", (0, 7), 10_500, 2_250, 3)]
    assert (found.skipped, found.ended) == (0, True)
    assert found.called == {(0, 7): "stream 7"}


@pytest.mark.parametrize(
    "form", ["gzip", "a bare list", "a bare list without its end", "compact", "a comma too many"]
)
def test_every_form_in_which_traces_come(form: str, tmp_path: Path) -> None:
    events = [{**KERNEL, "ts": float(n)} for n in range(50)]
    text = trace(*events)
    if form == "a bare list":
        text = json.dumps(events)
    elif form == "a bare list without its end":
        text = json.dumps(events)[:-1]
    elif form == "compact":
        text = json.dumps({"traceEvents": events}, separators=(",", ":"))
    elif form == "a comma too many":
        text = json.dumps({"traceEvents": events})[:-2] + ",]}"
    data = gzip.compress(text.encode()) if form == "gzip" else text.encode()
    found = read_trace(written(tmp_path / "t.json", data))
    assert [row[3] for row in shown(found)] == [1000 * n for n in range(50)]
    assert found.skipped == 0


NAMES = st.text(alphabet='ab{}[]",: \\\n\té<', max_size=12)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.sampled_from(["X", "X", "X", "i", "s", "M"]),
            "name": NAMES | st.just('}, {"ph": "X", "name'),
            "ts": st.floats(0, 1e12) | st.integers(0, 10**9),
            "dur": st.none() | st.floats(-5, 1e6),
            "pid": st.integers(0, 9) | NAMES,
            "tid": st.integers(0, 9),
            "args": st.fixed_dictionaries(
                {"list": st.lists(st.fixed_dictionaries({"name": NAMES}), max_size=3)}
            ),
        }
    ),
    min_size=1,
    max_size=30,
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS, cut=st.integers(1, 300), indent=st.none() | st.integers(0, 2), packed=st.booleans())
def test_cut_anywhere_the_events_are_the_same(
    events: list[dict[str, Any]], cut: int, indent: int | None, packed: bool, tmp_path: Path
) -> None:
    complete = [event for event in events if event["ph"] == "X"]
    text = json.dumps({"traceEvents": events, "more": [{"name": "x"}, {"name": "y"}]}, indent=indent).encode()
    path = written(tmp_path / "t.json", gzip.compress(text) if packed else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", cut)
        if not complete:
            with pytest.raises(NotATrace):
                read_trace(path)
            return
        found = read_trace(path)
    assert [found.names[number] for number in found.name] == [event["name"] for event in complete]
    assert [found.threads[number] for number in found.thread] == [
        (one["pid"], one["tid"]) for one in complete
    ]
    assert found.start.tolist() == pytest.approx([1000 * one["ts"] for one in complete], abs=0.5, rel=1e-12)
    for length, event in zip(found.length, complete, strict=True):
        if event["dur"] is None or event["dur"] < 0:
            assert length == -1  # not zero: it is not known
        else:
            assert length == pytest.approx(1000 * event["dur"], abs=0.5)
    assert found.skipped == 0


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(end=st.integers(0, 400), cut=st.integers(20, 200))
def test_cut_off_anywhere_whole_events_are_read(end: int, cut: int, tmp_path: Path) -> None:
    text = trace(*({**KERNEL, "ts": n} for n in range(2))).encode()[:end]
    path = written(tmp_path / "t.json", text)
    whole = text.decode(errors="ignore").count('"device": 0\n   }\n  }')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", cut)
        if not whole:
            with pytest.raises(NotATrace):
                read_trace(path)
            return
        found = read_trace(path)
    assert len(found.start) == whole


@pytest.mark.parametrize(
    "bad",
    [
        b'{"ph": "X", "name": "a\x01b", "ts": 1, "dur": 1}',
        b'{"ph": "X", "name": "\xff\xfe", "ts": 1, "dur": 1}',
        b'{"ph": "X", "name": "x", "ts": 1, "dur": 1,}',
        b'{"ph": "X", "name": 7, "ts": 1, "dur": 1}',
        b'{"ph": "X", "name": "x", "dur": 1}',
        b'{"ph": "?", "name": "x", "ts": 1, "dur": 1}',
        b'{"name": "x", "ts": 1, "dur": 1}',
        b'{"ph": "X", "ts": 1, "args": {"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
    ids=["a control character", "bad UTF-8", "a comma too many", "a number for a name", "no beginning",
         "an unknown kind", "no kind", "too deep"],
)  # fmt: skip
def test_a_bad_event_is_counted_and_the_others_are_read(bad: bytes, tmp_path: Path) -> None:
    good = json.dumps(KERNEL).encode()
    path = written(tmp_path / "t.json", b'{"traceEvents": [' + b", ".join([good, bad, good]) + b"]}")
    found = read_trace(path)
    assert len(found.start) == 2
    assert found.skipped == 1
    assert found.first_skip is not None
    assert path.read_bytes()[found.first_skip[0] :].startswith(bad[:20])


@pytest.mark.parametrize("number", ["1e400", "9" * 100_000, '"soon"', "-1", "1e18"])
@pytest.mark.parametrize("field", ["ts", "dur", "correlation"])
def test_numbers_that_are_none_are_unknown(number: str, field: str, tmp_path: Path) -> None:
    one = json.dumps(KERNEL).replace(f'"{field}": {json.dumps(KERNEL.get(field, 3))}', f'"{field}": {number}')
    found = read_trace(
        written(tmp_path / "t.json", '{"traceEvents": [' + json.dumps(KERNEL) + ", " + one + "]}")
    )
    assert len(found.start) + found.skipped == 2
    if not found.skipped:
        column = {"ts": found.start, "dur": found.length, "correlation": found.correlation}[field]
        assert column[1] == -1 or (field == "correlation" and number == "1e18")


@pytest.mark.parametrize(
    "content",
    [b"", b"   ", b"null", b"{}", b'{"traceEvents": []}', b"PK\x03\x04", b"\x1f\x8b\x08garbage", b"[1, 2]"],
)
def test_what_is_no_trace_is_an_error_with_the_files_name(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match=r"t\.json"):
        read_trace(written(tmp_path / "t.json", content))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match="No such file"):
        read_trace(tmp_path / "gone.json")


def test_a_bomb_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "LARGEST_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1 << 18)
    bomb = b'{"traceEvents": [{"ph": "X", "name": "' + b"a" * (8 << 20) + b'", "ts": 1}]}'
    for data in (gzip.compress(bomb), bomb):
        with pytest.raises(NotATrace, match="no event ends"):
            read_trace(written(tmp_path / "t.json", data))


def test_a_compressed_trace_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    from flatout.analyze.trace.summary import summarize

    text = trace(*({**KERNEL, "ts": n, "name": f"k{n * 7919}"} for n in range(5000)), deviceProperties=[])
    whole = gzip.compress(text.encode())
    path = written(tmp_path / "t.json.gz", whole[: len(whole) // 2])
    found = summarize([path])
    assert 1000 < found.events < 5000
    assert "the file is cut off: what is left of it was read" in found.notes
    assert chunks.head_of(path).startswith(b'{\n "schemaVersion"')


def test_workers_do_not_outlive_a_reader_that_is_killed(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", trace(KERNEL))
    code = (
        "import multiprocessing, sys, time\nfrom pathlib import Path\n"
        "from flatout.analyze.trace import reading\n"
        "found = reading._decoded(Path(sys.argv[1]), 2)\nnext(found)\n"
        "print(*(one.pid for one in multiprocessing.active_children()), flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in reader.stdout.readline().split()]
        reader.kill()
    assert workers
    assert not psutil.wait_procs(workers, timeout=60)[1]


def test_several_processes_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.analyze.trace import reading

    path = written(
        tmp_path / "t.json", trace(*({**KERNEL, "ts": n, "name": f"k{n % 7}"} for n in range(3000)))
    )
    alone = read_trace(path, processes=1)
    monkeypatch.setattr(reading, "_SMALL_BYTES", 0)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 20_000)
    assert shown(read_trace(path, processes=2)) == shown(alone)
    assert math.isclose(alone.start.sum(), 1000 * sum(range(3000)))
