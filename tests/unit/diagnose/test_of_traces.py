"""What a trace alone shows: findings from kernels, copies, waits and ranks, and none from too little."""

import json
from pathlib import Path

import pytest

from flatout.analyze.trace.summary import summarize
from flatout.diagnose.of_traces import with_findings
from flatout.records.trace import TraceSummary
from flatout.report.trace_page import trace_page
from tests.unit.analyze.test_trace_summary import ADD, MATMUL, SLOW_MATMUL, Trace, a_step

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
H200 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}


def codes(summary: TraceSummary) -> list[str]:
    return [one.code for one in with_findings(summary).findings]


def steps(trace: Trace, count: int = 3, length: float = 10.0) -> list[float]:
    for number in range(count):
        trace.add("user_annotation", f"ProfilerStep#{number}", length * number, length)
    return [length * number for number in range(count)]


def test_waits_with_their_line_and_the_loader_are_found(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(5):
        a_step(trace, 100 + 10 * number, number)
    found = {one.code: one for one in with_findings(trace.summary(tmp_path, **H200)).findings}
    assert found.keys() == {"F204", "F101"}
    assert [(place.file, place.line) for place in found["F204"].where] == [("train.py", 30)]
    assert found["F204"].predicted_speedup == pytest.approx(1 / (0.8 + 0.2 / 20))


def test_products_off_tensor_cores_are_found_where_the_card_is_known_to_have_them(tmp_path: Path) -> None:
    trace = Trace()
    for at in steps(trace):
        trace.kernel(SLOW_MATMUL, at + 0.2, 9.7)
    assert codes(trace.summary(tmp_path, **H200)) == ["F309"]
    assert codes(trace.summary(tmp_path, deviceProperties=[{"id": 0, "name": "Tesla P100-PCIE-16GB"}])) == []
    assert codes(trace.summary(tmp_path)) == []


def test_launches_copies_and_layouts_are_found(tmp_path: Path) -> None:
    trace = Trace()
    for at in steps(trace):
        trace.add("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at, 2.0, pid=0, tid=7, args={"device": 0})
        trace.kernel("nchwToNhwcKernel", at + 2, 1.0)
        for number in range(4):
            trace.kernel(MATMUL, at + 3 + 1.5 * number, 0.4)
    assert set(codes(trace.summary(tmp_path, **H200))) == {"F107", "F308", "F201"}


def of_ranks(folder: Path, *compute_ms: float, longest: int = 0) -> list[Path]:
    """A trace a rank: steps of 10 ms that compute so long, and exchange gradients until their end."""
    paths = []
    for rank, compute in enumerate(compute_ms):
        trace = Trace()
        for at in steps(trace, length=10.001 if rank == longest else 10.0):
            trace.kernel(MATMUL, at + 0.1, compute)
            trace.kernel(NCCL, at + 0.1 + compute, 9.9 - compute, stream=8)
        paths.append(folder / f"rank{rank}.json")
        head = {**H200, "distributedInfo": {"rank": rank, "world_size": len(compute_ms)}}
        paths[-1].write_text(json.dumps({**head, "traceEvents": trace.events}))
    return paths


def test_the_rank_that_the_others_wait_for_is_named_and_their_waiting_is_no_finding_of_its_own(
    tmp_path: Path,
) -> None:
    found = with_findings(summarize(of_ranks(tmp_path, 4.0, 9.6, 4.2))).findings
    assert [one.code for one in found] == ["F701"]
    assert found[0].evidence.startswith("rank 1 takes 9.7 ms a step for all but communication")


def test_a_rank_that_is_a_little_slower_does_not_excuse_all_communication(tmp_path: Path) -> None:
    found = with_findings(summarize(of_ranks(tmp_path, 4.0, 4.6, 4.0))).findings
    assert [one.code for one in found] == ["F702", "F701"]
    assert found[0].evidence.startswith("53% of a step is communication")


@pytest.mark.parametrize("longest", [0, 1])
def test_communication_is_exposed_whichever_rank_is_shown(longest: int, tmp_path: Path) -> None:
    """The slow rank waits for nobody: all of its own communication costs it time."""
    found = with_findings(summarize(of_ranks(tmp_path, 6.2, 8.0, longest=longest)))
    assert [rank.shown for rank in found.ranks] == [longest == 0, longest == 1]
    assert {one.code for one in found.findings} == {"F701", "F702"}
    exposed = next(one.evidence for one in found.findings if one.code == "F702")
    assert exposed.startswith(("19% of", "20% of"))


def test_several_recordings_of_one_process_are_no_ranks(tmp_path: Path) -> None:
    """As a profiler's schedule with `repeat` leaves them."""
    for place, compute in enumerate((9.6, 8.0)):
        trace = Trace()
        for at in steps(trace):
            trace.kernel(MATMUL, at + 0.1, compute)
        (tmp_path / f"{place}.json").write_text(json.dumps({**H200, "traceEvents": trace.events}))
    recordings = sorted(tmp_path.glob("*.json"))
    assert with_findings(summarize(recordings)).findings == ()
    twice = [*of_ranks(tmp_path, 9.6, 5.0), tmp_path / "again.json"]
    twice[2].write_text(twice[1].read_text())
    assert "F701" not in {one.code for one in with_findings(summarize(twice)).findings}


def test_a_recording_that_lacks_kernels_shows_no_exposed_communication(tmp_path: Path) -> None:
    trace = Trace()
    for number, at in enumerate(steps(trace)):
        trace.add("cuda_runtime", "cudaGraphLaunch", at + 0.1, 0.1, args={"correlation": 50 + number})
        trace.kernel(NCCL, at + 5, 4.0, stream=8)
    found = with_findings(trace.summary(tmp_path, **H200))
    assert found.busy_share is None
    assert found.findings == ()


def test_code_that_is_compiled_is_not_told_to_compile(tmp_path: Path) -> None:
    for name, expected in ((ADD, ["F310"]), ("triton_poi_fused_add_3", [])):
        trace = Trace()
        for at in steps(trace):
            trace.kernel(name, at + 0.1, 9.8)
        assert codes(trace.summary(tmp_path, **H200)) == expected


def test_a_healthy_trace_and_one_without_steps_have_none(tmp_path: Path) -> None:
    healthy, unmarked = Trace(), Trace()
    for at in steps(healthy):
        healthy.kernel(MATMUL, at + 0.1, 9.8)
    assert codes(healthy.summary(tmp_path, **H200)) == []
    for at in (0.0, 10.0):
        unmarked.kernel(SLOW_MATMUL, at + 0.2, 9.7)
    assert codes(unmarked.summary(tmp_path, **H200)) == []


def test_a_page_opens_none_of_the_files_that_a_trace_names(tmp_path: Path) -> None:
    secret = tmp_path / "secret.py"
    secret.write_text("password = 'of this machine'\n" * 40)
    trace = Trace()
    a_step(trace, 0.0)
    trace.events = [
        {**one, "name": f"{secret}(30): step"} if one["name"].startswith("train.py") else one
        for one in trace.events
    ]
    page = trace_page(with_findings(trace.summary(tmp_path, **H200)))
    assert "F204" in page
    assert "password" not in page
