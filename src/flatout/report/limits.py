"""`limits` for a terminal: measured beside rated, then the products by size, then the CPU, then links."""

from rich.console import Console
from rich.table import Table

from flatout.records.limits import Limits, MatmulResult
from flatout.records.rated import Dtype
from flatout.records.words import byte_rate, duration, flop_rate, memory_size, percent, three_digits
from flatout.report.link import draw_link
from flatout.report.plain import inert, is_narrow, line

_BANDWIDTHS = (
    ("memory copy", "memory_copy_bytes_per_s"),
    ("memory read", "memory_read_bytes_per_s"),
    ("memory triad", "memory_triad_bytes_per_s"),
)
_LINKS = (
    ("to device, pinned", "h2d_pinned_bytes_per_s"),
    ("to device, pageable", "h2d_pageable_bytes_per_s"),
    ("to host, pinned", "d2h_pinned_bytes_per_s"),
    ("to host, pageable", "d2h_pageable_bytes_per_s"),
)
_COSTS = (
    ("launch of a small kernel", "launch_s"),
    (".item()", "item_s"),
    ("kernel in a replayed graph", "graph_node_s"),
)
Row = tuple[str, str, str, str, str]


def draw_limits(limits: Limits, console: Console) -> None:
    """Print the tables; narrow terminals get one line per figure."""
    device = limits.device
    memory = f", {memory_size(device.memory_total_bytes)}" if device.memory_total_bytes else ""
    driver = f", driver {device.driver_version}" if device.driver_version else ""
    console.print(line(f"{device.name}{memory}{driver}, torch {device.torch_version}", "bold"))
    console.print()
    _draw_rows(_rows(limits), console)
    _draw_sizes(limits.matmuls, console)
    _draw_cpu(limits, console)
    draw_link(limits, console)
    for note in _notes(limits):
        console.print(line(note, "dim"))


def _rows(limits: Limits) -> list[Row]:
    measured, rated = limits.measured, limits.rated
    rows: list[Row] = []
    for dtype, rate in measured.matmul_flops_per_s.items():
        peak = rated.dense_flops_per_s.get(dtype) if rated else None
        lasting = measured.matmul_sustained_flops_per_s.get(dtype)
        rows.append(
            (
                f"{dtype} products",
                operations(dtype, rate),
                operations(dtype, lasting) if lasting else "",
                operations(dtype, peak) if peak else "",
                percent(rate / peak) if peak else "",
            )
        )
    for label, field in (*_BANDWIDTHS, *_LINKS):
        rate = getattr(measured, field)
        if rate is not None:
            peak = None
            if rated is not None:
                is_memory = field.startswith("memory")
                peak = rated.memory_bytes_per_s if is_memory else rated.host_link_bytes_per_s
            share = percent(rate / peak) if peak else ""
            rows.append((label, byte_rate(rate), "", byte_rate(peak) if peak else "", share))
    for label, field in _COSTS:
        seconds = getattr(measured, field)
        if seconds is not None:
            rows.append((label, duration(seconds), "", "", ""))
    return rows


def operations(dtype: Dtype, rate: float) -> str:
    """A rate in the unit that fits the precision: integers are not FLOPs."""
    return flop_rate(rate).replace("FLOP", "OP") if dtype == "int8" else flop_rate(rate)


def _draw_rows(rows: list[Row], console: Console) -> None:
    sustained = any(row[2] for row in rows)
    rated = any(row[3] for row in rows)
    if is_narrow(console):
        for label, value, lasting, peak, share in rows:
            extra = [f"sustained {lasting}"] if lasting else []
            extra += [f"{share} of {peak}"] if peak else []
            console.print(line(f"{label}: {value}" + (f" ({', '.join(extra)})" if extra else "")))
        console.print()
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("measured", justify="right")
    if sustained:
        table.add_column("sustained", justify="right")
    if rated:
        table.add_column("rated", justify="right")
        table.add_column("of rated", justify="right")
    for label, value, lasting, peak, share in rows:
        table.add_row(label, value, *([lasting] if sustained else []), *([peak, share] if rated else []))
    console.print(table)
    console.print()


def _draw_sizes(matmuls: tuple[MatmulResult, ...], console: Console) -> None:
    """Products by size: small ones are far from the peak, and that surprises people."""
    sizes = list(dict.fromkeys((result.m, result.n, result.k) for result in matmuls))
    if len(sizes) < 2 or is_narrow(console):
        return
    floats = [r.flops_per_s for r in matmuls if r.dtype != "int8"] or [r.flops_per_s for r in matmuls]
    unit, scale = ("TFLOP/s", 1e12) if max(floats) >= 1e12 else ("GFLOP/s", 1e9)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(f"{unit} by size")
    for m, n, k in sizes:
        table.add_column(str(m) if m == n == k else f"{m}x{n}x{k}", justify="right")
    for dtype in dict.fromkeys(result.dtype for result in matmuls):
        by_size = {(r.m, r.n, r.k): r.flops_per_s for r in matmuls if r.dtype == dtype}
        label = f"int8, {unit.replace('FLOP', 'OP')}" if dtype == "int8" else dtype
        table.add_row(
            label, *(three_digits(by_size[size] / scale) if size in by_size else "" for size in sizes)
        )
    console.print(table)
    console.print()


def _draw_cpu(limits: Limits, console: Console) -> None:
    if limits.cpu is None:
        return
    host = limits.cpu
    figures = [
        f"{dtype} {operations(dtype, rate)}" for dtype, rate in host.measured.matmul_flops_per_s.items()
    ]
    if host.measured.memory_bytes_per_s is not None:
        figures.append(f"memory {byte_rate(host.measured.memory_bytes_per_s)}")
    console.print(line(f"The CPU beside it ({inert(host.device.name)}): {', '.join(figures)}"))
    shared = [d for d in ("bf16", "fp32") if d in limits.measured.matmul_flops_per_s]
    for dtype in shared:
        own = host.measured.matmul_flops_per_s.get(dtype)
        if own:
            times = limits.measured.matmul_flops_per_s[dtype] / own
            console.print(line(f"{dtype} products are {three_digits(times)} times faster on the device."))
    console.print()


def _notes(limits: Limits) -> list[str]:
    notes = []
    if limits.rated is not None:
        notes.append(f"rated: dense peaks of {limits.rated.name}, from {limits.rated.source}")
    elif limits.device.vendor != "cpu":
        notes.append(f"rated: unknown ({limits.rated_reason})")
    if limits.measured.matmul_sustained_flops_per_s:
        notes.append("measured: short bursts after a rest; sustained: after a second without a pause")
    clocks = limits.clocks
    if clocks.clock_compute_max_hz is not None and clocks.clock_compute_min_hz is not None:
        low, high = clocks.clock_compute_min_hz // 10**6, clocks.clock_compute_max_hz // 10**6
        reasons = clocks.throttle_reasons
        held = "" if reasons is None else f", held down by {', '.join(reasons) or 'nothing'}"
        notes.append(f"while measuring: clocks {low} to {high} MHz{held}")
    for name, reason in limits.measured.unknown.items():
        if name.startswith("matmul_flops_per_s."):
            notes.append(f"{name.removeprefix('matmul_flops_per_s.')}: not measured ({reason})")
    if limits.disturbed:
        notes.append(f"DISTURBED: {limits.disturbed}. Figures may be too low; repeat it on a quiet machine.")
    when = limits.measured_at.strftime("%Y-%m-%d %H:%M UTC")
    if limits.from_cache:
        notes.append(f"measured on {when}, kept since; --fresh measures again")
    else:
        notes.append(f"measured in {limits.took_s:.0f} s")
    return notes
