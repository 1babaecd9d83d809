"""The machine around the GPUs as metrics."""

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from prometheus_client.core import Metric

from flatout.monitor.export.family import PREFIX, Family, MetricSpec
from flatout.monitor.export.labels import label
from flatout.monitor.export.look import Look
from flatout.records.device import DeviceState

_NAME = PREFIX + "node_"
INFO = MetricSpec(_NAME + "info", "info", "What the machine is called; always 1.", facts=("host",))
DEVICES = MetricSpec(
    _NAME + "devices", "gauge", "GPUs by state: up, stale (not in time), down (lost).", ("state",)
)
CPU = MetricSpec(_NAME + "cpu_ratio", "gauge", "Share of all cores in use.")
MEMORY_USED = MetricSpec(_NAME + "memory_used_bytes", "gauge", "Memory of the machine in use.")
MEMORY_TOTAL = MetricSpec(_NAME + "memory_total_bytes", "gauge", "Memory of the machine.")
NODE_SPECS = (INFO, DEVICES, CPU, MEMORY_USED, MEMORY_TOTAL)


def collect_node(look: Look) -> Iterator[Metric]:
    """The machine itself, and how many of its GPUs answer."""
    info = Family(INFO)
    info.describe((), {"host": label(look.frame.host)})
    yield info.metric
    states = Counter(
        sample.state
        for device, sample in zip(look.frame.devices, look.frame.samples, strict=False)
        if device.vendor != "cpu"
    )
    devices = Family(DEVICES)
    for state in get_args(DeviceState):
        devices.add((state,), states[state])
    yield devices.metric
    machine = look.frame.machine
    for spec, value in (
        (CPU, machine.cpu_share),
        (MEMORY_USED, machine.memory_used_bytes),
        (MEMORY_TOTAL, machine.memory_total_bytes),
    ):
        family = Family(spec)
        family.add((), value)
        yield family.metric
