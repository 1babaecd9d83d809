"""`flatout power`."""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, common_options, leave_page, page_option
from flatout.records.errors import EXIT_DONE, EXIT_FINDING, CallerMistake, EnvironmentProblem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.hardware.power_limits import PowerControls
    from flatout.monitor.power.jobs import Pair
    from flatout.monitor.power.measuring import Watched
    from flatout.records.power import LimitRestored, PowerNow, PowerSweep

_LOOK_S = 1.0
_EVENTS_KEPT = 1000


class _Watts(click.ParamType):  # type: ignore[type-arg]
    """`600,500,400`: watts, as milliwatts."""

    name = "watts"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Milliwatts, in the order given."""
        if isinstance(value, tuple):
            return value
        try:
            caps = tuple(round(float(word) * 1000) for word in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of watts: 600,500,400 is", param, ctx)
        if not all(0 < cap < 10_000_000 for cap in caps):
            self.fail("watts are more than nothing, and less than 10000", param, ctx)
        return caps


@click.command("power", short_help=COMMANDS["power"].purpose)
@click.argument("job", required=False, metavar="[JOB|PID]")
@click.option(
    "--slowdown",
    type=click.FloatRange(0.0, 90.0),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="How much longer a step may take.",
)
@click.option("--caps", type=_Watts(), default=(), metavar="WATTS,...", help="Try these caps alone.")
@click.option(
    "--window", type=Duration(), default=20.0, metavar="TIME", help="How long each is measured: 20s."
)
@click.option("--settle", type=Duration(), default=5.0, metavar="TIME", help="How long before that: 5s.")
@click.option("--measure", is_flag=True, help="Change nothing: joules a step under the limit as it is.")
@click.option("--apply", is_flag=True, help="Keep the best cap; --restore puts back what was before.")
@click.option("--restore", is_flag=True, help="Put back what --apply, or a command that was killed, changed.")
@click.option(
    "--guard",
    type=click.Choice(["warn", "cap"]),
    help="Watch temperatures until Ctrl-C: warn before clocks fall, or also lower the cap in time.",
)
@click.option(
    "--gpu", "gpus", type=click.IntRange(min=0), multiple=True, metavar="NUMBER", help="These GPUs."
)
@page_option
@common_options
def command(output: Output, job: str | None, gpus: tuple[int, ...], restore: bool, **wish: Any) -> int:
    """The power cap that costs least energy, and a guard against heat.

    Without a JOB: what each GPU draws and may draw. With one (a name or pid as in `flatout ps`): its joules a
    step and samples a joule; and where this user may set limits (root, as a rule), caps are tried under the
    running job, from what it draws downwards, to find the least energy within --slowdown. Steps are known of
    jobs under `flatout run`; of others, the memory's traffic stands for them.

    However this command ends, the limit is put back to exactly what it was: by itself, or by a process that
    outlives it, or else by the next command of Flatout's. What somebody else has set meanwhile is left alone.

    \b
    Examples:
      flatout power
      flatout power train.py --measure
      sudo flatout power train.py
      sudo flatout power 4242 --slowdown 5 --apply
      sudo flatout power --restore
      sudo flatout power --guard cap

    Exits with 0 when done, 1 when a limit could not be put back or a sweep ended early, 3 without a GPU.
    """
    _insist_on_one_wish(job, restore=restore, **wish)
    from flatout.hardware.machine import default_sources, discover_devices
    from flatout.hardware.power_limits import default_controls

    controls, sources = default_controls(), default_sources()
    try:
        if restore:
            return _restore(output, controls)
        devices, samples, _ = discover_devices(sources)
        pairs = [pair for pair in zip(devices, samples, strict=True) if pair[0].vendor != "cpu"]
        if wish["guard"]:
            return _guard(output, pairs, sources, controls, gpus, wish["guard"])
        if job is None:
            return _here(output, pairs, controls, gpus)
        return _job(output, job, pairs, sources, controls, gpus, wish)
    finally:
        controls.close()
        for source in sources:
            source.close()


def _insist_on_one_wish(job: str | None, *, restore: bool, **wish: Any) -> None:
    named = [
        name
        for name, asked in (
            ("--restore", restore),
            ("--guard", wish["guard"]),
            ("--apply", wish["apply"]),
            ("--measure", wish["measure"]),
        )
        if asked
    ]
    if len(named) > 1:
        raise CallerMistake(
            f"{' and '.join(named)} at once", expected="one of them", remedy="flatout power --help"
        )
    if job is not None and (restore or wish["guard"]):
        raise CallerMistake(
            f"{named[0]} with a job",
            expected=f"{named[0]} alone: it is for GPUs",
            remedy=f"flatout power {named[0]}" + (f" {wish['guard']} --gpu 0" if wish["guard"] else ""),
        )
    if job is None and (wish["apply"] or wish["measure"] or wish["caps"] or wish["html"]):
        raise CallerMistake(
            "no job was named", expected="a job's name or pid", remedy="flatout ps   # lists the jobs here"
        )


def _restore(output: Output, controls: "PowerControls") -> int:
    from flatout.monitor.power.claims import take_news
    from flatout.monitor.power.unfinished import restored_now
    from flatout.records.places import power_folder
    from flatout.records.power import PowerHere
    from flatout.report.power import draw_power_here

    folder = power_folder()
    notes = take_news(folder)
    outcomes, problems = restored_now(folder, controls, ("claim", "kept"))
    notes += problems
    if not outcomes and not notes:
        notes = ["no power limit is changed by Flatout here: there is nothing to put back"]
    here = PowerHere(restored=outcomes, notes=tuple(notes))
    if output.as_json:
        output.document("power", 1, here)
    else:
        draw_power_here(here, output.console())
    return EXIT_FINDING if problems else _code(outcomes)


def _here(output: Output, pairs: "Sequence[Pair]", controls: "PowerControls", gpus: tuple[int, ...]) -> int:
    from flatout.monitor.power.jobs import chosen
    from flatout.records.power import PowerHere
    from flatout.report.power import draw_power_here

    notes = [] if pairs else ["no GPU can be seen here (flatout doctor says why)"]
    if pairs:
        notes.append("flatout power JOB   # joules a step, and the cap that costs least")
    here = PowerHere(devices=_now(chosen(pairs, gpus), controls), notes=tuple(notes))
    if output.as_json:
        output.document("power", 1, here)
    else:
        draw_power_here(here, output.console())
    return EXIT_DONE


def _now(pairs: "Sequence[Pair]", controls: "PowerControls") -> "tuple[PowerNow, ...]":
    from flatout.monitor.power.claims import read_claims
    from flatout.monitor.power.jobs import power_now
    from flatout.records.places import power_folder

    kept, _ = read_claims(power_folder(), "kept")
    return tuple(power_now(pair, controls, kept) for pair in pairs)


def _job(
    output: Output,
    name: str,
    pairs: "Sequence[Pair]",
    sources: "Sequence[Any]",
    controls: "PowerControls",
    gpus: tuple[int, ...],
    wish: dict[str, Any],
) -> int:
    from flatout.monitor.power.jobs import watched
    from flatout.monitor.power.measuring import Measurer
    from flatout.report.power import draw_sweep
    from flatout.report.power_page import power_page
    from flatout.runtime.jobs_here import jobs_in
    from flatout.runtime.process_table import read_table
    from flatout.runtime.targets import job_for
    from flatout.runtime.who_holds import jobs_on

    table = read_table()
    jobs = jobs_on(pairs, table)
    if name.isdecimal() and not any(one.pid == int(name) for job in jobs for one in job.members):
        jobs = jobs_in(table, holders={int(name)})  # a pid is taken at its word
    found = job_for(name, jobs, command="power")
    _insist_on_a_gpu(pairs)
    job = watched(found, pairs, gpus)
    source = next(one for one in sources if one.vendor == job.devices[0].vendor)
    devices = _now([pair for pair in pairs if pair[0] in job.devices], controls)
    sweep = _swept(output, job, Measurer(job, source), controls, devices, wish)
    if wish["html"] is not None:
        leave_page(output, wish["html"], power_page(sweep))
    if output.as_json:
        output.document("power", 1, sweep)
    else:
        draw_sweep(sweep, output.console())
    return EXIT_FINDING if sweep.ended_early else _code(sweep.restored)


def _swept(
    output: Output,
    job: "Watched",
    measurer: Any,
    controls: "PowerControls",
    devices: "Sequence[PowerNow]",
    wish: dict[str, Any],
) -> "PowerSweep":
    import dataclasses

    from flatout.hardware.power_limits import PowerRefused
    from flatout.monitor.power.custody import PowerCustody
    from flatout.monitor.power.sweeping import Sweep, SweepWish, measured_only

    asked = SweepWish(
        slowdown=wish["slowdown"] / 100,
        caps_mw=wish["caps"],
        settle_s=wish["settle"],
        window_s=wish["window"],
        apply=wish["apply"],
    )
    with output.progress("measuring") as step:
        if wish["measure"]:
            return measured_only(job, measurer, asked, controls, devices)
        try:
            with PowerCustody(controls, notice=output.notice) as custody:
                measurer.beat = custody.beat
                swept = Sweep(job, measurer, custody, asked, step).run(devices)
        except PowerRefused as refused:
            measurer.beat = lambda: None
            return measured_only(job, measurer, asked, controls, devices, refused)
        return dataclasses.replace(swept, restored=custody.restored)


def _guard(
    output: Output,
    pairs: "Sequence[Pair]",
    sources: "Sequence[Any]",
    controls: "PowerControls",
    gpus: tuple[int, ...],
    mode: Any,
) -> int:
    import contextlib

    from flatout.monitor.power.custody import PowerCustody
    from flatout.monitor.power.jobs import chosen
    from flatout.monitor.thermal import ThermalGuard
    from flatout.records.thermal import GuardReport, ThermalEvent
    from flatout.report.power import draw_guard

    _insist_on_a_gpu(pairs)
    devices = [device for device, _ in chosen(pairs, gpus)]
    began = time.monotonic()
    events: deque[ThermalEvent] = deque(maxlen=_EVENTS_KEPT)
    counts = {"warned": 0, "capped": 0, "raised": 0, "cannot cap": 0}
    with contextlib.ExitStack() as stack:
        custody = stack.enter_context(PowerCustody(controls, notice=output.notice)) if mode == "cap" else None
        guard = ThermalGuard(devices, custody)
        output.notice(f"watching {len(devices)} GPUs until Ctrl-C")
        fresh = guard.events_at_start
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for event in fresh:
                    events.append(event)
                    counts[event.what] += 1
                    output.notice(f"{time.strftime('%H:%M:%S')}  GPU {event.index}  {event.text}")
                if custody is not None:
                    custody.beat()
                time.sleep(_LOOK_S)
                samples = [
                    sample
                    for source in sources
                    if (own := [device for device in devices if device.vendor == source.vendor])
                    for sample in source.sample(own)
                ]
                fresh = guard.look(samples)
    report = GuardReport(
        mode=mode,
        watched_s=time.monotonic() - began,
        warnings=counts["warned"],
        changes=counts["capped"] + counts["raised"],
        events=tuple(events),
        restored=custody.restored if custody is not None else (),
    )
    if output.as_json:
        output.document("power", 1, report)
    else:
        draw_guard(report, output.console())
    return _code(report.restored)


def _insist_on_a_gpu(pairs: "Sequence[Pair]") -> None:
    if not pairs:
        raise EnvironmentProblem(
            "no GPU can be seen here",
            expected="a GPU that tells what it draws",
            remedy="flatout doctor   # says why there is none",
        )


def _code(restored: "Sequence[LimitRestored]") -> int:
    return EXIT_FINDING if any(one.outcome == "failed" for one in restored) else EXIT_DONE
