"""The fleet for people: screens that fit, a page in one file, names that stay names, bounds."""

import dataclasses
import json
from typing import Any

import pytest

from flatout.cli.fleet_view import watch_fleet
from flatout.monitor.fleet.accounts import machines_of, waste_of
from flatout.monitor.fleet.actions import ranked_actions
from flatout.monitor.fleet.device_findings import device_findings
from flatout.monitor.fleet.job_findings import job_findings
from flatout.records.codec import encode
from flatout.records.errors import EnvironmentProblem
from flatout.records.fleet import Fleet, FleetDevice, FleetJob, FleetRank, FleetWaste
from flatout.report.fleet import draw_fleet, fleet_screen
from flatout.report.fleet_page import fleet_map, fleet_page, waste_picture
from flatout.report.fleet_words import money, waste_line, worth
from tests.fakes.terminal import terminal
from tests.pages import insist_on_one_file, parsed
from tests.unit.report.test_profile_page import EVIL, HUGE

GIB = float(1 << 30)
HOUR_S, DAY_S = 3600.0, 86400.0


def devices(machines: int, name: str = "node-") -> list[FleetDevice]:
    return [
        FleetDevice(
            machine=f"{name}{number:02}",
            instance=f"node-{number:02}:19838",
            gpu=str(gpu),
            uuid=f"GPU-{number}-{gpu}",
            name="NVIDIA H100 80GB HBM3",
            source="flatout",
            state="down" if (number, gpu) == (2, 3) else "up",
            kernel_running_share=0.0 if (number, gpu) == (1, 1) else 0.9,
            sm_active_share=0.7,
            tensor_active_share=0.3,
            memory_used_bytes=60 * GIB,
            memory_total_bytes=80 * GIB,
            power_w=600.0,
            processes=1,
            runs=(f"run-{number}",),
            recently_seen=True,
            recently_held=True,
            usd_per_hour=3.0,
            price_source="the price list",
            present_s=DAY_S,
            idle_s=DAY_S * (1.0 if (number, gpu) == (1, 1) else 0.1),
            idle_held_s=DAY_S * (1.0 if (number, gpu) == (1, 1) else 0.1),
            quiet_s=HOUR_S,
        )
        for number in range(machines)
        for gpu in range(8)
    ]


def fleet(machines: int = 4, name: str = "node-", job: str = "train.py", **changes: Any) -> Fleet:
    """As the reading makes one, from devices and jobs."""
    held = devices(machines, name)
    jobs = [
        FleetJob(
            run=f"run-{number}",
            name=job,
            user="ada",
            machine=f"{name}{number:02}",
            instance="",
            state="stalled" if number == 3 else "training",
            gpus=8,
            age_s=10 * HOUR_S,
            checkpoint_age_s=600.0,
            mfu=0.4,
            ranks=(FleetRank(rank="1", machine="b", step_s=0.5, times_the_others=1.5),)
            if number == 0
            else (),
            rank_count=8,
        )
        for number in range(machines)
    ]
    findings = (*device_findings(held, {}, set()), *job_findings(jobs, held, DAY_S))
    facts: dict[str, Any] = {
        "server": "http://prometheus:9090",
        "asked_at_unix_s": 1.8e9,
        "over_s": DAY_S,
        "machines": machines_of(held, jobs, {}, {}, DAY_S),
        "devices": tuple(held),
        "devices_left_out": 0,
        "jobs": tuple(jobs),
        "findings": findings,
        "actions": ranked_actions(findings, jobs),
        "waste": waste_of(held, DAY_S),
        "gpus": len(held),
        "prices": "the list",
        "notes": ("a note",),
    }
    return Fleet(**{**facts, **changes})


NOTHING = fleet(0, notes=(), prices="")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 50), (40, 12), (20, 10)])
def test_a_screen_never_scrolls_however_large_the_fleet(width: int, height: int) -> None:
    for machines in (0, 1, 4, 500):
        big = fleet(machines)
        text = terminal(
            lambda console, big=big: console.print(
                fleet_screen(big, width=width, height=height, problem="late")
            ),  # type: ignore[misc]
            width=width,
            height=height,
        )
        lines = text.splitlines()
        assert len(lines) <= height, (machines, width, len(lines))
        assert all(len(line) <= width for line in lines)


def test_plain_output_of_thousands_of_gpus_can_be_read() -> None:
    text = terminal(lambda console: draw_fleet(fleet(500), console))
    assert len(text.splitlines()) < 90
    assert "and 488 machines more" in text
    everything = terminal(lambda console: draw_fleet(fleet(500), console, everything=True))
    assert len(everything.splitlines()) > 500


def test_what_to_do_stands_with_its_cost_its_place_and_its_evidence() -> None:
    text = terminal(lambda console: draw_fleet(fleet(), console))
    assert "$576 a day  node-03: end or mend train.py, which stands still" in text
    assert "on node-03: flatout stop run-3 --dry-run" in text
    assert 'flatout_job_state{run="run-3", state="stalled"}' in text


def test_names_of_others_are_inert_on_a_terminal_and_on_the_page() -> None:
    evil = fleet(4, name=EVIL, job=EVIL + HUGE, notes=(EVIL,))
    text = terminal(lambda console: draw_fleet(evil, console))
    assert "\x1b" not in text
    page = fleet_page(evil)
    parsed(page)
    assert "<script" not in page


def test_the_page_is_one_file_with_every_section() -> None:
    page = fleet_page(fleet())
    insist_on_one_file(page)
    found = parsed(page)
    assert len(found.classed("i", "square")) == 32
    assert len(found.classed("i", "s-broken")) == 1
    # Idle while held, and all of the job that stands still.
    assert len(found.classed("i", "s-held")) == 9
    assert "node-03" in found.text
    assert "flatout stop run-3 --dry-run" in found.text


def test_a_fleet_of_which_nothing_is_known_still_has_a_page() -> None:
    insist_on_one_file(fleet_page(NOTHING))
    assert waste_picture(NOTHING) is None
    assert "nothing is known" in waste_line(NOTHING)
    assert "nothing to do" in terminal(lambda console: draw_fleet(NOTHING, console))


def test_a_page_has_bounds() -> None:
    page = fleet_page(fleet(700))
    assert len(parsed(page).classed("i", "square")) == 4096
    assert len(page) < 4_000_000


def test_pieces_of_the_bar_are_what_was_paid() -> None:
    stack = waste_picture(fleet())
    assert stack is not None
    assert sum(piece.width for piece in stack.bars[0].pieces) == pytest.approx(100, abs=0.1)


def test_squares_are_as_full_as_kernels_run() -> None:
    rows = dict(fleet_map(fleet()))
    assert [square.fill for square in rows["node-01"]][:3] == [90.0, 0.0, 90.0]


def test_without_prices_hours_are_told() -> None:
    free = fleet()
    waste = FleetWaste(idle_gpu_hours=12.0, paid_gpu_hours=48.0, unpriced_gpus=2)
    free = dataclasses.replace(free, waste=waste)
    assert waste_line(free).startswith("12.0 GPU h of 48.0 GPU h in 24 h (25 %)")
    action = dataclasses.replace(free.actions[0], usd_a_day=None, gpu_hours_a_day=24.0)
    assert worth(action) == "24.0 GPU h a day"
    assert [money(usd) for usd in (0.0, 0.42, 24.3, 12345.6)] == ["$0", "$0.42", "$24", "$12,346"]


def test_the_document_holds_no_number_that_json_has_not() -> None:
    odd = dataclasses.replace(fleet(), asked_at_unix_s=float("nan"))
    document = json.loads(encode("fleet", 1, odd))
    assert document["asked_at_unix_s"] is None
    assert document["nulls"]["asked_at_unix_s"] == "not a number"


def test_into_a_pipe_one_screen_follows_the_other() -> None:
    text = terminal(lambda console: watch_fleet(fleet, console, 0.001, looks=2))
    assert text.count("4 machines, 32 GPUs") == 2
    assert "\x1b" not in text


def test_into_a_pipe_a_server_that_goes_away_leaves_the_last_view() -> None:
    answers = iter((fleet(), None, fleet()))

    def look() -> Fleet:
        seen = next(answers)
        if seen is None:
            raise EnvironmentProblem("no answer", expected="one", remedy="wait")
        return seen

    text = terminal(lambda console: watch_fleet(look, console, 0.001, looks=3))
    assert text.count("4 machines, 32 GPUs") == 3
    assert text.count("no answer (0 s ago was the last answer)") == 1
