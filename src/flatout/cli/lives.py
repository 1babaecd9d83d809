"""A job under `flatout run`, from its first start to its end: protected, rehearsed, started again."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatout.cli.caring import Wishes
from flatout.cli.options import Output, new_run

if TYPE_CHECKING:
    from flatout.monitor.sinks.catalogue import Target
    from flatout.monitor.sinks.feed import Feed
    from flatout.records.autopsy import Autopsy
    from flatout.records.plan import Fingerprint, Plan
    from flatout.records.running import JobRun
    from flatout.records.runs import RunFolder
    from flatout.runtime.living import Living
    from flatout.runtime.profiling import ProfileRequest
    from flatout.runtime.protecting import Refuge
    from flatout.tune.lives import Retries


class Lives:
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
        settings: Mapping[str, Any],
        log_to: "Sequence[Target]" = (),
    ) -> None:
        from flatout.records.places import PROJECT_FOLDER
        from flatout.runtime.protecting import Refuge

        self._output, self._request, self._plan, self._wishes = output, request, plan, wishes
        self._now, self._log_to = now, log_to
        self._feed: Feed | None = None
        self._restart, self._settings = restart, settings
        self._started = 0
        self._refuge: Refuge | None = None
        if wishes.protect:
            self._refuge = Refuge(Path(PROJECT_FOLDER), request.command, now.script, now.script_sha256)

    def run(self) -> "JobRun":
        """Until it ends well, or no more is to be tried."""
        from flatout.tune.lives import Retries

        retries = self._wishes.retries
        if self._wishes.on_hang == "restart":
            retries = max(retries, 1)
        refuge = self._refuge
        with refuge.held() if refuge is not None else contextlib.nullcontext():
            return self._run(refuge, Retries(retries))

    def _run(self, refuge: "Refuge | None", retries: "Retries") -> "JobRun":
        from flatout.tune.accounting import with_account
        from flatout.tune.lives import run_lives

        goes_on_from = refuge.begin(fresh=self._wishes.fresh) if refuge is not None else None
        if goes_on_from is not None:
            self._output.notice(f"flatout: goes on from update {goes_on_from}")
        with new_run(self._output, "run") as folder:
            if refuge is not None:
                refuge.is_lived_in(folder.path)
            if refuge is not None and goes_on_from is None and self._wishes.rehearsal:
                self._rehearse(refuge, folder)
            with self._followed(folder) as living, self._fed(folder, living):
                done = run_lives(lambda _life: self._live(folder, living), retries, self._tell)
                living.ended(done.exit_code, done.signal)
            done = with_account(done, living)
            is_kept = self._was_asked_to_stop(done, folder)
            if is_kept:
                done = _with_what_is_kept(done)
            if self._feed is not None:
                done = dataclasses.replace(done, logged_to=self._feed.told())
            folder.write("job", 1, done)  # "run" is the manifest's name
            if done.exit_code != 0 and done.asked is None:
                folder.went_wrong()
        if refuge is not None and done.exit_code == 0 and not is_kept:
            refuge.is_over()
        return done

    def _was_asked_to_stop(self, done: "JobRun", folder: "RunFolder") -> bool:
        """Then a code of 0 may be the script's own way to leave in the middle, and not its end."""
        from flatout.runtime.stopping import ASKED_FILE
        from flatout.tune.running import place_of_life

        return done.asked is not None or (place_of_life(folder.path, self._started) / ASKED_FILE).exists()

    def _followed(self, folder: "RunFolder") -> "Living":
        from flatout.runtime.living import Living
        from flatout.tune.accounting import promise_of

        protected = self._refuge.path if self._refuge is not None else None
        promise = promise_of(self._request.command, self._plan, self._now, protected)
        return Living(folder.path, promise, tell=self._tell)

    @contextlib.contextmanager
    def _fed(self, folder: "RunFolder", living: "Living") -> Iterator[None]:
        """With --log-to, what is known of the job goes to trackers meanwhile."""
        if not self._log_to:
            yield
            return
        from flatout.monitor.sinks.feed import Feed
        from flatout.monitor.sinks.protocol import About

        run = folder.manifest.id
        about = About(name=run, facts={"command": " ".join(self._request.command.words), "flatout_run": run})
        with Feed(self._log_to, run, living, about, self._tell) as self._feed:
            yield

    def _live(self, folder: "RunFolder", living: "Living") -> "JobRun":
        from flatout.records.protection import Protection
        from flatout.runtime.running import Care
        from flatout.tune.request import under
        from flatout.tune.running import place_of_life, plan_after, run_job

        output, wishes = self._output, self._wishes
        self._started += 1
        protect = None
        if self._refuge is not None:
            protect = Protection(str(self._refuge.path), *wishes.save_every)
        place = place_of_life(folder.path, self._started)
        fed = self._feed.life(place) if self._feed is not None else contextlib.nullcontext()
        with fed, living.life(place):
            done = run_job(
                self._plan,
                self._request.command,
                folder.manifest.id,
                folder.path,
                output_to_stderr=output.as_json,
                environment=dict(self._request.environment),
                on_alarm=lambda alarm: self._tell(alarm.words()),
                life=self._started,
                protect=protect,
                care=Care(
                    hang_after_s=wishes.hang_after,
                    ends_hangs=wishes.on_hang != "tell",
                    startup_s=self._request.startup_s,
                    ends_starts=wishes.ends_starts,
                    grace_s=wishes.grace,
                    tell=self._tell,
                    on_hang=living.hangs,
                    on_going=living.goes_on,
                ),
                **self._settings,
            )
        folder.write("job", 1, done)
        ran = under(self._request, self._plan.levers)
        found = _out_of_memory(output, ran, folder, self._started) if done.exit_code else None
        better = plan_after(self._plan, found) if found is not None and self._restart else None
        if better is None:
            return done
        output.notice(f"flatout: starting once more, with {better.levers[-1].words()}")
        self._plan, self._restart = better, False
        return self._live(folder, living)

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


def _with_what_is_kept(done: "JobRun") -> "JobRun":
    """A job that ended with 0 although it was asked to stop: what is saved stays, and that is said."""
    found = done.protection
    if found is None or done.exit_code != 0:
        return done
    at = found.saved_at if found.saved_at is not None else found.resumed_at
    if at is None:
        word = "it was asked to stop, and ended with code 0 before anything was saved"
    else:
        word = (
            f"it was asked to stop, and ended with code 0: what was saved at update {at} is kept. The same "
            "command goes on from there; with --fresh, it begins anew"
        )
    problem = f"{found.problem}; {word}" if found.problem else word
    return dataclasses.replace(done, protection=dataclasses.replace(found, problem=problem))


def _out_of_memory(
    output: Output, request: "ProfileRequest", folder: "RunFolder", life: int
) -> "Autopsy | None":
    """The autopsy of a job that ended so; None for one that failed for another reason."""
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
