"""`flatout completion`."""

import click
from click.shell_completion import get_completion_class

from flatout.cli.commands import COMMANDS

SHELLS = ("bash", "zsh", "fish")


@click.command("completion", short_help=COMMANDS["completion"].purpose)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the shell's completion script.

    \b
    Examples:
      eval "$(flatout completion bash)"        # in ~/.bashrc
      eval "$(flatout completion zsh)"         # in ~/.zshrc
      flatout completion fish > ~/.config/fish/completions/flatout.fish
    """
    from flatout.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(kind(cli, {}, "flatout", "_FLATOUT_COMPLETE").source())
