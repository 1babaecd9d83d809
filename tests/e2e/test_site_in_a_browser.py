"""The whole site, built strictly and opened, wide and on a phone: nothing is fetched, nothing is missing."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.browser import CHROMIUM, Browser, browser
from tests.papers import PAGES, ROOT

LOOKED_AT = (
    "docs/README",
    "docs/start",
    "docs/mission",
    "docs/commands",
    "docs/findings",
    "docs/how-to",
    "README",
)
PHONE, DESK = 390, 1280


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_site_is_built_and_opens_without_a_request_or_a_sideways_scroll(tmp_path: Path) -> None:
    site = tmp_path / "site"
    words = [sys.executable, "-m", "scripts.site", "--out", str(site)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert all((site / page.relative_to(ROOT)).with_suffix(".html").exists() for page in PAGES)
    assert "mission" in (site / "searchindex.js").read_text("utf-8")
    if CHROMIUM is None:
        pytest.skip("built; no Chromium on this machine to look at it")
    with browser(tmp_path) as tab:
        for name in LOOKED_AT:
            for width in (PHONE, DESK):
                tab.open(site / f"{name}.html", width=width)
                assert [url for url in tab.requests() if not url.startswith(("file:", "data:"))] == []
                assert tab.complaints() == [], name
                assert tab.value("document.documentElement.scrollWidth") <= width, (name, width)
        assert "Troubleshooting" in _first_results(tab, site, "out of memory")[:3]
        assert tab.complaints() == []


def _first_results(tab: Browser, site: Path, words: str) -> list[str]:
    """Titles that the search finds, with the best first, in a page that was opened as a file."""
    tab.events.clear()
    tab.call("Page.navigate", url=f"{(site / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    deadline = time.monotonic() + 60
    while not (found := tab.value("[...document.querySelectorAll('#search-results li a')].map(a => a.text)")):
        assert time.monotonic() < deadline, "nothing is found"
        time.sleep(0.2)
    return list(found)
