"""`flatout limits`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options, leave_page, page_option, save_option, save_run


@click.command("limits", short_help=COMMANDS["limits"].purpose)
@click.option(
    "--device", help="cuda:0, cpu, mps, xpu:0 or a GPU's UUID. Default: the first GPU, else the CPU."
)
@click.option("--dtype", "dtypes", help="Only these precisions, as in bf16,fp8. Such a result is not kept.")
@click.option("--fresh", is_flag=True, help="Measure again, and replace what was kept.")
@click.option("--no-cache", is_flag=True, help="Neither read nor keep a result.")
@click.option("--no-cpu", is_flag=True, help="Leave out the CPU. Such a result is not kept.")
@click.option(
    "--ranks",
    type=click.IntRange(min=2),
    metavar="N",
    help="The link between so many GPUs (default: all of its kind), or on a CPU between so many processes.",
)
@click.option("--no-link", is_flag=True, help="Leave out the link between GPUs.")
@click.option("--accept-disturbed", is_flag=True, help="Keep the result even if the machine was busy.")
@page_option
@save_option
@common_options
def command(
    output: Output,
    device: str | None,
    dtypes: str | None,
    fresh: bool,
    no_cache: bool,
    no_cpu: bool,
    ranks: int | None,
    no_link: bool,
    accept_disturbed: bool,
    html: Path | None,
    save: bool,
) -> None:
    """What this card can really do, against its rated peaks.

    Measures matrix products in every precision that the device has, memory bandwidth, the link to the
    host, and what a launch and a synchronization cost, on random data, with device events. With several
    GPUs, also what they send each other: sums over all of them, and copies pair by pair. The result is
    kept per device, driver and torch version. Also writes a page with a roofline picture.

    \b
    Examples:
      flatout limits
      flatout limits --device cpu
      flatout limits --device cpu --ranks 4
      flatout limits --fresh --html limits.html
      flatout limits --json | jq .measured.matmul_flops_per_s
    """
    from flatout.limits.obtain import Request, obtain_limits, parse_dtypes
    from flatout.records.errors import CallerMistake, CannotWrite
    from flatout.report.limits import draw_limits
    from flatout.report.roofline import limits_page

    if no_link and ranks is not None:
        raise CallerMistake(
            f"both --no-link and --ranks {ranks}",
            expected="one of them: ranks are what a link is measured between",
            remedy=f"flatout limits --ranks {ranks}",
        )
    request = Request(
        device=device,
        dtypes=parse_dtypes(dtypes),
        fresh=fresh,
        use_cache=not no_cache,
        with_cpu=not no_cpu,
        accept_disturbed=accept_disturbed,
        with_link=not no_link,
        ranks=ranks,
    )
    with output.progress("finding devices") as step:
        limits, kept_at = obtain_limits(request, on_stage=step)
    if output.as_json:
        output.document("limits", 1, limits)
    else:
        draw_limits(limits, output.console())
    page = html or (kept_at.with_suffix(".html") if kept_at else None)
    if page is not None:
        try:
            leave_page(output, page, limits_page(limits))
        except CannotWrite as error:
            if html is not None:
                raise
            output.notice(f"no picture: {error.received}")
    if save:
        save_run(output, "limits", 1, limits)
