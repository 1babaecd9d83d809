"""What recorded steps add to a profile: the device's work, waits with their lines, memory over time."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.memory_timeline import memory_timeline
from flatout.analyze.profile import Peaks
from flatout.analyze.recorded import (
    line_uses,
    read_recordings,
    recordings,
    waterfall,
    with_lines,
    with_recordings,
)
from flatout.analyze.typical import typical_mfu
from flatout.records.profile import LineUse
from flatout.records.step import Share, StepTimes
from flatout.records.trace import KernelUse, SyncPoint, TraceSummary
from tests.profiles import profile

STEP = StepTimes(p50=20.0, p95=21.0, mean=20.0, low=19.9, high=20.1, clock="device")
KERNEL = KernelUse(name="gemm", kind="matmul", calls=1, ms=6.0, mean_us=6000.0, share=1.0)


def summary(**parts: float) -> TraceSummary:
    whole = sum(parts.values())
    return TraceSummary(
        files=("a",),
        events=10,
        steps=3,
        step_ms=STEP,
        device_name="a GPU",
        busy_share=0.5,
        waterfall=tuple(Share(part=part, ms=ms, share=ms / whole) for part, ms in parts.items()),
        kernels=(KERNEL,) if "matmul" in parts else (),
        operators=(),
        syncs=(),
        tensor_core_share=None,
        kernels_per_step=1.0,
    )


def test_what_follows_a_wait_stays_as_recorded_where_the_profiler_lengthened_little() -> None:
    recorded = summary(matmul=8.0, launch_gap=4.0, sync_stall=10.5)
    parts = {share.part: share.ms for share in waterfall((), recorded, STEP)}
    assert parts["sync_stall"] == pytest.approx(10.5)
    assert parts["launch_gap"] == pytest.approx(1.5)


def test_the_device_works_as_recorded_and_idles_for_the_rest_of_the_timed_step() -> None:
    # Under the profiler the host was so slow that the step took 50 ms.
    recorded = summary(matmul=6.0, memory_bound=2.0, launch_gap=30.0, sync_stall=10.0, input_wait=2.0)
    taps = (Share(part="input_wait", ms=4.0, share=0.2), Share(part="unattributed", ms=16.0, share=0.8))
    parts = {share.part: share.ms for share in waterfall(taps, recorded, STEP)}
    assert parts["matmul"] == pytest.approx(6.0)
    assert parts["memory_bound"] == pytest.approx(2.0)
    assert parts["input_wait"] == pytest.approx(4.0)
    # The rest of 20 ms, as the recording divides it.
    assert parts["launch_gap"] == pytest.approx(8.0 * 0.75)
    assert parts["sync_stall"] == pytest.approx(8.0 * 0.25)
    assert sum(parts.values()) == pytest.approx(STEP.mean)


def test_a_device_that_is_never_idle_has_no_gaps() -> None:
    recorded = summary(matmul=30.0, memory_bound=10.0)
    parts = {share.part: share.ms for share in waterfall((), recorded, STEP)}
    assert parts == {"matmul": pytest.approx(15.0), "memory_bound": pytest.approx(5.0)}


def test_without_a_kernel_the_taps_know_better() -> None:
    taps = (Share(part="host_compute", ms=20.0, share=1.0),)
    assert waterfall(taps, summary(host_compute=10.0, optimizer=5.0), STEP) == taps


def sync(operator: str = "", call: str = "cudaStreamSynchronize", where: str | None = None) -> SyncPoint:
    return SyncPoint(call=call, operator=operator, where=where, count=3.0, host_ms=9.0, stall_ms=6.0)


def line(operator: str, number: int, calls: int) -> LineUse:
    return LineUse(operator=operator, file="train.py", line=number, function="main", calls=calls)


def test_a_wait_is_given_to_the_lines_that_call_it_by_how_often_they_do() -> None:
    lines = [line("aten::_local_scalar_dense", 10, 2), line("aten::_local_scalar_dense", 20, 1)]
    found = with_lines([sync("aten::_local_scalar_dense")], [*lines, line("aten::mm", 5, 100)])
    assert [(one.where, one.count, one.stall_ms) for one in found] == [
        ("train.py:10 in main", pytest.approx(2.0), pytest.approx(4.0)),
        ("train.py:20 in main", pytest.approx(1.0), pytest.approx(2.0)),
    ]


def test_a_wait_that_nobody_called_stays_as_it_is() -> None:
    assert with_lines([sync("aten::linear")], [line("aten::mm", 5, 1)])[0].where is None
    known = with_lines([sync("aten::item", where="a.py:1 in f")], [line("aten::_local_scalar_dense", 5, 1)])
    assert known[0].where == "a.py:1 in f"
    # A wait inside of an operator is no call of `torch.cuda.synchronize()`.
    inside = with_lines(
        [sync("aten::nonzero")], [line("cuda::stream_synchronize", 7, 1), line("aten::nonzero", 8, 1)]
    )
    assert [one.where for one in inside] == ["train.py:8 in main"]
    outside = with_lines([sync(call="cudaDeviceSynchronize")], [line("cuda::synchronize", 9, 1)])
    assert [one.where for one in outside] == ["train.py:9 in main"]


def test_lines_come_with_the_busiest_first() -> None:
    rows = [["aten::add", "a.py", 1, "f", 2], ["aten::mm", "a.py", 2, "f", 9]]
    assert [one.operator for one in line_uses({"lines": rows})] == ["aten::mm", "aten::add"]
    assert line_uses({}) == ()


def recorded_memory(folder: Path, events: list[dict[str, Any]]) -> None:
    place = folder / "ranks" / "0-1"
    place.mkdir(parents=True)
    with gzip.open(place / "rank0-details.pt.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)


def allocation(ms: float, size: int, kind: int = 1) -> dict[str, Any]:
    about = {"Total Allocated": size, "Device Type": kind, "Bytes": 1}
    return {"ph": "i", "name": "[memory]", "ts": 1000 * ms, "args": about}


def test_memory_over_time_keeps_its_peaks(tmp_path: Path) -> None:
    events = [allocation(1.0 + place / 100, place) for place in range(5000)]
    events[2345] = allocation(1.0 + 23.45, 10**9)
    events.append(allocation(3.0, 7, kind=0))
    events.append({"ph": "X", "name": "aten::mm", "ts": 5, "dur": 1})
    recorded_memory(tmp_path, events)
    points = memory_timeline(tmp_path, on_gpu=True)
    assert 100 < len(points) <= 250
    assert max(point.allocated_bytes for point in points) == 10**9
    assert points[0].ms == 0
    assert [point.allocated_bytes for point in memory_timeline(tmp_path, on_gpu=False)] == [7]


def test_a_recording_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_recordings(tmp_path, ()) == (None, "no step was recorded")
    assert memory_timeline(tmp_path, on_gpu=True) == ()
    place = tmp_path / "ranks" / "0-1"
    place.mkdir(parents=True)
    (place / "rank0.pt.trace.json.gz").write_bytes(b"nothing of the kind")
    (place / "rank0-details.pt.trace.json.gz").write_bytes(b"\x1f\x8bnothing")
    assert [path.name for path in recordings(tmp_path)] == ["rank0.pt.trace.json.gz"]
    found, reason = read_recordings(tmp_path, ())
    assert found is None
    assert "could not be read" in reason
    assert memory_timeline(tmp_path, on_gpu=True) == ()


def test_a_gpu_whose_counters_cannot_be_read_is_marked(tmp_path: Path) -> None:
    place = tmp_path / "ranks" / "0-1"
    place.mkdir(parents=True)
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#1",
            "ts": 0,
            "dur": 100,
            "pid": 1,
            "tid": 1,
        },
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 50, "pid": 1, "tid": 1},
    ]
    with gzip.open(place / "rank0.pt.trace.json.gz", "wt") as file:
        json.dump({"traceEvents": events}, file)
    written = profile(waterfall=(Share(part="unattributed", ms=22.9, share=1.0),))
    found = with_recordings(written, tmp_path, {"device": "cuda:0"}, Peaks())
    assert found.trace is not None
    assert "CUPTI is busy or denied" in found.trace.notes[-1]
    assert found.waterfall == written.waterfall
    on_cpu = with_recordings(written, tmp_path, {"device": "cpu"}, Peaks())
    assert on_cpu.trace is not None
    assert not any("CUPTI" in note for note in on_cpu.trace.notes)


@pytest.mark.parametrize(
    ("operators", "is_known"),
    [
        (("aten._softmax", "aten.mm"), True),
        (("aten._scaled_dot_product_flash_attention",), True),
        (("aten.convolution", "aten._softmax"), False),
        (("aten.mm",), False),
        ((), False),
    ],
)
def test_a_yardstick_only_where_there_is_one(operators: tuple[str, ...], is_known: bool) -> None:
    assert bool(typical_mfu(operators)) == is_known
