"""Words and figures that the terminal and the page of `fleet` share."""

from collections import Counter

from flatout.records.fleet import FindingKind, Fleet, FleetAction, FleetJob, FleetMachine
from flatout.records.words import age, percent, three_digits

# What a finding is called when there are several, and in which order they are told.
PLURALS: dict[FindingKind, tuple[str, str]] = {
    "broken": ("GPU broken", "GPUs broken"),
    "unreachable": ("machine out of reach", "machines out of reach"),
    "stalled": ("job stands still", "jobs stand still"),
    "held idle": ("GPU held and idle", "GPUs held and idle"),
    "idle": ("GPU idle", "GPUs idle"),
    "throttled": ("GPU throttled", "GPUs throttled"),
    "underused": ("underused", "underused"),
    "slow rank": ("slow rank", "slow ranks"),
    "no checkpoint": ("job without a recent checkpoint", "jobs without a recent checkpoint"),
}


def money(usd: float) -> str:
    """`$0.42`, `$24`, `$1,077`."""
    return f"${usd:.2f}" if 0 < usd < 9.995 else f"${usd:,.0f}"


def hours(count: float) -> str:
    """GPU hours: `0.85 GPU h`, `327 GPU h`."""
    return f"{three_digits(count) if count < 1000 else f'{count:,.0f}'} GPU h"


def worth(action: FleetAction) -> str:
    """What waiting costs: money where a price is known, else hours; empty where neither can be told."""
    if not action.gpu_hours_a_day:
        return ""
    amount = money(action.usd_a_day) if action.usd_a_day is not None else hours(action.gpu_hours_a_day)
    if action.is_risk:
        return f"{amount} at risk"
    return f"{'up to ' if action.is_at_most else ''}{amount} a day"


def counted(fleet: Fleet) -> list[tuple[FindingKind, str]]:
    """How many of each kind: `2 GPUs broken`."""
    found = Counter(finding.kind for finding in fleet.findings)
    return [
        (kind, f"{found[kind]} {words[found[kind] != 1]}") for kind, words in PLURALS.items() if found[kind]
    ]


def headline(fleet: Fleet) -> str:
    """The fleet in one line."""
    about = f"{plural(len(fleet.machines), 'machine')}, {plural(fleet.gpus, 'GPU')}, "
    return about + plural(len(fleet.jobs), "job")


def waste_line(fleet: Fleet) -> str:
    """Paid and not used in the window, by why, each hour once."""
    waste = fleet.waste
    if not waste.paid_gpu_hours:
        return f"nothing is known of the last {span(fleet.over_s)}"
    in_money = waste.paid_usd > 0
    whole, of = (waste.usd, waste.paid_usd) if in_money else (waste.gpu_hours, waste.paid_gpu_hours)
    say = money if in_money else hours
    parts = [
        f"{say(amount)} {words}"
        for words, amount in waste_parts(fleet, in_money=in_money)
        if amount >= 0.005 * of or amount == whole
    ]
    unpriced = f"; {waste.unpriced_gpus} GPUs without a price" if in_money and waste.unpriced_gpus else ""
    detail = f": {', '.join(parts)}" if parts and whole else ""
    return f"{say(whole)} of {say(of)} in {span(fleet.over_s)} ({percent(whole / of)}){detail}{unpriced}"


def waste_parts(fleet: Fleet, *, in_money: bool) -> list[tuple[str, float]]:
    """Each reason with its dollars, or its GPU hours."""
    waste = fleet.waste
    return [
        ("held without a kernel", waste.held_idle_usd if in_money else waste.held_idle_gpu_hours),
        ("nobody's", waste.idle_usd if in_money else waste.idle_gpu_hours),
        ("broken", waste.broken_usd if in_money else waste.broken_gpu_hours),
        ("throttled (at most)", waste.throttled_usd if in_money else waste.throttled_gpu_hours),
    ]


def machine_gpus(machine: FleetMachine) -> str:
    """`8`, or `7/8` where one is broken."""
    if machine.state != "up":
        return f"0/{machine.gpus}"
    return f"{machine.gpus - machine.broken}/{machine.gpus}" if machine.broken else str(machine.gpus)


def machine_memory(machine: FleetMachine) -> str:
    """The share in use."""
    used, total = machine.memory_used_bytes, machine.memory_total_bytes
    return percent(min(1.0, used / total)) if used is not None and total else "?"


def machine_waste(machine: FleetMachine) -> str:
    """Money, or hours where no price is known."""
    if machine.wasted_usd is not None:
        return money(machine.wasted_usd)
    return hours(machine.wasted_gpu_hours) if machine.wasted_gpu_hours is not None else "?"


def span(seconds: float) -> str:
    """A window: `24 h`, `7 d`, `30 min`."""
    return f"{seconds / 3600:g} h" if 3600 <= seconds <= 48 * 3600 else age(seconds)


def share(value: float | None) -> str:
    """A share, or a question mark."""
    return percent(value) if value is not None else "?"


def watts(value: float | None) -> str:
    """`650 W`, `4.5 kW`."""
    if value is None:
        return "?"
    return f"{value:.0f} W" if value < 1000 else f"{value / 1000:.1f} kW"


def job_progress(job: FleetJob) -> str:
    """How far it is."""
    if job.updates is None:
        return "?"
    if job.updates_planned:
        return f"{job.updates:,} of {job.updates_planned:,}"
    return f"{job.updates:,}"


def plural(count: int, word: str) -> str:
    """`1 GPU`, `8 GPUs`."""
    return f"{count:,} {word}{'s' * (count != 1)}"
