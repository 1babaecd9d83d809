"""`gpus` for a terminal: the catalogue as a table."""

import dataclasses

from rich.console import Console
from rich.table import Table

from flatout.records.rated import Dtype, Price, PriceTable, RatedGpu
from flatout.records.words import byte_rate, three_digits
from flatout.report.plain import is_narrow, line

_SHOWN: tuple[Dtype, ...] = ("fp32", "tf32", "bf16", "fp8")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuRow:
    """A GPU and its lowest price in the table."""

    gpu: RatedGpu
    price: Price | None


def draw_gpus(rows: list[GpuRow], prices: PriceTable, console: Console) -> None:
    """Print the rows, and the date of the prices."""
    if not rows:
        console.print(line("no GPU fits"))
        return
    if is_narrow(console):
        for row in rows:
            console.print(line(f"{row.gpu.id}: {_gigabytes(row)}, bf16 {_rate(row, 'bf16')}, {_price(row)}"))
    else:
        console.print(_table(rows))
    console.print(
        line("Rated dense TFLOP/s. A gap: not published, or the card has no hardware for it.", "dim")
    )
    console.print(line(f"Lowest price per GPU hour as of {prices.as_of}; yours may differ.", "dim"))


def _table(rows: list[GpuRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("id", no_wrap=True)
    for heading in ("memory", "bandwidth", *_SHOWN, "W", "$/h"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.gpu.id,
            _gigabytes(row),
            byte_rate(row.gpu.memory_bandwidth_bytes_per_s),
            *(_rate(row, dtype) for dtype in _SHOWN),
            f"{row.gpu.tdp_w:.0f}" if row.gpu.tdp_w else "",
            _price(row),
        )
    return table


def _gigabytes(row: GpuRow) -> str:
    count = row.gpu.memory_bytes
    return f"{count >> 30} GB" if count % (1 << 30) == 0 else f"{count / 1e9:.0f} GB"


def _rate(row: GpuRow, dtype: Dtype) -> str:
    rate = row.gpu.dense_flops_per_s.get(dtype)
    return three_digits(rate / 1e12) if rate else ""


def _price(row: GpuRow) -> str:
    return f"{row.price.usd_per_gpu_hour:.2f}" if row.price else ""
