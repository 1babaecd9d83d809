"""What goes back to an agent: documents that are bounded, and text that nobody obeys.

Names in documents come from scripts, traces and other people's processes. Control characters, terminal codes
and invisible text (directions, tags) are shown as escapes.
"""

from pathlib import Path
from typing import Any

import msgspec

from flatout.records.atomic import write_atomically
from flatout.records.errors import FlatoutError
from flatout.records.words import inert

_LAYOUT = "\n\t"
_SHORTEST_LIST = 3
_TEXT_AT_MOST = (4000, 1000, 300)
_LISTS_AT_MOST = (100, 30, 10, _SHORTEST_LIST)
_DEEPEST = 60
_KEPT_FILES = 32


def harmless(value: Any, depth: int = 0) -> Any:
    """The same document, with nothing in its texts that a terminal or a reader could stumble over."""
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, str):
        return inert(value, but=_LAYOUT)
    if isinstance(value, list):
        return [harmless(one, depth + 1) for one in value]
    if isinstance(value, dict):
        return {inert(str(name), but=_LAYOUT): harmless(one, depth + 1) for name, one in value.items()}
    return value


def bounded(document: dict[str, Any], most_bytes: int, folder: Path, name: str) -> dict[str, Any]:
    """The document, or as much of it as fits, with what was left out and the file that has all of it."""
    if _size(document) <= most_bytes:
        return document
    path, reason = _kept(document, folder, name)
    for longest_text in _TEXT_AT_MOST:
        for longest_list in _LISTS_AT_MOST:
            left_out: dict[str, int] = {}
            cut = _cut(document, longest_text, longest_list, left_out, "")
            note = {
                "note": "this answer was too long: lists keep their first entries, texts their beginning",
                "left_out": dict(sorted(left_out.items(), key=lambda item: -item[1])[:20]),
                "path": path,
                "path_reason": reason,
                "whole_bytes": _size(document),
            }
            found = {**cut, "cut": note}
            if _size(found) <= most_bytes:
                return found
    return {"schema": document.get("schema"), "cut": {**note, "left_out": {"everything": len(document)}}}


def _cut(value: Any, text: int, entries: int, left_out: dict[str, int], place: str) -> Any:
    if isinstance(value, str) and len(value) > text:
        left_out[place] = left_out.get(place, 0) + len(value) - text
        return value[:text] + "..."
    if isinstance(value, list):
        if len(value) > entries:
            left_out[place] = left_out.get(place, 0) + len(value) - entries
        return [_cut(one, text, entries, left_out, f"{place}[]") for one in value[:entries]]
    if isinstance(value, dict):
        return {
            name: _cut(one, text, entries, left_out, f"{place}.{name}" if place else name)
            for name, one in value.items()
        }
    return value


def _size(document: dict[str, Any]) -> int:
    return len(msgspec.json.encode(document))


def _kept(document: dict[str, Any], folder: Path, name: str) -> tuple[str | None, str | None]:
    """Where all of it lies; the newest few of these files are kept."""
    path = folder / f"{name}.json"
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(document), indent=2), synced=False)
        for old in sorted(folder.glob("*.json"))[:-_KEPT_FILES]:
            old.unlink(missing_ok=True)
    except (FlatoutError, OSError) as error:
        received = error.received if isinstance(error, FlatoutError) else str(error)
        return None, received
    return str(path), None
