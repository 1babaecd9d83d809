"""`flatout learn` as a reader meets it, on the CPU."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Run
from tests.pages import insist_on_one_file


def test_alone_it_lists_the_lessons_without_measuring(flatout: Run) -> None:
    listed = json.loads(flatout("learn", "--json").stdout)
    assert listed["schema"] == "flatout.learn/1"
    assert {"memory", "bound", "launch", "kill", "parallel"} <= {one["id"] for one in listed["available"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memroy",), "did you mean 'memory'"),
        (("--all", "memory"), "lessons by name, or all of them"),
        (("--html", "x.html"), "a lesson, or --all"),
        (("memory", "--html", "nowhere/x.html"), "no folder"),
        (("parallel", "--params", "many"), "124M, 7B"),
        (("memory", "--gpu", "h1000"), "unknown GPU"),
        (("memory", "--device", "cuda:7"), "unknown device"),
    ],
)
def test_mistakes_are_answered_before_anything_is_measured(
    flatout: Run, words: tuple[str, ...], said: str
) -> None:
    done = flatout("learn", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_lesson_measures_explains_and_is_one_document(flatout: Run, tmp_path: Path) -> None:
    done = flatout("learn", "training", "--device", "cpu", "--json", "--params", "1B", "--html", "page.html")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "flatout.learn/1"
    assert document["device"]["vendor"] == "cpu"
    [lesson] = document["lessons"]
    figures = {one["name"]: one["value"] for one in lesson["figures"]}
    assert figures["optimizer bytes"] == pytest.approx(2 * figures["parameter bytes"], rel=0.01)
    assert figures["activations, batch 16"] > 10 * figures["activations, batch 1"]
    assert figures["1 B parameters"] == pytest.approx(16e9, rel=0.01)
    insist_on_one_file((tmp_path / "page.html").read_text())


@pytest.mark.full
def test_jobs_are_really_killed_and_only_the_careful_keep_their_work(flatout: Run) -> None:
    [lesson] = json.loads(flatout("learn", "kill", "--json").stdout)["lessons"]
    figures = {one["name"]: one["value"] for one in lesson["figures"]}
    plain = "torch.save over the old file, SIGKILL while it saved"
    careful = "Checkpointer, SIGKILL while it saved"
    asked = "Checkpointer, SIGTERM between two saves"
    assert figures[f"{plain}: exit code"] == figures[f"{careful}: exit code"] == -9
    assert figures[f"{plain}: kept"] == 0 < figures[f"{plain}: done"]
    assert 0 < figures[f"{careful}: kept"] < figures[f"{careful}: done"]
    assert figures[f"{asked}: exit code"] == 143
    assert figures[f"{asked}: kept"] == figures[f"{asked}: done"]
    [listing] = [one for one in lesson["pictures"] if one["kind"] == "listing"]
    assert any("Error" in line for line in listing["lines"])


@pytest.mark.full
def test_ranks_send_what_arithmetic_says(flatout: Run) -> None:
    [lesson] = json.loads(flatout("learn", "parallel", "--json").stdout)["lessons"]
    figures = {one["name"]: one["value"] for one in lesson["figures"]}
    weights = 4 * figures["parameters"]
    assert figures["ddp, sent a step"] == pytest.approx(weights, rel=0.05)
    assert figures["ddp, sent a step"] < figures["fsdp, sent a step"] < 2.1 * weights
    assert figures["pipeline, sent a step"] < figures["ddp, sent a step"] / 4
    assert figures["fsdp, held"] == pytest.approx(figures["ddp, held"] / 2, rel=0.05)


@pytest.mark.full
def test_what_is_timed_has_figures_that_hang_together(flatout: Run) -> None:
    document = json.loads(flatout("learn", "memory", "bound", "launch", "precision", "--json").stdout)
    figures = {one["id"]: {f["name"]: f["value"] for f in one["figures"]} for one in document["lessons"]}
    assert figures["memory"]["main memory"] > 1e8
    assert figures["bound"]["peak"] >= figures["bound"]["128 rows"]
    assert figures["launch"]["launch"] < 1e-3
    assert figures["precision"]["bf16, 1 + 0.001, 1000 times"] == 1.0
