"""The environment: thread counts, debug switches that were left on, allocator settings."""

import re
from collections.abc import Callable, Iterator

from flatout.hardware.health.check import Outcome
from flatout.records.machine import Machine

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OFF = ("", "0", "false", "off", "no", "none")

# Variable -> (values that matter, as a pattern; what it costs).
DEBUG_VARIABLES: dict[str, tuple[str, str]] = {
    "CUDA_LAUNCH_BLOCKING": (r".+", "each kernel launch waits for the GPU: host and GPU never overlap"),
    "HIP_LAUNCH_BLOCKING": (r".+", "each kernel launch waits for the GPU: host and GPU never overlap"),
    "AMD_SERIALIZE_KERNEL": (r".+", "kernels run one by one, each waited for"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (r".+", "each allocation goes to the driver and waits for the GPU"),
    "CUDA_DEVICE_MAX_CONNECTIONS": (
        r"1",
        "all streams share one queue: less overlap (Megatron-LM wants it so)",
    ),
    "NVIDIA_TF32_OVERRIDE": (r"0", "TF32 is off for every library: fp32 products run without tensor cores"),
    "TORCHDYNAMO_DISABLE": (r".+", "torch.compile does nothing"),
    "TORCH_COMPILE_DISABLE": (r".+", "torch.compile does nothing"),
    "TORCH_COMPILE_DEBUG": (r".+", "every compile writes its whole history to disk"),
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": (r".+", "every start compiles everything again"),
    "TORCHINDUCTOR_COMPILE_THREADS": (r"1", "compiling uses one core"),
    "TORCH_LOGS": (r".+", "torch logs from inside the training loop"),
    "TORCH_DISTRIBUTED_DEBUG": (r"(?i)detail", "every collective is checked on all ranks first"),
    "TORCH_NCCL_BLOCKING_WAIT": (r".+", "every collective blocks the host"),
    "NCCL_DEBUG": (r"(?i)info|trace", "NCCL logs from inside the training loop"),
    "NCCL_P2P_DISABLE": (r".+", "GPUs talk through host memory, not to each other"),
    "NCCL_SHM_DISABLE": (r".+", "ranks of one machine talk through the network"),
    "NCCL_IB_DISABLE": (r".+", "machines talk through TCP, not InfiniBand"),
    "CUBLAS_WORKSPACE_CONFIG": (r".+", "matrix products are held to deterministic, sometimes slower kernels"),
    "PYTHONMALLOC": (r".*debug", "Python checks every allocation"),
    "PYTHONDEVMODE": (r".+", "Python runs with its development checks"),
    "MALLOC_CHECK_": (r".+", "the C library checks every allocation"),
    "MALLOC_PERTURB_": (r".+", "the C library fills every allocation"),
}
# Set on purpose on some machines: cards without peer access, clouds without InfiniBand, Megatron-LM.
_SOMETIMES_NEEDED = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "CUDA_DEVICE_MAX_CONNECTIONS")
# torch's own switches, as found in a fresh process (set by a sitecustomize or a plugin).
DEBUG_STATE = {
    "anomaly_mode": "anomaly mode: every operator records a traceback, every gradient is checked for NaN",
    "deterministic_algorithms": "deterministic algorithms: slower kernels where they exist, errors where not",
    "cudnn_deterministic": "deterministic cuDNN: its fastest kernels are left out",
    "sync_debug_mode": "sync debug mode: every synchronization warns or raises",
}

_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_ALLOCATOR_KEYS = frozenset(
    {
        "backend",
        "expandable_segments",
        "garbage_collection_threshold",
        "graph_capture_record_stream_reuse",
        "large_segment_size_mb",
        "max_non_split_rounding_mb",
        "max_split_size_mb",
        "per_process_memory_fraction",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "roundup_power2_divisions",
        "throw_on_cudamalloc_oom",
    }
)


# What torch accepts, for the keys that people set most.
_ALLOCATOR_VALUES: dict[str, Callable[[str], bool]] = {
    "expandable_segments": lambda text: text in ("True", "False"),
    "max_split_size_mb": lambda text: text.isdecimal() and int(text) > 20,
    "garbage_collection_threshold": lambda text: re.fullmatch(r"0?\.\d*[1-9]\d*", text) is not None,
    "backend": lambda text: text in ("native", "cudaMallocAsync", "hipMallocAsync"),
}


def thread_variables(machine: Machine) -> Iterator[Outcome]:
    """Reads the variables that fix the number of CPU threads.

    torchrun sets OMP_NUM_THREADS=1 when nobody else has: augmentation and optimizer work on the CPU then
    use one core. More threads than CPUs make them fight.
    """
    host = machine.host
    usable = host.cpu_affinity_count or host.cpu_count
    if usable is None:
        return
    usable = max(1, min(usable, int(host.cpu_quota))) if host.cpu_quota else usable
    set_here = {name: machine.environment[name] for name in _THREAD_VARIABLES if name in machine.environment}
    for name, value in set_here.items():
        first = value.split(",", maxsplit=1)[0].strip()
        if not first.isdecimal() or int(first) == 0:
            yield Outcome("warn", f"{name}={value} is not a number of threads", f"unset {name}")
        elif int(first) > usable:
            yield Outcome("warn", f"{name}={value}, with {usable} CPUs to use", f"export {name}={usable}")
        elif int(first) == 1 and usable >= 4:
            fix = f"export {name}={usable}   # divided by the ranks on this machine"
            yield Outcome("warn", f"{name}=1: CPU work uses one of {usable} CPUs", fix)
        else:
            yield Outcome("ok", f"{name}={value}")
    if not set_here:
        yield Outcome("ok", f"not set: libraries choose, with {usable} CPUs to use")


def debug_switches(machine: Machine) -> Iterator[Outcome]:
    """Names every debug switch that is on, in the environment and in torch's own state, and what it costs.

    They are set to chase one bug and stay in a shell profile or a job template for months.
    """
    found = False
    for name, (pattern, cost) in DEBUG_VARIABLES.items():
        value = machine.environment.get(name)
        matters = value is not None and re.fullmatch(pattern, value) is not None
        if value is None or not matters or (pattern == r".+" and value.lower() in _OFF):
            continue
        found = True
        purpose = "   # unless these machines need it so" if name in _SOMETIMES_NEEDED else ""
        yield Outcome("warn", f"{name}={value}: {cost}", f"unset {name}{purpose}")
    torch = machine.framework("torch")
    for name, cost in DEBUG_STATE.items():
        if torch is not None and torch.switches.get(name) == "on":
            found = True
            fix = "python -X importtime -c 'import torch' 2>&1 | grep -i customize   # what sets it at start?"
            yield Outcome("warn", f"torch starts with {cost}", fix)
    unread = [name for name in DEBUG_STATE if torch and torch.switches.get(name, "").startswith("unknown")]
    if unread:
        yield Outcome("unknown", f"torch does not tell: {', '.join(unread)}")
    elif not found:
        yield Outcome("ok", "none is on")


def allocator_settings(machine: Machine) -> Iterator[Outcome]:
    """Reads the settings of torch's caching allocator and finds what torch would refuse or ignore.

    An unknown key makes the first CUDA call raise. Some settings have no effect together.
    """
    present = [name for name in _ALLOCATOR_VARIABLES if machine.environment.get(name)]
    if not present:
        yield Outcome("ok", "not set: torch's defaults")
        return
    for name in present:
        yield from _judge_allocator(name, machine.environment[name])
    values = {machine.environment[name] for name in present}
    if len(values) > 1:
        yield Outcome(
            "warn", f"{' and '.join(present)} differ: only one of them counts", f"unset {present[-1]}"
        )


def _judge_allocator(name: str, value: str) -> Iterator[Outcome]:
    # A bracketed list such as roundup_power2_divisions:[256:1,512:2] has commas of its own.
    entries = [entry.strip() for entry in re.split(r",(?![^\[\]]*\])", value.strip().removesuffix(","))]
    shapeless = [entry for entry in entries if not re.fullmatch(r"[^:\[\]]+:.+", entry)]
    settings = {key.strip(): setting.strip() for key, _, setting in (e.partition(":") for e in entries)}
    unknown = [key for key in settings if key not in _ALLOCATOR_KEYS]
    if shapeless or unknown:
        what = (
            f"{shapeless[0]!r} is not of the form key:value" if shapeless else f"unknown key {unknown[0]!r}"
        )
        yield Outcome("fail", f"{name}={value}: {what}", f"unset {name}")
    elif wrong := [key for key, setting in settings.items() if not _ALLOCATOR_VALUES.get(key, bool)(setting)]:
        evidence = f"{name}={value}: torch refuses {wrong[0]}:{settings[wrong[0]]}"
        yield Outcome("fail", evidence, f"unset {name}")
    elif settings.get("backend") == "cudaMallocAsync" and "expandable_segments" in settings:
        evidence = f"{name}: expandable_segments has no effect with backend cudaMallocAsync"
        yield Outcome("warn", evidence, f"export {name}=expandable_segments:True")
    else:
        yield Outcome("ok", f"{name}={value}")
