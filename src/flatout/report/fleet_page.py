"""`fleet` as one offline page: what to do, every GPU as a square, machines, jobs, where paid hours went."""

import dataclasses
import datetime as dt

from flatout.records.fleet import Fleet, FleetDevice, FleetFinding, FleetJob
from flatout.records.words import age, percent
from flatout.report.fleet_words import (
    counted,
    headline,
    hours,
    job_progress,
    machine_gpus,
    machine_memory,
    machine_waste,
    money,
    share,
    span,
    waste_line,
    waste_parts,
    watts,
    worth,
)
from flatout.report.page import environment
from flatout.report.stacks import Bar, Part, Stack, pieces

# A page of ten thousand squares is no glance any more; a browser draws these in a moment.
_SQUARES = 4096
_MACHINES = 200
_JOBS = 100
_ACTIONS = 50
_WASTE_KINDS = ("held", "nobody", "broken", "hot")
# Findings of a GPU as classes of its square.
_SQUARE_KINDS = {
    "broken": "broken",
    "held idle": "held",
    "stalled": "held",
    "idle": "nobody",
    "throttled": "hot",
    "underused": "low",
}
KEYS = (
    ("busy", "a kernel runs (the fuller, the more of the time)"),
    ("held", "held, and idle or its job stands still"),
    ("nobody", "idle"),
    ("hot", "throttled"),
    ("low", "underused"),
    ("broken", "broken, gone or out of reach"),
    ("unknown", "not known"),
)


@dataclasses.dataclass(frozen=True)
class Square:
    """One GPU on the map; `fill` is the height of its bar in percent."""

    kind: str
    fill: float
    title: str


def fleet_page(fleet: Fleet) -> str:
    """One self-contained HTML page: no script, no network, light and dark."""
    asked = dt.datetime.fromtimestamp(fleet.asked_at_unix_s, dt.UTC)
    return (
        environment()
        .get_template("fleet.html.j2")
        .render(
            fleet=fleet,
            headline=headline(fleet),
            waste=waste_line(fleet),
            # Without the scheme: a page that names an address looks as if it went there.
            server=fleet.server.partition("://")[2],
            asked=f"{asked:%Y-%m-%d %H:%M} UTC",
            window=span(fleet.over_s),
            counts=counted(fleet),
            actions=[(action, worth(action)) for action in fleet.actions[:_ACTIONS]],
            more_actions=max(0, len(fleet.actions) - _ACTIONS),
            keys=KEYS,
            rows=fleet_map(fleet),
            machines=[
                (
                    one,
                    machine_gpus(one),
                    share(one.kernel_running_share),
                    share(one.sm_active_share),
                    machine_memory(one),
                    watts(one.power_w),
                    machine_waste(one),
                )
                for one in fleet.machines[:_MACHINES]
            ],
            more_machines=max(0, len(fleet.machines) - _MACHINES),
            jobs=[(job, *_job_words(job)) for job in fleet.jobs[:_JOBS]],
            more_jobs=max(0, len(fleet.jobs) - _JOBS),
            stack=waste_picture(fleet),
        )
    )


def fleet_map(fleet: Fleet) -> list[tuple[str, list[Square]]]:
    """A row of squares a machine, as many as a browser draws in a moment."""
    found = {finding.uuid: finding for finding in fleet.findings if finding.uuid}
    still = {finding.run: finding for finding in fleet.findings if finding.kind == "stalled"}
    rows: dict[str, list[Square]] = {}
    for device in fleet.devices[:_SQUARES]:
        stalled = next((still[run] for run in device.runs if run in still), None)
        rows.setdefault(device.machine, []).append(_square(device, found.get(device.uuid) or stalled))
    return list(rows.items())


def waste_picture(fleet: Fleet) -> Stack | None:
    """Paid hours by what became of them; None where nothing is known."""
    waste = fleet.waste
    in_money = waste.paid_usd > 0
    paid = waste.paid_usd if in_money else waste.paid_gpu_hours
    if not paid:
        return None
    say = money if in_money else hours
    parts = [
        Part(kind, name, size, say(size), percent(size / paid))
        for kind, (name, size) in zip(_WASTE_KINDS, waste_parts(fleet, in_money=in_money), strict=True)
    ]
    used = max(0.0, paid - sum(part.size for part in parts))
    parts.insert(0, Part("busy", "some kernel ran", used, say(used), percent(used / paid)))
    bar = Bar(f"paid in {span(fleet.over_s)}", say(paid), pieces(parts, paid), is_main=True)
    return Stack([bar], [part for part in parts if part.size])


def _square(device: FleetDevice, finding: FleetFinding | None) -> Square:
    running = device.kernel_running_share
    if finding is not None:
        kind, words = _SQUARE_KINDS.get(finding.kind, "busy"), finding.says
    elif device.state != "up":
        kind, words = "broken", "nobody sees it"
    else:
        kind = "unknown" if running is None else "busy"
        words = f"a kernel runs {share(running)} of the time"
    return Square(
        kind=kind,
        fill=round(100 * (running or 0.0), 1),
        title=f"{device.machine} GPU {device.gpu}: {words}",
    )


def _job_words(job: FleetJob) -> tuple[str, str, str]:
    saved = f"{age(job.checkpoint_age_s)} ago" if job.checkpoint_age_s is not None else "none known"
    return job_progress(job), share(job.mfu), saved
