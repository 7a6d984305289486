"""Transfer counts: a message's deliveries and cancels at the queue from which a transfer takes it (C73)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRANSFER_COUNTS: Final = "lapse-transfer-counts"
"""The header `deliveries/cancels`. It applies only to a record of a transfer, once that is confirmed."""

_FORM: Final = re.compile(rb"(\d{1,10})/(\d{1,10})")
_MOST: Final = (1 << 31) - 1


class Counts(NamedTuple):
    """How often a message was delivered and cancelled.

    Attributes:
        deliveries: its delivery count.
        cancels: its cancel count.
    """

    deliveries: int = 0
    cancels: int = 0

    def encode(self) -> bytes:
        """Return the header's value."""
        return b"%d/%d" % self


NONE: Final = Counts()


def counts_in(headers: Iterable[tuple[str, bytes | None]]) -> Counts:
    """Read the header; `NONE` if it is missing or invalid."""
    text = next((value for name, value in headers if name == TRANSFER_COUNTS), None)
    found = _FORM.fullmatch(text or b"")
    return NONE if found is None else Counts(*(min(int(count), _MOST) for count in found.groups()))
