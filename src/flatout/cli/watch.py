"""`flatout watch`."""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, Size, common_options
from flatout.records.errors import CallerMistake, MissingExtra, UnknownName
from flatout.records.places import PROJECT_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.monitor.recording import Recorder
    from flatout.monitor.replaying import Replay
    from flatout.monitor.sampling import MachineSampler
    from flatout.monitor.view.app import WatchApp
    from flatout.records.watching import Frame

# The first look at a machine: a GPU without persistence takes seconds to wake.
_FIRST_LOOK_S = 60.0


@click.command("watch", short_help=COMMANDS["watch"].purpose)
@click.option(
    "--every",
    type=click.FloatRange(0.1, 3600.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look.",
)
@click.option("--once", is_flag=True, help="One look as plain text; needs no extra package.")
@click.option(
    "--device", "devices", multiple=True, metavar="INDEX|UUID", help="Only this GPU; can be given again."
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep every frame, a line of JSON each; compressed where FILE ends in .gz.",
)
@click.option(
    "--record-most",
    type=Size(),
    default="256MiB",
    show_default=True,
    help="What a recording may take on disk; older frames make room.",
)
@click.option(
    "--replay",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show a recording instead.",
)
@click.option(
    "--runs",
    "roots",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Also show jobs of this .flatout folder; can be given again.",
)
@click.option(
    "--fleet",
    metavar="URL",
    help="All machines of this Prometheus server instead; more options: flatout fleet --watch.",
)
@click.option("--allow-stop", is_flag=True, help="Let the key x end a job, after a question.")
@click.option(
    "--grace",
    type=Duration(or_none=True),
    default="60s",
    show_default=True,
    metavar="TIME",
    help="With --allow-stop: how long a job may take to save and end by itself.",
)
@common_options
def command(
    output: Output,
    every: float,
    once: bool,
    devices: tuple[str, ...],
    record: Path | None,
    record_most: int,
    replay: Path | None,
    roots: tuple[Path, ...],
    fleet: str | None,
    allow_stop: bool,
    grace: float,
) -> int:
    """GPUs, jobs and processes of this machine, live.

    Each GPU with how busy it is (named for what is measured), memory, power against its limit, temperature
    against its slowdown threshold, what limits its clocks, its links, and curves of the last minutes or day.
    Jobs under `flatout run` with step time, throughput, MFU, loss and progress. Reads only: keys end nothing
    unless --allow-stop is given. The key ? lists the keys.

    Without a terminal, and with --once, it is one look as plain text; --json is one document with --once or
    --replay, else a line a frame. A GPU that does not answer is told as such while the others go on.

    \b
    Examples:
      flatout watch
      flatout watch --once
      flatout watch --every 5 --device 0
      flatout watch --json | jq -c '.samples[] | {index, power_draw_mw}'
      flatout watch --record night.jsonl.gz --every 10
      flatout watch --replay night.jsonl.gz
      flatout watch --allow-stop --grace 5m
      flatout watch --fleet http://prometheus:9090

    Exits with 0; 2 when a device or option is unknown, 3 when a recording cannot be read or written or the
    view's package is missing (--once needs none).
    """
    from flatout.records.errors import EXIT_DONE

    if fleet is not None:
        from flatout.cli.fleet_view import show_fleet

        _insist_on_machines_alone(devices, record, replay, roots, allow_stop)
        show_fleet(output, fleet, every, once=once or not _is_terminal())
        return EXIT_DONE
    if replay is not None:
        _refuse_together(record, allow_stop)
        _replay(output, replay, every, devices, once)
        return EXIT_DONE
    from flatout.monitor.recording import Recorder
    from flatout.monitor.sampling import MachineSampler

    own = Path(PROJECT_FOLDER)
    sampler = MachineSampler(
        every_s=min(every, 0.5) if once else every, roots=roots or ((own,) if own.is_dir() else ())
    )
    alone = not output.as_json and not once and _can_show_view()
    if alone:
        _insist_on_textual()
    with contextlib.ExitStack() as held:
        recorder = held.enter_context(Recorder(record, record_most)) if record else None
        held.enter_context(sampler)
        if devices or not alone:  # the view shows what is there as it comes
            with output.progress("looking at this machine"):
                # Activity is measured between two samples.
                sampler.wait_until_complete(_FIRST_LOOK_S, samples=1 if alone else 2)
        _insist_on_devices(sampler.frame(), devices)
        if alone:
            _live(output, sampler, every, devices, recorder, grace if allow_stop else None)
        elif once or not (output.as_json or recorder):
            _show_once(output, sampler.frame(), devices, recorder)
        else:
            _follow(output, sampler, every, devices, recorder)
    return EXIT_DONE


def _is_terminal() -> bool:
    return sys.stdout.isatty() and sys.stdin.isatty()


def _can_show_view() -> bool:
    # Textual draws on standard error; where that goes into a file, the terminal would stay empty.
    return _is_terminal() and sys.stderr is not None and sys.stderr.isatty()


def _refuse_together(record: Path | None, allow_stop: bool) -> None:
    if record is not None or allow_stop:
        raise CallerMistake(
            f"--replay with {'--record' if record else '--allow-stop'}",
            expected="one or the other: a recording is over",
            remedy="flatout watch --replay FILE",
        )


def _insist_on_machines_alone(*options: object) -> None:
    if any(options):
        raise CallerMistake(
            "--fleet with an option for the GPUs or jobs of this machine",
            expected="--fleet URL, and no more than --every, --once and --json beside it",
            remedy="flatout watch --fleet URL, or flatout fleet --help",
        )


def _insist_on_textual() -> None:
    import importlib.util

    if importlib.util.find_spec("textual") is None:
        raise MissingExtra(
            "textual", extra="tui", wanted_for="the live view (`flatout watch --once` needs none)"
        )


def _insist_on_devices(frame: "Frame", wanted: "Sequence[str]") -> None:
    from flatout.records.watched import gpus_of, is_called

    devices = [device for device, _ in gpus_of(frame)]
    for name in wanted:
        if not any(is_called(device, name) for device in devices):
            known = [word for device in devices for word in (str(device.index), device.uuid or "") if word]
            raise UnknownName(
                "device", name, known, remedy="" if known else "no GPU can be seen: flatout doctor"
            )


def _live(
    output: Output,
    sampler: "MachineSampler",
    every: float,
    devices: "Sequence[str]",
    recorder: "Recorder | None",
    grace_s: float | None,
) -> None:
    from flatout.monitor.stopping import stop_shown_job
    from flatout.monitor.view.app import WatchApp
    from flatout.monitor.view.marks import marks_for

    app = WatchApp(
        sampler,
        every_s=every,
        marks=marks_for(os.environ),
        devices=devices,
        stop_job=None if grace_s is None else lambda row, tell: stop_shown_job(row, grace_s, tell),
        on_frame=recorder.add if recorder else lambda _frame: None,
    )
    _run(app, output)


def _run(app: "WatchApp", output: Output) -> None:
    """Run a view to its end; a signal that ended it has its effect once the terminal is as it was."""
    app.run()
    if app.ended_by is None:
        app.endings.go_on(output.notice)
        return
    for row in app.endings.under_way():
        output.notice(f"{row.name} was asked to end, and nobody waits for it: flatout stop {row.pid}")
    os.kill(os.getpid(), app.ended_by)


def _replay(output: Output, path: Path, every: float, devices: "Sequence[str]", once: bool) -> None:
    from flatout.monitor.recording import Recording
    from flatout.monitor.replaying import Replay

    recording = Recording(path)
    if recording.unreadable:
        output.notice(f"{recording.unreadable} lines of {path} cannot be read and are left out")
    with contextlib.closing(recording):
        if output.as_json or once or not _can_show_view():
            last = recording[len(recording) - 1]
            _insist_on_devices(last, devices)
            _show_once(output, last, devices, None)
            return
        _insist_on_textual()
        _show_recording(output, Replay(recording), every, devices)


def _show_recording(output: Output, replay: "Replay", every: float, devices: "Sequence[str]") -> None:
    from flatout.monitor.view.app import WatchApp
    from flatout.monitor.view.marks import marks_for

    app = WatchApp(replay, every_s=every, marks=marks_for(os.environ), devices=devices)
    _run(app, output)


def _show_once(output: Output, frame: "Frame", devices: "Sequence[str]", recorder: "Recorder | None") -> None:
    from flatout.records.watched import only_devices
    from flatout.records.watching import FRAME_KIND, FRAME_VERSION
    from flatout.report.watching import draw_frame

    if recorder:
        recorder.add(frame)
    shown = only_devices(frame, devices)
    if output.as_json:
        output.document(FRAME_KIND, FRAME_VERSION, shown)
    else:
        draw_frame(shown, output.console())


def _follow(
    output: Output,
    sampler: "MachineSampler",
    every: float,
    devices: "Sequence[str]",
    recorder: "Recorder | None",
) -> None:
    """A line a frame, or frames into a file alone, until somebody ends it."""
    from flatout.monitor.recording import frame_line
    from flatout.records.watched import only_devices

    due = time.monotonic()
    while True:
        frame = sampler.frame()
        if recorder:
            recorder.add(frame)
        if output.as_json:
            try:
                sys.stdout.buffer.write(frame_line(only_devices(frame, devices)))
                sys.stdout.buffer.flush()
            except BrokenPipeError:
                sys.exit(0)  # whoever read has seen enough
        due = max(due + every, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
