"""Our pages in a real browser: they ask for nothing, complain of nothing, and fit a phone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flatout.report.autopsy_page import autopsy_page
from flatout.report.fit_page import fit_page
from flatout.report.fleet_page import fleet_page
from flatout.report.learn_page import learn_page
from flatout.report.power_page import power_page
from flatout.report.profile_page import profile_page
from flatout.report.trace_page import trace_page
from flatout.report.tuning_page import tuning_page
from tests.e2e.browser import CHROMIUM, browser
from tests.profiles import profile, recorded, recorded_trace
from tests.unit.report import test_autopsy_page as autopsies
from tests.unit.report import test_fit_page as fits
from tests.unit.report import test_fleet_page as fleets
from tests.unit.report import test_learn_page as lessons
from tests.unit.report import test_power_page as sweeps
from tests.unit.report.test_profile_page import EVIL, HUGE, hostile
from tests.unit.report.test_tuning_page import TUNING

PAGES: dict[str, Callable[[], str]] = {
    "profile": lambda: profile_page(recorded(), TUNING),
    "plain": lambda: profile_page(profile()),
    "hostile": lambda: profile_page(hostile(EVIL + HUGE)),
    "trace": lambda: trace_page(recorded_trace()),
    "tune": lambda: tuning_page(TUNING),
    "power": lambda: power_page(sweeps.SWEEP),
    "hostile power": lambda: power_page(sweeps.hostile(EVIL + HUGE)),
    "fit": lambda: fit_page(fits.FIT),
    "hostile fit": lambda: fit_page(fits.hostile(EVIL + HUGE)),
    "fleet": lambda: fleet_page(fleets.fleet(20)),
    "hostile fleet": lambda: fleet_page(fleets.fleet(3, name=EVIL + HUGE, job=EVIL + HUGE)),
    "learn": lambda: learn_page(lessons.LEARNED),
    "hostile learn": lambda: learn_page(lessons.hostile(EVIL + HUGE)),
    "autopsy": lambda: autopsy_page(autopsies.AUTOPSY),
    "hostile autopsy": lambda: autopsy_page(autopsies.hostile(EVIL + HUGE)),
}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_pages_open_without_a_request_a_complaint_or_a_sideways_scroll(tmp_path: Path) -> None:
    with browser(tmp_path) as tab:
        for name, make in PAGES.items():
            file = tmp_path / f"{name}.html"
            file.write_text(make())
            for width in (1280, 400):
                for scheme in ("light", "dark"):
                    tab.open(file, width=width, scheme=scheme)
                    assert tab.requests() == [file.as_uri()], name
                    assert tab.complaints() == [], name
                    wide = tab.value("document.documentElement.scrollWidth")
                    assert wide <= width, (name, width, wide)
                    paper = tab.value("getComputedStyle(document.body).backgroundColor")
                    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 28)")
