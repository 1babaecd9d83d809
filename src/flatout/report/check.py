"""`check` for a terminal: what the first updates showed, and what to run next."""

from rich.console import Console

from flatout.records.check import CheckReport
from flatout.report.checks import draw_checks, summary
from flatout.report.plain import line
from flatout.report.trial import shield_notes


def draw_check(report: CheckReport, console: Console) -> None:
    """Print the checks, a summary, and the next step."""
    draw_checks(report.checks, console)
    console.print(summary(report.checks))
    for note in shield_notes(report.trials[0]):
        console.print(line(note, "dim"))
    console.print(line(f"next: {report.next}", "bold"), soft_wrap=True)
