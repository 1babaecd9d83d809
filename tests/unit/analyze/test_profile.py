"""From a run folder to a profile: which steps count, by which clock, and why something is not known."""

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.analyze.growth import growth
from flatout.analyze.profile import Peaks, build_profile
from flatout.analyze.window import window_of
from flatout.records.profile import Profile
from flatout.records.session import WORKERS_FOLDER
from tests.unit.analyze.events import (
    MS,
    Event,
    device,
    rank_of,
    step,
    steps,
    training,
    trial,
    unwatched,
    write_rank,
)

HOLDS = {"parameters": 10, "parameter_bytes": 40, "gradient_bytes": 40, "optimizer_bytes": 80}


def profile_of(folder: Path, **options: Any) -> Profile:
    return build_profile("run", trial(), folder, Peaks(), **options)


def about(**changes: Any) -> dict[str, Any]:
    facts = {"device": "cpu", "holds": HOLDS, "optimizers": ["AdamW"], "roots": ["GPT"], "loaders": []}
    return {**facts, **changes}


def on_gpu(count: int, *, host_ms: int = 100, device_ms: float = 90.0, losses: bool = False) -> list[Event]:
    first, *rest = training(count, took=host_ms * MS, loss="?" if losses else 1.0)
    late = [
        device(
            number,
            None if number == 1 else device_ms,
            parts={"between": 10.0, "forward": 30.0, "backward": 50.0} if number % 4 == 2 else None,
            losses=[number / 2] if losses else [],
        )
        for number in range(1, count + 1)
    ]
    return [first, ("clock", True), *rest, *late]


# Which steps, which clock -----------------------------------------------------------------------------------


def test_the_counted_step_and_the_warm_up_are_left_out() -> None:
    slow = steps(12, took_ms=300)
    window = window_of(rank_of([*slow, *steps(40), step(ended_ns=9000 * MS)], {"timed_updates": 52}))
    assert len(window.steps) == 52
    assert 11 <= window.steady.start <= 14
    assert set(window.times) == {100.0}
    assert len(window.chosen) == len(window.times) == 52 - window.steady.start


def test_the_devices_clock_is_used_where_it_timed_most_steps() -> None:
    timed = steps(30, device_ms=80.0)
    timed[0].pop("device_ms")
    window = window_of(rank_of(timed))
    assert window.on_device
    assert set(window.times) == {80.0}


def test_the_hosts_clock_is_used_where_the_device_timed_too_few() -> None:
    some = steps(30)
    for one in some[:10]:
        one["device_ms"] = 80.0
    window = window_of(rank_of(some))
    assert not window.on_device
    assert set(window.times) == {100.0}


def test_steps_with_an_evaluation_have_no_device_time_and_spoil_none() -> None:
    some = steps(40, device_ms=80.0)
    for one in some[9::10]:
        one.update(device_ms=5000.0, evaluations=3, evaluation_ns=40 * MS)
    window = window_of(rank_of(some))
    assert set(window.times) == {80.0}
    assert len(window.chosen) == 38
    assert len(window.times) == 34


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_few_steps_are_better_than_none(count: int) -> None:
    window = window_of(rank_of(steps(count)))
    assert not window.steady.reached
    assert len(window.chosen) >= 1
    assert set(window.times) == {100.0}


# The document -----------------------------------------------------------------------------------------------


def test_a_plain_job_on_a_cpu(tmp_path: Path) -> None:
    write_rank(tmp_path, training(40), about())
    profile = profile_of(tmp_path)
    assert profile.step_ms is not None
    assert (profile.step_ms.p50, profile.step_ms.clock) == (100.0, "host")
    assert (profile.steps, profile.updates, profile.steady, profile.steady_from) == (38, 40, True, 3)
    assert profile.samples_per_s == pytest.approx(80)
    assert (profile.samples_per_step, profile.micro_batches) == (8, 1)
    assert profile.tokens_per_s is None
    assert (profile.parameters, profile.optimizers, profile.roots) == (10, ("AdamW",), ("GPT",))
    shares = {share.part: share.ms for share in profile.waterfall}
    assert shares == pytest.approx(
        {"input_wait": 10, "optimizer": 10, "host_compute": 50, "unattributed": 30}
    )
    assert profile.device_parts == ()
    assert profile.losses == (1.0,) * 40
    assert (profile.evaluations, profile.evaluation_ms) == (0, None)
    assert profile.unknown["evaluation_ms"]
    assert profile.mfu.reason == "the script ended before the operations of a step could be counted"


def test_a_plain_job_on_a_gpu(tmp_path: Path) -> None:
    facts = about(device="cuda:0", device_name="NVIDIA H200")
    events = on_gpu(40, losses=True)
    memory = {"allocated_peak_bytes": 1000, "reserved_peak_bytes": 2000, "allocation_retries": 0}
    events = [
        (*event[:3], memory) if event[0] == "step" and event[2] in (3, 16) else event for event in events
    ]
    write_rank(tmp_path, events, facts)
    profile = build_profile("run", trial(), tmp_path, Peaks(device_total_bytes=10_000))
    assert profile.step_ms is not None
    assert (profile.step_ms.p50, profile.step_ms.clock) == (90.0, "device")
    assert profile.samples_per_s == pytest.approx(8 / 0.090)
    assert {share.part: share.ms for share in profile.device_parts} == {
        "before forward": 10.0,
        "forward": 30.0,
        "backward": 50.0,
    }
    assert sum(share.ms for share in profile.waterfall) == pytest.approx(90)
    assert sum(share.share for share in profile.waterfall) == pytest.approx(1)
    assert profile.losses == tuple(number / 2 for number in range(1, 41))
    assert profile.memory.activation_bytes == 1000 - 160
    assert (profile.memory.reserved_peak_bytes, profile.memory.device_total_bytes) == (2000, 10_000)


def test_a_loss_that_the_device_never_delivered_is_unknown_and_breaks_nothing(tmp_path: Path) -> None:
    first, *rest = training(20, loss="?")
    write_rank(tmp_path, [first, ("clock", True), *rest[:40], ("clock", False), *rest[40:]], about())
    profile = profile_of(tmp_path)
    assert profile.losses == (None,) * 20
    assert profile.step_ms is not None
    assert profile.step_ms.clock == "host"


def test_steps_that_nobody_looked_at_count_for_the_pace_and_not_for_the_parts(tmp_path: Path) -> None:
    events = training(30)
    at = 3000 * MS
    for update in range(31, 61):
        at += 100 * MS
        events.append(unwatched(at, update))
    write_rank(tmp_path, events, about())
    profile = profile_of(tmp_path)
    assert (profile.steps, profile.updates) == (58, 60)
    assert {share.part: share.ms for share in profile.host}["forward"] == pytest.approx(20)
    assert profile.samples_per_s == pytest.approx(80)
    assert len(profile.losses) == 30


def test_the_last_step_of_a_trial_that_was_half_seen_does_not_count() -> None:
    halves = steps(20, backwards=4, samples=32)
    halves[-1].update(backwards=1, samples=8)
    assert {one["samples"] for one in window_of(rank_of(halves)).watched} == {32}


def test_a_smaller_batch_now_and_then_counts() -> None:
    ragged = steps(20, samples=32)
    for one in ragged[1::2]:
        one["samples"] = 18
    assert {one["samples"] for one in window_of(rank_of(ragged)).watched} == {32, 18}


def test_operations_are_those_of_a_mean_batch(tmp_path: Path) -> None:
    flops = {"flops": 800, "recomputed_flops": 80, "update": 41, "operators": [], "moves": []}
    events = training(41)
    # The step that was counted had twice the samples.
    at = next(place for place, event in enumerate(events) if event[0] == "forward" and event[1] >= 4000 * MS)
    shape = (16, *events[at][6][1:])
    events[at] = (*events[at][:6], shape, *events[at][7:])
    write_rank(tmp_path, events, about(flops=flops, timed_updates=40))
    profile = profile_of(tmp_path)
    assert profile.samples_per_step == 8
    assert (profile.mfu.flops_per_step, profile.mfu.of_counted) == (400, 0.5)


def test_evaluation_is_told_beside_the_steps(tmp_path: Path) -> None:
    events = training(20)
    at = 10 * 100 * MS
    # In the eleventh step, after its batch: 5 ms of evaluation before the forward that was at 10 ms.
    place = events.index(("loader", at, at + 10 * MS, 0, 1)) + 1
    evaluation = [
        ("mode", at + 10 * MS, at + 10 * MS, False),
        ("forward", at + 11 * MS, at + 12 * MS, 0, False, False, (8, 3), True, 1),
        ("mode", at + 15 * MS, at + 15 * MS, True),
    ]
    write_rank(tmp_path, [*events[:place], *evaluation, *events[place:]], about())
    profile = profile_of(tmp_path)
    assert (profile.evaluations, profile.evaluation_ms) == (1, 5.0)


def test_several_ranks_are_one_job(tmp_path: Path) -> None:
    counted = {"flops": 100, "recomputed_flops": 1, "uncounted": {}}
    for rank in range(4):
        took = (100 if rank != 2 else 110) * MS
        facts = about(flops=counted, device=f"cuda:{rank}")
        write_rank(tmp_path, training(30, took=took), facts, name=f"{rank}-{50 + rank}")
    profile = profile_of(tmp_path)
    assert profile.samples_per_s == pytest.approx(4 * 80)
    assert [(one.rank, one.pid, one.step_ms) for one in profile.ranks] == [
        (0, 50, 100.0),
        (1, 51, 100.0),
        (2, 52, 110.0),
        (3, 53, 100.0),
    ]
    assert (profile.mfu.flops_per_step, profile.mfu.recomputed_flops_per_step) == (400, 4)


def test_ranks_that_compute_different_parts_are_counted_as_they_are(tmp_path: Path) -> None:
    """Stages of a pipeline: that the last has more to do makes no batch larger."""
    for rank, flops in enumerate((40, 80)):
        facts = about(flops={"flops": flops, "recomputed_flops": 0}, device=f"cuda:{rank}")
        write_rank(tmp_path, training(30), facts, name=f"{rank}-{50 + rank}")
    profile = profile_of(tmp_path)
    assert (profile.mfu.flops_per_step, profile.mfu.of_counted) == (120, 1.0)


def test_a_rank_whose_operations_were_not_counted_leaves_the_whole_uncounted(tmp_path: Path) -> None:
    write_rank(tmp_path, training(10), about(flops={"flops": 1, "recomputed_flops": 0}), name="0-1")
    write_rank(tmp_path, training(10), about(flops_reason="RuntimeError: no"), name="1-2")
    profile = profile_of(tmp_path)
    assert profile.mfu.flops_per_step is None
    assert "RuntimeError: no" in profile.mfu.reason


def test_operations_may_be_counted_in_another_trial(tmp_path: Path) -> None:
    write_rank(tmp_path / "timed", training(10), about())
    counted = about(flops={"flops": 77, "recomputed_flops": 0, "uncounted": {}}, timed_updates=2)
    write_rank(tmp_path / "counted", training(3), counted)
    profile = profile_of(tmp_path / "timed", counted_in=tmp_path / "counted")
    assert profile.mfu.flops_per_step == 77


def test_what_the_job_holds_is_unknown_before_the_second_update(tmp_path: Path) -> None:
    write_rank(tmp_path, training(1), {})
    profile = profile_of(tmp_path)
    assert profile.memory.parameter_bytes is None
    assert profile.memory.unknown["parameter_bytes"] == "told apart at the second update"
    assert profile.device is None
    assert profile.ranks[0].unknown["device"] == "its session ended without a word"


# Loaders ----------------------------------------------------------------------------------------------------


def loader_facts(number_of_workers: int, data_set: str = "pkg.Data") -> dict[str, Any]:
    return {"data_set": data_set, "num_workers": number_of_workers, "batch_size": 8}


def write_worker(folder: Path, pid: int, **changes: int) -> None:
    place = folder / WORKERS_FOLDER
    place.mkdir(exist_ok=True)
    whole = {
        "pid": pid,
        "parent_pid": 100,
        "batches": 10,
        "load_ns": 300 * MS,
        "collate_ns": 100 * MS,
        "busy_ns": 400 * MS,
        "started_ns": 0,
        "seen_ns": 1000 * MS,
        **changes,
    }
    (place / f"{pid}.json").write_text(json.dumps(whole))


def test_a_loader_with_workers_is_described_by_what_they_report(tmp_path: Path) -> None:
    write_rank(tmp_path, training(20), about(loaders=[loader_facts(2)]))
    write_worker(tmp_path, 1)
    write_worker(tmp_path, 2)
    write_worker(tmp_path, 3, parent_pid=999)
    [loader] = profile_of(tmp_path).loaders
    assert (loader.batches, loader.wait_ms) == (20, 10.0)
    assert (loader.load_ms, loader.collate_ms) == (30.0, 10.0)
    # Two workers, 40 ms for each of the 20 batches, in 20 steps of 100 ms.
    assert loader.workers_busy_share == pytest.approx(0.2, rel=0.05)


def test_a_loader_in_the_loop_is_described_by_the_process_itself(tmp_path: Path) -> None:
    in_loop = {
        "batches": 20,
        "load_ns": 100 * MS,
        "collate_ns": 20 * MS,
        "busy_ns": 120 * MS,
        "started_ns": 0,
    }
    write_rank(tmp_path, training(20), about(loaders=[loader_facts(0)], in_loop=in_loop))
    [loader] = profile_of(tmp_path).loaders
    assert (loader.load_ms, loader.collate_ms) == (5.0, 1.0)
    assert loader.workers_busy_share is None
    assert loader.unknown["workers_busy_share"] == "the loader has no workers"


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_batch_costs_is_unknown_where_an_evaluations_loader_works_in_the_same_place(
    tmp_path: Path, workers: int
) -> None:
    in_loop = {
        "batches": 20,
        "load_ns": 100 * MS,
        "collate_ns": 20 * MS,
        "busy_ns": 120 * MS,
        "started_ns": 0,
    }
    loaders = [loader_facts(workers), loader_facts(workers, "pkg.HeldOut")]
    write_rank(tmp_path, training(20), about(loaders=loaders, in_loop=in_loop))
    write_worker(tmp_path, 1)
    [loader] = profile_of(tmp_path).loaders  # the other one was only used inside evaluations
    assert loader.data_set == "pkg.Data"
    assert loader.load_ms is None
    assert "several loaders" in loader.unknown["load_ms"]


def test_workers_that_ended_without_a_word_leave_their_costs_unknown(tmp_path: Path) -> None:
    write_rank(tmp_path, training(20), about(loaders=[loader_facts(2)]))
    [loader] = profile_of(tmp_path).loaders
    assert loader.load_ms is None
    assert loader.unknown["load_ms"]
    assert loader.wait_ms == 10.0


def test_compilations_are_summed_and_those_in_the_steady_state_are_told(tmp_path: Path) -> None:
    events = training(20)
    for at in (0, 1):
        events.insert(3, ("compile", at, at + 5 * MS, at > 0))
    write_rank(tmp_path, events, about(graph_breaks={"print": 2}))
    compiled = profile_of(tmp_path).compile
    assert (compiled.compiles, compiled.recompiles, compiled.compiles_in_steady_state) == (2, 1, 0)
    assert compiled.compile_s == pytest.approx(0.010)
    assert compiled.graph_breaks == {"print": 2}


def test_compilations_that_never_end_are_seen_although_the_steady_state_begins_after_the_last(
    tmp_path: Path,
) -> None:
    events = training(205)
    ends = [place for place, event in enumerate(events) if event[0] == "step"]
    for number in reversed(range(0, 205, 10)):
        events.insert(ends[number], ("compile", 0, 5 * MS, number > 0))
    write_rank(tmp_path, events, about())
    compiled = profile_of(tmp_path).compile
    assert (compiled.compiles, compiled.compiles_in_steady_state) == (21, 20)


@pytest.mark.parametrize(
    ("sizes", "slope"),
    [
        ([100, 100, 100, 100, 100, 100, 100, 100], 0.0),
        ([0, 10, 100, 110, 120, 130, 140, 150], 10.0),
        # What comes and goes is no leak.
        ([0, 10, 100, 110, 90, 130, 100, 120], 0.0),
        ([0, 10, 20], None),
    ],
)
def test_what_every_step_leaves_behind(sizes: list[int], slope: float | None) -> None:
    steps = [{"allocated_bytes": size, "host_bytes": 1} for size in sizes]
    assert growth(steps, on_gpu=True) == slope
    assert growth([{} for _ in sizes], on_gpu=True) is None
    # Looks are steps apart: the slope is of a step.
    sparse = [{"allocated_bytes": 160 * place} if not place % 16 else {} for place in range(160)]
    assert growth(sparse, on_gpu=True) == 160.0
