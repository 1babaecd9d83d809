"""`flatout explain`."""

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options


@click.command("explain", short_help=COMMANDS["explain"].purpose)
@click.argument("code", required=False)
@common_options
def command(output: Output, code: str | None) -> int:
    """What a finding means, how it is known, and when it can be wrong.

    Without a code, lists them all.

    \b
    Examples:
      flatout explain
      flatout explain F101
      flatout explain f302 --json
    """
    from flatout.diagnose.catalogue import BY_CODE, RULES
    from flatout.records.errors import EXIT_DONE, UnknownName
    from flatout.report.plain import line

    if code is not None and code.upper() not in BY_CODE:
        raise UnknownName("finding", code, BY_CODE, remedy="flatout explain lists them all")
    chosen = RULES if code is None else (BY_CODE[code.upper()],)
    if output.as_json:
        rows = [
            {"code": rule.code, "title": rule.title, "levers": rule.levers, "explanation": rule.explanation}
            for rule in chosen
        ]
        output.document("explain", 1, {"findings": rows})
        return EXIT_DONE
    console = output.console()
    for rule in chosen:
        console.print(line(f"{rule.code}  {rule.title}", "bold" if code is not None else ""))
        if code is not None:
            for paragraph in rule.explanation.split("\n\n"):
                console.print()
                console.print(line(" ".join(paragraph.split())))
            if rule.levers:
                console.print()
                console.print(line(f"levers that answer it: {', '.join(rule.levers)}"))
    return EXIT_DONE
