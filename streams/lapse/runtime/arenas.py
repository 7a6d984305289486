"""Arenas: parts of memory that the C library assigns to the threads of a process."""

from __future__ import annotations

import ctypes
from typing import Final

_MOST_ARENAS: Final = -8
"""`M_ARENA_MAX` of `malloc.h`."""


def keep_to(most: int) -> bool:
    """Limit the number of arenas from now on; return whether the C library supports that (glibc does).

    By default there are up to eight for each core, so nearly one for each thread of a Kafka client. Memory that is
    freed in one arena is not available in another, so a worker with a thousand queues takes several MiB more.

    Args:
        most: the greatest number of arenas.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(tune(_MOST_ARENAS, most))
