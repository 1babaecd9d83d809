"""What kind of work a kernel does, by its name."""

import re
from typing import Literal

Kind = Literal[
    "matmul",
    "convolution",
    "attention",
    "memory_bound",
    "reduction",
    "optimizer",
    "copy",
    "communication",
    "other_gpu",
]

# Inductor names its kernels after operators that they stand beside: how such a name begins says more.
_INDUCTORS: dict[str, Kind] = {
    "triton_poi_": "memory_bound",
    "triton_per_": "memory_bound",
    "triton_for_": "memory_bound",
    "triton_red_": "reduction",
}
# Parts of names, as regular expressions. The first kind that matches counts.
_WORDS: dict[Kind, str] = {
    "communication": "nccl rccl AllReduce AllGather ReduceScatter nvshmem",
    "copy": "^Memcpy ^Memset",
    "attention": "flash fmha _mha sdpa attention paged_attn fusion::compute_dot_do_o fusion::convert_dq",
    "optimizer": "multi_tensor_apply [Ff]used_?[Aa]dam adamw? sgd_kernel lamb_",
    "convolution": "conv wgrad dgrad winograd implicit_gemm fprop im2col cudnn.*(nchw|nhwc)",
    "matmul": "gemm gemv nvjet cublas cutlass splitK triton_(tem|mm) _matmul _mm_ dot_kernel Cijk_",
    "reduction": "reduce_kernel reduce_1Block arg(max|min) cumsum scan_ topk [Ss]ort DeviceReduce",
    "memory_bound": "elementwise vectorized [Ss]oft[Mm]ax [Nn]orm index gather scatter"
    " CatArray dropout embedding nll_loss fill copy transpose distribution masked where [gr]elu silu pool"
    " upsample random bn_(fw|bw)_ cross_entropy",
}  # fmt: skip
_PATTERNS = {kind: re.compile("|".join(words.split())) for kind, words in _WORDS.items()}
# Products on tensor cores name their precision or their instruction; some libraries have no others.
_ON = re.compile("nvjet|tensorop|wgmma|hmma|imma|s1688|16816|i16832|bf16|tf32|e4m3|e5m2|f16|half|hgemm")
_OFF = re.compile("sgemm|f32f32_f32f32|simt|dgemm|gemv|ffma")
_VECTOR = re.compile("gemv|dot_kernel")


def kind_of(name: str) -> Kind:
    """The kind of work."""
    inductors = _INDUCTORS.get(name[: len("triton_xxx_")])
    if inductors is not None:
        return inductors
    return next((kind for kind, pattern in _PATTERNS.items() if pattern.search(name)), "other_gpu")


def is_of_a_vector(name: str) -> bool:
    """Whether a product has a vector in it: that is bound by memory, on any unit."""
    return _VECTOR.search(name) is not None


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a product or convolution runs on tensor cores; None where its name does not say."""
    if _ON.search(name):
        return True
    return False if _OFF.search(name) else None
