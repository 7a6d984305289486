"""Avro payloads: reads them for keys, filters and deltas, and writes merged deltas (S1, S2, X1).

A payload has one of three forms: bare, Avro single-object encoding (`C3 01`, fingerprint, body), or Confluent's wire
format (a zero byte, a schema id of 4 bytes, body). A written payload has the form of the one that it was made from.

All payloads are read as records of the reader's schema. A payload whose fingerprint or id names another schema is
resolved by Avro's rules. A bare payload names none, so it is of the reader's schema.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from typing import Final

import fastavro
from fastavro.read import SchemaResolutionError

from lapse.protocol import json_payload
from lapse.protocol.avro_bounds import AvroBounds
from lapse.protocol.avro_fit import find_misfit
from lapse.protocol.avro_resolution import fault_between, written_part
from lapse.protocol.avro_schema import AvroSchema
from lapse.protocol.codec import HEADER_BYTES, MARKER

_CONFLUENT: Final = struct.Struct(">BI")
_DAMAGED: Final = (
    EOFError, ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError, RecursionError, struct.error,
)  # fmt: skip


class AvroPayload:
    """Reads and writes payloads as records of one schema.

    Args:
        schema: the reader's schema, for keys, filters, deltas and written payloads.
        writers: further schemas that payloads may be written with, recognized by fingerprint.
        confluent: whether payloads are in Confluent's wire format.
        ids: in that format, all schemas that payloads are written with, by id, the reader's included; None or empty =
            every id means the reader's.

    Raises:
        ValueError: payloads of a schema cannot be read with the reader's, no id is the reader's, or a schema is
            nested too deeply.
    """

    def __init__(
        self,
        schema: AvroSchema,
        writers: Sequence[AvroSchema] = (),
        *,
        confluent: bool = False,
        ids: Mapping[int, AvroSchema] | None = None,
    ) -> None:
        self._schema = schema
        self._confluent = confluent
        self._writers = {one.mark: one for one in writers} | {schema.mark: schema}
        self._ids = ids or {}
        self._marked = bool(writers)
        self._bounds = {one.mark: AvroBounds(one) for one in (schema, *writers, *self._ids.values())}
        for one in (*writers, *self._ids.values()):
            if fault := fault_between(one, schema):
                raise ValueError(f"what was written with {one.label} cannot be read with {schema.label}: {fault}")
        own = [number for number, one in self._ids.items() if one.mark == schema.mark]
        if self._ids and not own:
            raise ValueError(
                f"none of the schemas with an id is {schema.label}; its id is needed to write merged deltas"
            )
        self._own_frame = _CONFLUENT.pack(0, max(own)) if own else b""

    def parse(self, data: bytes) -> object:
        """Read a payload.

        Raises:
            ValueError: it is of none of the schemas, cannot be read with the reader's, or has bytes left over.
        """
        at, writer = self._writer(data)
        return self._read(data, at, writer, self._schema)

    def parse_delta(self, data: bytes) -> object:
        """Read a delta: a JSON object of the changed fields, or an Avro record, all of whose written fields count.

        Raises:
            ValueError: it is neither.
        """
        try:
            at, writer = self._writer(data)
            value = self._read(data, at, writer, self._schema)
            if writer is self._schema:
                return value
            return written_part(value, self._read(data, at, writer, writer), self._schema)
        except _DAMAGED as error:
            if data[:1] == b"{":
                try:
                    return json_payload.parse_exactly(data)
                except ValueError:
                    pass
            raise ValueError(f"neither JSON nor Avro: {error}") from error

    def serialize(self, value: object, like: bytes) -> bytes:
        """Write a payload with the reader's schema, in the form of another payload.

        Raises:
            ValueError: the value does not fit the schema, for example because of an unknown field.
        """
        try:
            fault = find_misfit(value, self._schema)
        except RecursionError:
            fault = "it is nested too deeply"
        if fault:
            raise ValueError(f"does not fit {self._schema.label}: {fault}")
        out = io.BytesIO()
        body_at = out.write(self._frame(like))
        try:
            fastavro.schemaless_writer(out, self._schema.tree, value, strict_allow_default=True)
        except _DAMAGED as error:
            raise ValueError(f"does not fit {self._schema.label}: {_describe_error(error)}") from error
        data = out.getvalue()
        try:
            self._bounds[self._schema.mark].check(data, body_at)
        except ValueError as error:
            raise ValueError(f"does not fit {self._schema.label}: {error}") from error
        return data

    def _read(self, data: bytes, at: int, writer: AvroSchema, reader: AvroSchema) -> object:
        try:
            self._bounds[writer.mark].check(data, at)
        except ValueError as error:
            raise ValueError(self._describe_unreadable(data, at, writer, str(error))) from error
        body = io.BytesIO(data)
        body.seek(at)
        try:
            value = fastavro.schemaless_reader(body, writer.tree, None if writer is reader else reader.tree)
        except SchemaResolutionError as error:
            try:
                fault = fault_between(writer, reader, self._read(data, at, writer, writer)) or str(error)
            except _DAMAGED:  # for example, it is so deep that the search for the fault exceeds the stack
                fault = str(error)
            raise ValueError(f"written with {writer.label}, and not to be read with {reader.label}: {fault}") from error
        except _DAMAGED as error:
            raise ValueError(self._describe_unreadable(data, at, writer, _describe_error(error))) from error
        if rest := len(data) - body.tell():
            raise ValueError(self._describe_unreadable(data, at, writer, f"{rest} bytes are left over"))
        return value

    def _describe_unreadable(self, data: bytes, at: int, writer: AvroSchema, fault: str) -> str:
        if not at and data.startswith(MARKER):
            given = data[len(MARKER) : HEADER_BYTES].hex()
            known = ", ".join(f"{one.fingerprint} ({one.label})" for one in self._writers.values())
            return f"of a schema that is not known, with the fingerprint {given}; known are {known}"
        return f"not Avro of {writer.label}: {fault}"

    def _writer(self, data: bytes) -> tuple[int, AvroSchema]:
        """Return the index of the body, and the schema that it was written with.

        Raises:
            ValueError: the payload does not name a known schema in the expected form.
        """
        if not self._confluent:
            writer = self._writers.get(data[:HEADER_BYTES])
            return (0, self._schema) if writer is None else (HEADER_BYTES, writer)
        if len(data) < _CONFLUENT.size or data[0]:
            raise ValueError("not in Confluent's wire format, which begins with a zero byte and a schema id")
        if not self._ids:
            return _CONFLUENT.size, self._schema
        _, number = _CONFLUENT.unpack_from(data)
        if number not in self._ids:
            raise ValueError(f"written with the schema of id {number}; known are {', '.join(map(str, self._ids))}")
        writer = self._ids[number]
        return _CONFLUENT.size, self._schema if writer.mark == self._schema.mark else writer

    def _frame(self, like: bytes) -> bytes:
        """Return the bytes before the body of a payload written with the reader's schema.

        Raises:
            ValueError: the payload that it is made from does not have the expected form.
        """
        if self._own_frame:
            return self._own_frame
        if self._confluent:
            return like[: self._writer(like)[0]]
        # If there are several schemas, a payload made from a bare JSON delta must name its schema.
        marked = self._marked or like[:HEADER_BYTES] in self._writers
        return self._schema.mark if marked else b""


def _describe_error(error: BaseException) -> str:
    """Return why bytes or a value did not fit. An error of the library without a text gets one."""
    if isinstance(error, EOFError) and not str(error):
        return "it ends too early"
    if isinstance(error, IndexError):
        return "a number in it that chooses a branch or a symbol is out of range"
    return str(error) or type(error).__name__
