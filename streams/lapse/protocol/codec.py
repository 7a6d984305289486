"""Codecs of the protocol's records: Avro single-object encoding (`C3 01`, fingerprint, body) and JSON (X2)."""

from __future__ import annotations

import functools
import io
import struct
from typing import Any, Final

import fastavro
import orjson
from fastavro.schema import fingerprint, to_parsing_canonical_form

from lapse.protocol import schema

MARKER: Final = b"\xc3\x01"
HEADER_BYTES: Final = 10
"""The size of marker and fingerprint, which Spark's `from_avro` must skip, bytes."""


class CodecError(ValueError):
    """The bytes are neither Avro of a known schema nor JSON of the expected form."""


@functools.cache
def header(name: str) -> bytes:
    """Return marker and CRC-64-AVRO fingerprint (little-endian) of the schema `<name>.avsc`."""
    return header_of(schema.parsed(name))


def header_of(parsed: Any) -> bytes:
    """Return marker and fingerprint of a schema, as `fastavro.parse_schema` returns it."""
    return MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO"))


def encode(name: str, record: dict[str, Any]) -> bytes:
    """Encode a record of the schema `<name>.avsc` as an Avro single object."""
    out = io.BytesIO()
    out.write(header(name))
    fastavro.schemaless_writer(out, schema.parsed(name), record)
    return out.getvalue()


def encode_beginning(name: str, record: dict[str, Any], last: str) -> bytes:
    """Encode only the first fields of a record, up to `last`. The bytes of the others must follow."""
    out = io.BytesIO()
    out.write(header(name))
    fastavro.schemaless_writer(out, _beginning(name, last), record)
    return out.getvalue()


def encode_with_items(name: str, record: dict[str, Any], field: str, count: int, items: bytes) -> bytes:
    """Encode a record with an array whose items are encoded already.

    Args:
        name: name of the schema.
        record: the record; this array is empty in it.
        field: name of the array's field, which is not the first one.
        count: the number of its items, at least 1.
        items: their bytes.
    """
    data, names = encode(name, record), [one["name"] for one in schema.parsed(name)["fields"]]
    before = io.BytesIO()
    fastavro.schemaless_writer(before, _beginning(name, names[names.index(field) - 1]), record)
    at = HEADER_BYTES + before.tell()
    return b"".join((data[:at], packed_long(count), items, data[at:]))


def packed_long(value: int) -> bytes:
    """Return the bytes of a number that is not negative, as Avro encodes an `int` or `long`."""
    left, packed = value << 1, bytearray()
    while left > 0x7F:
        packed.append(left & 0x7F | 0x80)
        left >>= 7
    packed.append(left)
    return bytes(packed)


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Decode an Avro single object that was written with the schema `<name>.avsc`.

    Raises:
        CodecError: the marker or fingerprint differs, the body is damaged, or bytes follow it.
    """
    if not data.startswith(header(name)):
        raise CodecError(
            f"not a {name} record in Avro single-object encoding: it begins with {data[:HEADER_BYTES].hex(' ')}, "
            f"expected {header(name).hex(' ')}"
        )
    body = io.BytesIO(data)
    body.seek(HEADER_BYTES)
    record = _read(name, body, schema.parsed(name))
    if rest := len(data) - body.tell():
        raise CodecError(f"{name} record: {rest} bytes too many behind the Avro body")
    return record


def decode_beginning(name: str, data: bytes, last: str) -> dict[str, Any]:
    """Decode only the first fields of an Avro single object, which is faster than `decode`.

    Args:
        name: name of the schema.
        data: the Avro single object.
        last: name of the last field to decode.

    Raises:
        CodecError: the marker or fingerprint differs, or these fields are damaged.
    """
    if not data.startswith(header(name)):
        raise CodecError(f"not a {name} record in Avro single-object encoding")
    body = io.BytesIO(data)
    body.seek(HEADER_BYTES)
    return _read(name, body, _beginning(name, last))


def decode_before(name: str, data: bytes, last: str, end: bytes) -> dict[str, Any] | None:
    """Decode the first fields of an Avro single object, up to `last`, if exactly `end` follows them; else return None.

    The other fields have the values whose bytes are `end`. Whatever is wrong with the bytes is left to `decode`.
    """
    if not data.endswith(end) or not data.startswith(header(name)):
        return None
    body = io.BytesIO(data)
    body.seek(HEADER_BYTES)
    try:
        record = _read(name, body, _beginning(name, last))
    except CodecError:
        return None
    return record if body.tell() == len(data) - len(end) else None


@functools.cache
def _beginning(name: str, last: str) -> Any:
    fields = schema.parsed(name)["fields"]
    count = [field["name"] for field in fields].index(last) + 1
    return fastavro.parse_schema({"type": "record", "name": f"{name}_to_{last}", "fields": fields[:count]})


def _read(name: str, body: io.BytesIO, parsed: Any) -> dict[str, Any]:
    try:
        record = fastavro.schemaless_reader(body, parsed, None)
    except (EOFError, ValueError, IndexError, struct.error, UnicodeDecodeError, TypeError, OverflowError) as error:
        raise CodecError(f"{name} record: the Avro body is damaged ({str(error) or type(error).__name__})") from error
    if not isinstance(record, dict):
        raise CodecError(f"{name} record: expected a record, found {type(record).__name__}")
    return record


def is_avro(data: bytes) -> bool:
    """Return whether bytes begin like Avro single-object encoding."""
    return data.startswith(MARKER)


def encode_json(record: dict[str, Any]) -> bytes:
    """Encode a record as JSON. Bytes become text, with U+FFFD for invalid UTF-8."""
    return orjson.dumps(record, default=_as_text)


def _as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} has no JSON form")
