"""GPUs as metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from flatout.monitor.export import device_metrics as of
from flatout.monitor.export.family import Family, MetricSpec
from flatout.monitor.export.labels import label
from flatout.monitor.export.look import Gpu, Look
from flatout.records.device import Device

# Told as 0 while they are not given, so that alerts have something to compare with.
USUAL_REASONS = ("power_cap", "thermal_software", "thermal_hardware", "hardware_slowdown", "power_brake")
# Low clocks of a GPU that has nothing to do cost nothing.
_NO_REASON = frozenset({"idle"})


def collect_devices(look: Look) -> Iterator[Metric]:
    """Everything of every GPU."""
    yield _info(look)
    yield _one_each(look, of.UP, lambda gpu: float(gpu.is_up))
    yield _one_each(look, of.AGE, lambda gpu: _age_s(look, gpu))
    for metric in of.DEVICE_METRICS:
        family = Family(metric.spec)
        for gpu in look.gpus:
            if metric.lasting or gpu.is_up:
                family.add(gpu.labels, metric.value(gpu.device, gpu.sample))
        yield family.metric
    yield _one_each(look, of.ENERGY, lambda gpu: look.seen.energy_j(gpu.key) if gpu.is_up else None)
    yield from _throttling(look)
    yield _one_each(look, of.PRICE, lambda gpu: look.usd_per_hour(gpu.device))


def _one_each(look: Look, spec: MetricSpec, value: Callable[[Gpu], float | None]) -> Metric:
    family = Family(spec)
    for gpu in look.gpus:
        family.add(gpu.labels, value(gpu))
    return family.metric


def _info(look: Look) -> Metric:
    family = Family(of.INFO)
    for gpu in look.gpus:
        family.describe(gpu.labels, _facts(gpu.device))
    return family.metric


def _facts(device: Device) -> dict[str, str]:
    facts = {
        "vendor": device.vendor,
        "name": device.name,
        "driver_version": device.driver_version,
        "memory_bytes": device.memory_total_bytes,
        "architecture": device.architecture,
        "compute_capability": device.compute_capability,
        "pci_bus_id": device.pci_bus_id,
        "parent_uuid": device.parent_uuid,
    }
    return {name: label(str(value)) for name, value in facts.items() if value not in (None, "")}


def _age_s(look: Look, gpu: Gpu) -> float | None:
    """A GPU that is down has no answer whose age could be told."""
    return max(0.0, look.now_unix_s - gpu.sample.taken_at_unix_s) if gpu.sample.state != "down" else None


def _throttling(look: Look) -> Iterator[Metric]:
    now, seconds = Family(of.THROTTLED), Family(of.THROTTLED_SECONDS)
    for gpu in look.gpus:
        spent = look.seen.throttled_s(gpu.key)
        given = set(gpu.sample.throttle_reasons or ()) - _NO_REASON
        is_known = gpu.is_up and gpu.sample.throttle_reasons is not None
        usual = USUAL_REASONS if is_known or spent else ()
        names = dict.fromkeys((*usual, *sorted(given), *sorted(spent)))
        for reason in look.admission.first(names, look.limits.reasons, of.THROTTLED.name):
            labels = (*gpu.labels, label(reason))
            now.add(labels, float(reason in given) if is_known else None)
            seconds.add(labels, spent.get(reason, 0.0))
    yield now.metric
    yield seconds.metric
