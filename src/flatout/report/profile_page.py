"""`profile` as one offline page: the step and its floors, what holds it up and where, kernels, memory."""

import dataclasses
import shlex
from typing import Any

from flatout.records.finding import Finding, Place
from flatout.records.profile import LoaderUse, Profile
from flatout.records.tuning import Tuning
from flatout.records.words import percent
from flatout.report.figures import milliseconds, number
from flatout.report.loss_chart import loss_chart
from flatout.report.memory_picture import memory_chart, memory_picture
from flatout.report.page import cut, environment
from flatout.report.profile_words import headlines, headroom, memory_lines, mfu_lines, notes, spread
from flatout.report.ranks import part_names, times_of
from flatout.report.source_lines import SourceLine, lines_around
from flatout.report.step_picture import step_parts, step_picture

_LONG_HEADLINE = 150
_LONGEST_NAME = 80


@dataclasses.dataclass(frozen=True)
class Fact:
    """A row of a table of facts; a reason stands where a value is missing."""

    label: str
    value: str
    reason: str


def profile_page(profile: Profile, tuning: Tuning | None = None) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    said = headline(profile)
    floors, rank_parts = profile.floors, part_names(profile.ranks)
    return (
        environment()
        .get_template("profile.html.j2")
        .render(
            profile=profile,
            tuning=tuning,
            headline=said,
            is_long=len(said) > _LONG_HEADLINE,
            about=_about(profile),
            command=cut(shlex.join(profile.trial.command), 4 * _LONGEST_NAME),
            mfu=[line.strip() for line in mfu_lines(profile)],
            step=step_picture(profile, tuning),
            floors_reason=floors.unknown.get("as_written_ms", "not known")
            if floors.as_written_ms is None
            else "",
            phases=[
                (title, step_parts(parts))
                for title, parts in (("on the device", profile.device_parts), ("on the host", profile.host))
                if step_parts(parts)
            ],
            findings=[(finding, _places(finding)) for finding in profile.findings],
            trace_reason=profile.unknown.get("trace", "not recorded"),
            has_tensor_cores=profile.device != "cpu",
            misfits=[product for product in profile.products if product.pad],
            memory=memory_picture(profile.memory),
            memory_words=[line.strip().removeprefix("memory: ") for line in memory_lines(profile)],
            memory_reason=profile.memory.unknown.get("allocated_peak_bytes", "not measured"),
            memory_over_time=memory_chart(profile.memory_timeline),
            rank_parts=rank_parts,
            ranks=[(rank, times_of(rank, rank_parts)) for rank in profile.ranks],
            losses=loss_chart(profile.losses),
            device_facts=_device_facts(profile),
            loaders=[(loader, _settings(loader)) for loader in profile.loaders],
            notes=notes(profile),
        )
    )


def headline(profile: Profile) -> str:
    """What is worth knowing, in one sentence."""
    job = cut(" + ".join(profile.roots), _LONGEST_NAME) or "The job"
    device = cut(profile.device_name or profile.device or "an unknown device", _LONGEST_NAME)
    step = profile.step_ms
    if step is None:
        return f"{job} on {device}: {profile.updates} updates, too few for a step time"
    parts = [f"{milliseconds(step.p50)} a step"]
    if profile.samples_per_s is not None:
        parts.append(f"{number(profile.samples_per_s)} samples/s")
    mfu = profile.mfu.of_measured if profile.mfu.of_measured is not None else profile.mfu.of_rated
    parts.append(f"MFU {percent(mfu)}" if mfu is not None else "MFU unknown")
    return f"{job} on {device}: {', '.join(parts)}; {_room(profile, step.p50)}"


def _room(profile: Profile, step_ms: float) -> str:
    """What the device's limits would allow."""
    floors = profile.floors
    if floors.as_written_ms is None:
        return "how fast it could be is unknown"
    found = [("at the device's limits", floors.as_written_ms)]
    if floors.fused_ms is not None:
        found.append(("ideally fused", floors.fused_ms))
    said = [(words, milliseconds(ms), headroom(step_ms, ms)) for words, ms in found]
    if len(said) > 1:  # said once, it is understood
        said[1] = (said[1][0], said[1][1], said[1][2].removesuffix(" faster"))
    return ", ".join(f"{words} {ms}" + (f" ({faster})" if faster else "") for words, ms, faster in said)


def _about(profile: Profile) -> str:
    """What the headline leaves out."""
    found = [cut(headlines(profile)[0], 4 * _LONGEST_NAME)]
    step = profile.step_ms
    if step is not None:
        found.append(f"the median of {profile.steps} steps: {spread(step, profile.steps)}")
    if profile.tokens_per_s is not None:
        found.append(f"{number(profile.tokens_per_s)} tokens/s")
    return "; ".join(found)


def _places(finding: Finding) -> list[tuple[Place, list[SourceLine]]]:
    return [(place, lines_around(place)) for place in finding.where]


def _device_facts(profile: Profile) -> list[Fact]:
    use = profile.device_use
    if not use.samples:
        return []

    def fact(label: str, field: str, words: Any) -> Fact:
        value = getattr(use, field)
        return Fact(label, words(value) if value is not None else "", use.unknown.get(field, ""))

    return [
        fact("some kernel ran", "kernel_running_share", percent),
        fact("multiprocessors active", "sm_active_share", percent),
        fact("tensor cores active", "tensor_active_share", percent),
        fact("memory bandwidth in use", "memory_bandwidth_share", percent),
        fact("clock", "clock_compute_hz", lambda value: f"{value // 10**6} MHz"),
        fact("power", "power_draw_mw", lambda value: f"{value / 1000:.0f} W"),
        fact("hottest", "temperature_max_c", lambda value: f"{value} °C"),
        fact("held down by", "throttle_reasons", lambda value: ", ".join(value) or "nothing"),
    ]


def _settings(loader: LoaderUse) -> str:
    return ", ".join(f"{cut(name, 40)}={cut(str(value), 40)}" for name, value in loader.settings.items())
