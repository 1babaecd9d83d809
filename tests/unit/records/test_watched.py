"""What a frame means in words: figures with their names, unknown as unknown, and who belongs to whom."""

from flatout.records.live import LIVE_STALE_S
from flatout.records.watched import (
    activities,
    figures_of,
    heat_words,
    job_rows,
    limit_words,
    link_words,
    memory_words,
    only_devices,
    power_words,
    process_rows,
    remarks,
)
from tests.fakes.watching import NOW, busy, eight_gpus, frame_of, gpu, job_here, live_job, no_gpu


def test_what_is_unknown_is_said_to_be() -> None:
    nothing = busy(
        0,
        memory_used_bytes=None,
        power_draw_mw=None,
        temperature_c=None,
        throttle_reasons=None,
        sm_active_share=None,
        tensor_active_share=None,
        kernel_running_share=None,
        memory_bandwidth_share=None,
    )
    words = [
        memory_words(gpu(0), nothing),
        power_words(nothing),
        heat_words(gpu(0), nothing),
        limit_words(nothing),
    ]
    assert all("unknown" in one.words for one in words)
    assert activities(nothing)[0].words == "activity unknown"


def test_an_idle_gpu_is_limited_by_nothing_and_a_hot_one_is() -> None:
    assert limit_words(busy(0, throttle_reasons=("idle",))).words == ""
    assert limit_words(busy(0, throttle_reasons=("application_clocks",))).mood == "dim"
    hot = limit_words(busy(0, throttle_reasons=("power_cap", "thermal_hardware")))
    assert hot.words == "power cap, heat (hardware)"
    assert hot.mood == "bad"
    assert limit_words(busy(0, throttle_reasons=("other_0x200",))).words == "other 0x200"


def test_a_temperature_is_told_against_its_threshold() -> None:
    assert [heat_words(gpu(0), busy(0, temperature_c=c)).mood for c in (60, 85, 89)] == [
        "plain",
        "warn",
        "bad",
    ]
    assert heat_words(gpu(0, temperature_slowdown_c=None), busy(0, temperature_c=99)).words == "99 °C"


def test_a_link_that_is_narrower_than_it_could_be_is_a_warning() -> None:
    assert link_words(gpu(0), busy(0, pcie_width=8)).mood == "warn"
    assert "x8 of x16" in link_words(gpu(0), busy(0, pcie_width=8)).words
    assert link_words(gpu(0), busy(0)).mood == "plain"


def test_processes_find_their_jobs_and_strangers_find_none() -> None:
    rows = {row.process.pid: row for row in process_rows(eight_gpus())}
    assert rows[4211].job is not None
    assert rows[4211].state == "running"
    assert rows[31337].job is None
    assert rows[31337].state == "unknown"


def test_a_job_under_flatout_is_one_row_with_both_sides() -> None:
    first, second = job_rows(eight_gpus())
    assert first.live is not None
    assert first.pid == 4200
    assert second.live is None
    assert second.state.words == "idle"


def test_a_job_without_news_is_not_shown_as_training() -> None:
    old = live_job(written_at_unix_s=NOW - LIVE_STALE_S - 30)
    [row] = job_rows(frame_of([], live_jobs=(old,)))
    assert row.state.words == "no news"
    [ended] = job_rows(frame_of([], live_jobs=(live_job(state="ended", exit_code=1),)))
    assert ended.state.words == "failed"
    for how in ({"signal": 15}, {"exit_code": 130}):
        [stopped] = job_rows(frame_of([], live_jobs=(live_job(state="ended", **how),)))
        assert stopped.state.words == "stopped"


def test_figures_that_are_not_known_are_left_out() -> None:
    bare = live_job(mfu=None, loss=None, headroom=None, tokens_per_s=None, updates_planned=None)
    names = [name for name, _ in figures_of(bare)]
    assert names == ["step", "samples/s", "updates", "waits for data"]


def test_devices_are_chosen_by_number_or_the_beginning_of_their_uuid() -> None:
    frame = eight_gpus()
    assert [device.index for device in only_devices(frame, ["2", "5"]).devices] == [2, 5]
    uuid = str(frame.devices[3].uuid)
    assert [device.index for device in only_devices(frame, [uuid]).devices] == [3]
    assert len(only_devices(frame, [uuid[:8]]).devices) == 8
    assert only_devices(frame, []) is frame


def test_no_gpu_is_told_with_the_reason() -> None:
    [remark] = remarks(no_gpu())
    assert "libnvidia-ml" in remark.words
    assert (
        remarks(frame_of([busy(0)], notes=("2 processes are hidden",)))[0].words == "2 processes are hidden"
    )
    assert job_rows(no_gpu())[0].name == job_here(77, "train.py").command
