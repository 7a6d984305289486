"""Confluent's wire format for commands and answers: a zero byte, the schema's id, big-endian, the Avro body (X2).

The ids are those of `schemas/command.avsc` and `schemas/answer.avsc` in a schema registry. `lapse.toml` states them, so
workers need no access to the registry.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from lapse.protocol import codec

_PREFIX: Final = struct.Struct(">bI")
_ids: dict[str, int] = {}


def configure(ids: Mapping[str, int]) -> None:
    """Set the ids of the schemas `command` and `answer` for this process. Without ids the format is refused."""
    _ids.clear()
    _ids.update(ids)


def has_schema_id(name: str) -> bool:
    """Return whether the id of a schema is configured."""
    return name in _ids


def is_framed(data: bytes) -> bool:
    """Return whether bytes begin like this format. JSON and single-object encoding never do."""
    return data[:1] == b"\0"


def encode(name: str, record: dict[str, Any]) -> bytes:
    """Encode a record of the schema `<name>.avsc`.

    Raises:
        KeyError: its id is not configured.
    """
    return _PREFIX.pack(0, _ids[name]) + codec.encode(name, record)[codec.HEADER_BYTES :]


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Decode a record of the schema `<name>.avsc`.

    Raises:
        codec.CodecError: the id differs, no id is configured, or the body is damaged.
    """
    expected = _ids.get(name)
    if expected is None:
        raise codec.CodecError(
            "the record is neither Avro single-object encoding nor JSON. It begins with a zero byte, as Confluent's "
            f"wire format does; to have that read, say {name}_schema_id in [lapse] of lapse.toml"
        )
    if len(data) < _PREFIX.size:
        raise codec.CodecError(f"{name} record: it begins with a zero byte, and is too short for a schema id behind it")
    _, number = _PREFIX.unpack_from(data)
    if number != expected:
        raise codec.CodecError(
            f"{name} record in Confluent's wire format: its schema id is {number}, and {name}_schema_id is {expected}"
        )
    return codec.decode(name, codec.header(name) + data[_PREFIX.size :])
