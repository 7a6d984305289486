"""`lapse completion`: lets a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

VARIABLE: Final = "_LAPSE_COMPLETE"
"""The environment variable for completion. Click derives it from the command's name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that makes a shell complete commands and options.

    For bash, put this into ~/.bashrc: source <(lapse completion bash). For zsh, the same with zsh into ~/.zshrc. For
    fish: lapse completion fish > ~/.config/fish/completions/lapse.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"
    click.echo(kind(ctx.find_root().command, {}, "lapse", VARIABLE).source())
