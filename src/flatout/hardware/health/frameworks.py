"""Frameworks: is the right build installed, and does it really compute on the device."""

import re
from collections.abc import Iterator

from flatout.hardware.health.check import Outcome
from flatout.hardware.health.sharing import show_gpus_fix
from flatout.hardware.visible import visible_cuda_devices
from flatout.records.device import Device
from flatout.records.machine import CheckStatus, Framework, FrameworkName, Machine

_OLDEST_TORCH = (2, 10)
_BUILD_FOR = {"nvidia": "CUDA", "amd": "ROCm", "intel": "XPU", "apple": "MPS"}
_REINSTALL = {
    "nvidia": "pip install --force-reinstall torch=={version}   # pip's build for Linux has CUDA",
    "amd": "install torch's ROCm build, as pytorch.org's install selector shows",
    "intel": "install torch's XPU build, as pytorch.org's install selector shows",
    "apple": "pip install --force-reinstall torch=={version}   # with a Python built for arm64",
}

_INSTALL_FOR_NVIDIA = {
    "tensorflow": "pip install -U 'tensorflow[and-cuda]'   # in an environment of its own, without torch",
    "jax": "pip install -U 'jax[cuda12]'   # in an environment of its own, without torch",
}


def torch_installed(machine: Machine) -> Iterator[Outcome]:
    """Looks for torch in the environment, and whether it can be imported at all.

    Flatout works with torch 2.10 and newer, and takes the torch that is there: it never installs one.
    """
    torch = machine.framework("torch")
    if torch is None:
        return
    if torch.problem:
        yield Outcome("fail", torch.problem, "python -c 'import torch'   # shows the whole error")
    elif not torch.installed:
        yield Outcome(
            "warn",
            "torch is not installed in this environment",
            "pip install torch   # with that environment's pip",
        )
    elif (version := _version(torch.version)) is None:
        yield Outcome("unknown", f"torch is installed, and its version cannot be read ({torch.version})")
    elif version < _OLDEST_TORCH:
        yield Outcome("warn", f"torch {torch.version} is older than 2.10", "pip install -U torch")
    else:
        yield Outcome("ok", f"torch {torch.version}, built for {torch.build}")


def torch_build(machine: Machine) -> Iterator[Outcome]:
    """Compares what torch was built for with the GPUs that are there.

    A CPU build beside a GPU is the most common reason for "my GPU is not used": it fails without a word.
    """
    torch = machine.framework("torch")
    if torch is None or torch.build is None:
        return
    serves_one = any(_serves(torch.build, device) for device in machine.gpus)
    for device in machine.gpus:
        if _serves(torch.build, device):
            yield Outcome("ok", f"torch is built for {torch.build}", device=device)
        elif serves_one:
            # One build serves one vendor; changing it would take the other GPU away.
            evidence = f"torch is built for {torch.build}, for another GPU here: this one stays unused"
            yield Outcome("ok", evidence, device=device)
        else:
            evidence = (
                f"torch {torch.version} is a {torch.build} build: it cannot use this {device.vendor} GPU"
            )
            # Intel graphics sit in most desktops; only the build for another card would be a mistake.
            status: CheckStatus = "warn" if device.vendor == "intel" else "fail"
            yield Outcome(status, evidence, _reinstall(device.vendor, torch), device)


def _serves(build: str, device: Device) -> bool:
    return build.startswith(_BUILD_FOR.get(device.vendor, ""))


def torch_architecture(machine: Machine) -> Iterator[Outcome]:
    """Looks whether torch holds kernels for each NVIDIA GPU's compute capability.

    A build without them fails at the first kernel with "no kernel image is available", or compiles
    everything at the first use when it has PTX.
    """
    torch = machine.framework("torch")
    if torch is None or not torch.architectures:
        return
    for device in machine.gpus:
        if device.vendor != "nvidia" or device.compute_capability is None:
            continue
        how = kernel_support(device.compute_capability, torch.architectures)
        listed = " ".join(torch.architectures)
        if how == "none":
            evidence = f"compute capability {device.compute_capability} is not in this build ({listed})"
            yield Outcome("fail", evidence, "install a torch build that has this architecture", device)
        elif how == "ptx":
            evidence = f"only PTX for compute capability {device.compute_capability}: its first use compiles"
            yield Outcome("warn", evidence, "install a torch build that has this architecture", device)
        else:
            yield Outcome(
                "ok", f"compute capability {device.compute_capability} is in this build", device=device
            )


def kernel_support(capability: str, architectures: tuple[str, ...]) -> str:
    """ "binary", "ptx" or "none": whether kernels for these architectures run on this capability.

    Machine code runs on the same major version from its own minor version up; PTX on everything newer.
    With the suffix "a" both run on exactly their own capability, with "f" on their own major version.
    """
    major, minor = (int(part) for part in capability.split("."))
    best = "none"
    for architecture in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", architecture)
        if not found:
            continue
        kind, own, suffix = found[1], (int(found[2]), int(found[3])), found[4]
        if (suffix == "a" and own != (major, minor)) or own > (major, minor):
            continue
        if kind == "sm" and own[0] == major:
            return "binary"
        if kind == "compute" and (suffix != "f" or own[0] == major):
            best = "ptx"
    return best


def torch_computes(machine: Machine) -> Iterator[Outcome]:
    """Multiplies two matrices with torch on every device and compares with the CPU, in a child process.

    `torch.cuda.is_available()` only says that a driver is there. A card that computes wrongly, a missing
    kernel, an exclusive mode or a full memory show up only when something is really computed.
    """
    yield from _computes(machine, "torch")


def tensorflow_computes(machine: Machine) -> Iterator[Outcome]:
    """Multiplies two matrices with TensorFlow on every device, where it is installed.

    TensorFlow falls back to the CPU with no more than a log line when a CUDA library is missing.
    """
    yield from _computes(machine, "tensorflow")


def jax_computes(machine: Machine) -> Iterator[Outcome]:
    """Multiplies two matrices with JAX on every device, where it is installed.

    `pip install jax` alone has no GPU support: it computes on the CPU and warns once.
    """
    yield from _computes(machine, "jax")


def _computes(machine: Machine, name: FrameworkName) -> Iterator[Outcome]:
    framework = machine.framework(name)
    if framework is None or not framework.installed:
        return
    if framework.problem:
        if name != "torch":  # torch's has a check of its own
            yield Outcome("fail", framework.problem, f"python -c 'import {name}'   # shows the whole error")
        return
    for proof in framework.proofs:
        on_cpu = "cpu" in proof.device.lower()
        label = f"{name} on {proof.device}" + (f" ({proof.name})" if proof.name and not on_cpu else "")
        if proof.computed:
            # Of the others it is known that ones times ones add up.
            words = f"{label} computes" + (
                ", and agrees with the CPU" if name == "torch" and not on_cpu else ""
            )
            yield Outcome("ok", words, device=_owner(machine, proof.uuid))
        else:
            fix = f"python -c 'import {name}'   # then repeat a small product on {proof.device}"
            yield Outcome("fail", f"{label}: {proof.problem}", fix, _owner(machine, proof.uuid))
    if not framework.proofs:
        yield Outcome("unknown", f"{name} was tried on no device")
    elif machine.gpus and not _uses_gpu(framework):
        status: CheckStatus = "fail" if name == "torch" and not _only_intel(machine) else "warn"
        fix = _see_gpu_fix(machine, framework)
        yield Outcome(status, f"{name} sees only the CPU, and this machine has a GPU", fix)


def _reinstall(vendor: str, torch: Framework) -> str:
    """The same version in another build: a newer one might not go with what else is installed."""
    version = (torch.version or "").split("+", maxsplit=1)[0]
    return _REINSTALL.get(vendor, "install a build for this GPU").format(version=version)


def _uses_gpu(framework: Framework) -> bool:
    return any("cpu" not in proof.device.lower() for proof in framework.proofs)


def _only_intel(machine: Machine) -> bool:
    return all(device.vendor == "intel" for device in machine.gpus)


def _see_gpu_fix(machine: Machine, framework: Framework) -> str:
    vendor = machine.gpus[0].vendor
    if vendor == "nvidia" and visible_cuda_devices(machine.gpus, machine.environment).devices == ():
        return show_gpus_fix(machine)
    if framework.name == "torch":
        if vendor == "nvidia" and _serves(framework.build or "", machine.gpus[0]):
            return "python -c 'import torch; torch.cuda.init()'   # says why"
        return _reinstall(vendor, framework)
    if vendor == "nvidia":
        return _INSTALL_FOR_NVIDIA[framework.name]
    return f"install {framework.name} with support for this {vendor} GPU, as its installation page shows"


def _owner(machine: Machine, uuid: str | None) -> Device | None:
    if not uuid:
        return None
    return next((device for device in machine.gpus if device.uuid and device.uuid.endswith(uuid)), None)


def _version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None
