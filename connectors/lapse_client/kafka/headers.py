"""A record's headers as they are on the wire."""

from __future__ import annotations

from typing import cast

from confluent_kafka import Message

Headers = list[tuple[str, bytes | None]]


def headers_of(message: Message) -> Headers:
    """Return all headers in order, repeated names included; an empty list if there are none."""
    # The library's types also allow text, for serializers; no serializer is used here.
    return cast("Headers", message.headers() or [])
