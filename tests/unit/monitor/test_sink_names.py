"""`tensorboard:runs/x,wandb:project`: names, places and packages that are missing."""

import sys

import pytest

from flatout.monitor.sinks.catalogue import KINDS, Target, target, targets
from flatout.records.errors import CallerMistake, MissingExtra, UnknownName


def test_several_are_named_with_commas() -> None:
    assert targets("tensorboard:runs/x, jsonl:out.jsonl") == [
        Target("tensorboard", "runs/x"),
        Target("jsonl", "out.jsonl"),
    ]


def test_a_place_may_hold_colons_and_may_be_left_out() -> None:
    assert targets("jsonl:a:b") == [Target("jsonl", "a:b")]
    assert targets("jsonl") == [Target("jsonl", KINDS["jsonl"].default)]


def test_a_name_that_is_wrong_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="tensorboard"):
        targets("tensorbord:runs")


@pytest.mark.parametrize("text", ["jsonl:a,jsonl:a", ",", " , "])
def test_nothing_or_the_same_twice_is_a_mistake(text: str) -> None:
    with pytest.raises(CallerMistake):
        targets(text)


@pytest.mark.parametrize("package", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"flatout\[{package}\]"):
        target(package, "somewhere")


def test_a_plain_file_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("tensorboard", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    assert target("jsonl", "x").place == "x"


def test_each_rank_has_a_place_of_its_own() -> None:
    assert Target("jsonl", "a/out.jsonl").of_rank(0).place == "a/out.jsonl"
    assert Target("jsonl", "a/out.jsonl").of_rank(3).place == "a/out-rank3.jsonl"
    assert Target("tensorboard", "runs").of_rank(3).place == "runs/rank3"
    assert Target("wandb", "project").of_rank(3).place == "project"
