"""Does a framework really compute on its devices? `python compute.py torch` prints one JSON line.

Run by `frameworks.py` in a child process; imports nothing of Flatout.
"""

import importlib
import importlib.util
import json
import os
import platform
import sys
import threading
import time
from typing import Any, Dict, List  # noqa: UP035 - the user's Python may be older than ours

SIZE = 256


def main(name: str) -> None:
    """Look, compute, print one line that the parent finds among whatever else was printed."""
    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()
    print("FLATOUT-PROBE " + json.dumps(examine(name)), flush=True)  # noqa: T201


def follow_parent(parent: int) -> None:
    """End when the command that asked for this is gone, however it went."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def examine(name: str) -> Dict[str, Any]:  # noqa: UP006
    """Everything that is to be known of one framework."""
    if importlib.util.find_spec(name) is None:
        return {"installed": False, "python_version": platform.python_version()}
    # Otherwise the first use of JAX or TensorFlow takes most of the GPU's memory from the job beside us.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    found: Dict[str, Any] = {"installed": True, "python_version": platform.python_version()}  # noqa: UP006
    started = time.perf_counter()
    try:
        module = importlib.import_module(name)
        found["import_s"] = time.perf_counter() - started
        found["version"] = str(module.__version__)
        found.update({"torch": torch_facts, "tensorflow": tensorflow_facts, "jax": jax_facts}[name](module))
    except BaseException as error:  # noqa: BLE001 - a broken install raises anything, SystemExit too
        what = "import" if "version" not in found else "use"
        found["problem"] = f"cannot {what} {name}: {first_line(error)}"
    return found


def prove(device: str, facts: Any, compute: Any) -> Dict[str, Any]:  # noqa: UP006
    """Call `facts` and `compute`; what comes out is what the user must read, errors too."""
    found: Dict[str, Any] = {"device": device, "computed": False}  # noqa: UP006
    try:
        found.update(facts())
    except Exception as error:  # noqa: BLE001 - a device that computes may still not tell its memory
        found["unknown"] = {"name": first_line(error)}
    try:
        wrong = compute()
        found["computed"] = not wrong
        found["problem"] = wrong
    except Exception as error:  # noqa: BLE001
        found["problem"] = first_line(error)
    return found


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


# --- torch -----------------------------------------------------------------------------------------------


def torch_facts(torch: Any) -> Dict[str, Any]:  # noqa: UP006
    """Build, devices, switches."""
    return {
        "build": torch_build(torch),
        "architectures": list(torch.cuda.get_arch_list()) if torch.cuda.is_available() else [],
        "switches": torch_switches(torch),
        "proofs": [
            prove(name, lambda n=name: torch_device(torch, n), lambda n=name: torch_product(torch, n))
            for name in torch_devices(torch)
        ],
    }


def torch_build(torch: Any) -> str:
    """What this torch was built for."""
    for label, version in (
        ("CUDA", torch.version.cuda),
        ("ROCm", getattr(torch.version, "hip", None)),
        ("XPU", getattr(torch.version, "xpu", None)),
    ):
        if version:
            return f"{label} {version}"
    return "MPS" if torch.backends.mps.is_built() else "CPU"


def torch_devices(torch: Any) -> List[str]:  # noqa: UP006
    """The devices that torch says it has."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            return [f"{kind}:{index}" for index in range(module.device_count())]
    return ["mps"] if torch.backends.mps.is_available() else ["cpu"]


def torch_device(torch: Any, name: str) -> Dict[str, Any]:  # noqa: UP006
    """Name, UUID and memory, as torch reports them."""
    if name == "cpu":
        return {"name": "CPU"}
    if name == "mps":
        return {"name": "Apple GPU", "memory_total_bytes": int(torch.mps.recommended_max_memory())}
    module = getattr(torch, name.split(":", maxsplit=1)[0])
    properties = module.get_device_properties(name)
    free, total = module.mem_get_info(name)
    found = {"name": properties.name, "memory_total_bytes": int(total), "memory_free_bytes": int(free)}
    if hasattr(properties, "uuid"):
        found["uuid"] = str(properties.uuid)
    if hasattr(properties, "gcnArchName"):
        found["compute_capability"] = properties.gcnArchName
    elif hasattr(properties, "major"):
        found["compute_capability"] = f"{properties.major}.{properties.minor}"
    return found


def torch_product(torch: Any, name: str) -> str:
    """Multiply on the device and on the CPU in double precision; says what is wrong, or nothing."""
    left = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    here = (left.to(name) @ left.to(name)).cpu().double()
    there = left.double() @ left.double()
    error = ((here - there).norm() / there.norm()).item()
    return "" if error < 1e-2 else f"a matrix product is off by {error:.1e} against the CPU's"


def torch_switches(torch: Any) -> Dict[str, str]:  # noqa: UP006
    """Debug and determinism switches that are on before any script has run."""
    switches = {"threads": str(torch.get_num_threads())}
    checks = {
        "anomaly_mode": torch.is_anomaly_enabled,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "sync_debug_mode": lambda: torch.cuda.is_available() and torch.cuda.get_sync_debug_mode() != 0,
    }
    for name, check in checks.items():
        try:
            if check():
                switches[name] = "on"
        except Exception as error:  # noqa: BLE001 - a torch without this switch
            switches[name] = f"unknown: {error}"
    return switches


# --- TensorFlow and JAX ----------------------------------------------------------------------------------


def tensorflow_facts(tensorflow: Any) -> Dict[str, Any]:  # noqa: UP006
    """Build and devices."""
    gpus = tensorflow.config.list_physical_devices("GPU")
    names = [f"/GPU:{index}" for index in range(len(gpus))] or ["/CPU:0"]

    def product(name: str) -> str:
        with tensorflow.device(name):
            ones = tensorflow.ones((SIZE, SIZE))
            return sum_of_ones(float(tensorflow.reduce_sum(tensorflow.matmul(ones, ones))))

    return {
        "build": "CUDA" if tensorflow.test.is_built_with_cuda() else "CPU or ROCm",
        "proofs": [prove(name, dict, lambda n=name: product(n)) for name in names],
    }


def jax_facts(jax: Any) -> Dict[str, Any]:  # noqa: UP006
    """Backend and devices."""

    def product(device: Any) -> str:
        ones = jax.device_put(jax.numpy.ones((SIZE, SIZE)), device)
        return sum_of_ones(float((ones @ ones).sum()))

    return {
        "proofs": [
            prove(str(device), lambda d=device: {"name": str(d.device_kind)}, lambda d=device: product(d))
            for device in jax.devices()
        ],
        "build": str(jax.default_backend()),
    }


def sum_of_ones(total: float) -> str:
    """Ones times ones must give the inner size in every element."""
    return "" if total == float(SIZE) ** 3 else f"a product of ones sums to {total}, not {float(SIZE) ** 3}"


if __name__ == "__main__":
    main(sys.argv[1])
