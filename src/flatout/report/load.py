"""`fit --load` for a terminal: what is in the files, what loading takes, and how it takes less."""

from rich.console import Console
from rich.table import Table

from flatout.records.load import Load
from flatout.records.words import memory_size
from flatout.report.plain import inert, line

_BAR = 24
_FILES_SHOWN = 4
_VERDICTS = {True: ("fits", "green"), False: ("does not fit", "red"), None: ("too close to say", "yellow")}


def draw_load(load: Load, console: Console) -> None:
    """Print it all."""
    _draw_files(load, console)
    console.print()
    _draw_contents(load, console)
    console.print()
    _draw_host(load, console)
    console.print()
    _draw_gpus(load, console)
    if load.leaner:
        console.print()
        _draw_leaner(load, console)
    console.print()
    for note in load.notes:
        console.print(line(inert(note), "dim"))
    console.print(line(f"only headers were read; it took {load.took_s:.1f} s", "dim"))


def _draw_files(load: Load, console: Console) -> None:
    size = memory_size(sum(file.file_bytes for file in load.files))
    count = len(load.files)
    files = f"{count} files" if count > 1 else inert(load.files[0].path)
    console.print(line(f"{files}: {size}, {load.tensor_count} tensors", "bold"))
    for file in load.files[:_FILES_SHOWN] if count > 1 else ():
        console.print(line(f"  {inert(file.path)}  {memory_size(file.file_bytes)}  {file.format}"))
    if count > _FILES_SHOWN:
        console.print(line(f"  and {count - _FILES_SHOWN} more", "dim"))


def _draw_contents(load: Load, console: Console) -> None:
    table = _table(("stored", "left"), ("", "right"), ("", "left"))
    whole = max(1, sum(dtype.stored_bytes for dtype in load.dtypes))
    for dtype in load.dtypes:
        _add_bar(table, dtype.dtype, dtype.stored_bytes, whole)
    table.add_row(line(""), line(""), line(""))
    for group in load.groups:
        name = inert(group.name) or "without a name"
        _add_bar(table, f"{name} ({group.role})", group.stored_bytes, whole)
    console.print(table)


def _draw_host(load: Load, console: Console) -> None:
    available = memory_size(load.host_available_bytes)
    table = _table(
        (f"host, {available} available", "left"), ("needed", "right"), ("pages", "right"), ("", "left")
    )
    for way in load.ways:
        verdict, style = _VERDICTS[way.fits]
        cells = (way.name, memory_size(way.host_bytes), memory_size(way.page_bytes))
        table.add_row(*map(line, cells), line(verdict, style))
    console.print(table)


def _draw_gpus(load: Load, console: Console) -> None:
    # Where the files hold weights alone, everything and the weights are the same.
    has_more = load.stored_bytes != load.weights_bytes
    columns = {"everything": load.stored_bytes} if has_more else {}
    columns |= {"weights": load.weights_bytes, "in bfloat16": load.bf16_bytes}
    table = _table(
        ("GPU", "left"),
        ("memory", "right"),
        *((f"{name}, {memory_size(size)}", "left") for name, size in columns.items()),
        ("an hour", "right"),
    )
    for option in load.options:
        answers = [option.fits_weights, option.fits_bf16]
        verdicts = [_VERDICTS[fits] for fits in ([option.fits_stored] if has_more else []) + answers]
        price = f"{option.usd_per_hour:.2f} USD" if option.usd_per_hour is not None else ""
        table.add_row(
            line(option.gpu),
            line(memory_size(option.memory_bytes)),
            *(line(words, style) for words, style in verdicts),
            line(price),
        )
    console.print(table)


def _draw_leaner(load: Load, console: Console) -> None:
    console.print(line("how to load it leaner, each against the usual way", "bold"))
    for number, one in enumerate(load.leaner, 1):
        places = (("host", one.host_saved_bytes), ("GPU", one.device_saved_bytes))
        saved = ", ".join(f"{memory_size(size)} on the {place}" for place, size in places if size)
        console.print(line(f"{number}. {inert(one.what)}: saves {saved or 'nothing'}"))
        for code in one.how:
            console.print(line(f"     {inert(code)}", "cyan"))
        if one.mind:
            console.print(line(f"   {inert(one.mind)}", "dim"))


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name, side in columns:
        table.add_column(name, justify="right" if side == "right" else "left")
    return table


def _add_bar(table: Table, name: str, size: int, whole: int) -> None:
    table.add_row(line(name), line(memory_size(size)), line("█" * round(_BAR * size / whole)))
