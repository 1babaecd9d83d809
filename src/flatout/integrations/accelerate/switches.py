"""Switches of the Accelerator that stand for levers of a plan, and which of them are on."""

from pathlib import Path
from typing import Any

from flatout.integrations.companion import Held
from flatout.integrations.settings import Settings, Switches, always, settings_for
from flatout.records.plan import Plan


def _of_compile(settings: dict[str, Any]) -> dict[str, Any]:
    """Other modes need a plugin of Accelerate's: `Flatout.prepare` does those."""
    return {"dynamo_backend": "inductor"} if settings.get("mode", "default") == "default" else {}


SWITCHES: Switches = {
    "bf16": (always(mixed_precision="bf16"), "autocast around the model's call, with outputs in float32"),
    "fp16": (always(mixed_precision="fp16"), "autocast in fp16, with a loss scale that Accelerate keeps"),
    "compile": (_of_compile, "Accelerate compiles the model when it prepares it"),
}


def accelerator_settings(plan: Plan | str | Path) -> Settings:
    """Arguments of Accelerator that do what a plan's levers do; `.reasons` explains each.

        accelerator = Accelerator(**accelerator_settings("flatout.toml"))

    What Accelerate does by them, `Flatout.prepare` leaves alone; it does the rest.
    """
    return settings_for(plan, SWITCHES)


def held_by(accelerator: Any) -> Held:
    """What this Accelerator does of a plan already."""
    done = {}
    if accelerator.mixed_precision in ("bf16", "fp16"):
        done[accelerator.mixed_precision] = f"Accelerator(mixed_precision={accelerator.mixed_precision!r})"
    if str(getattr(accelerator.state.dynamo_plugin.backend, "value", "NO")).upper() != "NO":
        done["compile"] = "Accelerator(dynamo_backend=...)"
    return Held(done, {"batch-size": "DataLoader(batch_size=...)"})
