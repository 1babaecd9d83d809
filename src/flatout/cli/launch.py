"""`flatout launch`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_argument
from flatout.cli.options import Duration, Output, Size, common_options, typed
from flatout.records.places import DEFAULT_PLAN

if TYPE_CHECKING:
    from flatout.runtime.launching.request import LaunchRequest


@click.command("launch", short_help=COMMANDS["launch"].purpose, context_settings=JOB_SETTINGS)
@job_argument
@click.option("--to", "target", required=True, metavar="TARGET", help="slurm, kubernetes or skypilot.")
@click.option("--nodes", type=click.IntRange(min=1), help="Machines. Default: 1, or what torchrun is told.")
@click.option(
    "--gpus",
    type=click.IntRange(min=0),
    help="GPUs on each, with a process for each. Default: 1; 0 for none.",
)
@click.option("--gpu", metavar="NAME", help="Which: a name of `flatout gpus`, or its beginning: h100-80gb.")
@click.option("--gpu-name", default="", metavar="NAME", help="What they are called there, if otherwise.")
@click.option("--cpus", type=click.IntRange(min=1), help="Cores on each machine.")
@click.option(
    "--memory", type=Size(of_memory=True), metavar="SIZE", help="Memory of each machine, such as 64GiB."
)
@click.option(
    "--plan", "plan_path", metavar="FILE", help=f"The plan to run under.  [default: {DEFAULT_PLAN}]"
)
@click.option("--as-written", is_flag=True, help="Without a plan.")
@click.option(
    "--protect",
    "is_protected",
    is_flag=True,
    help="As in `flatout run`: saves a script that does not save, and goes on from there.",
)
@click.option("--module", "-m", "as_module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--python",
    metavar="PATH",
    help="The Python there, with torch and Flatout. Default: this one for slurm, else python.",
)
@click.option("--name", help="The job's name. Default: that of the script.")
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", help="Set in the job; may be repeated."
)
@click.option("--time", "time_s", type=Duration(), metavar="TIME", help="Limit of time: 24h, 90m.")
@click.option(
    "--grace",
    type=Duration(),
    default=120.0,
    metavar="TIME",
    help="From the word to save to the kill.  [default: 2m]",
)
@click.option(
    "--restarts",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Start an interrupted job again, so often at most. One that fails by itself stays failed.",
)
@click.option("--partition", default="", help="slurm: the partition.")
@click.option("--account", default="", help="slurm: who pays.")
@click.option("--qos", default="", help="slurm: the quality of service.")
@click.option("--image", default="", help="kubernetes, skypilot: an image with torch and Flatout.")
@click.option(
    "--checkpoints",
    default="checkpoints",
    metavar="FOLDER",
    help="kubernetes, skypilot: where the job saves; kept.  [default: checkpoints]",
)
@click.option("--namespace", default="", help="kubernetes: the namespace.")
@click.option(
    "--workdir", default="/workspace", help="kubernetes: the image's folder.  [default: /workspace]"
)
@click.option("--claim", default="", help="kubernetes: a volume claim that exists, for what is kept.")
@click.option(
    "--storage",
    type=Size(of_memory=True),
    default="100GiB",
    metavar="SIZE",
    help="kubernetes: else one so large.  [default: 100GiB]",
)
@click.option("--cloud", default="", metavar="CLOUD[/REGION]", help="skypilot: where. Default: the cheapest.")
@click.option("--spot", is_flag=True, help="skypilot: machines that may be taken away.")
@click.option("--bucket", default="", help="skypilot: the bucket for checkpoints; made if there is none.")
@click.option("--setup", default="", metavar="COMMANDS", help="skypilot: what installs torch and Flatout.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the file there.")
@click.option("--force", is_flag=True, help="Overwrite FILE whatever is in it.")
@click.option(
    "--submit/--dry-run", default=False, help="Hand it to sbatch, kubectl or sky.  [default: --dry-run]"
)
@common_options
def command(
    output: Output, words: tuple[str, ...], out: Path | None, force: bool, submit: bool, **options: Any
) -> int:
    """The same job on Slurm, Kubernetes or SkyPilot.

    Writes the file that the scheduler takes: the job as `flatout run` would run it here, under its plan, on
    as many machines as you like; under torchrun where there are several processes. A job that must make room
    gets SIGTERM and time to save, and starts again from what it saved. Only --submit hands it in.

    \b
    Examples:
      flatout launch --to slurm --gpus 8 --gpu h100-80gb --time 24h train.py --lr 3e-4
      flatout launch --to slurm --nodes 4 --gpus 8 --partition gpu --out train.sbatch train.py
      flatout launch --to kubernetes --gpus 8 --image team/train:1 --out train.yaml train.py
      flatout launch --to skypilot --gpus 8 --gpu h100 --spot --bucket my-runs \\
          --setup 'pip install -r requirements.txt' --out train.yaml train.py
      flatout launch --to slurm --submit -- torchrun --nproc-per-node 8 train.py
    """
    from flatout.records.errors import EXIT_DONE, EXIT_FINDING
    from flatout.report.launch import draw_launch
    from flatout.runtime.launching.launch import launch
    from flatout.runtime.launching.request import job_for

    _insist_on_sense(options["target"])
    if options["plan_path"] is None and not options["as_written"] and not Path(DEFAULT_PLAN).exists():
        options["as_written"] = True
        output.notice(
            f"flatout: there is no {DEFAULT_PLAN}, so the job is as written: `flatout tune` writes one"
        )
    with output.progress("checking the file"):
        job, notes = job_for(_request(words, **options))
        found = launch(job, notes, out=out, force=force, submit=submit)
    if output.as_json:
        output.document("launch", 1, found)
    else:
        if found.file is None:
            click.echo(found.text, nl=False)
        if not output.quiet:
            draw_launch(found, output.error_console())
    return EXIT_DONE if found.is_sound else EXIT_FINDING


def _insist_on_sense(target: str) -> None:
    """Refuse options that were typed although the target has no use for them."""
    from flatout.records.errors import UnknownName
    from flatout.records.launch import TARGETS
    from flatout.runtime.launching.request import insist_on_options_of

    if target not in TARGETS:
        raise UnknownName("target", target, TARGETS)
    insist_on_options_of(
        target, {flag.removeprefix("--"): flag for flag in typed().values() if flag.startswith("--")}
    )


def _request(
    words: tuple[str, ...],
    *,
    plan_path: str | None,
    as_written: bool,
    python: str | None,
    memory: int | None,
    time_s: float | None,
    grace: float,
    spot: bool,
    storage: int,
    target: str,
    **options: Any,
) -> "LaunchRequest":
    from flatout.records.launch import Settings
    from flatout.runtime.launching.request import LaunchRequest

    of_settings = ("partition", "account", "qos", "image", "checkpoints", "namespace", "workdir", "claim")
    settings = {name: options.pop(name) for name in (*of_settings, "cloud", "bucket", "setup")}
    if plan_path is None and not as_written:
        _insist_on_a_plan_for(("-m", *words) if options["as_module"] else words, target)
    return LaunchRequest(
        target=target,
        words=words,
        python=python or (sys.executable if target == "slurm" else "python"),
        folder=str(Path.cwd()),
        plan=None if as_written else plan_path or DEFAULT_PLAN,
        memory_bytes=memory,
        time_s=round(time_s) if time_s is not None else None,
        grace_s=round(grace),
        settings=Settings(is_spot=spot, storage_bytes=storage, **settings),
        **options,
    )


def _insist_on_a_plan_for(words: tuple[str, ...], target: str) -> None:
    """The plan that lies here must be this script's, where nobody named it."""
    from flatout.records.errors import CallerMistake
    from flatout.records.plan import read_plan
    from flatout.runtime.command import JobCommand
    from flatout.tune.fingerprints import fingerprint

    if target != "kubernetes" and words[0].endswith(".py") and not Path(words[0]).exists():
        return  # a name that is wrong is told as such; an image may have what is not here
    made_for = read_plan(Path(DEFAULT_PLAN)).job
    now = fingerprint(JobCommand(words=(), own_python=True, given=words), None, {})
    if made_for.is_of_another_script(now):
        raise CallerMistake(
            f"{DEFAULT_PLAN} was made for another script: {made_for.script}",
            expected=f"a plan for {now.script}",
            remedy=f"flatout tune {now.script}; or --plan {DEFAULT_PLAN}, which uses it all the same; "
            "or --as-written",
        )
