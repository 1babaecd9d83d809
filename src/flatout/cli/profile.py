"""`flatout profile`."""

from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument, job_options, new_run, request_for
from flatout.cli.options import Output, common_options

if TYPE_CHECKING:
    from flatout.records.finding import Finding
    from flatout.records.profile import Profile


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
    no_limits: bool,
    **job: Any,
) -> int:
    """Where a script's time goes, and how far it is from the device's limit.

    Runs the script, unchanged, for a few steps, and ends it at a step boundary. Nothing that it writes
    reaches your files, and trackers stay offline. What was found is kept in .flatout/runs. Exits with 4 when
    the script crashed, hung or left with an exit code of its own, also where its first steps could be shown.

    \b
    Examples:
      flatout profile train.py --lr 3e-4
      flatout profile --steps 50 train.py
      flatout profile --loader train.py
      flatout profile -m mypackage.train --config small.yaml
      flatout profile -- torchrun --nproc-per-node 2 train.py
      flatout profile --json train.py | jq .step_ms
    """
    import dataclasses

    from flatout.records.errors import EXIT_DONE, EXIT_JOB
    from flatout.report.profile import draw_profile
    from flatout.runtime.profiling import profile_job
    from flatout.runtime.sweep import sweep_loader

    request = request_for(
        words, steps=steps, seconds=seconds, seed=seed, nvtx=nvtx, measure_limits=not no_limits, **job
    )
    with new_run(output, "profile") as folder, output.progress("starting the script") as progress:
        profile = profile_job(request, folder.manifest.id, folder.path, progress)
        profile = dataclasses.replace(profile, findings=_findings(profile))
        folder.write("profile", 1, profile)
        if loader:
            profile = sweep_loader(request, profile, folder.path, progress)
            folder.write("profile", 1, profile)
    if output.as_json:
        output.document("profile", 1, profile)
    else:
        draw_profile(profile, output.console())
        output.notice(f"kept in {folder.path}; `flatout report {folder.manifest.id}` shows it again")
    return EXIT_DONE if profile.trial.outcome in ("stopped", "ended") else EXIT_JOB


def _findings(profile: "Profile") -> "tuple[Finding, ...]":
    from pathlib import Path

    from flatout.analyze.steps import read_ranks
    from flatout.diagnose.engine import diagnose
    from flatout.runtime.peaks import peaks_for

    about = read_ranks(Path(profile.trial.folder))[0].about
    on_gpu = (profile.device or "").startswith("cuda")
    return diagnose(profile, about, peaks_for(about.get("device_uuid"), on_gpu=on_gpu, measure=False))
