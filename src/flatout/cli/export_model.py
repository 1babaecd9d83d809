"""`flatout export-model`."""

import sys

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options


@click.command("export-model", short_help=COMMANDS["export-model"].purpose)
@click.argument("factory", metavar="MODULE:FUNCTION")
@click.option("--out", required=True, metavar="FILE", help="The package to write, such as model.pt2.")
@click.option("--inputs", default="", metavar="MODULE:FUNCTION", help="What returns the module's inputs.")
@click.option("--device", default="", metavar="NAME", help="cpu or cuda. Default: where the module is.")
@click.option("--fixed-batch", is_flag=True, help="For batches of the inputs' own size alone.")
@common_options
def command(output: Output, factory: str, out: str, inputs: str, device: str, fixed_batch: bool) -> int:
    """A module as a package that runs without its Python code.

    MODULE:FUNCTION returns the module and what it is called with (a tensor, a tuple of arguments or a dict of
    keywords), or the module alone with --inputs. A process of its own follows the code (torch.export),
    compiles it (AOTInductor), and holds the package's outputs against the module's: on these inputs, on
    perturbed ones, and on batches of other sizes, where the batch may vary. Only then the file is written.
    `flatout.load_model` loads it.

    \b
    Examples:
      flatout export-model my_model:make --out model.pt2
      flatout export-model train.py:build --inputs train.py:batch --out model.pt2
      flatout export-model my_model:make --out model.pt2 --json | jq .look
    """
    from flatout.infer.exporting.child import export_in_child
    from flatout.records.errors import EXIT_DONE, CallerMistake
    from flatout.records.packages import ExportOrder
    from flatout.report.export_model import draw_export

    if not out.endswith(".pt2"):
        raise CallerMistake(
            f"--out {out}", expected="a name that ends in .pt2, as torch wants it", remedy=f"--out {out}.pt2"
        )
    order = ExportOrder(factory=factory, inputs=inputs, out=out, fixed_batch=fixed_batch, device=device)
    shown = click.get_current_context().find_root().obj or {}
    with output.progress("exporting") as progress:
        made = export_in_child(order, progress, complaints=sys.stderr.buffer if shown.get("debug") else None)
    if output.as_json:
        output.document("export-model", 1, made)
    else:
        draw_export(made, output.console())
    return EXIT_DONE
