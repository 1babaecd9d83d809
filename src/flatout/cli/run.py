"""`flatout run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.caring import Ranks, Wishes, care_options
from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, new_run, request_for
from flatout.cli.options import Output, common_options

if TYPE_CHECKING:
    from flatout.records.autopsy import Autopsy
    from flatout.records.plan import Fingerprint, Plan
    from flatout.records.running import JobRun
    from flatout.records.runs import RunFolder
    from flatout.runtime.profiling import ProfileRequest
    from flatout.runtime.protecting import Refuge


_PLAN = "flatout.toml"


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
@care_options
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    plan_path: str,
    as_written: bool,
    restart: bool,
    every: int | None,
    wishes: Wishes,
    ranks: Ranks,
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
    import os
    import signal

    from flatout.records.plan import Plan, read_plan
    from flatout.report.running import draw_run, words_before
    from flatout.tune.fingerprints import fingerprint
    from flatout.tune.soundness import sound

    spread = ranks.command(words, as_module=job["as_module"])
    request = (
        request_for(words, **job) if spread is None else request_for(spread, **{**job, "as_module": True})
    )
    now = fingerprint(request.command, None, {})
    plan = Plan(job=now, levers=())
    dropped: list[str] = []
    if not as_written and not (wishes.protect and plan_path == _PLAN and not Path(_PLAN).exists()):
        plan, dropped = sound(read_plan(Path(plan_path)), Path(plan_path))
    for text in words_before(plan, plan.job.differences(now)):
        output.notice(text)
    for text in dropped:
        output.notice(f"flatout: {text}")
    done = _Lives(output, request, plan, now, wishes, restart=restart, every=every or 0).run()
    if output.as_json:
        output.document("run", 1, done)
    elif not output.quiet:
        with contextlib.suppress(OSError):  # the terminal was closed: how the job ended is still to be told
            draw_run(done, output.error_console())
    if done.signal is not None:  # end as the script ended
        if done.signal not in (signal.SIGKILL, signal.SIGSTOP):  # nobody may change what these do
            signal.signal(done.signal, signal.SIG_DFL)
        os.kill(os.getpid(), done.signal)
    if done.asked is not None and done.protection is not None and done.exit_code:
        return 128 + done.asked  # also where torchrun has another code for ranks that were asked to end
    return done.exit_code or 0


class _Lives:
    """One job, from its first start to its end, however often it is started on the way."""

    def __init__(
        self,
        output: Output,
        request: "ProfileRequest",
        plan: "Plan",
        now: "Fingerprint",
        wishes: Wishes,
        *,
        restart: bool,
        every: int,
    ) -> None:
        from flatout.records.places import PROJECT_FOLDER
        from flatout.runtime.protecting import Refuge

        self._output, self._request, self._plan, self._wishes = output, request, plan, wishes
        self._restart, self._every = restart, every
        self._started = 0
        self._refuge: Refuge | None = None
        if wishes.protect:
            self._refuge = Refuge(Path(PROJECT_FOLDER), request.command, now.script, now.script_sha256)

    def run(self) -> "JobRun":
        """Until it ends well, or no more is to be tried."""
        from flatout.tune.lives import Retries, run_lives

        retries = self._wishes.retries
        if self._wishes.on_hang == "restart":
            retries = max(retries, 1)
        refuge = self._refuge
        goes_on_from = refuge.begin(fresh=self._wishes.fresh) if refuge is not None else None
        if goes_on_from is not None:
            self._output.notice(f"flatout: goes on from update {goes_on_from}")
        with new_run(self._output, "run") as folder:
            if refuge is not None and goes_on_from is None and self._wishes.rehearsal:
                self._rehearse(refuge, folder)
            done = run_lives(lambda _life: self._live(folder), Retries(retries), self._tell)
            folder.write("job", 1, done)  # "run" is the manifest's name
        if refuge is not None and done.exit_code == 0:
            refuge.is_over()
        return done

    def _live(self, folder: "RunFolder") -> "JobRun":
        from flatout.records.protection import Protection
        from flatout.runtime.running import Care
        from flatout.tune.running import plan_after, run_job

        output, wishes = self._output, self._wishes
        self._started += 1
        protect = None
        if self._refuge is not None:
            protect = Protection(str(self._refuge.path), *wishes.save_every)
        done = run_job(
            self._plan,
            self._request.command,
            folder.manifest.id,
            folder.path,
            output_to_stderr=output.as_json,
            environment=dict(self._request.environment),
            watch_every=self._every,
            on_alarm=lambda alarm: self._tell(alarm.words()),
            life=self._started,
            protect=protect,
            care=Care(
                hang_after_s=wishes.hang_after,
                ends_hangs=wishes.on_hang != "tell",
                grace_s=wishes.grace,
                tell=self._tell,
            ),
        )
        folder.write("job", 1, done)
        found = _out_of_memory(output, self._request, folder, self._started) if done.exit_code else None
        better = plan_after(self._plan, found) if found is not None and self._restart else None
        if better is None:
            return done
        output.notice(f"flatout: starting once more, with {better.levers[-1].words()}")
        self._plan, self._restart = better, False
        return self._live(folder)

    def _rehearse(self, refuge: "Refuge", folder: "RunFolder") -> None:
        from flatout.records.errors import CallerMistake
        from flatout.runtime.rehearsing import rehearse
        from flatout.tune.request import order_of

        if refuge.is_rehearsed():
            return
        with self._output.progress("rehearsing") as progress:
            found = rehearse(self._request, order_of(self._plan.levers), folder.path, progress)
        self._tell(f"rehearsed: {found.words}" if found.went_well is not False else found.words)
        if found.went_well is False:
            raise CallerMistake(
                f"this script cannot be brought back to where it was: {found.words}",
                expected="a loop that does the same when it is run again",
                remedy="flatout.Checkpointer in the script, or --no-rehearsal to try it all the same",
            )
        if found.went_well:
            refuge.has_rehearsed()

    def _tell(self, text: str) -> None:
        self._output.notice(f"flatout: {text}")


def _out_of_memory(
    output: Output, request: "ProfileRequest", folder: "RunFolder", life: int
) -> "Autopsy | None":
    """The autopsy of a job that ended so; None for one that failed for another reason."""
    import dataclasses

    from flatout.memory.autopsy import autopsy
    from flatout.records.atomic import write_atomically
    from flatout.report.autopsy import draw_autopsy
    from flatout.report.autopsy_page import autopsy_page
    from flatout.tune.running import place_of_life

    with output.progress("out of memory: what held it") as progress:
        found = autopsy(request, folder.manifest.id, place_of_life(folder.path, life), progress)
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
