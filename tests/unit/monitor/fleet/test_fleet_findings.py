"""Each finding: what fires it, a near miss that must not, and data that is missing."""

from pathlib import Path
from typing import Any

import pytest

from flatout.cli.commands import COMMANDS
from flatout.monitor.fleet import prices
from flatout.monitor.fleet.accounts import machines_of, waste_of
from flatout.monitor.fleet.actions import command_for, ranked_actions
from flatout.monitor.fleet.device_findings import device_findings
from flatout.monitor.fleet.job_findings import job_findings
from flatout.monitor.fleet.jobs import pace_of_the_others
from flatout.monitor.fleet.reading import read_fleet
from flatout.records.errors import CallerMistake
from flatout.records.fleet import FleetDevice, FleetFinding, FleetJob, FleetRank
from flatout.report.fleet_words import PLURALS

GIB = float(1 << 30)
HOUR_S, DAY_S = 3600.0, 86400.0


def device(**changes: Any) -> FleetDevice:
    facts: dict[str, Any] = {
        "machine": "a",
        "instance": "a:1",
        "gpu": "0",
        "uuid": "GPU-0",
        "name": "H100",
        "source": "flatout",
        "kernel_running_share": 0.95,
        "sm_active_share": 0.7,
        "tensor_active_share": 0.3,
        "processes": 1,
        "recently_seen": True,
        "recently_held": True,
        "usd_per_hour": 2.0,
        "present_s": DAY_S,
        "idle_s": 0.0,
    }
    return FleetDevice(**{**facts, **changes})


def job(**changes: Any) -> FleetJob:
    facts: dict[str, Any] = {
        "run": "run-1",
        "name": "train.py",
        "user": "ada",
        "machine": "a",
        "instance": "a:1",
        "state": "training",
        "gpus": 8,
        "age_s": 10 * HOUR_S,
        "checkpoint_age_s": 600.0,
        "mfu": 0.4,
        "headroom": 1.1,
    }
    return FleetJob(**{**facts, **changes})


def kinds(*devices: FleetDevice) -> list[str]:
    return [finding.kind for finding in device_findings(devices, {}, set())]


def job_kinds(*jobs: FleetJob, devices: tuple[FleetDevice, ...] = ()) -> list[str]:
    return [finding.kind for finding in job_findings(jobs, devices, DAY_S)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        # Idle: held or not, for long enough, and measured.
        ({"kernel_running_share": 0.0}, ["held idle"]),
        ({"kernel_running_share": 0.0, "processes": 0, "recently_held": False}, ["idle"]),
        (
            {
                "kernel_running_share": 0.0,
                "processes": 0,
                "recently_held": False,
                "memory_used_bytes": 40 * GIB,
            },
            ["idle"],
        ),
        (
            {
                "kernel_running_share": 0.0,
                "processes": None,
                "recently_held": None,
                "memory_used_bytes": 40 * GIB,
            },
            ["held idle"],
        ),
        (
            {
                "kernel_running_share": 0.0,
                "processes": None,
                "recently_held": None,
                "memory_used_bytes": 0.5 * GIB,
            },
            ["idle"],
        ),
        (
            {"kernel_running_share": 0.0, "processes": None, "recently_held": None, "pod": "team/x"},
            ["held idle"],
        ),
        ({"kernel_running_share": 0.03}, []),
        ({"kernel_running_share": 0.0, "recently_seen": False}, []),
        ({"kernel_running_share": None}, []),
        # Broken.
        ({"state": "down"}, ["broken"]),
        ({"xid_count": 1, "xid_last": 79}, ["broken"]),
        ({"xid_count": 1, "xid_last": 31}, []),
        ({"xid_count": 0, "xid_last": 79}, []),
        ({"xid_count": 2, "xid_last": None}, []),
        ({"ecc_uncorrected": 2}, ["broken"]),
        ({"ecc_uncorrected": 0}, []),
        # Throttled.
        ({"throttle_reasons": ("thermal_software",)}, ["throttled"]),
        ({"throttle_reasons": ("power_cap",), "power_limit_w": 700.0, "power_limit_default_w": 700.0}, []),
        (
            {"throttle_reasons": ("power_cap",), "power_limit_w": 500.0, "power_limit_default_w": 700.0},
            ["throttled"],
        ),
        ({"throttle_reasons": ("power_cap",)}, []),
        ({"throttled_lost_s": 3 * HOUR_S}, ["throttled"]),
        ({"throttled_lost_s": 200.0}, []),
        # Underused.
        ({"sm_active_share": 0.1}, ["underused"]),
        ({"sm_active_share": 0.1, "kernel_running_share": 0.4}, []),
        ({"tensor_active_share": 0.0}, ["underused"]),
        ({"tensor_active_share": 0.0, "sm_active_share": None}, []),
        ({"sm_active_share": None, "tensor_active_share": None}, []),
    ],
)
def test_what_is_wrong_with_a_gpu(changes: dict[str, Any], found: list[str]) -> None:
    assert kinds(device(**changes)) == found


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"state": "stalled"}, ["stalled"]),
        ({"state": "evaluating"}, []),
        ({"silent_s": 700.0}, ["stalled"]),
        ({"silent_s": 2 * DAY_S}, []),
        ({"checkpoint_age_s": 2 * HOUR_S}, ["no checkpoint"]),
        ({"checkpoint_age_s": None}, ["no checkpoint"]),
        ({"checkpoint_age_s": None, "age_s": 1200.0}, []),
        ({"checkpoint_age_s": None, "age_s": None}, []),
        ({"checkpoint_age_s": None, "state": "starting"}, []),
        ({"mfu": 0.1, "headroom": 3.0}, ["underused"]),
        ({"mfu": 0.1, "headroom": 1.2}, []),
        ({"mfu": 0.5, "headroom": 3.0}, []),
        ({"mfu": None, "headroom": 3.0}, []),
        ({"mfu": 0.1, "headroom": None}, []),
        ({"ranks": (FleetRank(rank="3", machine="b", step_s=1.3, times_the_others=1.3),)}, ["slow rank"]),
        ({"ranks": (FleetRank(rank="3", machine="b", step_s=1.1, times_the_others=1.1),)}, []),
    ],
)
def test_what_is_wrong_with_a_job(changes: dict[str, Any], found: list[str]) -> None:
    assert job_kinds(job(**changes)) == found


def test_a_slow_rank_is_looked_for_on_its_own_machine_and_with_what_throttles_there() -> None:
    slow = FleetRank(rank="9", machine="b", step_s=0.5, times_the_others=1.25)
    hot = device(machine="b", gpu="1", runs=("run-1",), throttle_reasons=("thermal_hardware",))
    (finding,) = job_findings([job(ranks=(slow,))], [hot], DAY_S)
    assert finding.machine == "b"
    assert "Throttled: GPU 1 (b)" in finding.says
    assert finding.gpus_lost == pytest.approx(8 * 0.2)


def test_of_two_ranks_the_faster_one_is_the_others() -> None:
    assert pace_of_the_others(2, median_s=1.15, fastest_s=1.0) == 1.0
    assert pace_of_the_others(8, median_s=1.0, fastest_s=0.9) == 1.0


def test_a_job_that_fell_silent_and_left_its_gpus_costs_nothing_more() -> None:
    free = tuple(device(uuid=f"GPU-{n}", runs=("run-1",), processes=0) for n in range(8))
    (finding,) = job_findings([job(silent_s=700.0)], free, DAY_S)
    assert finding.gpus_lost == 0
    assert "ended without a word" in finding.says
    held = tuple(device(uuid=f"GPU-{n}", runs=("run-1",)) for n in range(8))
    (finding,) = job_findings([job(silent_s=700.0)], held, DAY_S)
    assert (finding.gpus_lost, finding.usd_per_hour) == (8.0, 16.0)


def test_gpus_of_a_job_that_stands_still_are_its_story_and_not_eight_more() -> None:
    idle = device(kernel_running_share=0.0, runs=("run-1",))
    assert list(device_findings([idle], {}, {"GPU-0"})) == []
    assert kinds(idle) == ["held idle"]


def test_a_machine_out_of_reach_is_one_finding_and_one_that_was_taken_away_none() -> None:
    lost = [device(uuid=f"GPU-{n}", state="gone", gone_s=900.0) for n in range(8)]
    found = list(device_findings(lost, {"a": "unreachable"}, set()))
    assert [(finding.kind, finding.gpus_lost, finding.usd_per_hour) for finding in found] == [
        ("unreachable", 8.0, 16.0)
    ]
    assert list(device_findings(lost, {"a": "dropped"}, set())) == []
    assert len(list(device_findings(lost, {"a": "up"}, set()))) == 8


def finding(kind: Any, machine: str, usd: float | None, lost: float = 1.0, **more: Any) -> FleetFinding:
    return FleetFinding(
        kind=kind, machine=machine, says="x", query="up", gpu="0", gpus_lost=lost, usd_per_hour=usd, **more
    )


def test_what_has_no_price_takes_its_place_by_its_hours() -> None:
    actions = ranked_actions(
        [
            finding("idle", "cheap", 2.0),
            finding("idle", "unpriced", None, 4.0),
            finding("idle", "dear", 12.0, 6.0),
        ],
        [],
    )
    assert [action.machine for action in actions] == ["dear", "unpriced", "cheap"]
    assert actions[1].usd_a_day is None
    assert actions[1].gpu_hours_a_day == 96


def test_a_thing_of_many_gpus_on_one_machine_is_one_action() -> None:
    many = [
        FleetFinding(kind="idle", machine="a", says="x", query="up", gpu=str(n), gpus_lost=1.0)
        for n in range(12)
    ]
    (action,) = ranked_actions(many, [])
    assert action.says.startswith("give work to 12 GPUs (0, 1, 2, 3, 4, 5, 6, 7, ...)")


@pytest.mark.parametrize(
    "run", ["x; rm -rf ~", "$(reboot)", "--orphans", "a b", "", "x" * 500, "a\nb", "`id`"]
)
def test_a_name_that_a_shell_would_obey_never_gets_into_a_command(run: str) -> None:
    for kind in ("stalled", "held idle", "underused", "no checkpoint", "slow rank"):
        command = command_for(kind, run)  # type: ignore[arg-type]
        assert not run or run not in command
        assert command.startswith("flatout ")


def test_hours_are_split_by_why_and_each_is_counted_once() -> None:
    waste = waste_of(
        [
            device(idle_s=10 * HOUR_S, idle_held_s=4 * HOUR_S),
            device(state="gone", gone_s=2 * HOUR_S, present_s=None, idle_s=None),
            device(throttled_lost_s=HOUR_S, usd_per_hour=None),
        ],
        DAY_S,
    )
    assert (waste.idle_gpu_hours, waste.held_idle_gpu_hours, waste.broken_gpu_hours) == (6, 4, 2)
    assert (waste.throttled_gpu_hours, waste.paid_gpu_hours) == (1, 50)
    assert (waste.usd, waste.paid_usd, waste.unpriced_gpus) == (24, 52, 1)


def test_a_machine_of_which_nothing_is_known_says_so() -> None:
    bare = FleetDevice(machine="a", instance="a:1", gpu="0", uuid="GPU-0", name="", source="dcgm-exporter")
    (machine,) = machines_of([bare], [], {"a:1": "a"}, {}, DAY_S)
    assert machine.kernel_running_share is None
    assert machine.wasted_usd is None
    assert machine.unknown["power_w"]


def test_what_was_lost_before_the_window_is_not_in_its_bill() -> None:
    gone = device(state="gone", gone_s=30 * DAY_S, present_s=None, idle_s=None)
    assert waste_of([gone], HOUR_S).usd == 2.0
    (machine,) = machines_of([gone], [], {"a:1": "a"}, {}, HOUR_S)
    assert machine.wasted_usd == 2.0


def test_every_command_that_is_offered_exists() -> None:
    for kind in PLURALS:
        for says in ("", "throttled now: power cap"):
            words = command_for(kind, "run-1", says).split()
            assert words[0] == "flatout"
            assert words[1] in COMMANDS


@pytest.mark.parametrize("over_s", [0.0, 20.0, 1000 * DAY_S, float("inf"), float("nan")])
def test_a_window_of_no_use_is_refused_before_anybody_is_asked(over_s: float) -> None:
    with pytest.raises(CallerMistake, match="a window of"):
        read_fleet("http://no-such-host.invalid", over_s=over_s)


def test_your_own_price_goes_before_the_list_and_after_what_an_exporter_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.toml").write_text("as_of = 2026-01-01\nown_usd_per_gpu_hour = 2.10\n")
    monkeypatch.setenv("FLATOUT_PRICES", str(tmp_path / "prices.toml"))
    prices._listed.cache_clear()
    silent = device(name="NVIDIA H200", usd_per_hour=None, price_source="")
    told = device(usd_per_hour=3.0, price_source="its exporter")
    found, words = prices.with_prices([silent, told])
    assert [one.usd_per_hour for one in found] == [2.1, 3.0]
    assert (found[0].price_source, words) == ("your own price", "as exporters tell them; your own price")
    prices._listed.cache_clear()
