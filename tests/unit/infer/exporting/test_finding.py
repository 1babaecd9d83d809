"""What the user named is found, or the nearest is offered; what went wrong has a line of theirs."""

import sys
from pathlib import Path

import pytest

from flatout.infer.exporting.finding import failure, found, line_of
from flatout.records.errors import CallerMistake, JobFailed

CODE = """
def make():
    return 5

def broken():
    raise ValueError("no weights here")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    path = tmp_path / "their_models.py"
    path.write_text(CODE)
    return path


def test_a_function_is_found_by_module_and_by_file(file: Path) -> None:
    assert found("their_models:make")() == 5
    assert found(f"{file}:make")() == 5


def test_what_is_not_there_is_answered(file: Path) -> None:
    with pytest.raises(CallerMistake, match="did you mean 'make'"):
        found(f"{file}:maek")
    with pytest.raises(CallerMistake, match="no module"):
        found("their_model_s:make")
    with pytest.raises(CallerMistake, match="no file"):
        found("their_models_.py:make")
    with pytest.raises(CallerMistake, match="names no function"):
        found("their_models")


def test_the_line_is_the_last_one_that_is_theirs(file: Path) -> None:
    with pytest.raises(ValueError, match="no weights") as caught:
        found(f"{file}:broken")()
    words = failure(caught.value, "calling it").received
    assert words == f"calling it failed at {file}:6: ValueError: no weights here"


def test_a_line_that_torch_names_counts(file: Path) -> None:
    error = RuntimeError(
        f'cannot do that\n\nfrom user code:\n   File "{file}", line 3, in make\n    return 5'
    )
    assert line_of(error) == f"{file}:3"


def test_code_that_does_not_import_is_the_jobs_failure(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import not_there_at_all\n")
    with pytest.raises(JobFailed, match=r"bad\.py:1.*not_there_at_all"):
        found(f"{path}:make")
