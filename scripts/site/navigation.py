"""What stands in the site's side bar, by what a reader wants; a page that is missing here is an error."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Titles of groups, and their pages without ".md". A page's own heading is its title there.
GROUPS: dict[str, tuple[str, ...]] = {
    "Begin": ("docs/start", "README"),
    "How to": (
        "docs/how-to",
        "docs/troubleshooting",
        "docs/memory",
        "docs/safety",
        "docs/nan",
        "docs/debugging",
        "docs/logging",
        "docs/parallel",
        "docs/launch",
        "docs/integrations",
        "docs/inference",
        "docs/serve",
        "docs/traces",
        "docs/agents",
        "examples/README",
    ),
    "Watch and operate": ("docs/watch", "docs/processes", "docs/power", "docs/export", "docs/fleet"),
    "Look up": (
        "docs/commands",
        "docs/python",
        "docs/findings",
        "docs/levers",
        "docs/checks",
        "docs/json",
        "docs/predictions",
    ),
    "Understand": (
        "docs/learn",
        "docs/results",
        "docs/mission",
        "docs/supported",
        "docs/comparison",
        "benchmarks/README",
    ),
    "Work on it": ("ARCHITECTURE", "CONTRIBUTING", "docs/decisions/README", "CHANGELOG"),
}
# Where a page's own heading says too little beside the others.
TITLES = {"README": "Overview", "docs/how-to": "Task by task"}
# Pages below another one.
BELOW: dict[str, str] = {"docs/decisions/README": "docs/decisions/0*.md", "docs/agents": "skills/**/*.md"}


def below(page: str) -> list[str]:
    """The pages that a page has below it."""
    if page not in BELOW:
        return []
    return sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob(BELOW[page]))


def page_of_folder(folder: Path, target: str) -> str:
    """A folder is shown on GitHub; here its README is, or the one above it."""
    if ":" in target or not (folder / target).is_dir():
        return target
    place = (folder / target).resolve()
    while not (place / "README.md").exists():
        place = place.parent
    return os.path.relpath(place / "README.md", folder)
