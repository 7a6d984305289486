"""Peers whose packages do not fit into our own environment: one environment each, made on demand and kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.contestant import Skipped
from lapse.embedded.cache import cache_dir, locked


def python_with(requirement: str) -> Path:
    """Return a Python that has a package.

    Raises:
        Skipped: it is not installed yet, and cannot be installed now.
    """
    directory = cache_dir() / "benchmarks" / requirement.replace("==", "-")
    python, complete = directory / "bin" / "python", directory / "complete"
    with locked(directory.with_suffix(".lock")):
        if not complete.exists():
            uv = Path(sys.executable).with_name("uv")
            commands: tuple[list[str | Path], ...] = (
                [uv, "venv", "--quiet", "--clear", "--python", sys.executable, directory],
                [uv, "pip", "install", "--quiet", "--python", python, requirement],
            )
            for command in commands:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    said = (done.stderr.strip() or "no reason given").splitlines()[0]
                    raise Skipped(f"{requirement} cannot be installed: {said}")
            complete.touch()
    return python
