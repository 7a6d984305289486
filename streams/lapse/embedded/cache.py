"""Where files that can be fetched again are kept."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """Return our cache directory: `LAPSE_CACHE_DIR`, else the platform's place for caches. It may not exist yet."""
    if given := os.environ.get("LAPSE_CACHE_DIR"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lapse"
    base = os.environ.get("XDG_CACHE_HOME") or ""
    # The XDG specification has relative values ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "lapse"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file at `path`, waiting for whichever process has it.

    The lock goes with its holder, so a killed process leaves nothing to clear away.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
