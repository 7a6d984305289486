"""The common option `--config` of commands that read the whole deployment."""

from pathlib import Path
from typing import Final

import click

CONFIG: Final = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    default="lapse.toml",
    show_default=True,
    help="The configuration of the deployment.",
)
"""The option's default is `lapse.toml` in the current directory."""
