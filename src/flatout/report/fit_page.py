"""`fit` as one offline page: the peak, where there is room for it, what would make some, and who holds it."""

import dataclasses
import shlex

from flatout.records.fit import Fit, FitOption
from flatout.records.words import memory_size, percent
from flatout.report.fit import BARELY, option_price, option_verdict
from flatout.report.flame import flame, short_call
from flatout.report.memory_timeline import memory_timeline
from flatout.report.page import cut, environment
from flatout.report.stacks import Bar, Part, Stack, pieces

_VERDICT_KINDS = {True: "fits", False: "short", None: "close"}
_LONGEST = 320
_STACKS = 15


@dataclasses.dataclass(frozen=True)
class GpuRow:
    """A GPU: what is needed against what it has, on one scale for all, in percent."""

    option: FitOption
    kind: str
    verdict: str
    price: str
    needed: float
    has: float


def fit_page(fit: Fit) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    command = cut(shlex.join(fit.command), _LONGEST)
    return (
        environment()
        .get_template("fit.html.j2")
        .render(
            fit=fit,
            headline=headline(fit),
            command=command,
            rows=gpu_rows(fit.options),
            barely=BARELY if any(one.fits and one.is_tight for one in fit.options) else "",
            ways=_ways(fit),
            timeline=memory_timeline(fit.timeline, fit.update_events),
            parts=parts_picture(fit),
            flame=flame(fit.stacks, fit.peak_bytes, "all that is allocated at the peak"),
            stacks=[(stack, [short_call(frame) for frame in stack.frames]) for stack in fit.stacks[:_STACKS]],
        )
    )


def headline(fit: Fit) -> str:
    """What is worth knowing, in one sentence."""
    peak, reserved = memory_size(fit.peak_bytes), memory_size(fit.reserved_bytes)
    return f"{peak} at the peak, {reserved} reserved, within {percent(fit.error_bar)}"


def gpu_rows(options: tuple[FitOption, ...]) -> list[GpuRow]:
    """One for each GPU, in the order in which they were asked for."""
    whole = max((max(option.memory_bytes, option.peak_bytes) for option in options), default=0) or 1
    return [
        GpuRow(
            option=option,
            kind=_VERDICT_KINDS[option.fits],
            verdict=option_verdict(option),
            price=option_price(option),
            needed=round(100 * option.peak_bytes / whole, 2),
            has=round(100 * option.memory_bytes / whole, 2),
        )
        for option in options
    ]


def parts_picture(fit: Fit) -> Stack | None:
    """One bar by who holds it at the peak, and what is reserved beside that; None where nothing is."""
    held = {name: getattr(fit.parts, name) for name in fit.parts.__dataclass_fields__}
    if not fit.peak_bytes:
        return None
    known = [(name, name, size) for name, size in held.items() if size and name != "context"]
    spare = fit.reserved_bytes - fit.peak_bytes
    if spare > 0:
        known.append(("spare", "reserved by torch, not in use at the peak", spare))
    if fit.parts.context:
        known.append(("context", "the driver's context and kernels", fit.parts.context))
    whole = sum(size for _, _, size in known)
    parts = [
        Part(kind, name, float(size), memory_size(size), percent(size / whole)) for kind, name, size in known
    ]
    bar = Bar("on the GPU, at the peak", memory_size(whole), pieces(parts, float(whole)), is_main=True)
    return Stack([bar], parts)


def _ways(fit: Fit) -> list[tuple[str, list[tuple[FitOption, str]]]]:
    """For each GPU that is too small, the ways that fit into it."""
    names = dict.fromkeys(option.gpu for option in fit.strategies)
    return [
        (
            name,
            [
                (option, option_price(option))
                for option in fit.strategies
                if option.gpu == name and option.fits
            ],
        )
        for name in names
    ]
