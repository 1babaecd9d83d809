"""Steps of a trace: whose work is whose where the host runs ahead, and marks and lengths that cannot be."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.analyze.test_trace_summary import ADD, MATMUL, Trace, parts


def launched(
    trace: Trace, name: str, at: float, start: float, length: float, *, call: str = "cudaLaunchKernel"
) -> None:
    """A kernel, and the call that launched it some time before."""
    number = 1000 + len(trace.events)
    trace.add("cuda_runtime", call, at, 0.005, args={"correlation": number})
    where = {"device": 0, "stream": 7, "correlation": number}
    trace.add("kernel", name, start, length, pid=0, tid=7, args=where)


def running_ahead(
    trace: Trace, *, steps: int = 3, before: int = 0, kernels: int = 10, without: int | None = None
) -> None:
    """The host launches a step in 3 ms; its kernels take 40, one after another. One may launch nothing."""
    free_at = 100.0
    for step in range(-before, steps):
        at = 100.0 + 3 * step
        if step >= 0:
            trace.add("user_annotation", f"ProfilerStep#{step}", at, 3.0)
        for number in range(kernels if step != without else 0):
            call = at + 0.25 * number
            free_at = max(free_at, call + 0.01)
            launched(trace, MATMUL if number % 2 else ADD, call, free_at, 4.0)
            free_at += 4.0
    # Whoever ends the recording waits for the device.
    trace.add("cuda_runtime", "cudaDeviceSynchronize", 100.0 + 3 * steps + 0.5, free_at - 100)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_where_the_host_runs_ahead_work_belongs_to_the_step_that_launched_it(
    before: int, tmp_path: Path
) -> None:
    trace = Trace()
    running_ahead(trace, before=before)
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert (found.step_ms.p50, found.step_ms.clock) == (pytest.approx(40.0, rel=0.01), "device")
    assert found.kernels_per_step == 10
    assert {one.name: (one.calls, one.ms) for one in found.kernels} == dict.fromkeys(
        (ADD, MATMUL), (5.0, pytest.approx(20.0))
    )
    assert {part: value.expected for part, value in parts(found).items() if value.expected > 0.1} == {
        "matmul": pytest.approx(20.0), "memory_bound": pytest.approx(20.0),
    }  # fmt: skip
    assert sum(share.share for share in found.waterfall) == pytest.approx(1.0)
    assert found.busy_share == pytest.approx(1.0, abs=0.01)
    assert found.syncs == ()  # the one at the end is the recording's own
    assert any("the host runs ahead of the device" in note for note in found.notes)


@pytest.mark.parametrize("before", [1, 2, 4])
def test_work_whose_launch_came_before_the_recording_is_no_step_s_work(before: int, tmp_path: Path) -> None:
    """A profiler leaves out calls from before its window, and keeps what they launched that runs in it."""
    trace = Trace()
    running_ahead(trace, before=before)
    trace.events = [one for one in trace.events if one["cat"] != "cuda_runtime" or one["ts"] >= 100.0]
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert found.step_ms.p50 == pytest.approx(40.0, rel=0.01)
    assert found.busy_share == pytest.approx(1.0, abs=0.01)
    assert found.kernels_per_step == 10


def test_a_copy_beside_the_steps_does_not_end_them(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        at = 10.0 * step
        trace.add("user_annotation", f"ProfilerStep#{step}", at, 10.0)
        launched(trace, MATMUL, at + 0.1, at + 0.2, 9.7)
    number = 5000
    trace.add("cuda_runtime", "cudaMemcpyAsync", 2.0, 0.01, args={"correlation": number})
    where = {"device": 0, "stream": 20, "correlation": number}
    trace.add("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 2.1, 26.0, pid=0, tid=20, args=where)
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert (found.step_ms.p50, found.step_ms.p95) == (pytest.approx(10.0), pytest.approx(10.0))


def test_a_kernel_on_a_stream_of_its_own_does_not_end_the_steps_beside_it(tmp_path: Path) -> None:
    trace = Trace()
    running_ahead(trace, steps=5)
    trace.add("cuda_runtime", "cudaLaunchKernel", 101.0, 0.01, args={"correlation": 9000})
    where = {"device": 0, "stream": 20, "correlation": 9000}
    trace.add("kernel", "an_average_of_weights", 105.0, 100.0, pid=0, tid=20, args=where)
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert (found.step_ms.p50, found.step_ms.clock) == (pytest.approx(40.0, rel=0.01), "device")
    assert sum(share.ms for share in found.waterfall) == pytest.approx(40.0, rel=0.01)


def test_a_mark_that_launched_nothing_is_no_step(tmp_path: Path) -> None:
    trace = Trace()
    running_ahead(trace, steps=5, without=3)
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert (found.step_ms.mean, found.step_ms.clock) == (pytest.approx(40.0, rel=0.01), "device")
    assert (found.steps, found.kernels_per_step) == (4, 10)


def test_a_host_that_is_slower_than_its_device_is_on_its_own_clock(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        at = 10.0 * step
        trace.add("user_annotation", f"ProfilerStep#{step}", at, 10.0)
        for number in range(10):
            launched(trace, MATMUL, at + number, at + number + 0.01, 0.4)
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert (found.step_ms.p50, found.step_ms.clock) == (pytest.approx(10.0), "host")
    assert parts(found) == {"matmul": pytest.approx(4.0), "launch_gap": pytest.approx(6.0)}
    assert not any("runs ahead" in note for note in found.notes)


def test_a_step_that_waits_for_the_device_catches_up(tmp_path: Path) -> None:
    """Two steps are launched ahead; the third waits, and from then on host and device go together."""
    trace = Trace()
    for step, (at, length) in enumerate(((0.0, 1.0), (1.0, 1.0), (2.0, 28.0))):
        trace.add("user_annotation", f"ProfilerStep#{step}", at, length)
        launched(trace, MATMUL, at + 0.1, max(0.2, 10.0 * step), 10.0 - (0.2 if not step else 0.0))
    trace.add("cuda_runtime", "cudaStreamSynchronize", 2.5, 27.45)
    found = trace.summary(tmp_path)
    assert found.step_ms is not None
    assert found.step_ms.mean == pytest.approx(10.0)
    assert parts(found)["matmul"] == pytest.approx(10.0, abs=0.1)
    assert found.syncs[0].host_ms == pytest.approx(27.45 / 3)


def test_kernels_without_a_call_go_with_what_ran_before_them(tmp_path: Path) -> None:
    trace = Trace()
    running_ahead(trace, before=1)
    calls = [one for one in trace.events if one["name"] == "cudaLaunchKernel"]
    for one in calls[1::3]:
        trace.events.remove(one)
    found = trace.summary(tmp_path)
    assert found.kernels_per_step == pytest.approx(10, abs=0.7)
    assert found.step_ms is not None
    assert found.step_ms.mean == pytest.approx(40.0, rel=0.08)


def test_a_graph_whose_kernels_are_missing_is_not_called_idle(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        at = 10.0 * step
        trace.add("user_annotation", f"ProfilerStep#{step}", at, 10.0)
        trace.add("cuda_runtime", "cudaGraphLaunch", at + 0.1, 0.1, args={"correlation": 50 + step})
        launched(trace, ADD, at + 0.3, at + 0.31, 0.02)
        trace.add("cuda_runtime", "cudaStreamSynchronize", at + 0.4, 9.5)
    found = trace.summary(tmp_path)
    assert found.busy_share is None
    assert "incomplete" in found.unknown["busy_share"]
    assert parts(found) == {"memory_bound": pytest.approx(0.02), "unattributed": pytest.approx(9.98)}
    assert any("3 launches without any" in note for note in found.notes)


def test_where_a_graph_is_all_that_was_launched_and_no_kernel_is_there_the_host_s_parts_stay(
    tmp_path: Path,
) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0.0, 10.0)
    trace.add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.0, 2.0)
    trace.add("cpu_op", "aten::mm", 3.0, 4.0)
    trace.add("cuda_runtime", "cudaGraphLaunch", 8.0, 0.1, args={"correlation": 50})
    found = parts(trace.summary(tmp_path))
    assert found["input_wait"] == pytest.approx(2.0)
    assert sum(value.expected for value in found.values()) == pytest.approx(10.0)


def test_a_graph_with_its_kernels_is_complete(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0.0, 10.0)
    trace.add("cuda_runtime", "cudaGraphLaunch", 0.1, 0.1, args={"correlation": 50})
    for number in range(4):
        where = {"device": 0, "stream": 7, "correlation": 50, "graph id": 1}
        trace.add("kernel", MATMUL, 1.0 + 2 * number, 2.0, pid=0, tid=7, args=where)
    found = trace.summary(tmp_path)
    assert found.busy_share == pytest.approx(0.8)
    assert parts(found) == {"matmul": 8.0, "launch_gap": 2.0}


BAD: list[dict[str, Any]] = [{"ts": None}, {"ts": -5.0}, {"ts": "x"}, {"dur": None}, {"dur": -1.0}]


@pytest.mark.parametrize("bad", BAD)
def test_a_mark_that_cannot_be_is_no_step(bad: dict[str, Any], tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        trace.add("user_annotation", f"ProfilerStep#{step}", 10.0 * step, 10.0)
        launched(trace, MATMUL, 10.0 * step + 1, 10.0 * step + 2, 4.0)
    extra = {**trace.events[0], "name": "ProfilerStep#3", "ts": 30000.0, **bad}
    trace.events.append({key: value for key, value in extra.items() if value is not None})
    found = trace.summary(tmp_path)
    assert (found.steps, parts(found)) == (3, {"matmul": 4.0, "launch_gap": 6.0})


def test_steps_that_two_threads_mark_count_once(tmp_path: Path) -> None:
    trace = Trace()
    for step in range(3):
        for thread in (1, 2):
            trace.add("user_annotation", f"ProfilerStep#{step}", 10.0 * step, 10.0, tid=thread)
        launched(trace, MATMUL, 10.0 * step + 1, 10.0 * step + 2, 4.0)
    found = trace.summary(tmp_path)
    assert (found.steps, parts(found)) == (3, {"matmul": 4.0, "launch_gap": 6.0})


@pytest.mark.parametrize("far", [{"dur": 4.0e15}, {"dur": 8.9e15}, {"ts": 8.9e15}])
def test_a_kernel_that_cannot_be_so_long_or_so_late_counts_nowhere(
    far: dict[str, Any], tmp_path: Path
) -> None:
    trace = Trace()
    for step in range(3):
        trace.add("user_annotation", f"ProfilerStep#{step}", 10.0 * step, 10.0)
        launched(trace, MATMUL, 10.0 * step + 1, 10.0 * step + 2, 4.0)
    launched(trace, ADD, 5.0, 6.5, 1.0)
    trace.events[-1] |= far
    found = trace.summary(tmp_path)
    assert parts(found) == {"matmul": 4.0, "launch_gap": 6.0}
    assert [one.name for one in found.kernels] == [MATMUL]
