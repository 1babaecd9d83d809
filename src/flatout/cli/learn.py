"""`flatout learn`."""

from pathlib import Path
from typing import Any

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options, leave_page, page_option


class _Parameters(click.ParamType):  # type: ignore[type-arg]
    """`7B`, `124M`, `1.3e9`: how many parameters a model has."""

    name = "parameters"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """A count."""
        if isinstance(value, int | float):
            return float(value)
        units = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
        text = value.strip().lower()
        size = units.get(text[-1:], 1.0)
        try:
            count = float(text[:-1] if text[-1:] in units else text) * size
        except ValueError:
            self.fail(f"{value!r} is no number of parameters: 124M, 7B and 1.3e9 are", param, ctx)
        if not 1e3 <= count <= 1e15:
            self.fail(f"{value!r} is not the size of a model: between 1k and 1000T", param, ctx)
        return count


@click.command("learn", short_help=COMMANDS["learn"].purpose)
@click.argument("lessons", nargs=-1, metavar="[LESSON]...")
@click.option("--all", "every", is_flag=True, help="All lessons, one after the other.")
@click.option(
    "--device", help="cuda:0, cpu, mps, xpu:0 or a GPU's UUID. Default: the first GPU, else the CPU."
)
@click.option(
    "--params",
    type=_Parameters(),
    default="7B",
    show_default=True,
    metavar="COUNT",
    help="Your model's parameters, for what lessons reckon: 124M, 7B.",
)
@click.option(
    "--gpus",
    type=click.IntRange(2, 65536),
    default=8,
    show_default=True,
    metavar="NUMBER",
    help="How many GPUs that model is to be spread over.",
)
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=8192,
    show_default=True,
    metavar="NUMBER",
    help="Tokens that each GPU works on in a step.",
)
@click.option(
    "--gpu", "compared", default="", metavar="NAMES", help="Rated GPUs to compare with: h100,rtx4090."
)
@click.option("--fresh", is_flag=True, help="Measure also what `flatout limits` has kept.")
@page_option
@common_options
def command(output: Output, lessons: tuple[str, ...], every: bool, html: Path | None, **asked: Any) -> None:
    """Concepts behind fast training, with figures of this machine.

    Each lesson measures something for a few seconds, draws it, says in plain words what one sees, and which
    command follows from it. On a machine with a GPU it is the GPU that is measured, else the CPU. What other
    hardware is rated at stands beside it, marked as rated. Without a LESSON, lists them.

    \b
    Examples:
      flatout learn
      flatout learn memory
      flatout learn kill
      flatout learn parallel --params 70B --gpus 64 --gpu h100-80gb-sxm
      flatout learn --all --html learn.html
      flatout learn bound --json | jq .lessons[0].figures
    """
    from flatout.learn.catalogue import LESSONS, chosen, entries
    from flatout.learn.teaching import Request, learn
    from flatout.report.learn import draw_entries, draw_learned

    names = tuple(lesson.id for lesson in LESSONS) if every else lessons
    _insist_on_one_wish(lessons, every, html)
    if not names:
        if output.as_json:
            output.document("learn", 1, {"available": entries()})
        else:
            draw_entries(entries(), output.console())
        return
    chosen(names)
    request = Request(
        lessons=names,
        device=asked["device"],
        gpu_names=tuple(name.strip() for name in asked["compared"].split(",") if name.strip()),
        params=asked["params"],
        gpus=asked["gpus"],
        tokens=asked["tokens"],
        fresh=asked["fresh"],
    )
    with output.progress("starting") as step:
        learned = learn(request, on_stage=step)
    if output.as_json:
        output.document("learn", 1, learned)
    else:
        draw_learned(learned, output.console())
    if html is not None:
        from flatout.report.learn_page import learn_page

        leave_page(output, html, learn_page(learned))


def _insist_on_one_wish(lessons: tuple[str, ...], every: bool, html: Path | None) -> None:
    from flatout.records.errors import CallerMistake

    if every and lessons:
        raise CallerMistake(
            f"--all and {', '.join(lessons)}",
            expected="lessons by name, or all of them",
            remedy=f"flatout learn {lessons[0]}",
        )
    if html is not None and not every and not lessons:
        raise CallerMistake(
            "a page without a lesson",
            expected="a lesson, or --all",
            remedy=f"flatout learn --all --html {html}",
        )
