"""`flatout tune`."""

from pathlib import Path
from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, new_run, request_for
from flatout.cli.options import Output, common_options


class Duration(click.ParamType):  # type: ignore[type-arg]
    """`90`, `90s`, `5m` or `1h`, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, int | float):
            return float(value)
        number, unit = (value[:-1], value[-1]) if value[-1:] in "smh" and len(value) > 1 else (value, "s")
        try:
            seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
        except ValueError:
            self.fail(f"{value!r} is no duration: 90s, 5m and 1h are", param, ctx)
        if not seconds > 0:
            self.fail("it must be more than nothing", param, ctx)
        return seconds


@click.command("tune", short_help=COMMANDS["tune"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option(
    "--budget",
    type=Duration(),
    default="5m",
    show_default=True,
    help="How long to look for levers. The guard and the confirmation come on top.",
)
@click.option("--only", multiple=True, metavar="LEVER", help="Try these alone. May be given several times.")
@click.option("--skip", multiple=True, metavar="LEVER", help="Leave these out. May be given several times.")
@click.option(
    "--job-steps",
    type=click.IntRange(min=1),
    help="How many updates the whole job makes: what would not pay back within them is not chosen.",
)
@click.option(
    "--plan", "plan_path", default="flatout.toml", show_default=True, help="Where to write the plan."
)
@click.option("--seed", type=int, help="Seed of all trials, so that they can be compared.")
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    budget: float,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    job_steps: int | None,
    plan_path: str,
    seed: int | None,
    **job: Any,
) -> int:
    """Make a job as fast as it can be without changing what it learns.

    Measures the script as written, tries levers in the running job by turns, keeps what is measured to help,
    proves that gradients, updates and losses stay what they were but for rounding, and confirms the plan in a
    process of its own. Writes flatout.toml; `flatout run` applies it. Your script and files stay as they are.

    \b
    Examples:
      flatout tune train.py --lr 3e-4
      flatout tune --budget 2m train.py
      flatout tune --skip compile train.py
      flatout tune --only bf16 --only compile train.py
      flatout tune --json train.py | jq .speedup
    """
    from flatout.levers.catalogue import BY_ID
    from flatout.records.errors import EXIT_DONE, UnknownName
    from flatout.report.tuning import draw_tuning
    from flatout.tune.patching import as_text
    from flatout.tune.request import TuneRequest
    from flatout.tune.tuning import tune_job

    for name in (*only, *skip):
        if name not in BY_ID:
            raise UnknownName("lever", name, BY_ID)
    request = TuneRequest(
        job=request_for(words, seed=seed, **job),
        budget_s=budget,
        only=frozenset(only),
        skip=frozenset(skip),
        job_steps=job_steps,
    )
    import dataclasses

    text = ""
    with new_run(output, "tune") as folder, output.progress("starting the script") as progress:
        found = tune_job(request, folder.manifest.id, folder.path, progress)
        tuning = found.tuning
        if found.plan is not None:
            found.plan.write(Path(plan_path))
            unknown = {name: why for name, why in tuning.unknown.items() if name != "plan"}
            tuning = dataclasses.replace(tuning, plan=plan_path, unknown=unknown)
            text = as_text(found.plan, Path.cwd())
            if text:
                place = folder.path / "flatout.patch"
                place.write_text(text)
                unknown.pop("patch", None)
                tuning = dataclasses.replace(tuning, patch=str(place), unknown=unknown)
        folder.write("tune", 1, tuning)
    if output.as_json:
        output.document("tune", 1, tuning)
    else:
        draw_tuning(tuning, output.console())
        if text:
            click.echo()
            click.echo(text)
        output.notice(f"kept in {folder.path}; `flatout report {folder.manifest.id}` shows it again")
    return EXIT_DONE
