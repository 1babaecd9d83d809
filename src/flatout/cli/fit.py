"""`flatout fit`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.jobs import JOB_SETTINGS, job_options, request_for
from flatout.cli.options import Output, Place, Size, common_options, new_run, refuse_beside, typed

if TYPE_CHECKING:
    from flatout.records.fit import Fit
    from flatout.records.runs import RunFolder
    from flatout.runtime.profiling import ProfileRequest


def _sizes(_context: click.Context, _option: click.Parameter, value: str) -> list[int]:
    words = value.replace(",", " ").split()
    if not all(word.isdecimal() and int(word) for word in words):
        raise click.BadParameter("batch sizes with commas between them, such as 1,8,32")
    return [int(word) for word in words]


@click.command("fit", short_help=COMMANDS["fit"].purpose, context_settings=JOB_SETTINGS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
@click.option(
    "--hf",
    "configs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="A language model of transformers by its config.json, without weights; several make a table.",
)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    metavar="TOKENS",
    help="With --hf: how long a sequence is.",
)
@click.option(
    "--load",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A model's file or folder: what loading it takes. Never unpickled, no tensor is read.",
)
@click.option(
    "--gpu", "gpus", default="", metavar="NAMES", help="GPUs of `flatout gpus`, with commas between them."
)
@click.option(
    "--gpus",
    "several",
    type=click.IntRange(min=2),
    metavar="N",
    help="Over so many GPUs of each kind: how it could be split, what moves, what that costs.",
)
@click.option(
    "--link",
    type=Size(of_memory=True),
    metavar="SIZE",
    help="With --gpus: what two GPUs send each other in a second, one way, such as 300GB. Default: as "
    "`flatout limits` measured it, where this machine has such GPUs; else rated.",
)
@click.option(
    "--step-ms",
    type=click.FloatRange(min=0, min_open=True),
    help="With --gpus: what a step takes on one GPU (`flatout profile`); else speedups are unknown.",
)
@click.option(
    "--max-memory",
    type=Size(of_memory=True),
    metavar="SIZE",
    help="Must it fit into this, such as 24GiB? Says how it could.",
)
@click.option(
    "--batch",
    "sizes",
    default="",
    callback=_sizes,
    metavar="SIZES",
    help="Batch sizes to try by the script's own option, such as 1,8,32.",
)
@click.option(
    "--snapshot",
    type=Place("snapshot"),
    metavar="FILE",
    help="Write every request up to the peak for torch's own viewer, pytorch.org/memory_viz.",
)
@job_options
@common_options
def command(
    output: Output,
    words: tuple[str, ...],
    gpus: str,
    several: int | None,
    link: int | None,
    step_ms: float | None,
    max_memory: int | None,
    sizes: list[int],
    snapshot: Path | None,
    files: tuple[Path, ...],
    configs: tuple[Path, ...],
    context: int,
    **job: Any,
) -> int:
    """Will it fit, and on which GPUs; no GPU needed.

    Runs the unmodified training script for a few updates on tensors that have no memory, notes whatever they
    would take and give back, and puts that through a model of torch's allocator. Nothing is computed, so
    losses are made up; compiled code counts as written. Nothing that the script writes reaches your files.

    Where it does not fit into what you name, ways to make it fit are tried in the same manner: half
    precision, blocks computed again, other optimizers, parts of a batch, several GPUs; the cheapest first.

    A page with the picture lies in the run folder: memory over the updates, and the calls that hold it.

    \b
    Examples:
      flatout fit train.py --batch-size 32
      flatout fit --gpu l4,rtx4090,h100-80gb-sxm train.py
      flatout fit --max-memory 24GiB train.py
      flatout fit --gpu h100-80gb-sxm --gpus 8 --step-ms 250 train.py
      flatout fit --batch 8,16,32 train.py
      flatout fit --snapshot memory.pickle train.py
      flatout fit --load model.safetensors --gpu l4
      flatout fit --hf llama/config.json --hf qwen/ --batch 1,8 --context 4096 --gpu l4,h100-80gb-sxm
      flatout fit --json train.py | jq .reserved_bytes
    """
    from flatout.hardware.catalogue import select
    from flatout.memory.fit import Several, fit_job
    from flatout.records.errors import EXIT_DONE, EXIT_FINDING
    from flatout.report.fit import draw_fit, draw_sizes

    named = gpus.replace(",", " ").split()
    select(named)  # a wrong name is told before anything is begun
    if snapshot is not None:
        _insist_on_one_job(snapshot, is_one=bool(words) and len(sizes) < 2)
    if files:
        refuse_beside("--load", ("files", "gpus", "python"))
        return _load(output, files, named)
    if configs:
        refuse_beside("--hf", ("configs", "context", "gpus", "sizes", *(job.keys() - {"as_module"})))
        return _models(output, configs, sizes or [1], context, named, job)
    if not words:
        raise click.UsageError("Missing argument 'SCRIPT [ARGS]...', or --load FILE.")
    _insist_on_company(configs=configs, several=several)
    request = request_for(words, **job)
    jobs: list[tuple[int | None, ProfileRequest]] = [(size, _with_size(request, size)) for size in sizes]
    over = None
    if several is not None:
        over = Several(several, link, step_ms / 1000 if step_ms is not None else None)
    found = []
    for size, one in jobs or [(None, request)]:
        text = f"imagining a GPU, batch {size}" if size is not None else "imagining a GPU"
        with new_run(output, "fit") as folder, output.progress(text) as progress:
            fit = fit_job(
                one,
                folder.manifest.id,
                folder.path,
                progress,
                gpus=named,
                max_memory_bytes=max_memory,
                snapshot=snapshot,
                several=over,
            )
            fit = _kept(fit, folder)
        found.append((size, fit))
    if output.as_json:
        documents = [fit for _, fit in found]
        output.document("fit", 1, documents[0] if not sizes else {"sizes": sizes, "fits": documents})
    elif sizes:
        draw_sizes(found, output.console())
    else:
        draw_fit(found[0][1], output.console())
    if not output.as_json:
        for size, fit in found:
            of = f" of batch {size}" if size is not None else ""
            output.notice(f"the picture{of}: {fit.report}")
        if snapshot is not None:
            output.notice(f"for pytorch.org/memory_viz: {snapshot}")
    return EXIT_DONE if any(fit.peak_bytes for _, fit in found) else EXIT_FINDING


def _insist_on_company(**given: Any) -> None:
    """Options that need another one: a speed of links says nothing about one GPU."""
    beside = {"context": ("--hf", "configs"), "link": ("--gpus", "several"), "step_ms": ("--gpus", "several")}
    for name, flag in typed().items():
        needed, key = beside.get(name, ("", ""))
        if needed and not given[key]:
            raise click.UsageError(f"{flag} is for {needed}")


def _kept(fit: "Fit", folder: "RunFolder") -> "Fit":
    """The document first: a page that cannot be written must not cost a fit."""
    import dataclasses

    from flatout.records.atomic import write_atomically
    from flatout.report.fit_page import fit_page

    page = folder.path / "report.html"
    fit = dataclasses.replace(fit, report=str(page))
    folder.write("fit", 1, fit)
    write_atomically(page, fit_page(fit).encode("utf-8", "replace"))
    return fit


def _insist_on_one_job(snapshot: Path, *, is_one: bool) -> None:
    """Before anything runs: there must be one job to write of."""
    from flatout.records.errors import CallerMistake

    if not is_one:
        raise CallerMistake(
            "--snapshot was given without a script, or with several batch sizes",
            expected="one script with one batch size: a snapshot is of one job",
            remedy=f"flatout fit --snapshot {snapshot} train.py",
        )


def _models(
    output: Output,
    configs: tuple[Path, ...],
    sizes: list[int],
    context: int,
    gpus: list[str],
    job: dict[str, Any],
) -> int:
    """Each model for each use, with each batch: a table."""
    from flatout.memory.fit import fit_job
    from flatout.records.errors import EXIT_DONE, CallerMistake, JobFailed
    from flatout.records.places import PROJECT_FOLDER
    from flatout.report.fit import draw_models

    for path in configs:
        if not (path / "config.json" if path.is_dir() else path).is_file():
            raise CallerMistake(
                f"{path}: there is no such configuration",
                expected="a config.json of a model of transformers, or the folder that it lies in",
                remedy="it is the small file beside a model's weights",
            )
    job = {**job, "as_module": True}
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    problem: JobFailed | None = None
    for path in configs:
        whole = path.resolve()
        name = (whole.parent if whole.name == "config.json" else whole).name
        for use in ("training", "lora", "inference"):
            for size in sizes:
                row = {"model": name, "use": use, "batch": size, "context": context}
                words = ("flatout.entry.hugging_face_job", str(path), use, str(size), str(context))
                text = f"imagining {name}, {use}, batch {size}"
                try:
                    with new_run(output, "fit") as folder, output.progress(text) as progress:
                        fit = fit_job(
                            request_for(words, **job),
                            folder.manifest.id,
                            folder.path,
                            progress,
                            gpus=gpus,
                            look_for_ways=False,
                        )
                        rows.append({**row, "fit": _kept(fit, folder)})
                except JobFailed as error:  # one row less; the others stand
                    problem = error
                    failed.append({**row, "reason": error.received.splitlines()[-1].strip()})
    if problem is not None and not rows:
        raise problem
    if output.as_json:
        output.document("fit", 1, {"models": rows, **({"left_out": failed} if failed else {})})
    else:
        draw_models(rows, output.console())
        for one in failed:
            output.notice(f"left out: {one['model']}, {one['use']}, batch {one['batch']}: {one['reason']}")
        output.notice(f"the pictures: {PROJECT_FOLDER}/runs/*-fit-*/report.html, a page for each row")
    return EXIT_DONE


def _load(output: Output, files: tuple[Path, ...], gpus: list[str]) -> int:
    from flatout.memory.load import load_files
    from flatout.records.errors import EXIT_DONE
    from flatout.report.load import draw_load

    found = load_files(files, gpus)
    if output.as_json:
        output.document("load", 1, found)
    else:
        draw_load(found, output.console())
    return EXIT_DONE


def _with_size(request: "ProfileRequest", size: int) -> "ProfileRequest":
    import dataclasses

    from flatout.records.errors import CallerMistake
    from flatout.tune.batching import options, with_batch_size

    source = next(options(request.command), None)
    if source is None:
        raise CallerMistake(
            "the script has no option for its batch size that could be found",
            expected="an argument such as --batch-size",
            remedy=f"flatout fit {request.command.typed()}   # once for each size, as you would set it",
        )
    command = with_batch_size(request.command, source.choice(size, size))
    return dataclasses.replace(request, command=command)
