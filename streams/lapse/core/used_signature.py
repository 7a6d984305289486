"""Used signatures: a command that somebody copied does nothing a second time (X4).

What is remembered follows from the commands topic alone: of every command that counted, within two spans of validity
of the newest. So whoever reads that part of the log again, at a take-over, comes to the same verdicts (C1).
"""

from __future__ import annotations

from collections import deque
from typing import Final

VALID_MS: Final = 120_000
"""How far the instant at which a command was signed and the one of its record may lie apart."""

REMEMBERED_MS: Final = 2 * VALID_MS
"""Behind its first record a signature may be valid for so long: it was signed ahead by one span at most."""


class UsedSignatures:
    """The signatures of the commands that a shard has read of late."""

    __slots__ = ("_in_order", "_known")

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._in_order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._known)

    def use(self, signature: bytes, at_ms: int) -> bool:
        """Note that a record with this signature was read; False if it is a repeat.

        Args:
            signature: a right one, valid at `at_ms`.
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
    """Whether a command may count at an instant, by when it was signed."""
    return abs(at_ms - signed_at_ms) <= VALID_MS
