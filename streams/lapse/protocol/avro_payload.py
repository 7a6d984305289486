"""Payloads in Avro: read for keys, filters and deltas, and written where a delta was merged (S1, S2, X1).

Three forms of one payload: bare; Avro single-object encoding (`C3 01`, fingerprint, body); Confluent's wire format (a
zero byte, a schema id of 4 bytes, body). What is written has the form of what it was made from.

Logical types are read as what they are stored as (a timestamp is a number), so that expressions can compare them and
nothing is rounded on the way back.
"""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any, Final

import fastavro
from fastavro.schema import SchemaParseException, UnknownType, fingerprint, to_parsing_canonical_form

from lapse.protocol.codec import HEADER_BYTES, MARKER

_CONFLUENT_BYTES: Final = 5
_DAMAGED: Final = (
    EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError, struct.error,
)  # fmt: skip


class AvroPayload:
    """Reads and writes payloads of one schema.

    Args:
        schema: the Avro schema, a record.
        confluent: whether payloads are in Confluent's wire format.

    Raises:
        ValueError: it is no schema of a record.
    """

    def __init__(self, schema: object, confluent: bool = False) -> None:
        try:
            self._schema: Any = fastavro.parse_schema(_plain(schema), named_schemas={})
            mark = MARKER + bytes.fromhex(fingerprint(to_parsing_canonical_form(self._schema), "CRC-64-AVRO"))
        except (SchemaParseException, UnknownType, *_DAMAGED) as error:
            raise ValueError(f"no Avro schema: {str(error) or type(error).__name__}") from error
        if not isinstance(self._schema, dict) or self._schema.get("type") != "record":
            raise ValueError("the schema of a payload has to be a record")
        self._mark = mark
        self._confluent = confluent

    @classmethod
    def of_file(cls, path: Path, confluent: bool = False) -> AvroPayload:
        """Read an `.avsc` file.

        Raises:
            ValueError: it cannot be read, or is no schema of a record.
        """
        try:
            tree = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        return cls(tree, confluent)

    def parse(self, data: bytes) -> object:
        """Read a payload.

        Raises:
            ValueError: it is not of this schema, or bytes are left over.
        """
        body = io.BytesIO(data)
        body.seek(len(self._framing(data)))
        try:
            value = fastavro.schemaless_reader(body, self._schema, None)
        except _DAMAGED as error:
            raise ValueError(f"not Avro of this schema: {str(error) or type(error).__name__}") from error
        if rest := len(data) - body.tell():
            raise ValueError(f"not Avro of this schema: {rest} bytes are left over")
        return value

    def parse_delta(self, data: bytes) -> object:
        """Read a delta: a JSON object of the changed fields, or a whole record in Avro.

        Raises:
            ValueError: it is neither.
        """
        try:
            return self.parse(data)
        except ValueError as error:
            if data[:1] == b"{":
                try:
                    return json.loads(data)
                except ValueError:
                    pass
            raise ValueError(f"neither JSON nor Avro: {error}") from error

    def serialize(self, value: object, like: bytes) -> bytes:
        """Write a payload in the form of another one.

        Raises:
            ValueError: the value does not fit the schema; fields that it does not know included.
        """
        out = io.BytesIO()
        out.write(self._framing(like))
        try:
            fastavro.schemaless_writer(out, self._schema, value, strict_allow_default=True)
        except _DAMAGED as error:
            raise ValueError(f"does not fit the schema: {str(error) or type(error).__name__}") from error
        return out.getvalue()

    def _framing(self, data: bytes) -> bytes:
        """What stands before the body.

        Raises:
            ValueError: it is not what it has to be.
        """
        if self._confluent:
            if len(data) < _CONFLUENT_BYTES or data[0]:
                raise ValueError("not in Confluent's wire format, which begins with a zero byte and a schema id")
            return data[:_CONFLUENT_BYTES]
        return data[:HEADER_BYTES] if data.startswith(self._mark) else b""


def _plain(schema: Any) -> Any:
    """The schema without its logical types."""
    if isinstance(schema, dict):
        return {
            name: part if name == "default" else _plain(part) for name, part in schema.items() if name != "logicalType"
        }
    return [_plain(part) for part in schema] if isinstance(schema, list) else schema
