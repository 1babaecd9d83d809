"""Sizes of a batch in a terminal: figures as other commands write them."""

import io

from rich.console import Console

from flatout.records.batch import BatchSizes, BatchTrial
from flatout.report.batch import draw_batch


def trial(batch: int, rate: float | None, step_ms: float | None, outcome: str = "fits") -> BatchTrial:
    return BatchTrial(batch=batch, samples_per_s=rate, step_ms=step_ms, peak_bytes=None, outcome=outcome)


def test_large_rates_have_no_exponent() -> None:
    found = BatchSizes(
        run="run",
        command=("python", "train.py"),
        was=64,
        best=128,
        sizes=(trial(64, 9028.4, 7.089), trial(128, 11760.0, 12345.0), trial(256, None, None, "too large")),
        room_bytes=None,
        headroom=0.1,
        option="--batch-size",
        reason="it is the fastest",
    )
    buffer = io.StringIO()
    draw_batch(found, Console(file=buffer, width=100))
    text = buffer.getvalue()
    assert "9,028" in text
    assert "11,760" in text
    assert "7.09 ms" in text
    assert "12.3 s" in text
    assert "too large" in text
    assert "e+" not in text
