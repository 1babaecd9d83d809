"""A larger batch: where the size comes from, how far it is doubled, and what is said about it."""

from pathlib import Path

import pytest

from flatout.runtime.command import JobCommand
from flatout.tune.batching import (
    Source,
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


def test_the_learning_rate_is_spoken_of() -> None:
    words = consequence(Source("-b").choice(16, 4), 4.0)
    assert "4 -> 16" in words
    assert "learning rate is still the script's" in words
    assert "2.0 for Adam, by 4 for SGD" in words
    fewer_passes = consequence(Source("-b").choice(16, 4), 1.0)
    assert "as many samples as before" in fewer_passes
    assert "learning rate" not in fewer_passes
