"""A trial: a short run of the user's script that shows how it goes and leaves no trace.

A plan goes in, a folder comes out:

    <folder>/order.json, stdout.txt, stderr.txt, ranks/..., workers/...
"""

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flatout.analyze.steps import read_ranks
from flatout.records.codec import encode
from flatout.records.errors import EnvironmentProblem
from flatout.records.session import NOTES_FILE, Order
from flatout.records.trial import Outcome, Shield, Trial
from flatout.runtime.command import JobCommand
from flatout.runtime.environment import folders_to_keep, redirected_environment, trial_environment
from flatout.runtime.job import Job
from flatout.runtime.kept import KeptJob
from flatout.runtime.progress import Progress, StopRule
from flatout.runtime.scratch import remove_folder
from flatout.runtime.shield import ShieldRequest

OnProgress = Callable[[str, int, int], None]

# How the trial went, beside its steps.
TRIAL_FILE = "trial.json"
_POLL_S = 0.1
_SAID_LINES = 25
_SAID_BYTES = 16_384
# After the order to stop, a job gets this long to reach the boundary beyond what a step takes.
_STOP_GRACE_S = 30.0
# What a script says in bold or red is told in plain letters.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TORCHRUNS = re.compile(r"[WI]\d{4} \d\d:\d\d:\d\d\.\d+ ")
_ROOT_CAUSE = re.compile(
    r"^Root Cause .*?^ *rank *: (?P<rank>\d+) .*?^ *traceback *: (?P<how>[^\n]*)", re.MULTILINE | re.DOTALL
)


class Director(Protocol):
    """Someone who tells a running trial what to do next."""

    def look(self, folder: Path, progress: Progress) -> bool:
        """A few times a second: take in what came; whether the trial has shown enough."""

    @property
    def silence_s(self) -> float | None:
        """How long the job may make no update just now; None for what the plan allows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrialPlan:
    """What to run, what to look at, and when it is enough."""

    name: str
    command: JobCommand
    stop: StopRule
    order: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Until the first update, and between two of them.
    startup_s: float = 900.0
    silence_s: float = 180.0
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Follows the job while it runs, in place of the rule.
    director: Director | None = None


def run_trial(
    plan: TrialPlan, folder: Path, *, on_progress: OnProgress = lambda _text, _done, _total: None
) -> Trial:
    """Run one trial; `folder` must not exist yet. Never raises for what the script does."""
    folder.mkdir(parents=True)
    # Made by the keeper: were it made here, a kill before the keeper knows of it would leave it behind.
    scratch = Path(tempfile.gettempdir()) / f"flatout-{secrets.token_hex(8)}"
    try:
        attempt = _Attempt(plan, folder.resolve(), scratch, on_progress)
        trial = attempt.run(redirect=False)
        if trial is None:
            trial = attempt.run(redirect=True)
        if trial is None:
            raise EnvironmentProblem(
                f"the script cannot be run without a trace here: {attempt.no_overlay}",
                expected="a kernel that allows overlays in user namespaces, or redirected writes",
                remedy="flatout doctor   # and run it in a container or as another user",
            )
        (folder / TRIAL_FILE).write_bytes(encode("trial", 1, trial))
        return trial
    finally:
        remove_folder(scratch)


class _Attempt:
    """One plan on its way: first under an overlay, else with redirected writes."""

    def __init__(self, plan: TrialPlan, folder: Path, scratch: Path, on_progress: OnProgress) -> None:
        self._plan = plan
        self._folder = folder
        self._scratch = scratch
        self._on_progress = on_progress
        self.no_overlay = ""

    def run(self, *, redirect: bool) -> Trial | None:
        """The trial, or None where the overlay is not to be had."""
        if redirect:
            shutil.rmtree(self._folder)
            self._folder.mkdir()
        began = time.monotonic()
        kept = KeptJob(self._job(redirect=redirect))
        progress = Progress(self._folder)
        silent = False
        try:
            silent = self._watch(kept, progress)
        finally:
            kept.end()
        shield_event = kept.event("shield")
        if not redirect and shield_event is not None and shield_event["kind"] == "none":
            self.no_overlay = shield_event["reason"]
            return None
        progress.look()
        return self._result(kept, progress, silent, time.monotonic() - began, redirect=redirect)

    def _job(self, *, redirect: bool) -> Job:
        plan, order = self._plan, self._folder / "order.json"
        seed = plan.order.get("seed")
        # Beside the overlay's own layers: what trackers write offline, and redirected files.
        aside = self._scratch / "aside"
        upper = self._scratch / "layers"
        make = [str(self._scratch), str(aside), str(upper)]
        environment = trial_environment(order, aside, own_python=plan.command.own_python, seed=seed)
        environment |= plan.environment
        if redirect:
            environment |= redirected_environment(aside)
            make.append(environment["TMPDIR"])
        keep = folders_to_keep(environment, self._folder)
        Order(
            folder=str(self._folder),
            trial=True,
            stop_after_updates=plan.stop.updates,
            aside=str(aside),
            redirect_to=str(self._scratch / "redirected") if redirect else None,
            redirect_except=tuple(map(str, (*keep, aside))),
            **plan.order,
        ).write(order)
        return Job(
            command=plan.command.words,
            cwd=str(Path.cwd()),
            environment=environment,
            stdout=str(self._folder / "stdout.txt"),
            stderr=str(self._folder / "stderr.txt"),
            mark=secrets.token_hex(8),
            shield=None if redirect else ShieldRequest(scratch=upper, keep=(*keep, aside)),
            make=tuple(make),
            cleanup=(str(aside), str(self._scratch)),
        )

    def _watch(self, kept: KeptJob, progress: Progress) -> bool:
        """Follow the job to its end; whether it had to be ended because it made no progress."""
        plan = self._plan
        deadline: float | None = None
        while not kept.closed and kept.event("ended") is None and kept.event("failed") is None:
            kept.wait(_POLL_S)
            if progress.look():
                self._tell(progress)
                if plan.director is None and progress.enough(plan.stop):
                    progress.ask_to_stop()
                    deadline = None
            elif progress.first_update is None:
                waited = time.monotonic() - progress.started
                self._on_progress(f"{plan.name}: starting, {waited:.0f} s", 0, 0)
                if waited > plan.startup_s:
                    return True
            directed = plan.director is not None and not progress.asked_to_stop
            if directed and plan.director is not None and plan.director.look(self._folder, progress):
                progress.ask_to_stop()
            now = time.monotonic()
            if progress.first_update is not None:
                slowest_s = 20 * (progress.median_ms() or 0) / 1000
                if now - progress.last_news > max(plan.silence_s, slowest_s):
                    return True
                patience = plan.director.silence_s if directed and plan.director is not None else None
                if patience is not None:
                    # An evaluation makes no update, and is no silence.
                    patience = min(plan.silence_s, max(patience, plan.silence_s / 2))
                    if now - progress.last_sign > max(patience, slowest_s):
                        return True
            if progress.asked_to_stop:
                deadline = deadline or now + _STOP_GRACE_S + 3 * (progress.median_ms() or 0) / 1000
                if now > deadline:
                    return False  # a script that makes no further update has shown what there was
        return False

    def _tell(self, progress: Progress) -> None:
        median = progress.median_ms()
        pace = f", {median:.1f} ms a step" if median is not None else ""
        wanted = self._plan.stop.updates or 0
        self._on_progress(f"{self._plan.name}: step {progress.updates}{pace}", progress.updates, wanted)

    def _result(
        self, kept: KeptJob, progress: Progress, silent: bool, took_s: float, *, redirect: bool
    ) -> Trial:
        ranks = read_ranks(self._folder)
        ended = kept.event("ended") or {}
        failed = kept.event("failed")
        exit_code, signal = ended.get("exit_code"), ended.get("signal")
        stopped = progress.asked_to_stop or any(r.about.get("ended") == "stopped" for r in ranks)
        shield_event = kept.event("shield") or {}
        first = progress.first_update
        taps = {name: why for rank in ranks for name, why in rank.about.get("failed_taps", {}).items()}
        return Trial(
            name=self._plan.name,
            folder=str(self._folder),
            command=self._plan.command.words,
            outcome=_outcome(exit_code, signal, silent=silent, stopped=stopped),
            updates=progress.updates,
            ranks=len(ranks),
            took_s=took_s,
            shield=Shield(
                kind="redirect" if redirect else "overlay",
                reason=self.no_overlay,
                read_only=tuple(shield_event.get("read_only", ())),
                notes=self._shield_notes(),
            ),
            exit_code=exit_code,
            signal=signal,
            to_first_update_s=first - progress.started if first is not None else None,
            said=(str(failed["reason"]),) if failed else tuple(self._tail()[-_SAID_LINES:]),
            culprit=culprit(self._tail()),
            failed_taps=taps,
            left_over=tuple(map(str, ended.get("killed", ()))),
            unknown=_reasons(exit_code, signal, first),
        )

    def _tail(self) -> list[str]:
        for name in ("stderr.txt", "stdout.txt"):
            with contextlib.suppress(OSError), (self._folder / name).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _SAID_BYTES))
                text = _COLOURS.sub("", file.read().decode(errors="replace"))
                lines = text.strip().expandtabs(4).splitlines()
                # What torchrun warns of is not what a script says.
                if any(line.strip("* ") and not _TORCHRUNS.match(line) for line in lines):
                    return lines
        return []

    def _shield_notes(self) -> tuple[str, ...]:
        with contextlib.suppress(OSError):
            text = (self._folder / NOTES_FILE).read_text(errors="replace")
            return tuple(dict.fromkeys(text.splitlines()))
        return ()


def culprit(lines: Sequence[str]) -> str:
    """The rank that torchrun saw fail first, and what it said; the others fail because it is gone."""
    found = _ROOT_CAUSE.search("\n".join(lines))
    if found is None:
        return ""
    rank, how = found["rank"], found["how"]
    own = [line.removeprefix(f"[rank{rank}]: ") for line in lines if line.startswith(f"[rank{rank}]: ")]
    errors = [line for line in own if line[:1].strip()]
    if errors and not how.startswith("Signal"):
        how = errors[-1]
    return f"rank {rank}: {how}"


def _outcome(exit_code: int | None, signal: int | None, *, silent: bool, stopped: bool) -> Outcome:
    if silent:
        return "silent"
    if stopped and not exit_code:
        return "stopped"
    if signal is not None:
        return "killed"
    return "ended" if exit_code == 0 else "failed"


def _reasons(exit_code: int | None, signal: int | None, first: float | None) -> dict[str, str]:
    reasons = {}
    if exit_code is None:
        reasons["exit_code"] = (
            "ended by a signal" if signal is not None else "it never ran, or was ended by us"
        )
    if signal is None:
        reasons["signal"] = "ended without one"
    if first is None:
        reasons["to_first_update_s"] = "it made no update"
    return reasons
