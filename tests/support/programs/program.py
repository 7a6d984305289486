"""Finds programs that `make setup` does not install. A test that needs a missing one is skipped with the reason."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def program(*names: str) -> str:
    """Return the path of the first program that exists, in this Python's directory or on the path."""
    places = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in names:
        if found := shutil.which(name, path=places):
            return found
    # No Python package has them. A machine without them still runs all other tests, and -ra lists the skips.
    pytest.skip(f"{names[0]} is not installed")


def run(*arguments: str | Path, cwd: str | Path = "/") -> str:
    """Run a program to its end, as if no virtual environment was active, and return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(arguments, capture_output=True, text=True, env=clean, check=False, cwd=cwd, timeout=200)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
