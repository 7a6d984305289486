"""The lock of an audit: of two redrives with one directory at the same time, the later one is refused (C58).

The notes on `lapse.redriven` do not keep them apart: a run takes those of its own directory for those of a run that was
killed, and goes on where that has ended.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lapse_client.error import LapseError
from lapse_spark.stream.output import Output

_FILE: Final = "_lock"
"""The file that is locked, beside the tables. It stays: what was deleted could be locked twice."""

_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})
"""The errors of a file system that has no locks."""


@contextmanager
def locked(output: Output) -> Iterator[None]:
    """Keep other redrives with an audit away until the end. The system ends the lock of a process that is killed.

    An audit is not locked if it is on another file system than this machine's, or on one that has no locks.

    Raises:
        LapseError: another redrive with this audit is running.
        OSError: this user may not write there.
    """
    place = output.local
    if place is None:
        yield
        return
    place.mkdir(parents=True, exist_ok=True)
    with (place / _FILE).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LapseError(
                f"another lapse spark redrive with the directory {output.path} is running. Nothing was sent here. "
                "Wait for its end, and run it again"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
