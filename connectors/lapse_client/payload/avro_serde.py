"""Payloads in Avro's single-object encoding, with schemas that both sides have, so that no registry is needed (S1)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from lapse.protocol.avro_payload import AvroPayload
from lapse.protocol.avro_schema import AvroSchema
from lapse_client.error import InvalidPayload
from lapse_client.payload.serde import Serde
from lapse_client.payload.shape import Shape

SchemaLike = Mapping[str, Any] | str | PathLike[str]
"""A schema: parsed, or the text of an `.avsc` file, or the file's path."""


class AvroSerde(Serde):
    """Payloads as Avro records in single-object encoding: a marker, the schema's fingerprint, the body.

    A payload written with one of the further schemas is read by Avro's rules of schema resolution. Workers read such
    payloads if the entity has `value_format = "avro"`. For Confluent's wire format, use Confluent's own
    `AvroSerializer` and `AvroDeserializer`.

    Args:
        schema: schema to write with, and to read as. Values of logical types are read as their underlying types.
        type: Python type of the records: a pydantic model, a dataclass or a `TypedDict`; None = dictionaries.
        writers: further schemas with which payloads may have been written.

    Raises:
        ValueError: a schema is not valid, or payloads of a further schema cannot be read as `schema`.
        LapseError: a type is given, and pydantic is missing.
    """

    def __init__(self, schema: SchemaLike, type: Any = None, *, writers: Iterable[SchemaLike] = ()) -> None:  # noqa: A002
        own = _schema(schema)
        self._payloads = AvroPayload(own, [_schema(one) for one in writers])
        self._mark = own.mark
        self._label = own.label
        self._shape = None if type is None else Shape(type)

    def __repr__(self) -> str:
        return f"AvroSerde({self._label}{'' if self._shape is None else f', {self._shape.name}'})"

    def serialize(self, value: Any) -> bytes:
        """See `Serde`."""
        fields = value if self._shape is None else self._shape.to_fields(value)
        try:
            return self._payloads.serialize(fields, self._mark)
        except ValueError as error:
            raise InvalidPayload(f"the payload {error}") from error

    def deserialize(self, data: bytes) -> Any:
        """See `Serde`."""
        try:
            fields = self._payloads.parse(data)
        except ValueError as error:
            raise InvalidPayload(f"the payload is {error}") from error
        return fields if self._shape is None else self._shape.from_fields(fields)


def _schema(given: SchemaLike) -> AvroSchema:
    tree: Any = given
    if isinstance(given, PathLike):
        tree = json.loads(Path(given).read_bytes())
    elif isinstance(given, str):
        tree = json.loads(given) if given.lstrip()[:1] in ("{", "[", '"') else json.loads(Path(given).read_bytes())
    label = tree.get("name", "the schema") if isinstance(tree, Mapping) else "the schema"
    return AvroSchema(tree, str(label))
