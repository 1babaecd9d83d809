"""Reads the user's TOML files strictly: a wrong key, type or value is named with its line."""

import re
import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from flatout.records.errors import BadConfig, nearest

T = TypeVar("T")

_STEP = re.compile(r"\.([A-Za-z0-9_-]+)|\[(\d+)\]")


def read_toml(path: Path, record: type[T], *, remedy: str) -> T:
    """The record that the file describes. `record` is a msgspec Struct with forbid_unknown_fields."""
    try:
        if path.exists() and not path.is_file():
            raise BadConfig(path, "not a file", expected="a TOML file", remedy=remedy)
        text = path.read_text(encoding="utf-8-sig")  # Windows' editors begin files with a mark
    except UnicodeDecodeError as error:
        raise BadConfig(path, "not UTF-8 text", expected="a TOML file", remedy=remedy) from error
    except OSError as error:
        problem = (
            "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        )
        raise BadConfig(path, problem, expected="a TOML file", remedy="check the path") from error
    try:
        plain = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits is a plain ValueError
        line = _line_in(str(error))
        raise BadConfig(
            path, f"not TOML: {error}", expected="a TOML file", remedy=remedy, line=line
        ) from error
    try:
        return msgspec.convert(plain, record)
    except msgspec.ValidationError as error:
        raise _explain(path, text, str(error), record, remedy) from error


def _explain(path: Path, text: str, problem: str, record: type, remedy: str) -> BadConfig:
    """msgspec says "Object contains unknown field `x` - at `$.price[3]`"; find the line that it means."""
    place = re.search(r" - at `\$?(.*?)`$", problem)
    steps = _STEP.findall(place[1]) if place else []
    unknown = re.search(r"unknown field `([^`]+)`", problem)
    names = [name for name, _ in steps if name] + ([unknown[1]] if unknown else [])
    key = names[-1] if names else ""
    said = problem.split(" - at `", 1)[0]
    if unknown:
        valid = sorted(_fields_below(record))
        near = nearest(unknown[1], valid)
        remedy = f"did you mean {near!r}?" if near else remedy
        return BadConfig(
            path,
            "unknown key",
            expected=f"one of: {', '.join(valid)}",
            remedy=remedy,
            key=key,
            line=_line_of(text, steps, key),
        )
    missing = re.search(r"missing required field `([^`]+)`", said)
    if missing:
        return BadConfig(
            path,
            "a key is missing",
            expected=f"the key {missing[1]!r}",
            remedy=remedy,
            key=missing[1],
            line=_line_of(text, steps, ""),
        )
    return BadConfig(
        path, said, expected=_expectation(said), remedy=remedy, key=key, line=_line_of(text, steps, key)
    )


def _expectation(said: str) -> str:
    wanted = re.match(r"Expected (.*?)(?:, got|$)", said)
    return wanted[1] if wanted else "a value like those that `flatout gpus --price-template` prints"


def _fields_below(record: type) -> set[str]:
    """Every field name that may stand in the file, at any depth."""
    found: set[str] = set()
    pending = [msgspec.inspect.type_info(record)]
    while pending:
        info = pending.pop()
        if isinstance(info, msgspec.inspect.StructType):
            found |= {field.encode_name for field in info.fields}
            pending += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.CollectionType):
            pending.append(info.item_type)
        elif isinstance(info, msgspec.inspect.DictType):
            pending.append(info.value_type)
        elif isinstance(info, msgspec.inspect.UnionType):
            pending += info.types
    return found


def _line_of(text: str, steps: list[tuple[str, str]], key: str) -> int | None:
    """The line of `key`, inside the n-th [[table]] that the path goes through."""
    lines = text.split("\n")  # as TOML counts them: splitlines also breaks at U+2028 and the like
    start = 0
    table = ""
    for name, place in steps:
        if name:
            table = name
        elif place:
            heads = [
                n for n, line in enumerate(lines) if re.match(rf"\s*\[\[\s*{re.escape(table)}\s*\]\]", line)
            ]
            if int(place) >= len(heads):
                return None  # written as an inline table; better no line than a wrong one
            start = heads[int(place)]
    pattern = re.compile(rf"\s*(\[+\s*(?:[\w-]+\.)*)?[\"']?{re.escape(key)}[\"']?\s*(=|\]|\.)")
    for number in range(start, len(lines)):
        if key and pattern.match(lines[number]):
            return number + 1
    return start + 1 if steps else None


def _line_in(message: str) -> int | None:
    found = re.search(r"at line (\d+)", message)
    return int(found[1]) if found else None
