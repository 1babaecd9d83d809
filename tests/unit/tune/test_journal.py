"""What tuning writes down: answers that a later tuning can go on with, predictions, and losses for `run`."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from flatout.records.errors import CallerMistake
from flatout.records.plan import Choice, Fingerprint
from flatout.records.tuning import LeverTrial
from flatout.tune.arms import ArmResult, Ask
from flatout.tune.bench import Bench, Search, key_of
from flatout.tune.calibration import CALIBRATION_FILE, record, reliability
from flatout.tune.continuing import judge_first_steps
from flatout.tune.journal import (
    COMPARISONS_FILE,
    JOB_FILE,
    Journal,
    SeenLosses,
    earlier_loader,
    insist_on_the_same_job,
    read_answers,
    read_losses,
    write_job,
)

JOB = Fingerprint(
    script="train.py", script_sha256="abc", arguments=("--lr", "1"), device="", torch="", flatout=""
)
BF16, COMPILE = Choice(id="bf16"), Choice(id="compile", settings={"mode": "default"})
ASK = Ask(arms=((), (BF16,), (BF16, COMPILE)), what="levers")
RESULTS = [
    ArmResult(step_ms=10.0, speedup=1.0, low=1.0, high=1.0),
    ArmResult(step_ms=5.0, speedup=2.0, low=1.9, high=2.1, host_share=0.4),
    ArmResult(step_ms=4.0, speedup=2.5, low=2.4, high=2.6),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_job(tmp_path, JOB, ())
    Journal(tmp_path).add(ASK, RESULTS, at_s=1.0, took_s=2.0)
    return tmp_path


def test_answers_are_read_back_as_they_were(folder: Path) -> None:
    assert read_answers(folder, JOB, ()) == ({key_of(ASK.arms): RESULTS}, "")


def test_an_interval_that_could_be_anything_comes_back(folder: Path) -> None:
    wide = [RESULTS[0], ArmResult(step_ms=5.0, speedup=2.0, low=-math.inf, high=math.inf)]
    Journal(folder).add(Ask(arms=((), (BF16,)), what="once"), wide, at_s=1.0, took_s=2.0)
    assert read_answers(folder, JOB, ())[0][key_of(((), (BF16,)))] == wide


def test_what_failed_is_asked_again(folder: Path) -> None:
    failed = [RESULTS[0], ArmResult(step_ms=None, failed="the machine was full")]
    Journal(folder).add(Ask(arms=((), (BF16,)), what="once"), failed, at_s=1.0, took_s=2.0)
    assert list(read_answers(folder, JOB, ())[0]) == [key_of(ASK.arms)]


def test_half_a_line_is_no_reason_to_fail(folder: Path) -> None:
    with (folder / COMPARISONS_FILE).open("a") as file:
        file.write('{"arms": [{"lev')
    assert len(read_answers(folder, JOB, ())[0]) == 1
    (folder / COMPARISONS_FILE).unlink()
    assert read_answers(folder, JOB, ()) == ({}, "")


def test_another_job_is_refused(folder: Path, tmp_path: Path) -> None:
    insist_on_the_same_job(folder, JOB)
    with pytest.raises(CallerMistake, match="script_sha256"):
        insist_on_the_same_job(folder, dataclasses.replace(JOB, script_sha256="abd"))
    with pytest.raises(CallerMistake, match="gone on with"):
        insist_on_the_same_job(tmp_path / "nothing", JOB)


@pytest.mark.parametrize("changed", ["device", "torch", "flatout"])
def test_answers_of_another_machine_say_nothing_here(folder: Path, changed: str) -> None:
    found, why = read_answers(folder, dataclasses.replace(JOB, **{changed: "other"}), ())
    assert found == {}
    assert changed in why
    assert "loader" in read_answers(folder, JOB, (Choice(id="loader"),))[1]
    assert "whose batches" in read_answers(folder, JOB, (), repeated=True)[1]


def test_a_search_goes_on_after_its_last_answer(folder: Path) -> None:
    """What is known is not measured again; the first question that is not goes to the job."""
    got: list[list[ArmResult]] = []

    def search() -> Search:
        got.append((yield ASK))
        got.append((yield Ask(arms=((BF16,), (COMPILE,)), what="new")))

    asked: list[str] = []
    bench = Bench(search(), lambda ask: asked.append(ask.what), answers=read_answers(folder, JOB, ())[0])
    bench._next(None)
    assert got == [RESULTS]
    assert asked == ["new"]
    assert not bench.finished


# Predictions ------------------------------------------------------------------------------------------------


def test_predictions_are_kept_across_tunings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_CACHE_DIR", str(tmp_path))

    def trial(measured: float | None) -> LeverTrial:
        return LeverTrial(
            lever="bf16",
            safety="numeric",
            verdict="kept",
            reason="",
            predicted_speedup=2.0,
            measured_speedup=measured,
        )

    assert record([trial(3.0), trial(None)], "r1", "H200")["bf16"].trials == 1
    known = record([trial(2.0), trial(1.0)], "r2", "H200")["bf16"]
    assert (known.trials, known.measured_over_predicted, known.lowest, known.highest) == (3, 1.0, 0.5, 1.5)
    (tmp_path / CALIBRATION_FILE).write_text(
        'nonsense\n{"lever": "x"}\n{"lever": "y", "measured": 1, "predicted": 0}\n'
    )
    assert reliability(tmp_path / CALIBRATION_FILE) == {}
    assert reliability(tmp_path / "gone") == {}


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLATOUT_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert record([], "r", "") == {}


# The first steps of a run -----------------------------------------------------------------------------------

CURVE = [2.0 * math.exp(-step / 50) for step in range(200)]
TWINS = [[value * (1 + sign * 1e-4) for value in CURVE[:30]] for sign in (-1, 1, 0.5)]
PAIRING = {"parameters": [1], "inputs": [[0, 7]]}


def seen(**changes: object) -> SeenLosses:
    plain = {"as_written": list(CURVE), "twins": TWINS, "roundoff": 2.0**-9, "pairing": PAIRING}
    return SeenLosses(**{**plain, **changes})  # type: ignore[arg-type]


def test_a_run_that_goes_as_it_went_is_inside() -> None:
    found = judge_first_steps([value * 1.0001 for value in CURVE], seen(), PAIRING)
    assert (found.verdict, found.paired, found.steps) == ("inside", True, 200)


@pytest.mark.parametrize("leaves_at", [5, 100])
def test_a_run_that_leaves_the_band_is_told(leaves_at: int) -> None:
    losses = [value if step < leaves_at else value + 0.5 for step, value in enumerate(CURVE)]
    found = judge_first_steps(losses, seen(), PAIRING)
    assert (found.verdict, found.paired) == ("left", True)
    assert "rounding explains" in found.reason


def test_a_loss_that_is_not_finite_is_told_whatever_else_is_known() -> None:
    losses = [*CURVE[:9], math.nan, *CURVE[10:]]
    for reference in (seen(), None):
        found = judge_first_steps(losses, reference, PAIRING)
        assert (found.verdict, found.steps) == ("left", 10)


def test_runs_that_began_otherwise_are_compared_by_their_level() -> None:
    other = {"parameters": [2], "inputs": [[0, 7]]}
    near = judge_first_steps([value * 1.02 for value in CURVE], seen(), other)
    far = judge_first_steps([value + 3.0 for value in CURVE], seen(), other)
    assert (near.verdict, near.paired) == ("inside", False)
    assert "weakly" in near.reason
    assert far.verdict == "left"
    assert judge_first_steps(CURVE[:3], seen(), other).verdict == "unknown"
    assert judge_first_steps(CURVE, None, PAIRING).verdict == "unknown"


def test_where_other_elements_are_dropped_losses_are_compared_by_their_level() -> None:
    losses = [value + 0.05 * (-1) ** number for number, value in enumerate(CURVE)]
    assert judge_first_steps(losses, seen(), PAIRING).verdict == "left"
    found = judge_first_steps(losses, seen(draws=True), PAIRING)
    assert (found.verdict, found.paired) == ("inside", False)
    assert judge_first_steps([2 * value for value in CURVE], seen(draws=True), PAIRING).verdict == "left"
    # Levers that change no number drop the same elements, and are held to that.
    assert judge_first_steps(losses, seen(draws=True, twins=[]), PAIRING).verdict == "left"


def test_losses_are_read_back(tmp_path: Path) -> None:
    import msgspec

    (tmp_path / "losses.json").write_bytes(msgspec.json.encode(seen(as_written=[1.0, None, math.nan])))
    found = read_losses(tmp_path)
    assert found is not None
    assert found.as_written == [1.0, None, None]
    (tmp_path / "losses.json").write_text(json.dumps({"as_written": "x"}))
    assert read_losses(tmp_path) is None


def test_what_was_found_for_the_loader_is_taken_over(tmp_path: Path) -> None:
    loader = Choice(id="loader", settings={"num_workers": 2}, measured_speedup=1.5)
    assert earlier_loader(tmp_path, JOB) == (None, False)
    write_job(tmp_path, JOB, (loader,))
    assert earlier_loader(tmp_path, JOB) == (loader, True)
    assert earlier_loader(tmp_path, dataclasses.replace(JOB, device="another")) == (None, False)
    write_job(tmp_path, JOB, ())
    assert earlier_loader(tmp_path, JOB) == (None, True)
    write_job(tmp_path, JOB, (), loader_is_done=False)
    assert earlier_loader(tmp_path, JOB) == (None, False)
    (tmp_path / JOB_FILE).write_text("{}")
    assert earlier_loader(tmp_path, JOB) == (None, False)
