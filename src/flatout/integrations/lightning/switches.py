"""Switches of Lightning's Trainer that stand for levers of a plan, and which of them are on."""

from pathlib import Path
from typing import Any

from flatout.integrations.companion import Held
from flatout.integrations.settings import Settings, Switches, always, plan_of, settings_for
from flatout.records.plan import Plan

SWITCHES: Switches = {
    "bf16": (always(precision="bf16-mixed"), "autocast around training and evaluation steps"),
    "fp16": (always(precision="16-mixed"), "autocast in fp16, with a loss scale that Lightning keeps"),
    "cudnn-autotune": (always(benchmark=True), "cuDNN tries its kernels for each shape"),
    "debug-modes": (always(detect_anomaly=False), "autograd's anomaly mode stays off"),
}
_PRECISIONS = {"bf16-mixed": "bf16", "16-mixed": "fp16"}


def trainer_settings(plan: Plan | str | Path) -> Settings:
    """Arguments of Trainer that do what a plan's levers do; `.reasons` explains each, `.left` has the others.

        trainer = Trainer(max_epochs=3, **trainer_settings("flatout.toml"))

    What the Trainer does by them, the callback leaves alone; it does the rest.
    """
    return settings_for(plan, SWITCHES)


def loader_arguments(plan: Plan | str | Path) -> dict[str, Any]:
    """Arguments for the DataLoader that you make: Lightning has no switch for it, and a callback comes late.

    DataLoader(data_set, batch_size=32, **loader_arguments("flatout.toml"))
    """
    whole = plan_of(plan)
    found = [choice.settings for choice in whole.levers if choice.id == "loader"] if whole is not None else []
    return dict(found[0]) if found else {}


def held_by(trainer: Any, plan: Plan | None) -> Held:
    """What this trainer does of a plan already, and what could be done."""
    lever = _PRECISIONS.get(str(trainer.precision))
    done = {lever: f"Trainer(precision={trainer.precision!r})"} if lever is not None else {}
    loader = loader_arguments(plan) if plan is not None else {}
    given = ", ".join(f"{name}={value!r}" for name, value in loader.items())
    if loader and _has(trainer.train_dataloader, loader):
        done["loader"] = "the DataLoader has it"
    return Held(done, {"loader": f"DataLoader({given})", "batch-size": "DataLoader(batch_size=...)"})


def _has(loader: Any, settings: dict[str, Any]) -> bool:
    return all(getattr(loader, name, None) == value for name, value in settings.items())
