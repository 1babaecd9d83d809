"""The report of `check` in a terminal: what is wrong, its fix, and what to run next."""

import io
import unicodedata

import pytest
from rich.console import Console

from flatout.records.check import CheckReport
from flatout.records.machine import CheckResult
from flatout.records.trial import Shield, Trial
from flatout.report.check import draw_check

EVIL = "net[bold]\x1b[2J\n\x07evil"
OK = CheckResult(id="loss.finite", status="ok", evidence="4.2 -> 3.1 in 5 backward passes", fix="never shown")
WARN = CheckResult(
    id="loader.health", status="warn", evidence="8 ms wait a step", fix="flatout profile --loader"
)
FAIL = CheckResult(
    id="gradients.reach", status="fail", evidence=f"no gradient reaches {EVIL}", fix="use them"
)
UNKNOWN = CheckResult(id="memory.room", status="unknown", evidence="memory was not read")


def report(
    *checks: CheckResult, shield: Shield | None = None, following: str = "flatout profile x.py"
) -> CheckReport:
    trial = Trial(
        name="first run",
        folder="/tmp/run",
        command=("python", "x.py"),
        outcome="stopped",
        updates=5,
        ranks=1,
        took_s=3.0,
        shield=shield or Shield(kind="overlay"),
    )
    return CheckReport(
        run="r",
        checks=checks,
        updates=5,
        losses=(),
        calls=(),
        parameters=(),
        trials=(trial, trial),
        next=following,
    )


def drawn(found: CheckReport, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    draw_check(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_problems_carry_their_fix_and_what_is_ok_does_not() -> None:
    text = drawn(report(OK, WARN, FAIL, UNKNOWN))
    assert "fix: flatout profile --loader" in text
    assert "fix: use them" in text
    assert "never shown" not in text
    assert "1 failed, 1 to look at, 1 unknown, 1 ok" in text
    assert text.rstrip().endswith("next: flatout profile x.py")


@pytest.mark.parametrize("width", [20, 80, 120])
def test_names_from_outside_are_shown_and_not_obeyed(width: int) -> None:
    shield = Shield(kind="redirect", reason=EVIL, read_only=(f"/data/{EVIL}",), notes=(EVIL,))
    text = drawn(report(FAIL, shield=shield, following=f"flatout profile {EVIL}"), width)
    assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in text)
    assert "[bold]" in "".join(text.split())


def test_what_is_to_be_pasted_is_never_broken() -> None:
    command = "flatout profile train.py " + " ".join(f"--option-{place} {place}" for place in range(20))
    assert f"next: {command}" in drawn(report(OK, following=command), 40)


def test_the_way_in_which_files_were_protected_is_told_only_where_it_is_not_the_usual_one() -> None:
    assert "redirected" not in drawn(report(OK))
    assert "read-only" not in drawn(report(OK, shield=Shield(kind="overlay", read_only=("/",))))
    shield = Shield(
        kind="redirect", reason="no overlay here", read_only=("/", "/mnt/data"), notes=("kept wandb off",)
    )
    text = drawn(report(OK, shield=shield))
    assert "writes were redirected inside the script's processes (no overlay here)" in text
    assert "read-only during the trial: /mnt/data" in text
    assert "kept wandb off" in text


def test_a_report_fails_only_where_something_must_be_mended() -> None:
    assert report(OK, FAIL).failed
    assert not report(OK, WARN, UNKNOWN).failed
