"""The `lapse` command in this process: what it prints and its exit code, without the start of a Python."""

import contextlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

from click.testing import CliRunner

from lapse.cli import main


def run(
    *arguments: str, environment: Mapping[str, str | None] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself; a variable that is None is unset for it.

    Most tests look at what a command does, and the start of a process takes most of its time. That the program runs as
    a process of its own is shown by those that start workers, gateways, transfers and the demo. An error that the
    command does not turn into a sentence is raised here.
    """
    with contextlib.chdir(directory) if directory else contextlib.nullcontext():
        done = CliRunner().invoke(main, list(arguments), env=environment, catch_exceptions=False, prog_name="lapse")
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)
