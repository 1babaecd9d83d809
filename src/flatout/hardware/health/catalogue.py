"""Every check that `doctor` makes, in the order in which it shows them. Ids are never reused."""

from flatout.hardware.health import (
    clocks,
    drivers,
    environment,
    frameworks,
    host,
    links,
    memory_errors,
    sharing,
)
from flatout.hardware.health.check import Check, run_check
from flatout.records.machine import CheckResult, Machine

CHECKS: tuple[Check, ...] = (
    Check("device.present", drivers.device_present),
    Check("device.answers", drivers.device_answers),
    Check("driver.answers", drivers.driver_answers),
    Check("driver.cuda", drivers.cuda_driver_version),
    Check("torch.installed", frameworks.torch_installed),
    Check("torch.build", frameworks.torch_build),
    Check("torch.architecture", frameworks.torch_architecture),
    Check("torch.computes", frameworks.torch_computes),
    Check("tensorflow.computes", frameworks.tensorflow_computes),
    Check("jax.computes", frameworks.jax_computes),
    Check("gpu.visible", sharing.visible_devices),
    Check("gpu.mig", sharing.mig),
    Check("gpu.compute-mode", sharing.compute_mode),
    Check("gpu.processes", sharing.other_processes),
    Check("gpu.throttling", clocks.throttling),
    Check("gpu.temperature", clocks.temperature),
    Check("gpu.power-cap", clocks.power_cap),
    Check("gpu.persistence", clocks.persistence),
    Check("gpu.ecc", memory_errors.ecc_errors),
    Check("gpu.memory-repair", memory_errors.memory_repair),
    Check("gpu.xid", memory_errors.kernel_xids),
    Check("link.pcie", links.pcie_link),
    Check("link.nvlink", links.nvlink),
    Check("host.shared-memory", host.shared_memory),
    Check("host.cpu-limit", host.cpu_limit),
    Check("host.cpu-affinity", host.cpu_affinity),
    Check("host.cpu-governor", host.cpu_governor),
    Check("host.memory-limit", host.memory_limit),
    Check("host.disk", host.disk_space),
    Check("host.compile-cache", host.compile_cache),
    Check("env.threads", environment.thread_variables),
    Check("env.debug", environment.debug_switches),
    Check("env.allocator", environment.allocator_settings),
)


def examine(machine: Machine) -> tuple[CheckResult, ...]:
    """All results of all checks."""
    return tuple(result for check in CHECKS for result in run_check(check, machine))
