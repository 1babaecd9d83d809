"""Runs every rule over what a run showed; the finding that should give most comes first."""

from collections.abc import Mapping
from typing import Any

from flatout.analyze.facts import job_facts
from flatout.analyze.profile import Peaks
from flatout.diagnose.catalogue import RULES
from flatout.diagnose.rule import Seen
from flatout.records.finding import Finding
from flatout.records.profile import Profile

_SEVERITIES = ("high", "medium", "low")


def diagnose(
    profile: Profile, about: Mapping[str, Any], peaks: Peaks, earlier: Profile | None = None
) -> tuple[Finding, ...]:
    """Findings of a profile, what its session learned, the peaks of its device, and an earlier profile."""
    places = (about.get("habits") or {}).get("where") or {}
    where = {name: (str(file), int(line)) for name, (file, line) in places.items()}
    job = job_facts(profile, about, peaks)
    return findings_of(Seen(profile=profile, job=job, where=where, earlier=earlier))


def findings_of(seen: Seen) -> tuple[Finding, ...]:
    """What every rule has to say. One that breaks is left out: the others go on."""
    found = []
    for rule in RULES:
        try:
            finding = rule.look(seen)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not hide what the others see
            broken = f"this rule broke: {type(error).__name__}: {error}"
            finding = rule.finding(broken, "the same with --debug, and report it", severity="low")
        if finding is not None:
            found.append(finding)
    return tuple(
        sorted(found, key=lambda one: (-(one.predicted_speedup or 1.0), _SEVERITIES.index(one.severity)))
    )
