"""Serdes: how payloads become bytes and bytes payloads; lapse's own, Confluent's, or any function (X3)."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.serialization import (
    Deserializer,
    MessageField,
    SerializationContext,
    SerializationError,
    Serializer,
)

from lapse_client.error import InvalidPayload, InvalidPublication


class Serde(ABC):
    """Writes payloads and reads them. Both may be called from any thread."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """Write a payload.

        Raises:
            InvalidPayload: it does not fit.
        """

    @abstractmethod
    def deserialize(self, data: bytes) -> Any:
        """Read a payload.

        Raises:
            InvalidPayload: it does not fit.
        """


SerializerLike = Serde | Serializer | Callable[[Any], bytes | None]
"""What a publisher takes: a serde, one of Confluent's serializers, or a function."""

DeserializerLike = Serde | Deserializer | Callable[[bytes], Any]
"""What a subscriber takes: a serde, one of Confluent's deserializers, or a function."""


_MISFITS: Final = (ValueError, TypeError, LookupError, EOFError, struct.error, SerializationError)
"""What deserializers raise of damaged bytes. Everything else says nothing about the payload."""

_NO_SUCH_SCHEMA: Final = 404
"""What a registry says of a schema's id that it does not know."""


def write(serializer: SerializerLike, value: Any, topic: str) -> bytes | None:
    """Write the payload of a record; None, which deletes, stays None.

    Args:
        serializer: by which.
        value: the payload.
        topic: where the record goes; Confluent's serializers name the schema by it.

    Raises:
        InvalidPublication: it does not fit.
    """
    if value is None:
        return None
    try:
        if isinstance(serializer, Serde):
            return serializer.serialize(value)
        if isinstance(serializer, Serializer):
            return serializer(value, SerializationContext(topic, MessageField.VALUE))
        return serializer(value)
    except InvalidPayload as error:
        raise InvalidPublication(f"{topic}: {error}; nothing was sent") from error
    except Exception as error:  # whatever a library, or a user's function, raises
        raise InvalidPublication(
            f"{topic}: the payload cannot be serialized: {_text(error)}; nothing was sent"
        ) from error


def read(deserializer: DeserializerLike, data: bytes | None, topic: str) -> Any:
    """Read the payload of a record; None stays None.

    Args:
        deserializer: by which.
        data: the payload's bytes.
        topic: where the record stands; Confluent's deserializers are told.

    Raises:
        InvalidPayload: it does not fit.
        Exception: anything else that the deserializer raises, such as a registry that does not answer.
    """
    if data is None:
        return None
    try:
        if isinstance(deserializer, Serde):
            return deserializer.deserialize(data)
        if isinstance(deserializer, Deserializer):
            return deserializer(data, SerializationContext(topic, MessageField.VALUE))
        return deserializer(data)
    except InvalidPayload:
        raise
    except Exception as error:
        if isinstance(error, _MISFITS) or getattr(error, "http_status_code", None) == _NO_SUCH_SCHEMA:
            raise InvalidPayload(f"the payload cannot be deserialized: {_text(error)}") from error
        raise


def payload_of(deserializer: DeserializerLike | None, data: bytes | None, topic: str, what: object) -> Any:
    """What a deserializer makes of a value; the value where there is none.

    Args:
        deserializer: by which; None = by none.
        data: the value.
        topic: where it stands.
        what: names it in an error.

    Raises:
        InvalidPayload: it does not fit.
    """
    if deserializer is None:
        return data
    try:
        return read(deserializer, data, topic)
    except InvalidPayload as error:
        raise InvalidPayload(f"{what}: {error}") from error


def _text(error: Exception) -> str:
    if isinstance(error, KafkaException) and error.args:
        return str(error.args[0])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
