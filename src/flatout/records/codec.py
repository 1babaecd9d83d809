"""Records to JSON and back. Not-a-number and infinity become null, with the reason beside them."""

import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flatout.records.errors import CorruptFile, ForeignVersion
from flatout.records.words import as_utf8

T = TypeVar("T")

# Where a document keeps the reasons for its nulls: {"path.to.field": "why"}.
REASONS_KEY = "nulls"


def document(kind: str, version: int, body: Any) -> dict[str, Any]:
    """A JSON-ready document: `schema` first, then the fields of `body` (a record or a dict)."""
    reasons: dict[str, str] = {}
    plain = _finite(msgspec.to_builtins(body), "", reasons)
    schema = {"schema": schema_name(kind, version)}
    whole = {**schema, **plain, **schema}  # first in the file, and never the body's own
    return {**whole, REASONS_KEY: reasons} if reasons else whole


def schema_name(kind: str, version: int) -> str:
    """The name by which readers recognise a document."""
    return f"flatout.{kind}/{version}"


def encode(kind: str, version: int, body: Any) -> bytes:
    """A document as readable JSON, with a line end."""
    return msgspec.json.format(msgspec.json.encode(document(kind, version, body)), indent=2) + b"\n"


def decode(data: bytes, path: Path, kind: str, version: int, record: type[T], *, remedy: str) -> T:
    """The record in a document. Fields that we don't know are ignored; other versions are refused."""
    plain = parse(data, path, remedy=remedy)
    check_schema(plain, path, kind, version, remedy=remedy)
    try:
        return msgspec.convert(plain, record)
    except msgspec.ValidationError as error:
        raise CorruptFile(path, str(error), remedy=remedy) from error


def parse(data: bytes, path: Path, *, remedy: str) -> Any:
    """What a JSON file of ours holds, as plain values."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(path, f"not JSON ({error})", remedy=remedy) from error


def check_schema(plain: object, path: Path, kind: str, version: int, *, remedy: str) -> None:
    """Refuse what is not a document of this kind and version."""
    wanted = schema_name(kind, version)
    found = plain.get("schema") if isinstance(plain, dict) else None
    if not isinstance(found, str):
        raise CorruptFile(path, "it does not say what it is (no schema)", remedy=remedy)
    if found != wanted:
        raise ForeignVersion(path, found, readable=repr(wanted))


def _finite(value: Any, path: str, reasons: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        reasons[path] = "not a number" if math.isnan(value) else "infinite"
        return None
    if isinstance(value, dict):
        plain = ((as_utf8(str(key)), item) for key, item in value.items())
        return {key: _finite(item, _join(path, key), reasons) for key, item in plain}
    if isinstance(value, list | tuple):
        return [_finite(item, _join(path, str(place)), reasons) for place, item in enumerate(value)]
    return as_utf8(value) if isinstance(value, str) else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
