"""Settings of Sphinx, and what Markdown for a repository lacks on a site: a side bar, links to folders."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from flatout.records.version import __version__  # noqa: E402
from scripts.site.navigation import GROUPS, TITLES, below, page_of_folder  # noqa: E402

project = "Flatout"
copyright = "The Flatout authors"  # noqa: A001 - Sphinx's name
release = __version__
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/README.md", "examples/README.md", "skills/**.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "third_party"]  # not walked into
extensions = ["myst_parser"]
# Headings are anchors as on GitHub, and blocks without a language are no Python.
myst_heading_anchors = 4
highlight_language = "none"

html_theme = "furo"
html_title = "Flatout"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_additional_pages = {"index": "to_the_first_page.html"}
templates_path = ["templates"]
html_copy_source = False
html_show_sphinx = False
html_search_scorer = str(Path(__file__).parent / "scorer.js")
# A page opened as a file may not read others, so results are titles alone.
html_show_search_summary = False
# Nothing is fetched from anywhere: fonts are the reader's own.
html_theme_options = {"top_of_page_buttons": [], "footer_icons": []}

_LINK = re.compile(r"(\]\()([^)#\s]+)(\))")


def on_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """What Sphinx reads instead of a page's text."""
    folder = (ROOT / f"{page}.md").parent
    text = _LINK.sub(lambda link: link[1] + page_of_folder(folder, link[2]) + link[3], source[0])
    if page == root_doc:
        text += "".join(_tree(pages, folder, group) for group, pages in GROUPS.items())
    source[0] = text + _tree(below(page), folder)


def _tree(names: Sequence[str], folder: Path, caption: str = "") -> str:
    if not names:
        return ""
    said = f":caption: {caption}\n" if caption else ""
    entries = "".join(f"{_entry(name, folder)}\n" for name in names)
    return f"\n\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n{said}\n{entries}```\n"


def _entry(name: str, folder: Path) -> str:
    place = os.path.relpath(ROOT / name, folder)
    return f"{TITLES[name]} <{place}>" if name in TITLES else place


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", on_the_site)
