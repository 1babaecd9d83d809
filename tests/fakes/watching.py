"""Machines to watch, made up: frames with jobs and processes, and the curves that belong to them."""

import dataclasses
import math
from typing import Any

from flatout.monitor.history import DeviceHistory
from flatout.monitor.source_watch import device_key
from flatout.records.device import Device, DeviceProcess, DeviceSample
from flatout.records.live import LiveJob, LiveRank
from flatout.records.machine import VendorStatus
from flatout.records.processes import JobHere, JobProcess
from flatout.records.watching import Frame, HostSample
from tests.fakes.machines import GIB, h200, h200_sample, without_gpu

NOW = 1_790_000_000.0
_STRANGER = {"name": "unknown process", "user": "unknown process", "age_s": "unknown process"}


def live_job(**changes: Any) -> LiveJob:
    """A language model in the middle of its training, on two GPUs."""
    facts: dict[str, Any] = {
        "run": "20260921-101500-run-7f3a",
        "name": "pretrain.py --config small.yaml",
        "run_folder": "/data/ada/lm/.flatout/runs/20260921-101500-run-7f3a",
        "host": "node-7",
        "pid": 4200,
        "user": "ada",
        "state": "training",
        "started_at_unix_s": NOW - 7800,
        "written_at_unix_s": NOW - 1,
        "updates": 18_402,
        "updates_planned": 60_000,
        "step_s": 0.412,
        "best_step_s": 0.398,
        "tokens_per_s": 318_000.0,
        "samples_per_s": 310.0,
        "mfu": 0.43,
        "headroom": 1.3,
        "loss": 2.713,
        "data_wait_share": 0.04,
        "memory_peak_bytes": 101 * GIB,
        "checkpoint_update": 18_000,
        "finding": "compile: the model runs as written; torch.compile is predicted to make steps 1.2x faster",
        "usd_per_hour": 7.58,
        "ranks": tuple(
            LiveRank(rank=rank, pid=4210 + rank, updates=18_402, step_s=0.412, silent_s=0.2)
            for rank in (0, 1)
        ),
    }
    return LiveJob(**{**facts, **changes})


def job_here(pid: int, command: str, *, user: str = "ada", held: int = 0, **changes: Any) -> JobHere:
    """A job of one process."""
    state = changes.get("state", "running")
    process = JobProcess(
        pid=pid,
        parent_pid=1,
        role="script",
        name="python",
        command=command,
        user=user,
        age_s=7800.0,
        state=state,
        state_reason="kernels in 97 % of the last seconds",
        cpu_share=1.0,
        host_memory_bytes=3 * GIB,
        gpu_memory_bytes=held,
    )
    facts: dict[str, Any] = {
        "name": command,
        "pid": pid,
        "command": command,
        "user": user,
        "age_s": 7800.0,
        "state": state,
        "processes": (process,),
    }
    return JobHere(**{**facts, **changes})


def process(pid: int, held: int, **changes: Any) -> DeviceProcess:
    facts: dict[str, Any] = {
        "kind": "compute",
        "memory_bytes": held,
        "name": "python",
        "user": "ada",
        "age_s": 7800.0,
        "active_share": 0.97,
        "gone": False,
    }
    return DeviceProcess(pid=pid, **{**facts, **changes})


def busy(index: int, **changes: Any) -> DeviceSample:
    """An H200 that trains."""
    facts: dict[str, Any] = {
        "index": index,
        "uuid": h200().uuid[:-1] + str(index),  # type: ignore[index]
        "taken_at_unix_s": NOW,
        "memory_used_bytes": (96 + index) * GIB,
        "kernel_running_share": 1.0,
        "sm_active_share": 0.87 - 0.01 * index,
        "sm_occupancy_share": 0.4,
        "tensor_active_share": 0.41,
        "memory_bandwidth_share": 0.52,
        "power_draw_mw": 640_000 - 9000 * index,
        "temperature_c": 62 + index,
        "throttle_reasons": (),
        "pcie_sent_bytes_per_s": 120_000_000,
        "pcie_received_bytes_per_s": 2_400_000_000,
    }
    return h200_sample(**{**facts, **changes})


def gpu(index: int, **changes: Any) -> Device:
    return h200(index=index, uuid=h200().uuid[:-1] + str(index), **changes)  # type: ignore[index]


def frame_of(samples: list[DeviceSample], **changes: Any) -> Frame:
    facts: dict[str, Any] = {
        "host": "node-7",
        "taken_at_unix_s": NOW,
        "devices": tuple(gpu(sample.index) for sample in samples),
        "samples": tuple(samples),
        "machine": HostSample(cpu_share=0.31, memory_used_bytes=212 * GIB, memory_total_bytes=1024 * GIB),
        "vendors": (VendorStatus(vendor="nvidia"),),
    }
    return Frame(**{**facts, **changes})


def eight_gpus() -> Frame:
    """A server as they are: a training on six GPUs, somebody's notebook, one hot, one lost."""
    samples = [busy(index, processes=(process(4210 + index, (95 + index) * GIB),)) for index in range(8)]
    samples[3] = dataclasses.replace(samples[3], temperature_c=88, throttle_reasons=("thermal_software",))
    samples[1] = dataclasses.replace(samples[1], throttle_reasons=("power_cap",), power_draw_mw=699_000)
    samples[6] = DeviceSample(
        index=6,
        uuid=samples[6].uuid,
        taken_at_unix_s=NOW,
        state="down",
        state_reason="NVML answered: GPU is lost",
    )
    samples[7] = busy(
        7,
        memory_used_bytes=11 * GIB,
        sm_active_share=0.0,
        tensor_active_share=0.0,
        kernel_running_share=0.0,
        memory_bandwidth_share=0.0,
        power_draw_mw=121_000,
        temperature_c=34,
        throttle_reasons=("idle",),
        processes=(
            process(9001, 10 * GIB, user="grace", active_share=0.0),
            process(
                31337,
                GIB,
                name=None,
                user=None,
                age_s=None,
                gone=None,
                active_share=None,
                unknown=_STRANGER,
            ),
        ),
    )
    training = job_here(
        4200,
        "pretrain.py --config small.yaml",
        held=600 * GIB,
        run="20260921-101500-run-7f3a",
        run_folder=live_job().run_folder,
    )
    ranks = tuple(
        dataclasses.replace(
            training.processes[0], pid=4210 + rank, parent_pid=4200, role="rank", gpu_memory_bytes=95 * GIB
        )
        for rank in range(6)
    )
    jobs = (
        dataclasses.replace(training, processes=(training.processes[0], *ranks)),
        job_here(9001, "ipykernel_launcher", user="grace", held=10 * GIB, state="idle"),
    )
    live = live_job(devices=tuple(str(sample.uuid) for sample in samples[:6]))
    return frame_of(samples, jobs=jobs, live_jobs=(live,))


def one_gpu(**changes: Any) -> Frame:
    sample = busy(0, processes=(process(4200, 95 * GIB),), **changes)
    job = job_here(4200, "train.py --lr 3e-4", held=95 * GIB)
    return frame_of([sample], jobs=(job,))


def no_gpu() -> Frame:
    why = "NVIDIA's management library (libnvidia-ml) is not on this machine"
    [(cpu, sample)] = zip(without_gpu().devices, without_gpu().samples, strict=True)
    return dataclasses.replace(
        frame_of([]),
        devices=(cpu,),
        samples=(sample,),
        vendors=(VendorStatus(vendor="nvidia", absent_reason=why),),
        jobs=(job_here(77, "train.py"),),
    )


class Standing:
    """A machine that stands still: one frame, and curves that lead up to it."""

    def __init__(self, frame: Frame) -> None:
        self.now = frame
        self.histories = {
            device_key(device): history_before(sample)
            for device, sample in zip(frame.devices, frame.samples, strict=True)
        }

    def frame(self) -> Frame:
        return self.now

    def history(self, uuid: str) -> DeviceHistory:
        return self.histories.get(uuid) or DeviceHistory(samples_kept=1, minutes_kept=1)


def history_before(sample: DeviceSample, seconds: int = 400) -> DeviceHistory:
    """Waves as of a training with evaluations; what a lost GPU did ends two minutes ago."""
    history = DeviceHistory()
    for back in range(seconds, -1, -1):
        at = sample.taken_at_unix_s - back
        lost = sample.state == "down" and back < 120
        wave = 0.85 + 0.15 * math.sin(back / 9 + sample.index) - (0.5 if back % 90 < 8 else 0.0)
        values = busy(sample.index) if sample.state == "down" else sample
        history.add(
            dataclasses.replace(
                values,
                taken_at_unix_s=at,
                state="down" if lost else "up",
                sm_active_share=(values.sm_active_share or 0.0) * wave,
                power_draw_mw=round((values.power_draw_mw or 0) * (0.4 + 0.6 * wave)),
            )
        )
    return history
