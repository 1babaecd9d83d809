"""Callbacks in the Trainers of transformers and Lightning, and Flatout around an Accelerator, all for real.

Each library is imported in one process, which trains several times (`integrations/*_job.py`) and tells what
it saw. Kills that end a process are `full`.
"""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "integrations"
LIBRARIES = {"hugging_face": "transformers", "lightning": "lightning", "accelerate": "accelerate"}


@dataclasses.dataclass(frozen=True)
class Library:
    """What its trainings showed."""

    name: str
    seen: dict[str, Any]
    errors: str
    folder: Path


def start(
    job: str, *words: str, cwd: Path, by: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *by, str(JOBS / f"{job}_job.py"), *words],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.fixture(
    scope="module",
    params=["hugging_face", "lightning", pytest.param("accelerate", marks=pytest.mark.full)],
)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    if importlib.util.find_spec(LIBRARIES[request.param]) is None:
        pytest.skip(f"{LIBRARIES[request.param]} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    done = start(request.param, "tour", cwd=folder)
    assert done.returncode == 0, done.stderr
    return Library(request.param, json.loads((folder / "seen.json").read_text()), done.stderr, folder)


def test_under_exact_levers_it_learns_what_it_learned_without_us(library: Library) -> None:
    assert len(set(library.seen["plain"])) > 10
    assert library.seen["planned"] == library.seen["plain"]
    assert library.seen["levers"] == ["garbage-collector"]


def test_a_lever_that_cannot_be_applied_is_told_with_what_to_do(library: Library) -> None:
    told = {
        "hugging_face": "no-such-lever is not applied: this version of Flatout does not know it",
        "lightning": "loader is not applied: its DataLoader exists already: DataLoader(num_workers=2)",
        "accelerate": "",  # loaders are made anew before they are prepared
    }[library.name]
    assert told in library.errors
    assert library.errors.count(" is not applied") == bool(told)
    assert len(library.seen["dropped"]) == bool(told)


def test_everything_is_taken_off_at_the_end(library: Library) -> None:
    assert library.seen["is_as_found"]


def test_figures_arrive_in_the_library_s_own_logs(library: Library) -> None:
    figures = library.seen["figures"]
    assert len(figures) >= 15
    last = {name: float(value) for name, value in figures[-1].items() if value and name != "epoch"}
    assert last["flatout/step_s"] > 0
    samples_per_s = last["flatout/samples_per_s"]
    assert samples_per_s * last["flatout/step_s"] == pytest.approx(8)
    assert last["flatout/mfu"] == pytest.approx(0.25 * samples_per_s / 100)
    assert 0 <= last["flatout/data_wait_share"] <= 1
    assert last["flatout/memory_peak_bytes"] > 2**20
    assert last["step"] in (16, 18)


def test_the_training_lies_in_a_run_folder(library: Library) -> None:
    profiles = [json.loads(one.read_text()) for one in library.folder.glob(".flatout/runs/*/profile.json")]
    assert any(one["trial"]["updates"] in (16, 18) for one in profiles)


def test_an_error_of_ours_ends_no_training(library: Library) -> None:
    assert library.seen["unwell"] == library.seen["plain"]
    failed = [line for line in library.errors.splitlines() if "failed, and is off" in line]
    assert 3 <= len(failed) == len(set(failed))  # each is told once


def test_asked_to_stop_it_saves_once_and_goes_on_as_if_nothing_had_been(library: Library) -> None:
    kept = {"hugging_face": "checkpoint-7", "lightning": "flatout-step=8.ckpt", "accelerate": "step-8"}
    assert library.seen["checkpoints"] == [kept[library.name]]
    assert library.seen["resumed"] == library.seen["plain"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("job", "words", "kept"),
    [
        ("hugging_face", ("7",), "out/checkpoint-7"),
        ("lightning", ("8",), "checkpoints/flatout-step=8.ckpt"),
        # The last update of an epoch, which a validation follows: that one is left out, or done.
        ("lightning", ("6",), "checkpoints/flatout-step=6.ckpt"),
        ("lightning", ("6", "SIGUSR1"), "checkpoints/flatout-step=6.ckpt"),
        ("lightning", ("8", "SIGINT"), "checkpoints/flatout-step=8.ckpt"),
        ("accelerate", ("8",), "out/step-8"),
        ("accelerate", ("6",), "out/step-6"),
    ],
)
def test_a_signal_ends_the_process_with_its_code_and_the_next_goes_on(
    job: str, words: tuple[str, ...], kept: str, tmp_path: Path
) -> None:
    places = [tmp_path / name for name in ("whole", "two")]
    for place in places:
        place.mkdir()
    assert start(job, "life", cwd=places[0]).returncode == 0
    first = start(job, "life", *words, cwd=places[1])
    number = getattr(signal, words[1]) if len(words) > 1 else signal.SIGTERM
    assert first.returncode == 128 + number, first.stderr
    assert (places[1] / kept).exists()
    second = start(job, "life", cwd=places[1])
    assert second.returncode == 0, second.stderr
    whole, two = ([json.loads(one.read_text()) for one in place.glob("losses*.json")] for place in places)
    assert two == whole


@pytest.mark.full
def test_the_other_package_of_lightning_is_as_good(tmp_path: Path) -> None:
    done = start("lightning", "tour", cwd=tmp_path, LIGHTNING="pytorch_lightning")
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["planned"] == seen["resumed"] == seen["unwell"] == seen["plain"]
    assert seen["figures"]


@pytest.mark.full
def test_ranks_of_which_one_is_told_stop_at_the_same_update(tmp_path: Path) -> None:
    by = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    places = [tmp_path / name for name in ("whole", "two")]
    for place in places:
        place.mkdir()
    assert start("accelerate", "life", cwd=places[0], by=by).returncode == 0
    first = start("accelerate", "life", "5", cwd=places[1], by=by)
    assert first.returncode != 0
    assert [one.name for one in (places[1] / "out").iterdir()] == ["step-7"]
    second = start("accelerate", "life", cwd=places[1], by=by)
    assert second.returncode == 0, second.stderr
    whole, two = (
        {one.name: json.loads(one.read_text()) for one in place.glob("losses-*.json")} for place in places
    )
    assert whole.keys() == {"losses-0.json", "losses-1.json"}
    assert two == whole


@pytest.mark.full
def test_ranks_of_lightning_are_not_called_from_a_signal(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("whole", "two")]
    for place in places:
        place.mkdir()
    assert start("lightning", "ranks", cwd=places[0]).returncode == 0
    first = start("lightning", "ranks", "4", cwd=places[1])  # Lightning's own handler would hang here
    assert first.returncode == 128 + signal.SIGTERM, first.stderr
    assert (places[1] / "checkpoints/flatout-step=6.ckpt").exists()
    second = start("lightning", "ranks", cwd=places[1])
    assert second.returncode == 0, second.stderr
    whole, two = (
        {one.name: json.loads(one.read_text()) for one in place.glob("losses-*.json")} for place in places
    )
    assert whole.keys() == {"losses-0.json", "losses-1.json"}
    assert two == whole
