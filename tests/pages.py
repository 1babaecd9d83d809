"""A page as a browser would see it, after the checks that every page of ours must pass."""

import math
import re
from html.parser import HTMLParser

# Attributes of SVG that hold numbers, and where several stand in one.
_PLACES = ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "width", "height", "points", "viewbox")
_NO_END = frozenset({"meta", "br", "hr"})


class Page(HTMLParser):
    """What a browser would see: tags with attributes, cells of tables, all text outside the style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _NO_END:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)

    def classed(self, tag: str, word: str) -> list[dict[str, str]]:
        return [attrs for name, attrs in self.tags if name == tag and word in attrs.get("class", "").split()]


def parsed(html: str) -> Page:
    """The page: well nested, nothing that runs or is fetched, and every number in its pictures finite."""
    found = Page(html)
    assert not {tag for tag, _ in found.tags} & {"script", "link", "img", "iframe", "object"}
    for tag, attrs in found.tags:
        assert not attrs.keys() & {"src", "href"}
        assert not [name for name in attrs if name.startswith("on")]
        for name in _PLACES if tag not in ("meta", "html") else ():
            numbers = [float(number) for number in re.split(r"[ ,%]+", attrs.get(name, "").strip()) if number]
            assert all(math.isfinite(number) for number in numbers), (tag, name, attrs[name])
    return found


def insist_on_one_file(html: str) -> None:
    """Nothing is fetched and nothing runs; it follows the reader's colours."""
    for word in ("url(", "@import", "http", "<script", "javascript:"):
        assert word not in html
    assert "prefers-color-scheme: dark" in html
    parsed(html)
