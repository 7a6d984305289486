"""Serdes convert between payloads and bytes: lapse's own, Confluent's, or any function (X3)."""

from __future__ import annotations

import inspect
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from traceback import walk_tb
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.serialization import (
    Deserializer,
    MessageField,
    SerializationContext,
    SerializationError,
    Serializer,
)
from fastavro.read import SchemaResolutionError

from lapse_client.error import InvalidPayload, InvalidPublication, UnresolvedSchema


class Serde(ABC):
    """Converts payloads to bytes and back. Both methods may be called from any thread."""

    @abstractmethod
    def serialize(self, value: Any) -> bytes:
        """Convert a payload to bytes.

        Raises:
            InvalidPayload: the payload does not fit.
        """

    @abstractmethod
    def deserialize(self, data: bytes) -> Any:
        """Convert bytes to a payload.

        Raises:
            InvalidPayload: the bytes do not fit.
        """


SerializerLike = Serde | Serializer | Callable[[Any], bytes | None]
"""The serializers that a publisher takes: a serde, one of Confluent's serializers, or a function."""

DeserializerLike = Serde | Deserializer | Callable[[bytes], Any]
"""The deserializers that a subscriber takes: a serde, one of Confluent's deserializers, or a function."""


_MISFITS: Final = (
    ValueError,
    TypeError,
    LookupError,
    EOFError,
    struct.error,
    SerializationError,
)
"""Errors that deserializers raise for damaged bytes. Other errors say nothing about the payload."""

_UNKNOWN_SCHEMA: Final = 40_403
"""The code with which a schema registry answers that it does not know an id.

A proxy, or another server, answers 404 without this code.

Other codes say that the registry lacks a subject or a version that the consumer, or another schema, names. No message
is at fault.
"""

_REGISTRY_S: Final = 10.0
"""How long Confluent's registry client may wait for an answer if its owner has set no `timeout`, in seconds.

It would wait for ever, and so would the consumer.
"""

_REGISTRY_CLIENT: Final = ".schema_registry_client"
"""Suffix of the module with Confluent's registry client. Errors raised there are not about the payload."""


def check_serde(what: str, serde: object) -> None:
    """Check an option that takes a serde, before it meets a message: one that cannot be called fits no payload.

    Args:
        what: name of the option.
        serde: its value; None = no serde.

    Raises:
        ValueError: it is a class of serdes instead of an object, or it cannot be called with one value.
    """
    if serde is None or isinstance(serde, Serde):
        return
    if isinstance(serde, type) and issubclass(serde, Serde | Serializer | Deserializer):
        raise ValueError(f"{what} = {serde.__name__}: expected an object of this class, such as {serde.__name__}(…)")
    if not callable(serde):
        raise ValueError(f"{what} = {serde!r}: expected a serde, such as JsonSerde(), or a function of one value")
    try:
        inspect.signature(serde).bind(b"")
    except TypeError as error:
        shown = getattr(serde, "__name__", type(serde).__name__)
        hint = f". For JSON of a type, use JsonSerde({shown})" if isinstance(serde, type) else ""
        raise ValueError(f"{what} = {shown}: it cannot be called with one value: {error}{hint}") from error
    except ValueError:  # functions in C may have no signature
        return


def write(serializer: SerializerLike, value: Any, topic: str) -> bytes | None:
    """Convert the payload of a record to bytes. None, which deletes, stays None.

    Args:
        serializer: converts the payload.
        value: the payload.
        topic: topic of the record. Confluent's serializers name the schema by it.

    Raises:
        InvalidPublication: the payload does not fit.
    """
    if value is None:
        return None
    try:
        if isinstance(serializer, Serde):
            return serializer.serialize(value)
        if isinstance(serializer, Serializer):
            _limit(serializer)
            return serializer(value, SerializationContext(topic, MessageField.VALUE))
        return serializer(value)
    except InvalidPayload as error:
        raise InvalidPublication(f"{topic}: {error}; nothing was sent") from error
    except Exception as error:  # whatever a library, or a user's function, raises
        raise InvalidPublication(
            f"{topic}: the payload cannot be serialized: {_text(error)}; nothing was sent"
        ) from error


def read(deserializer: DeserializerLike, data: bytes | None, topic: str) -> Any:
    """Convert the bytes of a record to a payload. None stays None.

    Args:
        deserializer: converts the bytes.
        data: the record's value.
        topic: topic of the record, for Confluent's deserializers.

    Raises:
        UnresolvedSchema: the registry does not know the schema, or the deserializer's schema cannot read the bytes.
        InvalidPayload: the bytes do not fit.
        Exception: any other error of the deserializer, for example if a registry does not answer.
    """
    if data is None:
        return None
    try:
        if isinstance(deserializer, Serde):
            return deserializer.deserialize(data)
        if isinstance(deserializer, Deserializer):
            _limit(deserializer)
            return deserializer(data, SerializationContext(topic, MessageField.VALUE))
        return deserializer(data)
    except InvalidPayload:
        raise
    except Exception as error:
        message = f"the payload cannot be deserialized: {_text(error)}"
        if isinstance(error, SchemaResolutionError) or _is_unknown(error):
            raise UnresolvedSchema(message) from error
        if _is_misfit(error):
            raise InvalidPayload(message) from error
        raise


def _limit(confluents: Serializer | Deserializer) -> None:
    """Give the registry client of one of Confluent's serdes a time limit, if it has none."""
    rest: Any = getattr(getattr(confluents, "_registry", None), "_rest_client", None)
    if rest is not None and getattr(rest, "timeout", _REGISTRY_S) is None:
        rest.timeout = rest.session.timeout = _REGISTRY_S


def _is_unknown(error: Exception) -> bool:
    """Return whether the registry itself says that it does not know a schema. It may know it later."""
    return hasattr(error, "http_status_code") and getattr(error, "error_code", None) == _UNKNOWN_SCHEMA


def _is_misfit(error: Exception) -> bool:
    """Return whether an error is about the payload. Errors of reaching a registry must not kill messages."""
    if hasattr(error, "http_status_code"):
        return False
    if not isinstance(error, _MISFITS) or isinstance(error, OSError):  # errors of requests and ssl may be both
        return False
    names = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return not any(name.endswith(_REGISTRY_CLIENT) for name in names)  # the registry's answer may be a login page


def payload_of(deserializer: DeserializerLike | None, data: bytes | None, topic: str, what: object) -> Any:
    """Convert a record's value to a payload. Without a deserializer, return the value.

    Args:
        deserializer: converts the value; None = no conversion.
        data: the value.
        topic: topic of the record.
        what: name of the record in errors.

    Raises:
        InvalidPayload: the value does not fit.
    """
    if deserializer is None:
        return data
    try:
        return read(deserializer, data, topic)
    except InvalidPayload as error:
        raise InvalidPayload(f"{what}: {error}") from error


def _text(error: Exception) -> str:
    """Return what an error says, without values of the payload, which JSON Schema's validator tells."""
    misfit: Any = error.__context__
    if hasattr(misfit, "json_path") and hasattr(misfit, "validator_value"):
        return f"{misfit.json_path} does not fit {misfit.validator} = {misfit.validator_value!r}"
    if isinstance(error, KafkaException) and error.args:
        return str(error.args[0])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
