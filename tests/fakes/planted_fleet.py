"""Sixteen machines of eight GPUs with a few things wrong, and as many that only look so."""

import math
from collections.abc import Iterator

from tests.fakes.fleet import DAY_S, GIB, Gpu, Job, dcgm_series, points, series_of
from tests.fakes.prometheus import Series

HOSTILE = 'train.py"; $(rm -rf ~)\n\x1b[31m<script>alert(1)</script>'


def planted(now: float) -> Iterator[Series]:
    """All series of the fleet."""
    gpus, jobs = planted_fleet()
    yield from series_of(gpus, jobs, now)
    yield from dcgm_series("dgx-old", 2, now)
    # Out of reach for a quarter of an hour.
    silent = [Gpu(machine="node-97", index=index, until_s=900.0) for index in range(8)]
    yield from series_of(silent, [], now, targets=False)
    answered = [(at, float(at <= now - 900.0)) for at, _ in points(now, 3600.0, 0.0, 1.0)]
    yield "up", {"instance": "node-97:19838", "job": "flatout"}, answered


def planted_fleet() -> tuple[list[Gpu], list[Job]]:
    """Machines and jobs; see each line for what is planted and what is a near miss."""
    machines = [f"node-{number:02}" for number in range(1, 17)]
    gpus = {(name, index): Gpu(machine=name, index=index) for name in machines for index in range(8)}
    jobs = {
        name: Job(machine=name, run=f"20261116-0{number % 10}1500-run-{number:06x}")
        for number, name in enumerate(machines)
    }
    _wrong(gpus, jobs)
    _nearly(gpus, jobs)
    for name, job in jobs.items():
        held = [
            gpu
            for (machine, _), gpu in gpus.items()
            if machine == name and gpu.processes and gpu.until_s == 0
        ]
        job.uuids = job.uuids or tuple(gpu.id for gpu in held if gpu.running >= 0.5 or job.state == "stalled")
    elsewhere = [
        # Moved: told of by another machine two hours ago, on node-12 now.
        Gpu(machine="node-12-before", index=3, uuid="GPU-node-12-3", until_s=7200.0),
        # Taken out of Prometheus's list.
        *(Gpu(machine="node-99", index=index, until_s=9000.0) for index in range(2)),
        # Two exporters on one machine.
        Gpu(machine="node-16", index=7, port=19839),
    ]
    return [*gpus.values(), *elsewhere], list(jobs.values())


def _wrong(gpus: dict[tuple[str, int], Gpu], jobs: dict[str, Job]) -> None:
    for index in (6, 7):  # nobody's
        gpus["node-01", index].__dict__.update(running=0.0, sm=0.0, tensor=0.0, processes=0.0, used=0.4 * GIB)
    gpus["node-03", 2].__dict__.update(running=0.0, sm=0.0, tensor=0.0, used=41 * GIB)  # a notebook holds it
    gpus["node-05", 7].until_s = 2400.0  # gone
    hot = {"reasons": ("thermal_hardware", "hardware_slowdown"), "throttled_for_s": 7200.0, "clock": 1.1e9}
    gpus["node-07", 4].__dict__.update(hot)
    jobs["node-09"].ranks = (0.41, 0.40, 0.40, 0.41, 0.40, 0.58, 0.40, 0.41)
    jobs["node-11"].checkpoint_s = 7.5 * 3600
    jobs["node-13"].__dict__.update(mfu=0.11, headroom=2.6)
    jobs["node-16"].state = "stalled"
    for index in range(8):
        gpus["node-16", index].__dict__.update(running=0.0, sm=0.0, tensor=0.0)
    gpus["node-06", 3].xid = (79, 3600.0)
    gpus["node-10", 1].up = 0.0  # lost, and told so


def _nearly(gpus: dict[tuple[str, int], Gpu], jobs: dict[str, Job]) -> None:
    gpus["node-02", 0].running = 0.08  # little, but something
    gpus["node-04", 1].reasons = ("power_cap",)  # full load
    jobs["node-06"].ranks = (0.40, 0.43, 0.40, 0.41)  # noise
    # Clocks that are wrong: checkpoints are ten minutes old by their own.
    jobs["node-08"].clock_off_s = 2400.0
    jobs["node-10"].clock_off_s = -2.5 * 3600
    gpus["node-14", 6].xid = (31, 3600.0)  # the fault of a program
    gpus["node-12", 0].xid = (79, 2 * DAY_S)  # mended since
    jobs["node-14"].__dict__.update(mfu=0.12, headroom=1.1)  # low, and nothing to gain
    gpus["node-15", 5].__dict__.update(
        running=0.0, sm=0.0, tensor=0.0, processes=0.0, since_s=150.0
    )  # just came
    jobs["node-15"].__dict__.update(name=HOSTILE, started_s=1200.0, checkpoint_s=None)  # young
    gpus["node-02", 5].running = math.nan
    jobs["node-02"].__dict__.update(mfu=math.inf, headroom=math.nan)
