"""What to do: findings that one command deals with become one action, ranked by what waiting costs.

First what is broken or stands still, then by the money that is lost until this time tomorrow if nothing is
done. Commands are for people to paste: a name that a shell would not take as a word never gets into one.
"""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence

from flatout.records.fleet import URGENT, FindingKind, FleetAction, FleetFinding, FleetJob

_DAY_H = 24.0
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,120}")
_NAMED = 8
_AT_MOST: tuple[FindingKind, ...] = ("unreachable", "underused", "throttled")


def ranked_actions(findings: Iterable[FleetFinding], jobs: Sequence[FleetJob]) -> tuple[FleetAction, ...]:
    """Everything worth doing, most pressing first."""
    names = {job.run: job.name for job in jobs}
    groups: dict[tuple[str, ...], list[FleetFinding]] = {}
    for finding in findings:
        groups.setdefault((finding.kind, finding.machine, finding.run), []).append(finding)
    actions = [_action(group, names) for group in groups.values()]
    dollars = [
        one.usd_a_day / one.gpu_hours_a_day for one in actions if one.usd_a_day and one.gpu_hours_a_day
    ]
    # Where a price is not known, the others' stands in, for the order alone.
    usual = statistics.median(dollars) if dollars else 1.0

    def worth(action: FleetAction) -> float:
        return action.usd_a_day if action.usd_a_day is not None else usual * action.gpu_hours_a_day

    return tuple(
        sorted(actions, key=lambda one: (one.kind not in URGENT, -worth(one), one.machine, one.says))
    )


def _action(group: Sequence[FleetFinding], names: Mapping[str, str]) -> FleetAction:
    first = group[0]
    is_risk = first.kind == "no checkpoint"
    hours = (
        first.gpu_hours_at_risk or 0.0 if is_risk else _DAY_H * sum(finding.gpus_lost for finding in group)
    )
    prices = [finding.usd_per_hour for finding in group]
    known = [price for price in prices if price is not None]
    usd = _DAY_H * sum(known) if len(known) == len(prices) else None
    return FleetAction(
        kind=first.kind,
        says=_says(first.kind, group, names),
        because=first.says if len(group) == 1 else f"{first.says}, and so on",
        machine=first.machine,
        command=command_for(first.kind, first.run, first.says),
        query=first.query,
        findings=len(group),
        gpu_hours_a_day=hours,
        usd_a_day=first.usd_at_risk if is_risk else usd,
        is_risk=is_risk,
        is_at_most=first.kind in _AT_MOST,
    )


def command_for(kind: FindingKind, run: str, says: str = "") -> str:
    """What to type; the run's id where it is nothing but a word."""
    job = run if _WORD.fullmatch(run) else ""
    # Shows whom it would ask to save and end; nobody should paste an end unseen.
    stop = f"flatout stop {job} --dry-run" if job else "flatout ps"
    commands: dict[FindingKind, str] = {
        "broken": "flatout doctor",
        "unreachable": "flatout export",
        "stalled": stop,
        "held idle": stop,
        "idle": "flatout ps",
        "throttled": "flatout power" if "power cap" in says else "flatout doctor",
        "underused": f"flatout report {job}   # then flatout tune" if job else "flatout ps",
        "slow rank": "flatout doctor",
        "no checkpoint": "flatout run --protect SCRIPT   # from its next start",
    }
    return commands[kind]


def _says(kind: FindingKind, group: Sequence[FleetFinding], names: Mapping[str, str]) -> str:
    gpus = _gpus(group)
    run = group[0].run
    job = names.get(run) or run
    return {
        "broken": f"take {gpus} out of use, and look at {'it' if len(group) == 1 else 'them'}",
        "unreachable": "bring the machine or its exporter back",
        "stalled": f"end or mend {job}, which stands still",
        "held idle": f"free {gpus}: held, and idle{f' ({job})' if job else ''}",
        "idle": f"give work to {gpus}, or give {'it' if len(group) == 1 else 'them'} back",
        "throttled": _relief(group[0].says, gpus),
        "underused": f"make {job} faster" if run else f"give {gpus} larger work",
        "slow rank": f"replace or mend the slow rank of {job}",
        "no checkpoint": f"have {job} save",
    }[kind]


def _relief(says: str, gpus: str) -> str:
    if "thermal" in says:
        return f"cool {gpus}"
    return (
        f"raise the power limit of {gpus}" if "power cap" in says else f"look at what feeds and cools {gpus}"
    )


def _gpus(group: Sequence[FleetFinding]) -> str:
    names = sorted({finding.gpu for finding in group}, key=lambda text: (len(text), text))
    if len(names) == 1:
        return f"GPU {names[0]}"
    listed = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    return f"{len(names)} GPUs ({listed})"
