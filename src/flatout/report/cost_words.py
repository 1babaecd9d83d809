"""What a job's GPUs cost, drew and lost, in lines."""

from flatout.records.energy import Cost, IdleCause, Throttling
from flatout.records.words import age, duration, three_digits

CAUSES: dict[IdleCause, str] = {
    "before_first_step": "before the first step",
    "loader_wait": "waiting for data",
    "evaluation": "evaluating",
    "checkpoint": "saving",
    "stalled": "standing still",
    "after_last_step": "after the last step",
    "unattributed": "for causes that are not known",
}
# Less than this share of the GPU hours is not worth a word.
_WORTH_A_WORD = 0.01


def cost_lines(cost: Cost) -> list[str]:
    """Dollars and their price, joules, and hours that were paid and not used."""
    hours = (
        f"{cost.gpus} GPU{'s' if cost.gpus != 1 else ''} for {age(cost.gpu_hours * 3600 / max(cost.gpus, 1))}"
    )
    if cost.usd is None:
        found = [f"cost: {hours}; dollars unknown ({cost.unknown['usd']})"]
    else:
        found = [f"cost: {dollars(cost.usd)}, {hours}{_shares(cost)} (price: {cost.price.source})"]
    if cost.energy.joules is not None:
        each = f", {energy(cost.joules_per_step)} a step" if cost.joules_per_step is not None else ""
        found.append(f"energy: {energy(cost.energy.joules)}{each} (by {_SOURCES[cost.energy.source]})")
    else:
        found.append(f"energy: unknown ({cost.energy.unknown['joules']})")
    return [*found, *_unused(cost)]


def throttling_line(found: Throttling) -> str:
    """For how long something held clocks down; nothing where nothing did, or where nobody knows."""
    given = {reason: seconds for reason, seconds in found.given_s.items() if seconds >= 1}
    if not given:
        return ""
    words = ", ".join(f"{reason.replace('_', ' ')} {age(seconds)}" for reason, seconds in given.items())
    if found.lost_s is None:
        return f"clocks were held down: {words}"
    lost_s = sum(found.lost_s.values())
    return f"clocks were held down: {words}; that cost {duration(lost_s) if lost_s else 'nothing'} at most"


def dollars(usd: float) -> str:
    """As many digits as say something: $46.20, $0.0031."""
    if usd >= 1:
        return f"${usd:,.2f}"
    return f"${usd:.2g}" if usd >= 1e-4 else f"${usd:.1e}"


def energy(joules: float | None) -> str:
    """In joules, or kilowatt-hours where these are many."""
    if joules is None:
        return "unknown"
    kwh = joules / 3.6e6
    if kwh >= 0.1:
        return f"{three_digits(kwh)} kWh"
    return f"{three_digits(joules / 1000)} kJ" if joules >= 10_000 else f"{three_digits(joules)} J"


_SOURCES = {
    "counter": "their own counters",
    "power": "the power they drew",
    "counter and power": "their own counters and the power they drew",
    "none": "nothing",
}


def _shares(cost: Cost) -> str:
    each = (
        ("a step", cost.usd_per_step),
        ("a thousand samples", cost.usd_per_thousand_samples),
        ("a million tokens", cost.usd_per_million_tokens),
        ("a pass over the data", cost.usd_per_epoch),
    )
    known = [f"{dollars(usd)} {what}" for what, usd in each if usd is not None]
    return f": {', '.join(known)}" if known else ""


def _unused(cost: Cost) -> list[str]:
    causes = {
        cause: hours
        for cause, hours in cost.unused_gpu_hours.items()
        if hours >= _WORTH_A_WORD * cost.gpu_hours
    }
    if not causes:
        return []
    most = sorted(causes.items(), key=lambda pair: -pair[1])
    words = ", ".join(f"{age(hours * 3600)} {CAUSES[cause]}" for cause, hours in most)
    paid = f", {dollars(cost.usd_unused)}" if cost.usd_unused is not None else ""
    return [f"paid and not used: {age(sum(causes.values()) * 3600)} of GPU time{paid}: {words}"]
