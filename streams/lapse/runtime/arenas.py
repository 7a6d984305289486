"""Arenas: parts of memory that the C library assigns to the threads of a process, and the size of their pages."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Final

_MOST_ARENAS: Final = -8
"""`M_ARENA_MAX` of `malloc.h`."""

_TUNABLES: Final = "GLIBC_TUNABLES"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb"


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


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a new process asks the kernel for huge pages, unless it says so already.

    A shard keeps tens of MiB of payloads, and the first use of each page of 4 KiB costs a fault. In a virtual machine a
    fault took 3 µs, so a worker spent a seventh of its CPU on them. glibc reads this when a process starts. Other C
    libraries ignore it, and so does a kernel that never gives huge pages.
    """
    tunables = environment.get(_TUNABLES, "")
    if _HUGE_PAGES in tunables:
        return dict(environment)
    return {**environment, _TUNABLES: ":".join(filter(None, (tunables, f"{_HUGE_PAGES}=1")))}
