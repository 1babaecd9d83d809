"""A profile with something in every section, to draw and to diagnose."""

from typing import Any

from flatout.records.profile import (
    CompileUse,
    DeviceUse,
    LoaderUse,
    MemoryUse,
    Mfu,
    Profile,
    RankUse,
    Share,
    StepTimes,
)
from flatout.records.trial import Shield, Trial

GIB = 1 << 30


def profile(**changes: Any) -> Profile:
    """A GPT on an H200, with something in every section."""
    facts: dict[str, Any] = {
        "run": "20260101-000000-abcd",
        "steps": 198,
        "updates": 200,
        "steady_from": 3,
        "steady": True,
        "steady_reason": "after the first steps",
        "pace_shifted_at": None,
        "step_ms": StepTimes(p50=22.8, p95=24.1, mean=22.9, low=22.7, high=22.95, clock="device"),
        "device": "cuda:0",
        "device_name": "NVIDIA H200",
        "samples_per_step": 64.0,
        "samples_per_s": 2795.0,
        "tokens_per_s": 357_800.0,
        "micro_batches": 1.0,
        "skipped_updates": 0,
        "waterfall": (Share(part="unattributed", ms=22.9, share=1.0),),
        "host": (Share(part="forward", ms=9.0, share=0.4), Share(part="other", ms=13.5, share=0.6)),
        "device_parts": (
            Share(part="forward", ms=7.6, share=1 / 3),
            Share(part="backward", ms=15.2, share=2 / 3),
        ),
        "evaluation_ms": 1500.0,
        "evaluations": 2,
        "mfu": Mfu(
            of_rated=0.034,
            of_measured=0.042,
            peak_dtype="bf16",
            flops_per_step=770_000_000_000,
            rated_flops_per_s=989e12,
            measured_flops_per_s=780e12,
            rated_source="data sheet",
        ),
        "memory": MemoryUse(
            allocated_peak_bytes=11 * GIB,
            reserved_peak_bytes=12 * GIB,
            device_total_bytes=139 * GIB,
            parameter_bytes=GIB,
            gradient_bytes=GIB,
            optimizer_bytes=2 * GIB,
            activation_bytes=7 * GIB,
            allocation_retries=0,
        ),
        "loaders": (
            LoaderUse(
                data_set="mingpt.CharDataset",
                settings={"batch_size": 64, "num_workers": 4, "pin_memory": True},
                batches=200,
                wait_ms=0.05,
                load_ms=31.4,
                collate_ms=2.2,
                workers_busy_share=0.37,
            ),
        ),
        "compile": CompileUse(
            compiles=0, recompiles=0, compile_s=0.0, compiles_in_steady_state=0, graph_breaks={}
        ),
        "device_use": DeviceUse(
            samples=40,
            kernel_running_share=0.99,
            sm_active_share=0.71,
            tensor_active_share=0.0001,
            memory_bandwidth_share=0.4,
            clock_compute_hz=1_980_000_000,
            power_draw_mw=431_600,
            temperature_max_c=61,
            throttle_reasons=(),
            source="NVML GPM",
        ),
        "collector_ms": 0.0,
        "losses": (4.2, 4.1),
        "gradient_norms": (),
        "ranks": (RankUse(rank=0, pid=7, device="cuda:0", step_ms=22.8, updates=200),),
        "trial": Trial(
            name="profile",
            folder="/tmp/run",
            command=("python", "train.py"),
            outcome="stopped",
            updates=201,
            ranks=1,
            took_s=12.0,
            shield=Shield(kind="overlay"),
        ),
        "parameters": 124_000_000,
        "optimizers": ("AdamW",),
        "roots": ("GPT",),
    }
    return Profile(**{**facts, **changes})
