"""Events of a process become its steps: each instant has one owner, and evaluation is nobody's training."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.analyze.replay import Replay, build_step, evaluations, own_times
from flatout.records.session import ON_ITS_WAY
from tests.unit.analyze.events import (
    END,
    ME,
    OTHER,
    START,
    Event,
    backward,
    clipping,
    closed,
    copy,
    device,
    forward,
    loader,
    mode,
    optimizer,
    training,
)

TIMED = ("loader", "copy", "forward", "backward", "clipping", "optimizer")


def replayed(*events: Event) -> list[dict[str, Any]]:
    """The steps of a log, in order; as they come back from the file, where tuples are lists."""
    replay = Replay()
    steps = replay.take(json.loads(json.dumps(events)))
    return sorted([*steps, *replay.rest()], key=lambda step: step["update"])


def only(*events: Event) -> dict[str, Any]:
    [step] = replayed(*events)
    return step


# Nesting ----------------------------------------------------------------------------------------------------


def timed(kind: str, start: int, end: int) -> Event:
    """A span of this kind, with whatever else its events carry."""
    if kind in ("loader", "copy"):
        return (kind, start, end, 0, ME)
    if kind == "forward":
        return forward(start, end)
    return (kind, start, end, None) if kind != "optimizer" else optimizer(start, end)


@st.composite
def nested(draw: st.DrawFn) -> tuple[list[Event], int, list[tuple[int, int]]]:
    """Well-nested spans in the order of their ends; the step's length; the outermost spans."""

    def fill(start: int, end: int, depth: int) -> list[tuple[int, int, int]]:
        found = []
        at = start
        for _ in range(draw(st.integers(0, 3))):
            begins = draw(st.integers(at, end))
            ends = draw(st.integers(begins, end))
            if depth < 3:
                found += fill(begins, ends, depth + 1)
            found.append((begins, ends, depth))
            at = ends
        return found

    length = draw(st.integers(1, 1000))
    spans = fill(0, length, 0)
    kinds = [draw(st.sampled_from(TIMED)) for _ in spans]
    events = [timed(kind, start, end) for kind, (start, end, _) in zip(kinds, spans, strict=True)]
    return events, length, [(start, end) for start, end, depth in spans if depth == 0]


@settings(deadline=None)
@given(nested())
def test_own_times_are_never_negative_and_sum_to_the_outermost_spans(
    drawn: tuple[list[Event], int, list[tuple[int, int]]],
) -> None:
    events, _, outermost = drawn
    spans = own_times(events)
    assert [span.event for span in spans] == events
    assert all(span.own_ns >= 0 for span in spans)
    assert sum(span.own_ns for span in spans) == sum(end - start for start, end in outermost)


@settings(deadline=None)
@given(nested())
def test_the_parts_of_a_step_never_exceed_it(
    drawn: tuple[list[Event], int, list[tuple[int, int]]],
) -> None:
    events, length, outermost = drawn
    step = build_step(events, 0, length, None)
    parts = [step[f"{kind}_ns"] for kind in TIMED]
    assert min(parts) >= 0
    assert sum(parts) == sum(end - start for start, end in outermost) <= length


def test_a_closure_inside_the_optimizer_keeps_its_own_time() -> None:
    step = only(
        ("start", 0),
        forward(20, 40),
        backward(40, 70),
        forward(75, 80),
        backward(80, 85),
        optimizer(10, 100),
        closed(100, 1),
    )
    assert (step["forward_ns"], step["backward_ns"], step["optimizer_ns"]) == (25, 35, 90 - 60)


def test_collector_and_compiler_lie_across_the_parts_and_take_nothing_away() -> None:
    step = only(
        ("start", 0),
        ("collector", 12, 18),
        ("compile", 11, 40, False),
        ("compile", 41, 45, True),
        ("recording", 46, 48),
        forward(10, 50),
        backward(50, 60),
        optimizer(60, 70),
        closed(70, 1),
    )
    assert (step["forward_ns"], step["collector_ns"]) == (40, 6)
    assert (step["compiles"], step["recompiles"], step["compile_ns"]) == (2, 1, 33)
    assert step["recordings"] == 1


# Steps ------------------------------------------------------------------------------------------------------


def test_steps_follow_each_other_without_a_gap() -> None:
    steps = replayed(*training(5))
    assert [step["update"] for step in steps] == [1, 2, 3, 4, 5]
    assert [step["started_ns"] for step in steps[1:]] == [step["ended_ns"] for step in steps[:-1]]
    assert steps[0]["started_ns"] == 0


def test_without_a_start_the_first_step_begins_with_its_first_event() -> None:
    assert only(loader(30, 40), optimizer(50, 60), closed(60, 1))["started_ns"] == 30
    assert only(closed(60, 1))["started_ns"] == 60


def test_a_boundary_that_is_known_late_splits_the_events_by_time() -> None:
    first, second = replayed(
        ("start", 0),
        loader(0, 10),
        backward(10, 20, 1.0),
        optimizer(20, 30),
        loader(30, 45),
        backward(45, 60, 2.0),
        optimizer(60, 80),
        closed(30, 1),  # only now is it known who leads
        closed(80, 2),
    )
    assert (first["started_ns"], first["ended_ns"], first["loader_ns"], first["losses"]) == (0, 30, 10, [1.0])
    assert (second["started_ns"], second["ended_ns"]) == (30, 80)
    assert (second["loader_ns"], second["optimizer_ns"], second["losses"]) == (15, 20, [2.0])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_it_does_not_matter_how_the_log_was_cut_into_lines(takes: list[int], rng: random.Random) -> None:
    events = training(6)
    whole = Replay().take(events)
    replay, pieces, at = Replay(), [], 0
    while at < len(events):
        size = rng.choice(takes)
        pieces += replay.take(events[at : at + size])
        at += size
    assert pieces == whole


def test_what_other_threads_do_is_not_the_loops_time() -> None:
    step = only(
        ("start", 0),
        loader(0, 50, thread=OTHER),  # before anybody knew which thread trains
        copy(0, 40, thread=OTHER),
        forward(0, 60, thread=OTHER, gradients=False),
        ("thread", ME),
        loader(5, 10),
        forward(10, 20),
        backward(20, 30),
        optimizer(30, 40),
        closed(60, 1),
    )
    assert (step["loader_ns"], step["loader_batches"]) == (5, 1)
    assert (step["copy_ns"], step["copies"]) == (0, 0)
    assert (step["forward_ns"], step["evaluations"], step["evaluation_ns"]) == (10, 0, 0)


def test_batches_samples_tokens_copies_and_skips_are_counted() -> None:
    step = only(
        ("start", 0),
        loader(0, 1, START),
        loader(1, 3, 2),
        loader(3, 6, 2),
        loader(6, 7, END),
        copy(7, 8, 4096),
        copy(8, 9, 1024),
        forward(9, 10, shape=(4, 16), is_float=False),
        backward(10, 11),
        ("skip", 11, 11),
        forward(11, 12, shape=(4, 16), is_float=False),
        backward(12, 13),
        clipping(13, 15, 0.5),
        optimizer(15, 16),
        closed(16, 1, {"host_bytes": 7}),
    )
    assert (step["loader_batches"], step["loader_ns"]) == (2, 7)
    assert step["loaders"][2] == (2, 5)
    assert (step["copies"], step["copy_bytes"]) == (2, 5120)
    assert (step["samples"], step["tokens"]) == (8, 128)
    assert (step["backwards"], step["forwards"], step["skipped_updates"]) == (2, 2, 1)
    assert (step["gradient_norms"], step["clipping_ns"], step["host_bytes"]) == ([0.5], 2, 7)


def test_samples_are_those_of_the_leading_root_however_many_others_are_called() -> None:
    calls = [forward(0, 1, root=0, shape=(4, 2)), forward(1, 2, root=1, shape=(64, 2)), optimizer(2, 3)]
    assert only(("root", 0), *calls, closed(3, 1))["samples"] == 4
    assert only(("root", 1), *calls, closed(3, 1))["samples"] == 64
    assert only(*calls, closed(3, 1))["samples"] == 64  # nobody has said who leads: the larger
    assert only(("root", 7), *calls, closed(3, 1))["samples"] == 64  # who leads was not called
    assert only(("root", 0), forward(0, 1, shape=None), closed(3, 1))["samples"] == 0


def test_calls_since_the_last_update_are_told_for_a_job_that_never_makes_one() -> None:
    replay = Replay()
    assert replay.take([forward(0, 1), forward(1, 2, gradients=False), forward(2, 3, gradients=False)]) == []
    assert replay.unfinished() == (1, 2)


def test_calls_of_a_loss_are_no_calls_of_a_model() -> None:
    model, critic, loss = 0, 1, 2
    replay = Replay()
    for at in range(0, 300, 10):
        replay.take([forward(at, at + 1, root=model), forward(at + 1, at + 2, root=loss)])
        replay.take([backward(at + 2, at + 3)])
    assert replay.unfinished() == (30, 0)
    # Another model that begins a pass counts, in every place.
    replay.take([forward(300, 301, root=critic), forward(301, 302, root=loss), backward(302, 303)])
    replay.take([forward(303, 304, root=model), forward(304, 305, root=critic), backward(305, 306)])
    assert replay.unfinished() == (33, 0)


# Evaluation -------------------------------------------------------------------------------------------------


def after_training(*events: Event, until: int = 1000) -> dict[str, Any]:
    """The second step: these events first, then a training call, from 900 on."""
    _, step = replayed(
        ("start", 0),
        ("thread", ME),
        loader(0, 10, 0),
        forward(10, 20),
        backward(20, 30),
        optimizer(30, 40),
        closed(40, 1),
        *events,
        forward(900, 910),
        backward(910, 930),
        optimizer(930, until),
        closed(until, 2),
    )
    assert step["forwards"] == step["backwards"] == 1
    parts = [step[f"{kind}_ns"] for kind in TIMED]
    assert sum(parts) + step["evaluation_ns"] <= step["ended_ns"] - step["started_ns"]
    return step


def evaluating(start: int, end: int, **changes: Any) -> Event:
    return forward(start, end, gradients=False, training=False, **changes)


def test_evaluation_lasts_from_eval_to_train_with_all_that_lies_between() -> None:
    step = after_training(
        mode(50, False),
        loader(60, 70, START),
        loader(70, 90, 1),
        copy(90, 95),
        evaluating(100, 120),
        loader(150, 160, 1),
        evaluating(160, 200),
        loader(200, 205, END),
        mode(300, True),
        loader(800, 890, 0),
    )
    assert (step["evaluations"], step["evaluation_ns"]) == (2, 250)
    assert (step["loader_ns"], step["loader_batches"], step["copies"]) == (90, 1, 0)


def test_a_batch_that_training_took_before_the_evaluation_is_trainings() -> None:
    step = after_training(
        loader(40, 140, 0), copy(140, 150), mode(200, False), loader(210, 220, 1), evaluating(220, 300),
        mode(310, True),
    )  # fmt: skip
    assert (step["evaluation_ns"], step["loader_ns"], step["copy_ns"]) == (110, 100, 10)


def test_without_eval_it_begins_with_the_evaluations_own_batch() -> None:
    step = after_training(
        loader(40, 140, 0), loader(200, 205, START), loader(205, 220, 1), evaluating(220, 300),
        loader(300, 320, 1), evaluating(320, 350), loader(350, 390, END),
    )  # fmt: skip
    assert (step["evaluations"], step["evaluation_ns"], step["loader_ns"]) == (2, 190, 100)


def test_without_eval_a_second_loader_that_was_started_before_tells_where_it_begins() -> None:
    step = after_training(loader(40, 140, 0), loader(205, 220, 1), evaluating(220, 300))
    assert (step["evaluation_ns"], step["loader_ns"]) == (95, 100)


def test_without_eval_and_without_a_loader_it_begins_with_its_copy_or_its_call() -> None:
    assert after_training(copy(100, 110), evaluating(120, 150))["evaluation_ns"] == 50
    assert after_training(evaluating(120, 150))["evaluation_ns"] == 30


def test_an_epoch_that_ended_is_no_part_of_the_evaluation_that_follows() -> None:
    step = after_training(loader(40, 140, END), evaluating(200, 230))
    assert (step["evaluation_ns"], step["loader_ns"]) == (30, 100)
    step = after_training(mode(40, False), loader(50, 60, END), evaluating(200, 230))
    assert step["evaluation_ns"] == 190


def test_eval_without_a_call_is_no_evaluation() -> None:
    step = after_training(mode(100, False), mode(200, True))
    assert (step["evaluations"], step["evaluation_ns"]) == (0, 0)


def test_two_evaluations_in_one_step_are_two_stretches() -> None:
    events = [
        *(mode(0, False), evaluating(10, 20), mode(30, True)),
        *(forward(40, 50), backward(50, 60)),
        *(mode(70, False), evaluating(75, 80), mode(90, True)),
    ]
    assert evaluations(own_times(events)) == [(0, 30), (70, 90)]


def test_a_call_in_eval_mode_that_keeps_gradients_trains_if_a_backward_follows() -> None:
    call = forward(10, 30, training=False)
    trained = only(("start", 0), call, backward(30, 40), optimizer(40, 50), closed(50, 1))
    assert (trained["forwards"], trained["forward_ns"], trained["evaluations"]) == (1, 20, 0)
    not_trained = only(
        ("start", 0), call, forward(40, 60), backward(60, 70), optimizer(70, 80), closed(80, 1)
    )
    assert (not_trained["forwards"], not_trained["forward_ns"]) == (1, 20)
    assert (not_trained["evaluations"], not_trained["evaluation_ns"]) == (1, 20)
    last = only(("start", 0), forward(0, 5), backward(5, 8), call, optimizer(40, 50), closed(50, 1))
    assert (last["forwards"], last["evaluations"]) == (1, 1)


def test_an_evaluation_before_the_first_update_belongs_to_the_first_step() -> None:
    step = only(
        ("start", 0), mode(5, False), evaluating(10, 20), mode(30, True), forward(40, 50), backward(50, 60),
        optimizer(60, 70), closed(70, 1),
    )  # fmt: skip
    assert (step["evaluations"], step["evaluation_ns"]) == (1, 25)


# A device ---------------------------------------------------------------------------------------------------


def on_gpu(*late: Event, loss: Any = ON_ITS_WAY) -> list[Event]:
    """Three steps on a GPU; their device times come as given."""
    first, *rest = training(3, loss=loss)
    return [first, ("clock", True), *rest, *late]


def test_steps_that_nobody_looked_at_wait_for_no_device_but_keep_their_order() -> None:
    replay = Replay()
    unwatched = [("step", 10_000 + number, number, False) for number in (4, 5)]
    assert replay.take([*on_gpu(), *unwatched]) == []
    early = replay.take([device(1, None, losses=[0.5]), device(2, 12.5, losses=[0.25])])
    assert [step["update"] for step in early] == [1, 2]
    rest = replay.take([device(3, 12.5, losses=[0.125]), ("step", 10_006, 6, False)])
    assert [(step["update"], step["watched"]) for step in rest] == [
        (3, True),
        (4, False),
        (5, False),
        (6, False),
    ]
    assert replay.rest() == []


def test_what_never_came_is_given_out_in_order_at_the_end() -> None:
    replay = Replay()
    assert replay.take([*on_gpu(), ("step", 10_004, 4, False)]) == []
    assert [step["update"] for step in replay.rest()] == [1, 2, 3, 4]


def test_a_step_on_a_gpu_is_given_out_once_its_device_times_have_come() -> None:
    replay = Replay()
    assert replay.take(on_gpu()) == []
    [first] = replay.take([device(1, None, losses=[0.5])])
    [second] = replay.take([device(2, 12.5, parts={"forward": 12.5}, losses=[0.25])])
    assert (first["update"], first["losses"], "device_ms" in first) == (1, [0.5], False)
    assert (second["device_ms"], second["device_parts_ms"], second["losses"]) == (
        12.5,
        {"forward": 12.5},
        [0.25],
    )
    [left] = replay.rest()
    assert (left["update"], left["losses"], "device_ms" in left) == (3, [None], False)
    assert replay.rest() == []


def test_a_step_that_the_device_never_reached_says_why_and_has_no_loss() -> None:
    replay = Replay()
    replay.take(on_gpu())
    [step] = replay.take([device(1, None, losses=[None], reason="the device was too far behind")])
    assert (step["losses"], step["device_reason"]) == ([None], "the device was too far behind")


def test_the_last_update_is_known_before_its_device_times() -> None:
    replay = Replay()
    assert replay.updates == 0
    assert replay.take(on_gpu()) == []
    assert replay.updates == 3


def test_device_times_of_a_step_that_nobody_knows_are_ignored() -> None:
    assert Replay().take([device(7, 3.0)]) == []
    assert len(replayed(*on_gpu(device(99, 3.0)))) == 3


def test_a_clock_that_is_lost_holds_nothing_back() -> None:
    replay = Replay()
    assert replay.take(on_gpu(device(1, None, losses=[0.5]))) != []
    given = replay.take([("clock", False)])
    assert [(step["update"], step["losses"]) for step in given] == [(2, [None]), (3, [None])]
    [after] = replay.take([backward(310, 320, 2.0), closed(330, 4)])
    assert (after["update"], after["losses"]) == (4, [2.0])


@settings(deadline=None)
@given(
    known=st.lists(st.one_of(st.just(ON_ITS_WAY), st.none(), st.floats(allow_nan=False)), max_size=6),
    late=st.lists(st.one_of(st.none(), st.floats(allow_nan=False)), max_size=8),
)
def test_late_numbers_fill_the_open_places_in_order(known: list[Any], late: list[Any]) -> None:
    passes = [backward(place, place + 1, loss) for place, loss in enumerate(known)]
    replay = Replay()
    replay.take([("start", 0), ("clock", True), *passes, closed(100, 1)])
    [step] = replay.take([device(1, 1.0, losses=late)])
    open_places = [place for place, loss in enumerate(known) if loss == ON_ITS_WAY]
    assert len(step["losses"]) == len(known)
    for place, loss in enumerate(known):
        if place in open_places:
            turn = open_places.index(place)
            assert step["losses"][place] == (late[turn] if turn < len(late) else None)
        else:
            assert step["losses"][place] == loss
    assert ON_ITS_WAY not in step["losses"]


def test_numbers_that_came_with_an_earlier_step_find_their_place() -> None:
    # The first update is held until the second shows who leads: by then both losses lie in the first's list.
    replay = Replay()
    replay.take(
        [
            ("start", 0),
            *(backward(0, 10, ON_ITS_WAY), clipping(10, 15, ON_ITS_WAY), optimizer(15, 20)),
            *(backward(20, 30, ON_ITS_WAY), clipping(30, 35, ON_ITS_WAY), optimizer(35, 40)),
            *(("clock", True), closed(20, 1), closed(40, 2)),
        ]
    )
    first, second = replay.take([device(1, None, losses=[0.5, 0.25], norms=[3.0, 4.0]), device(2, None)])
    assert (first["losses"], first["gradient_norms"]) == ([0.5], [3.0])
    assert (second["losses"], second["gradient_norms"]) == ([0.25], [4.0])


def test_a_number_that_no_device_will_deliver_is_unknown() -> None:
    step = only(("start", 0), backward(0, 1, ON_ITS_WAY), clipping(1, 2, ON_ITS_WAY), closed(3, 1))
    assert (step["losses"], step["gradient_norms"]) == ([None], [None])


def test_losses_and_norms_have_queues_of_their_own() -> None:
    replay = Replay()
    replay.take(
        [
            ("clock", True),
            backward(0, 1, ON_ITS_WAY),
            clipping(1, 2, ON_ITS_WAY),
            backward(2, 3, 5.0),  # a loss in host memory
            clipping(3, 4, ON_ITS_WAY),
            closed(5, 1),
        ]
    )
    [step] = replay.take([device(1, 1.0, losses=[0.5], norms=[7.0, 8.0])])
    assert step["losses"] == [0.5, 5.0]
    assert step["gradient_norms"] == [7.0, 8.0]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_comes_through(loss: float) -> None:
    [step] = replayed(("start", 0), backward(0, 1, loss), closed(2, 1))
    assert repr(step["losses"][0]) == repr(loss)
