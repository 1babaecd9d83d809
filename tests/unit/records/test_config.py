"""The user's TOML files: what is wrong is named with its key and its line (fault 58)."""

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flatout.hardware.catalogue import PRICES_VARIABLE, price_table, price_template
from flatout.records.errors import BadConfig

GOOD = """\
# my prices
as_of = 2026-11-15
note = "ours"

[[price]]
gpu = "h200-sxm"
usd_per_gpu_hour = 3.5
provider = "one"

[[price]]
gpu = "a100-80gb-sxm"
usd_per_gpu_hour = 2
provider = "two"

[[price]]   # the third
gpu = "b200-sxm"
usd_per_gpu_hour = 5.0
provider = "three"
"""


class Case(NamedTuple):
    """`old` becomes `new` (in the n-th place), and the error must name `key` and `line` and say `says`."""

    old: str
    new: str
    key: str
    line: int | None
    says: str
    place: int = 1


CASES = {
    "unknown key at the top": Case('note = "ours"', 'notes = "ours"', "notes", 3, "did you mean 'note'?"),
    "unknown key in the first table": Case(
        "usd_per_gpu_hour", "usd_per_gpu_hours", "usd_per_gpu_hours", 7, "did you mean 'usd_per_gpu_hour'?"
    ),
    "unknown key in the second table": Case(
        "usd_per_gpu_hour", "usd_per_hour", "usd_per_hour", 12, "usd_per_gpu_hour", 2
    ),
    "unknown key in the third table": Case("provider", "provider_", "provider_", 18, "'provider'?", 3),
    "unknown quoted key": Case("provider", '"provider x"', "provider x", 13, "'provider'?", 2),
    "unknown key like no other": Case('note = "ours"', "zzzzzzzz = 1", "zzzzzzzz", 3, "one of: as_of"),
    "unknown table": Case("[[price]]", "[[prize]]", "prize", 10, "did you mean 'price'?", 2),
    "text for a number": Case("3.5", '"3.5"', "usd_per_gpu_hour", 7, "`float`"),
    "true for a number": Case("= 2\n", "= true\n", "usd_per_gpu_hour", 12, "`float`"),
    "number for a text": Case('"three"', "3", "provider", 18, "`str`"),
    "number for a text at the top": Case('"ours"', "7", "note", 3, "`str`"),
    "negative price": Case("= 5.0", "= -5.0", "usd_per_gpu_hour", 17, "> 0"),
    "no price at all": Case("= 5.0", "= 0", "usd_per_gpu_hour", 17, "> 0"),
    "not a number": Case("= 5.0", "= nan", "usd_per_gpu_hour", 17, "`float`"),
    "infinite price": Case("= 5.0", "= inf", "usd_per_gpu_hour", 17, "`float`"),
    "overflowing price": Case("= 5.0", "= 1e999", "usd_per_gpu_hour", 17, "`float`"),
    "missing key in the first table": Case('provider = "one"\n', "", "provider", 5, "the key 'provider'"),
    "missing key in the second table": Case('gpu = "a100-80gb-sxm"\n', "", "gpu", 10, "the key 'gpu'"),
    "missing key in the third table": Case('gpu = "b200-sxm"\n', "", "gpu", 15, "the key 'gpu'"),
    "missing date": Case("as_of = 2026-11-15\n", "", "as_of", None, "the key 'as_of'"),
    "a time for a date": Case("2026-11-15", "2026-11-15T10:00:00", "as_of", 2, "`date`"),
    "a number for a date": Case("2026-11-15", "20261115", "as_of", 2, "`date`"),
    "words for a date": Case("2026-11-15", '"last week"', "as_of", 2, "date"),
    "another currency": Case('note = "ours"', 'currency = "EUR"', "currency", 3, "EUR"),
    "a table for the list": Case("[[price]]\n", "[price]\n", "price", 5, "`array`"),
    "date out of range": Case("2026-11-15", "2026-02-30", "", 2, "not TOML"),
    "duplicate key": Case("usd_per_gpu_hour = 2\n", 'gpu = "l4"\n', "", 12, "not TOML"),
    "not TOML": Case("provider = ", "provider: ", "", 13, "not TOML", 2),
    "unclosed text": Case('"two"', '"two', "", 13, "not TOML"),
    "unknown GPU": Case("b200-sxm", "b200-sxn", "gpu", 16, "did you mean 'b200-sxm'?"),
    "unknown GPU like no other": Case("a100-80gb-sxm", "%%%", "gpu", 11, "flatout gpus"),
}


def changed(case: Case) -> str:
    parts = GOOD.split(case.old)
    assert len(parts) > case.place, "the case must change something"
    if case.key == "price":  # the tables after it would clash with [price]
        return GOOD.partition("\n\n[[price]]")[0] + "\n\n[price]\n" + 'gpu = "h200-sxm"\n'
    return case.old.join(parts[: case.place]) + case.new + case.old.join(parts[case.place :])


def refused(path: Path) -> BadConfig:
    before = path.read_bytes()
    with pytest.raises(BadConfig) as caught:
        price_table(path)
    assert caught.value.exit_code == 2
    assert caught.value.path == path
    assert caught.value.received.startswith(str(path))
    assert path.read_bytes() == before
    return caught.value


def test_the_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(GOOD)
    table = price_table(path)
    assert [(row.gpu, row.usd_per_gpu_hour) for row in table.price] == [
        ("h200-sxm", 3.5),
        ("a100-80gb-sxm", 2.0),
        ("b200-sxm", 5.0),
    ]
    assert path.read_text() == GOOD


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["unix", "windows"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_wrong_is_named_with_its_key_and_line(tmp_path: Path, case: Case, newline: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(changed(case), newline=newline)
    error = refused(path)
    assert (error.key, error.line) == (case.key, case.line)
    assert case.says in str(error)
    if case.line:
        assert f"line {case.line}" in error.received
    if case.key:
        assert repr(case.key) in error.received


def test_lines_are_counted_as_editors_do_whatever_a_comment_holds(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    exotic = GOOD.replace("# my prices", "# my\u2028 \x85 prices")
    path.write_text(exotic.replace('"three"', "3"), encoding="utf-8")
    assert refused(path).line == 18
    path.write_text(exotic.replace("b200-sxm", "b200-sxn"), encoding="utf-8")
    assert refused(path).line == 16


def test_an_unknown_gpu_is_found_where_it_is_meant_not_where_it_is_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    text = GOOD.replace('"ours"', '"b200-sxn"').replace("# my prices", '# gpu = "b200-sxn"')
    path.write_text(text.replace('"b200-sxm"', "'b200-sxn'"))
    assert refused(path).line == 16


def test_in_an_inline_table_no_line_is_named_rather_than_a_wrong_one(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        'as_of = 2026-11-15\nprice = [\n  { gpu = "l4", usd_per_gpu_hour = 1, vendor = "x" },\n]\n'
    )
    error = refused(path)
    assert (error.key, error.line) == ("vendor", None)


def test_an_unfinished_last_line_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(GOOD + "note =")
    assert "not TOML" in refused(path).received


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", GOOD.encode().replace(b"ours", b"caf\xe9"), GOOD.encode("utf-16")]
)
def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "prices.toml"
    path.write_bytes(data)
    assert "not UTF-8" in refused(path).received


def test_a_missing_file_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no such file") as caught:
        price_table(tmp_path / "missing.toml")
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_for_a_file_is_refused_as_unreadable(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="not a file") as caught:
        price_table(tmp_path)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("value", ["[" * 10**5, "9" * 10**5, "{a = " * 10**4])
def test_a_hostile_value_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(f"as_of = {value}")
    assert "not TOML" in refused(path).received


@settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.binary(max_size=60) | st.text(alphabet='[]{}=".\n#apricegu_o-0123 ', max_size=60).map(str.encode))
def test_no_file_makes_any_other_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "prices.toml"
    path.write_bytes(data)
    assert refused(path).exit_code == 2
    assert path.read_bytes() == data


def test_the_file_that_the_environment_names_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(GOOD)
    assert price_table(environment={PRICES_VARIABLE: str(path)}).note == "ours"
    assert price_table(environment={PRICES_VARIABLE: ""}).note != "ours"


def test_a_named_path_wins_over_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(GOOD)
    assert price_table(path, environment={PRICES_VARIABLE: "/nowhere"}).note == "ours"


def test_the_template_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(price_template(), encoding="utf-8")
    assert price_table(path) == price_table(environment={})
