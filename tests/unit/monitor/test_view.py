"""The view as a user sees it: what is on the screen, while devices come, go, block and lie."""

import asyncio
import dataclasses
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from flatout.hardware.nvidia.source import NvidiaSource
from flatout.monitor.jobs_watch import JobsWatch
from flatout.monitor.recording import Recorder, Recording
from flatout.monitor.replaying import Replay
from flatout.monitor.sampling import MachineSampler
from flatout.monitor.view.app import READ_ONLY, WatchApp
from flatout.monitor.view.marks import Marks
from flatout.records.errors import CannotWrite
from flatout.records.watched import JobRow
from flatout.records.watching import Frame
from flatout.runtime.process_table import Table
from tests.fakes.nvml import UNKNOWN, FakeNvml
from tests.fakes.watching import NOW, Standing, busy, eight_gpus, frame_of, job_here, no_gpu, one_gpu, process

Screen = Callable[[], str]


def shown(app: WatchApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def watching(
    looker: Any,
    then: Callable[[Pilot[None], WatchApp], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
    **options: Any,
) -> None:
    async def run() -> None:
        app = WatchApp(looker, **options)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await then(pilot, app)

    asyncio.run(run())


async def until(pilot: Pilot[None], what: Callable[[], bool]) -> None:
    for _ in range(1200):
        if what():
            return
        await pilot.pause(0.05)
    raise AssertionError(shown(pilot.app))  # type: ignore[arg-type]


def screen_of(frame: Frame, *keys: str, size: tuple[int, int] = (80, 24), **options: Any) -> str:
    seen = ""

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        nonlocal seen
        await pilot.press(*keys)
        await pilot.pause()
        seen = shown(app)

    watching(Standing(frame), look, size=size, **options)
    return seen


def sampler_of(nvml: FakeNvml, **options: Any) -> MachineSampler:
    source = NvidiaSource(nvml, **options)
    return MachineSampler([source], 0.05, jobs=JobsWatch(lambda: Table(())))


# What is on the screen


def test_a_gpu_is_shown_with_figures_that_say_what_they_are() -> None:
    seen = screen_of(one_gpu(throttle_reasons=("power_cap",)))
    for words in (
        "SM active 87 %",
        "tensor active 41 %",
        "kernel running 100 %",
        "96.0 of 140.4 GiB",
        "640 of 700 W",
        "62 of 89 °C",
        "limited by power cap",
        "PCIe 5 x16",
        "18 of 18 GPU links",
        "train.py --lr 3e-4",
        "4200",
        "95.0 GiB",
    ):
        assert words in seen, words


def test_every_share_on_the_screen_has_a_name() -> None:
    import re

    for frame in (one_gpu(), eight_gpus()):
        for line in screen_of(frame, size=(130, 40)).splitlines():
            for found in re.finditer(r"[\d.]+ %", line):
                assert re.search(r"[A-Za-z] $", line[: found.start()]), line


def test_without_gpm_the_share_is_called_what_it_is() -> None:
    seen = screen_of(one_gpu(sm_active_share=None, tensor_active_share=None))
    assert "kernel running 100 %" in seen
    assert "SM active" not in seen


def test_eight_gpus_fit_a_small_terminal_with_the_lost_one_named() -> None:
    seen = screen_of(eight_gpus()).splitlines()
    assert len(seen) == 24
    rows = [line for line in seen[1:9] if "of 140.4 GiB" in line]
    assert len(rows) == 7
    assert "DOWN: NVML answered: GPU is lost" in seen[7]
    assert "heat" in seen[4]
    assert "power cap" in seen[2]
    # Flatout's job with its figures and finding.
    text = "\n".join(seen)
    assert "step 412 ms" in text
    assert "MFU 43 %" in text
    assert "torch.compile is predicted" in text


@pytest.mark.parametrize("size", [(40, 20), (20, 8), (80, 5), (200, 60)])
def test_any_size_shows_the_first_gpu_and_no_line_is_too_long(size: tuple[int, int]) -> None:
    seen = screen_of(eight_gpus(), size=size).splitlines()
    assert "SM active 87" in "\n".join(seen)
    assert len(seen) == size[1]
    assert all(len(line) <= size[0] for line in seen)


def test_in_a_narrow_terminal_what_limits_a_gpu_is_still_there() -> None:
    seen = screen_of(eight_gpus(), size=(40, 20)).splitlines()
    assert "heat" in seen[4]
    assert "power" in seen[2]


def test_without_a_gpu_the_cpu_the_host_and_jobs_are_shown() -> None:
    seen = screen_of(no_gpu())
    assert "no GPU can be seen here" in seen
    assert "CPU busy 31 %" in seen
    assert "Xeon" in seen
    assert "train.py" in seen


def test_a_plain_locale_gets_ascii_alone() -> None:
    for keys in ((), ("question_mark",), ("down", "enter"), ("down", "x")):
        seen = screen_of(eight_gpus(), *keys, marks=Marks(plain=True), stop_job=lambda _row, _tell: "")
        assert seen.isascii(), [line for line in seen.splitlines() if not line.isascii()]


def test_names_of_processes_and_drivers_are_inert() -> None:
    evil = "\x1b[31mred\x1b]0;title\x07\n[bold]x[/bold]"
    frame = one_gpu(state="stale", state_reason=evil)
    frame = dataclasses.replace(
        frame,
        host=evil,
        devices=(dataclasses.replace(frame.devices[0], name=evil),),
        jobs=(job_here(4200, evil, user=evil),),
        notes=(evil,),
    )
    for keys in ((), ("down", "enter"), ("down", "x")):
        seen = screen_of(frame, *keys, size=(200, 30), stop_job=lambda _row, _tell: "")
        assert "\x1b" not in seen
        assert "\x07" not in seen
        assert "[bold]x" in seen
        assert "\\x1b[31mred" in seen


# While things happen


def test_one_gpu_is_lost_while_we_look_and_the_others_go_on() -> None:
    nvml = FakeNvml(gpus=3)

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await until(pilot, lambda: shown(app).count("SM active") >= 3)
        nvml.lose(1)
        await until(pilot, lambda: "DOWN" in shown(app))
        nvml.answer("nvmlDeviceGetPowerUsage", 333_000, 2)
        await until(pilot, lambda: "333 of 700 W" in shown(app))
        assert "DOWN" in shown(app)
        nvml.heal_all()
        await until(pilot, lambda: "DOWN" not in shown(app))

    with sampler_of(nvml) as sampler:
        watching(sampler, look, every_s=0.05)
    assert nvml.fired


def test_a_blocked_call_makes_a_gpu_stale_and_the_view_answers_keys() -> None:
    nvml = FakeNvml(gpus=2)
    stuck: list[threading.Event] = []

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await until(pilot, lambda: shown(app).count("SM active") >= 2)
        stuck.append(nvml.block("nvmlDeviceGetClockInfo", 1))
        await until(pilot, lambda: "STALE" in shown(app))
        await pilot.press("s")
        await until(pilot, lambda: "sorted by age" in shown(app))
        stuck[0].set()
        await until(pilot, lambda: "STALE" not in shown(app))

    try:
        with sampler_of(nvml, call_timeout_s=0.2) as sampler:
            watching(sampler, look, every_s=0.05)
    finally:
        for event in stuck:
            event.set()
    assert nvml.fired["block nvmlDeviceGetClockInfo"]


def test_a_driver_is_loaded_anew_while_we_look() -> None:
    nvml = FakeNvml(gpus=2)

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await until(pilot, lambda: shown(app).count("SM active") >= 2)
        nvml.lose_all(UNKNOWN)
        await until(pilot, lambda: shown(app).count("STALE") >= 2)
        nvml.heal_all()
        await until(pilot, lambda: "STALE" not in shown(app))

    with sampler_of(nvml) as sampler:
        watching(sampler, look, every_s=0.05)
    assert len(nvml.init_pids) >= 2  # more, where it took us long to look


def test_placeholders_of_a_driver_are_told_as_unknown() -> None:
    nvml = FakeNvml()
    nvml.answer("nvmlDeviceGetPowerUsage", 0xFFFFFFFF)
    nvml.answer("nvmlDeviceGetTemperature", 0x7FFFFFFF)

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await until(pilot, lambda: "SM active" in shown(app))
        assert "power unknown" in shown(app)
        assert "heat unknown" in shown(app)
        assert "4294967" not in shown(app)

    with sampler_of(nvml) as sampler:
        watching(sampler, look, every_s=0.05)


# Keys


def test_keys_pick_sort_filter_and_open() -> None:
    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await pilot.press("6")
        assert "GPU 6 NVIDIA H200  DOWN" in shown(app)
        await pilot.press("tab")
        assert "GPU 7 NVIDIA H200" in shown(app)
        await pilot.press("g")
        await pilot.pause()
        assert "processes on GPU 7" in shown(app)
        assert "4215" not in shown(app)
        await pilot.press("g", "slash", "g", "r", "a", "c", "e", "enter")
        await pilot.pause()
        assert "ipykernel_launcher" in shown(app)
        assert "pretrain.py" not in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "pretrain.py" in shown(app)
        await pilot.press("t")
        await pilot.pause()
        assert "curves show 1 h" in shown(app)
        await pilot.press("down", "enter")
        await pilot.pause()
        assert "18402 of 60000" in shown(app)
        assert "last step 200 ms ago" in shown(app)
        await pilot.press("escape", "question_mark")
        await pilot.pause()
        assert "None of" in shown(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "GPU 7 NVIDIA H200" in shown(app)

    watching(Standing(eight_gpus()), look)


def test_the_list_scrolls_to_what_is_chosen() -> None:
    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        assert "31337" not in shown(app)
        await pilot.press(*["down"] * 12)
        await pilot.pause()
        assert "31337" in shown(app)

    watching(Standing(eight_gpus()), look)


def test_stopping_is_refused_unless_it_was_allowed() -> None:
    assert READ_ONLY in screen_of(eight_gpus(), "down", "x")


@pytest.mark.parametrize(
    ("answer", "stops"), [("y", True), ("n", False), ("enter", False), ("escape", False)]
)
def test_a_job_is_stopped_only_after_a_yes(answer: str, stops: bool) -> None:
    asked: list[JobRow] = []

    def stop(row: JobRow, tell: Callable[[str], None]) -> str:
        asked.append(row)
        tell("asked to save")
        return "it has ended"

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await pilot.press("down", "x")
        await pilot.pause()
        assert "End pretrain.py" in shown(app)
        await pilot.press(answer)
        await pilot.pause()
        if stops:
            await until(pilot, lambda: "it has ended" in shown(app))
        assert "End pretrain.py" not in shown(app)

    watching(Standing(eight_gpus()), look, stop_job=stop)
    assert [row.pid for row in asked] == ([4200] if stops else [])


@pytest.mark.parametrize("fails", [False, True])
def test_an_end_that_is_under_way_goes_on_in_plain_text_once_the_view_is_left(fails: bool) -> None:
    left: list[WatchApp] = []
    may_end = threading.Event()

    def stop(row: JobRow, tell: Callable[[str], None]) -> str:
        tell("asked to save")
        assert may_end.wait(60)
        tell("what is left of it is ended")
        tell("what is left of it is ended")
        if fails:
            raise OSError("it is not ours")
        return "it has ended"

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await pilot.press("down", "x")
        await pilot.pause()
        await pilot.press("y")
        await until(pilot, lambda: "asked to save" in shown(app))
        await pilot.press("q")
        left.append(app)

    watching(Standing(eight_gpus()), look, stop_job=stop)
    [app] = left
    assert [row.pid for row in app.endings.under_way()] == [4200]
    said: list[str] = []

    def hear(words: str) -> None:
        said.append(words)
        may_end.set()

    app.endings.go_on(hear)
    outcome = "pretrain.py --config small.yaml could not be ended: OSError: it is not ours"
    assert "flatout stop 4200" in said[0]
    assert said[1] == "what is left of it is ended"
    assert said[2:] == [outcome if fails else "it has ended"]
    assert app.endings.under_way() == []


def test_a_pause_holds_the_picture_and_lets_it_go_on() -> None:
    looker = Standing(one_gpu())

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        await pilot.press("space")
        looker.now = one_gpu(power_draw_mw=123_000)
        await pilot.pause(0.6)
        assert "paused" in shown(app)
        assert "640 of 700 W" in shown(app)
        await pilot.press("space")
        await pilot.pause()
        assert "123 of 700 W" in shown(app)

    watching(looker, look, every_s=0.25)


def test_only_lines_that_changed_are_drawn_again() -> None:
    looker = Standing(eight_gpus())

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        from flatout.monitor.view.widgets import Lines

        drawn: list[int] = []
        widget = app.query_one("#gpus", Lines)
        before = widget.render_line
        widget.render_line = lambda y: (drawn.append(y), before(y))[1]  # type: ignore[method-assign]
        samples = list(looker.now.samples)
        samples[2] = dataclasses.replace(samples[2], power_draw_mw=222_000)
        looker.now = dataclasses.replace(looker.now, samples=tuple(samples))
        app.look()
        await pilot.pause()
        assert "222 of 700 W" in shown(app)
        assert set(drawn) == {2}

    watching(looker, look, every_s=60.0)


def test_devices_that_were_not_asked_for_are_left_out() -> None:
    seen = screen_of(eight_gpus(), devices=("2",))
    assert "GPU 2 NVIDIA H200" in seen
    assert "DOWN" not in seen


# Recordings


def recorded(folder: Path) -> Recording:
    path = folder / "watch.jsonl"
    with Recorder(path) as recorder:
        for second in range(60):
            sample = busy(0, taken_at_unix_s=NOW + second, power_draw_mw=100_000 + 1000 * second)
            recorder.add(frame_of([sample], taken_at_unix_s=NOW + second))
    return Recording(path)


def test_a_recording_is_played_paused_and_searched(tmp_path: Path) -> None:
    now = 0.0
    recording = recorded(tmp_path)
    replay = Replay(recording, monotonic=lambda: now)

    async def look(pilot: Pilot[None], app: WatchApp) -> None:
        nonlocal now
        assert "frame 1 of 60" in shown(app)
        assert "100 of 700 W" in shown(app)
        now = 5.0
        app.look()
        await pilot.pause()
        assert "105 of 700 W" in shown(app)
        await pilot.press("space", "right")
        await pilot.pause()
        assert "frame 16 of 60, paused" in shown(app)
        assert "115 of 700 W" in shown(app)
        await pilot.press("end")
        await pilot.pause()
        assert "159 of 700 W" in shown(app)
        await pilot.press("home", "down", "x")
        await pilot.pause()
        assert "100 of 700 W" in shown(app)
        assert "this is a recording" in shown(app)

    watching(replay, look, every_s=60.0, stop_job=lambda _row, _tell: "")
    recording.close()


def test_a_recording_that_cannot_be_written_any_more_is_told_and_the_view_goes_on() -> None:
    def full(_frame: Frame) -> None:
        raise CannotWrite(
            Path("watch.jsonl"), OSError(28, "No space left on device"), remedy="free some room"
        )

    seen = screen_of(one_gpu(), on_frame=full)
    assert "No space left on device" in seen
    assert "SM active" in seen


def test_a_process_of_another_namespace_is_unknown_and_belongs_to_no_job() -> None:
    stranger = process(4200, 1 << 30, name=None, gone=None, unknown={"name": "unknown process"})
    frame = frame_of([busy(0, processes=(stranger,))], jobs=(job_here(4200, "train.py"),))
    lines = screen_of(frame).splitlines()
    [row] = [line for line in lines if line.startswith("GPU 0  4200")]
    assert "unknown" in row
    assert "train.py" not in row
