"""A record's headers as they are on the wire."""

from __future__ import annotations

from typing import cast

from confluent_kafka import Message

Headers = list[tuple[str, bytes | None]]


def headers_of(message: Message) -> Headers:
    """All headers in order, repeated names included; an empty list if there are none."""
    # The client library's types allow for serialised text as well; nothing serialises here.
    return cast("Headers", message.headers() or [])
