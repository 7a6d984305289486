"""What kombu publishes and receives, as a record of Kafka."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

_MS: Final = 1000


class TaskMessage(virtual.Message):
    """A message as kombu hands it out; its delivery is known to the channel by the delivery tag."""


class Lifetime(NamedTuple):
    """When a message counts.

    Attributes:
        ttl_ms: how long it lives from its arrival, ms; None = as long as the queue says.
        expires_at_ms: instead: its deadline, ms since the epoch.
        enqueue_at_ms: not delivered before this instant, ms since the epoch; None = at once.
    """

    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    enqueue_at_ms: int | None = None


def lifetime(message: Mapping[str, Any]) -> Lifetime:
    """Read kombu's `expiration` and Celery's `eta`.

    A lifetime counts from the publication, so together with an `eta` it becomes a deadline.
    """
    expiration = message["properties"].get("expiration")
    ttl_ms = None if expiration is None else max(1, round(float(expiration)))
    eta = _instant_ms(message["headers"].get("eta"))
    if eta is None or ttl_ms is None:
        return Lifetime(ttl_ms=ttl_ms, enqueue_at_ms=eta)
    return Lifetime(expires_at_ms=round(time.time() * _MS) + ttl_ms, enqueue_at_ms=eta)


def write(message: Mapping[str, Any]) -> bytes:
    """Return the record's value: a JSON object with body, headers and properties."""
    text: str = dumps(message)
    return text.encode()


def read(value: bytes | None) -> dict[str, Any]:
    """Read a record's value.

    Raises:
        ValueError: it was not written by kombu.
    """
    message = loads(value or b"")
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict) or "body" not in message:
        raise ValueError("no message of kombu: a JSON object with `body` and `properties` is expected")
    return message


def _instant_ms(text: object) -> int | None:
    if isinstance(text, datetime):
        instant = text
    elif isinstance(text, str):
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            return None  # a program's own header of that name; Celery's is a timestamp
    else:
        return None
    return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * _MS)
