"""Memory on a page: who holds it, against all there is, and how it comes and goes in a step."""

from collections.abc import Sequence

from flatout.records.profile import MemoryPoint, MemoryUse
from flatout.records.words import memory_size, percent
from flatout.report.charts import Axis, Chart, Shape, drawable
from flatout.report.stacks import Bar, Part, Stack, pieces

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("bytes", 1))


def unit_for(highest: float) -> tuple[str, int]:
    """What an axis up to so many bytes counts in."""
    return next((unit, size) for unit, size in _UNITS if highest >= size or size == 1)


def memory_picture(memory: MemoryUse) -> Stack | None:
    """One bar by owner; None where nothing is known of any."""
    owners = [
        ("parameters", "parameters", memory.parameter_bytes),
        ("gradients", "gradients", memory.gradient_bytes),
        ("optimizer", "optimizer", memory.optimizer_bytes),
        ("activations", "activations and the rest", memory.activation_bytes),
    ]
    known = [(kind, name, size) for kind, name, size in owners if size]
    held = sum(size for _, _, size in known)
    if memory.allocated_peak_bytes is not None:
        spare = (memory.reserved_peak_bytes or 0) - max(held, memory.allocated_peak_bytes)
        if spare > 0:
            known.append(("spare", "reserved by torch, not in use", spare))
    elif memory.host_peak_bytes is not None and memory.host_peak_bytes > held:
        known.append(("activations", "the rest of the process", memory.host_peak_bytes - held))
    taken = sum(size for _, _, size in known)
    whole = max(memory.device_total_bytes or 0, taken)
    if not taken:
        return None
    parts = [
        Part(kind, name, float(size), memory_size(size), percent(size / whole)) for kind, name, size in known
    ]
    of = f" of {memory_size(whole)}" if memory.device_total_bytes else ""
    name = "the device, at the peak" if memory.device_total_bytes else "the process, at the peak"
    return Stack([Bar(name, memory_size(taken) + of, pieces(parts, whole), is_main=True)], parts)


def memory_chart(timeline: Sequence[MemoryPoint]) -> Chart | None:
    """What is allocated over the recorded steps, as an area; None with fewer than two instants."""
    known = [point for point in timeline if drawable(point.ms) is not None and point.allocated_bytes >= 0]
    if len(known) < 2:
        return None
    highest = max(point.allocated_bytes for point in known)
    unit, size = unit_for(highest)
    area = {"left": 78.0, "top": 12.0, "right": 548.0, "bottom": 156.0}
    x = Axis([point.ms for point in known], area["left"], area["right"], pad=0.0)
    y = Axis([0.0, highest / size], area["bottom"], area["top"])
    edge = [(x.at(point.ms), y.at(point.allocated_bytes / size)) for point in known]
    ground = y.at(0.0)
    corners = [(edge[0][0], ground), *edge, (edge[-1][0], ground)]
    return Chart(
        title="Allocated memory over time",
        x_label="ms",
        y_label="",
        width=560.0,
        height=198.0,
        area=area,
        x_ticks=x.ticks(),
        y_ticks=[tick for tick in y.ticks(f" {unit}") if not tick.label.startswith("-")],
        areas=[Shape("allocated", " ".join(f"{across},{down}" for across, down in corners))],
        lines=[Shape("allocated", " ".join(f"{across},{down}" for across, down in edge))],
    )
