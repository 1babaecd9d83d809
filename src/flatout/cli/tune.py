"""`flatout tune`."""

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS, EXIT_INTERRUPTED
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, request_for
from flatout.cli.options import Duration, Output, Place, Size, common_options, new_run
from flatout.records.places import DEFAULT_PLAN

if TYPE_CHECKING:
    from flatout.runtime.command import JobCommand


def _names(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Names, each given by itself or several with commas between them."""
    return tuple(name for words in given for name in words.replace(",", " ").split())


_job_argument = functools.partial(job_argument, required=False)  # with --resume alone, we can say more


@click.command("tune", short_help=COMMANDS["tune"].purpose, context_settings=JOB_SETTINGS)
@_job_argument
@click.option(
    "--budget",
    type=Duration(),
    default="5m",
    show_default=True,
    help="About how long tuning may take. A third of it at least goes to trying levers; what was begun is "
    "finished, and proven.",
)
@click.option(
    "--goal",
    type=click.Choice(["throughput", "latency", "memory"]),
    default="throughput",
    show_default=True,
    help="What to tune for: samples a second, the time of a step, or a lower peak of memory.",
)
@click.option(
    "--max-memory",
    type=Size(of_memory=True),
    metavar="SIZE",
    help="No plan whose peak is above this, such as 40GiB.",
)
@click.option(
    "--only", multiple=True, callback=_names, metavar="LEVERS", help="Try these alone: bf16,compile."
)
@click.option("--skip", multiple=True, callback=_names, metavar="LEVERS", help="Leave these out.")
@click.option(
    "--allow",
    multiple=True,
    callback=_names,
    metavar="LEVERS",
    help="Levers that change the training, and that you want nevertheless: batch-size, bf16-parameters, "
    "fp16, fp8, optimizer-8bit; with --infer int8-weights, int4-weights, fp8-weights.",
)
@click.option(
    "--resume",
    metavar="RUN",
    help="Go on where an earlier tuning of the same job was interrupted: its name, or `latest`.",
)
@click.option(
    "--job-steps",
    type=click.IntRange(min=1),
    help="How many updates the whole job makes: what would not pay back within them is not chosen. "
    "Default: as a trainer of transformers or Lightning says, else not known.",
)
@click.option(
    "--plan",
    "plan_path",
    type=Place("plan"),
    default=DEFAULT_PLAN,
    show_default=True,
    help="Where to write the plan.",
)
@click.option(
    "--infer",
    is_flag=True,
    help="The script infers: a step is a call of its model, or of `generate`; outputs must stay the same.",
)
@click.option("--seed", type=int, help="Seed of all trials, so that they can be compared.")
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    budget: float,
    goal: str,
    max_memory: int | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    allow: tuple[str, ...],
    resume: str | None,
    job_steps: int | None,
    plan_path: Path,
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
      flatout tune --only bf16,compile train.py
      flatout tune --allow batch-size --max-memory 40GiB train.py
      flatout tune --goal memory train.py
      flatout tune --resume latest train.py
      flatout tune --infer predict.py
      flatout tune --json train.py | jq .speedup
    """
    from flatout.records.errors import EXIT_DONE
    from flatout.report.tuning import draw_tuning
    from flatout.report.tuning_page import tuning_page
    from flatout.tune.journal import COMPARISONS_FILE
    from flatout.tune.keeping import keep
    from flatout.tune.request import TuneRequest, insist_on_known_levers
    from flatout.tune.tuning import tune_job

    if not words:
        raise _no_script(resume)
    insist_on_known_levers(only=only, skip=skip, allow=allow)
    job_request = request_for(words, seed=seed, **job)
    request = TuneRequest(
        job=job_request,
        budget_s=budget,
        goal=goal,  # type: ignore[arg-type]
        max_memory_bytes=max_memory,
        only=frozenset(only),
        skip=frozenset(skip),
        allow=frozenset(allow),
        job_steps=job_steps,
        resume=_earlier(resume, job_request.command) if resume else None,
    )
    with new_run(output, "tune") as folder, output.progress("starting the script") as progress:
        try:
            found = tune_job(request, folder.manifest.id, folder.path, progress)
        except KeyboardInterrupt:
            if (folder.path / COMPARISONS_FILE).exists():
                from flatout.cli.next_step.past_runs import past_run

                again = past_run(folder).again(resume="latest")
                output.notice(f"what was compared so far is kept; it goes on with: {again}")
            raise
        tuning, text = keep(found, folder, plan_path, tuning_page)
    if output.as_json:
        output.document("tune", 1, tuning)
    else:
        draw_tuning(tuning, output.console())
        if text:
            click.echo()
            click.echo(text)
            output.notice(tuning.summary)  # the headline has scrolled away
        output.notice(f"the picture: {tuning.report}")
        output.notice(f"kept in {folder.path}; `flatout report {folder.manifest.id}` shows it again")
    return EXIT_INTERRUPTED if found.interrupted and found.plan is None else EXIT_DONE


def _no_script(resume: str | None) -> Exception:
    """What to type; of a tuning that is to be resumed the whole command is known."""
    from flatout.cli.next_step.past_runs import past_run
    from flatout.records.errors import CallerMistake, FlatoutError
    from flatout.records.places import PROJECT_FOLDER
    from flatout.records.runs import find_run

    remedy = "flatout tune train.py"
    if resume:
        with contextlib.suppress(FlatoutError):
            earlier = past_run(find_run(Path(PROJECT_FOLDER), resume, of="tune"))
            remedy = earlier.again(resume=resume) if earlier.words else remedy
    return CallerMistake("no script was named", expected="SCRIPT [ARGS]... after the options", remedy=remedy)


def _earlier(run: str, command: "JobCommand") -> Path:
    """The folder of an earlier tuning of the same job."""
    from flatout.records.errors import CallerMistake, UnknownName
    from flatout.records.places import PROJECT_FOLDER
    from flatout.records.runs import find_run
    from flatout.tune.fingerprints import fingerprint
    from flatout.tune.journal import insist_on_the_same_job

    try:
        folder = find_run(Path(PROJECT_FOLDER), run, of="tune").path
    except UnknownName as unknown:
        if run != "latest":
            raise
        raise CallerMistake(
            "there is no earlier tuning here",
            expected="a run of `flatout tune` in this folder",
            remedy="leave --resume away",
        ) from unknown
    insist_on_the_same_job(folder, fingerprint(command, None, {}))
    return folder
