"""Puts temporary files of tests into memory if the machine has enough of it.

Each partition of a broker has two index files that are mapped into memory. The first byte in one takes 2 ms of CPU on
ext4, and 5 µs on tmpfs. So brokers, workers' states and Spark's checkpoints are in a directory in `/dev/shm`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

import psutil

VARIABLE: Final = "TMPDIR"
MEMORY: Final = Path("/dev/shm")
_NEEDED_BYTES: Final = 4 << 30
"""Free space that the directory needs. A run uses less than 1 GiB at a time."""

_LEFT_BYTES: Final = 11 << 30
"""Available memory that the machine needs: six brokers, three Sparks and their tests take 10 GiB."""

PREFIX: Final = "lapse-"
"""Prefix of the directories, short because names of sockets must be short."""


def use(environment: MutableMapping[str, str], memory: Path = MEMORY) -> Path | None:
    """Put temporary files into memory unless the environment names a directory. Return the directory of the run.

    Delete files that earlier runs left because a test failed or the run was killed.
    """
    if environment.get(VARIABLE) or not suits(memory):
        return None
    for left in memory.glob(f"{PREFIX}*"):
        process = left.name.removeprefix(PREFIX)  # a broker that somebody runs there has another name
        if process.isdecimal() and left.stat().st_uid == os.getuid() and not Path("/proc", process).exists():
            shutil.rmtree(left, ignore_errors=True)
    own = memory / f"{PREFIX}{os.getpid()}"
    own.mkdir(exist_ok=True)
    own.chmod(0o711)  # PostgreSQL runs as another user, in a directory of its own
    environment[VARIABLE] = tempfile.tempdir = str(own)
    return own


def suits(memory: Path) -> bool:
    """Return whether a directory is in memory, has enough space, and may contain programs."""
    if not os.access(memory, os.W_OK | os.X_OK) or not os.path.ismount(memory):
        return False
    there = os.statvfs(memory)
    enough = there.f_bavail * there.f_frsize >= _NEEDED_BYTES and psutil.virtual_memory().available >= _LEFT_BYTES
    return enough and not there.f_flag & os.ST_NOEXEC
