"""The tree of errors: exit codes, three parts, and names that are offered instead of a wrong one."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.records import errors

# Seeded, and without a clock: a busy machine is no failure.
patient = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

PLACE = Path("/some/where")

# One way to make each class; a class that is missing here fails the first test.
MAKERS: dict[type[errors.FlatoutError], Callable[[], errors.FlatoutError]] = {
    errors.FlatoutError: lambda: errors.FlatoutError("this", expected="that", remedy="do it"),
    errors.CallerMistake: lambda: errors.CallerMistake("this", expected="that", remedy="do it"),
    errors.UnknownName: lambda: errors.UnknownName("GPU", "h20", ["h200", "a100"]),
    errors.BadConfig: lambda: errors.BadConfig(PLACE, "wrong", expected="right", remedy="do it"),
    errors.EnvironmentProblem: lambda: errors.EnvironmentProblem("this", expected="that", remedy="do it"),
    errors.MissingExtra: lambda: errors.MissingExtra("torch", extra="torch", wanted_for="measuring"),
    errors.CannotWrite: lambda: errors.CannotWrite(PLACE, OSError(28, "No space left"), remedy="do it"),
    errors.CorruptFile: lambda: errors.CorruptFile(PLACE, "cut off", remedy="do it"),
    errors.ForeignVersion: lambda: errors.ForeignVersion(PLACE, 9, readable="version 1"),
    errors.LockHeld: lambda: errors.LockHeld(PLACE, "process 7 on here"),
    errors.ChildFailed: lambda: errors.ChildFailed("this", expected="that", remedy="do it"),
    errors.JobFailed: lambda: errors.JobFailed("this", expected="that", remedy="do it"),
}
EXIT_CODES = {"CallerMistake": 2, "EnvironmentProblem": 3, "JobFailed": 4}


def classes() -> set[type[errors.FlatoutError]]:
    return {
        found
        for found in vars(errors).values()
        if isinstance(found, type) and issubclass(found, errors.FlatoutError)
    }


def drawn_tree() -> dict[str, tuple[str, int | None]]:
    """Each class in the module's docstring, with its parent and the exit code drawn beside it."""
    tree: dict[str, tuple[str, int | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z]\w+)(?:\s+exit (\d))?", line)
        if not found:
            continue
        depth = len(found[1])
        above = [(other, name) for other, name in above if other < depth]
        tree[found[2]] = (above[-1][1] if above else "Exception", int(found[3]) if found[3] else None)
        above.append((depth, found[2]))
    return tree


def test_every_class_can_be_made_here() -> None:
    assert set(MAKERS) == classes()


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_says_what_came_what_was_expected_and_what_to_do(kind: type[errors.FlatoutError]) -> None:
    error = MAKERS[kind]()
    assert type(error) is kind
    assert error.received
    assert error.expected
    assert error.remedy
    first, second, third = str(error).splitlines()
    assert first == error.received
    assert second == f"  expected: {error.expected}"
    assert third == f"  try:      {error.remedy}"


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_carries_the_exit_code_of_its_branch(kind: type[errors.FlatoutError]) -> None:
    branch = next((code for base in kind.__mro__ if (code := EXIT_CODES.get(base.__name__))), 3)
    assert MAKERS[kind]().exit_code == branch


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = drawn_tree()
    real = {kind.__name__: kind.__bases__[0].__name__ for kind in classes()}
    assert {name: parent for name, (parent, _) in drawn.items()} == real
    assert {name: code for name, (_, code) in drawn.items() if code} == EXIT_CODES


def test_an_unknown_name_lists_the_valid_ones_and_offers_the_nearest() -> None:
    error = errors.UnknownName("precision", "BF15", ["fp32", "bf16", "fp8"])
    assert "'BF15'" in error.received
    assert error.expected == "one of: fp32, bf16, fp8"
    assert error.remedy == "did you mean 'bf16'?"
    assert error.valid == ("fp32", "bf16", "fp8")


def test_an_unknown_name_like_no_other_offers_none() -> None:
    error = errors.UnknownName("precision", "zzzzzz", ["fp32", "bf16"])
    assert "did you mean" not in error.remedy
    assert "fp32, bf16" in error.expected


def test_an_unknown_name_where_there_are_none_says_so() -> None:
    assert "none to choose from" in errors.UnknownName("device", "cuda:0", []).expected


def test_an_unknown_name_takes_any_iterable_once() -> None:
    error = errors.UnknownName("device", "b", iter(["a", "bb"]))
    assert error.valid == ("a", "bb")
    assert "a, bb" in error.expected


def test_a_given_remedy_wins_over_the_nearest_name() -> None:
    assert errors.UnknownName("run", "abc", ["abd"], remedy="list them").remedy == "list them"


def test_a_long_list_is_shortened_to_names_like_the_one_given() -> None:
    names = [f"card-{number:03}" for number in range(300)] + ["rtx4090"]
    error = errors.UnknownName("GPU", "rtx409", names)
    assert "one of 301 names" in error.expected
    assert "rtx4090" in error.expected
    assert error.expected.count(",") <= 8
    assert error.remedy == "did you mean 'rtx4090'?"


def test_a_long_list_with_nothing_alike_still_shows_some() -> None:
    names = [f"card-{number:03}" for number in range(300)]
    assert "card-000" in errors.UnknownName("GPU", "???", names).expected


@patient
@given(name=st.text(max_size=30), valid=st.lists(st.text(min_size=1, max_size=10), max_size=60))
def test_any_name_against_any_list_makes_an_error_in_three_parts(name: str, valid: list[str]) -> None:
    error = errors.UnknownName("thing", name, valid)
    assert error.received
    assert error.expected
    assert error.remedy
    near = errors.nearest(name, valid)
    assert near is None or near in valid


def test_nearest_ignores_case_and_returns_the_name_as_it_is_spelled() -> None:
    assert errors.nearest("h200-sxm", ["H200-SXM", "A100"]) == "H200-SXM"


def test_a_bad_config_names_file_line_and_key() -> None:
    error = errors.BadConfig(PLACE, "wrong", expected="right", remedy="fix", key="gpu", line=7)
    assert error.received == f"{PLACE}, line 7, key 'gpu': wrong"


def test_a_missing_extra_names_what_to_install() -> None:
    remedy = errors.MissingExtra("torch", extra="torch", wanted_for="x").remedy
    assert remedy.startswith("pip install torch ")
    assert "flatout[torch]" in remedy
