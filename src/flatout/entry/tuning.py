"""`flatout.tune`: the closed loop from Python, for training that is a function and no script."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

from flatout.entry.importable import where_found
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.index import RunIndex
from flatout.records.places import PROJECT_FOLDER
from flatout.records.runs import RunFolder
from flatout.records.tuning import Tuning
from flatout.report.tuning_page import tuning_page
from flatout.runtime.command import JobCommand
from flatout.runtime.profiling import ProfileRequest
from flatout.tune.keeping import keep
from flatout.tune.request import Goal, TuneRequest, insist_on_known_levers
from flatout.tune.tuning import tune_job


def tune(
    build: Callable[[], tuple[Any, Any, Iterable[Any], Callable[[Any, Any], Any]]],
    *,
    budget_s: float = 300.0,
    goal: Goal = "throughput",
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    plan: str | Path = "flatout.toml",
    on_progress: Callable[[str, int, int], None] = lambda _text, _done, _total: None,
) -> Tuning:
    """Tune training that `build` sets up; writes a plan, and returns what `flatout tune --json` prints.

        def build():
            model = Model().cuda()
            optimizer = torch.optim.AdamW(model.parameters())
            loader = DataLoader(data_set, batch_size=32)
            return model, optimizer, loader, lambda model, batch: model(batch[0].cuda()).mean()

        found = flatout.tune(build)
        model, optimizer, loader = flatout.apply(found.plan, model, optimizer, loader)

    `build` returns the model, its optimizer, its loader, and a function from model and batch to the loss. It
    runs in processes of its own, again and again, so it must be importable: a function at the top of a module
    or script. A script needs the usual `if __name__ == "__main__":` around what it does.
    """
    if isinstance(only, str) or isinstance(skip, str):
        raise CallerMistake(
            "only and skip were given one word",
            expected="a list of levers",
            remedy='flatout.tune(build, only=["bf16"])',
        )
    only, skip = frozenset(only), frozenset(skip)
    insist_on_known_levers(only=only, skip=skip)
    if goal not in get_args(Goal):
        raise UnknownName("goal", goal, get_args(Goal))
    module, name, path = where_found(build)
    command = (sys.executable, "-m", "flatout.entry.training", path or module, name)
    job = ProfileRequest(
        command=JobCommand(command, own_python=True, given=command),
        environment={"PYTHONPATH": ":".join(folder for folder in sys.path if folder)},
    )
    request = TuneRequest(job=job, budget_s=budget_s, goal=goal, only=only, skip=skip)
    root = Path(PROJECT_FOLDER)
    folder = RunFolder.create(root, command="tune", arguments=(f"{module}:{name}",))
    try:
        with folder.writing():
            found = tune_job(request, folder.manifest.id, folder.path, on_progress)
            tuning, _ = keep(found, folder, Path(plan), tuning_page)
    finally:
        RunIndex(root, notice=lambda _text: None).add(folder.manifest)
    return tuning
