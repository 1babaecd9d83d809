"""From rows to jobs. Ages are taken from a job's own clock: its machine's may differ from the server's."""

from collections.abc import Iterable, Mapping

from flatout.monitor.fleet.answers import Row, by_label
from flatout.monitor.fleet.policy import CLOCKS_DIFFER_S, NAMED_IN_NOTES
from flatout.records.fleet import FleetJob, FleetRank
from flatout.records.words import age

Answers = Mapping[str, list[Row]]

_PREFIX = "flatout_job_"


def jobs_told(answers: Answers, names: Mapping[str, str]) -> list[FleetJob]:
    """Every run that is not over, newest first."""
    values: dict[str, dict[str, float]] = {}
    infos: dict[str, Row] = {}
    states: dict[str, str] = {}
    uuids: dict[str, set[str]] = {}
    for row in answers["jobs"]:
        run, metric = row.label("run"), row.name.removeprefix(_PREFIX)
        if metric == "info":
            infos[run] = row
        elif metric == "state":
            if row.value == 1:
                states[run] = row.label("state")
        elif metric == "device":
            uuids.setdefault(run, set()).add(row.label("uuid"))
        else:
            values.setdefault(run, {})[metric] = row.value
    columns = {name: by_label(rows, "run") for name, rows in answers.items() if name in _BY_RUN}
    ranks = _ranks(answers.get("rank_slowest", ()), columns, names)
    living = [run for run in infos if states.get(run) != "ended"]
    return [
        _job(
            infos[run],
            states.get(run, ""),
            values.get(run, {}),
            len(uuids.get(run, ())),
            columns,
            ranks,
            names,
        )
        for run in sorted(living, reverse=True)
    ]


def uuids_by_run(rows: Iterable[Row]) -> dict[str, list[str]]:
    """The runs that train on each GPU."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.name == f"{_PREFIX}device":
            found.setdefault(row.label("uuid"), []).append(row.label("run"))
    return found


def clocks_that_differ(answers: Answers, names: Mapping[str, str]) -> list[str]:
    """Machines whose time is not the server's: known where a job's file is written, and dated otherwise."""
    changes, ago = by_label(answers["written_changes"], "run"), by_label(answers["written_ago"], "run")
    worst: dict[str, float] = {}
    for row in answers["jobs"]:
        run = row.label("run")
        late_s = ago.get(run, 0.0)
        # What nobody writes any more is old, not dated otherwise; the future is never just old.
        if row.name == f"{_PREFIX}info" and (changes.get(run, 0.0) > 0 or late_s < 0):
            machine = names[row.label("instance")]
            worst[machine] = max(worst.get(machine, 0.0), late_s, key=abs)
    wrong = {machine: late_s for machine, late_s in sorted(worst.items()) if abs(late_s) > CLOCKS_DIFFER_S}
    told = [
        f"the clock of {machine} is {age(abs(late_s))} {'behind' if late_s > 0 else 'ahead of'} the server's"
        for machine, late_s in list(wrong.items())[:NAMED_IN_NOTES]
    ]
    rest = len(wrong) - len(told)
    return [*told, *([f"{rest} more clocks differ from the server's"] if rest > 0 else [])]


_BY_RUN = frozenset(
    {
        *("rank_median", "rank_fastest", "rank_count", "written_changes", "written_ago", "told_before"),
        *("job_device_s", "job_idle_s"),
    }
)


def ranks_against_others(
    rows: Iterable[Row], others_s: float | None, names: Mapping[str, str]
) -> tuple[FleetRank, ...]:
    """Ranks, slowest first, against what a step takes elsewhere in the job."""
    if not others_s:
        return ()
    ordered = sorted(rows, key=lambda row: -row.value)
    return tuple(
        FleetRank(
            rank=row.label("rank"),
            machine=names.get(row.label("instance"), row.label("instance")),
            step_s=row.value,
            times_the_others=row.value / others_s,
        )
        for row in ordered
    )


def pace_of_the_others(count: float, median_s: float | None, fastest_s: float | None) -> float | None:
    """The median; of two ranks, the faster one: the median of two lies in between."""
    return fastest_s if count <= 2 else median_s


def _ranks(
    rows: Iterable[Row], columns: Mapping[str, Mapping[str, float]], names: Mapping[str, str]
) -> dict[str, tuple[FleetRank, ...]]:
    by_run: dict[str, list[Row]] = {}
    for row in rows:
        by_run.setdefault(row.label("run"), []).append(row)
    return {
        run: ranks_against_others(
            found,
            pace_of_the_others(
                columns["rank_count"].get(run, 0.0),
                columns["rank_median"].get(run),
                columns["rank_fastest"].get(run),
            ),
            names,
        )
        for run, found in by_run.items()
        if columns["rank_count"].get(run, 0.0) > 1
    }


def _job(
    info: Row,
    state: str,
    values: Mapping[str, float],
    gpus: int,
    columns: Mapping[str, Mapping[str, float]],
    ranks: Mapping[str, tuple[FleetRank, ...]],
    names: Mapping[str, str],
) -> FleetJob:
    run = info.label("run")
    written, checkpoint = values.get("written_timestamp_seconds"), values.get("checkpoint_timestamp_seconds")
    started = values.get("started_timestamp_seconds")
    found = {name: column.get(run) for name, column in columns.items()}
    is_silent = found.get("written_changes") == 0 and (found.get("told_before") or 0) > 0
    device_s, idle_s = found.get("job_device_s"), found.get("job_idle_s")
    return FleetJob(
        run=run,
        # Prometheus keeps `job` for its own, and calls the exporter's otherwise.
        name=info.label("exported_job", "job_name") or info.label("job"),
        user=info.label("exported_user", "user"),
        machine=names[info.label("instance")],
        instance=info.label("instance"),
        state=state or "unknown",
        gpus=gpus,
        updates=_whole(values.get("position_updates")),
        updates_planned=_whole(values.get("updates_planned")),
        step_s=_above_zero(values.get("recent_step_seconds")),
        mfu=_share(values.get("mfu_ratio")),
        headroom=_above_zero(values.get("headroom_ratio")),
        data_wait_share=_share(values.get("data_wait_ratio")),
        usd_per_hour=_above_zero(values.get("usd_per_hour")),
        age_s=_since(written, started),
        checkpoint_age_s=_since(written, checkpoint),
        silent_s=max(0.0, found.get("written_ago") or 0.0) if is_silent else None,
        idle_share=min(1.0, idle_s / device_s) if device_s and idle_s is not None else None,
        ranks=ranks.get(run, ()),
        rank_count=int(found.get("rank_count") or 0),
        unknown={} if is_silent else {"silent_s": "its file is being written"},
    )


def _since(later: float | None, earlier: float | None) -> float | None:
    return max(0.0, later - earlier) if later is not None and earlier is not None and earlier > 0 else None


def _share(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= 1 else None


def _above_zero(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _whole(value: float | None) -> int | None:
    return round(value) if value is not None and 0 <= value < 2**53 else None
