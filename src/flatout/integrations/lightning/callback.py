"""The callback for Lightning's Trainer."""

import sys
from pathlib import Path
from typing import Any

from flatout.integrations.companion import Companion
from flatout.integrations.guarded import guarded, tell
from flatout.integrations.lightning.switches import held_by
from flatout.integrations.missing import library
from flatout.integrations.packing import packed, unpacked
from flatout.integrations.settings import plan_of
from flatout.records.errors import EnvironmentProblem
from flatout.records.places import PROJECT_FOLDER
from flatout.records.plan import Plan
from flatout.runtime.checkpoint.random_states import put_back, random_states
from flatout.runtime.stopping import call_no_ranks_from_signals

# The same library under two names: with both loaded, the callback is one of either.
_HOMES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[Any, ...]:
    loaded = [sys.modules[home] for home in _HOMES if home in sys.modules]
    return tuple(one.Callback for one in loaded or [_either()])


def _either() -> Any:
    try:
        return library(_HOMES[0], wanted_for="flatout.integrations.lightning")
    except EnvironmentProblem as first:
        try:
            return library(_HOMES[1], wanted_for="flatout.integrations.lightning")
        except EnvironmentProblem:
            raise first from None


class FlatoutCallback(*_bases()):  # type: ignore[misc]
    """Applies a plan while the Trainer fits, logs what steps cost, and answers signals with a checkpoint.

        trainer = Trainer(..., callbacks=[FlatoutCallback("flatout.toml")])

    `plan` is what `flatout tune` found; without one nothing is changed. With `watch`, the Trainer's loggers
    get step time, rates, data wait, memory and, with a plan that knows it, MFU, every `log_every_n_steps`
    updates; the profile of the training lies in `folder`/runs afterwards.

    A SIGTERM, SIGINT or SIGUSR1 is answered after the update that is under way: the Trainer saves to
    `checkpoints` (by default where its ModelCheckpoint does), `should_stop` is set, and the process leaves
    with the signal's code (`flatout.Stopped`); with `leave=False` Lightning ends its loop by itself. Every
    checkpoint keeps random numbers, too. What goes wrong in here is told once, and training goes on.
    """

    def __init__(
        self,
        plan: Plan | str | Path | None = None,
        *,
        watch: bool = True,
        leave: bool = True,
        checkpoints: str | Path | None = None,
        folder: str | Path = PROJECT_FOLDER,
    ) -> None:
        super().__init__()
        self._plan = plan_of(plan)
        self._companion = Companion(self._plan, watch=watch, folder=folder)
        self._leave = leave
        self._checkpoints = checkpoints
        self._random: dict[int, dict[str, Any]] | None = None
        # Of all ranks, for the checkpoint that they are about to write together.
        self._of_ranks: list[dict[str, Any]] = []
        self._updates = 0
        self._saved_at: int | None = None
        self._is_stopping = False

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
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is on its device, optimizers exist, and what a checkpoint held was loaded."""
        self._updates, self._saved_at, self._is_stopping = trainer.global_step, None, False
        call_no_ranks_from_signals()
        ranks = {"rank": trainer.global_rank, "ranks": trainer.world_size}
        self._companion.begin(trainer.optimizers, held_by(trainer, self._plan), **ranks)
        if self._random is not None and trainer.global_rank in self._random:
            import torch

            put_back(torch, self._random[trainer.global_rank])
        self._random = None

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Between two batches; where an update was made, all ranks may stop."""
        if trainer.global_step == self._updates:
            self._put_off(trainer)
            return
        self._updates = trainer.global_step
        self._log(trainer)
        self._is_stopping = self._is_stopping or bool(self._is_asked())
        # Between the last batch of an epoch and its end Lightning validates: it could not come back to here.
        if self._is_stopping and not trainer.is_last_batch:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The epoch is validated, too."""
        if self._is_stopping:
            self._stop(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning ends for a SIGTERM by itself, of several ranks perhaps before we would."""
        if type(exception).__name__ == "SIGTERMException":
            if self._saved_at != trainer.global_step:
                self._save(trainer)
            if isinstance(exception, SystemExit) and exception.code is None:
                exception.code = self._companion.stopped().code
        self._end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Everything is taken off."""
        self._end()

    def state_dict(self) -> dict[str, Any]:
        """Random numbers, which Lightning's checkpoints lack: of the rank that writes; at a stop, of all."""
        return self._numbers() or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """They are put back when everything is there."""
        self._keep_numbers(state_dict)

    # What they do

    @guarded
    def _log(self, trainer: Any) -> None:
        self._companion.updated()
        if not trainer.loggers or trainer.global_step % (trainer.log_every_n_steps or 1):
            return
        figures = self._companion.figures() if trainer.is_global_zero else {}
        for logger in trainer.loggers if figures else ():
            logger.log_metrics(figures, step=trainer.global_step)

    @guarded
    def _put_off(self, trainer: Any) -> None:
        """For a SIGTERM Lightning ends between any two batches, and would lose gradients that add up."""
        connector = getattr(trainer, "_signal_connector", None)
        if self._companion.knows_of_a_signal and connector is not None and not trainer.is_last_batch:
            connector.received_sigterm = False  # we have seen it, and stop after the update

    @guarded
    def _is_asked(self) -> bool:
        return self._companion.stop_requested()

    def _stop(self, trainer: Any) -> None:
        self._gather(trainer)
        is_saved = self._saved_at == trainer.global_step or self._save(trainer)
        trainer.should_stop = True
        if self._leave and is_saved:
            raise self._companion.stopped()

    @guarded
    def _save(self, trainer: Any) -> bool:
        path = self._place(trainer) / f"flatout-step={trainer.global_step}.ckpt"
        trainer.save_checkpoint(path)  # on every rank
        self._saved_at = trainer.global_step
        if trainer.is_global_zero:
            tell(f"saved {path}; fit(..., ckpt_path=newest_checkpoint(...)) goes on")
        return True

    @guarded
    def _gather(self, trainer: Any) -> None:
        """Where all ranks stop together, each can give its random numbers; other checkpoints have one's."""
        if trainer.world_size > 1:
            import torch

            found: list[Any] = [None] * trainer.world_size
            torch.distributed.all_gather_object(found, self._numbers())
            self._of_ranks = [one for one in found if one]

    def _place(self, trainer: Any) -> Path:
        own = self._checkpoints or getattr(trainer.checkpoint_callback, "dirpath", None)
        return Path(own) if own else Path(trainer.default_root_dir) / "checkpoints"

    @guarded
    def _numbers(self) -> dict[str, Any]:
        import torch

        distributed = torch.distributed
        rank = distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
        mine = {"rank": rank, "random": packed(random_states(torch))}
        of_ranks, self._of_ranks = self._of_ranks, []
        return {**mine, "ranks": of_ranks} if of_ranks else mine

    @guarded
    def _keep_numbers(self, state: dict[str, Any]) -> None:
        if state:
            found = [state, *state.get("ranks", ())]
            self._random = {int(one["rank"]): unpacked(one["random"]) for one in found}

    @guarded
    def _end(self) -> None:
        self._companion.end()
