"""Runs the `lapse` command in this process, without the start of another Python."""

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from lapse.cli import main


def run(
    *arguments: str, environment: Mapping[str, str | None] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself. Variables that are None are unset for it.

    The start of a process would take most of the time of most tests. Tests of workers, gateways, transfers and the demo
    start processes, and show that the program runs as one. An error that the command does not report is raised here.
    """
    with contextlib.chdir(directory) if directory else contextlib.nullcontext():
        done = CliRunner().invoke(main, list(arguments), env=environment, catch_exceptions=False, prog_name="lapse")
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
