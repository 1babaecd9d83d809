"""`flatout run --on-nan`: the same for a script that nobody changed, from inside of its process.

Every optimizer's update is looked at right before it is made, and left out where gradients are not finite,
on all ranks alike. What a GradScaler steps, it looks at itself: that is only counted. Schedulers and averages
are the script's own, and go on: a schedule may well count batches. Where too many are left out in a row, the
job ends, or goes back to what it was when all was finite, on with the data that comes next.
"""

import atexit
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from flatout.inside.by_hand import is_by_hand
from flatout.inside.tap import Patch, undo_all, unseen
from flatout.levers.places import locals_of
from flatout.records.atomic import write_atomically
from flatout.records.errors import EXIT_JOB
from flatout.records.finite import NOT_FINITE_FILE, Diagnosis
from flatout.records.guest import Host
from flatout.runtime.finite.agreement import agree, agree_on_both, rank_of
from flatout.runtime.finite.buffers import Buffers
from flatout.runtime.finite.evaluating import Evaluated
from flatout.runtime.finite.good_states import GoodStates
from flatout.runtime.finite.gradients import Look, look, nothing_found, parameters_of
from flatout.runtime.finite.judging import diagnose, is_enough, word_on
from flatout.runtime.finite.ledger import Answer, Ledger
from flatout.runtime.finite.losses import LastLoss
from flatout.runtime.finite.skipping import Flagged, Hidden, is_fused, takes_flag
from flatout.runtime.finite.snapshot import Training

NAME = "on-nan"
# After so many it is no accident any more.
_ROLLBACKS = 3


class FiniteUpdates:
    """Stands before every update of this process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._torch = host.torch
        self._ledgers: weakref.WeakKeyDictionary[Any, Ledger] = weakref.WeakKeyDictionary()
        self._all: list[Ledger] = []
        self._loss = LastLoss(host.torch)
        self._handles: list[Any] = []
        self._patches: list[Patch] = []
        # The optimizer whose update is being made, and what is held back for it.
        self._under_way: Any = None
        self._held: Flagged | Hidden | Evaluated | None = None
        # The optimizer that a scaler is stepping.
        self._scalers_own: Any = None
        self._works = True
        # Going back puts buffers back, too.
        self._buffers = Buffers(host.torch, host.roots) if host.order.on_nan != "rollback" else None
        self._good = GoodStates(host.torch) if host.order.on_nan == "rollback" else None
        self._rollbacks = 0
        # Updates of all optimizers that went well.
        self._made = 0
        self._scalers: weakref.WeakSet[Any] = weakref.WeakSet()
        # Why it has to go back, once the update under way is over: its gradients are of a lost state.
        self._lost: Diagnosis | None = None
        # Whose next update is of a lost state still, until the one in trouble begins its own again.
        self._stale: set[Ledger] = set()
        self._troubled: Ledger | None = None
        self._not_looked_at = 0
        self._pid = os.getpid()

    def install(self) -> None:
        """Two hooks of all optimizers, and a look at scalers."""
        optimizers = importlib.import_module("torch.optim.optimizer")
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(self._before),
            optimizers.register_optimizer_step_post_hook(self._after),
        ]
        scaler = self._torch.amp.GradScaler
        self._patches = [Patch(scaler, "step", self._counting(scaler.step)), *self._loss.patches()]
        atexit.register(self.close)

    def remove(self) -> None:
        """Put everything back."""
        for handle in self._handles:
            handle.remove()
        undo_all(self._patches)
        atexit.unregister(self.close)

    def close(self) -> None:
        """The process ends: read what is still on its way, and write it all down."""
        if os.getpid() == self._pid:
            with contextlib.suppress(Exception):
                for ledger in self._all:
                    ledger.settle()
                self._tell_the_session()

    # Updates

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self._is_not_ours(optimizer):
            return None
        if is_by_hand(optimizer):  # what was done cannot be left out
            self._not_looked_at += 1
            return None
        self._end()
        if optimizer is not self._scalers_own:
            self._settle(optimizer, is_pending=True)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure) and (self._is_stale(optimizer) or self._lost is not None):
            self._under_way, self._held = optimizer, Hidden(optimizer)
            return None
        if optimizer is self._scalers_own:
            return None
        self._under_way = optimizer
        if callable(closure):
            self._held = Evaluated(self._torch, optimizer, closure, self._look)
            if "closure" in kwargs:
                return args, {**kwargs, "closure": self._held}
            return (args[0], self._held, *args[2:]), kwargs
        self._hold_back(optimizer)
        return None

    def _after(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if optimizer is not self._under_way or self._is_nested(optimizer):
            return
        held = self._held
        if isinstance(held, Evaluated):
            self._look_at_buffers(held.flag)
            self._ledger(optimizer).note(held.answer(), let_through=held.let_through)
        self._end()
        self._loss.forget()
        if optimizer is self._scalers_own:
            return
        if self._lost is not None:
            self._go_back()
            return
        if not isinstance(held, Flagged) or not held.is_on_gpu:  # the host knows already
            self._settle(optimizer)

    def _hold_back(self, optimizer: Any) -> None:
        found = self._look(parameters_of(optimizer))
        flag = agree(self._torch, found.flag)
        self._look_at_buffers(flag)
        self._ledger(optimizer).note(Answer(self._torch, flag, self._loss.value(), None, found))
        if takes_flag(optimizer):
            self._held = Flagged(optimizer, flag)
        elif bool(flag):
            self._held = Hidden(optimizer)

    def _look(self, parameters: list[Any]) -> Look:
        """What goes wrong here is noted; this rank then has no objections, for none may be missing."""
        if self._works:
            try:
                return look(self._torch, parameters)
            except Exception as error:  # noqa: BLE001 - a gradient of a kind that nobody foresaw
                self._host.fail(NAME, error)
                self._works = False
        return nothing_found(self._torch, parameters)

    def _look_at_buffers(self, flag: Any) -> None:
        """What goes wrong here is noted; buffers are then as the script leaves them."""
        if self._buffers is None:
            return
        try:
            self._buffers.updated(flag)
        except Exception as error:  # noqa: BLE001 - a buffer of a kind that nobody foresaw
            self._host.fail(NAME, error)
            self._buffers = None

    def _end(self) -> None:
        """The update is over, or a former one that never told of its end."""
        held, self._held, self._under_way = self._held, None, None
        if held is not None:
            held.end()

    def _is_not_ours(self, optimizer: Any) -> bool:
        """In the middle of a pass, a recording of graphs or the compiler nothing can be held back."""
        torch = self._torch
        if torch.compiler.is_compiling():
            return True
        is_captured = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if self._loss.in_backward or is_captured:
            self._not_looked_at += 1
            return True
        return optimizer is self._under_way and self._is_nested(optimizer)

    def _is_nested(self, optimizer: Any) -> bool:
        """Whether a subclass's step is calling its parent's: the outer one is the update."""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001
        found = 0
        while frame is not None:
            code = frame.f_code
            if code.co_name == "wrapper" and code.co_filename.endswith("optim/optimizer.py"):
                found += locals_of(frame).get("self") is optimizer
            frame = frame.f_back
        return found > 1

    def _counting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        guest = self

        @functools.wraps(real)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled() or guest._scalers_own is not None:
                return real(scaler, optimizer, *args, **kwargs)
            guest._scalers.add(scaler)
            guest._settle(optimizer, is_pending=True)
            is_left_out = guest._lost is not None or guest._is_stale(optimizer, is_over=False)
            guest._scalers_own = optimizer
            try:
                result = real(scaler, optimizer, *args, **kwargs)
            finally:
                guest._scalers_own = None
            if guest._lost is not None:
                guest._go_back()
            elif not is_left_out:
                guest._note_scalers(scaler, optimizer)
            return result

        return unseen(step)

    def _note_scalers(self, scaler: Any, optimizer: Any) -> None:
        """What the scaler found; gradients are still there, to see whose they were."""
        torch = self._torch
        flags = list(scaler._found_inf_per_device(optimizer).values())  # noqa: SLF001 - there is no public way
        if not flags:
            return
        flag = flags[0] if len(flags) == 1 else torch.stack([one.to(flags[0].device) for one in flags]).amax()
        flag, loss = agree_on_both(torch, flag, self._loss.value())
        self._look_at_buffers(flag)
        has_waited = not is_fused(optimizer) or flag.device.type == "cpu"
        found = self._look(parameters_of(optimizer)) if not has_waited or bool(flag) else None
        scale = scaler._get_scale_async()  # noqa: SLF001
        self._ledger(optimizer).note(Answer(torch, flag, loss, scale, found))
        self._loss.forget()

    # What became of them

    def _ledger(self, optimizer: Any) -> Ledger:
        ledger = self._ledgers.get(optimizer)
        if ledger is None:
            ledger = self._ledgers[optimizer] = Ledger()
            self._all.append(ledger)
        return ledger

    def _settle(self, optimizer: Any, *, is_pending: bool = False) -> None:
        """How the last update of this optimizer went; where that is enough, the job ends here, or goes back.

        `is_pending`: gradients are there, and the next update is about to be made.
        """
        ledger = self._ledger(optimizer)
        outcome = ledger.settle()
        if outcome is None:
            return
        self._made += not outcome.was_skipped
        ledger.last_at, ledger.parameters = self._made, len(parameters_of(optimizer))
        if not outcome.was_skipped:
            if ledger.made % 256 == 1:
                self._tell_the_session()
            if self._good is None or self._is_kept(self._good, ledger):
                return
        else:
            self._tell_the_session()
            word = word_on(ledger, outcome)
            if word:
                self._say(word)
            order = self._host.order
            if not is_enough(ledger, outcome, "stop" if order.on_nan == "stop" else "skip", order.patience):
                return
        rank = rank_of(self._torch)
        diagnosis = diagnose(self._torch, ledger, optimizer, self._host.roots(), rank)
        if self._good is None or self._rollbacks >= _ROLLBACKS or not self._good.reaches(ledger):
            self._stop(diagnosis)
        self._lost, self._troubled = diagnosis, ledger
        if not is_pending:
            self._go_back()

    def _is_kept(self, good: GoodStates, ledger: Ledger) -> bool:
        """Whether all is well; a snapshot is taken where one is due."""
        if not good.is_due(self._made, ledger, self._all):
            return True
        seen = good.keep(self._made, self._all, self._training())
        if good.problem:
            self._say(f"there is nothing to go back to: {good.problem}")
        if seen == "repaired":
            self._say("buffers of the model held values that are no numbers: they are as they were before")
        return seen != "lost"

    def _training(self) -> Training:
        optimizers = [(ledger, optimizer) for optimizer, ledger in self._ledgers.items()]
        return Training(self._host.roots(), optimizers, list(self._scalers))

    def _is_stale(self, optimizer: Any, *, is_over: bool = True) -> bool:
        """Whether its gradients may be of before the job went back; it is asked once of each.

        Another optimizer's graph may have been under way then (a generator's, while its critic is updated).
        """
        ledger = self._ledgers.get(optimizer)
        if ledger is self._troubled:
            self._stale.clear()
        is_stale = ledger in self._stale
        if is_over and ledger is not None:
            self._stale.discard(ledger)
        return is_stale

    def _say(self, words: str) -> None:
        if rank_of(self._torch) == 0:
            sys.stderr.write(f"flatout: {words}\n")

    def _go_back(self) -> None:
        """Whatever the update that is just over has done is undone with it."""
        assert self._good is not None
        assert self._lost is not None
        assert self._troubled is not None
        diagnosis, self._lost = self._lost, None
        update = self._good.go_back(self._made, self._troubled, self._training())
        if update is None:
            self._stop(diagnosis)
        self._rollbacks += 1
        for ledger in self._all:
            ledger.begin_anew()
        self._stale = set(self._all) - {self._troubled}
        self._tell_the_session()
        place = f"back to what it was after update {update}, on with the next batch"
        self._say(f"{diagnosis.headline()}: {place}")

    def _stop(self, diagnosis: Diagnosis) -> None:
        """No `except Exception` of the script's goes on from here; `finally` blocks find a good state."""
        self.close()
        with contextlib.suppress(OSError):
            document = json.dumps(dataclasses.asdict(diagnosis))
            write_atomically(self._host.folder() / NOT_FINITE_FILE, document.encode())
        self.remove()
        raise SystemExit(EXIT_JOB)

    def _tell_the_session(self) -> None:
        counts = [ledger.counts() for ledger in self._all]
        scales = [one.loss_scale for one in counts if one.loss_scale is not None]
        self._host.facts["finite_updates"] = {
            "made": sum(one.made for one in counts),
            "skipped": sum(one.skipped for one in counts),
            "in_a_row": max((one.in_a_row for one in counts), default=0),
            "most_in_a_row": max((one.most_in_a_row for one in counts), default=0),
            "rollbacks": self._rollbacks,
            "let_through": sum(one.let_through for one in counts),
            "not_looked_at": self._not_looked_at,
            "loss_scale": scales[-1] if scales else None,
        }
