"""Arenas: the parts of memory that the C library gives to the threads of a process."""

from __future__ import annotations

import ctypes
from typing import Final

_MOST_ARENAS: Final = -8
"""`M_ARENA_MAX` of `malloc.h`."""


def keep_to(most: int) -> bool:
    """Have all threads share so many arenas from now on; returns whether the C library can (glibc's).

    By itself it makes up to eight for each core, one for nearly every thread of a Kafka client. What one thread frees
    another cannot use then: a worker of a thousand queues is several MiB larger.

    Args:
        most: how many arenas.
    """
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(tune(_MOST_ARENAS, most))
