"""Counters of ncu: both of its pages, whatever stands around them, and beside a trace."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flatout.analyze.trace.chunks import NotATrace
from flatout.analyze.trace.names import same_name
from flatout.analyze.trace.ncu import read_counters
from flatout.analyze.trace.summary import summarize
from tests.fakes.nsight_compute import MEMORY, OCCUPANCY, SM, TENSOR, TIME, details_page, raw_page
from tests.fakes.nsight_systems import Export

GEMM, ADD, TINY = "nvjet_sm90_tst_192x128_64x5", "void add<(int)4>(int, T2)", "void tiny(float *, int)"
LAUNCHES: list[tuple[str, dict[str, Any]]] = [
    (GEMM, {SM: 80.0, MEMORY: 40.0, TENSOR: 75.0, OCCUPANCY: 20.0, TIME: 3000.0}),
    (GEMM, {SM: 90.0, MEMORY: 40.0, TENSOR: 85.0, OCCUPANCY: 20.0, TIME: 1000.0}),
    (ADD, {SM: 20.0, MEMORY: 91.5, TENSOR: 0.0, OCCUPANCY: 95.0, TIME: 1500.5}),
    (TINY, {SM: 2.0, MEMORY: 5.0, TENSOR: "n/a", OCCUPANCY: 6.0, TIME: 2.5}),
]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("page", [raw_page, details_page])
def test_both_pages_say_what_binds_each_kernel(page: Any, tmp_path: Path) -> None:
    gemm, add, tiny = read_counters(written(tmp_path / "k.csv", page(LAUNCHES)))
    assert [(one.kernel, one.calls, one.bound) for one in (gemm, add, tiny)] == [
        (GEMM, 2, "compute"), (ADD, 1, "memory"), (TINY, 1, "latency"),
    ]  # fmt: skip
    assert (gemm.ms, add.ms, tiny.ms) == (pytest.approx(4.0), pytest.approx(1.5005), pytest.approx(0.0025))
    # By the time of each launch.
    assert (gemm.sm_share, gemm.memory_share) == (pytest.approx(0.825), pytest.approx(0.4))
    assert (add.occupancy, add.memory_share) == (pytest.approx(0.95), pytest.approx(0.915))
    if page is raw_page:
        assert gemm.tensor_share == pytest.approx(0.775)
    assert tiny.tensor_share is None
    assert "did not count" in tiny.unknown["tensor_share"]


@pytest.mark.parametrize(
    ("unit", "ms"), [("ns", 0.004), ("nsecond", 0.004), ("us", 4), ("ms", 4e3), ("s", 4e6)]
)
def test_units_of_time(unit: str, ms: float, tmp_path: Path) -> None:
    found = read_counters(written(tmp_path / "k.csv", raw_page(LAUNCHES[:2], time_unit=unit)))
    assert found[0].ms == pytest.approx(ms)


def test_without_a_known_unit_there_is_no_time(tmp_path: Path) -> None:
    [found] = read_counters(written(tmp_path / "k.csv", raw_page(LAUNCHES[:2], time_unit="cycle")))
    assert found.ms is None
    assert found.sm_share == pytest.approx(0.85)


def test_two_processes_have_heads_of_their_own(tmp_path: Path) -> None:
    text = raw_page(LAUNCHES[:1]) + "loss 0.25, step 7\n" + raw_page(LAUNCHES[2:3])
    assert [one.kernel for one in read_counters(written(tmp_path / "k.csv", text))] == [GEMM, ADD]


FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
    "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"
)
FILL_BY_NSIGHT = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
    "std::array<char *, (unsigned long)1>>(int, T2, T3)"
)
CLOSURE = (
    "at::native::(anonymous namespace)::where_kernel_impl(at::TensorIterator&)::{lambda()#1}::operator()() "
    "const::{lambda()#11}::operator()() const::{lambda(bool, float, float)#1}"
)
WHERE = (
    f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{CLOSURE}>"
    f"(at::TensorIteratorBase&, {CLOSURE} const&)::{{lambda(int)#1}}>(int, X)"
)
WHERE_BY_NSIGHT = (
    "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<"
    "at::native::<unnamed>::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() "
    "const::[lambda() (instance 11)]::operator ()() const::[lambda(bool, float, float) (instance 1)]>"
    "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
)
SPELLINGS = [
    (FILL, FILL_BY_NSIGHT),
    (WHERE, WHERE_BY_NSIGHT),
    (
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(cutlass_80_wmma_tensorop::Params)",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(T1::Params)",
    ),
    (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, true, false>(cublasLt::Params<float>)",
        "void cublasLt::splitKreduce_kernel<(int)32, (int)16, int, float, (bool)1, (bool)0>(cublasLt::P<T6>)",
    ),
]


@pytest.mark.parametrize(("kineto", "nsight"), SPELLINGS)
def test_a_kernel_has_one_name_however_it_is_spelled(kineto: str, nsight: str) -> None:
    assert same_name(kineto) == same_name(nsight)


def test_kernels_that_differ_stay_apart() -> None:
    names = [name for pair in SPELLINGS for name in pair[:1]]
    others = [name.replace("<128, 2", "<128, 4").replace("<32, 16", "<16, 16") for name in names[1:4:2]]
    assert len({same_name(name) for name in (*names, *others)}) == 6


def test_beside_a_trace_they_are_joined_by_name(tmp_path: Path) -> None:
    export = Export()
    kineto, nsight = SPELLINGS[0]
    export.range("step 2", 0, 10)
    export.kernel(GEMM, 1, 2)
    export.kernel(kineto, 4, 5)
    trace = export.write(tmp_path / "r.sqlite")
    counters = written(tmp_path / "k.csv", raw_page([*LAUNCHES[:2], (nsight, LAUNCHES[2][1]), LAUNCHES[3]]))
    found = summarize([counters, trace])
    assert [(one.kernel, one.step_ms, one.bound) for one in found.counters] == [
        (kineto, pytest.approx(5.0), "memory"),
        (GEMM, pytest.approx(2.0), "compute"),
        (TINY, None, "latency"),
    ]
    assert "no kernel of this name" in found.counters[2].unknown["step_ms"]
    assert "step_ms" not in found.counters[0].unknown
    assert found.ranks == ()  # one trace, and no other beside it


def test_counters_alone_are_no_trace(tmp_path: Path) -> None:
    found = summarize([written(tmp_path / "k.txt", details_page(LAUNCHES))])
    assert (found.events, len(found.counters), found.step_ms) == (0, 3, None)
    assert "no trace beside them" in found.unknown["step_ms"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("a,b,c\n1,2,3\n", "no head of a table"),
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        (raw_page([]), "counted no kernel"),
        (
            raw_page(LAUNCHES).split("\n")[4] + "\n==WARNING== No kernels were profiled.\n",
            "counted no kernel",
        ),
    ],
)
def test_what_holds_no_counters_is_said(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(NotATrace, match=says):
        summarize([written(tmp_path / "k.csv", text)])


PIECES = st.lists(
    st.sampled_from(
        ['"', ",", "\n", '"ID"', '"Kernel Name"', "Metric Name", '"Metric Value"', "1,024", "n/a", "%",
         "nan", "1e999", "==PROF== ", "\x00", "é", SM, TIME,
         *raw_page(LAUNCHES[:2]).splitlines(keepends=True),
         *details_page(LAUNCHES[:1]).splitlines(keepends=True)]
    )
    | st.text(max_size=8),
    max_size=40,
)  # fmt: skip


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pieces=PIECES)
@example(pieces=['"ID","Kernel Name"\n', '"0","x', "\n" * 3, '"' * 7])
@example(pieces=['"ID","Kernel Name","Metric Name","Metric Value"\n', '"0"\n', '"0","k"\n', '"0","k","m"\n'])
@example(pieces=["ID,Kernel Name\n", "0," + "k" * 200_000 + "\n"])
def test_whatever_a_file_holds_it_is_read_or_refused(pieces: list[str], tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    path.write_text("".join(pieces), encoding="utf-8", errors="replace")
    try:
        found = read_counters(path)
    except NotATrace:
        return
    for one in found:
        assert one.calls >= 1
        for share in (one.ms, one.sm_share, one.memory_share, one.tensor_share, one.occupancy):
            assert share is None or share >= 0


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.binary(max_size=400))
def test_bytes_that_are_no_text_are_refused_or_read(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    path.write_bytes(b'"ID","Kernel Name"\n' + data)
    with contextlib.suppress(NotATrace):
        assert all(one.calls >= 1 for one in read_counters(path))
