"""Writes the pages that are made from the code, from commands to levers; `--check` compares."""

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import click

import flatout
from benchmarks.predictions import rows, table
from flatout.cli.commands import COMMANDS
from flatout.cli.main import cli
from flatout.diagnose.catalogue import RULES
from flatout.entry import tuning
from flatout.hardware.health.catalogue import CHECKS
from flatout.levers.catalogue import LEVERS
from scripts.before_after import before_after
from scripts.dashboards import DASHBOARDS
from scripts.export_page import export_page

ROOT = Path(__file__).parent.parent
HEAD = "<!-- Made by `make docs` from the code. Edit the code, not this page. -->\n\n"


CHECKS_INTRODUCTION = """# What `flatout doctor` looks at

Each check answers `ok`, `warn`, `fail` or `unknown`, with its evidence and, where there is something to do,
a line that can be pasted. A check whose data cannot be read says `unknown` or stays silent: it never guesses.
`flatout doctor` exits with 1 when a check fails.
"""


def link(heading: str, text: str = "", page: str = "") -> str:
    """To a heading, by the anchor that GitHub and the site make of it."""
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    return f"[{text or heading}]({page}#{anchor})"


def commands_page() -> str:
    """Every command's help, as the user sees it."""
    rows = [
        f"| {link(f'flatout {name}', name)} | {command.purpose} |\n" for name, command in COMMANDS.items()
    ]
    parts = [HEAD, "# Commands\n\n| | |\n|---|---|\n", *rows]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        context = click.Context(
            command, info_name=f"flatout {name}", max_content_width=100, terminal_width=100
        )
        parts.append(f"\n## flatout {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "".join(parts)


def checks_page() -> str:
    """Every check's explanation, from its docstring."""
    parts = [HEAD, CHECKS_INTRODUCTION]
    parts += [f"\n## {check.id}\n\n{check.explanation}\n" for check in CHECKS]
    return "".join(parts)


FINDINGS_INTRODUCTION = """# What `flatout profile` finds

Each finding comes with its evidence, the line of your source where that is known, and what it should give,
with the arithmetic. Too little data is no finding. `flatout explain CODE` shows the same text; thresholds
are in [one file](../src/flatout/diagnose/policy.py).
"""


def findings_page() -> str:
    """Every finding's explanation, from its file."""
    rows = [f"| {link(f'{rule.code}: {rule.title}', rule.code)} | {rule.title} |\n" for rule in RULES]
    parts = [HEAD, FINDINGS_INTRODUCTION, "\n| | |\n|---|---|\n", *rows]
    for rule in RULES:
        named = ", ".join(link(lever, page="levers.md") for lever in rule.levers)
        levers = f"\n\nLevers that answer it: {named}." if named else ""
        parts.append(f"\n## {rule.code}: {rule.title}\n\n{rule.explanation}{levers}\n")
    return "".join(parts)


LEVERS_INTRODUCTION = """# What `flatout tune` tries

| class | meaning |
|---|---|
| exact | the same numbers, bit for bit |
| resampled | the same distribution, other draws or another order of summation |
| numeric | the same mathematics, other rounding |
| memory | the same mathematics, less memory, more work |
| recipe | changes training: only with `--allow` |

Each lever is tried where it applies, and kept where it is measured to help and the guard finds that the job
learns the same. `--only` and `--skip` take these names.
"""


def levers_page() -> str:
    """Every lever's explanation, from its docstring, with the findings that it answers."""
    rows = [f"| {link(lever.id)} | {lever.safety} | {lever.title} |\n" for lever in LEVERS]
    parts = [HEAD, LEVERS_INTRODUCTION, "\n| lever | class | |\n|---|---|---|\n", *rows]
    for lever in LEVERS:
        text = inspect.cleandoc(lever.__doc__ or "")
        how = "between two steps of the running job" if lever.switchable else "in runs of its own"
        beside = f" Not beside {', '.join(lever.conflicts)}." if lever.conflicts else ""
        answered = [rule for rule in RULES if lever.id in rule.levers]
        codes = ", ".join(link(f"{rule.code}: {rule.title}", rule.code, "findings.md") for rule in answered)
        answers = f"\n\nAnswers {codes}." if codes else ""
        parts.append(f"\n## {lever.id}\n\nClass {lever.safety}; tried {how}.{beside}\n\n{text}{answers}\n")
    return "".join(parts)


PREDICTIONS_INTRODUCTION = """# Predicted against measured

Before a lever is tried, its gain is predicted from the baseline alone: what Amdahl's law and the
device's peaks allow. What cannot matter is not tried. This is how good the predictions were in every
tuning that is kept in [benchmarks/results](../benchmarks/results): medians by lever, negative where a
lever gave more than was predicted. They are low on purpose where launches hold a job up, which shows
only once the kernels are fast. Of a lever in a plan, measured is what it gave on top of those before it.
Every `flatout tune` adds what it measured to a record on its own machine and shows it.

These are the predictions that were made at the time. Since then, those of TF32 and bf16 reckon with what
products reach in training in place of peaks: for the same baselines, that predicts what is gained within a
quarter (`tests/unit/levers/test_predicted_gains.py`).

"""


def predictions_page() -> str:
    """From the results that are kept."""
    return HEAD + PREDICTIONS_INTRODUCTION + table(rows()) + "\n"


PYTHON_INTRODUCTION = """# From Python

Everything that `import flatout` offers. Nothing is loaded before it is used; torch is the one that you have.
"""


def python_page() -> str:
    """Every public name, with its docstring."""
    parts = [HEAD, PYTHON_INTRODUCTION]
    for name in flatout.__all__:
        if not name.startswith("_"):
            offered = tuning.tune if name == "tune" else getattr(flatout, name)
            parts.append(
                f"\n## flatout.{name}\n\n    {call_of(name, offered)}\n\n{inspect.getdoc(offered)}\n"
            )
    return "".join(parts)


def call_of(name: str, offered: Any) -> str:
    """As one would call it: parameters without their types."""
    parameters = []
    for one in inspect.signature(offered).parameters.values():
        plain = one.replace(annotation=inspect.Parameter.empty)
        shown = callable(one.default) and one.default is not inspect.Parameter.empty
        parameters.append(plain.replace(default=...) if shown else plain)
    return f"flatout.{name}{inspect.Signature(parameters)}".replace("Ellipsis", "...")


PAGES = {
    "docs/commands.md": commands_page,
    "docs/checks.md": checks_page,
    "docs/findings.md": findings_page,
    "docs/levers.md": levers_page,
    "docs/predictions.md": predictions_page,
    "docs/python.md": python_page,
    "docs/images/tune-h200.svg": lambda: before_after(ROOT),
    "docs/export.md": lambda: export_page(ROOT / "docs/export.md"),
    **{f"src/flatout/monitor/shipped/grafana/flatout-{name}.json": make for name, make in DASHBOARDS.items()},
}


def main() -> None:
    """Write the pages, or with --check say which are stale."""
    stale = []
    for name, make in PAGES.items():
        path = ROOT / name
        text = make()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
            print(f"wrote {name}")
    if stale and "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
