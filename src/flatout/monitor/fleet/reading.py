"""One look at a fleet: asks the server, makes devices and jobs of the rows, and says what to do."""

import concurrent.futures
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from flatout.monitor.fleet.accounts import machines_of, waste_of
from flatout.monitor.fleet.actions import ranked_actions
from flatout.monitor.fleet.answers import Refusal, Row, by_device, by_label
from flatout.monitor.fleet.device_findings import device_findings, is_idle, is_throttled
from flatout.monitor.fleet.devices import devices_gone, devices_told, with_details, with_history
from flatout.monitor.fleet.job_findings import job_findings
from flatout.monitor.fleet.job_queries import job_questions, ranks_of
from flatout.monitor.fleet.jobs import (
    clocks_that_differ,
    jobs_told,
    pace_of_the_others,
    ranks_against_others,
    uuids_by_run,
)
from flatout.monitor.fleet.machines import machine_names
from flatout.monitor.fleet.policy import NAMED_IN_NOTES
from flatout.monitor.fleet.prices import with_prices
from flatout.monitor.fleet.queries import Questions
from flatout.monitor.fleet.selecting import Scope, quoted
from flatout.monitor.fleet.server import Access, Server
from flatout.records.errors import CallerMistake, EnvironmentProblem, UnknownName
from flatout.records.fleet import Fleet, FleetDevice, FleetFinding, FleetJob, FleetMachineState
from flatout.records.words import age

DAY_S = 86400.0
SHORTEST_S, LONGEST_S = 300.0, 90 * DAY_S
# A server answers a few questions at a time as fast as many, and others want answers, too.
_AT_ONCE = 4
# So many devices are named in one query.
_AT_A_TIME = 200
_SET_UP = (
    "`flatout export` on each machine, and its address among the targets of scrape_configs in prometheus.yml "
    "(docs/fleet.md)"
)
_MATCHER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*(=~|!~|!=|=)\s*(.*)", re.DOTALL)


def read_fleet(
    url: str,
    *,
    over_s: float = DAY_S,
    job: str = "",
    where: Sequence[str] = (),
    all_devices: bool = False,
    token_file: Path | None = None,
    ca_file: Path | None = None,
    timeout_s: float = 30.0,
) -> Fleet:
    """What a Prometheus server knows at this moment of all machines that it asks.

    Raises CallerMistake where the address cannot be right or we are not let in, EnvironmentProblem where
    nobody answers or nothing is known. A single question that is refused is noted, and the rest is told.
    """
    if not SHORTEST_S <= over_s <= LONGEST_S:
        raise CallerMistake(
            f"a window of {over_s:g} s",
            expected=f"between {age(SHORTEST_S)} and {age(LONGEST_S)}: enough looks, and often enough",
            remedy="--over 24h",
        )
    access = Access(url=url, token_file=token_file, ca_file=ca_file, timeout_s=timeout_s)
    look = _Look(Server(access), Questions(over_s=over_s, scope=Scope(where=tuple(map(_matcher, where)))))
    return look.fleet(job, all_devices=all_devices)


class _Look:
    def __init__(self, server: Server, questions: Questions) -> None:
        self._server = server
        self._questions = questions
        self._now = server.now()
        self._notes: list[str] = []
        # What whoever asks about one job does not want to know.
        self._about_others: list[str] = []
        if server.is_exposed:
            self._notes.append("the token or password travels unencrypted: use https")

    def fleet(self, job: str, *, all_devices: bool) -> Fleet:
        answers = self._first_answers()
        told = {
            row.label("instance") for name in ("devices", "dcgm", "gone", "jobs") for row in answers[name]
        }
        if not told:
            raise _nothing_known(self._server.url)
        names = machine_names(told, answers["nodes"], answers["dcgm"])
        devices, prices = self._devices(answers, names)
        jobs = jobs_told(answers, names)
        states = machine_states(devices, answers["targets"])
        devices = self._without_dropped(devices, states)
        if job:
            jobs = [self._with_ranks(one, answers, names) for one in _chosen(jobs, job)]
            runs = {one.run for one in jobs}
            devices = [device for device in devices if runs & set(device.runs)]
            answers["jobs"] = [row for row in answers["jobs"] if row.label("run") in runs]
            self._about_others.clear()
        findings = _findings(devices, jobs, states, self._questions.over_s)
        shown = _shown(devices, findings, all_devices=all_devices or bool(job))
        return Fleet(
            server=self._server.url,
            asked_at_unix_s=self._now,
            over_s=self._questions.over_s,
            machines=machines_of(devices, jobs, names, states, self._questions.over_s),
            devices=shown,
            devices_left_out=len(devices) - len(shown),
            jobs=tuple(jobs),
            findings=findings,
            actions=ranked_actions(findings, jobs),
            waste=waste_of(devices, self._questions.over_s),
            gpus=sum(device.state != "gone" for device in devices),
            job=job,
            prices=prices,
            notes=(*self._notes, *self._about_others, *clocks_that_differ(answers, names)),
        )

    def _first_answers(self) -> dict[str, list[Row]]:
        """What is now, then what was, of everything."""
        answers = self._asked(self._questions.first())
        ours = {row.label("uuid") for row in answers["devices"]}
        theirs = any(row.label("UUID") and row.label("UUID") not in ours for row in answers["dcgm"])
        scope = dataclasses.replace(self._questions.scope, dcgm=theirs)
        self._questions = dataclasses.replace(self._questions, scope=scope)
        of_jobs = job_questions(scope, self._questions.over_s, self._questions.step_s)
        answers |= self._asked({**self._questions.history(), **of_jobs})
        return answers

    def _asked(self, questions: Mapping[str, str]) -> dict[str, list[Row]]:
        """All answers; a question that is refused has none, and is noted."""
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            running = {
                name: pool.submit(self._server.query, text, self._now) for name, text in questions.items()
            }
        answers: dict[str, list[Row]] = {}
        for name, future in running.items():
            try:
                answers[name] = future.result()
            except Refusal as refusal:
                answers[name] = []
                self._notes.append(f"no answer about {name.replace('_', ' ')}: {refusal}")
        return answers

    def _devices(
        self, answers: dict[str, list[Row]], names: Mapping[str, str]
    ) -> tuple[list[FleetDevice], str]:
        told = devices_told(answers, names)
        self._about_others += told.notes
        step_s = self._questions.step_s
        history = {name: answers[name] for name in self._questions.history()}
        devices = with_history(told.devices, history, step_s)
        answers |= self._details(devices, answers)
        devices = with_details(devices, answers, step_s, self._now)
        runs = uuids_by_run(answers["jobs"])
        devices = [dataclasses.replace(one, runs=tuple(sorted(runs.get(one.uuid, ())))) for one in devices]
        gone = devices_gone(answers["gone"], by_device(answers["last_seen"]), names, self._now)
        return with_prices([*devices, *gone])

    def _details(
        self, devices: Sequence[FleetDevice], answers: Mapping[str, list[Row]]
    ) -> dict[str, list[Row]]:
        """What is dear to ask, of those devices alone that it matters for."""
        gone = {row.label("uuid") for row in answers["gone"]}
        tellers = tuple(sorted({row.label("instance") for row in answers["gone"]}))
        limited = {row.label("uuid") for row in answers["limited"]}
        limited |= {device.uuid for device in devices if is_throttled(device)}
        mixed = {one.uuid for one in devices if one.idle_held_s is None and one.idle_s is not None}
        wanted: list[tuple[Iterable[str], Callable[[Questions], dict[str, str]]]] = [
            (mixed, Questions.of_mixed),
            ({device.uuid for device in devices if is_idle(device)}, Questions.of_idle),
            ({device.uuid for device in devices if device.state == "down"}, Questions.of_down),
            (limited, Questions.of_limited),
            (gone, lambda questions: questions.of_gone(tellers)),
        ]
        found: dict[str, list[Row]] = {"last_seen": [], "targets": []}
        for uuids, ask in wanted:
            for some in _batches(sorted(uuids), _AT_A_TIME):
                scope = dataclasses.replace(self._questions.scope, uuids=some)
                for name, rows in self._asked(ask(dataclasses.replace(self._questions, scope=scope))).items():
                    found.setdefault(name, []).extend(rows)
        return found

    def _without_dropped(
        self, devices: Sequence[FleetDevice], states: Mapping[str, FleetMachineState]
    ) -> list[FleetDevice]:
        """What Prometheus no longer asks was taken away by somebody: told, and not counted."""
        dropped = sorted(machine for machine, state in states.items() if state == "dropped")
        if dropped:
            listed = ", ".join(dropped[:NAMED_IN_NOTES]) + ", ..." * (len(dropped) > NAMED_IN_NOTES)
            self._about_others.append(f"no longer asked by Prometheus, so not counted: {listed}")
        return [device for device in devices if states.get(device.machine) != "dropped"]

    def _with_ranks(
        self, job: FleetJob, answers: Mapping[str, list[Row]], names: Mapping[str, str]
    ) -> FleetJob:
        rows = self._asked({"ranks": ranks_of(self._questions.scope, job.run)})["ranks"]
        column = {
            name: by_label(answers[name], "run").get(job.run)
            for name in ("rank_count", "rank_median", "rank_fastest")
        }
        others = pace_of_the_others(
            column["rank_count"] or 0.0, column["rank_median"], column["rank_fastest"]
        )
        return dataclasses.replace(job, ranks=ranks_against_others(rows, others, names))


def machine_states(devices: Sequence[FleetDevice], targets: Iterable[Row]) -> dict[str, FleetMachineState]:
    """How it is with machines of which nobody tells: out of reach, or no longer asked."""
    reached = by_label(targets, "instance")
    states: dict[str, FleetMachineState] = {}
    present = {device.machine for device in devices if device.state != "gone"}
    for device in devices:
        if device.machine in present:
            states[device.machine] = "up"
        elif device.instance not in reached:
            states.setdefault(device.machine, "dropped")
        elif reached[device.instance] == 0:
            states[device.machine] = "unreachable"
        else:
            states[device.machine] = "up"
    return states


def _batches(names: Sequence[str], most: int) -> Iterator[tuple[str, ...]]:
    for start in range(0, len(names), most):
        yield tuple(names[start : start + most])


def _nothing_known(url: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{url} has never heard of a GPU",
        expected="metrics of `flatout export` (flatout_device_info) or of dcgm-exporter, with these labels",
        remedy=_SET_UP,
    )


def _findings(
    devices: Sequence[FleetDevice],
    jobs: Sequence[FleetJob],
    states: Mapping[str, FleetMachineState],
    over_s: float,
) -> tuple[FleetFinding, ...]:
    of_jobs = list(job_findings(jobs, devices, over_s))
    wanting = {finding.run for finding in of_jobs if finding.kind in ("stalled", "underused")}
    explained = {device.uuid for device in devices if wanting & set(device.runs)}
    return (*device_findings(devices, states, explained), *of_jobs)


def _chosen(jobs: Sequence[FleetJob], wanted: str) -> list[FleetJob]:
    """By the id of its run or its beginning, or by a part of its name."""
    fitting = [job for job in jobs if job.run.startswith(wanted)]
    fitting = fitting or [job for job in jobs if wanted in job.name]
    if not fitting:
        raise UnknownName(
            "job",
            wanted,
            [job.run for job in jobs],
            remedy="the beginning of a run's id, or a part of a job's name",
        )
    return fitting


def _shown(
    devices: Sequence[FleetDevice], findings: Iterable[FleetFinding], *, all_devices: bool
) -> tuple[FleetDevice, ...]:
    wanting = {finding.uuid for finding in findings if finding.uuid}
    ordered = sorted(devices, key=lambda one: (one.machine, len(one.gpu), one.gpu))
    return tuple(device for device in ordered if all_devices or device.uuid in wanting)


def _matcher(text: str) -> str:
    """`cluster=a` as PromQL writes it."""
    found = _MATCHER.fullmatch(text.strip())
    if found is None:
        raise CallerMistake(
            f"--where {text!r}",
            expected="a label and its value: cluster=a, or instance=~rack1-.*",
            remedy="--where cluster=a",
        )
    label, sign, value = found.groups()
    return f"{label}{sign}{quoted(value.strip(chr(34)))}"
