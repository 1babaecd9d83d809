"""What makes figures of batch sizes doubtful."""

from flatout.records.batch import BatchTrial
from flatout.tune.batch_job import _doubts
from flatout.tune.knee import FITS


def ran(batch: int, step_ms: float | None, samples: int | None = None) -> BatchTrial:
    rate = 1000 * (samples or batch) / step_ms if step_ms else None
    return BatchTrial(
        batch=batch, samples_per_s=rate, step_ms=step_ms, peak_bytes=1, outcome=FITS if step_ms else "failed"
    )


def test_a_larger_batch_that_takes_less_time_was_measured_beside_other_work() -> None:
    [doubt] = _doubts((ran(32, 177.6), ran(64, 214.0), ran(512, 33.0)))
    assert "a step of batch 64 took longer than one of 512" in doubt


def test_steps_that_differ_by_chance_are_no_reason_to_doubt() -> None:
    assert _doubts((ran(32, 10.4), ran(64, 10.0), ran(128, 18.0))) == ()


def test_a_script_that_keeps_the_samples_of_an_update_is_quicker_with_fewer_passes() -> None:
    assert _doubts((ran(32, 400.0, 512), ran(64, 300.0, 512), ran(128, 250.0, 512))) == ()


def test_a_size_that_did_not_run_is_left_out() -> None:
    assert _doubts((ran(32, 10.0), ran(64, None), ran(128, 30.0))) == ()
