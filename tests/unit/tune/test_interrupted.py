"""Ctrl-C in any stage keeps what was measured and proven until then."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flatout.records.plan import Choice
from flatout.records.tuning import Rung
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest
from flatout.tune import tuning as module
from flatout.tune.larger_batch import LargerBatch
from flatout.tune.pace import pace_of
from flatout.tune.request import TuneRequest
from flatout.tune.tuning import _Tuner
from tests.profiles import profile

PLAN = (Choice(id="loader", settings={"num_workers": 2}, measured_speedup=2.0), Choice(id="bf16"))


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def tuner(tmp_path: Path) -> _Tuner:
    job = ProfileRequest(command=JobCommand(("python", "train.py"), own_python=True, given=("train.py",)))
    return _Tuner(TuneRequest(job=job), "run", tmp_path, lambda *_: None)


class Interrupted:
    """A measurer that nobody waits for."""

    def __init__(self, request: TuneRequest) -> None:
        self.request = request

    measure = interrupted


def a_finder(*rungs: Rung, tried: dict[str, float] | None = None) -> Any:
    trials = {words: SimpleNamespace(measured_speedup=gain) for words, gain in (tried or {}).items()}
    return SimpleNamespace(ladder=rungs, conclusions=SimpleNamespace(trials=trials))


BF16 = Rung(lever="bf16", step_ms=1.0, gain=1.5, speedup=1.5)


@pytest.mark.parametrize(
    ("finder", "speedup"),
    [
        (a_finder(BF16), 3.0),
        # The guard took out what was on the other rung.
        (a_finder(Rung(lever="channels-last", step_ms=2.0, gain=1.2, speedup=1.2), BF16), 3.0),
        # The search had been ended, too.
        (a_finder(tried={"bf16": 1.4}), 2.8),
    ],
)
def test_a_plan_that_was_proven_is_kept_with_what_it_gave_by_turns(
    tuner: _Tuner, finder: Any, speedup: float
) -> None:
    tuner._measurer = Interrupted(tuner._request)  # type: ignore[assignment]
    as_written = pace_of(profile())
    done = tuner._confirm(PLAN, as_written, None, finder, 0.0)
    assert done.chosen == PLAN
    assert done.pace is not None
    assert done.pace.samples_per_s == pytest.approx(speedup * (as_written.samples_per_s or 0.0))
    assert done.pace.peak_bytes is None
    assert "ended by Ctrl-C" in done.notes[0]
    assert tuner._interrupted


def test_a_plan_of_which_nothing_was_timed_is_none(tuner: _Tuner) -> None:
    tuner._measurer = Interrupted(tuner._request)  # type: ignore[assignment]
    done = tuner._confirm(PLAN[1:], pace_of(profile()), None, a_finder(), 0.0)
    assert (done.chosen, done.pace) == ((), None)
    assert done.why == "ended by Ctrl-C"


def test_levers_that_took_turns_while_nobody_waited_do_not_shorten_the_wait(tuner: _Tuner) -> None:
    tuner._measurer = Interrupted(tuner._request)  # type: ignore[assignment]
    as_written = pace_of(profile())
    done = tuner._confirm(PLAN[1:], as_written, None, a_finder(BF16), 0.6)
    assert done.pace is not None
    assert done.pace.step_ms == pytest.approx(as_written.step_ms * (0.6 + 0.4 / 1.5))


def test_the_size_stays_where_its_search_is_ended(tuner: _Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def searching(*_: Any, left_out: str, **__: Any) -> LargerBatch:
        asked.append(left_out)
        if not left_out:
            raise KeyboardInterrupt
        return LargerBatch(trials=[])

    monkeypatch.setattr(module, "larger_batch", searching)
    assert tuner._larger_batch(profile(), PLAN, pace_of(profile())).choice is None
    assert asked == ["", "ended by Ctrl-C"]
    assert tuner._interrupted


def test_a_loader_that_was_not_done_is_left_as_it_is(tuner: _Tuner) -> None:
    loading = type("Loading", (), {"tune": interrupted})()
    loaded = tuner._loaded(loading, None, profile())  # type: ignore[arg-type]
    assert loaded.choice is None
    assert loaded.trial.reason == "ended by Ctrl-C"
