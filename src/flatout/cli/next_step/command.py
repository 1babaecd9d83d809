"""`flatout` and `flatout --json`."""

from flatout.cli.options import Output


def say_what_is_next(*, as_json: bool) -> None:
    """Look, and print: for people, or as a document."""
    from flatout.cli.next_step.look import look_here

    output = Output(as_json=as_json, quiet=False)
    found = look_here()
    if as_json:
        output.document("next", 1, found)
        return
    from flatout.report.next_step import draw_next_step

    draw_next_step(found, output.console())
