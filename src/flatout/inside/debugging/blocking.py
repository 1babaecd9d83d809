"""Kernels that are waited for."""

from flatout.inside.debugging.switch import Switch


class Blocking(Switch):
    """An error in a kernel is raised where that was launched, not at some later line."""

    name = "blocking"
    shows = "an error in a kernel comes with the line that launched it"
    cost = "every launch waits for its kernel: several times slower where the host sets the pace"
    needs_cuda = True
    # Read when CUDA starts, so nobody can set it later. ROCm has a name of its own.
    environment = {"CUDA_LAUNCH_BLOCKING": "1", "HIP_LAUNCH_BLOCKING": "1"}  # noqa: RUF012
