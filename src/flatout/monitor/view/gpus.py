"""GPUs in the view: a line each, and the picked one with its figures and curves."""

import dataclasses
from collections.abc import Callable, Sequence

from rich.text import Text

from flatout.monitor.history import DeviceHistory
from flatout.monitor.source_watch import device_key
from flatout.monitor.view.drawing import cell, joined, said, text, wrapped
from flatout.monitor.view.marks import Marks
from flatout.records.device import Device, DeviceSample
from flatout.records.watched import (
    Said,
    activities,
    clock_words,
    gpus_of,
    heat_words,
    limit_words,
    link_words,
    memory_words,
    power_words,
    state_words,
)
from flatout.records.watching import Frame
from flatout.records.words import memory_size

# Time spans that curves can show, with their names.
SPANS: tuple[tuple[str, float], ...] = (("1 min", 60.0), ("5 min", 300.0), ("1 h", 3600.0), ("24 h", 86400.0))
_INDEX, _MEMORY, _POWER, _HEAT = 4, 18, 12, 11
_ACTIVITY_LEAST, _LIMIT_LEAST, _LIMIT_MOST = 15, 5, 24
_BRIEF_MEMORY = 11
_LABEL = 15
_BAR_LEAST, _BAR_MOST = 8, 40


@dataclasses.dataclass(frozen=True)
class _Columns:
    """How wide each column is; 0 where there is no room for it, or nothing to show."""

    activity: int
    memory: bool
    heat: int
    power: int
    limit: int
    name: int
    bar: int


def _columns(width: int, pairs: Sequence[tuple[Device, DeviceSample]]) -> _Columns:
    """What matters most has room first: activity, memory, heat, limits, power, then name and curve."""
    samples = [sample for _, sample in pairs if sample.state == "up"]
    activity = max([_ACTIVITY_LEAST, *(len(activities(sample)[0].words) for sample in samples)])
    left = width - _INDEX - activity
    limit = min(_LIMIT_MOST, max((len(limit_words(sample).words) for sample in samples), default=0))
    wide = left >= _MEMORY + 1 + limit + bool(limit)
    left -= (_MEMORY if wide else _BRIEF_MEMORY) + 1
    if _LIMIT_LEAST < left <= limit:
        limit = left - 1  # a word that is cut is more than none
    name = max((len(device.name) for device, _ in pairs), default=0)
    found = []
    for needed in (_HEAT, limit, _POWER, name):
        fits = 0 < needed < left
        found.append(needed if fits else 0)
        left -= needed + 1 if fits else 0
    heat, limit, power, name = found
    bar = min(_BAR_MOST, left - 1) if left > _BAR_LEAST else 0
    return _Columns(activity, wide, heat, power, limit, name, bar)


def gpu_lines(
    frame: Frame,
    width: int,
    picked: str,
    history: Callable[[str], DeviceHistory],
    span_s: float,
    marks: Marks,
) -> list[Text]:
    """A line a GPU, in the order of devices; the picked one is marked."""
    pairs = gpus_of(frame)
    columns = _columns(width, pairs)
    return [
        _gpu_line(device, sample, frame, columns, picked, history(device_key(device)), span_s, marks, width)
        for device, sample in pairs
    ]


def _gpu_line(
    device: Device,
    sample: DeviceSample,
    frame: Frame,
    columns: _Columns,
    picked: str,
    history: DeviceHistory,
    span_s: float,
    marks: Marks,
    width: int,
) -> Text:
    chosen = device_key(device) == picked
    number = cell(text(f"{'>' if chosen else ' '}{device.index}", marks, bold=chosen), _INDEX - 1, marks)
    trouble = state_words(sample, frame.taken_at_unix_s)
    if trouble:
        return cell(joined([number, said(trouble, marks)], " "), width, marks)
    activity = activities(sample)[0]
    parts = [number]
    if columns.name:
        parts.append(cell(text(device.name, marks), columns.name, marks))
    parts.append(cell(text(activity.words, marks), columns.activity, marks))
    if columns.bar:
        curve = history.curve(activity.series, span_s, columns.bar, until_unix_s=frame.taken_at_unix_s)
        parts.append(text(marks.bar(curve, 1.0), marks, "good"))
    if columns.memory:
        parts.append(cell(said(memory_words(device, sample), marks), _MEMORY, marks, right=True))
    else:
        parts.append(cell(text(_brief_memory(device, sample), marks), _BRIEF_MEMORY, marks, right=True))
    if columns.power:
        parts.append(cell(said(power_words(sample), marks), _POWER, marks, right=True))
    if columns.heat:
        parts.append(cell(said(heat_words(device, sample), marks), _HEAT, marks, right=True))
    if columns.limit:
        parts.append(cell(said(limit_words(sample), marks), columns.limit, marks))
    return cell(joined(parts, " "), width, marks)


def _brief_memory(device: Device, sample: DeviceSample) -> str:
    if sample.memory_used_bytes is None:
        return "memory ?"
    used = sample.memory_used_bytes / (1 << 30)
    total = device.memory_total_bytes
    return f"{used:.0f}/{total / (1 << 30):.0f} GiB" if total else memory_size(sample.memory_used_bytes)


def detail_lines(
    device: Device,
    sample: DeviceSample,
    frame: Frame,
    width: int,
    height: int,
    history: DeviceHistory,
    span: tuple[str, float],
    marks: Marks,
) -> list[Text]:
    """One GPU: what it is, every figure of it, and curves in whatever room is left."""
    trouble = state_words(sample, frame.taken_at_unix_s)
    title = joined(
        [
            text(f"GPU {device.index} {device.name}", marks, bold=True),
            said(trouble, marks) if trouble else text(device.uuid or "", marks, "dim"),
        ]
    )
    lines = [cell(title, width, marks)]
    if sample.state != "down":
        lines += wrapped(_figures(device, sample, marks), width)[: max(1, height - 1)]
    room = height - len(lines)
    return lines[:height] + (
        _curves(device, sample, frame, width, room, history, span, marks) if room > 0 else []
    )


def _figures(device: Device, sample: DeviceSample, marks: Marks) -> list[Text]:
    limit = limit_words(sample)
    if limit.words and limit.mood != "dim":
        limit = Said(f"limited by {limit.words}", limit.mood)
    memory_heat = sample.temperature_memory_c
    figures = [
        *(Said(one.words) for one in activities(sample)),
        memory_words(device, sample),
        power_words(sample),
        heat_words(device, sample),
        Said(f"memory at {memory_heat} °C" if memory_heat is not None else ""),
        Said(clock_words(device, sample)),
        limit,
        link_words(device, sample),
        _trouble(sample),
    ]
    return [said(one, marks) for one in figures]


def _trouble(sample: DeviceSample) -> Said:
    """Errors of the driver and of its memory, where there were any."""
    parts = []
    if sample.xid_count:
        parts.append(f"{sample.xid_count} Xid, the last {sample.xid_last}")
    if sample.ecc_uncorrected_since_boot:
        parts.append(f"{sample.ecc_uncorrected_since_boot} memory errors not corrected")
    return Said(", ".join(parts), "bad")


def _curves(
    device: Device,
    sample: DeviceSample,
    frame: Frame,
    width: int,
    room: int,
    history: DeviceHistory,
    span: tuple[str, float],
    marks: Marks,
) -> list[Text]:
    wanted = _wanted(device, sample, history)[: max(1, room)]
    height = max(1, min(4, room // len(wanted)))
    breadth = width - _LABEL - 1
    if breadth < _BAR_LEAST:
        return []
    lines: list[Text] = []
    for label, series, top, meaning in wanted:
        curve = history.curve(series, span[1], marks.parts(breadth), until_unix_s=frame.taken_at_unix_s)
        highest = max((part.high for part in curve if part is not None), default=0.0)
        drawn = marks.plot(curve, top or highest or 1.0, height)
        for number, row in enumerate(drawn):
            name = label if number == 0 else (meaning or f"last {span[0]}") if number == 1 else ""
            left = cell(text(name, marks, "plain" if number == 0 else "dim"), _LABEL, marks)
            lines.append(joined([left, text(row, marks, "good")], " "))
    return lines[:room]


def _wanted(
    device: Device, sample: DeviceSample, history: DeviceHistory
) -> Sequence[tuple[str, str, float, str]]:
    """Curves, the most telling first: name, series, its upper edge and what that is."""
    activity = activities(sample)[0]
    limit = sample.power_limit_mw or device.power_limit_default_mw or 0
    slowdown, total = device.temperature_slowdown_c or 0, device.memory_total_bytes or 0
    name, series = activity.measured, activity.series
    if activity.share is None:  # of one that is lost, what it did before
        known = history.curve("sm_active_share", SPANS[-1][1], 1)[0] is not None
        name, series = ("SM active", "sm_active_share") if known else ("kernel running", activity.series)
    found = [
        (name, series, 1.0, ""),
        ("power", "power_draw_mw", float(limit), f"to {limit / 1000:.0f} W" if limit else ""),
        ("temperature", "temperature_c", float(slowdown), f"to {slowdown} °C" if slowdown else ""),
        ("memory", "memory_used_bytes", float(total), f"to {memory_size(total)}" if total else ""),
    ]
    return [
        each for each in found if sample.state == "down" or getattr(sample, each[1]) is not None
    ] or found[:1]
