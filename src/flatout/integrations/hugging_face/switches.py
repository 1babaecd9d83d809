"""Switches of the Trainer that stand for levers of a plan, and which of them are on."""

import sys
from pathlib import Path
from typing import Any

from flatout.integrations.companion import Held
from flatout.integrations.settings import Settings, Switches, always, settings_for
from flatout.records.plan import Plan

_LOADER = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context")


def _of_loader(settings: dict[str, Any]) -> dict[str, Any]:
    return {f"dataloader_{name}": settings[name] for name in _LOADER if settings.get(name) is not None}


def _of_compile(settings: dict[str, Any]) -> dict[str, Any]:
    return {"torch_compile": True, "torch_compile_mode": settings.get("mode", "default")}


def _of_checkpointing(_settings: dict[str, Any]) -> dict[str, Any]:
    """By its newest name: the old one makes transformers warn."""
    arguments = getattr(sys.modules.get("transformers"), "TrainingArguments", None)
    is_new = "activation_checkpointing" in getattr(arguments, "__dataclass_fields__", ())
    return {"activation_checkpointing" if is_new else "gradient_checkpointing": True}


SWITCHES: Switches = {
    "loader": (_of_loader, "the Trainer makes its DataLoader with them"),
    "bf16": (always(bf16=True), "autocast around the model's call, with outputs in float32"),
    "fp16": (always(fp16=True), "autocast in fp16, with a loss scale that the Trainer keeps"),
    "tf32": (always(tf32=True), "products of float32 in TF32; refused by GPUs before Ampere and by CPUs"),
    "compile": (_of_compile, "the Trainer compiles the model before it trains"),
    "fused-optimizer": (always(optim="adamw_torch_fused"), "AdamW in one kernel, in place of adamw_torch"),
    "liger": (always(use_liger_kernel=True), "kernels of Liger in the model's layers"),
    "hf-checkpointing": (
        _of_checkpointing,
        "activations are computed again on the way back",
    ),
}


def training_arguments(plan: Plan | str | Path) -> Settings:
    """Arguments of TrainingArguments that do what a plan's levers do; `.reasons` explains each.

        args = TrainingArguments("out", **training_arguments("flatout.toml"))

    What the Trainer does by them, the callback leaves alone. Only the loader's need to be given so: its
    DataLoader exists before any callback is called; the callback does the rest where they are left out.
    """
    return settings_for(plan, SWITCHES)


def held_by(args: Any, plan: Plan | None) -> Held:
    """What these arguments do of a plan already, and what they could do."""
    is_on = {
        "bf16": args.bf16,
        "fp16": args.fp16,
        "compile": args.torch_compile,
        "liger": args.use_liger_kernel,
        "hf-checkpointing": getattr(args, "activation_checkpointing", None)
        or getattr(args, "gradient_checkpointing", False),
    }
    done = {name: "TrainingArguments has it" for name, on in is_on.items() if on}
    advice = {}
    for choice in plan.levers if plan is not None else ():
        if choice.id == "loader":
            wanted = _of_loader(choice.settings)
            if all(getattr(args, name, None) == value for name, value in wanted.items()):
                done["loader"] = "TrainingArguments has it"
            given = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
            advice["loader"] = f"TrainingArguments({given})"
        elif choice.id == "batch-size":
            advice["batch-size"] = "TrainingArguments(per_device_train_batch_size=...)"
    return Held(done, advice)
