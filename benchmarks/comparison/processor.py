"""Measures how fast this processor runs Python, so that costs on different machines can be compared."""

from __future__ import annotations

import time
from typing import Final

_ROUNDS: Final = 40
_KEYS: Final = 20_000


def work_ms(rounds: int = _ROUNDS) -> float:
    """Return the CPU of a fixed piece of work with dictionaries, bytes and numbers, ms, in the fastest round."""
    return min(_round_ms() for _ in range(rounds))


def _round_ms() -> float:
    began = time.thread_time()
    sizes: dict[bytes, int] = {}
    for number in range(_KEYS):
        key = b"orders:%d" % (number % 997)
        sizes[key] = sizes.get(key, 0) + len(key)
    sorted(sizes.items(), key=lambda item: -item[1])
    return (time.thread_time() - began) * 1_000
