"""Dead letters among arriving records: their headers describe the past (C54).

An underlying topic may be a dead-letter topic. What a letter says of lifetimes belongs to the message that died, so
only the entity's default applies to the letter. The same holds for the id by which a producer's repeats are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MESSAGE_ID: Final = "lapse-message-id"
FORWARDER: Final = "lapse-forward"
"""Name of the subscription by which a queue forwards (Q21)."""

FORWARDED: Final = b"forward/"
"""What the id of a forwarded record begins with (C78)."""

LAPSE_ID: Final = "lapse-id"

MARKERS: Final = frozenset(
    {
        LAPSE_ID,
        *(
            f"__dlq.errors.{fact}"
            for fact in ("topic", "partition", "offset", "group", "delivery.count", "message", "exception")
        ),
        *(
            f"__{family}.errors.{fact}"
            for family in ("streams", "connect")
            for fact in ("topic", "partition", "offset")
        ),
        *(f"kafka_dlt-original-{fact}" for fact in ("topic", "partition", "offset")),
    }
)
"""Headers that only dead letters have: those of lapse, KIP-1191, Kafka Streams, Kafka Connect and Spring."""

_PUT: Final = frozenset({"lapse-redrive-queue", "lapse-transfer", "lapse-origin"})
"""Headers of records that lapse itself has put somewhere. What they state of lifetimes is meant, letter or not."""


def is_letter(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Whether a record is a dead letter as its writer left it.

    A letter that was forwarded, handed over or replicated is none in this sense: who did so stated its deadline anew.
    """
    for name, _ in headers:
        if name in MARKERS:
            break
    else:
        return False
    for name, value in headers:
        if name in _PUT or (name == MESSAGE_ID and value is not None and value.startswith(FORWARDED)):
            return False
    return True
