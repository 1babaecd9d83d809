"""`flatout run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.caring import Ranks, Wishes, care_options, insist_on_what_it_is_for
from flatout.cli.commands import COMMANDS
from flatout.cli.debugging import DebuggableCommand, announced, debug_option, switches_of
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, request_for
from flatout.cli.lives import Lives
from flatout.cli.log_to import log_to_option, targets_of
from flatout.cli.numbers import nan_options
from flatout.cli.options import Output, common_options_and
from flatout.records.errors import EXIT_JOB
from flatout.records.places import DEFAULT_PLAN

if TYPE_CHECKING:
    from flatout.records.plan import Fingerprint, Plan


@click.command(
    "run", cls=DebuggableCommand, short_help=COMMANDS["run"].purpose, context_settings=JOB_SETTINGS
)
@job_argument
@click.option(
    "--plan",
    "plan_path",
    metavar="FILE",
    help=f"The plan to apply.  [default: {DEFAULT_PLAN}, if there is one for this script]",
)
@click.option("--as-written", is_flag=True, help="Without a plan, also where there is one.")
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
    help="Record some steps under torch's profiler every so many, and when steps have become slower. "
    "(That they have is told in any case.)",
)
@log_to_option(
    "SINK:PLACE,...",
    "Send its figures to tensorboard:DIR, wandb:PROJECT, mlflow:EXPERIMENT or jsonl:FILE.",
)
@care_options
@nan_options
@job_options
@common_options_and(debug_option)
def command(
    output: Output,
    debug: tuple[str, ...],
    words: tuple[str, ...],
    plan_path: str | None,
    as_written: bool,
    restart: bool,
    every: int | None,
    log_to: str,
    wishes: Wishes,
    ranks: Ranks,
    on_nan: str,
    patience: int,
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

    With --log-to its figures and those of its GPUs go to trackers, and with them what the script gives to
    flatout.log: from Flatout's own process, so that a tracker that fails never reaches the job.

    \b
    Examples:
      flatout run train.py --lr 3e-4
      flatout run --plan h200.toml train.py
      flatout run --every 5000 train.py
      flatout run --as-written --every 5000 train.py
      flatout run --log-to tensorboard:runs,wandb:my-project train.py
      flatout run --protect train.py --lr 3e-4
      flatout run --on-nan skip train.py
      flatout run --as-written --debug anomaly,deterministic train.py
      flatout run --nproc-per-node 8 train.py
    """
    import contextlib
    import dataclasses
    import os
    import signal

    from flatout.records.errors import CallerMistake
    from flatout.records.plan import Plan
    from flatout.report.running import draw_run, words_before
    from flatout.tune.debugging import without_what_undoes
    from flatout.tune.fingerprints import fingerprint

    if as_written and plan_path is not None:
        raise CallerMistake(
            f"--as-written and --plan {plan_path}",
            expected="a plan, or none",
            remedy="take one of them out",
        )
    if not on_nan:
        insist_on_what_it_is_for("patience", "--on-nan")
    switches, sinks = switches_of(debug), targets_of(log_to)
    spread = ranks.command(words, as_module=job["as_module"])
    request = (
        request_for(words, **job) if spread is None else request_for(spread, **{**job, "as_module": True})
    )
    now = fingerprint(request.command, None, {})
    plan, dropped = (Plan(job=now, levers=()), []) if as_written else _plan_for(now, plan_path, output)
    for text in words_before(plan, plan.job.differences(now)):
        output.notice(text)
    switches, about_switches = announced(switches, on_cpu=job["cpu"])
    plan, undoing = without_what_undoes(plan, switches)
    for text in (*about_switches, *undoing):
        output.notice(f"flatout: {text}")
    for text in dropped:
        output.notice(f"flatout: {text}")
    settings = {"watch_every": every or 0, "on_nan": on_nan, "patience": patience, "debug": switches}
    done = Lives(output, request, plan, now, wishes, restart=restart, settings=settings, log_to=sinks).run()
    if output.as_json:
        with contextlib.suppress(BrokenPipeError):  # nobody reads it: how the job ended is still to be told
            output.document("run", 1, done)
    elif not output.quiet:
        told = plan.job.differences(now)  # at the start
        news = tuple(note for note in done.notes if note not in told)
        draw_run(dataclasses.replace(done, notes=news), output.error_console())
    if done.signal is not None:  # end as the script ended
        if done.signal not in (signal.SIGKILL, signal.SIGSTOP):  # nobody may change what these do
            signal.signal(done.signal, signal.SIG_DFL)
        os.kill(os.getpid(), done.signal)
        return 128 + done.signal  # the first process of a container outlives it
    return EXIT_JOB if done.not_finite is not None else done.exit_code or 0


def _plan_for(now: "Fingerprint", named: str | None, output: Output) -> tuple["Plan", list[str]]:
    """The plan that was named, or the one that lies here for this script; none of another one by itself.

    With it a word for each of its levers that nobody knows.
    """
    from flatout.records.plan import Plan, read_plan
    from flatout.tune.soundness import sound

    path = Path(named or DEFAULT_PLAN)
    nothing: tuple[Plan, list[str]] = (Plan(job=now, levers=()), [])
    if named is None and not path.exists():
        output.notice(f"flatout: there is no {path}: `flatout tune` would write one")
        return nothing
    plan, dropped = sound(read_plan(path), path)
    if named is None and plan.job.is_of_another_script(now):
        output.notice(
            f"flatout: {path} was made for another script, {plan.job.script}, and is left alone: "
            f"--plan {path} applies it all the same"
        )
        return nothing
    return plan, dropped
