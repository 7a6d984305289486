"""Used signatures: they make a copied command ineffective (X4).

The signatures of all valid commands within `REMEMBERED_MS` of the newest are remembered. They follow from the commands
topic alone. So a new owner that reads this part of the log again reaches the same verdicts (C1).
"""

from __future__ import annotations

from collections import deque
from typing import Final

VALID_MS: Final = 120_000
"""The greatest difference between the instant of signing a command and its record's timestamp, ms."""

REMEMBERED_MS: Final = 2 * VALID_MS
"""How long after its first record a signature can still be valid, ms: it may be dated ahead by `VALID_MS`."""


class UsedSignatures:
    """The signatures of commands that a shard has read recently."""

    __slots__ = ("_in_order", "_known")

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._in_order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def use(self, signature: bytes, at_ms: int) -> bool:
        """Note a signature. Return False if it was used before.

        Args:
            signature: a correct signature, valid at `at_ms`.
            at_ms: the record's timestamp, ms since the epoch.
        """
        while self._in_order and self._in_order[0][0] < at_ms - REMEMBERED_MS:
            self._known.discard(self._in_order.popleft()[1])
        if signature in self._known:
            return False
        self._known.add(signature)
        self._in_order.append((at_ms, signature))
        return True


def is_valid(signed_at_ms: int, at_ms: int) -> bool:
    """Return whether a command signed at `signed_at_ms` is valid at `at_ms`."""
    return abs(at_ms - signed_at_ms) <= VALID_MS
