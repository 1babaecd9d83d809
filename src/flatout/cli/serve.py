"""`flatout serve`."""

from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Duration, Output, Size, common_options


def _pads(_context: click.Context, _option: click.Parameter, words: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            float(value)
        except ValueError:
            raise click.BadParameter("an input and what it is filled up with, such as ids=0") from None
        found[name] = value
    return found


@click.command("serve", short_help=COMMANDS["serve"].purpose)
@click.argument("target", required=False, metavar="MODULE:FACTORY | FILE")
@click.option("--llm", metavar="FOLDER", help="A language model of Hugging Face, from a folder.")
@click.option(
    "--engine",
    type=click.Choice(["flatout", "vllm"]),
    default="flatout",
    show_default=True,
    help="With --llm: what makes the text.",
)
@click.option(
    "--gpu", default="", metavar="NAME", help="With --engine vllm: plan for this GPU of `flatout gpus`."
)
@click.option("--gpus", "count", type=click.IntRange(min=1), help="With --engine vllm: use up to so many.")
@click.option("--dry-run", is_flag=True, help="With --engine vllm: the command and its reasons, not run.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="SPEC",
    help="An input of one item, such as x:float32[3,224,224] or ids:int64[1-512]; in their order.",
)
@click.option(
    "--pad",
    "pads",
    multiple=True,
    callback=_pads,
    metavar="NAME=VALUE",
    help="Items of different sizes share batches, filled up with this, if answers stay the same.",
)
@click.option("--device", default="", help="cuda, cuda:1 or cpu; default: a GPU where there is one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one."
)
@click.option(
    "--token",
    envvar="FLATOUT_SERVE_TOKEN",
    default="",
    help="Only for those who bring it (authorization: Bearer). Better in FLATOUT_SERVE_TOKEN.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="No batch larger than this.",
)
@click.option(
    "--latency",
    type=Duration(),
    metavar="TIME",
    help="What an accepted request may take; sets batch and queue.",
)
@click.option("--max-wait", type=Duration(), metavar="TIME", help="How long a request waits for company.")
@click.option("--queue", type=click.IntRange(min=1), help="How many may wait; more are answered with 429.")
@click.option(
    "--timeout", type=Duration(), default="60s", show_default=True, help="After this a request gets a 504."
)
@click.option("--max-body", type=Size(), default="64MiB", show_default=True, help="Of one request.")
@click.option(
    "--drain", type=Duration(), default="30s", show_default=True, help="After SIGTERM: for what was accepted."
)
@click.option("--rows", type=click.IntRange(min=1), help="With --llm: texts that are written at once.")
@click.option(
    "--context", type=click.IntRange(min=2), metavar="TOKENS", help="With --llm: of prompt and answer."
)
@common_options
def command(
    output: Output, target: str | None, llm: str | None, engine: str, dry_run: bool, **options: Any
) -> int:
    """Optimized inference behind HTTP.

    Serves what a function of yours returns (a torch module or any callable, with example inputs), an
    AOTInductor package (.pt2), a TorchScript file (.pt), or a language model. Requests become batches whose
    size is measured at the start; what cannot be answered in time is refused with 429 and a time to come
    back; SIGTERM lets it answer everything accepted. A request is one item, without a batch dimension.

    \b
    POST /predict            {"inputs": {"x": [...]}}; also .npy, safetensors, bare numbers
    POST /v1/completions, /v1/chat/completions; GET /v1/models     with --llm
    GET  /health /ready /metrics /openapi.json

    \b
    Examples:
      flatout serve model:make                         # make() of model.py returns (model, example inputs)
      flatout serve model.pt2 --input x:float32[3,224,224] --latency 50ms
      flatout serve model:make --input ids:int64[1-512] --pad ids=0
      flatout serve --llm ./Llama-3.2-1B --port 8080
      flatout serve --llm ./Llama-3.1-8B --engine vllm --dry-run
    """
    from flatout.cli.serving import serve
    from flatout.cli.serving_vllm import serve_with_vllm

    gpu, count = options.pop("gpu"), options.pop("count")
    if engine == "vllm":
        return serve_with_vllm(output, llm, dry_run=dry_run, gpu=gpu, count=count, options=options)
    if gpu or count:
        raise click.UsageError("--gpu and --gpus are for --engine vllm; --device is for others")
    return serve(output, target, llm, dry_run=dry_run, options=options)
