"""A larger batch: where the size comes from, how far it is doubled, and what is said about it."""

from pathlib import Path

import pytest

from flatout.records.plan import Choice
from flatout.records.tuning import Pace
from flatout.runtime.command import JobCommand
from flatout.tune.batching import (
    Measure,
    Source,
    as_trials,
    climb,
    consequence,
    loader_settings_of,
    sources,
    with_batch_size,
)


def command(*given: str) -> JobCommand:
    return JobCommand(("/usr/bin/python3", *given), own_python=True, given=given)


SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=4)
parser.add_argument("--test-batch-size", type=int, default=1000)
parser.add_argument("--epochs", default=4)
"""


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (("train.py", "--batch-size", "4"), Source("--batch-size")),
        (("train.py", "--batch_size=4"), Source("--batch_size", joined=True)),
        (("train.py", "--trainer.batch_size=4"), Source("--trainer.batch_size", joined=True)),
        (("train.py", "-b", "4"), Source("-b")),
        (("train.py", "batch_size=4"), Source("batch_size", joined=True)),
        (("train.py", "--bs", "4"), Source("--bs")),
    ],
)
def test_an_option_on_the_command_line_is_found(given: tuple[str, ...], found: Source) -> None:
    assert list(sources(command(*given), 4)) == [found, Source()]


@pytest.mark.parametrize(
    "given", [("train.py", "--batch-size", "8"), ("train.py", "--lr", "4"), ("train.py", "--batch-size=16")]
)
def test_a_number_that_is_not_the_size_is_not_taken_for_it(given: tuple[str, ...]) -> None:
    assert list(sources(command(*given), 4)) == [Source()]


def test_an_option_that_the_script_declares_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert list(sources(command("train.py", "--lr", "1"), 4)) == [Source("--batch-size"), Source()]
    Path("train.py").write_text("this is no Python")
    assert list(sources(command("train.py"), 4)) == [Source()]


@pytest.mark.parametrize(
    ("given", "source", "expected"),
    [
        (("t.py", "--batch-size", "4", "x"), Source("--batch-size"), ("t.py", "--batch-size", "16", "x")),
        (("t.py", "--batch_size=4"), Source("--batch_size", joined=True), ("t.py", "--batch_size=16")),
        (("t.py",), Source("--batch-size"), ("t.py", "--batch-size", "16")),
        (("t.py",), Source("--batch_size", joined=True), ("t.py", "--batch_size=16")),
        (("t.py",), Source(), ("t.py",)),
    ],
)
def test_the_command_line_gets_the_new_size(
    given: tuple[str, ...], source: Source, expected: tuple[str, ...]
) -> None:
    changed = with_batch_size(command(*given), source.choice(16, 4))
    assert changed.given == expected
    assert changed.words == ("/usr/bin/python3", *expected)


def test_without_an_option_the_loader_is_told() -> None:
    assert loader_settings_of(Source().choice(16, 4)) == {"batch_size": 16, "batch_size_was": 4}
    assert loader_settings_of(Source("-b").choice(16, 4)) == {}


def job(rates: dict[int, float], *, obeys: bool = True, peak: int = 1) -> Measure:
    """A job with these rates by size; other sizes run out of memory."""

    def measure(choice: Choice) -> tuple[Pace | None, float | None, str]:
        size = next(value for name, value in choice.settings.items() if not name.startswith("_"))
        if size not in rates:
            return None, None, "out of memory"
        pace = Pace(step_ms=1.0, samples_per_s=rates[size], peak_bytes=peak * size)
        return pace, size if obeys else 4, ""

    return measure


NOW = Pace(step_ms=1.0, samples_per_s=100.0, peak_bytes=4)


@pytest.mark.parametrize(
    ("rates", "chosen", "why"),
    [
        ({8: 150, 16: 200, 32: 202}, 16, "no longer grows"),
        ({8: 150, 16: 200}, 16, "out of memory"),
        ({8: 101}, None, "does not grow"),
        ({}, None, "out of memory"),
        ({8: 150, 16: 152, 32: 900}, 8, "no longer grows"),
        # Twice the samples in hardly more time: the next size is four times as large.
        ({8: 190, 32: 600, 128: 700, 256: 702}, 128, "no longer grows"),
        ({8: 190, 16: 300}, 16, "out of memory"),
    ],
)
def test_sizes_are_doubled_up_to_the_knee(rates: dict[int, float], chosen: int | None, why: str) -> None:
    choice, tried, reason = climb(command("t.py", "-b", "4"), 4, NOW, None, job(rates))
    assert (choice.settings["-b"] if choice is not None else None) == chosen
    assert why in reason
    verdicts = [trial.verdict for trial in as_trials(tried, choice, NOW, reason)]
    assert verdicts.count("kept") == (chosen is not None)


def test_an_option_that_does_something_else_is_not_used() -> None:
    choice, tried, reason = climb(command("t.py", "-b", "4"), 4, NOW, None, job({8: 900}, obeys=False))
    assert choice is None
    assert "4 samples reach the model" in reason
    assert len(tried) == 2  # the option, and the loader


def test_a_size_that_would_not_fit_is_not_tried() -> None:
    rates = {8: 150.0, 16: 250.0, 32: 400.0}
    choice, tried, reason = climb(command("t.py", "-b", "4"), 4, NOW, 20, job(rates))
    assert "would not fit" in reason
    assert [one.size for one in tried] == [8, 16]
    assert choice is not None
    assert choice.settings["-b"] == 16


def test_the_learning_rate_is_spoken_of() -> None:
    words = consequence(Source("-b").choice(16, 4), 4.0)
    assert "4 -> 16" in words
    assert "learning rate is still the script's" in words
    assert "2.0 for Adam, by 4 for SGD" in words
    fewer_passes = consequence(Source("-b").choice(16, 4), 1.0)
    assert "as many samples as before" in fewer_passes
    assert "learning rate" not in fewer_passes
