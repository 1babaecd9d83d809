"""What stands in the site's side bar, by what a reader wants; the strict build misses no page of it."""

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
    "Understand": ("docs/learn", "docs/mission", "docs/comparison", "benchmarks/README"),
    "Work on it": ("ARCHITECTURE", "CONTRIBUTING", "docs/decisions/README", "CHANGELOG"),
}
# Pages that other parts of the project bring: listed as soon as they are here.
TO_COME = ("docs/learn",)
# Pages below another one.
BELOW: dict[str, str] = {"docs/decisions/README": "docs/decisions/0*.md", "docs/agents": "skills/**/*.md"}


def pages(group: str) -> list[str]:
    """Those of a group, in their order, without what is still to come."""
    return [page for page in GROUPS[group] if page not in TO_COME or (ROOT / f"{page}.md").exists()]


def below(page: str) -> list[str]:
    """The pages that a page has below it."""
    if page not in BELOW:
        return []
    return sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob(BELOW[page]))
