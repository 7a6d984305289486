"""Converts kombu's messages to Kafka records and back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

_MS: Final = 1000

_SHOWN: Final = 200
"""How much of another library's error is shown, characters."""


class TaskMessage(virtual.Message):
    """A message for kombu. The channel finds its delivery by the delivery tag."""


class Lifetime(NamedTuple):
    """The lifetime and schedule of a message.

    Attributes:
        ttl_ms: lifetime from arrival, in ms; None = the queue's default, or `expires_at_ms`.
        expires_at_ms: deadline, ms since the epoch; None = none is set.
        enqueue_at_ms: earliest instant of delivery, ms since the epoch; None = at once.
    """

    ttl_ms: int | None = None
    expires_at_ms: int | None = None
    enqueue_at_ms: int | None = None


def lifetime(message: Mapping[str, Any]) -> Lifetime:
    """Return a message's lifetime by kombu's `expiration` and Celery's `eta`.

    A lifetime counts from the publication, so together with an `eta` it becomes a deadline.
    """
    expiration = message["properties"].get("expiration")
    ttl_ms = None if expiration is None else max(1, round(float(expiration)))
    eta = _instant_ms(message["headers"].get("eta"))
    if eta is None or ttl_ms is None:
        return Lifetime(ttl_ms=ttl_ms, enqueue_at_ms=eta)
    return Lifetime(expires_at_ms=round(time.time() * _MS) + ttl_ms, enqueue_at_ms=eta)


def write(message: Mapping[str, Any]) -> bytes:
    """Encode a message as a record's value: a JSON object with body, headers and properties."""
    text: str = dumps(message)
    return text.encode()


def read(value: bytes | None) -> dict[str, Any]:
    """Decode a message from a record's value.

    Raises:
        ValueError: the value was not written by kombu.
    """
    try:
        message = loads(value or b"")
    except ValueError:
        raise
    except Exception as error:  # too much nesting, or a value that kombu's decoders do not accept
        raise ValueError(f"no message of kombu: {type(error).__name__}: {str(error)[:_SHOWN]}") from error
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict) or message.get("body") is None:
        raise ValueError("no message of kombu: a JSON object with `body` and `properties` is expected")
    for what, found, expected in _parts(message):
        if found is not None and not isinstance(found, expected):
            raise ValueError(f"no message of kombu: its {what} is {type(found).__name__}")
    return message


def _parts(message: Mapping[str, Any]) -> tuple[tuple[str, object, type | tuple[type, ...]], ...]:
    """Return name, value and expected type of each part whose type kombu and Celery do not check."""
    properties = message["properties"]
    return (
        ("body", message["body"], (str, bytes)),
        ("headers", message.get("headers"), dict),
        ("content-type", message.get("content-type"), str),
        ("content-encoding", message.get("content-encoding"), str),
        ("delivery_info", properties.get("delivery_info"), dict),
        ("body_encoding", properties.get("body_encoding"), str),
    )


def _instant_ms(text: object) -> int | None:
    if isinstance(text, datetime):
        instant = text
    elif isinstance(text, str):
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            return None  # a program's own header of that name: Celery's is a timestamp
    else:
        return None
    return max(0, round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * _MS))
