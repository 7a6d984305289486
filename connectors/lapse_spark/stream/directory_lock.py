"""The lock of a job's directory: of two jobs with one directory at the same time, the later one is refused (C58).

Nothing else keeps them apart: a run takes what it finds in its directory for that of a run that was killed, and goes on
where that has ended.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lapse_client.error import LapseError
from lapse_spark.stream.output import Output

FILE: Final = "_lock"
"""The file that is locked, beside the tables. It stays: what was deleted could be locked twice."""

_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})
"""The errors of a file system that has no locks."""


@contextmanager
def locked(output: Output, file: str = FILE) -> Iterator[None]:
    """Keep other jobs with a directory away until the end. The system ends the lock of a process that is killed.

    A directory is not locked if it is on another file system than this machine's, or on one that has no locks.

    Args:
        output: the directory.
        file: name of the file that is locked. Jobs that may run at the same time have different ones.

    Raises:
        LapseError: another job with this directory is running.
        OSError: this user may not write there.
    """
    place = output.local
    if place is None:
        yield
        return
    place.mkdir(parents=True, exist_ok=True)
    with (place / file).open("ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LapseError(
                f"another job of lapse spark with the directory {output.path} is running. Nothing was done here. Wait "
                "for its end, and run it again"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
