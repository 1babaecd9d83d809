"""What running out of memory is, and what is not."""

import pytest

torch = pytest.importorskip("torch")

from flatout.inside.out_of_memory import is_out_of_memory  # noqa: E402

RAN_OUT = [
    torch.OutOfMemoryError("anything"),
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
    ),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    RuntimeError("HIP error: out of memory"),
]
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
    RuntimeError("the queue is out of memory slots"),
    ValueError("CUDA out of memory"),
    KeyError("out of memory"),
]


@pytest.mark.parametrize("error", RAN_OUT, ids=str)
def test_running_out_is_recognised_by_type_and_by_wording(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_are_not(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_the_real_error_of_host_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)
