"""Draws checks for a terminal: each with its status, and each problem with its fix right below."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from flatout.records.machine import CheckResult, CheckStatus
from flatout.report.plain import is_narrow, line

_STYLES: dict[CheckStatus, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "cyan"}
_LABELS: dict[CheckStatus, str] = {"ok": "ok", "warn": "warn", "fail": "FAIL", "unknown": "?"}


def draw_checks(checks: Sequence[CheckResult], console: Console, *, several: bool = False) -> None:
    """Print the checks; below 80 columns the table becomes a list. With several GPUs, each is named."""
    if checks:
        draw = _draw_list if is_narrow(console) else _draw_table
        draw(checks, console, several=several)


def _draw_table(checks: Sequence[CheckResult], console: Console, *, several: bool) -> None:
    ids = max(len(check.id) for check in checks)
    indent = " " * (6 + ids + 2)
    for check in checks:
        head = Text.assemble(
            (f"{_LABELS[check.status]:<6}", _STYLES[check.status]), line(f"{check.id:<{ids}}  ")
        )
        for words in line(_evidence(check, several=several)).wrap(console, console.width - len(indent)):
            words.rstrip()
            console.print(Text.assemble(head, words))
            head = Text(indent)
        if check.fix and check.status != "ok":
            # Left to the terminal to wrap: a fix that we broke over two lines could not be pasted.
            console.print(Text.assemble(indent, ("fix: ", "dim"), line(check.fix, "bold")), soft_wrap=True)
    console.print()


def _draw_list(checks: Sequence[CheckResult], console: Console, *, several: bool) -> None:
    for check in checks:
        console.print(Text.assemble((_LABELS[check.status], _STYLES[check.status]), " ", line(check.id)))
        console.print(Padding(line(_evidence(check, several=several)), (0, 0, 0, 2)))
        if check.fix and check.status != "ok":
            console.print(Padding(Text.assemble("fix: ", line(check.fix, "bold")), (0, 0, 0, 2)))
    console.print()


def _evidence(check: CheckResult, *, several: bool) -> str:
    if several and check.device_index is not None:
        return f"GPU {check.device_index}: {check.evidence}"
    return check.evidence


def summary(checks: Sequence[CheckResult]) -> Text:
    """How many there are of each status."""
    counts = Counter(check.status for check in checks)
    words = {"fail": "failed", "warn": "to look at", "unknown": "unknown", "ok": "ok"}
    parts = [
        Text(f"{counts[status]} {said}", _STYLES[status])  # type: ignore[index]
        for status, said in words.items()
        if counts[status]  # type: ignore[index]
    ]
    return Text(", ").join(parts)
