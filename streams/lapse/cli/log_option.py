"""The common option `--log-format` of commands that run until they are stopped."""

from typing import Final

import click

LOG_FORMAT: Final = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object a line.",
)
