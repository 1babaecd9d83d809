"""A trace in a terminal: what its figures are of, and which of several files is shown."""

import dataclasses
import io

from rich.console import Console

from flatout.records.trace import OperatorUse, RankTrace, SyncPoint, TraceSummary
from flatout.report.trace import draw_trace
from tests.profiles import recorded_trace

UNMARKED = {"step_ms": "no steps are marked"}


def drawn(found: TraceSummary, width: int = 120) -> str:
    buffer = io.StringIO()
    draw_trace(found, Console(file=buffer, width=width, highlight=False, markup=False, emoji=False))
    return " ".join(buffer.getvalue().split())


def rank(
    file: str, number: int | None = None, *, step_ms: float | None = None, shown: bool = False
) -> RankTrace:
    return RankTrace(
        file=file,
        rank=number,
        step_ms=step_ms,
        busy_share=0.5 if number is not None else None,
        exposed_communication_ms=2.0 if number is not None else None,
        shown=shown,
        unknown={} if step_ms is not None else UNMARKED,
    )


def test_times_of_a_trace_without_marked_steps_are_never_those_of_a_step() -> None:
    wait = SyncPoint(call="cudaSync", operator="", where="a.py:1", count=3.0, host_ms=1.0, stall_ms=1.0)
    marked = recorded_trace(syncs=(wait,))
    unmarked = dataclasses.replace(marked, step_ms=None, unknown=UNMARKED)
    assert "where the time goes a step" in drawn(marked)
    assert "3.00 times a step" in drawn(marked)
    text = drawn(unmarked)
    assert "where the time goes in all" in text
    assert "3.00 times in all" in text
    assert "a step" not in text


def test_each_table_says_of_what_its_shares_are() -> None:
    operators = (OperatorUse(name="aten::mm", calls=1.0, ms=1.0, share=0.4),)
    on_gpu = recorded_trace(operators=operators)
    assert "operators kernels ms of kernels" in drawn(on_gpu)
    on_cpu = dataclasses.replace(on_gpu, kernels=())
    assert "operators calls ms of operators" in drawn(on_cpu)
    assert "aten::mm: 1.00 calls, 1.00 ms" in drawn(on_cpu, 60)
    assert " share" not in drawn(on_gpu) + drawn(on_cpu)


def test_of_several_files_each_has_its_line_and_the_one_that_is_shown_is_named() -> None:
    files = ("a.json", "b.json.gz")
    unmarked = recorded_trace(
        files=files,
        events=10,
        step_ms=None,
        unknown=UNMARKED,
        ranks=(rank("a.json"), rank("b.json.gz", shown=True)),
    )
    text = drawn(unmarked)
    assert "2 files on NVIDIA H200: 10 events" in text
    assert "what is shown is of b.json.gz, which is the longest" in text
    assert "a.json: no steps are marked b.json.gz: no steps are marked" in text
    ranks = (rank("a.json", 0, step_ms=30.0, shown=True), rank("b.json", 1))
    text = drawn(recorded_trace(files=files, ranks=ranks))
    assert "what is shown is of a.json (rank 0), whose steps are the longest" in text
    assert "rank 0: 30.0 ms a step, busy 50 %, exposed communication 2.00 ms rank 1" in text
    assert "rank 1: no steps are marked, busy 50 %, exposed communication 2.00 ms in all" in text


def test_one_file_alone_needs_no_line_that_names_it() -> None:
    assert "what is shown" not in drawn(recorded_trace())
