"""Lessons as a page and in a terminal: everything is drawn, hostile names are inert, narrow is readable."""

import dataclasses
import io

from rich.console import Console

from flatout.learn.catalogue import LESSONS, entries
from flatout.records.learn import BarPicture, LearnBar, Learned
from flatout.report.learn import bar_shares, draw_entries, draw_learned
from flatout.report.learn_page import learn_page
from flatout.report.learn_words import figure_words
from tests.pages import insist_on_one_file, parsed
from tests.unit.learn.test_lessons import setting, taught

LEARNED = Learned(device=setting(gpu=True).device, lessons=tuple(taught(lesson.id) for lesson in LESSONS))
EVIL = "<script>alert(1)</script>\x1b[31m"


def hostile(name: str) -> Learned:
    bars = BarPicture(title=name, unit="bytes", bars=(LearnBar(label=name, value=1.0, words=name),))
    lesson = dataclasses.replace(
        LEARNED.lessons[0], title=name, answer=name, pictures=(bars,), seen=(name,), notes=(name,)
    )
    device = dataclasses.replace(LEARNED.device, name=name, reason=name)
    return Learned(device=device, lessons=(lesson,), disturbed=name)


def drawn(learned: Learned, width: int, *, ascii_only: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    draw_learned(learned, Console(file=file, width=width, highlight=False, markup=False, emoji=False))
    file.seek(0)
    return file.read()


def test_a_page_has_every_lesson_with_its_picture_and_commands() -> None:
    html = learn_page(LEARNED)
    insist_on_one_file(html)
    page = parsed(html)
    for lesson in LEARNED.lessons:
        assert lesson.title in page.text
        assert all(advice.command in page.text for advice in lesson.advice)
    charts = page.classed("svg", "chart")
    assert len(charts) == 4
    assert "rated, not measured" in page.text
    assert "computed, not measured" in page.text


def test_names_of_others_are_inert_on_a_page_and_in_a_terminal() -> None:
    page = parsed(learn_page(hostile(EVIL)))
    assert "<script>alert(1)</script>\\x1b[31m" in page.text
    assert "\x1b[31m" not in drawn(hostile(EVIL), 100)


def test_a_narrow_terminal_without_unicode_still_shows_the_figures() -> None:
    text = drawn(LEARNED, 20, ascii_only=True)
    assert "4.30 TB/s" in text
    assert max(len(row) for row in text.splitlines()) <= 20


def test_bars_are_as_long_as_their_values_and_no_longer() -> None:
    assert bar_shares([1.0, 2.0, 4.0], "linear") == [0.25, 0.5, 1.0]
    low, high = bar_shares([1.0, 1000.0], "log")
    assert 0 < low < 0.2
    assert high == 1.0
    assert bar_shares([0.0, 0.0], "log") == [0.0, 0.0]


def test_the_list_says_where_to_start() -> None:
    file = io.StringIO()
    draw_entries(entries(), Console(file=file, width=100))
    assert "Start with: flatout learn memory" in file.getvalue()
    assert all(lesson.id in file.getvalue() for lesson in LESSONS)


def test_units_are_written_as_people_write_them() -> None:
    assert figure_words(512, "bytes") == "512 bytes"
    assert figure_words(3.2e9, "bytes/s") == "3.20 GB/s"
    assert figure_words(20, "steps") == "20 steps"
    assert figure_words(4096, "number") == "4,096"
    assert figure_words(2.5e-6, "s") == "2.50 us"
