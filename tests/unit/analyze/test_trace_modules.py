"""Which module a kernel belongs to: in both directions, however deep, and under either kind of mark."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flatout.analyze.trace.summary import summarize
from flatout.records.trace import ModuleUse
from tests.unit.analyze.test_trace_summary import ADD, MATMUL, Trace

NODE = "autograd::engine::evaluate_function: AddmmBackward0"
MARK = "flatout.module: "


def launched(trace: Trace, at: float, length: float, *, sequence: int = -1, tid: int = 1) -> None:
    """An operator, and the kernel that it launches a while later."""
    number = 100 + len(trace.events)
    args = {"External id": number, "Sequence number": sequence}
    trace.add("cpu_op", "aten::addmm", at, 0.2, tid=tid, args=args)
    ids = {"External id": number, "correlation": number, "device": 0, "stream": 7}
    trace.add("kernel", MATMUL if length > 1 else ADD, at + 20, length, pid=0, tid=7, args=ids)


def derived(trace: Trace, at: float, length: float, *, sequence: int) -> None:
    """The same in a backward pass, which has a thread of its own."""
    trace.add("cpu_op", NODE, at, 1.0, tid=2, args={"Sequence number": sequence, "Fwd thread id": 1})
    launched(trace, at + 0.5, length, sequence=sequence, tid=2)


@pytest.fixture
def trace() -> Trace:
    """A model of two blocks; each product takes 2 ms forward and 4 ms backward, the optimizer 1 ms."""
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0, 100)
    trace.add("user_annotation", f"{MARK}Net", 1, 10)
    launched(trace, 1.2, 0.5)
    for number in range(2):
        trace.add("user_annotation", f"{MARK}Net.blocks.*", 2 + 4 * number, 3)
        trace.add("user_annotation", f"{MARK}Net.blocks.*.linear", 3 + 4 * number, 1)
        # What has the number before it was given away, in another module.
        trace.add("cpu_op", "aten::detach", 2.1 + 4 * number, 0.1, args={"Sequence number": number})
        launched(trace, 3.5 + 4 * number, 2.0, sequence=number)
    for number in range(2):
        derived(trace, 40 + 4 * number, 4.0, sequence=number)
    launched(trace, 60, 1.0)
    return trace


def by_name(modules: tuple[ModuleUse, ...]) -> dict[str, tuple[Any, ...]]:
    return {
        one.name: (pytest.approx(one.forward_ms), pytest.approx(one.backward_ms), pytest.approx(one.share))
        for one in modules
    }


def test_both_directions_belong_to_the_module(trace: Trace, tmp_path: Path) -> None:
    found = trace.summary(tmp_path)
    assert by_name(found.modules) == {
        "Net.blocks.*.linear": (4.0, 8.0, 12 / 13.5),
        "Net": (0.5, 0.0, 0.5 / 13.5),
    }


def test_marks_of_torch_are_told_with_what_is_around_them(trace: Trace, tmp_path: Path) -> None:
    kinds = {"Net": "Net_0", "Net.blocks.*": "Block_1", "Net.blocks.*.linear": "Linear_7"}
    for event in trace.events:
        if event["name"].startswith(MARK):
            kind = kinds[event["name"].removeprefix(MARK)]
            event["name"], event["cat"] = f"nn.Module: {kind}", "python_function"
    assert set(by_name(trace.summary(tmp_path).modules)) == {"Net.Block.Linear", "Net"}


def test_a_backward_pass_whose_forward_was_not_recorded_belongs_nowhere(trace: Trace, tmp_path: Path) -> None:
    derived(trace, 70, 2.0, sequence=77)
    linear = by_name(trace.summary(tmp_path).modules)["Net.blocks.*.linear"]
    assert linear == (4.0, 8.0, 12 / 15.5)


def test_without_marks_there_are_none(trace: Trace, tmp_path: Path) -> None:
    trace.events = [event for event in trace.events if not event["name"].startswith(MARK)]
    assert trace.summary(tmp_path).modules == ()


def test_a_real_recording_with_stacks(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as profiler:
        for _ in range(3):
            model(torch.randn(512, 64)).sum().backward()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    found = {one.name: one for one in summarize([path]).modules}
    assert {"Sequential.Linear", "Sequential.ReLU"} <= set(found)
    assert found["Sequential.Linear"].forward_ms > 0
    assert found["Sequential.Linear"].backward_ms > 0
    assert sum(one.share for one in found.values()) <= 1.0


def test_shares_are_of_all_kernels_as_those_of_operators_are(trace: Trace, tmp_path: Path) -> None:
    trace.add("kernel", "ncclDevKernel_AllReduce", 70, 13.5, pid=0, tid=8, args={"device": 0})
    found = trace.summary(tmp_path)
    assert by_name(found.modules)["Net.blocks.*.linear"] == (4.0, 8.0, 12 / 27)
    assert found.operators[0].share == pytest.approx(0.5)
    assert sum(one.share for one in found.kernels) == pytest.approx(1.0)
