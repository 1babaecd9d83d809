"""What changes the training is never tried unless the user allows it by name, and then it is."""

import dataclasses

import pytest

from flatout.levers.catalogue import BY_ID, LEVERS
from flatout.levers.job import JobFacts
from flatout.tune.limits import Limits
from flatout.tune.search import Finder

RECIPES = sorted(name for name, lever in BY_ID.items() if lever.safety == "recipe" and lever.switchable)
OLD_GPU = JobFacts(
    device="cuda:0",
    capability=(7, 5),
    step_ms=100.0,
    habits={
        "optimizers": [{"name": "AdamW", "fused": None, "foreach": None, "supports_fused": True}],
        "packages": {"torchao": "0.18.0"},
        "float8_layers": 3,
    },
)
NEW_GPU = dataclasses.replace(OLD_GPU, capability=(9, 0))


INFERS = dataclasses.replace(NEW_GPU, habits={**NEW_GPU.habits, "infers": True, "linears": 3})


def job_for(lever: str) -> JobFacts:
    if lever.endswith("-weights"):
        return INFERS
    return OLD_GPU if lever == "fp16" else NEW_GPU


@pytest.mark.parametrize("lever", RECIPES)
@pytest.mark.parametrize("only", [False, True])
def test_nothing_that_changes_the_training_is_tried_by_itself(lever: str, only: bool) -> None:
    finder = Finder(job_for(lever), Limits(only=frozenset({lever} if only else ())))
    assert lever not in {choice.id for choice in finder.candidates(LEVERS)}
    assert finder.conclusions.trials[lever].verdict == "skipped"
    assert finder.conclusions.trials[lever].reason.startswith("it changes the training: only with --allow")


def test_what_the_job_cannot_have_is_not_said_to_need_allowing() -> None:
    finder = Finder(NEW_GPU, Limits())
    finder.candidates(LEVERS)
    assert "only with --allow" not in finder.conclusions.trials["int8-weights"].reason


@pytest.mark.parametrize("lever", RECIPES)
def test_what_is_allowed_is_tried_even_where_no_speed_is_promised(lever: str) -> None:
    finder = Finder(job_for(lever), Limits(allow=frozenset({lever})))
    tried = {choice.id for choice in finder.candidates(LEVERS)}
    assert lever in tried
    assert not tried & (set(RECIPES) - {lever})


def test_what_is_left_out_by_name_stays_out() -> None:
    finder = Finder(NEW_GPU, Limits(allow=frozenset({"fp8"}), skip=frozenset({"fp8"})))
    finder.candidates(LEVERS)
    assert finder.conclusions.trials["fp8"].reason == "left out by --skip"
