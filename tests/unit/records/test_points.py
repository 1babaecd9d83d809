"""Points as lines of JSON, and back."""

import json
import math

import pytest

from flatout.records.points import Point, line_of, point_of


def test_a_point_comes_back_from_its_line() -> None:
    point = Point(3, 1700000000.25, {"loss": 0.5, 'na"me\n': 1e-300})
    assert point_of(line_of(point)) == point


def test_what_is_not_finite_is_null_with_a_reason_and_comes_back() -> None:
    line = line_of(Point(1, 0.0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}))
    read = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert read["values"] == {"a": None, "b": None, "c": None, "d": 1.0}
    back = point_of(line)
    assert back is not None
    assert math.isnan(back.values["a"])
    assert (back.values["b"], back.values["c"], back.values["d"]) == (math.inf, -math.inf, 1.0)


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "1", '{"step":1}', '{"step":1,"at_unix_s":2,"values":{"a":null}}', b"\xff"]
)
def test_a_line_that_is_none_is_nothing(line: str | bytes) -> None:
    assert point_of(line) is None
