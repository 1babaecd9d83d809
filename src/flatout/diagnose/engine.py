"""Runs every rule over what a run showed; what harms the job comes first, then what should give most.

A cause is told once: a rule that another one says better is silent beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flatout.analyze.facts import job_facts
from flatout.analyze.profile import Peaks
from flatout.diagnose.catalogue import RULES
from flatout.diagnose.rule import Rule, Seen
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


def findings_of(seen: Seen, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """What the rules have to say. One that breaks says so, and the others go on."""
    found: list[tuple[Rule, Finding]] = []
    broken = set()
    for rule in rules:
        try:
            finding = rule.look(seen)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not hide what the others see
            broken.add(rule.code)
            told = f"this rule broke: {type(error).__name__}: {error}"
            finding = rule.finding(told, "the same with --debug, and report it", severity="low")
        if finding is not None:
            found.append((rule, finding))
    codes = {rule.code for rule, _ in found} - broken
    heard = [one for one in found if codes.isdisjoint(one[0].silent_beside)]
    return tuple(finding for _, finding in sorted(heard, key=lambda one: _order(*one)))


def _order(rule: Rule, finding: Finding) -> tuple[bool, float, int]:
    return not rule.harms, -(finding.predicted_speedup or 1.0), _SEVERITIES.index(finding.severity)
