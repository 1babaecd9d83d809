"""Made-up traces whose truth is known: every part where it belongs, and nothing from too little."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.trace.summary import summarize
from flatout.records.trace import TraceSummary

MATMUL = "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_NNT"
SLOW_MATMUL = "ampere_sgemm_128x64_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
ITEM = "train.py(30): step"


class Trace:
    """Writes events by hand; times in milliseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._number = 0

    def add(self, cat: str, name: str, start: float, length: float, **more: Any) -> None:
        args = more.pop("args", {})
        thread = {"pid": 1, "tid": 1, **more}
        event = {"ph": "X", "cat": cat, "name": name, "ts": 1000 * start, "dur": 1000 * length, "args": args}
        self.events.append({**event, **thread})

    def kernel(
        self, name: str, start: float, length: float, *, stream: int = 7, operator: str = "aten::mm"
    ) -> None:
        self._number += 1
        ids = {"External id": self._number, "correlation": self._number}
        self.add("cpu_op", operator, max(0.0, start - 0.2), 0.1, args={"External id": self._number})
        self.add("cuda_runtime", "cudaLaunchKernel", max(0.0, start - 0.15), 0.01, args=ids)
        where = {"device": 0, "stream": stream, **ids}
        self.add("kernel", name, start, length, pid=0, tid=stream, args=where)

    def summary(self, folder: Path, **head: Any) -> TraceSummary:
        path = folder / "trace.json"
        path.write_text(json.dumps({**head, "traceEvents": self.events}))
        return summarize([path])


def parts(found: TraceSummary) -> dict[str, float]:
    return {share.part: pytest.approx(share.ms) for share in found.waterfall}


def a_step(trace: Trace, at: float, number: int = 0) -> None:
    """Ten milliseconds: 2 of input, 4 of products, 1 of additions, 2 after a wait, 1 between launches."""
    trace.add("user_annotation", f"ProfilerStep#{number}", at, 10.0)
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    trace.add("user_annotation", loader, at, 2.0)
    trace.kernel(MATMUL, at + 2, 4.0, operator="aten::addmm")
    trace.kernel(ADD, at + 7, 1.0, operator="aten::add")
    trace.add("python_function", ITEM, at + 6.5, 2.5)
    trace.add("python_function", "torch/_tensor.py(1000): item", at + 6.6, 1.5)
    trace.add("cpu_op", "aten::_local_scalar_dense", at + 6.6, 1.5, args={"External id": 9000 + number})
    sync = {"External id": 9000 + number}
    trace.add("cuda_runtime", "cudaStreamSynchronize", at + 6.7, 1.31, args=sync)


def test_every_part_is_where_it_belongs(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(5):
        a_step(trace, 100 + 10 * number, number)
    found = trace.summary(tmp_path, deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    assert parts(found) == {
        "input_wait": 2.0, "launch_gap": 1.0, "sync_stall": 2.0, "matmul": 4.0, "memory_bound": 1.0,
    }  # fmt: skip
    assert sum(share.share for share in found.waterfall) == pytest.approx(1.0)
    assert found.step_ms is not None
    assert (found.steps, found.step_ms.p50, found.busy_share) == (5, pytest.approx(10.0), pytest.approx(0.5))
    assert found.device_name == "NVIDIA H200"
    assert [(one.name, one.ms, one.calls) for one in found.kernels] == [
        (MATMUL, pytest.approx(4.0), 1.0), (ADD, pytest.approx(1.0), 1.0),
    ]  # fmt: skip
    assert [(one.name, one.ms) for one in found.operators] == [
        ("aten::addmm", pytest.approx(4.0)), ("aten::add", pytest.approx(1.0)),
    ]  # fmt: skip
    [sync] = found.syncs
    assert (sync.operator, sync.where) == ("aten::_local_scalar_dense", "train.py:30 in step")
    assert (sync.count, sync.host_ms, sync.stall_ms) == (1.0, pytest.approx(1.31), pytest.approx(2.0))


@pytest.mark.parametrize(
    ("frame", "is_own"),
    [
        ("/home/me/torch/project/train.py(30): step", True),
        ("/home/me/torch/train.py(30): step", True),
        ("torch/_tensor.py(30): item", False),
        ("/home/me/pytorch/torch/_tensor.py(30): item", False),
        ("/home/me/pytorch/torch/nn/modules/module.py(30): _call_impl", False),
    ],
)
def test_a_folder_called_torch_does_not_make_a_line_torchs_own(
    frame: str, is_own: bool, tmp_path: Path
) -> None:
    trace = Trace()
    a_step(trace, 0.0)
    trace.events = [{**one, "name": frame} if one["name"] == ITEM else one for one in trace.events]
    [sync] = trace.summary(tmp_path).syncs
    assert (sync.where is not None) == is_own


def test_a_wait_while_the_device_works_costs_nothing(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0, 10)
    trace.kernel(MATMUL, 0, 10)
    trace.add("cuda_runtime", "cudaStreamSynchronize", 1, 3)
    found = trace.summary(tmp_path)
    assert parts(found) == {"matmul": 10.0}
    assert found.syncs[0].stall_ms == 0


def test_two_streams_at_once_give_each_instant_to_one_part(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0, 10)
    trace.kernel(MATMUL, 0, 6)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, 6, stream=8)
    trace.add("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1, 2, pid=0, tid=9, args={"device": 0})
    found = trace.summary(tmp_path)
    assert parts(found) == {"matmul": 6.0, "communication": 4.0}


def test_products_off_the_tensor_cores_are_seen(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(MATMUL, 0, 1)
    trace.kernel(SLOW_MATMUL, 1, 3)
    found = trace.summary(tmp_path)
    assert found.tensor_core_share == pytest.approx(0.25)
    assert found.off_tensor_cores_share == pytest.approx(0.75)
    assert {one.name: one.tensor_cores for one in found.kernels} == {MATMUL: True, SLOW_MATMUL: False}


def test_products_that_say_nothing_count_as_being_on_tensor_cores_and_vectors_not_at_all(
    tmp_path: Path,
) -> None:
    trace = Trace()
    trace.kernel("triton_tem_fused_mm_3", 0, 9)
    trace.kernel(SLOW_MATMUL, 9, 1)
    trace.kernel("void gemv2T_kernel_val<int, int, float>", 10, 30)
    found = trace.summary(tmp_path)
    assert found.off_tensor_cores_share == pytest.approx(0.1)
    alone = Trace()
    alone.kernel("void gemv2T_kernel_val<int, int, float>", 10, 30)
    assert alone.summary(tmp_path).off_tensor_cores_share is None


def test_what_dominates_is_told_by_a_name_that_can_be_read(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(f"void at::native::elementwise_kernel<{'std::array<char*, 2ul>, ' * 90}>", 0, 9)
    [told, *_] = trace.summary(tmp_path).advice
    assert told.startswith("at::native::elementwise_kernel dominates")


def test_a_kernel_of_a_namespace_without_a_name_keeps_its_own(tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<int>(int)", 0, 9)
    [told, *_] = trace.summary(tmp_path).advice
    assert told.startswith("at::native::multi_tensor_apply_kernel dominates")


def test_from_too_little_nothing_is_made_up(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("cpu_op", "aten::mm", 0, 5)
    found = trace.summary(tmp_path)
    assert found.busy_share is None
    assert "no kernel" in found.unknown["busy_share"]
    assert found.step_ms is None
    assert "marked" in found.unknown["step_ms"]
    without_calls = Trace()
    without_calls.add("kernel", MATMUL, 0, 1, args={"device": 0})
    without_calls.add("kernel", MATMUL, 3, 1, args={"device": 0})
    found = without_calls.summary(tmp_path)
    assert parts(found) == {"matmul": 2.0, "unattributed": 2.0}
    assert any("cannot be told" in note for note in found.notes)


def test_the_busiest_of_several_devices(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("kernel", ADD, 0, 1, args={"device": 0})
    trace.add("kernel", MATMUL, 0, 9, args={"device": 1})
    assert [one.name for one in trace.summary(tmp_path).kernels] == [MATMUL]


@pytest.mark.parametrize("device", [["x"], [None], {"name": "x"}, "x", [], 7, [{"name": "an H200"}]])
def test_a_head_of_any_form_is_read_as_far_as_it_is_known(device: Any, tmp_path: Path) -> None:
    trace = Trace()
    trace.kernel(MATMUL, 1, 4.0)
    found = trace.summary(tmp_path, deviceProperties=device, distributedInfo=device)
    assert found.device_name == ("an H200" if device == [{"name": "an H200"}] else None)


def test_ranks_side_by_side(tmp_path: Path) -> None:
    paths = []
    for rank, wait in ((0, 3.0), (1, 1.0)):
        trace = Trace()
        trace.add("user_annotation", "ProfilerStep#0", 0, 10 + wait)
        trace.kernel(MATMUL, 0, 10)
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 9, 1 + wait, stream=8)
        paths.append(tmp_path / f"{rank}.json")
        head = {"distributedInfo": {"rank": rank, "world_size": 2}}
        paths[-1].write_text(json.dumps({**head, "traceEvents": trace.events}))
    found = summarize(paths)
    assert [(one.rank, one.exposed_communication_ms) for one in found.ranks] == [
        (0, pytest.approx(3.0)), (1, pytest.approx(1.0)),
    ]  # fmt: skip
    assert found.step_ms is not None
    assert found.step_ms.p50 == pytest.approx(13.0)  # of the slowest


def written(folder: Path, name: str, trace: Trace) -> Path:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": trace.events}))
    return path


def test_of_several_files_all_events_count_and_the_one_that_is_shown_is_known(tmp_path: Path) -> None:
    long, short, stepped = Trace(), Trace(), Trace()
    for trace, length in ((long, 50), (short, 5), (stepped, 2)):
        trace.add("cpu_op", "aten::mm", 0, length)
    paths = [written(tmp_path, f"{name}.json", one) for name, one in (("short", short), ("long", long))]
    found = summarize(paths)
    assert (found.events, found.waterfall[0].ms) == (2, pytest.approx(50.0))
    assert [(one.step_ms, one.shown) for one in found.ranks] == [(None, False), (None, True)]
    assert found.ranks[0].unknown["step_ms"] == "no steps are marked"
    # A step says more than the length of a whole trace, which may be longer.
    stepped.add("user_annotation", "ProfilerStep#0", 0, 3)
    found = summarize([*paths, written(tmp_path, "stepped.json", stepped)])
    assert (found.events, found.steps) == (4, 1)
    assert [one.shown for one in found.ranks] == [False, False, True]


def test_a_trace_without_steps_says_what_torch_needs_to_mark_them(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(400):
        trace.add("cpu_op", "aten::add_", 0.01 * number, 0.002)
    found = trace.summary(tmp_path)
    assert "schedule=" in found.unknown["step_ms"]
    assert found.advice[-1] == "batch these: aten::add_, 400 times in all, 2.0 us each"


def test_without_a_gpu_it_is_what_the_host_did(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0, 10)
    trace.add("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 2)
    trace.add("cpu_op", "aten::stack", 1, 1)
    trace.add("cpu_op", "aten::linear", 3, 3)
    trace.add("cpu_op", "aten::addmm", 3.5, 2)
    trace.add("user_annotation", "Optimizer.step#AdamW.step", 7, 2)
    trace.add("cpu_op", "aten::_fused_adamw_", 7.5, 1)
    found = trace.summary(tmp_path)
    assert parts(found) == {"input_wait": 2.0, "optimizer": 2.0, "host_compute": 3.0, "unattributed": 3.0}
    assert {one.name: one.ms for one in found.operators} == {
        "aten::addmm": 2.0, "aten::linear": 1.0, "aten::stack": 1.0, "aten::_fused_adamw_": 1.0,
    }  # fmt: skip
    assert any("no kernel of a GPU" in note for note in found.notes)


def test_an_update_that_calls_the_model_is_one_after_its_pass_backward(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(2):
        at = 10.0 * number
        trace.add("user_annotation", f"ProfilerStep#{number}", at, 10.0)
        trace.add("user_annotation", "Optimizer.step#AdamW.step", at + 1, 8.0)
        trace.add("cpu_op", "aten::addmm", at + 1, 3.0)
        trace.add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 4, 3.0)
        trace.add("cpu_op", "aten::_foreach_add_", at + 7, 1.0)
    found = trace.summary(tmp_path)
    assert parts(found) == {"optimizer": 2.0, "host_compute": 6.0, "unattributed": 2.0}


def test_what_dominates_and_what_should_be_batched_is_said(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0.0, 30.0)
    trace.kernel(MATMUL, 1.0, 20.0, operator="aten::addmm")
    for number in range(400):
        trace.kernel(ADD, 21.5 + 0.01 * number, 0.002, operator="aten::add_")
    found = trace.summary(tmp_path)
    assert found.advice == (
        f"{MATMUL} dominates: 96% of what the device computes",
        "batch these: aten::add_, 400 times a step, 2.0 us each",
    )


def test_nothing_is_advised_where_work_is_spread_and_long(tmp_path: Path) -> None:
    trace = Trace()
    trace.add("user_annotation", "ProfilerStep#0", 0.0, 30.0)
    for number, name in enumerate(("aten::mm", "aten::add", "aten::sum", "aten::mul")):
        trace.kernel(f"{name}_kernel", 1.0 + number, 0.9, operator=name)
    assert trace.summary(tmp_path).advice == ()
