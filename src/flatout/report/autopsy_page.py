"""An autopsy as one offline page: what was asked, who held the memory and by which calls, what would help."""

import shlex

from flatout.records.autopsy import Autopsy
from flatout.records.words import memory_size, percent
from flatout.report.autopsy import autopsy_headline
from flatout.report.fit import option_price
from flatout.report.flame import flame, short_call
from flatout.report.page import cut, environment
from flatout.report.stacks import Bar, Part, Stack, pieces

# Of ours; a name from outside must not become a class of the page.
_CATEGORIES = ("parameters", "gradients", "optimizer", "activations")
_LONGEST = 320
_LINES = 20
_STACKS = 15


def autopsy_page(autopsy: Autopsy) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    found = autopsy.found
    headline = autopsy_headline(autopsy)
    return (
        environment()
        .get_template("autopsy.html.j2")
        .render(
            autopsy=autopsy,
            found=found,
            headline=headline[0].upper() + headline[1:],
            command=cut(shlex.join(autopsy.command), _LONGEST),
            picture=device_picture(autopsy),
            reasons=reasons(autopsy),
            fixes=[(option, option_price(option)) for option in autopsy.fixes],
            flame=flame(found.stacks, sum(found.parts.values()), "all that was allocated"),
            lines=[one for one in found.holders if one.where][:_LINES],
            stacks=[
                (stack, [short_call(frame) for frame in stack.frames]) for stack in found.stacks[:_STACKS]
            ],
        )
    )


def device_picture(autopsy: Autopsy) -> Stack | None:
    """The device's memory as one bar; None where it was not the device's that ran out."""
    found = autopsy.found
    if not found.device_bytes:
        return None
    held = sorted(found.parts.items(), key=lambda part: -part[1])
    known = [(name if name in _CATEGORIES else "mixed", name, size) for name, size in held]
    known += [
        ("spare", "reserved, and held by nobody", found.cached_bytes),
        ("others", "other processes and the driver", autopsy.others_bytes or 0),
        ("free", "free", found.free_bytes or 0),
    ]
    whole = max(found.device_bytes, sum(size for _, _, size in known))
    parts = [
        Part(kind, name, float(size), memory_size(size), percent(size / whole))
        for kind, name, size in known
        if size > 0
    ]
    bar = Bar("the device, when it ran out", memory_size(whole), pieces(parts, float(whole)), is_main=True)
    return Stack([bar], parts)


def reasons(autopsy: Autopsy) -> list[tuple[str, str]]:
    """What could be behind it, each with what is known of it."""
    found = autopsy.found
    if not found.device_bytes:
        return []
    largest = f"the largest free piece is {memory_size(found.largest_cached_bytes)}"
    fragmented = (
        f"{percent(autopsy.fragmented_share)} of what is reserved is free in pieces too small; {largest}"
        if autopsy.fragmented_share
        else f"not the reason; {largest}"
    )
    others = autopsy.others_bytes
    growth = autopsy.growth_bytes_per_step
    if growth is None:
        trend = autopsy.unknown.get("growth_bytes_per_step", "not known")
    elif growth > 0:
        trend = f"it grew by {memory_size(round(growth))} a step before: something is kept from step to step"
    else:
        trend = "it did not grow from step to step"
    return [
        ("fragmentation", fragmented),
        ("other processes and the driver", memory_size(others) if others is not None else "not known"),
        ("trend", trend),
    ]
