"""Retry delay: the delay that a message states for its retries, instead of its queue's (Q24, C69)."""

from __future__ import annotations

import re
from typing import Final

from lapse.core.letter import is_letter
from lapse.core.lifetime import Headers

RETRY_DELAY_MS: Final = "lapse-retry-delay-ms"
"""The header with a message's own delay before its first retry, instead of the queue's, ms; 0 = at once."""

UNSTATED: Final = -1
"""The value, in columns, for a message that states no delay."""

UNREADABLE: Final = -2
"""The value for an invalid delay. The queue's delay applies, and an event says so (C69)."""

FAULT: Final = (
    f"{RETRY_DELAY_MS} cannot be read, the queue's retry counts: expected 1 to 15 ASCII digits, a number of "
    "milliseconds, and one such header"
)
"""The detail of that event."""

_DIGITS: Final = re.compile(rb"[0-9]{1,15}\Z")


def stated_ms(headers: Headers) -> int:
    """Return the delay that a record's headers state, ms; `UNSTATED` without one, `UNREADABLE` if invalid (C69).

    The headers of a dead letter do not count, since they describe the dead message (C54).
    """
    found = [value for name, value in headers if name == RETRY_DELAY_MS]
    if not found or is_letter(headers):
        return UNSTATED
    one = found[0]
    return int(one) if one is not None and _DIGITS.match(one) and found.count(one) == len(found) else UNREADABLE
