"""Exports of nsys: what they say is what a Kineto trace of the same run says; broken ones get a word."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.trace.nsys import read_nsys
from flatout.analyze.trace.reading import read_trace
from flatout.analyze.trace.summary import summarize
from flatout.records.trace import TraceSummary
from tests.fakes.nsight_systems import MARK, START_END, Export

MATMUL = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class Run:
    """One run, written down twice: as Kineto would, and as nsys."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.export = Export()
        self._number = 0

    def _event(self, cat: str, name: str, start: float, length: float, **args: Any) -> None:
        event = {"ph": "X", "cat": cat, "name": name, "ts": 1000 * start, "dur": 1000 * length, "args": args}
        self.events.append({**event, "pid": 1, "tid": 1})

    def kernel(self, name: str, start: float, length: float, *, stream: int = 7, device: int = 0) -> None:
        self._number += 1
        self.call("cudaLaunchKernel", max(0.0, start - 0.15), 0.01, correlation=self._number)
        where = {"device": device, "stream": stream, "correlation": self._number}
        self._event("kernel", name, start, length, **where)
        cells = {"deviceId": device, "streamId": stream, "correlationId": self._number}
        self.export.kernel(name, start, length, **cells)

    def call(self, name: str, start: float, length: float, correlation: int = -1) -> None:
        driver = name.startswith("cu") and not name.startswith("cuda")
        self._event("cuda_driver" if driver else "cuda_runtime", name, start, length, correlation=correlation)
        self.export.call(name if driver else f"{name}_v7000", start, length, correlationId=correlation)

    def copy(self, start: float, length: float) -> None:
        self._event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, length, device=0, stream=9)
        kinds = {"copyKind": 1, "srcKind": 1, "dstKind": 2, "bytes": 4096}
        self.export.on_device("MEMCPY", start, length, streamId=9, **kinds)

    def fill(self, start: float, length: float) -> None:
        self._event("gpu_memset", "Memset (Device)", start, length, device=0, stream=7)
        self.export.on_device("MEMSET", start, length, value=0, bytes=64, memKind=2)

    def step(self, number: int, start: float, length: float) -> None:
        self._event("user_annotation", f"ProfilerStep#{number}", start, length)
        self.export.range(f"step {number}", start, length, eventType=START_END)

    def data(self, start: float, length: float) -> None:
        self._event("user_annotation", LOADER, start, length)
        self.export.range("data", start, length)

    def both(self, folder: Path) -> tuple[TraceSummary, TraceSummary]:
        kineto = folder / "trace.json"
        head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
        kineto.write_text(json.dumps({**head, "traceEvents": self.events}))
        return summarize([kineto]), summarize([self.export.write(folder / "report.sqlite")])


def a_step(run: Run, at: float, number: int) -> None:
    """Ten milliseconds: input, a copy, products, additions, a wait, and gaps between launches."""
    run.step(number, at, 10.0)
    run.data(at, 2.0)
    run.copy(at + 1.9, 0.3)
    run.kernel(MATMUL, at + 2.2, 3.8)
    run.kernel(REDUCE, at + 5.5, 1.0, stream=8)
    run.fill(at + 6.8, 0.1)
    run.kernel(ADD, at + 7.0, 1.0)
    run.call("cudaStreamSynchronize", at + 6.7, 1.31)
    run.call("cuLaunchKernelEx", at + 9.5, 0.1)


def without_files(found: TraceSummary) -> dict[str, Any]:
    return {name: value for name, value in vars(found).items() if name not in ("files", "notes")}


def test_the_same_run_says_the_same_by_either_tool(tmp_path: Path) -> None:
    run = Run()
    for number in range(5):
        a_step(run, 100 + 10 * number, number)
    kineto, nsys = run.both(tmp_path)
    assert without_files(nsys) == without_files(kineto)
    assert nsys.notes == ()
    assert (nsys.device_name, nsys.steps) == ("NVIDIA H200", 5)
    assert {one.part for one in nsys.waterfall} == {
        "input_wait", "host_to_device", "sync_stall", "launch_gap", "matmul", "memory_bound", "communication",
    }  # fmt: skip


MOMENTS = st.integers(0, 300).map(lambda tenths: tenths / 10)
LENGTHS = st.integers(0, 60).map(lambda tenths: tenths / 10)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    happened=st.lists(
        st.tuples(st.sampled_from(["kernel", "copy", "fill", "data", "wait"]), MOMENTS, LENGTHS), max_size=25
    ),
    steps=st.integers(0, 3),
)
def test_whatever_happened_both_readers_agree(
    happened: list[tuple[str, float, float]], steps: int, tmp_path: Path
) -> None:
    run = Run()
    run.kernel(MATMUL, 1.0, 1.0)
    for number in range(steps):
        run.step(number, 10.0 * number, 9.5)
    for what, start, length in happened:
        if what == "kernel":
            run.kernel(ADD if length < 3 else MATMUL, start, length)
        elif what == "wait":
            run.call("cudaDeviceSynchronize", start, length)
        else:
            getattr(run, what)(start, length)
    kineto, nsys = run.both(tmp_path)
    assert nsys.waterfall == kineto.waterfall
    assert set(map(repr, nsys.kernels)) == set(map(repr, kineto.kernels))
    assert nsys.step_ms == kineto.step_ms


def test_both_kinds_of_files_in_one_call(tmp_path: Path) -> None:
    run = Run()
    a_step(run, 100, 1)
    run.both(tmp_path)
    found = summarize([tmp_path / "trace.json", tmp_path / "report.sqlite"])
    assert [one.step_ms for one in found.ranks] == [pytest.approx(10.0)] * 2


def test_steps_that_torch_marked_go_before_ours(tmp_path: Path) -> None:
    export = Export()
    export.kernel(MATMUL, 1, 2)
    export.range("ProfilerStep#3", 0, 5)
    export.range("step 4", 0, 3, eventType=START_END)
    assert summarize([export.write(tmp_path / "r.sqlite")]).steps == 1


def test_texts_by_number_and_ranges_that_never_ended(tmp_path: Path) -> None:
    export = Export()
    export.kernel(MATMUL, 1, 2)
    export.range(None, 0, 4, textId=export.string("step 7"), eventType=START_END)
    export.range("step 8", 4, None, eventType=START_END)
    export.range("flatout", 0, None, eventType=MARK)
    found = summarize([export.write(tmp_path / "r.sqlite")])
    assert (found.steps, found.step_ms.p50 if found.step_ms else None) == (1, pytest.approx(4.0))
    assert not any("no length" in note for note in found.notes)


def test_graphs_as_wholes_are_said_to_be_that(tmp_path: Path) -> None:
    export = Export()
    export.on_device("GRAPH_TRACE", 1, 2, graphId=5, correlationId=1)
    export.on_device("GRAPH_TRACE", 0, 0, graphId=6, correlationId=2)  # its times are not known
    found = summarize([export.write(tmp_path / "r.sqlite")])
    assert [one.name for one in found.kernels] == ["CUDA graph 5"]
    assert any("--cuda-graph-trace=node" in note for note in found.notes)


def test_of_several_processes_the_busiest(tmp_path: Path) -> None:
    export = Export()
    for process, length in ((11, 3.0), (12, 6.0)):
        export.kernel(MATMUL, 1, length, process=process, deviceId=process - 11)
        export.range("step 2", 0, 10, process=process, eventType=START_END)
        export.call("cudaDeviceSynchronize_v3020", 5, 1, process=process)
    found = summarize([export.write(tmp_path / "r.sqlite")])
    assert (found.steps, found.kernels[0].ms) == (1, pytest.approx(6.0))
    assert found.notes[-1] == "2 processes used a GPU: this is process 12, which kept it busiest"


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL.correlationId", "no correlationId in CUPTI_ACTIVITY_KIND_KERNEL"),
        ("CUPTI_ACTIVITY_KIND_KERNEL.globalPid", "no globalPid in CUPTI_ACTIVITY_KIND_KERNEL"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY.srcKind", "no srcKind in CUPTI_ACTIVITY_KIND_MEMCPY"),
        ("CUPTI_ACTIVITY_KIND_MEMCPY.end", "CUPTI_ACTIVITY_KIND_MEMCPY was passed over"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "no calls of the CUDA runtime"),
        ("NVTX_EVENTS", "no NVTX ranges were recorded"),
        ("NVTX_EVENTS.textId", "no textId in NVTX_EVENTS"),
        ("NVTX_EVENTS.eventType", ""),
        ("CUPTI_ACTIVITY_KIND_KERNEL.demangledName", ""),
        ("ENUM_CUDA_MEM_KIND", ""),
        ("TARGET_INFO_CUDA_DEVICE", ""),
        ("TARGET_INFO_GPU", ""),
    ],
)
def test_what_a_version_does_not_have_is_said(without: str, says: str, tmp_path: Path) -> None:
    run = Run()
    a_step(run, 100, 1)
    found = summarize([run.export.write(tmp_path / "r.sqlite", without=[without])])
    assert found.kernels[0].name == MATMUL
    assert any(says in note for note in found.notes) if says else found.notes == ()


def test_an_export_of_the_host_alone(tmp_path: Path) -> None:
    export = Export()
    export.range("step 2", 0, 10)
    export.range("data", 1, 4)
    found = summarize([export.write(tmp_path / "r.sqlite")])
    assert {one.part: one.ms for one in found.waterfall} == {"input_wait": 4.0, "unattributed": 6.0}
    assert found.busy_share is None


def foreign(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE experiments (id INTEGER, loss REAL)")
    database.commit()
    database.close()


def cut_off(path: Path) -> None:
    run = Run()
    for number in range(200):
        a_step(run, 10 * number, number)
    run.export.write(path)
    path.write_bytes(path.read_bytes()[:40_000])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (foreign, "none that nsys exported"),
        (cut_off, "SQLite cannot read it"),
        (lambda path: path.write_bytes(b"SQLite format 3\x00" + b"nonsense" * 40), "SQLite cannot read it"),
        (lambda path: path.write_bytes(b"SQLite format 3\x00"), "SQLite cannot read it"),
        (lambda path: Export().write(path), "nsys recorded no kernel"),
    ],
    ids=["foreign", "cut off", "nonsense", "a head alone", "nothing recorded"],
)
def test_what_is_no_export_is_said(make: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    make(path)
    with pytest.raises(NotATrace, match=says):
        read_trace(path)


@pytest.mark.parametrize("name", ["report.nsys-rep", "my report.qdrep", "kernels.ncu-rep"])
def test_reports_in_their_tools_own_format_say_how_to_export_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"\x00\x01\x02")
    with pytest.raises(NotATrace) as raised:
        summarize([path])
    tool = "ncu --import" if name.startswith("kernels") else "nsys export --type sqlite"
    assert raised.value.remedy.startswith(tool)
    assert name in raised.value.remedy


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(place=st.integers(16, 60_000), junk=st.binary(min_size=1, max_size=64))
def test_damaged_anywhere_it_is_read_or_refused(place: int, junk: bytes, tmp_path: Path) -> None:
    run = Run()
    for number in range(20):
        a_step(run, 10 * number, number)
    data = bytearray(run.export.write(tmp_path / "whole.sqlite").read_bytes())
    place %= len(data) - len(junk)
    data[place : place + len(junk)] = junk
    path = tmp_path / "r.sqlite"
    path.write_bytes(data)
    try:
        found = summarize([path])
    except NotATrace:
        return
    assert found.events > 0


def test_what_is_not_of_the_declared_type_does_no_harm(tmp_path: Path) -> None:
    run = Run()
    a_step(run, 100, 1)
    path = run.export.write(tmp_path / "r.sqlite")
    database = sqlite3.connect(path)
    database.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET deviceId = 'first', bytes = 1e30")
    database.execute("UPDATE NVTX_EVENTS SET text = x'ff00fe', globalTid = NULL WHERE text = 'data'")
    database.commit()
    database.close()
    assert len(read_nsys(path).start)
    assert summarize([path]).steps == 1
