"""Where a result cannot be left, that is told before the work; and a tuning outlives its plan's place."""

import contextlib
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flatout.cli import tune
from flatout.cli.options import Output, Place, leave_page
from flatout.records.errors import CallerMistake, CannotWrite
from flatout.records.plan import Fingerprint, Plan
from flatout.records.runs import RunFolder
from flatout.records.tuning import Tuning
from flatout.tune.keeping import keep
from flatout.tune.result import Found
from tests.unit.report.test_draw_tuning import TUNING


def test_a_folder_or_a_place_in_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="is a directory"):
        Place("page").convert(str(tmp_path), None, None)
    with pytest.raises(CallerMistake, match="there is no folder"):
        Place("page").convert(str(tmp_path / "nowhere" / "page.html"), None, None)
    assert Place("page").convert(str(tmp_path / "page.html"), None, None) == tmp_path / "page.html"
    assert Place("page").convert("/dev/null", None, None) == Path("/dev/null")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_could_not_be_written_is_refused_before_anything_is_tuned(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        Path("train.py").write_text("")
        done = CliRunner().invoke(tune.command, ["--plan", ".", "train.py"])
        assert done.exit_code == 2
        assert "is a directory" in done.output
        if os.geteuid() != 0:
            Path("closed").mkdir(mode=0o500)
            done = CliRunner().invoke(tune.command, ["--plan", "closed/flatout.toml", "train.py"])
            assert isinstance(done.exception, CannotWrite)
        assert not Path(".flatout").exists()


def test_what_was_found_is_kept_where_the_plan_cannot_be_written(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / ".flatout", command="tune", arguments=("tune", "train.py"))
    plan = Plan(job=Fingerprint(script="train.py", script_sha256=""))
    found = Found(tuning=TUNING, plan=plan, interrupted=False)
    (tmp_path / "flatout.toml").mkdir()
    with pytest.raises(CannotWrite):
        keep(found, folder, tmp_path / "flatout.toml", lambda _tuning: "")
    assert folder.read("tune", 1, Tuning).plan == str(tmp_path / "flatout.toml")


def test_a_page_may_have_bytes_that_are_no_text(tmp_path: Path) -> None:
    leave_page(Output(as_json=False, quiet=True), tmp_path / "page.html", "<p>/d/\udcff</p>")
    assert (tmp_path / "page.html").read_text() == "<p>/d/?</p>"
