"""`qnn-ext completion`: the script that makes a shell complete commands, options, files and choices."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes SHELL complete `qnn-ext`: commands, options, files and choices.

    \b
    Examples:
      eval "$(qnn-ext completion bash)"                                      # in ~/.bashrc
      eval "$(qnn-ext completion zsh)"                                       # in ~/.zshrc
      qnn-ext completion fish > ~/.config/fish/completions/qnn-ext.fish
    """
    from .commands import COMPLETE, cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "qnn-ext", COMPLETE).source())
