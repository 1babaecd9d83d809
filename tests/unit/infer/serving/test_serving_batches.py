"""Requests become batches, and everything accepted is answered."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from flatout.infer.serving.batching import Batcher
from flatout.infer.serving.policy import Policy
from flatout.infer.serving.tickets import Closing, Expired, Full, Ticket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Model:
    """Doubles; fails for some; runs out of memory with more than it can take."""

    def __init__(self, *, bad: tuple[Any, ...] = (), most: int = 10**9) -> None:
        self.batches: list[list[Any]] = []
        self._bad, self._most = bad, most

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        self.batches.append(list(values))
        if len(values) > self._most:
            raise MemoryError("too many")
        if any(value in self._bad for value in values):
            raise ValueError("cannot take it")
        return [2 * value for value in values]


def batcher(model: Model, clock: Clock | None = None, **policy: Any) -> Batcher:
    settings = {"most": 4, "wait_s": 0.0, "queue": 100, **policy}
    return Batcher(model, Policy(**settings), clock=clock or Clock())


def all_answered(one: Batcher) -> None:
    with one._changed:
        one._closing = True
    while one.turn():
        pass


def test_what_waits_goes_together_and_no_more_than_the_limit() -> None:
    model = Model()
    one = batcher(model)
    tickets = [one.submit(number) for number in range(10)]
    all_answered(one)
    assert [len(batch) for batch in model.batches] == [4, 4, 2]
    assert [ticket.result for ticket in tickets] == [2 * number for number in range(10)]
    assert [ticket.batch for ticket in tickets] == [4] * 8 + [2] * 2


def test_only_items_with_the_same_key_share_a_batch_and_the_oldest_goes_first() -> None:
    model, clock = Model(), Clock()
    one = batcher(model, clock)
    for number, key in enumerate("abab"):
        clock.now += 1
        one.submit(number, key=key)
    all_answered(one)
    assert model.batches == [[0, 2], [1, 3]]


def test_an_item_that_fails_has_its_own_error_and_the_others_their_answers() -> None:
    model = Model(bad=(5,))
    one = batcher(model, most=8)
    tickets = [one.submit(number) for number in range(8)]
    all_answered(one)
    assert [ticket.result for ticket in tickets if ticket.error is None] == [0, 2, 4, 6, 8, 12, 14]
    assert isinstance(tickets[5].error, ValueError)
    # The bad one is found by halves: not one call for each of the others.
    assert len(model.batches) == 7


def test_a_batch_that_runs_out_of_memory_is_split_and_later_ones_are_smaller() -> None:
    model = Model(most=3)
    one = batcher(model, most=8)
    tickets = [one.submit(number) for number in range(16)]
    all_answered(one)
    assert [ticket.result for ticket in tickets] == [2 * number for number in range(16)]
    assert max(len(batch) for batch in model.batches[5:]) <= 3
    assert one.most == 2
    assert one.splits


def test_the_limit_grows_back_when_memory_is_there_again() -> None:
    model = Model(most=3)
    one = batcher(model, most=8, queue=10_000)
    for number in range(8):
        one.submit(number)
    while one.waiting:
        one.turn()
    assert one.most == 2
    model._most = 100
    for number in range(1000):
        one.submit(number)
    all_answered(one)
    assert one.most == 8


def test_an_item_too_large_alone_is_an_error_and_no_loop() -> None:
    model = Model(most=0)
    one = batcher(model)
    ticket = one.submit(1)
    all_answered(one)
    assert isinstance(ticket.error, MemoryError)
    assert len(model.batches) == 1


def test_an_error_keeps_no_frames_whose_tensors_would_stay() -> None:
    one = batcher(Model(bad=(1,)))
    ticket = one.submit(1)
    all_answered(one)
    assert ticket.error is not None
    assert ticket.error.__traceback__ is None
    assert ticket.value is None


def test_a_model_that_returns_too_few_results_fails_each_item() -> None:
    one = Batcher(lambda values: values[1:], Policy(most=2, wait_s=0, queue=9), clock=Clock())
    tickets = [one.submit(number) for number in range(2)]
    all_answered(one)
    assert all(isinstance(ticket.error, TypeError) for ticket in tickets)


def test_a_full_queue_refuses_and_says_when_there_is_room() -> None:
    clock = Clock()

    def slow(values: Sequence[Any]) -> Sequence[Any]:
        clock.now += 0.5 * len(values)
        return values

    one = Batcher(slow, Policy(most=4, wait_s=0, queue=4), clock=clock)
    for number in range(4):
        one.submit(number)
    with pytest.raises(Full) as unmeasured:
        one.submit(4)
    assert unmeasured.value.retry_after_s == 1.0
    one.turn()
    for number in range(4):
        one.submit(number)
    with pytest.raises(Full) as measured:
        one.submit(4)
    # Four wait, and each takes half a second.
    assert measured.value.retry_after_s == pytest.approx(2.0)


def test_who_leaves_is_not_computed_and_makes_room() -> None:
    model = Model()
    one = batcher(model, queue=2)
    first, second = one.submit(1), one.submit(2)
    one.leave(first)
    one.submit(3)
    all_answered(one)
    assert model.batches == [[2, 3]]
    assert (first.state, second.state) == ("left", "answered")
    assert one.waiting == 0


def test_who_leaves_while_it_is_computed_makes_no_hole_in_the_batch() -> None:
    seen: list[list[Any]] = []

    def run(values: Sequence[Any]) -> Sequence[Any]:
        one.leave(tickets[1])
        # Whoever looks at the values now, sees all of them.
        seen.append([ticket.value for ticket in tickets])
        return list(values)

    told: list[Ticket] = []
    one = Batcher(run, Policy(most=4, wait_s=0, queue=9), deliver=told.extend, clock=Clock())
    tickets = [one.submit(number) for number in range(3)]
    all_answered(one)
    assert seen == [[0, 1, 2]]
    assert [ticket.result for ticket in told] == [0, 2]
    assert [ticket.value for ticket in tickets] == [None] * 3


def test_who_waited_too_long_is_told_and_not_computed() -> None:
    model, clock = Model(), Clock()
    told: list[Ticket] = []
    one = Batcher(model, Policy(most=4, wait_s=0, queue=9), deliver=told.extend, clock=clock)
    late = one.submit(1, timeout_s=5.0)
    clock.now += 6
    in_time = one.submit(2, timeout_s=5.0)
    all_answered(one)
    assert isinstance(late.error, Expired)
    assert told == [late, in_time]
    assert model.batches == [[2]]


def test_nobody_waits_for_company_that_is_not_to_be_expected() -> None:
    model, clock = Model(), Clock()
    one = batcher(model, clock, wait_s=10.0)
    one.submit(1)
    began = time.monotonic()
    one.turn()
    assert time.monotonic() - began < 5
    assert model.batches == [[1]]


def test_a_thread_of_its_own_fills_batches_while_the_model_works_and_answers_all_before_it_ends() -> None:
    gate, sizes = threading.Event(), []

    def run(values: Sequence[int]) -> Sequence[int]:
        gate.wait(10)
        sizes.append(len(values))
        return [-value for value in values]

    done: list[Ticket] = []
    one = Batcher(run, Policy(most=16, wait_s=0.0, queue=1000), deliver=done.extend)
    one.start()
    tickets = [one.submit(number) for number in range(40)]
    gate.set()
    assert one.drain(10)
    assert {ticket.result for ticket in tickets} == {-number for number in range(40)}
    assert len(done) == 40
    assert len(sizes) <= 4
    with pytest.raises(Closing):
        one.submit(41)


def test_what_arrives_from_many_threads_is_answered_once_each() -> None:
    answers: list[Ticket] = []
    one = Batcher(Model(bad=(17,)), Policy(most=7, wait_s=0.001, queue=100_000), deliver=answers.extend)
    one.start()

    def hand_in() -> None:
        for number in range(500):
            ticket = one.submit(number % 20)
            if number % 7 == 0:
                one.leave(ticket)

    threads = [threading.Thread(target=hand_in) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.drain(30)
    assert len({id(ticket) for ticket in answers}) == len(answers)
    assert all((ticket.error is None) != (ticket.result is None) for ticket in answers)
    assert one.waiting == 0
    assert not one._queues


def test_fewer_go_together_where_that_was_measured_to_be_faster() -> None:
    model = Model()
    rates = ((1, 100.0), (2, 60.0), (4, 100.0))
    one = batcher(model, rates=rates)
    for number in range(2):
        one.submit(number)
    all_answered(one)
    assert model.batches == [[0], [1]]
    policy = Policy(most=4, wait_s=0, queue=9, rates=rates)
    assert [policy.worthwhile(count) for count in (1, 2, 3, 4, 5)] == [1, 1, 1, 4, 5]
    assert Policy(most=4, wait_s=0, queue=9).worthwhile(3) == 3


def test_a_machine_that_has_become_slower_accepts_fewer() -> None:
    clock, slow = Clock(), 1.0

    def run(values: Sequence[Any]) -> Sequence[Any]:
        clock.now += slow * (0.1 + 0.01 * len(values))
        return values

    # A batch of 10 takes 0.2 s, so that in half a second the one under way and two more end, less a little.
    rates = tuple((size, size / (0.1 + 0.01 * size)) for size in (1, 2, 4, 8, 10))
    one = Batcher(run, Policy(most=10, wait_s=0, queue=1000, rates=rates, limit_s=0.5), clock=clock)

    def accepted() -> int:
        count = 0
        while not one.is_full:
            one.submit(count)
            count += 1
        while one.waiting:
            one.turn()
        return count

    assert accepted() == 20
    slow = 2.0
    for _ in range(40):
        accepted()
    assert accepted() == 10
    slow = 1.0
    for _ in range(40):
        accepted()
    assert accepted() == 20


def test_clients_that_ask_again_as_soon_as_they_are_answered_are_not_kept_waiting() -> None:
    clock = Clock()

    def run(values: Sequence[Any]) -> Sequence[Any]:
        clock.now += 0.03
        return values

    one = Batcher(run, Policy(most=64, wait_s=0.01, queue=100), clock=clock)
    for _ in range(20):
        for number in range(4):
            one.submit(number)
        queue = next(iter(one._queues.values()))
        one._seen = 4
        assert one._pause(queue) == 0, "all four are here, and nobody else ever came"
        one.turn()


def test_who_comes_while_the_model_works_is_a_sign_of_others() -> None:
    clock, batch = Clock(), [0]

    def run(values: Sequence[Any]) -> Sequence[Any]:
        clock.now += 0.1
        if batch[0] < 30:
            for number in range(10):
                one.submit(number)
        batch[0] += 1
        return values

    one = Batcher(run, Policy(most=64, wait_s=0.02, queue=1000), clock=clock)
    one.submit(0)
    for _ in range(30):
        one.turn()
        clock.now += 0.021  # nobody came after all
    # Ten in 0.1 s: in the next 0.02 s two are to be expected.
    assert one.pace.expected(0.021) == 2


def test_batches_are_filled_up_where_larger_ones_were_measured_to_be_faster() -> None:
    times = {1: 7, 2: 14, 4: 28, 8: 17, 16: 33, 32: 63, 64: 48}
    rates = tuple((size, size / milliseconds * 1000) for size, milliseconds in times.items())
    policy = Policy(most=64, wait_s=0, queue=9, rates=rates)
    assert [policy.filled(count, 64) for count in (1, 2, 4, 6, 8, 9, 16, 32, 64)] == [
        1,
        2,
        8,
        8,
        8,
        9,
        16,
        64,
        64,
    ]
    assert policy.predicted_s(4) == pytest.approx(0.017)
    # After memory ran out with more, nothing is filled up beyond what fits.
    assert policy.filled(4, 4) == 4
    assert policy.filled(32, 32) == 32


def test_times_that_vary_are_promised_by_their_upper_end() -> None:
    from flatout.infer.serving.pace import Pace

    steady, shaky, interrupted = Pace(), Pace(), Pace()
    for number in range(200):
        steady.answered(1, 0.1, 0.1)
        shaky.answered(1, 0.05 if number % 2 else 0.15, 0.1)
        # A batch of one takes five times as long as it should, all others what they should.
        interrupted.answered(*((1, 0.05, 0.01) if number % 2 else (32, 1.0, 1.0)))
    assert steady.slowness == pytest.approx(1.0)
    assert steady.spread_s == pytest.approx(0.0)
    assert shaky.slowness == pytest.approx(1.0, abs=0.05)
    assert shaky.spread_s > 0.1
    assert interrupted.slowness < 1.1


def test_answers_that_go_out_late_are_reckoned_with() -> None:
    from flatout.infer.serving.pace import Pace

    pace = Pace()
    assert pace.delivery_s == 0.0
    for number in range(2000):
        pace.delivered(0.02 if number % 2 else 0.04)
    assert pace.delivery_s == pytest.approx(0.03 + 3 * 0.01, rel=0.05)


def test_what_is_over_of_the_batch_under_way_makes_room() -> None:
    clock, room = Clock(), list[int]()

    def run(values: Sequence[Any]) -> Sequence[Any]:
        for _ in range(2):
            while not one.is_full:
                one.submit(0)
            room.append(one.waiting)
            clock.now += 0.5
        return values

    # A batch takes a second whatever its size, and nobody may take longer than 1.75 s.
    rates = ((1, 1.0), (10, 10.0))
    one = Batcher(run, Policy(most=10, wait_s=0, queue=1000, rates=rates, limit_s=1.75), clock=clock)
    one.submit(0)
    one.turn()
    # At its beginning, only the one who may always wait; when half of it is over, a batch.
    assert room == [1, 10]
