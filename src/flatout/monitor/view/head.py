"""The first and the last line of the view."""

import datetime as dt
import textwrap

from rich.text import Text

from flatout.monitor.view.drawing import cell, joined, text
from flatout.monitor.view.marks import Marks
from flatout.records.device import Device, DeviceSample
from flatout.records.watched import gpus_of, remarks
from flatout.records.watching import Frame
from flatout.records.words import inert, percent

_REMARKS_MOST = 3


def head_line(frame: Frame, width: int, marks: Marks, mode: str) -> Text:
    """Which machine, when, and how busy its host is."""
    machine = frame.machine
    at = dt.datetime.fromtimestamp(frame.taken_at_unix_s).astimezone()
    parts = [
        text("flatout watch", marks, bold=True),
        text(frame.host, marks),
        text(f"{at:%H:%M:%S}" if not mode.startswith("frame") else f"{at:%Y-%m-%d %H:%M:%S}", marks),
        text(mode, marks, "warn"),
    ]
    if machine.cpu_share is not None:
        parts.append(text(f"CPU busy {percent(machine.cpu_share)}", marks))
    if machine.memory_used_bytes is not None and machine.memory_total_bytes:
        used, total = machine.memory_used_bytes / (1 << 30), machine.memory_total_bytes / (1 << 30)
        parts.append(text(f"host memory {used:.0f} of {total:.0f} GiB", marks))
    return cell(joined(parts), width, marks)


def remark_lines(frame: Frame, width: int, marks: Marks) -> list[Text]:
    """What must not be missed, and the CPU where there is nothing else to show."""
    lines: list[Text] = []
    for remark in remarks(frame)[:_REMARKS_MOST]:
        words = textwrap.wrap(inert(remark.words), max(10, width), max_lines=2, placeholder=" ...")
        lines += [text(line, marks, remark.mood) for line in words]
    if not gpus_of(frame):
        lines += [cell(_cpu(device, sample, marks), width, marks) for device, sample in _cpus(frame)]
    return lines


def _cpus(frame: Frame) -> list[tuple[Device, DeviceSample]]:
    pairs = zip(frame.devices, frame.samples, strict=False)
    return [(device, sample) for device, sample in pairs if device.vendor == "cpu"]


def _cpu(device: Device, sample: DeviceSample, marks: Marks) -> Text:
    cores = f"{device.core_count} cores" if device.core_count else ""
    heat = f"{sample.temperature_c} °C" if sample.temperature_c is not None else ""
    clock = f"{sample.clock_compute_hz / 1e6:.0f} MHz" if sample.clock_compute_hz else ""
    return joined(
        [text(f"CPU {device.name}", marks, bold=True), *(text(one, marks) for one in (cores, clock, heat))]
    )


def keys_line(width: int, marks: Marks, span: str, *, replay: bool) -> Text:
    """The keys that are used most; as many as there is room for."""
    seek = ("left/right seek",) if replay else ()
    wanted = (
        "q quit",
        "? keys",
        *seek,
        "tab GPU",
        "enter open",
        "s sort",
        "/ filter",
        f"t {span}",
        "space pause",
        "x stop",
    )
    line = Text(no_wrap=True, end="")
    for words in wanted:
        if line.cell_len + len(words) + 4 > width:
            break
        key, _, meaning = words.partition(" ")
        line.append(f" {key} ", style="reverse")
        line.append(f" {meaning} ")
    return cell(line, width, marks)
