"""What a message has been through at the queue from which a transfer takes it (C73)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRANSFER_COUNTS: Final = "lapse-transfer-counts"
"""`deliveries/cancels`: counts only on a record that a transfer has put there, once that is confirmed."""

_FORM: Final = re.compile(rb"(\d{1,10})/(\d{1,10})")
_MOST: Final = (1 << 31) - 1


class Counts(NamedTuple):
    """How often a message was handed out, and came back.

    Attributes:
        deliveries: how often it was delivered.
        cancels: how often it was cancelled.
    """

    deliveries: int = 0
    cancels: int = 0

    def encode(self) -> bytes:
        """The header's value."""
        return b"%d/%d" % self


NONE: Final = Counts()


def counts_in(headers: Iterable[tuple[str, bytes | None]]) -> Counts:
    """Read the header; none where it is missing or cannot be read."""
    text = next((value for name, value in headers if name == TRANSFER_COUNTS), None)
    found = _FORM.fullmatch(text or b"")
    return NONE if found is None else Counts(*(min(int(count), _MOST) for count in found.groups()))
