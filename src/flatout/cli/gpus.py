"""`flatout gpus`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options


@click.command("gpus", short_help=COMMANDS["gpus"].purpose)
@click.argument("names", nargs=-1)
@click.option("--min-memory", type=click.FloatRange(min=0), help="Only GPUs with at least this many GB.")
@click.option(
    "--vendor",
    type=click.Choice(["nvidia", "amd", "apple", "intel"], case_sensitive=False),
    help="Only this vendor's GPUs.",
)
@click.option("--priced", is_flag=True, help="Only GPUs that the price table knows.")
@click.option("--prices", type=click.Path(path_type=Path), help="Your own price table; also FLATOUT_PRICES.")
@click.option("--price-template", is_flag=True, help="Print the shipped price table, to save and edit.")
@common_options
def command(
    output: Output,
    names: tuple[str, ...],
    min_memory: float | None,
    vendor: str | None,
    priced: bool,
    prices: Path | None,
    price_template: bool,
) -> None:
    """GPUs that people use: rated dense peaks, memory, bandwidth, link, power, price.

    NAMES are ids such as h100-80gb-sxm or rtx4090, or their beginnings. Rates are the vendors' dense
    figures, never the sparse ones; each entry names its source (--json shows it). Prices are rough list
    prices of the date shown: replace them with what you pay.

    \b
    Examples:
      flatout gpus
      flatout gpus h100 h200 b200
      flatout gpus --min-memory 40 --priced
      flatout gpus --price-template > prices.toml
      flatout gpus --prices prices.toml
    """
    from flatout.hardware import catalogue
    from flatout.report.gpus import GpuRow, draw_gpus

    if price_template:
        click.echo(catalogue.price_template(), nl=False)
        return
    table = catalogue.price_table(prices)
    entries = catalogue.select(names)
    rows = [GpuRow(gpu=entry, price=table.cheapest(entry.id)) for entry in entries]
    rows = [row for row in rows if min_memory is None or row.gpu.memory_bytes >= min_memory * 1e9]
    rows = [row for row in rows if vendor is None or row.gpu.vendor == vendor]
    rows = [row for row in rows if row.price is not None or not priced]
    if output.as_json:
        output.document("gpus", 1, {"as_of": table.as_of, "currency": table.currency, "gpus": rows})
    else:
        draw_gpus(rows, table, output.console())
