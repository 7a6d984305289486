"""The delay that a message states for its retries, in place of its queue's (Q24, C69)."""

from __future__ import annotations

import re
from typing import Final

from lapse.core.letter import is_letter
from lapse.core.lifetime import Headers

RETRY_DELAY_MS: Final = "lapse-retry-delay-ms"
"""A message's own delay before its first retry, in place of the queue's, ms; 0 = at once."""

UNSTATED: Final = -1
"""What stands for the delay of a message that states none, in columns."""

UNREADABLE: Final = -2
"""The value for a delay that cannot be read: the queue's delay counts, and an event says so (C69)."""

FAULT: Final = (
    f"{RETRY_DELAY_MS} cannot be read, the queue's retry counts: expected 1 to 15 ASCII digits, a number of "
    "milliseconds, and one such header"
)
"""The event's detail for it."""

_DIGITS: Final = re.compile(rb"[0-9]{1,15}\Z")


def stated_ms(headers: Headers) -> int:
    """The delay that a record's headers state, ms; `UNSTATED` where they state none, or `UNREADABLE` (C69).

    Those of a dead letter are history (C54).
    """
    found = [value for name, value in headers if name == RETRY_DELAY_MS]
    if not found or is_letter(headers):
        return UNSTATED
    one = found[0]
    return int(one) if one is not None and _DIGITS.match(one) and found.count(one) == len(found) else UNREADABLE
