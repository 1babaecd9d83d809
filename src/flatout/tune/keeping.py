"""What is left of a tuning: the plan, the patch, the page with the picture, and the document."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from flatout.records.atomic import write_atomically
from flatout.records.runs import RunFolder
from flatout.records.tuning import Tuning
from flatout.tune.result import Found


def keep(
    found: Found, folder: RunFolder, plan_path: Path, draw_page: Callable[[Tuning], str]
) -> tuple[Tuning, str]:
    """Write everything; the document with the places of the rest, and the patch as text.

    The document comes first: a plan or a page that cannot be written must not cost a tuning.
    """
    page, patch = folder.path / "report.html", ""
    tuning = dataclasses.replace(found.tuning, report=str(page))
    if found.plan is not None:
        tuning = dataclasses.replace(tuning, plan=str(plan_path))
    folder.write("tune", 1, tuning)
    if found.plan is not None:
        from flatout.tune.patching import as_text  # only a plan needs libcst, which takes its time

        found.plan.write(plan_path)
        patch = as_text(found.plan, Path.cwd())
        if patch:
            place = folder.path / "flatout.patch"
            write_atomically(place, patch.encode("utf-8", "surrogateescape"))
            tuning = dataclasses.replace(tuning, patch=str(place))
            folder.write("tune", 1, tuning)
    write_atomically(page, draw_page(tuning).encode("utf-8", "replace"))
    return tuning, patch
