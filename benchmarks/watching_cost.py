"""What it costs to watch a GPU: processor time and memory beside other tools, and what a job loses by it.

Tools: each looks at this machine once a second for some seconds, in a process of its own, one after another:
what `flatout watch` samples (GPUs, host, processes, live jobs), nvitop and gpustat through their Python
packages, nvidia-smi looping by itself and started anew each time. Processor time is of the process and its
children between the first looks and the last, so that starting up does not count; memory is the largest
resident set.

Calls: what single calls of NVML cost, so that one can see what a sample is made of.

Job: `flatout watch --json --every 0.1` beside a training. It is stopped and let go on (SIGSTOP, SIGCONT) for
blocks of steps that take turns; each block is compared with its own neighbour. The bound is of their median,
by bootstrap.

What is not installed is named and left out. About two minutes in all.

    python -m benchmarks.watching_cost              # on a GPU; anywhere for the host's part
    python -m benchmarks.watching_cost --packages FOLDER   # where nvitop and gpustat lie as plain files
"""

import argparse
import functools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import write

# What every Python tool does: look, wait, and tell what this took. {prepare} and {look} are the tool's own.
_LOOP = """
import json, resource, time
{prepare}
def used():
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
def look():
    {look}
for _ in range({warm}):
    look(); time.sleep({every})
began, cpu = time.monotonic(), used()
for _ in range({samples}):
    look(); time.sleep({every})
seconds = time.monotonic() - began
print(json.dumps({{"cpu_s": used() - cpu, "seconds": seconds, "samples": {samples},
    "memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "version": version}}))
"""
_FLATOUT = """
from flatout import __version__ as version
from flatout.monitor.recording import frame_line
from flatout.monitor.sampling import MachineSampler
sampler = MachineSampler(every_s={every}).__enter__()
sampler.wait_until_complete(30)
"""
# What watches a job that Flatout runs: its GPUs alone.
_SAMPLER = """
from flatout import __version__ as version
from flatout.hardware.machine import default_sources
sources = [(source, source.discover().devices) for source in default_sources() if source.vendor == "nvidia"]
"""
_SAMPLER_NAME = "flatout's sampler of a job's GPUs, 10 times a second"
_TOOLS: dict[str, tuple[str, str]] = {
    _SAMPLER_NAME: (
        _SAMPLER,
        "[source.sample(found, thoroughly=False) for source, found in sources if found]",
    ),
    "flatout watch": (_FLATOUT, "frame_line(sampler.frame())"),
    "nvitop": (
        "import nvitop; from nvitop import take_snapshots; version = nvitop.__version__",
        "take_snapshots()",
    ),
    "gpustat": (
        "import gpustat; version = gpustat.__version__",
        "gpustat.GPUStatCollection.new_query().jsonify()",
    ),
}
_SMI_FIELDS = (
    "memory.used,utilization.gpu,power.draw,temperature.gpu,clocks.sm,clocks_throttle_reasons.active"
)


def python_tool(name: str, seconds: float, every_s: float, packages: str | None) -> dict[str, Any]:
    """One Python tool in a process of its own."""
    prepare, look = _TOOLS[name]
    code = _LOOP.format(
        prepare=prepare.format(every=every_s),
        look=look,
        every=every_s,
        warm=3,
        samples=round(seconds / every_s),
    )
    paths = [packages] if packages and name != "flatout watch" else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=seconds + 30,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"missing": "it did not end in time"}
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["it failed"])[-1][:200]}
    return _summed(json.loads(done.stdout.splitlines()[-1]))


def smi_loop(seconds: float, every_s: float) -> dict[str, Any]:
    """nvidia-smi that loops by itself, asked for as few fields as make sense."""
    if shutil.which("nvidia-smi") is None:
        return {"missing": "nvidia-smi is not installed"}
    words = ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv", f"-lms={round(1000 * every_s)}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        time.sleep(3 * every_s)
        began, before = time.monotonic(), _cpu_s(child.pid)
        time.sleep(seconds)
        cpu_s, took = _cpu_s(child.pid) - before, time.monotonic() - began
        memory = int(Path(f"/proc/{child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        child.kill()
    return _summed({"cpu_s": cpu_s, "seconds": took, "samples": took / every_s, "memory_bytes": memory})


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far: in nanoseconds, where ticks are longer than all that it does."""
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def smi_anew(samples: int) -> dict[str, Any]:
    """nvidia-smi as `watch -n 1 nvidia-smi` runs it."""
    if shutil.which("nvidia-smi") is None:
        return {"missing": "nvidia-smi is not installed"}
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(samples):
        subprocess.run(["nvidia-smi"], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return _summed({"cpu_s": cpu, "seconds": float(samples), "samples": samples})


def _summed(found: dict[str, Any]) -> dict[str, Any]:
    per_sample = found["cpu_s"] / found["samples"]
    return {
        "cpu_ms_a_sample": 1e3 * per_sample,
        "share_of_a_core": found["cpu_s"] / found["seconds"],
        **{key: found[key] for key in ("samples", "memory_bytes", "version") if key in found},
    }


def nvml_calls(times: int = 20) -> dict[str, Any]:
    """Processor and wall time of single calls, in microseconds."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"missing": str(error)}
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    gpm = pynvml.nvmlGpmSampleAlloc
    calls: dict[str, Callable[[], Any]] = {
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle),
        "utilization": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle),
        "gpm sample": lambda: pynvml.nvmlGpmSampleGet(handle, sample),
        "clock": lambda: pynvml.nvmlDeviceGetClockInfo(handle, 1),
        "clock limits": lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
        "performance state": lambda: pynvml.nvmlDeviceGetPerformanceState(handle),
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
        "power limit": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
        "energy": lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "memory temperature": lambda: pynvml.nvmlDeviceGetFieldValues(
            handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP]
        ),
        "processes": lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
        "processes' activity": lambda: pynvml.nvmlDeviceGetProcessUtilization(handle, 0),
        "PCIe throughput": lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, 0),
        "PCIe link": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "GPU link": lambda: pynvml.nvmlDeviceGetNvLinkState(handle, 0),
        "memory errors": lambda: pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 1),
        "remapped rows": lambda: pynvml.nvmlDeviceGetRemappedRows(handle),
    }
    sample = gpm()
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(times):
                call()
            found[name] = {
                "cpu_us": 1e6 * (time.process_time() - cpu) / times,
                "wall_us": 1e6 * (time.perf_counter() - wall) / times,
            }
        except pynvml.NVMLError as error:
            found[name] = {"missing": str(error)}
    pynvml.nvmlShutdown()
    return found


def beside_a_job(seconds: float, every_s: float) -> dict[str, Any]:
    """What steps of a training take longer while somebody watches ten times a second."""
    try:
        import torch
    except ImportError:
        return {"missing": "torch is not installed"}
    from benchmarks.taps import gpt

    device = "cuda" if torch.cuda.is_available() else "cpu"
    step = gpt(device)

    def steps(least_s: float) -> float:
        """Seconds of a step, over a block of about so long."""
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < least_s:
            step()
            count += 1
            if device == "cuda":
                torch.cuda.synchronize()
        return (time.perf_counter() - began) / count

    words = [sys.executable, "-m", "flatout", "watch", "--json", "--every", str(every_s)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as watcher:
        steps(5.0)  # it starts, and the job warms up
        pairs = []
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until or len(pairs) < 3:
                taken = {}
                for watched in random.sample([False, True], 2):
                    watcher.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
                    steps(0.2)
                    taken[watched] = steps(1.0)
                pairs.append(taken[True] / taken[False] - 1)
            alive = watcher.poll() is None
        finally:
            watcher.send_signal(signal.SIGCONT)
            watcher.terminate()
    if not alive:
        return {"missing": "the watcher ended by itself"}
    again = sorted(statistics.median(random.choices(pairs, k=len(pairs))) for _ in range(2000))
    return {
        "device": device,
        "every_s": every_s,
        "pairs": len(pairs),
        "added_share": statistics.median(pairs),
        "added_share_upper_95": again[1899],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0, help="of each tool")
    parser.add_argument("--job-seconds", type=float, default=40.0)
    parser.add_argument(
        "--packages", help="a folder in which nvitop and gpustat lie, for machines without pip"
    )
    parser.add_argument("--out")
    chosen = parser.parse_args()
    result: dict[str, Any] = {"subject": "cost of watching a machine", "tools": {}}
    parts: dict[str, Callable[[], Any]] = {
        **{
            name: functools.partial(python_tool, name, chosen.seconds, 1.0, chosen.packages)
            for name in _TOOLS
            if name != _SAMPLER_NAME
        },
        "nvidia-smi, looping": lambda: smi_loop(chosen.seconds, 1.0),
        "nvidia-smi, started anew": lambda: smi_anew(5),
        "flatout watch, 10 times a second": lambda: _ten_times(chosen.seconds / 2),
        _SAMPLER_NAME: lambda: python_tool(_SAMPLER_NAME, chosen.seconds / 2, 0.1, None),
    }
    for name, measure in parts.items():
        found = result["tools"][name] = _tried(measure)
        told = found.get("missing") or (
            f"{found['cpu_ms_a_sample']:.2f} ms of processor a sample, "
            f"{100 * found['share_of_a_core']:.2f} % of a core, {found.get('memory_bytes', 0) / 1e6:.0f} MB"
        )
        print(f"{name:<34} {told}", flush=True)
    # After each part: a device may be taken away before the last.
    write("watching-cost", result, chosen.out)
    result["beside_a_job"] = _tried(lambda: beside_a_job(chosen.job_seconds, 0.1))
    print(json.dumps(result["beside_a_job"]), flush=True)
    write("watching-cost", result, chosen.out)
    result["nvml"] = _tried(nvml_calls)
    print(json.dumps(result["nvml"], indent=1))
    write("watching-cost", result, chosen.out)


def _tried(measure: Callable[[], Any]) -> Any:
    """What it gives, or why it gives nothing: the others are measured all the same."""
    try:
        return measure()
    except Exception as error:  # noqa: BLE001 - said in the result
        return {"missing": f"{type(error).__name__}: {error}"}


def _ten_times(seconds: float) -> dict[str, Any]:
    return python_tool("flatout watch", seconds, 0.1, None)


if __name__ == "__main__":
    main()
