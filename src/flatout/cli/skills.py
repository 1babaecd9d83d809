"""`flatout skills`."""

from pathlib import Path

import click

from flatout.cli.commands import COMMANDS
from flatout.cli.options import Output, common_options


@click.group("skills", short_help=COMMANDS["skills"].purpose, invoke_without_command=True)
@common_options
@click.pass_context
def command(context: click.Context, output: Output) -> int:
    """What an agent should know: list it, or copy it.

    Two skills in the Agent Skills format: gpu-optimization and memory-management. Each says, for what people
    want to do, which commands to use, what to look at and what to do next.

    \b
    Examples:
      flatout skills
      flatout skills install
      flatout skills install --to ~/.config/agent/skills
      flatout skills --json | jq -r '.skills[].path'
    """
    from flatout.cli.skill_files import shipped_skills
    from flatout.records.errors import EXIT_DONE

    if context.invoked_subcommand is not None:
        return EXIT_DONE
    skills = shipped_skills()
    if output.as_json:
        rows = [{"name": one.name, "description": one.description, "path": str(one.folder)} for one in skills]
        output.document("skills", 1, {"skills": rows})
        return EXIT_DONE
    console = output.console()
    for one in skills:
        console.print(one.name, style="bold")
        console.print(one.description)
        console.print(str(one.folder), style="dim", soft_wrap=True)
        console.print()
    output.notice("flatout skills install   # copies them to where an agent looks")
    return EXIT_DONE


@command.command("install")
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".agents/skills"),
    show_default=True,
    metavar="DIR",
    help="The folder in which your agent looks for skills.",
)
@click.option("--force", is_flag=True, help="Overwrite files that were changed.")
@common_options
def install(output: Output, to: Path, force: bool) -> int:
    """Copy the skills into a folder.

    Files that are there already and differ are left as they are, and nothing is copied, unless --force is
    given.

    \b
    Examples:
      flatout skills install
      flatout skills install --to ~/.config/agent/skills --force
    """
    from flatout.cli.skill_files import install_skills
    from flatout.records.errors import EXIT_DONE

    written = install_skills(to, force=force)
    if output.as_json:
        files = [str(path.relative_to(to)) for path in written]
        output.document("skills", 1, {"folder": str(to), "files": files})
        return EXIT_DONE
    for folder in sorted({path.relative_to(to).parts[0] for path in written}):
        click.echo(to / folder)
    return EXIT_DONE
