"""Findings for a terminal: what holds the job up, the most costly first."""

from collections.abc import Sequence

from rich.console import Console

from flatout.records.finding import Finding
from flatout.report.plain import line

_STYLES = {"high": "bold red", "medium": "bold yellow", "low": "bold"}


def draw_findings(findings: Sequence[Finding], console: Console) -> None:
    """A few lines each."""
    for finding in findings:
        console.print()
        gain = f", up to {finding.predicted_speedup:.2f}x" if finding.predicted_speedup is not None else ""
        console.print(line(f"{finding.code}  {finding.title}{gain}", _STYLES[finding.severity]))
        console.print(line(f"      {finding.evidence}"))
        for place in finding.where:
            inside = f" in {place.function}" if place.function else ""
            console.print(line(f"      at {place.file}:{place.line}{inside}"))
        console.print(line(f"      {finding.fix}", "dim"))
