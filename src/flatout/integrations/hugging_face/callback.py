"""The callback for the Trainer of transformers."""

import sys
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

from flatout.integrations.companion import Companion
from flatout.integrations.guarded import guarded, tell
from flatout.integrations.hugging_face.switches import held_by
from flatout.integrations.missing import library
from flatout.integrations.settings import plan_of
from flatout.records.places import PROJECT_FOLDER
from flatout.records.plan import Plan

_Base: Any = library(
    "transformers.trainer_callback", wanted_for="flatout.integrations.hugging_face"
).TrainerCallback


class FlatoutCallback(_Base):  # type: ignore[misc]
    """Applies a plan while the Trainer trains, logs what steps cost, and answers signals with a checkpoint.

        trainer = Trainer(..., callbacks=[FlatoutCallback("flatout.toml")])

    `plan` is what `flatout tune` found; without one nothing is changed. With `watch`, the Trainer's own logs
    get step time, rates, data wait, memory and, with a plan that knows it, MFU, whenever it logs; the profile
    of the training lies in `folder`/runs afterwards.

    A SIGTERM, SIGINT or SIGUSR1 makes the Trainer save a checkpoint of its own after the update that is under
    way, and end its loop; the process then leaves with the signal's code (`flatout.Stopped`), or with
    `leave=False` `train()` returns. What goes wrong in here is told once, and training goes on.
    """

    def __init__(
        self,
        plan: Plan | str | Path | None = None,
        *,
        watch: bool = True,
        leave: bool = True,
        folder: str | Path = PROJECT_FOLDER,
    ) -> None:
        self._plan = plan_of(plan)
        self._companion = Companion(self._plan, watch=watch, folder=folder)
        self._leave = leave
        self._is_stopping = self._is_logging = False
        self._trainer: Any = None

    @property
    def levers(self) -> tuple[str, ...]:
        """Levers of the plan that are on, or were at the end."""
        return self._companion.levers

    @property
    def dropped(self) -> dict[str, str]:
        """Those that are not, and why."""
        return self._companion.dropped

    # What the Trainer calls

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
        """The model is on its device, and the optimizer exists."""
        self._is_stopping = False
        self._trainer = _trainer_of(state)
        optimizers = [_plain(optimizer)] if optimizer is not None else []
        place = {"rank": args.process_index, "ranks": args.world_size}
        self._companion.begin(optimizers, held_by(args, self._plan), **place)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """An update is done: the one place at which all ranks may stop."""
        self._companion.updated()
        if self._is_stopping or not self._companion.stop_requested():
            return control
        self._is_stopping = True
        control.should_save = control.should_training_stop = True
        # It may take longer than the time that is left, and with save_strategy="best" decides about saving.
        control.should_evaluate = False
        if args.save_only_model and args.should_save:
            tell("save_only_model leaves out the optimizer: training cannot go on from this checkpoint")
        return control

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """What was saved is not written over, nor evaluated."""
        if self._is_stopping:
            control.should_save = control.should_evaluate = False
        return control

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """The Trainer logs its loss: our figures go the same way, to whatever it reports to."""
        if self._is_logging or not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        figures = self._companion.figures()
        trainer = self._trainer() if self._trainer is not None else None
        if not figures:
            return
        if trainer is None:  # a loop of somebody else's: what comes after us in it sees them
            logs.update(figures)
            return
        self._is_logging = True
        try:
            trainer.log(figures)
        finally:
            self._is_logging = False

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Everything is taken off; a training that was asked to stop ends here."""
        self._end()
        if self._is_stopping and self._leave:
            if args.should_save:
                tell(f"saved at update {state.global_step}; train(resume_from_checkpoint=...) goes on")
            raise self._companion.stopped()

    @guarded
    def _end(self) -> None:
        self._companion.end()


def _plain(optimizer: Any) -> Any:
    """What Accelerate has wrapped."""
    is_wrapper = type(optimizer).__module__.startswith("accelerate.")
    return optimizer.optimizer if is_wrapper else optimizer


def _trainer_of(state: Any) -> Any:
    """Whose state this is: callbacks are not told, and only a Trainer reaches what it reports to."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        owner = frame.f_locals.get("self")
        if getattr(owner, "state", None) is state and callable(getattr(owner, "log", None)):
            return weakref.ref(owner)
        frame = frame.f_back
    return None
