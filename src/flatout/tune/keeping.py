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
    """Write everything; the document with the places of the rest, and the patch as text."""
    tuning, patch = found.tuning, ""
    made: dict[str, str] = {}
    if found.plan is not None:
        from flatout.tune.patching import as_text  # only a plan needs libcst, which takes its time

        found.plan.write(plan_path)
        made["plan"] = str(plan_path)
        patch = as_text(found.plan, Path.cwd())
        if patch:
            made["patch"] = str(folder.path / "flatout.patch")
            Path(made["patch"]).write_text(patch)
    made["report"] = str(folder.path / "report.html")
    unknown = {name: why for name, why in tuning.unknown.items() if name not in made}
    tuning = dataclasses.replace(tuning, unknown=unknown, **made)  # type: ignore[arg-type]
    write_atomically(Path(made["report"]), draw_page(tuning).encode("utf-8", "replace"))
    folder.write("tune", 1, tuning)
    return tuning, patch
