"""The lines after a job: what is not known, what was noted and what was not saved is said."""

import io

from rich.console import Console

from flatout.records.protection import Protected
from flatout.records.running import JobRun
from flatout.report.running import draw_run


def told(**facts: object) -> str:
    given = {"run": "r", "steps": 3, "exit_code": 7, "took_s": 36000.0, "levers": (), "dropped_levers": {}}
    text = io.StringIO()
    draw_run(JobRun(**{**given, **facts}), Console(file=text, width=200))  # type: ignore[arg-type]
    return text.getvalue()


def test_steps_that_nobody_counted_are_unknown_and_the_notes_say_why() -> None:
    words = told(steps=None, notes=("its figures are missing: \x1b[2J",))
    assert "an unknown number of steps in 36000 s" in words
    assert "note: its figures are missing: \\x1b[2J" in words


def test_what_is_not_saved_is_named() -> None:
    words = told(protection=Protected(folder="x", saved_at=40, saved=2, left_out=("sampler", "meter")))
    assert "to go on from update 40; not saved: sampler, meter" in words
