"""Every lever. The order is that of the documentation; the search has its own."""

from flatout.levers.activation_budget import ActivationBudget
from flatout.levers.activation_offload import ActivationOffload
from flatout.levers.allocator import Allocator
from flatout.levers.attention import Attention
from flatout.levers.batch_size import BatchSize
from flatout.levers.bf16 import Bf16
from flatout.levers.bf16_parameters import Bf16Parameters
from flatout.levers.block_checkpointing import BlockCheckpointing
from flatout.levers.channels_last import ChannelsLast
from flatout.levers.compile import Compile
from flatout.levers.cpu_threads import CpuThreads
from flatout.levers.cudnn_autotune import CudnnAutotune
from flatout.levers.debug_modes import DebugModes
from flatout.levers.device_prefetch import DevicePrefetch
from flatout.levers.fp8 import Fp8
from flatout.levers.fp16 import Fp16
from flatout.levers.fused_optimizer import FusedOptimizer
from flatout.levers.garbage_collector import GarbageCollector
from flatout.levers.hf_checkpointing import HfCheckpointing
from flatout.levers.hf_switches import HfSwitches
from flatout.levers.lever import Lever
from flatout.levers.liger import Liger
from flatout.levers.linear_cross_entropy import LinearCrossEntropy
from flatout.levers.loader import Loader
from flatout.levers.no_gradients import NoGradients
from flatout.levers.optimizer_8bit import Optimizer8bit
from flatout.levers.optimizer_offload import OptimizerOffload
from flatout.levers.quantized_weights import Fp8Weights, Int4Weights, Int8Weights
from flatout.levers.sdpa_backend import SdpaBackend
from flatout.levers.tf32 import Tf32
from flatout.levers.thread_affinity import ThreadAffinity

LEVERS: tuple[type[Lever], ...] = (
    Loader,
    DevicePrefetch,
    Tf32,
    Bf16,
    Attention,
    SdpaBackend,
    HfSwitches,
    Liger,
    LinearCrossEntropy,
    Compile,
    FusedOptimizer,
    ChannelsLast,
    CudnnAutotune,
    GarbageCollector,
    DebugModes,
    NoGradients,
    CpuThreads,
    ThreadAffinity,
    Allocator,
    ActivationBudget,
    HfCheckpointing,
    BlockCheckpointing,
    ActivationOffload,
    OptimizerOffload,
    Fp16,
    Bf16Parameters,
    Fp8,
    Optimizer8bit,
    Int8Weights,
    Int4Weights,
    Fp8Weights,
    BatchSize,
)

BY_ID: dict[str, type[Lever]] = {lever.id: lever for lever in LEVERS}
