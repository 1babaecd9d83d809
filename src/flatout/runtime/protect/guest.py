"""The life of a protected script, from inside: it comes back to where it was, is saved as it goes, and stops.

A guest of the session: `entry` hands it over where the order asks for protection.
"""

import atexit
import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any

from flatout.records.errors import FlatoutError
from flatout.records.protection import ON_ITS_WAY_BACK, Protection
from flatout.records.session import Order
from flatout.runtime.checkpoint.checkpointer import Checkpointer
from flatout.runtime.checkpoint.plain import Apart, NotPlain, Together
from flatout.runtime.checkpoint.ranks import named_of
from flatout.runtime.checkpoint.store import STATE_FILE, Stored, newest_complete
from flatout.runtime.checkpoint.writer import at_work_in
from flatout.runtime.finite.gradients import parameters_of
from flatout.runtime.protect.found import Found, look_around
from flatout.runtime.protect.ghost import Ghost
from flatout.runtime.protect.gradients import local_part, put_back, waiting
from flatout.runtime.protect.journal import Journal, Lines, Replay
from flatout.runtime.protect.loaders import Loaders
from flatout.runtime.protect.loads import Loads
from flatout.runtime.protect.parts import Bags
from flatout.runtime.protect.quiet import Quiet
from flatout.runtime.protect.reads import Reads
from flatout.runtime.protect.schedule import Schedule
from flatout.runtime.protect.updates import Updates
from flatout.runtime.protect.verifying import Verifying
from flatout.runtime.stopping import Stopped, call_no_ranks_from_signals, current, stop_requested

EXIT_CANNOT_GO_ON = 93
# Updates after each checkpoint of which a checksum is noted, for whoever comes back to it.
_PROVEN = 2


def protect(torch: Any, order: Order, facts: dict[str, Any]) -> None:
    """Protect this process, if it is the one that trains: the first of its rank, and nobody's worker."""
    if multiprocessing.parent_process() is not None:
        return
    with contextlib.suppress(FileExistsError):
        # torchrun starts ranks again in the same life of the job.
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        (Path(order.folder) / f"protected-{_rank()}-{again}").touch(exist_ok=False)
        Protected(torch, order, facts).install()


def _rank() -> int:
    """Lightning starts ranks itself, and tells them which they are of this machine."""
    own = os.environ.get("RANK")
    if own is None and os.environ.get("NODE_RANK", "0") == "0":
        own = os.environ.get("LOCAL_RANK")
    return int(own or "0")


class Protected:
    """One process of a protected training."""

    def __init__(self, torch: Any, order: Order, facts: dict[str, Any]) -> None:
        assert order.protect is not None
        self._torch = torch
        self._wish = Protection(**order.protect)
        self._facts = facts
        self._rank = _rank()
        self._folder = Path(self._wish.folder)
        self._journal_path = self._folder / f"journal-{self._rank}.jsonl"
        self._updates = 0
        self._saved_at = -_PROVEN - 1
        # Handed over, and not known to be on the disk.
        self._being_saved: int | None = None
        self._is_saved_for_the_end = False
        self._checkpointer: Checkpointer | None = None
        self._parts: Collection[str] = ()
        self._bags = Bags(torch)
        self._gates = Updates(torch, self._updated)
        self._reads = Reads(torch)
        self._loaders = Loaders(torch)
        self._quiet = Quiet(torch)
        self._loads = Loads(torch)
        self._ghost: Ghost | None = None
        self._replay: Replay | None = None
        self._verifying = Verifying()
        self._schedule = Schedule(torch, self._wish)
        self._target = 0
        self._about: dict[str, Any] = {}
        self._stored: Stored | None = None
        self._began_s = time.monotonic()

    # Beginning

    def install(self) -> None:
        """Find out whether there is something to come back to, and get ready."""
        self._facts["protection"] = {"resumed_at": None, "saved": 0}
        self._find_what_was_saved()
        lines = Lines(self._journal_path)
        self._verifying.against(lines.cut(self._target))
        self._gates.install()
        self._reads.install()
        self._loaders.install()
        self._quiet.install(self._about.get("files"))
        if self._target:
            self._come_back(lines)
        else:
            self._reads.journal = Journal(self._journal_path)
        self._loads.install(self._about.get("loads"), self._has_its_own_way)
        stop = current()
        stop.at_once = True  # nothing to save yet
        stop.listen()

    def _find_what_was_saved(self) -> None:
        if not self._folder.is_dir():
            return
        with at_work_in(self._folder):  # who writes for the life before may still be at it
            pass
        self._stored = newest_complete(self._folder, self._tell_of_damage)
        if self._stored is not None:
            self._about = self._read_about(self._stored)
            self._target = self._about["updates"]

    def _come_back(self, lines: Lines) -> None:
        self._facts["protection"][ON_ITS_WAY_BACK] = True
        self._replay = self._reads.replay = Replay(lines.reads)
        self._ghost = Ghost(self._torch, self._gates.optimizers)
        self._ghost.on_first = self._quiet.close
        self._ghost.install()
        self._gates.void = self._ghost.step
        self._loaders.come_back_to(self._about["loaders"])
        self._before_hook = sys.excepthook
        sys.excepthook = self._failed_on_the_way
        atexit.register(self._ended_on_the_way)

    def _read_about(self, stored: Stored) -> dict[str, Any]:
        """The small part of a checkpoint, which must be known before the script begins."""
        own = stored.path / named_of(self._rank, STATE_FILE)
        plain = json.loads(own.read_bytes()) if own.exists() else {}
        if "loader" not in plain:
            plain = json.loads((stored.path / STATE_FILE).read_bytes())
        together = Together(self._torch, lambda _ref: None)
        about: dict[str, Any] = together.state({"loader": plain["loader"]})["loader"]
        return about

    # Each update

    def _updated(self) -> None:
        """What goes wrong in here never reaches the script, but for the end that it was asked for."""
        self._updates += 1
        try:
            if self._ghost is None:
                self._after_update(sys._getframe(1))  # noqa: SLF001
                return
            assert self._replay is not None
            self._replay.updated(self._updates)
            if self._updates == self._target:
                self._arrive(sys._getframe(1))  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - see above
            words = f"{type(error).__name__}: {error}"
            if self._ghost is not None:
                self._refuse(words)
            self._give_up(words)

    def _after_update(self, frame: FrameType) -> None:
        if self._gates.in_backward:
            self._give_up(
                "updates are made inside of passes backward, which cannot be run again without them"
            )
            return
        current().at_once = False
        call_no_ranks_from_signals()
        proof = ""
        if self._updates - self._saved_at <= _PROVEN or self._verifying.wants_proof(self._updates):
            proof = self._proof()
        journal = self._reads.journal
        if journal is None:
            return
        reads = journal.updated(self._updates, proof)
        verdict = self._verifying.updated(self._updates, reads, proof)
        if verdict is not None:
            self._facts["protection"] |= {"verified": verdict.words, "repeats": verdict.repeats}
            self._quiet.say(verdict.words)
        if self._checkpointer is not None and not self._checkpointer.is_saving:
            self._settle()
        if stop_requested():
            self._stop(frame)
        elif self._schedule.is_due(self._updates, time.monotonic()):
            self._save(frame)
        elif self._may_be_the_last():
            self._save(frame)
            self._settle()

    def _may_be_the_last(self) -> bool:
        """A script that handles the signal to stop itself has its turn now; once, since it may go on as well.

        Ranks would have to agree on an update, and each hears of it at its own.
        """
        if current().signal is None or self._is_saved_for_the_end or os.environ.get("WORLD_SIZE", "1") != "1":
            return False
        self._is_saved_for_the_end = True
        return True

    def _stop(self, frame: FrameType) -> None:
        self._save(frame)
        self._settle()
        saved_at = self._facts["protection"].get("saved_at", self._target)
        what = "all is saved at" if saved_at == self._updates else "what is saved goes no further than"
        self._quiet.say(f"asked to stop: {what} update {saved_at}")
        raise Stopped(current().exit_code)

    # Saving

    def _save(self, frame: FrameType) -> None:
        began = time.monotonic()
        self._look(frame)
        self._settle()
        about = self._facts["protection"]
        try:
            self._begin_checkpoints().save(self._updates)
            self._being_saved = self._updates
            if self._wish.waits:
                self._settle()
        except FlatoutError as error:
            about["problem"] = str(error)
            self._quiet.say(f"this update could not be saved: {error}")
        self._saved_at = self._updates
        about["stall_s"] = max(about.get("stall_s", 0.0), time.monotonic() - began)

    def _settle(self) -> None:
        """Wait for what is being saved: what became of it is told, and only what is on the disk counts."""
        if self._checkpointer is None or self._being_saved is None:
            return
        self._checkpointer.wait()
        problem, about = self._checkpointer.problem(), self._facts["protection"]
        if problem:
            about["problem"] = problem
            self._quiet.say(f"a checkpoint could not be written: {problem}")
        else:
            about["saved"] += 1
            about["saved_at"] = self._being_saved
        self._being_saved = None

    def _begin_checkpoints(self) -> Checkpointer:
        parts = self._bags.parts()
        if self._checkpointer is not None and parts.keys() != self._parts:  # another optimizer was made
            self._checkpointer.close()
            self._checkpointer = None
        if self._checkpointer is None:
            self._parts = parts.keys()
            self._checkpointer = Checkpointer(self._folder, every=None, keep=2, **parts)
            self._checkpointer.loader = _Place(self._state, self._load_own)
        return self._checkpointer

    def _state(self) -> dict[str, Any]:
        """What each rank must know before its script begins."""
        return {
            "updates": self._updates,
            "loaders": self._loaders.state(),
            "files": self._quiet.sizes(),
            "loads": self._loads.seen,
            "tensors": self._bags.tensors(),
            "gradients": waiting(self._gates.optimizers(), self._gates.stepped),
        }

    def _load_own(self, state: dict[str, Any]) -> None:
        self._bags.load_tensors(state["tensors"])
        put_back(self._gates.optimizers(), state.get("gradients", {}))

    def _look(self, frame: FrameType) -> Found:
        found = look_around(self._torch, frame)
        left_out = self._bags.hold(found, self._gates.optimizers(), self._is_plain)
        about = self._facts["protection"]
        if left_out and left_out != about.get("left_out"):
            about["left_out"] = left_out
            self._quiet.say(f"not saved, and begins anew after a kill: {', '.join(left_out)}")
        return found

    def _is_plain(self, state: Any) -> bool:
        try:
            Apart(self._torch).take({"state": state})
        except (NotPlain, ValueError):
            return False
        return True

    def _proof(self) -> str:
        """A checksum of some of what is learned, a few thousand numbers, and a few of these as they are."""
        digest, some = hashlib.blake2b(digest_size=8), []
        torch = self._torch
        parameters = [one for optimizer in self._gates.optimizers() for one in parameters_of(optimizer)]
        for one in parameters[:: max(1, len(parameters) // 8)]:
            part = local_part(one.detach()).reshape(-1)[:512].contiguous().cpu()
            digest.update(bytes(part.view(torch.uint8).tolist()))
            some += part[:: max(1, part.numel() // 8)].double().tolist()
        return f"{digest.hexdigest()}:{json.dumps(some)}"

    # Coming back

    def _arrive(self, frame: FrameType) -> None:
        """At the place that was saved: give everything its state."""
        assert self._ghost is not None
        assert self._replay is not None
        assert self._stored is not None
        try:
            self._look(frame)
            self._quiet.open()
            self._begin_checkpoints().resume(self._stored.path)
            missing = self._bags.missing
        except FlatoutError as error:
            self._refuse(str(error))
        if missing:
            self._refuse(f"there is no {', '.join(missing[:3])} at this place of the script, and there was")
        self._loaders.arrived()
        self._verifying.begins_with(self._proof())
        strange = self._replay
        self._ghost.end()
        self._ghost = self._replay = self._reads.replay = self._gates.void = None
        sys.excepthook = self._before_hook
        self._reads.journal = Journal(self._journal_path)
        took_s = time.monotonic() - self._began_s
        self._saved_at = self._updates
        self._facts["protection"].pop(ON_ITS_WAY_BACK, None)
        self._facts["protection"] |= {"resumed_at": self._updates, "came_back_s": took_s}
        self._quiet.say(f"goes on after update {self._updates}, {took_s:.1f} s after its start")
        if strange.strange:
            word = (
                f"on the way here it read {strange.strange} numbers that were not noted before, "
                f"first at {strange.strange_place}: what it made of them may differ"
            )
            self._facts["protection"]["strange"] = word
            self._quiet.say(word)
        current().at_once = False

    def _has_its_own_way(self, path: str) -> None:
        """The script loads what it did not load in its first life: it resumes by itself."""
        if self._ghost is None:
            return
        self._quiet.say(
            f"the script begins from {path}, which it did not in its first life, or not as it is now: it "
            "goes on by itself, and what was saved here is left alone. To go on from there instead, move "
            "that file away."
        )
        self._leave_off()

    def _leave_off(self) -> None:
        self._facts["protection"].pop(ON_ITS_WAY_BACK, None)
        if self._ghost is not None:
            self._ghost.end()
            if not self._quiet.is_open:
                self._quiet.open()
        self._ghost = self._replay = self._reads.replay = self._gates.void = None
        self._gates.stop()
        self._reads.stop()
        self._loaders.stop()
        self._quiet.stop()
        current().leave()

    def _give_up(self, why: str) -> None:
        self._facts["protection"]["problem"] = why
        self._quiet.say(f"not protected: {why}")
        self._leave_off()

    def _failed_on_the_way(self, kind: Any, error: Any, trace: Any) -> None:
        self._quiet.open()
        self._before_hook(kind, error, trace)
        if issubclass(kind, KeyboardInterrupt):
            self._ghost = None
            return
        self._refuse(
            f"the script failed on its way back to update {self._target}, in which it did not before"
        )

    def _ended_on_the_way(self) -> None:
        if self._ghost is not None:
            self._refuse(
                f"the script ended after {self._updates} updates, on its way back to update {self._target}"
            )

    def _refuse(self, why: str) -> None:
        """Without the script's own `finally`: what it would save now is nothing that it has learned."""
        self._facts["protection"]["problem"] = why
        self._quiet.say(
            f"cannot go on from where it was: {why}. What was saved is untouched; --fresh begins anew."
        )
        os._exit(EXIT_CANNOT_GO_ON)

    def _tell_of_damage(self, stored: Stored, problem: str) -> None:
        self._quiet.say(f"{stored.path.name} cannot be used: {problem}")


class _Place:
    """What each rank has for itself, for a checkpointer: where it stands, its loose tensors and gradients."""

    def __init__(
        self, state: Callable[[], dict[str, Any]], load_own: Callable[[dict[str, Any]], None]
    ) -> None:
        self.state_dict = state
        self._load_own = load_own

    def load_state_dict(self, state: dict[str, Any], *, as_many_ranks: bool) -> None:
        """It has come there by now, and lacks what its variables held."""
        if as_many_ranks:
            self._load_own(state)
