"""A run counts where it came to a good end."""

from pathlib import Path
from typing import Any

import pytest

from flatout.records.trial import Trial
from flatout.tune.pace import measured_in, pace_of
from tests.profiles import profile
from tests.unit.analyze.events import MS, Event, closed, forward, trial, write_rank


def a_run(folder: Path, **changes: Any) -> Trial:
    events: list[Event] = [("start", 0)]
    for place in range(50):
        at = place * 10 * MS
        events += [forward(at, at + 10 * MS), closed(at + 10 * MS, place + 1)]
    write_rank(folder, events, {})
    return trial(folder=str(folder), updates=50, **changes)


def test_a_run_that_was_stopped_in_good_order_has_a_pace(tmp_path: Path) -> None:
    found = measured_in(a_run(tmp_path), pace_of(profile()), ())
    assert found.pace is not None
    assert found.pace.step_ms == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        (
            {"outcome": "failed", "exit_code": 1, "said": ("Traceback", "OutOfMemoryError: 20 GiB", "")},
            "the job failed: OutOfMemoryError: 20 GiB",
        ),
        ({"outcome": "failed", "exit_code": 9}, "the job failed: exit code 9"),
        ({"outcome": "silent"}, "the job hung: it made no update any more"),
        ({"outcome": "killed", "signal": 11}, "the job was killed by signal 11"),
    ],
)
def test_a_run_that_fails_after_many_steps_has_none(
    tmp_path: Path, changes: dict[str, Any], ending: str
) -> None:
    found = measured_in(a_run(tmp_path, **changes), pace_of(profile()), ())
    assert (found.pace, found.profile, found.ending) == (None, None, ending)
