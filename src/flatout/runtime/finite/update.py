"""`flatout.Update`: everything between `backward()` and the next forward pass, in the right order."""

import functools
import sys
from collections.abc import Callable
from typing import Any

from flatout.levers.optimizer_states import wait_for_states
from flatout.records.errors import CallerMistake, UnknownName
from flatout.records.finite import PATIENCE, POLICIES, Policy, Updates
from flatout.runtime.checkpoint.checkpointer import Checkpointer
from flatout.runtime.finite.agreement import agree, agree_on_both, rank_of
from flatout.runtime.finite.buffers import Buffers, saved_buffers
from flatout.runtime.finite.clipping import Clipping
from flatout.runtime.finite.evaluating import Evaluated
from flatout.runtime.finite.first_seen import FirstSeen
from flatout.runtime.finite.gradients import Look, are_finite, look, parameters_of
from flatout.runtime.finite.judging import NotFinite, diagnose, is_enough, word_on
from flatout.runtime.finite.ledger import Answer, Ledger
from flatout.runtime.finite.skipping import Flagged, Hidden, is_fused, takes_flag
from flatout.runtime.finite.snapshot import tensors_in


class Update:
    """Makes each update of an optimizer, or leaves it out where gradients are not finite, on all ranks alike.

        update = flatout.Update(model, optimizer, scaler=scaler, scheduler=scheduler, clip_norm=1.0)
        for batch in loader:
            loss = loss_of(model, batch)
            scaler.scale(loss).backward()        # or loss.backward(); several times, to accumulate
            update.step(loss)

    `backward()` is yours. `step` does the rest, in this order: gradients are unscaled and looked at, ranks
    agree, gradients are clipped, the optimizer steps, `scaler.update()`, and, only if the optimizer has
    stepped, the scheduler and the average of the weights (`ema`, with `update_parameters(model)`); then
    gradients are set to none. The loss is for the diagnosis alone. Optimizers that want a closure get it as
    `update.step(closure=closure)`.

    An update that is skipped leaves parameters and the optimizer's states bit for bit as they were; buffers
    that its forward pass has spoiled (a batch norm's statistics) get the values from before it. `on_nan` says
    what else happens:

    - "skip": nothing, until `patience` updates in a row were skipped; then `flatout.NotFinite` is raised.
    - "stop": it is raised at once. With a scaler, a finite loss whose gradients overflow is no reason: so
      a scaler finds its scale. `patience` in a row are.
    - "rollback": after `patience` in a row, what was handed to the `checkpointer` is loaded from its newest
      checkpoint, and training goes on with the data that comes next; after `rollbacks` times it is raised.

    The diagnosis says which gradients were the first that were not finite, at which update and batch, whether
    the loss was finite, and how the loss scale went. A `checkpointer` never saves a state that is not finite.

    With a fused optimizer on a GPU nobody waits for the answer: its kernel does nothing where it must not,
    and the host reads the outcome one update later. A scheduler or an average must know at once: then it
    waits for the backward pass, while the optimizer's kernels run. Other optimizers have to be told before
    they step; that waits, too, as with a GradScaler.

    Several optimizers, as in a GAN, have an `Update` each: only the one whose gradients are bad is skipped.
    Of several with one scaler, all but the last get `update_scaler=False`.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        scaler: Any = None,
        scheduler: Any = None,
        ema: Any = None,
        clip_norm: float | None = None,
        on_nan: Policy = "skip",
        patience: int = PATIENCE,
        checkpointer: Checkpointer | None = None,
        rollbacks: int = 3,
        update_scaler: bool = True,
    ) -> None:
        import torch

        self._torch = torch
        self._model, self._optimizer = model, optimizer
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._scheduler, self._ema = scheduler, ema
        self._clipping = Clipping(torch, model, clip_norm) if clip_norm is not None else None
        self._policy, self._patience, self._rollbacks = on_nan, patience, rollbacks
        self._update_scaler = update_scaler
        self._checkpointer = checkpointer
        self._ledger = Ledger()
        # A checkpoint was refused: values are not finite, and no batch can help.
        self._is_lost = False
        self._check_settings()
        self._buffers = Buffers(torch, lambda: [model] if isinstance(model, torch.nn.Module) else [])
        self._first_seen = FirstSeen(torch)
        if checkpointer is not None:
            # Some hold what is no number from the start.
            self._averages()
            self._spoiled_buffers()
            checkpointer.refusals.append(self._refuse_to_save)
            checkpointer.loaded.append(self._buffers.take)

    # The update

    def step(self, loss: Any = None, *, closure: Callable[[], Any] | None = None) -> Any:
        """After `backward()`: make this update, or skip it. With a closure, what the optimizer returns."""
        rollbacks = self._ledger.rollbacks
        self._settle()
        if self._is_lost:
            self._end_it()
        if self._ledger.rollbacks != rollbacks:  # these gradients are of what was rolled back
            self._optimizer.zero_grad(set_to_none=True)
            return None
        result, is_known = self._step_with(closure) if closure is not None else self._step(loss)
        if is_known or self._scheduler is not None or self._ema is not None:
            self._settle()
        return result

    @property
    def counts(self) -> Updates:
        """How updates went so far; waits for the last one's outcome."""
        self._settle()
        return self._ledger.counts()

    @property
    def gradient_norm(self) -> Any:
        """Of the last update, before it was clipped, on its device; None where nothing is clipped."""
        return self._clipping.last_norm if self._clipping is not None else None

    def _step(self, loss: Any) -> tuple[None, bool]:
        """One update; also whether the host knows the outcome already."""
        torch, optimizer, scaler = self._torch, self._optimizer, self._scaler
        scale = None
        if scaler is not None:
            scaler.unscale_(optimizer)
            scale = scaler._get_scale_async()  # noqa: SLF001 - the public way waits for the device
        found = self._look()
        flag, loss = agree_on_both(torch, found.flag, _as_tensor(torch, loss))
        self._buffers.updated(flag)
        if self._clipping is not None:
            self._clipping.clip(found, parameters_of(optimizer))
        answer = Answer(torch, flag, loss, scale, found)
        withheld: Flagged | Hidden | None = None
        if scaler is not None:
            _tell_scaler(scaler, optimizer, flag)
        by_kernel = takes_flag(optimizer)
        if by_kernel:
            withheld = Flagged(optimizer, flag) if scaler is None else None
        elif (scaler is None or is_fused(optimizer)) and bool(flag):
            withheld = Hidden(optimizer)
        try:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        finally:
            if withheld is not None:
                withheld.end()
        if scaler is not None and self._update_scaler:
            scaler.update()
        self._ledger.note(answer, batch=self._place())
        optimizer.zero_grad(set_to_none=True)
        return None, not by_kernel or flag.device.type == "cpu"

    def _step_with(self, closure: Callable[[], Any]) -> tuple[Any, bool]:
        if self._scaler is not None or self._clipping is not None:
            raise CallerMistake(
                "a closure beside a scaler or clip_norm",
                expected="gradients as the closure makes them",
                remedy="scale and clip nothing, or clip inside of the closure",
            )
        evaluated = Evaluated(self._torch, self._optimizer, closure, functools.partial(look, self._torch))
        try:
            result = self._optimizer.step(evaluated)
        finally:
            evaluated.end()
        self._buffers.updated(evaluated.flag)
        self._ledger.note(evaluated.answer(), batch=self._place(), let_through=evaluated.let_through)
        self._optimizer.zero_grad(set_to_none=True)
        return result, True

    def _look(self) -> Look:
        order = {} if self._clipping is None else {"order": 2.0}
        return look(self._torch, parameters_of(self._optimizer), **order)

    def _follow(self) -> None:
        if self._scheduler is not None:
            self._scheduler.step()
        if self._ema is not None:
            self._ema.update_parameters(self._model)

    def _place(self) -> str:
        loader = self._checkpointer.loader if self._checkpointer is not None else None
        return f"batch {loader.batches} of pass {loader.passes + 1}" if loader is not None else ""

    # What became of it

    def _settle(self) -> None:
        """Read the outcome of the last update, and do what follows from it."""
        outcome = self._ledger.settle()
        if outcome is None:
            return
        if not outcome.was_skipped:
            self._follow()
            return
        word = word_on(self._ledger, outcome)
        if word and rank_of(self._torch) == 0:
            sys.stderr.write(f"flatout: {word}\n")
        if is_enough(self._ledger, outcome, self._policy, self._patience):
            self._end_it()

    def _end_it(self) -> None:
        about = (self._torch, self._ledger, self._optimizer, [self._model], rank_of(self._torch))
        diagnosis = diagnose(*about, spoiled=self._spoiled_buffers() if self._is_lost else ())
        can_go_back = self._policy == "rollback" and self._ledger.rollbacks < self._rollbacks
        step = self._checkpointer.roll_back(self._is_sound) if can_go_back and self._checkpointer else None
        if step is None:
            raise NotFinite(diagnosis, self._kept())
        self._ledger.begin_anew()
        self._is_lost = False
        if rank_of(self._torch) == 0:
            sys.stderr.write(
                f"flatout: {diagnosis.headline()}: back to step {step}, on with the next batch\n"
            )

    def _kept(self) -> str:
        if self._checkpointer is None:
            return ""
        self._checkpointer.wait()
        newest = self._checkpointer.newest()
        return f"the last good checkpoint: {newest}" if newest is not None else ""

    def _is_sound(self) -> bool:
        return not self._unsound()

    def _unsound(self) -> str:
        """What of that which would be saved, or was loaded, is not finite on a rank. All of them must ask."""
        torch = self._torch
        tensors = list(parameters_of(self._optimizer))
        wait_for_states(self._optimizer)
        for state in self._optimizer.state.values():
            if isinstance(state, dict):
                tensors += [one for one in state.values() if isinstance(one, torch.Tensor)]
        flag = are_finite(torch, tensors)
        flags = [flag, are_finite(torch, self._averages()).to(flag.device)]
        flags.append(torch.full_like(flag, float(bool(self._spoiled_buffers()))))
        words = ("parameters or the optimizer's states are", "the average of the weights is", "buffers are")
        found = agree(torch, torch.stack(flags)).tolist()
        return next((f"{word} not finite" for word, is_bad in zip(words, found, strict=True) if is_bad), "")

    def _averages(self) -> list[Any]:
        """The average's weights, and not what it holds besides, which may be meant to be as it is."""
        if isinstance(self._ema, self._torch.nn.Module):
            return self._first_seen.meant_to_be_finite(list(self._ema.parameters()))
        state: Any = getattr(self._ema, "state_dict", dict)()
        return [one for _, one in tensors_in(self._torch, state, ())]

    def _spoiled_buffers(self) -> list[str]:
        modules = [one for one in (self._model, self._ema) if isinstance(one, self._torch.nn.Module)]
        return self._first_seen.spoiled(saved_buffers(self._torch, modules))

    def _refuse_to_save(self) -> str:
        why = self._unsound()
        self._is_lost = bool(why)
        return why

    def _check_settings(self) -> None:
        if self._policy not in POLICIES:
            raise UnknownName("policy", self._policy, POLICIES)
        if self._patience < 1:
            raise CallerMistake(f"patience={self._patience}", expected="1 or more", remedy="patience=20")
        plateau = self._torch.optim.lr_scheduler.ReduceLROnPlateau
        if isinstance(self._scheduler, plateau):
            raise CallerMistake(
                "a ReduceLROnPlateau as the scheduler",
                expected="one that steps with each update",
                remedy="leave it out, and step it yourself with its metric",
            )
        if self._policy == "rollback":
            self._insist_on_what_is_rolled_back()

    def _insist_on_what_is_rolled_back(self) -> None:
        ours = ("model", "optimizer", "scaler", "scheduler", "ema")
        needed = {name: getattr(self, f"_{name}") for name in ours if getattr(self, f"_{name}") is not None}
        kept = [] if self._checkpointer is None else [_bare(one) for one in self._checkpointer.parts()]
        missing = [name for name, one in needed.items() if not any(_bare(one) is part for part in kept)]
        if missing:
            raise CallerMistake(
                f'on_nan="rollback" without {", ".join(missing)} in a checkpointer',
                expected="a flatout.Checkpointer that keeps all that an update changes",
                remedy=f"flatout.Checkpointer(folder, {', '.join(f'{one}={one}' for one in needed)})",
            )


def _bare(part: Any) -> Any:
    """A model without what is wrapped around it."""
    part = getattr(part, "_orig_mod", part)
    return getattr(part, "module", part)


def _as_tensor(torch: Any, loss: Any) -> Any:
    return None if loss is None else torch.as_tensor(loss)


def _tell_scaler(scaler: Any, optimizer: Any, flag: Any) -> None:
    """What ranks agreed on counts for the scaler too, which then backs off on all of them."""
    for found in scaler._found_inf_per_device(optimizer).values():  # noqa: SLF001 - there is no public way
        found.copy_(flag, non_blocking=True)
