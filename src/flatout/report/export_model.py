"""`export-model` for a terminal: what the package takes, and how it was proven."""

from rich.console import Console

from flatout.records.packages import ExportedModel
from flatout.records.words import memory_size
from flatout.report.plain import inert, line


def draw_export(made: ExportedModel, console: Console) -> None:
    """Print it all."""
    console.print(
        line(inert(f"{made.package}: {memory_size(made.size_bytes)}, for {made.look.device}"), "bold")
    )
    for one in made.look.inputs:
        shape = ", ".join(("any", *map(str, one.shape[1:])) if one.batch else map(str, one.shape))
        console.print(line(inert(f"  takes {one.dtype}[{shape}]")))
    if made.fixed_reason:
        console.print(line(inert(f"the batch is fixed: {made.fixed_reason}")))
    console.print(
        line(
            f"proven on {made.compared} inputs: outputs are off by {made.error:.2g} of their spread, "
            f"rounding explains {made.allowed_error:.2g}"
        )
    )
    for note in made.notes:
        console.print(line(inert(f"note: {note}")))
    console.print(line(inert(f'flatout.load_model("{made.package}") loads it'), "dim"))
