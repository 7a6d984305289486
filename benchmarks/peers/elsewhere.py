"""Installs what only the peers need: Python environments and Go programs, which are made once and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.comparison.contestant import Skipped
from lapse.embedded.cache import cache_dir, locked

_BUILD_S = 400
"""Limit of a build, s. It is shorter than a contestant's time, so that a slow build ends with a clear message."""


def python_with(requirement: str) -> Path:
    """Return the path of a Python that has a package.

    Raises:
        Skipped: The package is not installed yet, and cannot be installed now.
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
                    reason = (done.stderr.strip() or "no reason given").splitlines()[0]
                    raise Skipped(f"{requirement} cannot be installed: {reason}")
            complete.touch()
    return python


def is_here(name: str, module: str) -> bool:
    """Return whether a program is installed or was built."""
    return shutil.which(name) is not None or _built_program(name, module).exists()


def _built_program(name: str, module: str) -> Path:
    return cache_dir() / "benchmarks" / f"{name}-{module.rpartition('@')[2]}"


def go_program(name: str, module: str) -> Path:
    """Return a program of the path, or build it with Go from a module, which takes minutes the first time.

    Raises:
        Skipped: The program is not installed, and cannot be built now.
    """
    if found := shutil.which(name):
        return Path(found)
    kept = _built_program(name, module)
    with locked(kept.with_name(f".{kept.name}.lock")):
        if kept.exists():
            return kept
        go = shutil.which("go")
        if go is None:
            raise Skipped(f"{name} is not installed, and there is no Go to build it with")
        place = kept.with_name(f"{kept.name}.building")
        environment = {**os.environ, "GOBIN": str(place), "GOFLAGS": "-buildvcs=false"}
        command = [go, "install", module]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=_BUILD_S
            )
        except subprocess.TimeoutExpired:
            raise Skipped(f"Go did not build {module} within {_BUILD_S} s") from None
        if done.returncode:
            reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
            raise Skipped(f"{name} is not installed, and Go cannot build it: {reason}")
        (place / name).rename(kept)
        place.rmdir()
    return kept
