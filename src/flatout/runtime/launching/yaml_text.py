"""YAML from plain data: mappings and lists in blocks, and every text as JSON writes it, which is YAML too.

No text can turn into a number, a truth or a comment, for none stands without quotes. Texts of several lines
stand as blocks where nothing in them needs an escape.
"""

import json
import re
import unicodedata
from typing import Any

_INDENT = "  "
# As field names are; anything else is quoted. `yes`, `on` and `null` would be read as something else.
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_PLAIN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def as_yaml(*documents: Any) -> str:
    """One file of one or more documents."""
    return "---\n".join("\n".join(_lines(document)) + "\n" for document in documents)


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict) and value:
        return [line for key, inner in value.items() for line in _under(f"{_key(key)}:", inner)]
    if isinstance(value, list | tuple) and value:
        return [line for inner in value for line in _item(inner)]
    return [_scalar(value)]


def _under(head: str, value: Any) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        return [f"{head} |", *(_INDENT + line if line else "" for line in value[:-1].split("\n"))]
    if isinstance(value, dict | list | tuple) and value:
        return [head, *(_INDENT + line if line else "" for line in _lines(value))]
    return [f"{head} {_scalar(value)}"]


def _item(value: Any) -> list[str]:
    if isinstance(value, str) or not value:
        return _under("-", value)
    first, *rest = _lines(value)
    return [f"- {first}", *(_INDENT + line if line else "" for line in rest)]


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) and key.lower() not in _NOT_PLAIN else text(key)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value)


def text(value: str) -> str:
    """In double quotes, with escapes that YAML and JSON share."""
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(character if _is_plain(character) else _escape(character) for character in quoted)


def _is_plain(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _is_block(value: str) -> bool:
    """Whether it can stand line by line: ends with one line end, and nothing in it needs care."""
    if "\n" not in value[:-1] or not value.endswith("\n") or value.endswith("\n\n") or value[0] in " \n":
        return False
    lines = value.split("\n")
    return all(map(_is_plain, "".join(lines))) and not any(line != line.rstrip() for line in lines)
