"""A profile with something in every section, to draw and to diagnose."""

import math
from typing import Any

from flatout.records.finding import Finding, Place
from flatout.records.profile import (
    CompileUse,
    DeviceUse,
    Floors,
    LoaderUse,
    MemoryPoint,
    MemoryUse,
    Mfu,
    ProductShape,
    Profile,
    RankUse,
)
from flatout.records.step import Share, StepTimes
from flatout.records.trace import KernelUse, OperatorUse, SyncPoint, TraceSummary
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


_PARTS = {
    "matmul": 7.6,
    "attention": 1.9,
    "memory_bound": 5.9,
    "optimizer": 1.3,
    "other_gpu": 0.2,
    "host_to_device": 0.11,
    "input_wait": 0.4,
    "sync_stall": 3.1,
    "launch_gap": 2.0,
    "unattributed": 0.39,
}
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul> >(int)"
)
_GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas"
)
_FLASH = (
    "void pytorch_flash::flash_{}_kernel<pytorch_flash::Flash_kernel_traits<64, 128, 128, 8, cutlass::bf16> >"
)
_UPDATE = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdam>"
)
_NORM = "void at::native::(anonymous namespace)::cuComputeGradInput<float, float>"
_SOFTMAX = "void cunn_SoftMaxForward<4, float, float, float, SoftMaxForwardEpilogue>"
# Name, kind, calls and milliseconds a step, tensor cores.
_KERNELS: tuple[tuple[str, str, float, float, bool | None], ...] = (
    (_GEMM, "matmul", 97.0, 4.4, True),
    ("ampere_sgemm_128x64_nn", "matmul", 3.0, 3.2, False),
    (_ELEMENTWISE.format("GeluCUDAKernelImpl"), "memory_bound", 24.0, 1.9, None),
    (_ELEMENTWISE.format("CUDAFunctor_add<float>"), "memory_bound", 74.0, 1.6, None),
    (_UPDATE, "optimizer", 12.0, 1.3, None),
    (_FLASH.format("bwd_dq_dk_dv_loop_seqk_parallel"), "attention", 12.0, 1.2, None),
    (_NORM, "memory_bound", 25.0, 1.1, None),
    (_SOFTMAX, "reduction", 1.0, 0.9, None),
    (_FLASH.format("fwd"), "attention", 12.0, 0.7, None),
    (_ELEMENTWISE.format("MulFunctor<float>"), "memory_bound", 51.0, 0.3, None),
    ("Memcpy HtoD (Pinned -> Device)", "copy", 2.0, 0.11, None),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >", "reduction", 26.0, 0.1, None),
)


def recorded_trace(**changes: Any) -> TraceSummary:
    """What torch's profiler shows of some steps of it."""
    busy = sum(ms for *_, ms, _ in _KERNELS)
    facts: dict[str, Any] = {
        "files": ("rank0.pt.trace.json.gz",),
        "events": 48_211,
        "steps": 5,
        "step_ms": StepTimes(p50=26.1, p95=26.9, mean=26.2, low=25.9, high=26.5, clock="host"),
        "device_name": "NVIDIA H200",
        "busy_share": 0.65,
        # The host is slower under a profiler.
        "waterfall": _shares({**_PARTS, "launch_gap": 5.3}),
        "kernels": tuple(
            KernelUse(
                name=name,
                kind=kind,
                calls=calls,
                ms=ms,
                mean_us=1000 * ms / calls,
                share=ms / busy,
                tensor_cores=on_tensor_cores,
            )
            for name, kind, calls, ms, on_tensor_cores in _KERNELS
        ),
        "operators": (
            OperatorUse(name="aten::mm", calls=73.0, ms=5.1, share=0.3),
            OperatorUse(name="aten::addmm", calls=48.0, ms=2.5, share=0.15),
            OperatorUse(
                name="aten::_scaled_dot_product_flash_attention_backward", calls=12.0, ms=1.2, share=0.07
            ),
            OperatorUse(name="aten::gelu", calls=12.0, ms=1.0, share=0.06),
        ),
        "syncs": (
            SyncPoint(
                call="cudaStreamSynchronize",
                operator="aten::item",
                where="/home/ada/gpt/train.py:88 in train",
                count=1.0,
                host_ms=14.2,
                stall_ms=2.9,
            ),
            SyncPoint(call="cudaMemcpyAsync", operator="", where=None, count=0.2, host_ms=0.4, stall_ms=0.2),
        ),
        "tensor_core_share": 0.58,
        "kernels_per_step": 339.0,
    }
    return TraceSummary(**{**facts, **changes})


def recorded(**changes: Any) -> Profile:
    """The same profile, of which some steps were recorded as well."""
    facts: dict[str, Any] = {
        "waterfall": _shares(_PARTS),
        "trace": recorded_trace(),
        "floors": Floors(as_written_ms=9.1, fused_ms=4.0, moving_share=0.56),
        "products": (
            ProductShape(
                operator="aten::addmm", dtype="bfloat16", batch=1, m=65536, n=3072, k=768, calls=12, share=0.4
            ),
            ProductShape(
                operator="aten::mm",
                dtype="bfloat16",
                batch=1,
                m=65536,
                n=50257,
                k=768,
                calls=1,
                share=0.31,
                pad={"n": 50264},
            ),
            ProductShape(
                operator="aten::bmm",
                dtype="bfloat16",
                batch=768,
                m=1024,
                n=63,
                k=1023,
                calls=12,
                share=0.04,
                pad={"n": 64, "k": 1024},
            ),
        ),
        "memory_timeline": tuple(
            MemoryPoint(
                ms=0.25 * n, allocated_bytes=int((4 + 7 * math.sin(math.pi * (n % 92) / 92) ** 2) * GIB)
            )
            for n in range(230)
        ),
        "losses": tuple(4.2 - 0.6 * math.log1p(n / 8) + 0.05 * math.sin(2.3 * n) for n in range(200)),
        "findings": (
            Finding(
                code="F303",
                severity="high",
                title="matrix products in full precision",
                evidence="4.2 of 7.6 ms of products run in float32 without TF32, off tensor cores",
                fix='torch.set_float32_matmul_precision("high"), or flatout tune --only tf32',
                where=(Place(file="/home/ada/gpt/train.py", line=41, function="main"),),
                predicted_speedup=1.38,
                arithmetic="1 / (1 - 0.333 + 0.333 / 6) = 1.38",
            ),
            Finding(
                code="F201",
                severity="medium",
                title="the host waits for the device",
                evidence="aten::item waits once a step, and the device then idles for 2.9 ms",
                fix="log every 50 steps, or keep the loss on the device: loss.detach()",
                where=(Place(file="/home/ada/gpt/train.py", line=88, function="train"),),
                predicted_speedup=1.14,
                arithmetic="1 / (1 - 0.127 + 0.127 / 20) = 1.14",
            ),
            Finding(
                code="F306",
                severity="medium",
                title="a product whose sizes miss tensor cores",
                evidence="the head has 50257 columns, 31 % of all operations",
                fix="pad the vocabulary to 50264",
                predicted_speedup=1.06,
                arithmetic="1 / (1 - 0.11 + 0.11 / 2) = 1.06",
            ),
            Finding(
                code="F602",
                severity="low",
                title="most of the device's memory is empty",
                evidence="12.0 of 139.0 GiB are reserved at the peak",
                fix="a larger batch, where that fits the training",
            ),
        ),
        "report": ".flatout/runs/20260101-000000-abcd/report.html",
    }
    return profile(**{**facts, **changes})


def _shares(parts: dict[str, float]) -> tuple[Share, ...]:
    whole = sum(parts.values())
    return tuple(Share(part=part, ms=ms, share=ms / whole) for part, ms in parts.items())
