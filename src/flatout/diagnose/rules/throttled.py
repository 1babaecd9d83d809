"""The device runs below its clock: too hot, or at its power limit.

Seen by what the driver gives as the reason in a good part of the samples that were taken while the steps
ran; idling is no such reason. Heat and the hardware's own brakes are something to look after at once; a power
limit, which a card at full load reaches as a rule, is not. What it costs is the ratio of clocks, which
differs from kernel to kernel, so no gain is predicted.
"""

from flatout.analyze.throttling import limit_kind
from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding, Severity

_SEVERITIES: dict[str, Severity] = {"thermal": "high", "other": "medium", "power": "low"}
# The power supply asked for it: no limit that a card at full load reaches as a rule.
_BRAKE = "power_brake"
# A rest, and clocks that somebody set.
_HARMLESS = ("idle", "application_clocks")


def look(seen: Seen) -> Finding | None:
    """Any reason that is no rest."""
    use = seen.profile.device_use
    reasons = [reason for reason in use.throttle_reasons or () if reason not in _HARMLESS]
    if not reasons:
        return None
    clock = f", at {use.clock_compute_hz // 10**6} MHz" if use.clock_compute_hz else ""
    heat = f" and {use.temperature_max_c} C" if use.temperature_max_c else ""
    return RULE.finding(
        f"the clock was held down by {', '.join(reasons)}{clock}{heat}",
        "flatout doctor says more about clocks, power and temperature",
        severity=_SEVERITIES[limit_kind(reason for reason in reasons if reason != _BRAKE) or "other"],
    )


RULE = Rule("F601", "the device is throttled", look)
