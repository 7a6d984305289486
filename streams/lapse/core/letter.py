"""Letters: recognizes dead letters among arriving records, whose headers describe the dead message (C54).

An underlying topic may be a dead-letter topic. The lifetime headers of a letter belong to the message that died, so
only the entity's default applies to the letter. The same holds for the message id, by which repeats are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MESSAGE_ID: Final = "lapse-message-id"
FORWARDER: Final = "lapse-forward"
"""Id of the subscription with which a queue forwards messages (Q21)."""

FORWARDED: Final = b"forward/"
"""Prefix of the message id of a forwarded record (C78)."""

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
"""Headers that only dead letters have, of lapse, KIP-1191, Kafka Streams, Kafka Connect and Spring."""

PUT: Final = frozenset({"lapse-redrive-queue", "lapse-transfer", "lapse-origin"})
"""Headers of records that lapse itself has written. Their lifetime headers apply, even if they are letters."""


def is_letter(headers: Sequence[tuple[str, bytes | None]]) -> bool:
    """Return whether a record is a dead letter as its writer left it.

    A letter that was forwarded, handed over or replicated does not count, since its deadline was stated again. But the
    letter of a message that was forwarded does. Each writer adds its headers behind those that it copies, so the last
    ones count.
    """
    found = False
    for name, value in headers:
        if name in MARKERS:
            found = True
        elif found and (name in PUT or (name == MESSAGE_ID and value is not None and value.startswith(FORWARDED))):
            found = False
    return found
