"""Asks for confirmation before actions that cannot be undone."""

from __future__ import annotations

import click

_YES = ("y", "yes")
_NO = ("n", "no", "")


def confirm(question: str) -> None:
    """Ask on standard error, and read the answer from standard input. Standard output is only for results.

    Raises:
        click.Abort: the answer is no.
        click.ClickException: standard input has ended.
    """
    while True:
        click.echo(f"{question} [y/N]: ", nl=False, err=True)
        line = click.get_text_stream("stdin").readline()
        answer = line.strip().lower()
        if not line:
            click.echo(err=True)
            raise click.ClickException("nobody answered, so nothing was done; --yes does not ask")
        if answer in _YES:
            return
        if answer in _NO:
            raise click.Abort
        click.echo("Answer y or n.", err=True)
