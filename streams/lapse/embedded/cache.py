"""The directory for files that can be fetched again."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Return our cache directory: `LAPSE_CACHE_DIR`, or else the platform's directory for caches.

    It may not exist yet.
    """
    if given := os.environ.get("LAPSE_CACHE_DIR"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lapse"
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # According to the XDG specification, relative values are ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "lapse"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path`; wait for another process that has it.

    The lock ends with its process, so a killed process leaves nothing to clean up.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
