"""`flatout run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, new_run, request_for
from flatout.cli.options import Duration, Output, common_options

if TYPE_CHECKING:
    from flatout.records.autopsy import Autopsy
    from flatout.records.runs import RunFolder
    from flatout.runtime.profiling import ProfileRequest


_PLAN = "flatout.toml"


class UpdatesOrTime(click.ParamType):  # type: ignore[type-arg]
    """`500` updates, or `90s`, `5m`, `1h`; as a pair of which one is 0."""

    name = "updates or time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Updates, and seconds."""
        if isinstance(value, tuple):
            return value
        if value.isdigit() and int(value):
            return int(value), 0.0
        return 0, Duration().convert(value, param, ctx)


@click.command("run", short_help=COMMANDS["run"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option("--plan", "plan_path", default=_PLAN, show_default=True, help="The plan to apply.")
@click.option("--as-written", is_flag=True, help="Without a plan: only watch.")
@click.option(
    "--restart/--no-restart",
    default=True,
    show_default=True,
    help="Out of memory: start once more with what is predicted to fit, where levers alone can do it.",
)
@click.option(
    "--every",
    type=click.IntRange(min=100),
    metavar="STEPS",
    help="Record some steps under torch's profiler every so many, and tell when steps become slower.",
)
@click.option(
    "--protect",
    "is_protected",
    is_flag=True,
    help="Save as it goes, and go on from there when the same command is started again.",
)
@click.option(
    "--save-every",
    type=UpdatesOrTime(),
    default="5m",
    show_default=True,
    metavar="UPDATES|TIME",
    help="With --protect: how often.",
)
@click.option("--fresh", is_flag=True, help="With --protect: begin anew, and forget what was saved.")
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    plan_path: str,
    as_written: bool,
    restart: bool,
    every: int | None,
    is_protected: bool,
    save_every: tuple[int, float],
    fresh: bool,
    **job: Any,
) -> int:
    """Run a job to its end under the plan that `flatout tune` found.

    The script runs in your terminal, with your files and your environment: its output, its exit code and what
    signals do to it are its own. A lever that cannot be applied, or that fails on the way, is dropped with a
    word, and the job goes on as written. With --json, the script's own output goes to standard error.

    A job that runs out of memory leaves a page on what held it and what would help. Where levers that change
    nothing but the time of a step are predicted to make it fit, it is started once more with them; it begins
    where it would begin if you started it again.

    With --protect the job can be killed at any instant. Models, optimizers, schedulers, random numbers and
    its place in the data are saved as it goes, and when it is asked to stop (SIGTERM, SIGINT, SIGUSR1). The
    same command goes on from there: the script's own loop is run again without its work up to that update,
    so that its own variables are what they were.

    \b
    Examples:
      flatout run train.py --lr 3e-4
      flatout run --plan h200.toml train.py
      flatout run --every 5000 train.py
      flatout run --as-written --every 5000 train.py
      flatout run --protect train.py --lr 3e-4
      flatout run -- torchrun --nproc-per-node 2 train.py
    """
    import contextlib
    import functools
    import os
    import signal

    from flatout.records.places import PROJECT_FOLDER
    from flatout.records.plan import Plan, read_plan
    from flatout.records.protection import Protection
    from flatout.report.running import draw_run, words_before
    from flatout.runtime.protecting import Refuge
    from flatout.tune.fingerprints import fingerprint
    from flatout.tune.running import plan_after, run_job
    from flatout.tune.soundness import sound

    request = request_for(words, **job)
    now = fingerprint(request.command, None, {})
    plan = Plan(job=now, levers=())
    dropped: list[str] = []
    if not as_written and not (is_protected and not Path(plan_path).exists() and plan_path == _PLAN):
        plan, dropped = sound(read_plan(Path(plan_path)), Path(plan_path))
    for text in words_before(plan, plan.job.differences(now)):
        output.notice(text)
    for text in dropped:
        output.notice(f"flatout: {text}")
    refuge = (
        Refuge(Path(PROJECT_FOLDER), request.command, now.script, now.script_sha256) if is_protected else None
    )
    if refuge is not None:
        goes_on_from = refuge.begin(fresh=fresh)
        if goes_on_from is not None:
            output.notice(f"flatout: goes on from update {goes_on_from}")
    with new_run(output, "run") as folder:
        run = functools.partial(
            run_job,
            command=request.command,
            run=folder.manifest.id,
            folder=folder.path,
            output_to_stderr=output.as_json,
            environment=dict(request.environment),
            watch_every=every or 0,
            on_alarm=lambda alarm: output.notice(f"flatout: {alarm.words()}"),
            protect=Protection(str(refuge.path), *save_every) if refuge is not None else None,
        )
        done = run(plan)
        folder.write("job", 1, done)  # "run" is the manifest's name
        if done.exit_code:
            found = _out_of_memory(output, request, folder)
            better = plan_after(plan, found) if found is not None and restart else None
            if better is not None:
                output.notice(f"flatout: starting once more, with {better.levers[-1].words()}")
                done = run(better, again=True)
                folder.write("job", 1, done)
    if refuge is not None and done.exit_code == 0:
        refuge.is_over()
    if output.as_json:
        output.document("run", 1, done)
    elif not output.quiet:
        with contextlib.suppress(OSError):  # the terminal was closed: how the job ended is still to be told
            draw_run(done, output.error_console())
    if done.signal is not None:  # end as the script ended
        if done.signal not in (signal.SIGKILL, signal.SIGSTOP):  # nobody may change what these do
            signal.signal(done.signal, signal.SIG_DFL)
        os.kill(os.getpid(), done.signal)
        return 128 + done.signal  # the first process of a container outlives it
    return done.exit_code or 0


def _out_of_memory(output: Output, request: "ProfileRequest", folder: "RunFolder") -> "Autopsy | None":
    """The autopsy of a job that ended so; None for one that failed for another reason."""
    import dataclasses

    from flatout.memory.autopsy import autopsy
    from flatout.records.atomic import write_atomically
    from flatout.report.autopsy import draw_autopsy
    from flatout.report.autopsy_page import autopsy_page
    from flatout.tune.running import JOB_FOLDER

    with output.progress("out of memory: what held it") as progress:
        found = autopsy(request, folder.manifest.id, folder.path / JOB_FOLDER, progress)
    if found is None:
        return None
    page = folder.path / "autopsy.html"
    found = dataclasses.replace(found, report=str(page))
    folder.write("autopsy", 1, found)
    write_atomically(page, autopsy_page(found).encode("utf-8", "replace"))
    draw_autopsy(found, output.error_console())
    output.notice(f"the picture: {page}")
    if found.snapshot is not None:
        output.notice(f"for pytorch.org/memory_viz: {found.snapshot}")
    return found
