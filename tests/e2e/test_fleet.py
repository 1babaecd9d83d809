"""`flatout fleet` against a real Prometheus with a day of a made-up fleet: finds, and near misses."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flatout.cli.fleet import command
from flatout.cli.fleet_view import watch_fleet
from flatout.monitor.fleet.reading import read_fleet
from flatout.monitor.fleet.server import Access, Server
from flatout.records.errors import CallerMistake, EnvironmentProblem, UnknownName
from flatout.records.fleet import Fleet
from flatout.report.fleet import draw_fleet
from tests.e2e.conftest import Run
from tests.e2e.exporting import Exporting, until
from tests.e2e.test_export_prometheus import keep_writing
from tests.fakes.planted_fleet import planted
from tests.fakes.prometheus import PROMETHEUS, WHY_NOT, backfill, serving
from tests.fakes.terminal import terminal
from tests.pages import insist_on_one_file, parsed

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data = backfill(tmp_path_factory.mktemp("fleet"), planted(time.time()))
    with serving(data) as url:
        yield url


@pytest.fixture(scope="module")
def seen(server: str) -> Fleet:
    return read_fleet(server, all_devices=True)


def wrong(fleet: Fleet) -> set[tuple[str, str, str]]:
    return {(finding.kind, finding.machine, finding.gpu) for finding in fleet.findings}


def test_everything_that_is_planted_is_found_and_nothing_that_only_looks_like_it(seen: Fleet) -> None:
    assert wrong(seen) == {
        ("idle", "node-01", "6"),
        ("idle", "node-01", "7"),
        ("held idle", "node-03", "2"),
        ("broken", "node-05", "7"),
        ("broken", "node-06", "3"),
        ("throttled", "node-07", "4"),
        ("slow rank", "node-09", ""),
        ("broken", "node-10", "1"),
        ("no checkpoint", "node-11", ""),
        ("underused", "node-13", ""),
        ("stalled", "node-16", ""),
        ("unreachable", "node-97", ""),
    }


def test_each_finding_says_what_was_seen(seen: Fleet) -> None:
    says = {(finding.kind, finding.machine): finding.says for finding in seen.findings}
    assert re.search(r"gone for (3|4)\d min", says["broken", "node-05"])
    assert "Xid 79" in says["broken", "node-06"]
    assert "down" in says["broken", "node-10"]
    assert "held by 1 process" in says["held idle", "node-03"]
    assert "thermal hardware" in says["throttled", "node-07"]
    assert "rank 5 takes 580 ms a step, 1.43x the others" in says["slow rank", "node-09"]
    assert "7 h 30 min old" in says["no checkpoint", "node-11"]
    assert "8 GPUs that nobody sees" in says["unreachable", "node-97"]


def test_every_evidence_query_shows_something_on_the_server_itself(server: str, seen: Fleet) -> None:
    asked = Server(Access(url=server))
    for action in seen.actions:
        if action.because.startswith("gone"):  # it shows that nobody tells of it any more
            assert asked.query(f"last_over_time({action.query}[1h])"), action.query
        else:
            assert asked.query(action.query), action.query


def test_money_is_what_the_hours_cost_and_hours_are_counted_once(seen: Fleet) -> None:
    price = {device.usd_per_hour for device in seen.devices}
    assert len(price) == 1
    (usd,) = price
    assert usd is not None
    waste = seen.waste
    # Two GPUs of nobody's all day, and one more that came just now.
    assert waste.idle_gpu_hours == pytest.approx(48, rel=0.02)
    # Nine that were held all day, and 4 % of those that train.
    assert waste.held_idle_gpu_hours == pytest.approx(9 * 24 + 0.04 * 24 * 119 + 2 * 0.1 * 24, rel=0.1)
    assert waste.usd == pytest.approx(usd * waste.gpu_hours)
    assert waste.paid_usd == pytest.approx(usd * waste.paid_gpu_hours)
    idle = next(action for action in seen.actions if action.kind == "idle")
    assert idle.findings == 2
    assert idle.usd_a_day == pytest.approx(48 * usd, rel=0.01)
    # Clocks at 1.1 of 1.98 GHz while kernels run 96 % of the time.
    hot = next(action for action in seen.actions if action.kind == "throttled")
    assert hot.gpu_hours_a_day == pytest.approx(24 * (1 - 1.1 / 1.98) * 0.96, rel=0.02)
    risk = next(action for action in seen.actions if action.kind == "no checkpoint")
    assert risk.usd_a_day == pytest.approx(7.5 * 8 * usd, rel=0.01)


def test_what_is_broken_comes_first_then_what_costs_most(seen: Fleet) -> None:
    urgent = [action.is_urgent for action in seen.actions]
    assert urgent == sorted(urgent, reverse=True)
    for part in (True, False):
        costs = [action.usd_a_day or 0.0 for action in seen.actions if action.is_urgent is part]
        assert costs == sorted(costs, reverse=True)


def test_oddities_of_the_data_are_told_as_notes(seen: Fleet) -> None:
    notes = "\n".join(seen.notes)
    assert "GPU-node-16-7 is told of by several exporters" in notes
    assert "2 GPUs on 1 machine are known by dcgm-exporter alone" in notes
    assert "no longer asked by Prometheus, so not counted: node-99" in notes
    assert "the clock of node-08 is 40 min ahead" in notes
    assert "the clock of node-10 is 2 h 30 min behind" in notes
    assert len(seen.notes) == 5


def test_each_gpu_counts_once_wherever_it_was_before(seen: Fleet) -> None:
    uuids = [device.uuid for device in seen.devices]
    assert len(uuids) == len(set(uuids))
    # Sixteen times eight and two of dcgm-exporter's are there, less the one that is gone.
    assert seen.gpus == 16 * 8 + 2 - 1
    moved = next(device for device in seen.devices if device.uuid == "GPU-node-12-3")
    assert moved.machine == "node-12"


def test_not_a_number_is_unknown_and_does_not_spread(seen: Fleet) -> None:
    odd = next(device for device in seen.devices if device.uuid == "GPU-node-02-5")
    assert odd.kernel_running_share is None
    assert odd.unknown["kernel_running_share"]
    job = next(job for job in seen.jobs if job.machine == "node-02")
    assert (job.mfu, job.headroom) == (None, None)
    machine = next(machine for machine in seen.machines if machine.name == "node-02")
    assert machine.kernel_running_share == pytest.approx((6 * 0.96 + 0.08) / 7)


def test_machines_that_only_have_dcgm_exporter_are_told_as_such(seen: Fleet) -> None:
    old = next(machine for machine in seen.machines if machine.name == "dgx-old")
    assert old.sources == ("dcgm-exporter",)
    assert old.gpus == 2
    assert old.kernel_running_share == pytest.approx(0.9)
    assert old.memory_total_bytes == pytest.approx(2 * 81000 * (1 << 20))


def test_the_command_gives_one_document_and_says_by_its_code_that_something_is_broken(
    flatout: Run, server: str
) -> None:
    done = flatout("fleet", "--url", server, "--json")
    assert done.returncode == 1, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schema"] == "flatout.fleet/1"
    assert document["actions"][0]["kind"] in ("stalled", "unreachable")
    assert document["devices_left_out"] > 100
    assert len(document["devices"]) < 20


def test_the_screen_fits_eighty_columns_and_the_page_is_one_file(
    flatout: Run, server: str, tmp_path: Path
) -> None:
    page = tmp_path / "fleet.html"
    done = flatout("fleet", "--url", server, "--html", str(page), COLUMNS="80")
    assert done.returncode == 1, done.stderr
    # Queries are to be pasted, and so not broken.
    wide = [line for line in done.stdout.splitlines() if len(line) > 80]
    assert all("{" in line for line in wide), wide
    assert "node-05" in done.stdout
    assert "on node-16: flatout stop 20261116-" in done.stdout
    insist_on_one_file(page.read_text())
    squares = parsed(page.read_text()).classed("i", "square")
    assert len(squares) == 16 * 8 + 2 + 8


def test_one_job_alone_with_its_ranks(server: str) -> None:
    chosen = read_fleet(server, job="20261116-081500")
    assert [machine.name for machine in chosen.machines] == ["node-09"]
    (job,) = chosen.jobs
    assert job.ranks[0].rank == "5"
    assert len(job.ranks) == 8
    assert chosen.notes == ()
    assert not chosen.is_urgent
    text = terminal(lambda console: draw_fleet(chosen, console))
    assert "slowest of 8 ranks" in text
    with pytest.raises(UnknownName, match="unknown job"):
        read_fleet(server, job="nobody-calls-it-so")


def test_labels_of_others_are_shown_and_never_obeyed(server: str, seen: Fleet) -> None:
    job = next(job for job in seen.jobs if job.machine == "node-15")
    assert "<script>" in job.name
    chosen = read_fleet(server, job=job.run)
    text = terminal(lambda console: draw_fleet(chosen, console))
    assert "\x1b" not in text
    assert "\\x1b[31m" in text


def test_watch_opens_the_same_fleet(flatout: Run, server: str) -> None:
    done = flatout("watch", "--fleet", server, "--once", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert "18 machines, 129 GPUs" in done.stdout
    mixed = flatout("watch", "--fleet", server, "--device", "0")
    assert mixed.returncode == 2
    assert "--fleet with an option" in mixed.stderr


def test_only_what_has_a_label(server: str) -> None:
    few = read_fleet(server, where=["instance=~node-0[13]:19838"])
    assert {machine.name for machine in few.machines} == {"node-01", "node-03"}
    assert {kind for kind, _, _ in wrong(few)} == {"idle", "held idle"}


def test_a_shorter_window_costs_less(server: str, seen: Fleet) -> None:
    hour = read_fleet(server, over_s=3600.0)
    assert hour.waste.idle_gpu_hours == pytest.approx(2, rel=0.1)
    assert hour.waste.paid_usd < seen.waste.paid_usd / 20


def test_the_live_view_outlives_a_server_that_goes_away(server: str, seen: Fleet) -> None:
    answers = iter([seen, EnvironmentProblem("gone away", expected="", remedy=""), seen])

    def look() -> Fleet:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    text = terminal(lambda console: watch_fleet(look, console, 0.01, looks=3), force=True)
    assert "gone away" in text
    assert "was the last answer" in text
    assert text.count("node-16") >= 3


def test_a_server_that_knows_no_gpu_is_told_how_to_set_one_up(flatout: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with serving(tmp_path / "data") as url:
        done = flatout("fleet", "--url", url)
    assert done.returncode == 3
    assert "flatout export" in done.stderr
    assert "scrape_configs" in done.stderr
    assert "docs/fleet.md" in done.stderr


def test_wrong_words_on_the_command_line_are_the_callers_mistake() -> None:
    cases = {
        ("--url", "ftp://x"): "is no address",
        ("--url", "http://ada:secret@x:9090"): "a name in the address",
        ("--url", "http://x", "--json", "--watch", "5"): "--watch with --json",
        ("--url", "http://x", "--html", "/nowhere/x.html"): "there is no folder",
        ("--url", "http://x", "--over", "1s"): "a window of 1 s",
        ("--url", "http://x", "--where", "cluster"): "--where 'cluster'",
        ("--url", "http://x", "--token-file", "/nowhere"): "--token-file /nowhere",
        ("--url", "http://x", "--ca-file", "/nowhere"): "--ca-file /nowhere",
    }
    for words, said in cases.items():
        mistake = CliRunner().invoke(command, words, standalone_mode=False).exception
        assert isinstance(mistake, CallerMistake), words
        assert said in str(mistake)
        assert "secret" not in str(mistake)


def test_without_an_address_the_option_is_named(flatout: Run) -> None:
    done = flatout("fleet")
    assert done.returncode == 2
    assert "Missing option '--url'" in done.stderr


def test_what_a_real_exporter_tells_reaches_the_fleet(tmp_path: Path) -> None:
    """Three GPUs of which one is lost, and a job whose name Prometheus gives another label."""
    root = tmp_path / ".flatout"
    ended = threading.Event()
    writer = threading.Thread(target=keep_writing, args=(root, ended), daemon=True)
    writer.start()
    try:
        until(lambda: list(root.glob("runs/*/live.json")), "the jobs")
        with Exporting(tmp_path, "--listen", "127.0.0.1:0", "--runs", str(root), gpus=3) as exporter:
            until(lambda: exporter.scrape().get(("flatout_device_up", "2")) == 1, "the GPUs")
            exporter.order("lose", 2)
            until(lambda: exporter.scrape().get(("flatout_device_up", "2")) == 0, "its loss")
            (tmp_path / "data").mkdir()
            with serving(tmp_path / "data", config=SCRAPING % exporter.url.split("/")[2]) as url:
                fleet = until(lambda: complete(url), "a scrape")
    finally:
        ended.set()
        writer.join(10)
    (machine,) = fleet.machines
    assert machine.name == socket.gethostname()
    assert (machine.gpus, machine.broken) == (3, 1)
    # Others may train on this machine, too.
    jobs = {job.run: job for job in fleet.jobs}
    assert (jobs["train-1"].state, jobs["stalled-2"].state) == ("training", "stalled")
    assert "over-3" not in jobs
    assert jobs["train-1"].name.startswith("train.py --name")
    assert jobs["train-1"].gpus == 2
    found = {(finding.kind, finding.gpu or finding.run) for finding in fleet.findings}
    assert {("broken", "2"), ("stalled", "stalled-2")} <= found


SCRAPING = """
global: {scrape_interval: 1s}
scrape_configs:
  - {job_name: flatout, static_configs: [{targets: ["%s"]}]}
"""


def complete(url: str) -> Fleet | None:
    try:
        found = read_fleet(url, all_devices=True)
    except EnvironmentProblem:
        return None
    return found if len(found.jobs) >= 2 and found.gpus == 3 else None
