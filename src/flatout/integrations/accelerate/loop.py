"""`Flatout(accelerator)`: what a loop with an Accelerator calls at its few fixed places."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flatout.inside.loader_anew import loader_with
from flatout.integrations.accelerate.checkpoints import load, newest_checkpoint, save
from flatout.integrations.accelerate.place import Place
from flatout.integrations.accelerate.switches import held_by
from flatout.integrations.companion import Companion, Held
from flatout.integrations.guarded import guarded, tell
from flatout.integrations.missing import library
from flatout.integrations.settings import plan_of
from flatout.records.errors import CallerMistake
from flatout.records.places import PROJECT_FOLDER
from flatout.records.plan import Plan


class Flatout:
    """Applies a plan around an Accelerator, logs what steps cost, and answers signals with a checkpoint.

        with Flatout(accelerator, "flatout.toml", checkpoints="kept") as flat:
            model, optimizer, loader = flat.prepare(model, optimizer, loader)
            flat.resume()
            for epoch in flat.epochs(3):
                for batch in flat.batches(loader):
                    ...
                    flat.step()

    `plan` is what `flatout tune` found; without one nothing is changed. With `watch`, `accelerator.log` gets
    step time, rates, data wait, memory and, with a plan that knows it, MFU, every `log_every` updates; the
    profile of the training lies in `folder`/runs afterwards.

    With `checkpoints`, a folder, `step` saves there every `every` updates, and when a SIGTERM, SIGINT or
    SIGUSR1 came: then the process leaves with the signal's code (`flatout.Stopped`), or with `leave=False`
    `step` returns True, and the loop should end. The `keep` newest stay.
    """

    def __init__(
        self,
        accelerator: Any,
        plan: Plan | str | Path | None = None,
        *,
        checkpoints: str | Path | None = None,
        every: int | None = None,
        keep: int = 2,
        watch: bool = True,
        log_every: int = 10,
        leave: bool = True,
        folder: str | Path = PROJECT_FOLDER,
    ) -> None:
        library("accelerate", wanted_for="flatout.integrations.accelerate")
        import torch

        self._accelerator = accelerator
        self._plan = plan_of(plan)
        self._checkpoints = Path(checkpoints) if checkpoints is not None else None
        self._every, self._keep, self._log_every, self._leave = every, keep, log_every, leave
        self._companion = Companion(self._plan, watch=watch, folder=folder)
        self._place = Place(torch, accelerator)
        self._is_stopping = False
        self.updates = 0
        _insist_on_own_names(accelerator)

    @property
    def levers(self) -> tuple[str, ...]:
        """Levers of the plan that are on, or were at the end."""
        return self._companion.levers

    @property
    def dropped(self) -> dict[str, str]:
        """Those that are not, and why."""
        return self._companion.dropped

    # Beginning and ending

    def prepare(self, *objects: Any) -> Any:
        """`accelerator.prepare`, with the plan: loaders get its settings, the rest comes on with training."""
        held = held_by(self._accelerator)
        made = self._made_anew(objects) or [(one, False) for one in objects]
        prepared = self._accelerator.prepare(*(one for one, _ in made))
        done = {**held.done, **({"loader": "made anew"} if any(anew for _, anew in made) else {})}
        optimizers = [one for one in objects if hasattr(one, "param_groups") and hasattr(one, "step")]
        self._begin(optimizers, Held(done, held.advice))
        return prepared

    @guarded
    def _begin(self, optimizers: list[Any], held: Held) -> None:
        accelerator = self._accelerator
        place = {"rank": accelerator.process_index, "ranks": accelerator.num_processes}
        self._companion.begin(optimizers, held, **place)

    @guarded
    def _made_anew(self, objects: Sequence[Any]) -> list[tuple[Any, bool]]:
        """Loaders with the plan's settings, and whether they are."""
        from torch.utils.data import DataLoader

        levers = self._plan.levers if self._plan is not None and self._companion.may_apply else ()
        wanted = next((choice.settings for choice in levers if choice.id == "loader"), None)
        made = []
        for one in objects:
            if wanted is None or not isinstance(one, DataLoader):
                made.append((one, False))
                continue
            loader, refusal = loader_with(one, wanted)
            if refusal:
                tell(f"loader is not applied: {refusal}")
            made.append((loader, not refusal))
        return made

    def __enter__(self) -> "Flatout":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @guarded
    def end(self) -> None:
        """Take everything off that was put on."""
        self._companion.end()

    # The loop

    def resume(self) -> int:
        """Load the newest complete checkpoint into what was prepared; its updates, or 0 without any."""
        found = newest_checkpoint(self._checkpoints) if self._checkpoints is not None else None
        if found is None:
            return 0
        own = load(self._accelerator, found)
        if own is None:
            raise CallerMistake(
                f"{found} has nothing of rank {self._accelerator.process_index}",
                expected="as many ranks as there were",
                remedy="resume with as many, or accelerator.load_state(...) and a pass from its beginning",
            )
        self.updates = own["updates"]
        self._place.resume(own["place"])
        return self.updates

    def epochs(self, count: int) -> Iterator[int]:
        """Those that are left of so many."""
        while self._place.passes < count and not self._is_stopping:
            before = self._place.passes
            yield before
            if self._place.passes == before:  # the loop has had enough of this pass
                self._place.leave_off()

    def batches(self, loader: Any) -> Iterator[Any]:
        """Of one pass over the loader that trains; after `resume`, those that are left."""
        return self._place.batches(loader)

    def step(self) -> bool:
        """To be called after each batch, on every rank; whether to stop, with `leave=False`."""
        if not self._accelerator.sync_gradients:
            return False
        self.updates += 1
        self._log()
        asked = bool(self._is_asked())
        is_due = self._every and not self.updates % self._every
        if self._checkpoints is not None and (asked or is_due):
            place = self.save()
            if asked and self._accelerator.is_main_process:
                tell(f"saved {place}; start it again to go on")
        self._is_stopping = self._is_stopping or asked
        if asked and self._leave:
            raise self._companion.stopped()
        return self._is_stopping

    def save(self) -> Path:
        """Save now, on every rank: `accelerator.save_state`, and the place in the data."""
        if self._checkpoints is None:
            raise CallerMistake(
                "Flatout was given no folder",
                expected="checkpoints=...",
                remedy='Flatout(..., checkpoints="kept")',
            )
        own = {"updates": self.updates, "place": self._place.state()}
        return save(self._accelerator, self._checkpoints, self.updates, own, keep=self._keep)

    @guarded
    def _log(self) -> None:
        self._companion.updated()
        if self.updates % self._log_every:
            return
        figures = self._companion.figures() if self._accelerator.is_main_process else {}
        if figures:
            self._accelerator.log(figures, step=self.updates)

    @guarded
    def _is_asked(self) -> bool:
        return self._companion.stop_requested()


def _insist_on_own_names(accelerator: Any) -> None:
    if accelerator.project_configuration.automatic_checkpoint_naming:
        raise CallerMistake(
            "this Accelerator names its checkpoints itself",
            expected="ProjectConfiguration(automatic_checkpoint_naming=False)",
            remedy="leave it off: Flatout names them by their updates, and keeps the newest",
        )
