"""How to tell that memory ran out."""

import re
import sys

# Torch has a type for most of it. These come as a plain RuntimeError: from the driver, from libraries that
# allocate for themselves, and from host memory.
_WORDING = re.compile(
    r"(CUDA|HIP|XPU|MPS)( backend| error:)? out of memory"
    r"|(CUBLAS|HIPBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (can't|not enough)"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out: by its type, else by torch's own wording."""
    kind = getattr(sys.modules.get("torch"), "OutOfMemoryError", None)
    if isinstance(error, MemoryError) or (kind is not None and isinstance(error, kind)):
        return True
    return isinstance(error, RuntimeError) and bool(_WORDING.search(str(error)))
