"""Odd places to run in: closed and full outputs, no home, a folder that is gone, the user's own modules."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Run


def in_a_shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = line.replace("flatout", f"{sys.executable} -P -m flatout", 1)
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "FLATOUT_CACHE_DIR": str(cwd / "cache"), **environment},
        timeout=250,
    )


@pytest.mark.parametrize("words", ["gpus h200", "--help", "--version", "report", "completion bash"])
def test_a_closed_output_is_no_defect(tmp_path: Path, words: str) -> None:
    assert in_a_shell(f"flatout {words} >&-", tmp_path).returncode == 0


@pytest.mark.parametrize("words", ["gpus h200", "gpus", "--help", "report", "doctor --json"])
def test_a_full_disk_behind_the_output_is_the_environments_fault(tmp_path: Path, words: str) -> None:
    done = in_a_shell(f"flatout {words} > /dev/full", tmp_path)
    assert done.returncode == 3
    assert "No space left on device" in done.stderr
    assert "defect" not in done.stderr


@pytest.mark.parametrize("words", ["gpus", "gpus --json", "doctor"])
def test_a_reader_that_goes_away_leaves_the_exit_code_alone(tmp_path: Path, words: str) -> None:
    done = in_a_shell(f"set -o pipefail; flatout {words} | head -c 1", tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_folder_that_was_deleted_does_not_stop_the_doctor(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = in_a_shell(f"cd {gone} && rmdir {gone} && exec flatout doctor", tmp_path)
    assert done.returncode in (0, 1), done.stderr  # torch itself may refuse to be imported there
    assert "env.debug" in done.stdout


def test_a_bare_flatout_is_a_question_and_answered_with_what_to_do_next(flatout: Run) -> None:
    done = flatout()
    assert done.returncode == 0
    assert "flatout doctor" in done.stdout
    assert done.stderr == ""


@pytest.mark.full
def test_modules_of_the_users_are_not_ours_to_import(tmp_path: Path) -> None:
    for name in ("statistics", "types", "json", "torch", "platform", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user ran')")
    script = Path(sys.executable).with_name("flatout")
    if not script.exists():
        pytest.skip("flatout is not installed here, only importable")
    for words in (
        ["doctor", "--json"],
        ["limits", "--device", "cpu", "--dtype", "fp32", "--no-cache", "--json"],
    ):
        done = subprocess.run(
            [str(script), *words], capture_output=True, text=True, cwd=tmp_path, timeout=250, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["schema"]


def test_a_program_that_is_no_python_is_refused(flatout: Run) -> None:
    done = flatout("doctor", "--python", "/bin/ls")
    assert done.returncode == 2
    assert "no Python at" in done.stderr


def test_a_run_read_elsewhere_says_whose_it_is(flatout: Run) -> None:
    flatout("doctor", "--save")
    first = flatout("report", "latest").stdout.splitlines()[0]
    assert "doctor on " in first
    assert first.endswith("done")


def test_reading_where_there_is_no_run_says_how_to_make_one(flatout: Run) -> None:
    done = flatout("report", "latest")
    assert done.returncode == 2
    assert "doctor --save" in done.stderr


def test_saved_runs_keep_out_of_the_users_repository(flatout: Run, tmp_path: Path) -> None:
    flatout("doctor", "--save")
    assert (tmp_path / ".flatout" / ".gitignore").read_text() == "*\n"
