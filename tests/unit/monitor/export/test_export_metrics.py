"""A frame as metrics: right values, unknown ones absent, bounded labels, hostile names inert."""

import dataclasses
import math
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from flatout.monitor.export.catalogue import COLLECTORS, SPECS
from flatout.monitor.export.dcgm import collect_dcgm
from flatout.monitor.export.exporter import Exporter, as_record
from flatout.monitor.export.labels import LabelLimits, label
from flatout.monitor.export.look import Look
from flatout.monitor.export.running import ExportRequest, exporter_for
from flatout.monitor.export.text import write
from flatout.records.device import Device, DeviceProcess, DeviceSample
from flatout.records.live import STEP_BUCKETS_S, LiveJob, LiveRank, LiveTotals, StepTimes
from flatout.records.watching import Frame
from tests.unit.monitor.export.frames import NOW, frame_of, gpu, job

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def exported(frame: Frame, **options: object) -> Values:
    """Every sample of one collection, by name and labels."""
    return values_of(Exporter(lambda: frame, now_unix_s=lambda: NOW, **options))  # type: ignore[arg-type]


def values_of(exporter: Exporter) -> Values:
    text = write(exporter.collect(), "openmetrics").decode()
    found: Values = {}
    for family in openmetrics(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def one(values: Values, name: str, /, **labels: str) -> float | None:
    found = [
        value for (each, own), value in values.items() if each == name and labels.items() <= dict(own).items()
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def many(values: Values, name: str) -> list[dict[str, str]]:
    return [dict(own) for each, own in values if each == name]


def test_a_gpu_is_told_in_base_units() -> None:
    values = exported(frame_of(gpu(kernel_running_share=0.5, throttle_reasons=("power_cap",))))
    on = {"gpu": "0", "uuid": "GPU-0"}
    assert one(values, "flatout_device_up", **on) == 1
    assert one(values, "flatout_device_power_watts", **on) == pytest.approx(125.048)
    assert one(values, "flatout_device_energy_joules_total", **on) == pytest.approx(1_234_567.89)
    assert one(values, "flatout_device_kernel_running_ratio", **on) == 0.5
    assert one(values, "flatout_device_clock_compute_hertz", **on) == 1.98e9
    assert one(values, "flatout_device_throttled", reason="power_cap", **on) == 1
    assert one(values, "flatout_device_throttled", reason="thermal_hardware", **on) == 0
    assert one(values, "flatout_device_info", vendor="nvidia", name="NVIDIA H200", **on) == 1
    assert one(values, "flatout_node_devices", state="up") == 1
    assert one(values, "flatout_node_cpu_ratio") == 0.25


def test_a_job_is_told_with_its_histogram_ranks_and_gpus() -> None:
    values = exported(frame_of(gpu(), live_jobs=(job(),)))
    assert one(values, "flatout_job_info", run="r1", job="train.py --lr 3e-4", user="ada", host="box") == 1
    assert one(values, "flatout_job_state", run="r1", state="training") == 1
    assert one(values, "flatout_job_state", run="r1", state="stalled") == 0
    assert one(values, "flatout_job_updates_total", run="r1") == 42
    assert one(values, "flatout_job_step_seconds_bucket", le="0.05") == 40
    assert one(values, "flatout_job_step_seconds_bucket", le="300.0") == 40
    assert one(values, "flatout_job_step_seconds_bucket", le="+Inf") == 42
    assert one(values, "flatout_job_step_seconds_sum") == 702
    assert one(values, "flatout_job_step_seconds_count") == 42
    assert one(values, "flatout_job_rank_step_seconds", rank="0") == 0.04
    assert one(values, "flatout_job_device", uuid="GPU-0") == 1
    assert one(values, "flatout_job_throttled_seconds_total", reason="thermal_software") == 4


def test_a_job_that_comes_back_to_a_checkpoint_makes_more_updates_at_an_earlier_place() -> None:
    went = [one(exported(frame_of(live_jobs=(each,))), "flatout_job_updates_total") for each in _two_lives()]
    assert went == sorted(went)
    assert went[-1] == 1100, "what was lost was made, too"
    again = exported(frame_of(live_jobs=(_two_lives()[-1],)))
    assert one(again, "flatout_job_position_updates", run="r1") == 1000
    assert one(again, "flatout_job_rank_position_updates", run="r1", rank="0") == 1000


def _two_lives() -> list[LiveJob]:
    """It ended at its update 1000, had been saved at 900, and is there again."""
    seen = []
    for position, made in ((1000, 1000), (0, 1000), (901, 1001), (1000, 1100)):
        steps = StepTimes(counts=(made, *(0,) * len(STEP_BUCKETS_S)), sum_s=1.0)
        rank = LiveRank(rank=0, pid=4712, updates=position)
        seen.append(job(updates=position, ranks=(rank,), totals=LiveTotals(steps=steps)))
    return seen


def test_what_is_unknown_is_absent_and_never_zero() -> None:
    device = Device(index=0, vendor="amd", name="some GPU")
    nothing = DeviceSample(index=0, uuid=None, taken_at_unix_s=NOW)
    bare = job(loss=None, mfu=None, devices=(), loss_scale=math.nan, checkpoint_at_unix_s=None)
    values = exported(frame_of((device, nothing), live_jobs=(bare,)))
    told = {name for name, _ in values}
    assert one(values, "flatout_device_up", uuid="amd-0") == 1
    for name in (
        "memory_used_bytes",
        "power_watts",
        "energy_joules_total",
        "throttled",
        "xid_total",
        "fan_ratio",
    ):
        assert f"flatout_device_{name}" not in told
    for name in (
        "loss",
        "loss_scale",
        "mfu_ratio",
        "checkpoint_timestamp_seconds",
        "energy_joules_total",
        "device",
    ):
        assert f"flatout_job_{name}" not in told


def test_a_lost_gpu_is_down_and_its_last_values_are_not_told_as_if_they_were_new() -> None:
    down = gpu(1, state="down", xid_count=1, xid_last=79)
    stale = gpu(2, state="stale", taken_at_unix_s=NOW - 40)
    values = exported(frame_of(gpu(0), down, stale))
    assert [one(values, "flatout_device_up", gpu=index) for index in "012"] == [1, 0, 0]
    assert [one(values, "flatout_device_power_watts", gpu=index) for index in "012"] == [125.048, None, None]
    assert one(values, "flatout_device_sample_age_seconds", gpu="2") == 40
    assert one(values, "flatout_device_sample_age_seconds", gpu="1") is None
    # What only grows, and what never changes, stays: an alert on Xids must see it.
    assert one(values, "flatout_device_xid_total", gpu="1") == 1
    assert one(values, "flatout_device_memory_total_bytes", gpu="2") == 150_754_820_096
    assert {state: one(values, "flatout_node_devices", state=state) for state in ("up", "stale", "down")} == {
        "up": 1,
        "stale": 1,
        "down": 1,
    }


def test_what_a_job_did_last_is_not_what_it_does() -> None:
    over = job("over", state="ended", exit_code=0)
    silent = job("silent", written_at_unix_s=NOW - 60)
    values = exported(frame_of(live_jobs=(job("goes on"), over, silent)))
    assert [labels["run"] for labels in many(values, "flatout_job_samples_per_second")] == ["goes on"]
    assert {labels["run"] for labels in many(values, "flatout_job_updates_total")} == {
        "goes on",
        "over",
        "silent",
    }
    assert {labels["run"] for labels in many(values, "flatout_job_device")} == {"goes on", "silent"}


def test_throttled_time_adds_up_from_frame_to_frame_and_each_sample_counts_once() -> None:
    frames = [
        frame_of(
            gpu(taken_at_unix_s=NOW + second, throttle_reasons=("thermal_software",) if second < 5 else ())
        )
        for second in (0, 2, 2, 5, 6)
    ]
    newest = iter(frames)
    exporter = Exporter(lambda: next(newest), now_unix_s=lambda: NOW)
    for _ in frames[:-1]:
        exporter.observe()
    values = values_of(exporter)
    assert one(values, "flatout_device_throttled_seconds_total", reason="thermal_software") == 5
    assert one(values, "flatout_device_throttled_seconds_total", reason="power_brake") == 0


def test_energy_comes_from_power_where_a_gpu_keeps_no_count() -> None:
    newest = iter(
        frame_of(gpu(taken_at_unix_s=NOW + second, energy_total_mj=None, power_draw_mw=200_000))
        for second in range(4)
    )
    exporter = Exporter(lambda: next(newest), now_unix_s=lambda: NOW)
    for _ in range(3):
        exporter.observe()
    assert one(values_of(exporter), "flatout_device_energy_joules_total") == 600


def test_a_display_server_is_nobody_who_holds_a_gpu() -> None:
    def told(*kinds: str) -> float | None:
        listed = tuple(DeviceProcess(pid=n, kind=kind) for n, kind in enumerate(kinds))  # type: ignore[arg-type]
        return one(exported(frame_of(gpu(processes=listed))), "flatout_device_processes")

    assert told("graphics", "graphics") == 0
    assert told("graphics", "compute", "unknown") == 2, "what a driver calls nothing may compute"


def energies(*counted_mj: int | None) -> list[float | None]:
    """What is told of a GPU whose counter is read so, second by second."""
    newest = iter(
        frame_of(gpu(taken_at_unix_s=NOW + second, energy_total_mj=counted, power_draw_mw=200_000))
        for second, counted in enumerate(counted_mj)
    )
    exporter = Exporter(lambda: next(newest), now_unix_s=lambda: NOW)
    return [one(values_of(exporter), "flatout_device_energy_joules_total") for _ in counted_mj]


def test_a_counter_of_energy_that_cannot_be_read_once_stays_where_it_was() -> None:
    assert energies(10**12, None, None, 10**12 + 600_000) == [10**9, 10**9, 10**9, 10**9 + 600]


def test_a_counter_of_energy_that_comes_late_is_no_leap() -> None:
    assert energies(None, None, 10**12, 10**12 + 300_000) == [None, 200, 400, 700]


def test_a_collector_that_raises_is_counted_and_the_others_are_served() -> None:
    def broken(_look: Look) -> object:
        raise RuntimeError("planted")

    exporter = Exporter(
        lambda: frame_of(gpu(), live_jobs=(job(),)),
        collectors={**COLLECTORS, "jobs": broken},  # type: ignore[dict-item]
        now_unix_s=lambda: NOW,
    )
    values = values_of(exporter)
    assert one(values, "flatout_exporter_errors_total", collector="jobs") == 1
    assert one(values, "flatout_exporter_errors_total", collector="devices") == 0
    assert one(values, "flatout_device_up", gpu="0") == 1
    assert not many(values, "flatout_job_state")


def test_a_sampler_that_raises_leaves_the_last_frame_and_is_counted() -> None:
    answers = iter([frame_of(gpu())])
    exporter = Exporter(lambda: next(answers), now_unix_s=lambda: NOW)
    exporter.observe()
    values = values_of(exporter)
    assert one(values, "flatout_device_up", gpu="0") == 1
    assert one(values, "flatout_exporter_errors_total", collector="frame") == 1


def test_looks_that_failed_and_ways_out_are_told_from_the_start() -> None:
    looks = {"nvidia": 0, "processes": 2}
    request = ExportRequest(
        address=None, textfile=Path("/nowhere"), otlp_url="http://127.0.0.1:4318/v1/metrics"
    )
    values = values_of(exporter_for(request, lambda: frame_of(gpu()), lambda: looks))
    told = {
        key: one(values, "flatout_exporter_errors_total", collector=key)
        for key in ("textfile", "otlp", *looks)
    }
    assert told == {"textfile": 0, "otlp": 0, **looks}


def test_labels_are_capped_and_what_is_dropped_is_counted() -> None:
    ranks = tuple(LiveRank(rank=rank, pid=rank, updates=1, step_s=0.1) for rank in range(9))
    jobs = (*tuple(job(f"old {n}", state="ended") for n in range(30)), job("new", ranks=ranks))
    limits = LabelLimits(jobs=4, ranks=3, reasons=6)
    reasons = tuple(f"other_{n:#x}" for n in range(20))
    values = exported(frame_of(gpu(throttle_reasons=reasons), live_jobs=jobs), limits=limits)
    runs = {labels["run"] for labels in many(values, "flatout_job_info")}
    assert len(runs) == 4
    assert "new" in runs, "jobs that go on come before those that ended"
    of_new = [
        labels for labels in many(values, "flatout_job_rank_position_updates") if labels["run"] == "new"
    ]
    assert len(of_new) == 3
    assert len(many(values, "flatout_device_throttled")) == 6
    assert one(values, "flatout_exporter_labels_dropped_total", metric="flatout_job_state") == 27
    assert one(values, "flatout_exporter_labels_dropped_total", metric="flatout_job_rank_step_seconds") == 6
    assert one(values, "flatout_exporter_labels_dropped_total", metric="flatout_device_throttled") == 19


def test_the_same_gpu_or_run_twice_is_told_once() -> None:
    older = job(written_at_unix_s=NOW - 9, updates=7)
    values = exported(frame_of(gpu(), gpu(), live_jobs=(job(), older)))
    assert len(many(values, "flatout_device_up")) == 1
    assert one(values, "flatout_job_position_updates") == 42, "the newer word counts"
    assert one(values, "flatout_exporter_labels_dropped_total", metric="flatout_device_up") == 1


HOSTILE = [
    'x"} 1\nflatout_device_up{gpu="9"} 1\n#',
    "\x1b[31mred\x1b[0m\x07",
    "<script>alert(1)</script>",
    "\udc80\udcff",
    "\\" * 50 + '"',
    "\u202etxt.exe\u2028line",
    "a" * 10_000,
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_inert(name: str) -> None:
    pair = gpu()
    device = dataclasses.replace(pair[0], name=name, driver_version=name)
    frame = frame_of(
        (device, pair[1]), live_jobs=(job(name, name=name, user=name, devices=(name,)),), host=name
    )
    exporter = Exporter(
        lambda: frame, collectors={**COLLECTORS, "dcgm": collect_dcgm}, now_unix_s=lambda: NOW
    )
    metrics = exporter.collect()
    for text, parse in (
        (write(metrics, "plain").decode(), plain_text),
        (write(metrics, "openmetrics").decode(), openmetrics),
    ):
        gpus = {s.labels["gpu"] for family in parse(text) for s in family.samples if "gpu" in s.labels}
        assert gpus == {"0"}
        assert not any(sign < " " and sign != "\n" for sign in text)
        assert "\u2028" not in text
        assert max(map(len, text.splitlines())) < 2000
    assert as_record(metrics).metrics


def test_a_label_is_one_short_line() -> None:
    assert label("a\nb\x1b") == "a\\nb\\x1b"
    assert len(label("x" * 500)) == 200
    assert len(label("\x00" * 500)) == 200


def test_everything_that_is_served_is_in_the_catalogue_and_the_other_way_round() -> None:
    full = job(loss_scale=1.0, memory_peak_bytes=5, totals=dataclasses.replace(job().totals, tokens=5))
    every = gpu(
        **dict.fromkeys(("sm_active_share", "sm_occupancy_share", "tensor_active_share"), 0.5),
        memory_bandwidth_share=0.5,
        fan_speed_share=0.5,
        pcie_sent_bytes_per_s=5,
        pcie_received_bytes_per_s=5,
        xid_last=79,
    )
    frames = frame_of(every, every, live_jobs=(full,))
    exporter = Exporter(lambda: frames, usd_per_hour=lambda _: 3.0, now_unix_s=lambda: NOW)
    exporter.collect()
    served = {(name.removesuffix("_bucket"), kind) for name, kind in _served(exporter)}
    listed = {(spec.name, spec.kind) for specs in SPECS.values() for spec in specs}
    assert served == listed


def _served(exporter: Exporter) -> set[tuple[str, str]]:
    return {
        (family.samples[0].name, family.type)
        for family in openmetrics(write(exporter.collect(), "openmetrics").decode())
        if family.samples
    }


def test_labels_are_those_of_the_catalogue() -> None:
    specs = {spec.name: spec for group in SPECS.values() for spec in group}
    for name, labels in exported(frame_of(gpu(), live_jobs=(job(),))):
        spec = specs[name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")]
        own = {key for key, _ in labels} - ({"le"} if spec.kind == "histogram" else set())
        assert set(spec.labels) <= own <= {*spec.labels, *spec.facts}, name


def test_dcgm_names_carry_their_units_and_labels() -> None:
    pairs = (gpu(kernel_running_share=0.25), gpu(1, state="down"))
    amd = (
        Device(index=2, vendor="amd", name="other", uuid="A"),
        DeviceSample(index=2, uuid="A", taken_at_unix_s=NOW),
    )
    values = exported(frame_of(*pairs, amd), collectors={"dcgm": collect_dcgm})
    on = {"gpu": "0", "UUID": "GPU-0", "modelName": "NVIDIA H200", "Hostname": "box", "device": "nvidia0"}
    assert one(values, "DCGM_FI_DEV_GPU_UTIL", **on) == 25
    assert one(values, "DCGM_FI_DEV_FB_USED", **on) == pytest.approx(644_939_776 / 2**20)
    assert one(values, "DCGM_FI_DEV_SM_CLOCK", **on) == 1980
    assert one(values, "DCGM_FI_DEV_XID_ERRORS", **on) == 0
    assert one(values, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", **on) == 1_234_567_890
    assert {labels["gpu"] for labels in many(values, "DCGM_FI_DEV_GPU_UTIL")} == {"0"}


@pytest.mark.parametrize("name", [*HOSTILE, "plain"])
def test_the_text_is_what_prometheus_client_would_have_written(name: str) -> None:
    frame = frame_of(gpu(), gpu(1, power_draw_mw=1), live_jobs=(job(name, name=name, loss=-1e-9),))
    exporter = Exporter(
        lambda: frame, collectors={**COLLECTORS, "dcgm": collect_dcgm}, now_unix_s=lambda: NOW
    )
    metrics = [metric for metric in exporter.collect() if metric.samples]

    class Registry:
        def collect(self) -> list[Metric]:
            return metrics

    assert write(metrics, "plain") == generate_latest(Registry())  # type: ignore[arg-type]
    assert write(metrics, "openmetrics") == generate_openmetrics(Registry())


def test_a_thousand_gpus_are_all_in_one_answer() -> None:
    values = exported(frame_of(*(gpu(index) for index in range(1000))))
    assert len(many(values, "flatout_device_up")) == len(many(values, "flatout_device_power_watts")) == 1000
    assert not many(values, "flatout_exporter_labels_dropped_total")


def test_nothing_at_all_is_still_an_answer() -> None:
    def no_frame() -> Frame:
        raise OSError("planted")

    exporter = Exporter(no_frame)
    text = exporter.answer("plain").decode()
    assert 'flatout_exporter_errors_total{collector="frame"} 1.0' in text
    assert "flatout_node_devices" not in text
