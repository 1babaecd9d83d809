"""The table of metrics in docs/export.md; everything around it is written by hand."""

from pathlib import Path

from flatout.monitor.export.catalogue import SPECS

BEGIN = "<!-- Made by `make docs`: from here to the end -->\n"


def export_page(path: Path) -> str:
    """The page as it is, with the tables made anew."""
    by_hand = path.read_text().split(BEGIN)[0]
    parts = [by_hand, BEGIN]
    for group, specs in SPECS.items():
        parts.append(f"\n### Of {group}\n\n| name | kind | labels | what it says |\n|---|---|---|---|\n")
        for spec in specs:
            labels = ", ".join((*spec.labels, *spec.facts))
            parts.append(f"| `{spec.name}` | {spec.kind} | {labels} | {spec.help} |\n")
    return "".join(parts)
