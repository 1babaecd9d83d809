"""The site, without building it: what it would fetch, and where links to folders lead."""

from pathlib import Path

import pytest

from scripts.site.__main__ import fetched
from scripts.site.navigation import page_of_folder
from tests.papers import ROOT


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script async src="https://cdn.example/x.js"></script>'),
        ("a.html", '<link rel="stylesheet" href="//fonts.example/css?family=Inter">'),
        ("a.css", "@import 'https://fonts.example/inter.css';"),
        ("a.css", '@font-face { src: url("https://fonts.example/inter.woff2") }'),
    ],
)
def test_what_a_page_would_fetch_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    [found] = fetched(tmp_path)
    assert found.startswith(f"{name}: ")
    assert "example" in found


def test_links_and_what_comes_along_are_nothing_that_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://pytorch.org">torch</a><script src="_static/x.js"></script>'
    )
    (tmp_path / "a.css").write_text("a { background: url('data:image/svg+xml;http://www.w3.org/2000/svg') }")
    assert fetched(tmp_path) == []


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("decisions/", "decisions/README.md"),
        ("../examples", "../examples/README.md"),
        ("../benchmarks/results", "../benchmarks/README.md"),
        ("start.md", "start.md"),
        ("https://pytorch.org", "https://pytorch.org"),
    ],
)
def test_a_link_to_a_folder_leads_to_its_page(target: str, leads_to: str) -> None:
    assert page_of_folder(ROOT / "docs", target) == leads_to
