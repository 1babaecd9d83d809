"""Traces as torch.profiler writes them, made up: for measuring how fast they are read.

python -m benchmarks.traces /tmp/trace.json --megabytes 100
"""

# ruff: noqa: E501, ISC004 - as Kineto writes it

import argparse
import random
from pathlib import Path

KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int, "
    "at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, float const*)",
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda("
    "at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}> >",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_64x128x64_4x1x1_cga1x1x1_kernel0_0",
)
OPERATORS = (
    "aten::addmm",
    "aten::add",
    "aten::layer_norm",
    "aten::copy_",
    "aten::scaled_dot_product_attention",
)
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150121545728,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "numSms": 132
    }
  ],
  "cuda_runtime_version": 12080,
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1759190400000000000,
  "traceEvents": [
"""
TAIL = """
  {
    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",
    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": 1.0
  }
  ],
  "traceName": "made up"
}
"""


def step(number: int, start: float, operators: int, draw: random.Random) -> tuple[list[str], float]:
    """One step: operators on the host, launches, kernels a little later, and arrows between them."""
    out, host, device = [], start, start + 20.0
    for place in range(operators):
        which = draw.randrange(len(KERNELS))
        ident = number * operators + place + 1
        length, launch, runs = draw.uniform(8, 30), draw.uniform(3, 6), draw.uniform(2, 60)
        out.append(
            f"""  {{
    "ph": "X", "cat": "cpu_op", "name": "{OPERATORS[which]}", "pid": 4711, "tid": 4711,
    "ts": {host:.3f}, "dur": {length:.3f},
    "args": {{
      "External id": {ident},"Record function id": {ident}, "Concrete Inputs": ["", "", ""], "Input type": ["float", "float", "float"], "Input Strides": [[768, 1], [768, 1], [1, 768]], "Input Dims": [[4096, 768], [4096, 768], [768, 768]], "Ev Idx": {ident}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711,
    "ts": {host + 2:.3f}, "dur": {launch:.3f},
    "args": {{
      "External id": {ident}, "cbid": 211, "correlation": {ident}
    }}
  }},
  {{
    "ph": "s", "id": {ident}, "pid": 4711, "tid": 4711, "ts": {host + 2:.3f},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{KERNELS[which]}", "pid": 0, "tid": 7,
    "ts": {max(device, host + 6):.3f}, "dur": {runs:.3f},
    "args": {{
      "External id": {ident}, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": {ident}, "registers per thread": 32, "shared memory": 0, "blocks per SM": 93.09, "warps per SM": 372.36, "grid": [12288, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 100
    }}
  }},
  {{
    "ph": "f", "id": {ident}, "pid": 0, "tid": 7, "ts": {max(device, host + 6):.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
"""
        )
        device = max(device, host + 6) + runs
        host += length + draw.uniform(0.5, 3)
    end = max(host, device)
    out.append(
        f"""  {{
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", "pid": 4711, "tid": 4711,
    "ts": {start:.3f}, "dur": {end - start:.3f},
    "args": {{
      "External id": {number}, "Ev Idx": {number}
    }}
  }},
"""
    )
    return out, end


def write_trace(path: Path, megabytes: float, seed: int = 0) -> int:
    """Write about so much; how many events it has."""
    draw, now, number, events, written = random.Random(seed), 1000.0, 0, 0, 0
    with path.open("w") as file:
        file.write(HEAD)
        while written < megabytes * 1e6:
            out, now = step(number, now, 500, draw)
            text = "".join(out)
            file.write(text)
            written, number, events = written + len(text), number + 1, events + 5 * 500 + 1
        file.write(TAIL.lstrip("\n"))
    return events + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--megabytes", type=float, default=100)
    chosen = parser.parse_args()
    print(write_trace(chosen.path, chosen.megabytes), "events")


if __name__ == "__main__":
    main()
