"""`flatout profile`."""

from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, request_for
from flatout.cli.log_to import folder_of_traces, log_to_option
from flatout.cli.options import Output, common_options, new_run

if TYPE_CHECKING:
    from flatout.records.profile import Profile
    from flatout.records.runs import RunFolder
    from flatout.records.trace import TraceSummary
    from flatout.runtime.profiling import ProfileRequest


@click.command("profile", short_help=COMMANDS["profile"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option("--steps", type=click.IntRange(min=1), help="Stop after so many updates, steady or not.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="At most so long after the first update; less when the step time is known to 1 %.",
)
@click.option("--loader", is_flag=True, help="Also try DataLoader settings, each in the job itself.")
@click.option("--seed", type=int, help="Seed all random generators at start, to compare runs.")
@click.option("--nvtx", is_flag=True, help="NVTX ranges for epoch, data, forward, loss, backward, optimizer.")
@click.option("--no-trace", is_flag=True, help="Don't record steps under torch's profiler at the end.")
@click.option("--stacks", is_flag=True, help="Record Python's stacks too, for Perfetto and TensorBoard.")
@click.option("--nsys", is_flag=True, help="Also some steps under Nsight Systems, as it sees them.")
@click.option("--ncu", is_flag=True, help="Also one step under Nsight Compute: what binds each kernel.")
@click.option("--plan", metavar="FILE", help="With the levers of a plan on: what is left after tuning.")
@click.option(
    "--against", metavar="RUN", help="Say what became slower since an earlier profile, or the latest."
)
@click.option("--infer", is_flag=True, help="The script infers: a step is a call of its model.")
@log_to_option("tensorboard:DIR", "Put what was recorded where TensorBoard finds it.")
@click.option("--no-limits", is_flag=True, help="Don't measure the device's limits where none are kept.")
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    steps: int | None,
    seconds: float,
    loader: bool,
    seed: int | None,
    nvtx: bool,
    no_trace: bool,
    stacks: bool,
    nsys: bool,
    ncu: bool,
    plan: str | None,
    against: str | None,
    log_to: str,
    no_limits: bool,
    **job: Any,
) -> int:
    """Where a script's time goes, and how far it is from the device's limit.

    Runs the script, unchanged, for a few steps, and ends it at a step boundary. Nothing that it writes
    reaches your files, and trackers stay offline. What was found is kept in .flatout/runs, with a page to
    look at. Exits with 4 when the script crashed, hung or left with an exit code of its own, also where its
    first steps could be shown.

    \b
    Examples:
      flatout profile train.py --lr 3e-4
      flatout profile --steps 50 train.py
      flatout profile --loader train.py
      flatout profile --plan flatout.toml train.py
      flatout profile --against latest train.py
      flatout profile --nsys --ncu train.py
      flatout profile --log-to tensorboard:runs train.py
      flatout profile -m mypackage.train --config small.yaml
      flatout profile -- torchrun --nproc-per-node 2 train.py
      flatout profile --json train.py | jq .step_ms
    """
    from flatout.records.errors import EXIT_DONE, EXIT_JOB, FlatoutError
    from flatout.runtime.profiling import profile_job
    from flatout.runtime.sweep import sweep_loader

    request = request_for(
        words,
        steps=steps,
        seconds=seconds,
        seed=seed,
        nvtx=nvtx,
        measure_limits=not no_limits,
        record="" if no_trace else "stacks" if stacks else "kernels",
        **job,
    )
    if plan is not None:
        request = _under(plan, request)
    earlier = _earlier(against) if against is not None else None
    traces = folder_of_traces(log_to)
    tools = [name for name, wanted in (("nsys", nsys), ("ncu", ncu)) if wanted]
    outside = None
    if tools:
        from flatout.runtime.outside_tools import find_tool, look_from_outside

        for tool in tools:
            find_tool(tool)
    with new_run(output, "profile") as folder, output.progress("starting the script") as progress:
        profile = profile_job(request, folder.manifest.id, folder.path, progress)
        profile = _kept(_with_findings(profile, earlier), folder)
        if loader:
            swept = sweep_loader(request, profile, folder.path, progress)
            profile = _kept(_with_findings(swept, earlier), folder)
        if tools:
            try:
                outside = look_from_outside(tools, request, profile, folder.path, progress)
            except FlatoutError:
                if not output.as_json:  # what was found without the tool is found
                    _show(profile, None, output)
                raise
            folder.write("trace", 1, outside)
    _show(profile, outside, output)
    if "against" in profile.unknown and not output.as_json:
        output.notice(f"not compared with {against}: {profile.unknown['against']}")
    if traces is not None:
        _place(profile, traces, output)
    if not output.as_json:
        output.notice(f"the picture: {profile.report}")
        output.notice(f"kept in {folder.path}; `flatout report {folder.manifest.id}` shows it again")
    return EXIT_DONE if profile.trial.outcome in ("stopped", "ended") else EXIT_JOB


def _place(profile: "Profile", traces: str, output: Output) -> None:
    """Where TensorBoard finds them."""
    from pathlib import Path

    from flatout.analyze.recorded import recordings
    from flatout.monitor.sinks.traces import place_traces

    placed = place_traces(Path(traces), profile.run, recordings(Path(profile.trial.folder)))
    output.notice(f"for `tensorboard --logdir {traces}`: {len(placed)} recordings")


def _show(profile: "Profile", outside: "TraceSummary | None", output: Output) -> None:
    """The profile, and what another tool has seen from outside."""
    from flatout.report.profile import draw_profile
    from flatout.report.trace import draw_trace

    if output.as_json:
        more = {"outside": outside} if outside is not None else {}
        output.document("profile", 1, {**vars(profile), **more} if more else profile)
        return
    draw_profile(profile, output.console())
    if outside is not None:
        output.console().print()
        draw_trace(outside, output.console())


def _kept(profile: "Profile", folder: "RunFolder") -> "Profile":
    """The document first: a page that cannot be written must not cost a profile."""
    import dataclasses

    from flatout.records.atomic import write_atomically
    from flatout.report.profile_page import profile_page

    page = folder.path / "report.html"
    profile = dataclasses.replace(profile, report=str(page))
    folder.write("profile", 1, profile)
    write_atomically(page, profile_page(profile).encode("utf-8", "replace"))
    return profile


def _under(plan: str, request: "ProfileRequest") -> "ProfileRequest":
    """The same job with a plan's levers on from its first step."""
    from pathlib import Path

    from flatout.records.plan import read_plan
    from flatout.tune.request import under

    return under(request, read_plan(Path(plan)).levers)


def _earlier(run: str) -> "Profile":
    """Before anything is run: a name that is wrong must not cost a profile."""
    from pathlib import Path

    from flatout.records.places import PROJECT_FOLDER
    from flatout.records.profile import Profile
    from flatout.records.runs import find_run

    return find_run(Path(PROJECT_FOLDER), run, of="profile").read("profile", 1, Profile)


def _with_findings(profile: "Profile", earlier: "Profile | None") -> "Profile":
    import dataclasses
    from pathlib import Path

    from flatout.diagnose.engine import diagnose
    from flatout.diagnose.rules.regression import not_comparable
    from flatout.runtime.peaks import peaks_for
    from flatout.runtime.profiling import learned_in

    about = learned_in(Path(profile.trial.folder).parent)
    on_gpu = (profile.device or "").startswith("cuda")
    peaks = peaks_for(about.get("device_uuid"), on_gpu=on_gpu, measure=False)
    why = not_comparable(profile, earlier) if earlier is not None else ""
    return dataclasses.replace(
        profile,
        findings=diagnose(profile, about, peaks, earlier),
        unknown={**profile.unknown, **({"against": why} if why else {})},
    )
