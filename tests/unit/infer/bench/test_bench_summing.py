"""From samples to points and their knee."""

import itertools

import pytest

from flatout.infer.bench.client import Exchange
from flatout.infer.bench.loading import Sample, _moments
from flatout.infer.bench.summing import knee, point, spread, still_grows
from flatout.records.bench import Bench, LoadPoint
from flatout.report.bench_page import bench_page
from tests.pages import parsed


def sample(due: float, ended: float, status: int = 200, **more: object) -> Sample:
    return Sample(due, Exchange(status=status, ended_s=ended, **more))  # type: ignore[arg-type]


def load(concurrency: int, per_s: float, sent: int = 100, answered: int = 100) -> LoadPoint:
    return LoadPoint(
        concurrency=concurrency,
        rate_per_s=None,
        seconds=1.0,
        sent=sent,
        answered=answered,
        answered_per_s=per_s,
        latency_ms=spread([concurrency / per_s] if per_s else []),
        statuses={"200": answered},
        errors={},
    )


def test_percentiles_are_times_that_were_seen() -> None:
    found = spread([value / 1000 for value in range(1, 101)])
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.max) == pytest.approx((50, 90, 99, 100))
    assert spread([]) is None


def test_a_server_that_stood_still_is_charged_for_all_that_was_due_meanwhile() -> None:
    # Ten were due in a second in which nothing was answered; a polite client would have sent one.
    samples = [sample(number / 10, 1.0 + number / 1000) for number in range(10)]
    found = point(samples, 1.0, concurrency=None, rate=10, streams=False)
    assert found.latency_ms is not None
    assert found.latency_ms.p50 > 500


def test_failures_are_counted_by_what_they_were_and_slow_ends_lengthen_the_time() -> None:
    samples = [
        sample(0, 0.5),
        sample(0, 0.1, 429),
        sample(0, 4.0, 500),
        Sample(0, Exchange(error="gone", ended_s=0.2)),
    ]
    found = point(samples, 1.0, concurrency=4, rate=None, streams=False)
    assert (found.sent, found.answered) == (4, 1)
    assert found.statuses == {"200": 1, "429": 1, "500": 1}
    assert found.errors == {"gone": 1}
    assert found.seconds == 4.0
    assert found.refusal_ms is not None


def test_tokens_of_a_stream_have_their_times() -> None:
    events = [
        b'data: {"text":"a"}\n\n',
        b'data: {"text":"b"}\n\n',
        b'data: {"usage":{"completion_tokens":9}}\n\n',
        b"data: [DONE]\n\n",
    ]
    body, pieces = bytearray(), []
    for number, event in enumerate(events):
        body += event
        pieces.append((1.0 + number, len(body)))
    found = point([sample(0.5, 5.0, body=body, pieces=pieces)], 1.0, concurrency=1, rate=None, streams=True)
    assert found.first_token_ms is not None
    assert found.first_token_ms.p50 == 500
    assert found.between_tokens_ms is not None
    assert found.between_tokens_ms.p50 == 1000
    assert found.tokens_per_s == 9 / 4.5


def test_the_knee_is_the_smallest_load_that_is_nearly_as_fast_as_any() -> None:
    points = [load(1, 100), load(2, 190), load(4, 300), load(8, 305), load(16, 300)]
    assert knee(points)[0] == 2
    assert not still_grows(points)
    assert still_grows(points[:3])


def test_a_load_that_is_refused_is_beyond_the_knee() -> None:
    points = [load(1, 100), load(2, 150), load(4, 290, answered=60)]
    place, reason = knee(points)
    assert place == 1
    assert "refused" in reason
    assert knee([load(1, 0.0, answered=0)]) == (None, "nothing was answered")


def test_moments_of_an_open_loop_come_at_the_rate_and_at_random() -> None:
    moments = list(_moments(0.0, 1000.0, 10.0, 1))
    assert 9_500 < len(moments) < 10_500
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    # Exponential: as many as a third are longer than the mean.
    assert 0.33 < sum(gap > 0.001 for gap in gaps) / len(gaps) < 0.41


def test_the_page_holds_the_picture_and_makes_words_of_others_harmless() -> None:
    points = (load(1, 100), load(2, 190), load(64, 200, answered=10))
    bench = Bench(
        url="http://<script>",
        path="/predict",
        payload="<b>",
        streams=False,
        loop="closed",
        points=points,
        knee=1,
        reason="because",
    )
    page = parsed(bench_page(bench))
    assert sum(tag == "polyline" for tag, _ in page.tags) == 5
    assert not any(tag == "script" for tag, _ in page.tags)
